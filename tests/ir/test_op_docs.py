# SPDX-License-Identifier: Apache-2.0
"""`fd.ops` explains itself: signatures, docstrings, names, the stub for mypy, docs/operations.md.

`--update-golden` writes the stub and the page.
"""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import op_pages

from thunder_fuser.errors import DefinitionError, DtypeError, UnknownOpError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.frontend.op_docs import refused
from thunder_fuser.ir.op_schema import DtypeRule, Op, OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.rules.build import define

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("file", "made"),
    [
        ("thunder_fuser/ir/frontend/op_methods.pyi", op_pages.stub),
        ("docs/operations.md", op_pages.page),
    ],
)
def test_what_is_made_of_the_table(file: str, made, request: pytest.FixtureRequest) -> None:
    path = ROOT / file
    if request.config.getoption("--update-golden"):
        path.write_text(made(), encoding="utf-8", newline="\n")
    same = path.read_text(encoding="utf-8") == made()
    assert same, f"{file}: run pytest with --update-golden and read the diff"


# ---- in an interpreter


def test_signatures() -> None:
    ops = Recorder().ops
    assert str(inspect.signature(ops.add)) == (
        "(lhs: 'Value | Constant | float', rhs: 'Value | Constant | float') -> 'Tensor'"
    )
    assert str(inspect.signature(ops.squeeze)) == (
        "(arg: 'Value', dims: 'int | Sequence[int]') -> 'Tensor'"
    )
    assert inspect.signature(ops.topk).return_annotation == "tuple[Tensor, Tensor]"
    assert inspect.signature(ops.size).return_annotation == "Scalar"


def test_help() -> None:
    text = pydoc.plain(pydoc.render_doc(Recorder().ops.bitwise_and))
    assert "method bitwise_and in module thunder_fuser.ir.frontend.op_methods" in text
    assert "<lambda>" not in text and "args" not in text
    for line in (
        "Bits that both have.",
        "Shape: that of the operands, which are broadcast as in torch.",
        "Type: the common type of the operands.",
        "In torch: torch.bitwise_and(lhs, rhs).",
        "lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.",
        "Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers "
        "and floats.",
    ):
        assert re.search(rf"^ +{re.escape(line)}$", text, re.MULTILINE), line


@pytest.mark.parametrize("row", OPS.values(), ids=lambda row: row.name)
def test_every_op_tells_what_it_takes_and_gives(row: Op) -> None:
    lines = (getattr(Recorder().ops, row.name).__doc__ or "").splitlines()
    assert lines[0] == row.summary and row.summary.endswith(".")
    assert {"Shape", "Type"} <= {line.partition(":")[0] for line in lines}
    named = {name for line in lines for name in line.partition(":")[0].split(", ")}
    assert set(row.parameters.parameters) <= named


def test_names() -> None:
    names = [name for name in dir(Recorder().ops) if not name.startswith("_")]
    assert set(OPS) < set(names) and "var_mean" in names


@pytest.mark.parametrize(
    ("name", "do"),
    [
        ("tahn", "call ops.tan if you mean it; "),
        ("varmean", "call ops.var_mean if you mean it; "),
        ("Reshape", "call ops.reshape if you mean it; "),
        ("softmax", ""),  # max is too far from it
    ],
)
def test_a_name_that_is_not_there(name: str, do: str) -> None:
    with pytest.raises(UnknownOpError) as error:
        getattr(Recorder().ops, name)
    assert str(error.value) == (
        f"ops.{name}: expected the name of an op. To fix it: {do}dir(fd.ops) lists all."
    )


def test_python_asks_for_names_that_are_not_there() -> None:
    assert not hasattr(Recorder().ops, "__wrapped__")
    assert isinstance(UnknownOpError("ops.x"), DefinitionError)


# ---- what a docstring says of types is what the rules do

_COMPUTE = (OpKind.POINTWISE, OpKind.REDUCTION, OpKind.SCAN)
_NAMED = {
    "bools": {DataType.Bool},
    "floats below 16 bits": {d for d in DataType if d.is_float8},
    "floats": {d for d in DataType if d.is_float},
    "complex numbers": {d for d in DataType if d.is_complex},
    "real numbers": {d for d in DataType if not d.is_complex},
    "a condition that is no Bool": set(),
}


@pytest.mark.parametrize(
    "row", [row for row in OPS.values() if row.kind in _COMPUTE], ids=lambda row: row.name
)
def test_types_that_are_refused(row: Op) -> None:
    said = refused(row)
    words = re.split(", | and ", said) if said else []
    expected = set().union(*(_NAMED[word] for word in words))
    assert {dtype for dtype in DataType if _is_refused(row, dtype)} == expected


def _is_refused(row: Op, dtype: DataType) -> bool:
    fd = Recorder()
    attrs = {"dim": 0} if row.kind is OpKind.SCAN else {}
    attrs |= {"dtype": DataType.Float} if row.name == "cast" else {}
    dtypes = [dtype] * row.arity
    if row.rule is DtypeRule.SELECT:
        dtypes[0] = DataType.Bool
    operands = [fd.define_tensor([-1], True, one) for one in dtypes]
    fd.add_output(getattr(fd.ops, row.name)(*operands, **attrs))
    try:
        define(fd.definition)
    except DtypeError:
        return True
    return False


# ---- in a type checker

_PROGRAM = """\
import thunder_fuser
from thunder_fuser import DataType, FusionDefinition
fd = FusionDefinition()
x = fd.define_tensor([-1, -1], True, DataType.Float)
y = fd.ops.add(x, 2.0).split(0, 4)
values, indices = fd.ops.topk(fd.ops.sum(y, dims=[0], keepdim=True), k=2)
mean: int = fd.ops.var_mean(x, 1)
fd.ops.nonsense(x)
fd.ops.sum(x, dim=0)
fd.ops.reshape(x, fd.ops.shape(x))
fd.ops.permute(x, "01")
thunder_fuser.nonsense
fd.add_output(values)
"""


def test_mypy_knows_the_ops(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(_PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", str(file)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    found = re.findall(r"program\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    assert found == [
        ("7", "assignment"),
        ("8", "attr-defined"),
        ("9", "call-arg"),
        ("11", "arg-type"),
        ("12", "attr-defined"),
    ], done.stdout + done.stderr
