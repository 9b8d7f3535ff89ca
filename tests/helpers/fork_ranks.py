# SPDX-License-Identifier: Apache-2.0
"""A script in several ranks, which are forked from one process that has imported torch and Thunder.

    python fork_ranks.py FOLDER SIZE SCRIPT [ARGUMENT ...]

Rank r writes its output to FOLDER/r, and FOLDER/r.status gets its exit status when it ends.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

from forked import run_main  # of the folder of this script


def main() -> None:
    folder, size, script, *arguments = sys.argv[1:]
    if "cuda" not in arguments:  # Thunder counts GPUs, and then a child could not use them
        import_module("thunder_fuser.executors.fuser")
        import_module("thunder_fuser.definition")
        import_module("torch.distributed.tensor")
    sys.argv = [script, *arguments]
    ranks: dict[int, int] = {}  # of children that run
    for rank in range(int(size)):
        child = os.fork()
        if not child:
            os.environ["RANK"] = str(rank)
            output = Path(folder, str(rank))
            run_main(Path(script), output, output)
        ranks[child] = rank
    while ranks:
        child, status = os.wait()
        ended = Path(folder, f"{ranks.pop(child)}.status")
        ended.write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
