# SPDX-License-Identifier: Apache-2.0
"""A script in several ranks, which are forked from one process that has imported torch and Thunder.

    python fork_ranks.py FOLDER SIZE SCRIPT [ARGUMENT ...]

Rank r writes its output to FOLDER/r, and FOLDER/r.status gets its exit status when it ends.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from importlib import import_module
from pathlib import Path


def run_rank(rank: int, output: Path, script: str) -> None:
    """Ends this process, with the status that Python would have had."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ["RANK"] = str(rank)
    status = 1
    try:
        runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0) if isinstance(ended.code, int | None) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


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
            run_rank(rank, Path(folder, str(rank)), script)
        ranks[child] = rank
    while ranks:
        child, status = os.wait()
        ended = Path(folder, f"{ranks.pop(child)}.status")
        ended.write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
