# SPDX-License-Identifier: Apache-2.0
"""nvFuser's definition language: Python calls -> OpRecords. Nothing is inferred here.

fd = Recorder()
T0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
fd.add_output(fd.ops.mul(T0, 2.0))
fd.definition    # the tuple of OpRecords
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from thunder_fuser.errors import DefinitionError, DtypeError
from thunder_fuser.ir import layout
from thunder_fuser.ir.build import Views
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType, of_number
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.ops import OPS, Op, OpKind
from thunder_fuser.ir.record import AttrValue, Definition, Literal, Number, Operand, OpRecord
from thunder_fuser.ir.values import Constant, Scalar, Tensor, Value

__all__ = ["Constant", "Ops", "Recorder", "Scalar", "Tensor", "Value"]

Operandish = Value | Constant | Number


V = TypeVar("V", Tensor, Scalar)


class Recorder:
    """Records a definition. `ops` holds one method for each row of the op table."""

    def __init__(self) -> None:
        self._records: list[OpRecord] = []
        self._values: set[str] = set()
        self._views = Views()

    @property
    def ops(self) -> Ops:
        """The op table as methods. Made each time: a cycle would keep a definition's kernels."""
        return Ops(self)

    @property
    def records(self) -> Definition:
        """The calls so far."""
        return tuple(self._records)

    @property
    def definition(self) -> Definition:
        """The calls so far. A subclass of FusionDefinition may have a method of this name."""
        return self.records

    def view_of(self, name: str) -> TensorView:
        """The type and the axes of a value, as the calls so far have made it."""
        return self._views.of(self._records, name)

    def record(self, record: OpRecord) -> None:
        """Appends one call. FusionDefinition overrides it to walk the cache."""
        self._records.append(record)

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
    ) -> Tensor:
        """An input tensor.

        shape entries: -1 symbolic, 0 empty, 1 broadcast, larger static. contiguity: one of
        True, False, None (broadcast) an axis, in allocation order, or one bool for all.
        Or give `sizes` and `strides` of an example. `strides` beside a static shape fixes them.
        donated: the caller needs it no more, and no other argument shares its memory, so that a
        result may be written there; see segment/donate.py. The result is the argument then.
        """
        _check_dtype(dtype)
        if sizes is not None and strides is not None:
            contiguity, stride_order = layout.compute_tensor_descriptor(sizes, strides)
            shape = [size if static_sizes or size == 1 else -1 for size in sizes]
        if shape is None:
            raise DefinitionError(
                "define_tensor", expected="shape, or sizes and strides", got="none"
            )
        rank = len(shape)
        if is_cpu:
            _check_real("define_tensor: a CPU scalar", dtype)
        if is_cpu and rank:
            raise DefinitionError(
                "define_tensor", expected="a CPU tensor of rank 0", got=f"rank {rank}"
            )
        _check_sizes(shape)
        order = layout.check_stride_order(
            range(rank - 1, -1, -1) if stride_order is None else stride_order, rank
        )
        attrs: tuple[tuple[str, AttrValue], ...] = (
            ("shape", tuple(int(s) for s in shape)),
            ("contiguity", _contiguity(contiguity, shape, order)),
            ("dtype", dtype),
            ("is_cpu", is_cpu),
            ("stride_order", order),
        )
        if donated:
            attrs = (*attrs, ("donated", True))
        if sizes is None and strides is not None:
            attrs = (*attrs, ("strides", tuple(int(s) for s in strides)))
        return self._define("define_tensor", Tensor, attrs)

    def define_scalar(
        self,
        value: Number | DataType | None = None,
        dtype: DataType | None = None,
        *,
        drawn: str | None = None,
        coordinate: Sequence[Any] | None = None,
    ) -> Scalar | Constant:
        """A scalar argument of the given dtype, or a constant of the given value.

        drawn="seed" or "offset": no argument, but drawn from torch's generator at each run; random
        ops without a seed of their own define theirs so. coordinate=[mesh, "mesh_x"]: where this
        device stands along a dimension of a mesh.
        """
        if coordinate is not None:
            mesh, word = coordinate
            place = (Mesh.of(mesh).nested, ParallelType(word).value)
            return self._define(
                "define_scalar", Scalar, (("dtype", DataType.Int), ("coordinate", place))
            )
        if drawn is not None:
            return self._define(
                "define_scalar", Scalar, (("dtype", DataType.Int), ("drawn", drawn))
            )
        if isinstance(value, DataType):
            value, dtype = None, value
        if value is None:
            _check_dtype(dtype or DataType.Double)
            _check_real("define_scalar", dtype)
            return self._define("define_scalar", Scalar, (("dtype", dtype or DataType.Double),))
        return Constant(_as_kind(value, dtype or of_number(value)))

    def define_vector(self, values: Sequence[Operandish] | int) -> list[Scalar | Constant | Value]:
        """A list of integers: constants, or `values` integer arguments if it is a number."""
        if isinstance(values, int):
            return [self.define_scalar(dtype=DataType.Int) for _ in range(values)]
        return [v if isinstance(v, (Value, Constant)) else Constant(v) for v in values]

    def add_output(
        self,
        output: Value,
        alias_input: Tensor | None = None,
        *,
        stride_order: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        """Marks a result: returned in this order, or in this shape of as many elements, or written
        into `alias_input` instead."""
        name = self.operand(output, "add_output")
        if not isinstance(name, str):
            raise DefinitionError("add_output", expected="a computed value", got=str(output))
        attrs: list[tuple[str, AttrValue]] = []
        if stride_order is not None:
            attrs.append(
                ("stride_order", layout.check_stride_order(stride_order, len(stride_order)))
            )
        if alias_input is not None:
            attrs.append(("alias", str(self.operand(alias_input, "add_output"))))
        if shape is not None:
            attrs.append(("shape", tuple(int(size) for size in shape)))
        self.record(OpRecord("add_output", (name,), (), tuple(attrs)))

    def call(self, op: str, inputs: tuple[Operand, ...], attrs: dict[str, Any]) -> Any:
        """Appends one op and returns its result, or a tuple of them if it has several."""
        items = tuple((key, _keyed(key, v)) for key, v in attrs.items() if v is not None)
        if len(OPS[op].results) > 1:
            return self._define_all(op, len(OPS[op].results), items, inputs)
        if OPS[op].kind is OpKind.SCALAR:
            return self._define(op, Scalar, items, inputs)
        return self._define(op, Tensor, items, inputs)

    def _define(
        self,
        op: str,
        kind: type[V],
        attrs: tuple[tuple[str, AttrValue], ...],
        inputs: tuple[Operand, ...] = (),
    ) -> V:
        letter = "S" if kind is Scalar else "T"
        name = f"{letter}{len(self._values)}"
        self._values.add(name)
        self.record(OpRecord(op, inputs, (name,), attrs))
        return kind(name, self)

    def _define_all(
        self,
        op: str,
        count: int,
        attrs: tuple[tuple[str, AttrValue], ...],
        inputs: tuple[Operand, ...],
    ) -> tuple[Tensor, ...]:
        names = tuple(f"T{len(self._values) + at}" for at in range(count))
        self._values.update(names)
        self.record(OpRecord(op, inputs, names, attrs))
        return tuple(Tensor(name, self) for name in names)

    def operand(self, value: Any, op: str) -> Operand:
        """The name or Literal of an argument; DefinitionError if it is not of this definition."""
        if isinstance(value, Value):
            foreign = value.owner is not None and value.owner is not self
            if foreign or value.name not in self._values:
                got = "one of another definition" if foreign else "a name nothing was given"
                raise DefinitionError(
                    f"{op}: {value.name}", expected="a value of this definition", got=got
                )
            return value.name
        if isinstance(value, Constant):
            return Literal.of(value.value)
        if isinstance(value, (bool, int, float)):
            return Literal.of(value)
        raise DefinitionError(
            f"{op}", expected="a tensor, a scalar or a number", got=type(value).__name__
        )


_EXACT = {r.name for r in OPS.values() if r.kind is OpKind.MOVEMENT and r.arity == 1} | {"cast"}


class Ops:
    """fd.ops: every row of the op table, and the composites below."""

    def __init__(self, recorder: Recorder) -> None:
        self._fd = recorder

    def __getattr__(self, name: str) -> Any:
        row = OPS.get(name)
        if row is None:
            raise DefinitionError(
                f"ops.{name}", expected="an op of the table", do="see thunder_fuser.ir.ops.OPS"
            )
        return lambda *args, **kwargs: self._call(row, args, kwargs)

    def __dir__(self) -> Iterable[str]:
        return sorted({*OPS, *super().__dir__()})

    def _call(self, row: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = row.bind(args, kwargs)
        operands = _operand_names(row)
        values = [bound.pop(name) for name in operands if not row.is_absent(name, bound[name])]
        if row.arity < 0:
            values = list(values[0])
        inputs = tuple(self._fd.operand(v, row.name) for v in values)
        return self._fd.call(row.name, inputs, {k: self._attr(row, v) for k, v in bound.items()})

    def _attr(self, row: Op, value: Any) -> AttrValue:
        if isinstance(value, (list, tuple)):
            return tuple(self._attr(row, item) for item in value)
        if isinstance(value, Constant):
            return value.value
        if isinstance(value, Value):
            return str(self._fd.operand(value, row.name))
        return value  # type: ignore[no-any-return]  # checked by the op's own rule

    # ---- composites: recorded as the rows they are made of

    def shape(self, arg: Tensor) -> list[Value]:
        """The extents of a tensor, as scalars."""
        return [self.size(arg, dim) for dim in range(len(self._fd.view_of(arg.name).shape))]

    def var_mean(
        self,
        arg: Tensor,
        dims: Sequence[int] | None = None,
        correction: int = 1,
        keepdim: bool = False,
    ) -> tuple[Value, Value]:
        """(variance, mean) in two passes: sum(|x - mean|**2) / max(n - correction, 0)."""
        view = self._fd.view_of(arg.name)
        axes = list(range(len(view.shape))) if dims is None else list(dims)
        count = self._count(arg, axes)
        mean = self.truediv(self.sum(arg, axes, keepdim=True), count)
        squares = self._square_of_size(self.sub(arg, mean), is_complex=view.dtype.is_complex)
        variance = self.truediv(
            self.sum(squares, axes, keepdim=True),
            self.maximum(self.sub(count, float(correction)), 0.0),
        )
        if keepdim or not axes:
            return variance, mean
        return self.squeeze(variance, axes), self.squeeze(mean, axes)

    def _square_of_size(self, x: Value, *, is_complex: bool) -> Value:
        """|x|**2, a real number."""
        re, im = (self.real(x), self.imag(x)) if is_complex else (x, None)
        square: Value = self.mul(re, re)
        return square if im is None else self.add(square, self.mul(im, im))

    def var(
        self,
        arg: Tensor,
        dims: Sequence[int] | None = None,
        correction: int = 1,
        keepdim: bool = False,
    ) -> Value:
        """The variance; see var_mean."""
        return self.var_mean(arg, dims, correction, keepdim)[0]

    def welford(self, arg: Tensor, dims: Sequence[int]) -> tuple[Value, Value, Value]:
        """(mean, sum of squared distances from it, number of elements)."""
        count = self._count(arg, list(dims))
        variance, mean = self.var_mean(arg, dims, 0)
        return mean, self.mul(variance, count), count

    def rand_like(self, arg: Tensor, rng_seed: Any = None, rng_offset: Any = None) -> Value:
        """Uniform numbers in [0, 1), of the argument's shape and dtype."""
        return self._random_like("uniform", arg, (rng_seed, rng_offset))

    def randn_like(self, arg: Tensor, rng_seed: Any = None, rng_offset: Any = None) -> Value:
        """Standard normal numbers, of the argument's shape and dtype."""
        return self._random_like("normal", arg, (rng_seed, rng_offset))

    def _random_like(self, op: str, arg: Tensor, state: tuple[Any, Any]) -> Value:
        view = self._fd.view_of(arg.name)
        sizes = [
            extent.value if extent.is_const else self.size(arg, axis)
            for axis, extent in enumerate(view.shape)
        ]
        result: Value = getattr(self, op)(0.0, 1.0, sizes, view.dtype, *state)
        return result

    def cummax_indices(self, arg: Tensor, dim: int) -> Value:
        """Where cummax has its values from: of equal ones the last, and once a NaN came, a NaN."""
        return self._last_equal(arg, self.cummax(arg, dim), dim)

    def cummin_indices(self, arg: Tensor, dim: int) -> Value:
        """Where cummin has its values from; see cummax_indices."""
        return self._last_equal(arg, self.cummin(arg, dim), dim)

    def _last_equal(self, arg: Tensor, extreme: Value, dim: int) -> Value:
        """x [1, 3, 3, 2], extreme [1, 3, 3, 3]  ->  [0, 1, 2, 2]: the last place they met."""
        rank = len(self._fd.view_of(arg.name).shape)
        places = self.iota(self.size(arg, dim), 0, 1, DataType.Int)
        places = self.broadcast(places, [at != dim % rank for at in range(rank)])
        met = self.logical_or(self.eq(arg, extreme), self.ne(arg, arg))
        result: Value = self.cummax(self.where(met, places, 0), dim)
        return result

    def addcmul(self, x: Any, a: Any, b: Any, value: Any = 1.0) -> Value:
        """x + value * a * b"""
        result: Value = self.add(x, self.mul(self.mul(value, a), b))
        return result

    def add_alpha(self, lhs: Any, rhs: Any, alpha: Any) -> Value:
        """lhs + alpha * rhs"""
        result: Value = self.add(lhs, self.mul(rhs, alpha))
        return result

    def sub_alpha(self, lhs: Any, rhs: Any, alpha: Any) -> Value:
        """lhs - alpha * rhs"""
        result: Value = self.sub(lhs, self.mul(rhs, alpha))
        return result

    def triu(self, arg: Tensor, diagonal: Any = 0) -> Value:
        """The upper triangle of the last two axes; zero elsewhere."""
        row, column = self._row_and_column(arg)
        result: Value = self.where(self.le(self.add(row, diagonal), column), arg, 0)
        return result

    def tril(self, arg: Tensor, diagonal: Any = 0) -> Value:
        """The lower triangle of the last two axes; zero elsewhere."""
        row, column = self._row_and_column(arg)
        result: Value = self.where(self.ge(self.add(row, diagonal), column), arg, 0)
        return result

    def _row_and_column(self, arg: Tensor) -> tuple[Value, Value]:
        """The number of the row, and of the column, over the last two axes."""
        rows, columns = self.size(arg, -2), self.size(arg, -1)
        row = self.broadcast(self.iota(rows, 0, 1, DataType.Int), [False, True])
        return row, self.broadcast(self.iota(columns, 0, 1, DataType.Int), [True, False])

    def select(self, arg: Tensor, index: Any, dim: int) -> Value:
        """The slice at one index of an axis, which goes away; a negative one counts from its end.

        index: a number, an integer scalar, or a tensor with one element.
        """
        value = index.value if isinstance(index, Constant) else index
        computed = not isinstance(value, int)
        if computed or value < 0:
            wrapped = self.add(self.size(arg, dim), index)
            index = self.where(self.lt(index, 0), wrapped, index) if computed else wrapped
        return self.squeeze(self.index_select(arg, index, dim), [dim])  # type: ignore[no-any-return]

    def argmax(self, arg: Tensor, dim: int | None = None, keepdim: bool = False) -> Value:
        """The first index of the largest element, NaN being the largest; Int.

        Without dim, over all elements, in row-major order.
        """
        return self._place_of(arg, self.max, dim, keepdim)

    def argmin(self, arg: Tensor, dim: int | None = None, keepdim: bool = False) -> Value:
        """The first index of the smallest element, NaN being the smallest; see argmax."""
        return self._place_of(arg, self.min, dim, keepdim)

    def _in_memory(self, arg: Tensor) -> Any:
        """The value as memory has it: made in each of two nests, it may differ in its last bit."""
        made = {name: record for record in self._fd.records for name in record.outputs}
        record = made[arg.name]
        while record.op in _EXACT and (source := record.inputs[0]) in made:
            record = made[str(source)]
        return arg if record.op == "define_tensor" else self.segment_set(arg)

    def _place_of(
        self, arg: Tensor, extremum: Callable[..., Any], dim: int | None, keepdim: bool
    ) -> Value:
        """The smallest of the indices of the elements that equal the extremum, or are NaN."""
        arg = self._in_memory(arg)
        rank = len(sizes := self.shape(arg))
        dims = list(range(rank)) if dim is None else [dim]
        count: Any = 1
        for at in dims:
            count = self.mul(count, sizes[at])
        places = self.iota(count, 0, 1, DataType.Int)
        if dim is None:
            places = self.reshape(places, sizes)
        else:
            places = self.broadcast_in_dim(places, sizes, [dim % rank])
        best = extremum(arg, dims, keepdim=True)
        is_best = self.logical_or(self.eq(arg, best), self.ne(arg, arg))
        result: Value = self.min(self.where(is_best, places, count), dims, keepdim)
        return result

    def _count(self, arg: Tensor, axes: list[int]) -> Value:
        count: Any = 1.0
        for axis in axes:
            count = self.mul(self.cast(self.size(arg, axis), DataType.Double), count)
        return count if isinstance(count, Value) else self.cast(1.0, DataType.Double)


def _operand_names(row: Op) -> list[str]:
    return list(row.keywords) or list(row.parameters.parameters)[: abs(row.arity)]


def _check_dtype(dtype: Any) -> None:
    if not isinstance(dtype, DataType):
        known = ", ".join(d.name for d in DataType)
        raise DtypeError("dtype", expected=f"a DataType ({known})", got=repr(dtype))


def _check_real(what: str, dtype: DataType | None) -> None:
    """Numbers are passed to kernels by value, which complex ones are not."""
    if dtype is not None and dtype.is_complex:
        raise DtypeError(what, expected="a real type", got=dtype.name)


def _check_sizes(shape: Sequence[int]) -> None:
    for axis, size in enumerate(shape):
        if not isinstance(size, int) or size < -1:
            raise DefinitionError(
                f"define_tensor: shape[{axis}]", expected="-1 or a size >= 0", got=repr(size)
            )


def _contiguity(
    given: Sequence[bool | None] | bool | None, shape: Sequence[int], order: Sequence[int]
) -> tuple[bool | None, ...]:
    allocation = layout.allocation_of(order)
    if given is None or isinstance(given, bool):
        every = bool(given)
        return tuple(None if shape[axis] == 1 else every for axis in allocation)
    if len(given) != len(shape):
        raise DefinitionError(
            "define_tensor: contiguity", expected=f"{len(shape)} entries", got=str(list(given))
        )
    for place, axis in enumerate(allocation):
        if shape[axis] == 1 and given[place] is not None:
            raise DefinitionError(
                f"define_tensor: contiguity[{place}]",
                expected="None for the broadcast axis " + str(axis),
                got=str(given[place]),
            )
    return tuple(given)


def _keyed(key: str, value: AttrValue) -> AttrValue:
    """A number that is data as a Literal, so that 0.0 and -0.0 are two keys, and NaN is one."""
    is_data = key == "value" and isinstance(value, (bool, int, float))
    return Literal.of(value) if is_data else value  # type: ignore[arg-type]


def _as_kind(value: Number, dtype: DataType) -> Number:
    if dtype is DataType.Bool:
        return bool(value)
    return float(value) if dtype.is_float else int(value)
