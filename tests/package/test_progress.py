# SPDX-License-Identifier: Apache-2.0
"""The line on stderr that says what is being waited for, on a pseudo terminal and without one."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from thunder_fuser.base import progress
from thunder_fuser.errors import OptionError
from thunder_fuser.explain.jitted import jit
from thunder_fuser.options import options

TESTS = Path(__file__).parents[1]
# The programs below have a clock of their own. `until` waits for what the line's thread does.
HEAD = """
import os, sys, threading, time
from thunder_fuser.base import progress
from thunder_fuser.options import options
from thunder_fuser.base.progress import still, working

progress.STEP_SECONDS = 0.01
clock = [100.0]
progress.monotonic = lambda: clock[0]

def until(done):
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)

def is_shown():
    return progress._LINE._drawn != ""

def later(seconds):
    clock[0] += seconds
"""


class Screen:
    """What a terminal shows: `lines` at the end, and each text that ever stood in a line."""

    def __init__(self, text: str) -> None:
        self.lines, self.seen, column = [""], set[str](), 0
        for part in text.replace("\r\n", "\n"):
            if part == "\n":
                self.lines.append("")
                column = 0
            elif part == "\r":
                self.seen.add(self.lines[-1].rstrip())
                column = 0
            else:
                assert part >= " ", f"a control character {part!r}"
                line = self.lines[-1].ljust(column)
                self.lines[-1] = line[:column] + part + line[column + 1 :]
                column += 1
        self.lines = [line.rstrip() for line in self.lines]


def on_terminal(program: str, **environment: str) -> Screen:
    """Runs a program whose stdout and stderr are a terminal."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", HEAD + program],
        stdout=child, stderr=child, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}", **environment},
    )  # fmt: skip
    os.close(child)
    written = b""
    while part := _read(parent):
        written += part
    os.close(parent)
    screen = Screen(written.decode())
    assert process.wait(60) == 0, "\n".join(screen.lines)
    return screen


def _read(parent: int) -> bytes:
    try:
        return os.read(parent, 4096)
    except OSError:  # Linux: the last writer has gone
        return b""


def texts(screen: Screen) -> set[str]:
    """What was waited for, without the seconds."""
    ours = (line for line in screen.seen if line.startswith("thunder_fuser: "))
    return {line.removeprefix("thunder_fuser: ").rpartition(", ")[0] for line in ours}


def test_a_long_wait_is_shown_and_erased() -> None:
    screen = on_terminal("""
with working("region 12 of 40"):
    later(15)
    until(is_shown)
print("done")
""")
    assert screen.seen == {"", "thunder_fuser: region 12 of 40, 15 s"}
    assert screen.lines == ["done", ""]


def test_a_short_wait_is_not_shown() -> None:
    screen = on_terminal("""
with working("region 1 of 2"):
    later(2.9)
    time.sleep(0.2)
print("done")
""")
    assert texts(screen) == set() and screen.lines == ["done", ""]


def test_regions_one_after_the_other_are_one_wait() -> None:
    screen = on_terminal("""
for number in range(1, 9):
    with working(f"region {number} of 8"):
        later(0.9)
        if number == 8:
            until(is_shown)
later(60)
with working("region 1 of 2"):
    later(2)
    time.sleep(0.1)
""")
    found = texts(screen)
    assert "region 8 of 8" in found and screen.lines == [""]
    assert not found & {"region 1 of 8", "region 2 of 8", "region 1 of 2"}


def test_what_others_print_meanwhile_stays() -> None:
    screen = on_terminal("""
with working("region 1 of 2"):
    later(5)
    until(is_shown)
    print("a line of the program that is longer than ours", flush=True)
    later(1)
    until(lambda: "6 s" in progress._LINE._drawn)
print("done")
""")
    assert screen.lines == ["a line of the program that is longer than ours", "done", ""]


def test_an_error_ends_the_line() -> None:
    screen = on_terminal("""
try:
    with working("region 1 of 2"):
        later(5)
        until(is_shown)
        raise ValueError("no")
except ValueError:
    import traceback
    traceback.print_exc()
""")
    assert texts(screen) == {"region 1 of 2"}
    assert screen.lines[0] == "Traceback (most recent call last):"
    assert screen.lines[-2:] == ["ValueError: no", ""]


def test_work_whose_end_nobody_tells() -> None:
    """An error may end it: the traceback writes over the line."""
    screen = on_terminal("""
def goes_on():
    still("tracing", "__main__")
    later(0.02)
    return is_shown()
until(goes_on)
print("Traceback (most recent call last):", flush=True)
later(3)
until(lambda: not is_shown())
print("done")
""")
    assert texts(screen) == {"tracing"}
    assert screen.lines == ["Traceback (most recent call last):", "done", ""]


def test_work_ends_where_its_package_has_returned() -> None:
    screen = on_terminal("""
exec('''
def traced():
    still("tracing", "library")
    later(1.5)
    still("tracing", "library")
    later(1.5)
    still("tracing", "library")
    until(is_shown)
''', scope := {**globals(), "__name__": "library.part"})
scope["traced"]()
until(lambda: not is_shown())
print("done")
""")
    assert texts(screen) == {"tracing"} and screen.lines == ["done", ""]


def test_threads_share_one_line() -> None:
    screen = on_terminal("""
def work(number):
    for _ in range(20):
        with working(f"region {number} of 8"):
            later(0.2)
            time.sleep(0.01)
with working("region 8 of 8"):
    threads = [threading.Thread(target=work, args=[n]) for n in range(1, 8)]
    for one in threads: one.start()
    for one in threads: one.join()
    until(is_shown)
print("done")
""")
    assert "region 8 of 8" in texts(screen) and screen.lines == ["done", ""]


def test_a_forked_child_has_a_line_of_its_own() -> None:
    screen = on_terminal("""
with working("region 1 of 2"):
    later(5)
    until(is_shown)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
if not child:
    with working("region 1 of 3"):
        later(5)
        until(is_shown)
    os._exit(0)
print("done")
""")
    assert texts(screen) == {"region 1 of 2", "region 1 of 3"}
    assert screen.lines == ["done", ""]


def test_its_thread_goes_and_comes_again() -> None:
    screen = on_terminal("""
for number in (1, 2):
    with working(f"region {number} of 2"):
        later(5)
        until(is_shown)
    later(6)
    until(lambda: threading.active_count() == 1)
    print("gone")
""")
    assert texts(screen) == {"region 1 of 2", "region 2 of 2"}
    assert screen.lines == ["gone", "gone", ""]


def test_off_means_off() -> None:
    screen = on_terminal(
        "with working('region 1 of 2'): later(5), time.sleep(0.2)", THUNDER_FUSER_PROGRESS="off"
    )
    assert screen.seen == set() and screen.lines == [""]


@pytest.mark.parametrize(("mode", "shown"), [("on", False), ("force", True), ("off", False)])
def test_without_a_terminal_it_must_be_forced(mode: str, shown: bool) -> None:
    wait = "until(is_shown)" if shown else "time.sleep(0.2)"
    program = f"with options(progress={mode!r}), working('region 1 of 2'): later(5), {wait}"
    done = subprocess.run(
        [sys.executable, "-c", HEAD + program], capture_output=True, check=True
    )
    written = done.stderr.decode()
    assert ("region 1 of 2" in written) is shown and done.stdout == b""
    assert shown or written == ""
    assert Screen(written).lines == [""]


@pytest.mark.parametrize(
    "how",
    [
        "sys.stderr.close()", "sys.stderr = None", "os.close(2)",
        "import types; sys.stderr = types.SimpleNamespace(flush=print)",
    ],
)
def test_a_stderr_that_is_gone_breaks_nothing(how: str) -> None:
    program = f"""
{how}
with options(progress="force"), working("region 1 of 2"):
    later(5)
    time.sleep(0.2)
    assert threading.active_count() == 2  # the thread that would draw lives on
with working("region 2 of 2"):
    still("tracing", "__main__")
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + program],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["done"]


# ---- who says what is done


def function(x: Any, w: Any) -> Any:
    return torch.softmax(x * 2, -1) @ w + 1


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is being done, as it begins."""
    found: list[str] = []

    def noting(original: Callable[..., None]) -> Callable[..., None]:
        return lambda what, *more: (found.append(what), original(what, *more))[1]

    line = progress._ProgressLine()
    monkeypatch.setattr(line, "begin", noting(line.begin))
    monkeypatch.setattr(line, "beat", noting(line.beat))
    monkeypatch.setattr(progress, "_LINE", line)
    return found


def test_tracing_planning_and_each_region(said: list[str]) -> None:
    jitted = jit(function, strict=True, progress="force")
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8)
    jitted(x, w).sum().backward()
    assert list(dict.fromkeys(said)) == [
        "tracing", "planning", "compiling 1 of 3", "compiling 2 of 3", "compiling 3 of 3"
    ]  # fmt: skip
    said.clear()
    jitted(x, w).sum().backward()
    assert said == []


def test_nothing_is_said_where_it_is_off(said: list[str]) -> None:
    jit(function, strict=True, progress="off")(torch.randn(4, 8), torch.randn(8, 8))
    assert said == []


def test_a_wrong_mode_is_refused() -> None:
    words = "option progress: expected one of on, force, off, got 'forced'. To fix it: write force"
    with pytest.raises(OptionError, match=words), options(progress="forced"):
        pass


def test_a_slow_compiler_on_a_terminal(tmp_path: Path) -> None:
    compiler = tmp_path / "slow-c++"
    compiler.write_text("#!/bin/sh\n[ $1 = --version ] || sleep 1\nexec g++ \"$@\"\n")
    compiler.chmod(0o755)
    screen = on_terminal(
        """
progress.monotonic, progress.AFTER_SECONDS = time.monotonic, 0.3
import thunder, torch
from thunder_fuser import fuser
def f(x):
    for _ in range(20):
        x = torch.sin(x) * 2
        time.sleep(0.05)
    return x
print(float(thunder.jit(f, executors=[fuser], fuser_strict=True)(torch.zeros(3)).sum()))
""",
        CXX=str(compiler), THUNDER_FUSER_CACHE="off",
    )  # fmt: skip
    assert texts(screen) >= {"tracing", "compiling 1 of 1"}
    assert screen.lines[-2:] == ["0.0", ""] and "thunder_fuser: " not in "".join(screen.lines)
