# SPDX-License-Identifier: Apache-2.0
"""The rows of the options: the types that type checkers see, and what `env` says of wrong ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from thunder_fuser.__main__ import main
from thunder_fuser.errors import OptionError
from thunder_fuser.options import OPTIONS, OptionValues

ROOT = Path(__file__).parents[2]

CHECKED = """
from thunder_fuser.options import options
options(strict=True, fuel=3, rematerialization="memory", cache_dir="/x")
options(rematerialization=lambda *facts: None)
options(strickt=True)  # line 5
options(fuel="many")  # line 6
"""


def test_the_keywords_are_the_rows() -> None:
    """In their order and with their types."""
    types = {
        row.name: str | Callable[..., Any] if row.or_callable else row.type
        for row in OPTIONS.values()
    }
    assert get_type_hints(OptionValues) == types
    assert list(OptionValues.__annotations__) == list(OPTIONS)


@pytest.mark.parametrize("value", ["--3", "²", "٣", "", "-", "3.0", "1_0"])
def test_what_is_no_integer_is_refused(value: str) -> None:
    with pytest.raises(OptionError, match="option fuel: expected the type int"):
        OPTIONS["fuel"].parse(value)


def test_mypy_checks_the_keywords(tmp_path: Path) -> None:
    """Without what these two files import, which takes long."""
    path = tmp_path / "checked.py"
    path.write_text(CHECKED)
    command = ["--follow-imports=skip", "--ignore-missing-imports", "--config-file="]
    command += [f"--cache-dir={tmp_path}/cache", "thunder_fuser/options.py", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *command], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if "checked.py" in line and "error:" in line]
    assert [line.split(":")[1] for line in found] == ["5", "6"], done.stdout + done.stderr
    assert 'Unexpected keyword argument "strickt"' in found[0]
    assert 'expected "int"' in found[1]


def env(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = main(["env"])
    return status, capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(OPTIONS.keys() - {"dump", "skip_passes"}))
def test_env_marks_a_wrong_value_and_prints_the_rest(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of every option but those for which this is a folder, or a name that no pass has."""
    monkeypatch.setenv(OPTIONS[name].env, "??")
    status, text = env(capsys)
    assert status == 1
    assert f"\n  {name} " in text and "WRONG: '??'" in text
    assert f"\nWRONG: option {name}: expected " in text
    assert all(f"\n  {row.name} " in text for row in OPTIONS.values())
    assert "torch" in text and "compiler" in text
    tables = text.partition("\nWRONG: ")[0].splitlines()
    assert max(map(len, tables)) <= 100


def test_env_names_a_variable_that_is_no_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THUNDER_FUSER_STRCT", "1")
    status, text = env(capsys)
    assert status == 1
    assert (
        "THUNDER_FUSER_STRCT is no option of the fuser; did you mean THUNDER_FUSER_STRICT?" in text
    )


def test_env_is_content_with_what_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = env(capsys)
    assert status == 0 and "WRONG" not in text
