# SPDX-License-Identifier: Apache-2.0
"""The first call of a jitted function checks all options: their values, and names like theirs."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from pathlib import Path

import pytest
import thunder
import torch

from thunder_fuser import OPTIONS, fuser, options
from thunder_fuser.errors import OptionError, OptionWarning

X = torch.ones(4)


def call(**given: object) -> list[warnings.WarningMessage]:
    """The warnings of OptionWarning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thunder.jit(lambda x: torch.sin(x) * 2.0, executors=[fuser], **given)(X)
    return [one for one in caught if one.category is OptionWarning]


LINE = inspect.getsourcelines(call)[1] + 4


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("strict", "maybe"),
        ("fuel", "many"),
        ("fuel", "-2"),
        ("max_programs", "0"),
        ("cache", "on"),
        ("cache_dir", "here"),
        ("name_prefix", "1 bad"),
        ("rematerialization", "much"),
        ("rematerialization", "budget"),
        ("dump", os.devnull),
    ],
)
def test_a_wrong_value_in_the_environment(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of options that this function never reads, too."""
    monkeypatch.setenv(f"THUNDER_FUSER_{name.upper()}", text)
    with pytest.raises(OptionError, match=f"option {name}: expected .*got .*{text}"):
        call()


@pytest.mark.parametrize("text", ["budget(2)", "budget(-0.5)", "budget('x')"])
def test_a_budget_out_of_range(text: str) -> None:
    expected = r"option rematerialization: expected in budget\(...\) a number from 0 to 1, got "
    with pytest.raises(OptionError, match=expected + re.escape(repr(text))):
        call(fuser_rematerialization=text)


@pytest.mark.parametrize(
    ("name", "value"), [("cache_dir", "here"), ("name_prefix", "1 bad"), ("dump", os.devnull)]
)
def test_a_wrong_value_of_a_keyword(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"option {name}: expected "):
        call(**{f"fuser_{name}": value})


def test_an_error_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_FUSER_STRICT", "maybe")
    with pytest.raises(OptionError, match="environment variable THUNDER_FUSER_STRICT"):
        call()
    with options(strict=False):  # which the environment does not decide
        assert call() == []


def test_a_variable_that_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_FUSER_STRCT", "1")
    (one,) = call()
    assert "THUNDER_FUSER_STRCT is no option" in str(one.message)
    assert str(one.message).endswith("did you mean THUNDER_FUSER_STRICT?")
    assert (one.filename, one.lineno) == (__file__, LINE)
    assert call() == []  # once


def test_a_variable_like_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDER_FUSER_COLOUR", "red")
    (one,) = call()
    assert "did you mean" not in str(one.message) and "python -m thunder_fuser env" in str(
        one.message
    )


def test_an_option_without_its_prefix() -> None:
    (one,) = call(strict=True)
    assert "thunder.jit(strict=...) sets no option" in str(one.message)
    assert "fuser_strict=..." in str(one.message)
    assert (one.filename, one.lineno) == (__file__, LINE)


def test_a_keyword_like_an_option() -> None:
    with pytest.raises(OptionError, match=r"got fuser_strickt. To fix it: write fuser_strict\."):
        call(fuser_strickt=True)


def test_what_is_right_is_silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All options at their defaults, keywords of Thunder's own and of other executors."""
    for row in OPTIONS.values():
        if row.default and "cache" not in row.name:
            monkeypatch.setenv(row.env, str(row.default))
    new = str(tmp_path / "new" / "folder")
    assert call(fuser_strict=True, fuser_dump=new, nv_skip_cache=True, fusion_type="dataflow") == []
