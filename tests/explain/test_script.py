# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder_fuser report SCRIPT`: what runs, which page comes of it, and the exit code."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import thunder

from thunder_fuser.__main__ import main

SCRIPT = """
import re
import sys
import torch
from thunder import jit
from thunder_fuser import fuser
import beside

def scaled_tanh(x):
    return torch.tanh(x * 2)

def never_called(x):
    return x

def run():
    local = jit(torch.nn.Linear(4, 4), executors=[fuser])  # gone when the function returns
    local(jit(scaled_tanh, executors=[fuser])(torch.ones(4)))
    jit(never_called, executors=[fuser])
    jit(torch.neg, executors=[])(torch.ones(4))

if __name__ == "__main__":
    run()
    print("arguments:", *sys.argv[1:])
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").touch()
    path = tmp_path / "script.py"
    path.write_text(SCRIPT, "utf-8")
    yield path
    sys.modules.pop("beside", None)


def test_a_page_of_every_function_that_was_jitted_with_the_fuser(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.argv, sys.path, thunder.jit
    assert main(["report", "script.py", "--lr", "3", "-o", "page.html"]) == 0
    assert (sys.argv, sys.path, thunder.jit) == before
    out, err = capsys.readouterr()
    assert "arguments: --lr 3\n" in out
    assert f"{Path('page.html').absolute()}: 2 functions of script.py" in out
    assert "no report on never_called" in err
    page = Path("page.html").read_text("utf-8")
    assert ">scaled_tanh</h2>" in page and ">Linear</h2>" in page
    assert ">claim<" in page and "Of all functions on this page together" in page
    assert not Path("report.html").exists()


def test_a_page_that_is_there_stays(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = ["report.html", "report-1.html", "report-2.html"]
    Path(pages[0]).write_text("mine", "utf-8")
    for page in pages[1:]:
        assert main(["report", "script.py"]) == 0
        assert f"{Path(page).absolute()}: 2 functions" in capsys.readouterr().out
    assert Path(pages[0]).read_text("utf-8") == "mine"
    assert main(["report", "script.py", "-o", pages[0]]) == 0  # it was asked for by name
    assert Path(pages[0]).read_text("utf-8") != "mine"


def test_an_option_of_the_script_with_the_name_of_ours(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "-o", "page.html", "script.py", "-o", "its_own"]) == 0
    assert "arguments: -o its_own\n" in capsys.readouterr().out
    assert Path("page.html").exists() and not Path("its_own").exists()


@pytest.mark.parametrize(
    ("last_line", "message"),
    [
        ("    raise OSError(28, 'the disk is full')", "OSError: [Errno 28] the disk is full"),
        ("    raise SystemExit('no such option')", "no such option"),
        ("    raise SystemExit(3)", ""),
        ("    raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_a_script_that_fails_has_its_page_all_the_same(
    script: Path, last_line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(SCRIPT + last_line, "utf-8")
    assert main(["report", "script.py"]) == 1
    out, err = capsys.readouterr()
    assert "2 functions of script.py; script.py failed" in out
    assert message in err and "runpy" not in err
    assert ">scaled_tanh</h2>" in Path("report.html").read_text("utf-8")


def test_a_script_that_does_not_parse(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("1 +", "utf-8")
    assert main(["report", "script.py"]) == 1
    out, err = capsys.readouterr()
    assert "SyntaxError" in err and "runpy" not in err
    assert "script.py jits no function with the fuser; script.py failed" in out


def test_a_script_that_ends_by_itself_has_succeeded(script: Path) -> None:
    script.write_text(SCRIPT + "    sys.exit()", "utf-8")
    assert main(["report", "script.py"]) == 0


def test_a_script_that_jits_nothing(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("import beside", "utf-8")
    assert main(["report", "script.py"]) == 1
    assert "script.py jits no function with the fuser" in capsys.readouterr().out
    assert "No function was jitted" in Path("report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.py"], "InputError: report: expected a file with a Python script, got none.py"),
        (["script.py", "-o", "none/page.html"], "ReportError: .*a folder that exists"),
        (["script.py", "-o", "page.pdf"], r"ReportError: .*ends in .html.*got \.pdf"),
    ],
)
def test_what_cannot_work_is_said_before_the_script_runs(
    script: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(message, err)
