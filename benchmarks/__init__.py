# SPDX-License-Identifier: Apache-2.0
"""What measures or stresses the package. Run from the repository's root; see docs/benchmarks.md.

    python -m benchmarks --help

A command is a module with `add_options(parser)` and `run(given, report)`. The others serve them:

report   what a command found -> terminal, JSON      facts    where and with what it was measured
clock    calls -> times, taken in turns              bounds   a limit, met or missed
models   stacks of transformer blocks                options  what several commands are asked
"""

import thunder_fuser  # noqa: F401 before thunder: torch 2.13 lacks names for it
