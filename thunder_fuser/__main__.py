# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder_fuser`."""

from __future__ import annotations

import sys

from thunder_fuser.cli import main

if __name__ == "__main__":
    sys.exit(main())
