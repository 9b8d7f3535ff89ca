# SPDX-License-Identifier: Apache-2.0
"""Scripts in processes that are forked from one that has imported torch, Thunder and the fuser.

    forked(script)      ->  exit status, standard output, standard error
    python(program)     ->  what it says, where the fuser is not imported yet
    fork_all([Job...])  ->  the exit status of each; they run at the same time

The import takes longer than most scripts. What a first import says is tested in test_imports.py.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from helpers.quick import freeze_what_stays, quicken

SECONDS = 300  # of a script
THUNDER = ("thunder_fuser", "thunder")
MODULES = (
    *THUNDER, "thunder_fuser.executors.fuser", "thunder_fuser.definition",
    "torch.distributed.tensor",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """The command line of a script, the files that get its output, and changes of the environment.

    After `seconds` it is killed.
    """

    command: list[str]
    out: str
    err: str
    environment: dict[str, str] = field(default_factory=dict)
    seconds: int = SECONDS


def forked(script: Path) -> tuple[int, str, str]:
    """The script runs in its folder as the main program, with the tests' environment."""
    out, err = script.with_suffix(".out"), script.with_suffix(".err")
    (status,) = fork_all([Job([str(script)], str(out), str(err))])
    return status, out.read_text("utf-8"), err.read_text("utf-8")


def python(program: str, **environment: str) -> str:
    """What the program says without warnings in a process that has Thunder, but not the fuser."""
    with TemporaryDirectory() as folder:
        script, said = Path(folder, "program.py"), Path(folder, "said")
        script.write_text(f"import warnings\nwarnings.simplefilter('ignore')\n{program}", "utf-8")
        job = Job([str(script)], str(said), str(said), environment)
        (status,) = fork_all([job], THUNDER)
        text = said.read_text("utf-8")
    assert status == 0, text[-6000:]
    return text.strip()


def fork_all(jobs: Sequence[Job], modules: tuple[str, ...] = MODULES) -> list[int]:
    """Each job runs as `forked` runs a script. modules: what their common parent has imported."""
    server = _server(modules)
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps([asdict(job) for job in jobs]) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


@cache
def _server(modules: tuple[str, ...]) -> subprocess.Popen[str]:
    """One for the process of the tests; it ends when that closes its pipe."""
    tests = Path(__file__).resolve().parents[1]
    places = [str(tests.parent), str(tests), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, __file__, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))},
    )  # fmt: skip


def serve(modules: Sequence[str]) -> None:
    """A line of the input names jobs; their exit statuses are written when all have ended."""
    for module in modules:
        import_module(module)
    quicken()
    freeze_what_stays()
    for line in sys.stdin:
        children = [_start(Job(**one)) for one in json.loads(line)]
        ended = [os.waitpid(child, 0)[1] for child in children]
        print(json.dumps([os.waitstatus_to_exitcode(one) for one in ended]), flush=True)


def _start(job: Job) -> int:
    child = os.fork()
    if not child:
        _run(job)
    return child


def _run(job: Job) -> NoReturn:
    """Ends this process, with the status that Python would have had."""
    script = Path(job.command[0])
    for descriptor, path in ((0, os.devnull), (1, job.out), (2, job.err)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), descriptor)
    os.chdir(script.parent)
    os.environ.update(job.environment)
    sys.argv = job.command
    sys.path[0] = str(script.parent)
    signal.alarm(job.seconds)
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
    serve(sys.argv[1:])
