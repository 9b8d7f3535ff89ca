# SPDX-License-Identifier: Apache-2.0
"""Row results of an outer reduction whose reduced axis is shorter than a block's rows.

The guard of the reduced axis was still open where row results are stored, and lowering gave up.
"""

from __future__ import annotations

from helpers.cases import Runner, rand

from thunder_fuser.definition import FusionDefinition


def test_row_results_beside_wide_columns(run: Runner) -> None:
    x = rand(3, 40000)

    def fusion(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.sum(fd.from_pytorch(x), [0]))

    run(fusion, [x], [x.sum(0)])
