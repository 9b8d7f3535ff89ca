# SPDX-License-Identifier: Apache-2.0
"""Scripts in processes that are forked from one that has imported torch, Thunder and the fuser.

    forked(script)  ->  exit status, standard output, standard error

The import takes longer than most scripts. What a first import says is tested in test_imports.py.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import traceback
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NoReturn

SECONDS = 300  # of a script


def forked(script: Path) -> tuple[int, str, str]:
    """The script runs in its folder as the main program, with the tests' environment."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(f"{script}\n")
    server.stdin.flush()
    status = int(server.stdout.readline())
    out, err = (script.with_suffix(end).read_text("utf-8") for end in (".out", ".err"))
    return status, out, err


@cache
def _server() -> subprocess.Popen[str]:
    """One for the process of the tests; it ends when that closes its pipe."""
    return subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )  # fmt: skip


def serve() -> None:
    """A line of the input names a script; its exit status is written when it has ended."""
    import_module("thunder_fuser")
    import_module("thunder")
    for line in sys.stdin:
        script = Path(line.rstrip("\n"))
        child = os.fork()
        if not child:
            _run(script)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(script: Path) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(script.parent)
    sys.argv = [str(script)]
    sys.path[0] = str(script.parent)
    signal.alarm(SECONDS)
    run_main(script, script.with_suffix(".out"), script.with_suffix(".err"))


def run_main(script: Path, out: Path, err: Path) -> NoReturn:
    """Ends this process, with the status that Python would have had."""
    for descriptor, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    status = 1
    try:
        runpy.run_path(str(script), run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0) if isinstance(ended.code, int | None) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
