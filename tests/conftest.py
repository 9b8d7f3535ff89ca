# SPDX-License-Identifier: Apache-2.0
"""What all tests share.

`golden` compares a text with a file under golden/; `run` runs a definition on each target; every
kernel and fusion that a test makes is checked when it ends (helpers/watch.py).
"""

from __future__ import annotations

import atexit
import difflib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.cases import TARGETS, Runner
from helpers.crashes import (  # noqa: F401
    pytest_runtest_logstart,
    pytest_sessionfinish,
    pytest_terminal_summary,
    record_crashes,
)
from helpers.quick import (  # noqa: F401
    pytest_collection_finish,
    pytest_configure,
    pytest_runtest_logfinish,
)
from helpers.watch import compile_waiting, watched

from thunder_fuser.base.threads import BACKGROUND, WARNED

TESTS = Path(__file__).resolve().parent


def _private_store() -> None:
    """Kernels are stored in a folder that goes away with the run, which all its processes share.

    Never in the user's own: a test may break a store.
    """
    if "FUSER_TESTS" not in os.environ:
        folder = os.environ["FUSER_TESTS"] = tempfile.mkdtemp(prefix="thunder_fuser-tests-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["THUNDER_FUSER_CACHE_DIR"] = os.environ["FUSER_TESTS"] + "/store"
    os.environ["THUNDER_FUSER_CACHE"] = "rw"


_private_store()

# A golden file may be Python and called test_something.py; it is data.
collect_ignore = ["golden"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the texts under tests/golden instead of comparing with them",
    )


class Golden:
    """`golden(text)` fails unless tests/golden/<test file>/<test name>.txt holds exactly `text`.

    `ext` is the file's ending ("py", "cu"); `part` tells several texts of one test apart.
    """

    def __init__(self, stem: Path, update: bool) -> None:
        self.stem, self.update = stem, update
        self.used: set[Path] = set()

    def __call__(self, text: str, ext: str = "txt", part: str = "") -> None:
        __tracebackhide__ = True
        path = self._path(ext, part)
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        elif not path.is_file():
            pytest.fail(
                f"no golden file {_shown(path)}; {_ADVICE}; the text was:\n{text}", pytrace=False
            )
        elif (expected := path.read_text(encoding="utf-8")) != text:
            pytest.fail(
                f"{_shown(path)} differs; {_ADVICE}:\n{_diff(expected, text)}", pytrace=False
            )

    def _path(self, ext: str, part: str) -> Path:
        name = f"{self.stem.name}.{part}.{ext}" if part else f"{self.stem.name}.{ext}"
        path = self.stem.with_name(name)
        # A second text would overwrite the first under --update-golden and fail ever after.
        assert path not in self.used, f"{_shown(path)} is compared twice in one test: pass part="
        self.used.add(path)
        return path


_ADVICE = "if the new text is right, run pytest with --update-golden and read the diff"


def _shown(path: Path) -> str:
    return path.relative_to(TESTS.parent).as_posix()


def _diff(expected: str, text: str) -> str:
    before, after = (t.splitlines(keepends=True) for t in (expected, text))
    lines = difflib.unified_diff(before, after, "golden", "now")
    return "".join(line if line.endswith("\n") else line + "  <no newline>\n" for line in lines)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares texts with this test's files under tests/golden."""
    folder = TESTS / "golden" / request.path.relative_to(TESTS).with_suffix("")
    owner = f"{request.cls.__name__}." if request.cls else ""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", owner + request.node.name).strip("-")
    return Golden(folder / name, request.config.getoption("--update-golden"))


@pytest.fixture(params=TARGETS)
def run(request: pytest.FixtureRequest) -> Runner:
    """Executes a definition on a target and compares it with torch."""
    return Runner(request.param)


@pytest.fixture(autouse=True)
def _watched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    WARNED._values.clear()  # each test is told what went wrong, as a process is
    with watched(monkeypatch, request.node.nodeid):
        yield
        BACKGROUND.abandon()  # what the test began ends under its settings


def pytest_sessionstart() -> None:
    record_crashes()  # after pytest's own plugin, which writes to the standard error


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if nextitem is None:  # the last test of this process
        compile_waiting()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Thunder's suite takes minutes a test: it comes first, or one worker would be at it when the
    others have ended."""
    items.sort(key=lambda item: item.path.name != "test_suite.py")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts a command in the background with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def all_handed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No result of a CUDA graph is too small to be handed out without a copy."""
    for module in ("graph", "transform"):
        monkeypatch.setattr(f"thunder_fuser.executors.cuda_graphs.{module}.LEAST_HANDED", 0)
