# SPDX-License-Identifier: Apache-2.0
"""nvFuser's definition language: Python calls, or their text -> OpRecords. Infers no types.

fd = Recorder()
T0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
fd.add_output(fd.ops.mul(T0, 2.0))
fd.definition    # the tuple of OpRecords

A fusion prints as such calls, so `rebuild(str(fusion)) == fusion`.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from difflib import get_close_matches
from inspect import Parameter
from typing import TYPE_CHECKING, Any

from thunder_fuser.errors import DefinitionError, UnknownOpError, shown
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType, fits, held, of_number
from thunder_fuser.ir.frontend import kinds
from thunder_fuser.ir.frontend.composites import Composites
from thunder_fuser.ir.frontend.kinds import Constant, Scalar, Value, checked
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.op_schema import Op, OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.record import (
    LAYOUT,
    AttrValue,
    Definition,
    Literal,
    Number,
    Operand,
    OpRecord,
)
from thunder_fuser.ir.rules.build import Definer, define
from thunder_fuser.ir.strides import allocation_of, check_stride_order, compute_tensor_descriptor

# A kernel has at most some hundred arguments; the limit catches a wrong number.
_MOST_SCALARS = 4096


class Recorder:
    """Records a definition. `ops` holds one method for each row of the op table."""

    def __init__(self) -> None:
        self._records: list[OpRecord] = []
        self._made = 0  # the number of values
        self._given = 0  # the number of arguments
        self.complex_at: set[int] = set()  # the arguments that are taken apart
        self._definer, self._seen = Definer(), 0

    @property
    def ops(self) -> Ops:
        """The op table as methods. A stored object would be a cycle that keeps kernels alive."""
        return Ops(self)

    @property
    def records(self) -> Definition:
        """The calls so far."""
        return tuple(self._records)

    @property
    def definition(self) -> Definition:
        """The calls so far, unless a subclass of FusionDefinition has a method of this name."""
        return self.records

    def view_of(self, name: str) -> TensorView:
        """The type and the axes of a value after the calls so far, each of which is typed once."""
        try:
            while self._seen < len(self._records):
                self._definer.add(self._records[self._seen])
                self._seen += 1
        except DefinitionError:  # the record may have been added in part
            self._definer, self._seen = Definer(), 0
            raise
        return self._definer.view(name)

    def record(self, record: OpRecord) -> None:
        """Appends one call."""
        self._records.append(record)

    @checked
    def define_tensor(
        self,
        shape: Sequence[int] | None = None,
        contiguity: Sequence[bool | None] | bool | None = None,
        dtype: DataType = DataType.Float,
        is_cpu: bool = False,
        stride_order: Sequence[int] | None = None,
        *,
        sizes: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        static_sizes: bool = False,
        donated: bool = False,
        imag: bool = False,
    ) -> Tensor:
        """An input tensor.

        shape: for each axis -1 (symbolic), 0 (empty), 1 (broadcast) or a static size. contiguity:
        True, False or None (broadcast) for each axis in allocation order, or one bool for all.
        An empty list is as good as none. Alternatively give `sizes` and `strides` of an example.
        `strides` beside a static shape are fixed. donated: a result may overwrite the tensor,
        which the caller no longer needs and which shares no memory with other arguments; see
        segment/donate.py. imag: see define_scalar.
        """
        if sizes is not None and strides is not None:
            contiguity, stride_order = compute_tensor_descriptor(sizes, strides)
            shape = [size if static_sizes or size == 1 else -1 for size in sizes]
        if shape is None:
            raise _error("define_tensor", "shape, or sizes and strides", "none")
        rank = len(shape)
        if is_cpu and rank:
            raise _error("define_tensor", "a CPU tensor of rank 0", f"rank {rank}")
        for axis, size in enumerate(shape):
            if size < -1:
                raise _error(f"define_tensor: shape[{axis}]", "-1 or a size >= 0", size)
        fixed = strides if sizes is None else None
        if fixed is not None and (len(fixed) != rank or min(fixed, default=0) < 0):
            raise _error("define_tensor: strides", f"{rank} strides >= 0", shown(fixed))
        order = check_stride_order(stride_order or range(rank - 1, -1, -1), rank)
        attrs = {
            "shape": tuple(shape),
            "contiguity": _contiguity(contiguity, shape, order),
            "dtype": dtype,
            "is_cpu": is_cpu,
            "stride_order": order,
            "donated": donated or None,
            "imag": imag or None,
            "strides": None if fixed is None else tuple(fixed),
        }
        return self._argument("define_tensor", attrs)  # type: ignore[no-any-return]

    @checked
    def define_scalar(
        self,
        value: Number | complex | DataType | None = None,
        dtype: DataType | None = None,
        *,
        drawn: str | None = None,
        coordinate: Sequence[Any] | None = None,
        imag: bool = False,
    ) -> Scalar | Constant:
        """A scalar argument of the given dtype, or a constant of the given value.

        A complex one is made of its parts, in the definition and at the call. imag: the imaginary
        part of a complex argument whose real part is the argument before, as such parts print.

        drawn="seed" or "offset": each run draws it from torch's generator, for random ops without
        a seed. coordinate=[mesh, "mesh_x"]: the coordinate of this device in a mesh.
        """
        if coordinate is not None:
            attrs = {"dtype": DataType.Int, "coordinate": _place_in_mesh(coordinate)}
            return self._define("define_scalar", attrs)  # type: ignore[no-any-return]
        if drawn is not None:
            attrs = {"dtype": DataType.Int, "drawn": drawn}
            return self._define("define_scalar", attrs)  # type: ignore[no-any-return]
        if isinstance(value, DataType):
            value, dtype = None, value
        if value is None:
            dtype = dtype or DataType.Double
            return self._argument("define_scalar", {"dtype": dtype, "imag": imag or None})  # type: ignore[no-any-return]
        if isinstance(value, complex) or (dtype is not None and dtype.is_complex):
            whole = self._complex(value, dtype or DataType.ComplexDouble)
            return whole  # type: ignore[no-any-return]
        dtype = dtype or of_number(value)
        if not fits(value, dtype):
            raise _error("define_scalar: value", f"a number of type {dtype.name}", shown(value))
        return Constant(held(value, dtype) if not dtype.is_float8 else float(value), dtype)

    def _argument(self, op: str, attrs: dict[str, Any]) -> Any:
        """An argument. A complex number is two, of which the second one is marked, also in the
        text: so the text takes what the definition took."""
        if attrs["dtype"].is_complex and (op == "define_scalar" or attrs["is_cpu"]):
            attrs = {**attrs, "dtype": attrs["dtype"].real}
            real = self._argument(op, attrs)
            return self.ops.complex(real, self._argument(op, {**attrs, "imag": True}))
        if not attrs["imag"]:
            self._given += 1
        elif not self._given:
            raise _error(f"{op}: imag", "an argument before, the real part", "none")
        else:
            self.complex_at.add(self._given - 1)
        return self._define(op, attrs)

    def _complex(self, value: complex, dtype: DataType) -> Any:
        """A complex constant."""
        if not dtype.is_complex:
            raise _error("define_scalar: value", f"a number of type {dtype.name}", shown(value))
        number = complex(value)
        whole = self.ops.complex(number.real, number.imag)
        return whole if dtype is DataType.ComplexDouble else self.ops.cast(whole, dtype)

    @checked
    def define_vector(
        self,
        values: Sequence[Value | Constant | Number] | int | None = None,
        dtype: DataType = DataType.Int,
        *,
        size: int | None = None,
    ) -> list[Scalar | Constant | Value]:
        """A list of integers: constants, or `values` integer arguments if it is a number.

        A call gives such arguments one by one or as a list. size: another name of that number.
        """
        values = size if values is None else values
        if values is None or not dtype.is_int:
            raise _error("define_vector", "values of a type of integers", f"{values}, {dtype.name}")
        if isinstance(values, int):
            if not 0 <= values <= _MOST_SCALARS:
                raise _error("define_vector: values", f"0 to {_MOST_SCALARS} scalars", values)
            return [self.define_scalar(dtype=dtype) for _ in range(values)]
        return [v if isinstance(v, Value) else Constant(v) for v in values]  # type: ignore[arg-type]

    @checked
    def add_output(
        self,
        output: Value,
        alias_input: Tensor | None = None,
        *,
        stride_order: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
        shares: bool = False,
        apart: bool = False,
    ) -> None:
        """Marks a result. It is returned in this stride order or shape, or written into
        `alias_input`. shares: a reshape of an argument may be a view of it. apart: the result has
        memory of its own, where its value is also written into an argument."""
        name = self.operand(output, "add_output", "output")
        attrs: dict[str, AttrValue] = {}
        if stride_order:
            attrs["stride_order"] = check_stride_order(stride_order, len(stride_order))
        if alias_input is not None:
            attrs["alias"] = self.operand(alias_input, "add_output", "alias_input")
        if shape is not None:
            attrs["shape"] = tuple(shape)
        if shares:
            attrs["shares"] = True
        if apart:
            attrs["apart"] = True
        self.record(OpRecord("add_output", (name,), (), tuple(attrs.items())))

    def call(self, op: str, inputs: tuple[Operand, ...], attrs: dict[str, Any]) -> Any:
        """Appends one op and returns its result, or a tuple of several results."""
        return self._define(op, attrs, inputs, len(OPS[op].results))

    def _define(
        self, op: str, attrs: dict[str, Any], inputs: tuple[Operand, ...] = (), results: int = 1
    ) -> Any:
        """Appends a call that defines values. Attributes that are None are left out."""
        is_scalar = op in ("define_scalar", "size")
        letter, kind = ("S", Scalar) if is_scalar else ("T", Tensor)
        names = tuple(f"{letter}{self._made + at}" for at in range(results))
        self._made += results
        recorded = tuple((key, value) for key, value in attrs.items() if value is not None)
        self.record(OpRecord(op, inputs, names, recorded))
        values = tuple(kind(name, self) for name in names)
        return values if results > 1 else values[0]

    def _constant(self, constant: Constant, call: str) -> Any:
        """A number, or a scalar if the type that the constant was defined with may decide that of
        the op's result."""
        number, dtype = constant.value, constant.dtype()
        is_typed = call in OPS and OPS[call].kind in (OpKind.POINTWISE, OpKind.MOVEMENT)
        if not is_typed or dtype is of_number(number):
            return number
        return self.call("cast", (Literal.of(number),), {"dtype": dtype})

    def operand(self, value: Any, call: str, name: str) -> Operand:
        """The name or Literal of an argument; DefinitionError if it is not of this definition."""
        if isinstance(value, complex):
            value = self._complex(value, DataType.ComplexDouble)
        if isinstance(value, Constant):
            value = self._constant(value, call)
        value = kinds.take(kinds.OPERAND, f"{call}: {name}", value)
        if isinstance(value, Value):
            if value.owner is not self:
                got = "one of another definition"
                raise _error(f"{call}: {value.name}", "a value of this definition", got)
            return value.name
        return Literal.of(value)


class Ops(Composites):
    """fd.ops: every row of the op table, and the composites.

    A call checks the kinds of its arguments. Sizes and types are checked when the definition ends.
    """

    _fd: Recorder

    def __init__(self, recorder: Recorder) -> None:
        self._fd = recorder

    if not TYPE_CHECKING:  # to a type checker a name that is not there is an error

        def __getattr__(self, name: str) -> Any:
            names = [op for op in dir(self) if op[0] != "_"]
            near = get_close_matches(name.lower(), names, 1, 0.7)
            do = "".join(f"call ops.{op} if you mean it; " for op in near)
            do += "dir(fd.ops) lists all"
            raise UnknownOpError(f"ops.{name}", expected="the name of an op", do=do)

    def _call(self, row: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = row.bind(args, kwargs)
        operands = [_filled(bound.pop(name), row, name) for name in row.operands]
        values = [value for value, name in zip(operands, row.operands, strict=True)
                  if value is not None or row.default(name) is not None]  # fmt: skip
        if row.arity < 0:
            values = kinds.take(kinds.TENSORS, f"{row.name}: {row.operands[0]}", values[0])
        inputs = tuple(
            self._fd.operand(value, row.name, row.operand_name(at))
            for at, value in enumerate(values)
        )
        attrs = {
            name: self._named(
                row, name, kinds.checked_argument(row.name, name, value, row.default(name))
            )
            for name, value in bound.items()
        }
        return self._fd.call(row.name, inputs, attrs)

    def _named(self, row: Op, name: str, value: Any) -> AttrValue:
        """An attribute with scalars of the definition replaced by their names."""
        if isinstance(value, tuple):
            return tuple(self._named(row, name, item) for item in value)
        if isinstance(value, Value):
            return self._fd.operand(value, row.name, name)
        return value  # type: ignore[no-any-return]


def _filled(value: Any, row: Op, name: str) -> Any:
    """An operand. As in nvFuser, None means the default of a number that has one."""
    default = row.default(name)
    return default if value is None and default is not Parameter.empty else value


def _error(what: str, expected: str, got: object) -> DefinitionError:
    return DefinitionError(what, expected=expected, got=str(got))


def _contiguity(
    contiguity: Sequence[bool | None] | bool | None, shape: Sequence[int], order: Sequence[int]
) -> tuple[bool | None, ...]:
    allocation = allocation_of(order)
    if not contiguity or isinstance(contiguity, bool):
        every = bool(contiguity)
        return tuple(None if shape[axis] == 1 else every for axis in allocation)
    if len(contiguity) != len(shape):
        raise _error("define_tensor: contiguity", f"{len(shape)} entries", list(contiguity))
    for place, axis in enumerate(allocation):
        if shape[axis] == 1 and contiguity[place] is not None:
            what = f"define_tensor: contiguity[{place}]"
            raise _error(what, f"None for the broadcast axis {axis}", contiguity[place])
    return tuple(contiguity)


def _place_in_mesh(coordinate: Any) -> tuple[Any, str]:
    """coordinate=[mesh, "mesh_x"] as records store it."""
    try:
        mesh, word = coordinate
        parallel = ParallelType(word)
    except (TypeError, ValueError):
        expected = '[a mesh, "mesh_x", "mesh_y" or "mesh_z"]'
        raise _error("define_scalar: coordinate", expected, shown(coordinate)) from None
    return Mesh.of(mesh).nested, parallel.value


# ---- the text of a definition


def rebuild(text: str) -> Fusion:
    """The Fusion of a printed function, which may contain only calls, names and literals."""
    return define(read_definition(text))


def read_definition(text: str) -> Definition:
    """The records of a printed definition. The text is interpreted, never executed."""
    (function,) = ast.parse(text).body
    if not isinstance(function, ast.FunctionDef):
        raise DefinitionError("text", expected="one function", got=type(function).__name__)
    recorder = Recorder()
    names: dict[str, Any] = {}
    for statement in function.body:
        if isinstance(statement, ast.Assign):
            result = _run(statement.value, recorder, names)
            names.update(_assigned(statement.targets[0], result))
        elif isinstance(statement, ast.Expr):
            _run(statement.value, recorder, names)
        else:
            raise DefinitionError("text", expected="calls", got=ast.unparse(statement))
    return recorder.definition


def _assigned(target: ast.expr, result: Any) -> dict[str, Any]:
    """T1 = ...; or T1, T2 = ... for an op with several results."""
    if isinstance(target, ast.Name):
        return {target.id: result}
    if isinstance(target, ast.Tuple) and isinstance(result, tuple):
        return {ast.unparse(node): value for node, value in zip(target.elts, result, strict=True)}
    raise DefinitionError("text", expected="names on the left", got=ast.unparse(target))


def _run(node: ast.expr, recorder: Recorder, names: dict[str, Any]) -> Any:
    """Interprets one expression of the printed language."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "float":
            return float(ast.literal_eval(node.args[0]))
        args = [_run(arg, recorder, names) for arg in node.args]
        kwargs = {str(k.arg): _run(k.value, recorder, names) for k in node.keywords}
        return _method(node.func, recorder, names)(*args, **kwargs)
    if isinstance(node, ast.List):
        return [_run(item, recorder, names) for item in node.elts]
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise DefinitionError(f"text: {node.id}", expected="a defined value", got=node.id)
        return names[node.id]
    if isinstance(node, ast.Attribute):
        return None if node.attr == "Null" else DataType[node.attr]
    return ast.literal_eval(node)


def _method(node: ast.expr, recorder: Recorder, names: dict[str, Any]) -> Any:
    path = ast.unparse(node)
    owner, _, name = path.rpartition(".")
    if owner in names and name in LAYOUT:
        return getattr(names[owner], name)
    if owner == "fd.ops" and name in OPS:
        return getattr(recorder.ops, name)
    if owner == "fd" and name in ("define_tensor", "define_scalar", "add_output"):
        return getattr(recorder, name)
    raise DefinitionError(f"text: {path}", expected="fd.ops.<op>, fd.define_* or fd.add_output")
