# SPDX-License-Identifier: Apache-2.0
"""What a user may do by mistake under thunder.jit: a typed error, or torch ops and one warning."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch

import thunder_fuser
from thunder_fuser import FusionDefinition, fuser
from thunder_fuser.__main__ import main
from thunder_fuser.errors import DefinitionError, InputError, OptionError, ThunderLimitError


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2.0 + 1.0


def _refused(kind: type[Exception], message: str, **given: object) -> None:
    with pytest.raises(kind, match=message):
        thunder.jit(_double, executors=[fuser], **given)(torch.ones(3))


def test_a_value_of_another_definition() -> None:
    """The names would fit: T1 is exp there and neg here."""
    other, ours = FusionDefinition(), FusionDefinition()
    foreign = other.ops.exp(other.from_pytorch(torch.ones(3)))
    ours.ops.neg(ours.from_pytorch(torch.ones(3)))
    with pytest.raises(DefinitionError, match="T1: expected a value of this definition"):
        ours.add_output(foreign)


@pytest.mark.parametrize("change", [
    lambda x, rows: rows.append(x * 2),
    lambda x, rows: rows[1].update(n=x * 2),
    lambda x, rows: rows[1].pop("m"),
    lambda x, rows: rows.__setitem__(0, x * 2),
], ids=["append", "update", "pop", "set"])  # fmt: skip
@pytest.mark.parametrize("jit", [thunder_fuser.jit, partial(thunder.jit, executors=[fuser])])
def test_a_list_that_the_function_changes(
    jit: Callable[..., Any], change: Callable[..., Any]
) -> None:
    """A trace would change it once, and leave proxies in it."""
    first, inner = torch.ones(2), {"m": 1}
    rows = [first, inner]
    jitted = jit(lambda x, rows: (change(x, rows), x + 1)[1])
    with pytest.raises(ThunderLimitError, match="a list or dict that is an argument: expected"):
        jitted(torch.ones(2), rows)
    assert rows[0] is first and rows[1] is inner and len(rows) == 2 and inner == {"m": 1}


def test_a_sparse_argument_runs_torch_ops() -> None:
    """Thunder gives a region what it reads; here one whose strides and address do not exist."""
    x = torch.eye(3).to_sparse()
    jitted = thunder.jit(_double, executors=[fuser])
    warned = pytest.warns(UserWarning, match="falls back to torch for 2 ops.*strided tensor")
    # torch has no addition of a number to a sparse tensor
    with warned, pytest.raises(RuntimeError):
        jitted(x)
    with pytest.raises(InputError, match="expected a plain strided tensor"):
        thunder.jit(_double, executors=[fuser], fuser_strict=True)(x)


def test_a_name_prefix_that_is_no_name() -> None:
    _refused(OptionError, "option name_prefix: expected a Python name", fuser_name_prefix="1 bad")


def test_numbers_below_the_least() -> None:
    _refused(OptionError, "option fuel: expected at least -1, got -5", fuser_fuel=-5)


def test_dump_of_what_is_compiled_already(tmp_path: Path) -> None:
    x = torch.ones(5)
    thunder.jit(_double, executors=[fuser])(x)
    thunder.jit(_double, executors=[fuser], fuser_dump=str(tmp_path))(x)
    (folder,) = (tmp_path / "thunderFusion0").iterdir()
    assert {"0_fusion.py", "2_segments.txt", "5_program.py"} <= {p.name for p in folder.iterdir()}


def test_dump_into_a_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    _refused(OptionError, "a folder that can be written", fuser_dump=str(tmp_path / "taken"))


def test_a_compiler_that_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/bin/true")
    x = torch.ones(7, 3)
    with pytest.warns(UserWarning, match="expected a shared library, got no file"):
        result = thunder.jit(lambda x: torch.sin(x) + 3.0, executors=[fuser])(x)
    torch.testing.assert_close(result, torch.sin(x) + 3.0)


def test_the_command_line_prints_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THUNDER_FUSER_CACHE", "maybe")
    assert main(["cache", "info"]) == 1
    assert capsys.readouterr().err.strip() == (
        "OptionError: option cache: expected one of rw, ro, off, got 'maybe'"
        " (at the environment variable THUNDER_FUSER_CACHE)"
    )
