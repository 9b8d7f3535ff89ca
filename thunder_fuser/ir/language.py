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

from thunder_fuser.errors import DefinitionError, DtypeError, shown
from thunder_fuser.ir import kinds, layout
from thunder_fuser.ir.build import Views
from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType, fits, of_number
from thunder_fuser.ir.fusion import TensorView
from thunder_fuser.ir.kinds import checked
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.ops import OPS, Op, OpKind
from thunder_fuser.ir.record import AttrValue, Definition, Literal, Number, Operand, OpRecord
from thunder_fuser.ir.shapes import normalise_axes, normalise_axis
from thunder_fuser.ir.values import Constant, Scalar, Tensor, Value

__all__ = ["Constant", "Ops", "Recorder", "Scalar", "Tensor", "Value"]

Operandish = Value | Constant | Number


# Arguments of one kernel are counted in hundreds; a mistaken number is not to fill the memory.
_MOST_SCALARS = 4096

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
    ) -> Tensor:
        """An input tensor.

        shape entries: -1 symbolic, 0 empty, 1 broadcast, larger static. contiguity: one of
        True, False, None (broadcast) an axis, in allocation order, or one bool for all.
        Or give `sizes` and `strides` of an example. `strides` beside a static shape fixes them.
        donated: the caller needs it no more, and no other argument shares its memory, so that a
        result may be written there; see segment/donate.py. The result is the argument then.
        """
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
            ("shape", tuple(shape)),
            ("contiguity", _contiguity(contiguity, shape, order)),
            ("dtype", dtype),
            ("is_cpu", is_cpu),
            ("stride_order", order),
        )
        if donated:
            attrs = (*attrs, ("donated", True))
        if sizes is None and strides is not None:
            if len(strides) != rank or min(strides, default=0) < 0:
                raise DefinitionError(
                    "define_tensor: strides", expected=f"{rank} strides >= 0", got=shown(strides)
                )
            attrs = (*attrs, ("strides", tuple(strides)))
        return self._define("define_tensor", Tensor, attrs)

    @checked
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
            place = _place_in_mesh(coordinate)
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
            _check_real("define_scalar", dtype)
            return self._define("define_scalar", Scalar, (("dtype", dtype or DataType.Double),))
        dtype = dtype or of_number(value)
        if dtype.is_complex or not fits(value, dtype):
            raise DefinitionError(
                "define_scalar: value", expected=f"a number of type {dtype.name}", got=shown(value)
            )
        return Constant(_as_kind(value, dtype))

    @checked
    def define_vector(self, values: Sequence[Operandish] | int) -> list[Scalar | Constant | Value]:
        """A list of integers: constants, or `values` integer arguments if it is a number."""
        if isinstance(values, int):
            if not 0 <= values <= _MOST_SCALARS:
                raise DefinitionError(
                    "define_vector: values", expected=f"0 to {_MOST_SCALARS} scalars",
                    got=str(values),
                )  # fmt: skip
            return [self.define_scalar(dtype=DataType.Int) for _ in range(values)]
        return [v if isinstance(v, Value) else Constant(v) for v in values]  # type: ignore[arg-type]

    @checked
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
        name = self.operand(output, "add_output", "output")
        attrs: list[tuple[str, AttrValue]] = []
        if stride_order is not None:
            attrs.append(
                ("stride_order", layout.check_stride_order(stride_order, len(stride_order)))
            )
        if alias_input is not None:
            attrs.append(("alias", self.operand(alias_input, "add_output", "alias_input")))
        if shape is not None:
            attrs.append(("shape", tuple(shape)))
        self.record(OpRecord("add_output", (name,), (), tuple(attrs)))

    def call(self, op: str, inputs: tuple[Operand, ...], attrs: dict[str, Any]) -> Any:
        """Appends one op and returns its result, or a tuple of them if it has several."""
        items = tuple((key, v) for key, v in attrs.items() if v is not None)
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

    def operand(self, value: Any, call: str, name: str) -> Operand:
        """The name or Literal of an argument; DefinitionError if it is not of this definition."""
        value = kinds.take(kinds.OPERAND, f"{call}: {name}", value)
        if isinstance(value, Value):
            foreign = value.owner is not None and value.owner is not self
            if foreign or value.name not in self._values:
                got = "one of another definition" if foreign else "a name nothing was given"
                raise DefinitionError(
                    f"{call}: {value.name}", expected="a value of this definition", got=got
                )
            return value.name
        return Literal.of(value)


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
        given = [v for name in row.operands if not row.is_absent(name, v := bound.pop(name))]
        if row.arity < 0:
            given = kinds.take(kinds.TENSORS, f"{row.name}: {row.operands[0]}", given[0])
        inputs = tuple(
            self._fd.operand(value, row.name, row.operand_name(at))
            for at, value in enumerate(given)
        )
        attrs = {name: self._attr(row, name, value) for name, value in bound.items()}
        return self._fd.call(row.name, inputs, attrs)

    def _attr(self, row: Op, name: str, value: Any) -> AttrValue:
        value = kinds.checked_argument(row.name, name, value, row.default(name))
        return self._named(row, name, value)

    def _named(self, row: Op, name: str, value: Any) -> AttrValue:
        """A size by the name of the scalar that it is."""
        if isinstance(value, tuple):
            return tuple(self._named(row, name, item) for item in value)
        if isinstance(value, Value):
            return self._fd.operand(value, row.name, name)
        return value  # type: ignore[no-any-return]

    def _rank(self, arg: Tensor, call: str) -> int:
        return len(self._fd.view_of(str(self._fd.operand(arg, call, "arg"))).shape)

    # ---- composites: recorded as the rows they are made of

    @checked
    def shape(self, arg: Tensor) -> list[Value]:
        """The extents of a tensor, as scalars."""
        return [self.size(arg, dim) for dim in range(self._rank(arg, "shape"))]

    @checked
    def var_mean(
        self,
        arg: Tensor,
        dims: Sequence[int] | None = None,
        correction: int = 1,
        keepdim: bool = False,
    ) -> tuple[Value, Value]:
        """(variance, mean) in two passes: sum((x - mean)**2) / max(n - correction, 0)."""
        axes = list(normalise_axes(dims, self._rank(arg, "var"), "var"))  # type: ignore[arg-type]
        count = self._count(arg, axes)
        mean = self.truediv(self.sum(arg, axes, keepdim=True), count)
        centred = self.sub(arg, mean)
        squares = self.sum(self.mul(centred, centred), axes, keepdim=True)
        degrees = self.maximum(self.sub(count, float(correction)), 0.0)
        variance = self.truediv(squares, degrees)
        if keepdim or not axes:
            return variance, mean
        return self.squeeze(variance, axes), self.squeeze(mean, axes)

    @checked
    def var(
        self,
        arg: Tensor,
        dims: Sequence[int] | None = None,
        correction: int = 1,
        keepdim: bool = False,
    ) -> Value:
        """The variance; see var_mean."""
        return self.var_mean(arg, dims, correction, keepdim)[0]

    @checked
    def welford(self, arg: Tensor, dims: Sequence[int]) -> tuple[Value, Value, Value]:
        """(mean, sum of squared distances from it, number of elements)."""
        rank = self._rank(arg, "welford")
        count = self._count(arg, list(normalise_axes(dims, rank, "welford")))  # type: ignore[arg-type]
        variance, mean = self.var_mean(arg, dims, 0)
        return mean, self.mul(variance, count), count

    @checked
    def rand_like(self, arg: Tensor, rng_seed: Any = None, rng_offset: Any = None) -> Value:
        """Uniform numbers in [0, 1), of the argument's shape and dtype."""
        return self._random_like("uniform", arg, (rng_seed, rng_offset))

    @checked
    def randn_like(self, arg: Tensor, rng_seed: Any = None, rng_offset: Any = None) -> Value:
        """Standard normal numbers, of the argument's shape and dtype."""
        return self._random_like("normal", arg, (rng_seed, rng_offset))

    def _random_like(self, op: str, arg: Tensor, state: tuple[Any, Any]) -> Value:
        view = self._fd.view_of(str(self._fd.operand(arg, op, "arg")))
        sizes = [
            extent.value if extent.is_const else self.size(arg, axis)
            for axis, extent in enumerate(view.shape)
        ]
        result: Value = getattr(self, op)(0.0, 1.0, sizes, view.dtype, *state)
        return result

    @checked
    def cummax_indices(self, arg: Tensor, dim: int) -> Value:
        """Where cummax has its values from: of equal ones the last, and once a NaN came, a NaN."""
        return self._last_equal(arg, self.cummax(arg, dim), dim)

    @checked
    def cummin_indices(self, arg: Tensor, dim: int) -> Value:
        """Where cummin has its values from; see cummax_indices."""
        return self._last_equal(arg, self.cummin(arg, dim), dim)

    def _last_equal(self, arg: Tensor, extreme: Value, dim: int) -> Value:
        """x [1, 3, 3, 2], extreme [1, 3, 3, 3]  ->  [0, 1, 2, 2]: the last place they met."""
        rank = self._rank(arg, "cummax")
        dim = normalise_axis(dim, rank, "cummax")
        places = self.iota(self.size(arg, dim), 0, 1, DataType.Int)
        places = self.broadcast(places, [at != dim for at in range(rank)])
        met = self.logical_or(self.eq(arg, extreme), self.ne(arg, arg))
        result: Value = self.cummax(self.where(met, places, 0), dim)
        return result

    @checked
    def addcmul(self, x: Any, a: Any, b: Any, value: Any = 1.0) -> Value:
        """x + value * a * b"""
        result: Value = self.add(x, self.mul(self.mul(value, a), b))
        return result

    @checked
    def add_alpha(self, lhs: Any, rhs: Any, alpha: Any) -> Value:
        """lhs + alpha * rhs"""
        result: Value = self.add(lhs, self.mul(rhs, alpha))
        return result

    @checked
    def sub_alpha(self, lhs: Any, rhs: Any, alpha: Any) -> Value:
        """lhs - alpha * rhs"""
        result: Value = self.sub(lhs, self.mul(rhs, alpha))
        return result

    @checked
    def triu(self, arg: Tensor, diagonal: Any = 0) -> Value:
        """The upper triangle of the last two axes; zero elsewhere."""
        row, column = self._row_and_column(arg)
        result: Value = self.where(self.le(self.add(row, diagonal), column), arg, 0)
        return result

    @checked
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

    @checked
    def select(self, arg: Tensor, index: Any, dim: int) -> Value:
        """The slice at one index of an axis, which goes away; a negative one counts from its end.

        index: a number, an integer scalar, or a tensor with one element.
        """
        computed = isinstance(index, Value)
        if computed or index < 0:
            wrapped = self.add(self.size(arg, dim), index)
            index = self.where(self.lt(index, 0), wrapped, index) if computed else wrapped
        return self.squeeze(self.index_select(arg, index, dim), [dim])  # type: ignore[no-any-return]

    @checked
    def argmax(self, arg: Tensor, dim: int | None = None, keepdim: bool = False) -> Value:
        """The first index of the largest element, NaN being the largest; Int.

        Without dim, over all elements, in row-major order.
        """
        return self._place_of("argmax", arg, self.max, dim, keepdim)

    @checked
    def argmin(self, arg: Tensor, dim: int | None = None, keepdim: bool = False) -> Value:
        """The first index of the smallest element, NaN being the smallest; see argmax."""
        return self._place_of("argmin", arg, self.min, dim, keepdim)

    def _in_memory(self, arg: Tensor) -> Any:
        """The value as memory has it: made in each of two nests, it may differ in its last bit."""
        made = {name: record for record in self._fd.records for name in record.outputs}
        record = made[arg.name]
        while record.op in _EXACT and (source := record.inputs[0]) in made:
            record = made[str(source)]
        return arg if record.op == "define_tensor" else self.segment_set(arg)

    def _place_of(
        self,
        call: str,
        arg: Tensor,
        extremum: Callable[..., Any],
        dim: int | None,
        keepdim: bool,
    ) -> Value:
        """The smallest of the indices of the elements that equal the extremum, or are NaN."""
        rank = self._rank(arg, call)
        dims = list(range(rank)) if dim is None else [normalise_axis(dim, rank, call)]
        arg = self._in_memory(arg)
        sizes = self.shape(arg)
        count: Any = 1
        for at in dims:
            count = self.mul(count, sizes[at])
        places = self.iota(count, 0, 1, DataType.Int)
        if dim is None:
            places = self.reshape(places, sizes)
        else:
            places = self.broadcast_in_dim(places, sizes, dims)
        best = extremum(arg, dims, keepdim=True)
        is_best = self.logical_or(self.eq(arg, best), self.ne(arg, arg))
        result: Value = self.min(self.where(is_best, places, count), dims, keepdim)
        return result

    def _count(self, arg: Tensor, axes: list[int]) -> Value:
        count: Any = 1.0
        for axis in axes:
            count = self.mul(self.cast(self.size(arg, axis), DataType.Float), count)
        return count if isinstance(count, Value) else self.cast(1.0, DataType.Float)


def _check_real(what: str, dtype: DataType | None) -> None:
    """Numbers are passed to kernels by value, which complex ones are not."""
    if dtype is not None and dtype.is_complex:
        raise DtypeError(what, expected="a real type", got=dtype.name)


def _check_sizes(shape: Sequence[int]) -> None:
    for axis, size in enumerate(shape):
        if size < -1:
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


def _place_in_mesh(given: Any) -> tuple[Any, str]:
    """coordinate=[mesh, "mesh_x"] as records hold it."""
    try:
        mesh, word = given
        parallel = ParallelType(word)
    except (TypeError, ValueError):
        raise DefinitionError(
            "define_scalar: coordinate", expected='[a mesh, "mesh_x", "mesh_y" or "mesh_z"]',
            got=shown(given),
        ) from None  # fmt: skip
    return Mesh.of(mesh).nested, parallel.value


def _as_kind(value: Number, dtype: DataType) -> Number:
    if dtype is DataType.Bool:
        return bool(value)
    return float(value) if dtype.is_float else int(value)
