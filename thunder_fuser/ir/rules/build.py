# SPDX-License-Identifier: Apache-2.0
"""Definition -> Fusion: infers types, shapes and axes, and inserts implicit casts.

    T2 = add(T0: bf16[i0], T1: f32[i0])
->  T2 = cast(T0, Float); T3 = add(T2, T1)

`define` is idempotent: the records of a Fusion define the same Fusion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite, prod

from thunder_fuser.errors import AliasError, DefinitionError, DtypeError
from thunder_fuser.ir.domain import Domain, IterDomain, IterType, TensorDomain
from thunder_fuser.ir.dtypes import DataType, of_number, promote
from thunder_fuser.ir.fusion import Fusion, TensorView, is_found_at_run
from thunder_fuser.ir.op_schema import DtypeRule, OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.record import (
    LAYOUT,
    AttrValue,
    Definition,
    Literal,
    Operand,
    OpRecord,
    names_of,
    record_text,
    rename,
)
from thunder_fuser.ir.rules import communication, indexed, shapes, torch_calls
from thunder_fuser.ir.rules.host_scalars import HostScalars
from thunder_fuser.ir.rules.layouts import Layouts
from thunder_fuser.ir.rules.streams import check_streams, products_in_streams
from thunder_fuser.ir.rules.type_rules import (
    check_collected,
    check_literals,
    check_numbers,
    check_operands,
    gives_scalar,
    pointwise_types,
    result_types,
)
from thunder_fuser.ir.scalar import Scalar, const, symbol
from thunder_fuser.ir.strides import allocation_of, check_stride_order, reshaped_order


def define(definition: Definition) -> Fusion:
    """The typed Fusion of a definition; DefinitionError if it is invalid."""
    definer = Definer()
    for record in definition:
        definer.add(record)
    definer.finish()
    return Fusion(tuple(definer.records), definer.tensors, frozenset(definer.shape_scalars))


class Definer:
    """Types the records in one walk. `renamed` maps recorded names to the Fusion's names."""

    def __init__(self) -> None:
        self.records: list[OpRecord] = []
        self.tensors: dict[str, TensorView] = {}
        self.renamed: dict[str, str] = {}
        self.scalars = HostScalars()
        self.shape_scalars: set[str] = set()
        self._tensor_inputs: set[str] = set()
        self._written: set[str] = set()
        self._seed = ""
        self._casts: dict[tuple[str, DataType], str] = {}
        self._layouts = Layouts()
        self._axes = 0

    def add(self, record: OpRecord) -> None:
        """Types one record and appends it, after the casts and broadcasts that it implies."""
        for name in names_of(record):
            if name not in self.renamed:
                known = ", ".join(self.renamed) or "nothing"
                raise record.error(name, f"a defined value ({known})", name)
        record = rename(record, self.renamed)
        try:
            self._add(record)
        except DefinitionError as error:
            raise error.at(self._where(record)) from None

    def _add(self, record: OpRecord) -> None:
        if record.op in OPS:
            check_operands(record)
            _BY_KIND[record.row.kind](self, record)
        elif record.op in LAYOUT:
            (name,) = names_of(record)
            self.tensors[name] = self._layouts.add(record, self.tensors[name])
            self.records.append(record)
        elif record.op == "define_tensor":
            self._tensor_inputs.add(self._emit(record, self._input_tensor(record)))
        elif record.op == "define_scalar":
            self._define_scalar(record)
        elif record.op == "add_output":
            self._add_output(record)
        else:
            raise DefinitionError(f"record {record.op}", expected="an op of the table")

    def view(self, name: str) -> TensorView:
        """The type and the axes of a value, by its recorded name."""
        return self.tensors[self.renamed[name]]

    def finish(self) -> None:
        """Completes the layouts; DefinitionError if one is incomplete or there is no output."""
        if not any(record.op == "add_output" for record in self.records):
            raise DefinitionError(
                "the fusion", expected="at least one output", got="none", do="call add_output"
            )
        laid = dict.fromkeys(n for r in self.records if r.op in LAYOUT for n in names_of(r))
        for name in laid:
            self.tensors[name] = self._layouts.finish(self.tensors[name])
        products_in_streams(self.records, self.tensors)  # raises where there is no product
        indexed.check_stores(self.records)

    def _where(self, record: OpRecord) -> str:
        """For an error: the call, its operands, and the arguments that share axes with them."""
        names = dict.fromkeys(names_of(record))
        axes = {axis for name in names for axis in self._axis_names(name)}
        arguments = [other.outputs[0] for other in self.records if other.op == "define_tensor"]
        sources = [
            str(self.tensors[name])
            for name in arguments
            if name not in names and not axes.isdisjoint(self._axis_names(name))
        ]
        read = ", ".join(str(self.tensors[name]) for name in names)
        text = record_text(record) + f" with {read}" * bool(read)
        return text + f", of {', '.join(sources)}" * bool(sources)

    def _axis_names(self, name: str) -> list[str]:
        return [axis.name for axis in self.tensors[name].domain.logical]

    def _emit(self, record: OpRecord, *views: TensorView) -> str:
        """Appends a record with new names for its results; returns the first name."""
        letter = "S" if record.op in ("define_scalar", "size") else "T"
        names = tuple(f"{letter}{len(self.tensors) + at}" for at in range(len(views)))
        if record.outputs:
            self.renamed.update(zip(record.outputs, names, strict=True))
        self.records.append(replace(record, outputs=names))
        for name, view in zip(names, views, strict=True):
            for at, extent in enumerate(view.shape):
                if extent.is_const and extent.value < 0:
                    raise record.error(f"axis {at} of the result", "a size >= 0", extent)
            self.tensors[name] = replace(view, name=name)
        self._note_scalar(names[0], self.records[-1])
        return names[0]

    def fresh(self, extent: Scalar) -> IterDomain:
        """A new axis, which is a broadcast if its size is 1."""
        self._axes += 1
        kind = IterType.BROADCAST if extent is const(1) else IterType.ITERATION
        return IterDomain(f"{kind.value}{self._axes - 1}", extent, kind)

    def sizes(self, value: AttrValue) -> tuple[Scalar, ...]:
        """A shape attribute as Scalars: numbers, or names of integer scalars."""
        return tuple(map(self._size, value))  # type: ignore[arg-type]

    def _size(self, entry: AttrValue) -> Scalar:
        if isinstance(entry, int):
            return const(entry)
        name = str(entry)
        if name not in self.scalars.sizes:
            expected = "an integer, or a scalar computed from sizes and arguments"
            raise DefinitionError(f"size {entry}", expected=expected)
        size = self.scalars.sizes[name]
        self.shape_scalars |= self.scalars.arguments_of_size(size)
        return size

    def _note_scalar(self, name: str, record: OpRecord) -> None:
        """Keeps a scalar that shapes may name: an argument, a size, or one computed from those."""
        view = self.tensors[name]
        if not view.is_scalar or is_found_at_run(record):
            return
        if record.op == "define_scalar":
            self.scalars.add_argument(name, view.dtype)
        elif record.op == "size":
            source = self.tensors[names_of(record)[0]]
            dim = shapes.normalise_axis(record.attr("dim"), len(source.shape), "size")
            self.scalars.add_size(name, source.shape[dim])
        else:
            self.scalars.add(name, record, view.dtype)

    # ---- inputs and outputs

    def _input_tensor(self, record: OpRecord) -> TensorView:
        axes = tuple(
            self.fresh(const(size) if size >= 0 else symbol(f"i{self._axes}", lo=0))
            for size in record.ints("shape")
        )
        allocation = allocation_of(record.ints("stride_order"))
        domain = TensorDomain.of(axes).with_allocation(allocation, record.attr("contiguity"))  # type: ignore[arg-type]
        is_cpu = bool(record.attr("is_cpu"))
        return TensorView("", record.attr("dtype"), domain, is_cpu=is_cpu)  # type: ignore[arg-type]

    def _define_scalar(self, record: OpRecord) -> str:
        drawn = record.attr("drawn")
        if drawn not in (None, "seed", "offset"):
            raise record.error("drawn", '"seed" or "offset"', repr(drawn))
        name = self._emit(record, _view(record.attr("dtype"), is_scalar=True))  # type: ignore[arg-type]
        if drawn == "seed":
            self._seed = self._seed or name
        return name

    def _add_output(self, record: OpRecord) -> None:
        view = self.tensors[names_of(record)[0]]
        alias, is_ordered = record.attr("alias"), record.attr("stride_order") is not None
        if is_ordered:
            check_stride_order(record.ints("stride_order"), len(view.shape))
        if alias is not None and is_ordered:
            expected = "an alias or a stride order"
            do = "leave stride_order out: the input's memory has an order of its own"
            raise AliasError(f"output {view.name}", expected=expected, got="both", do=do)
        if record.attr("shape") is not None:
            self._check_shape(view, record)
        if alias is not None:
            self._check_alias(view, self.tensors[str(alias)])
            self._written.add(str(alias))
        self.records.append(record)

    def _check_shape(self, view: TensorView, record: OpRecord) -> None:
        """A result in another shape is returned as a view. So the fusion must compute it, and its
        memory order must exist in the new shape."""
        shape, is_input = list(record.ints("shape")), view.name in self._tensor_inputs
        order, is_aliased = record.attr("stride_order"), record.attr("alias") is not None
        is_plain = view.domain.is_row_major and order is None
        owns = not is_input or (is_plain and bool(record.attr("shares")))
        if is_aliased or not owns or not (order or view.domain.is_row_major):
            expected = "a computed value, row-major or of a stride order, no alias"
            got, do = f"shape={shape} of {view}", "reshape the result before add_output"
            raise DefinitionError(f"output {view.name}", expected=expected, got=got, do=do)
        is_static = all(extent.is_const for extent in view.shape)
        if not is_static or prod(view.sizes) != prod(shape):
            expected = f"as many elements as {view}"
            raise DefinitionError(f"output {view.name}", expected=expected, got=str(shape))
        if order and reshaped_order(record.ints("stride_order"), view.sizes, shape) is None:
            expected = f"axes of {shape} that lie together in the stride order {order}"
            raise DefinitionError(f"output {view.name}", expected=expected, got=str(view))

    def _check_alias(self, view: TensorView, target: TensorView) -> None:
        """At most one result overwrites an input tensor, with the same type and sizes."""
        what = f"output {view.name}"
        if target.name in self._written:
            expected, got = "one output for each aliased input", f"a second one into {target.name}"
            raise AliasError(what, expected=expected, got=got)
        if target.name not in self._tensor_inputs:
            raise AliasError(what, expected="an input to alias", got=target.name)
        place = next((r for r in reversed(self.records) if view.name in r.outputs), None)
        shape = view.shape
        if place is not None and place.op == "index_store":
            axis = indexed.indexed_axis(place, len(shape))
            shape = (*shape[:axis], const(place.integer("size")), *shape[axis + 1 :])
        if view.dtype is not target.dtype or not shapes.may_be_equal(shape, target.shape):
            expected = f"the dtype and sizes of {target}"
            do = "cast or reshape the result before add_output"
            raise AliasError(what, expected=expected, got=str(view), do=do)

    # ---- ops

    def _pointwise(self, record: OpRecord) -> None:
        operands = self._views(record)
        compute, result = pointwise_types(record, operands)
        check_literals(record, record.inputs, compute)
        inputs = self._cast_all(record.inputs, compute)
        ranks = [len(self.tensors[o].shape) for o in inputs if isinstance(o, str)]
        rank = max(ranks, default=0)
        record = replace(record, inputs=tuple(self._raised(o, rank) for o in inputs))
        views = [self.tensors[name] for name in names_of(record)]
        domains = [view.domain.no_reductions for view in views if view.shape]
        axes = shapes.pointwise(domains, record.op, self.fresh) if domains else ()
        self._emit(record, _view(result, axes, is_scalar=gives_scalar(record, views)))

    def _views(self, record: OpRecord) -> list[TensorView]:
        """The operands; a number is a scalar of its own type."""
        return [
            _view(of_number(o.value), is_scalar=True) if isinstance(o, Literal) else self.tensors[o]
            for o in record.inputs
        ]

    def _cast_all(
        self, operands: Sequence[Operand], dtypes: Sequence[DataType]
    ) -> tuple[Operand, ...]:
        """The operands in the types that the op computes in. The printer converts literals."""
        return tuple(
            o if isinstance(o, Literal) else self._cast(o, dtype)
            for o, dtype in zip(operands, dtypes, strict=True)
        )

    def _cast(self, name: str, dtype: DataType) -> str:
        view = self.tensors[name]
        if view.dtype is dtype:
            return name
        if (name, dtype) not in self._casts:
            record = OpRecord("cast", (name,), (), (("dtype", dtype),))
            domain = TensorDomain.of(view.domain.no_reductions)
            view = replace(view, dtype=dtype, domain=domain, is_cpu=False, partial=())
            self._casts[name, dtype] = self._emit(record, view)
        return self._casts[name, dtype]

    def _raised(self, operand: Operand, rank: int) -> Operand:
        """The operand with leading broadcast axes up to a rank, as torch adds them."""
        if isinstance(operand, Literal) or len(self.tensors[operand].shape) in (0, rank):
            return operand
        operand_rank = len(self.tensors[operand].shape)
        flags = (True,) * (rank - operand_rank) + (False,) * operand_rank
        record = OpRecord("broadcast", (operand,), (), (("is_broadcast_dim", flags),))
        return self._move(record)

    def _reduction(self, record: OpRecord) -> None:
        (name,) = names_of(record)
        view = self.tensors[name]
        check_collected(record, view)
        dims = shapes.normalise_axes(record.attr("dims"), len(view.shape), record.op)
        (dtype,) = result_types(record, [view])
        # Integers are added in 64 bits and then truncated, which gives the bits of the narrow type.
        adds = record.row.rule is DtypeRule.ACCUMULATE
        compute = dtype.accumulate if adds else dtype.compute
        if compute.is_int:  # torch casts first: the sum of 0.5 and 0.5 as Int is 0
            name = self._cast(name, dtype)
        source = self._cast(name, compute)
        keepdim, chunk = bool(record.attr("keepdim")), record.attr("chunk")
        attrs: tuple[tuple[str, AttrValue], ...] = (("dims", dims), ("keepdim", keepdim))
        attrs += (("chunk", chunk),) * (chunk is not None)
        attrs += (("short", True),) * bool(record.attr("short"))
        reduction = OpRecord(record.op, (source,), record.outputs, attrs)
        axes = shapes.reduction(self.tensors[source].domain.no_reductions, reduction, self.fresh)
        out = self._emit(reduction, _view(compute, axes))
        self.renamed[record.outputs[0]] = self._cast(out, dtype)

    def _scan(self, record: OpRecord) -> None:
        """[i0, i1] -> [i0, i1]: a scan keeps every axis."""
        (name,) = names_of(record)
        view = self.tensors[name]
        check_collected(record, view)
        dim = shapes.normalise_axis(record.attr("dim"), len(view.shape), record.op)
        (dtype,) = result_types(record, [view])
        source = self._cast(name, dtype.compute)
        scan = OpRecord(record.op, (source,), record.outputs, (("dim", dim),))
        axes = self.tensors[source].domain.no_reductions
        out = self._emit(scan, _view(dtype.compute, axes))
        self.renamed[record.outputs[0]] = self._cast(out, dtype)

    def _movement(self, record: OpRecord) -> None:
        views = self._views(record)
        if record.op == "set" and isinstance(record.inputs[0], Literal):
            attrs = (("dtype", views[0].dtype),)  # a copy of a number is a cast
            self._pointwise(replace(record, op="cast", attrs=attrs))
            return
        if record.op == "cat":
            common = promote(*(view.dtype for view in views))
            inputs = self._cast_all(record.inputs, [common] * len(views))
            record = replace(record, inputs=inputs)
        value, dtype = record.attr("value") or 0, views[0].dtype
        if record.op == "pad":
            check_literals(record, [Literal.of(value)], [dtype])  # type: ignore[arg-type]
        self._move(record)

    def _move(self, record: OpRecord) -> str:
        views = self._views(record)
        domains = [view.domain.no_reductions for view in views]
        axes = shapes.movement(domains, record, self.sizes, self.fresh)
        view = _view(views[0].dtype, axes, is_scalar=gives_scalar(record, views))
        if record.op == "stride_order":
            order = check_stride_order(record.ints("stride_order"), len(axes))
            view = _laid(view, allocation_of(order))
        return self._emit(record, view)

    def _size_of(self, record: OpRecord) -> None:
        self._emit(record, _view(DataType.Int, is_scalar=True))

    def _factory(self, record: OpRecord) -> str:
        is_iota = record.op == "iota"
        sizes = self.sizes((record.attr("length"),) if is_iota else record.attr("shape"))
        axes = tuple(map(self.fresh, sizes))
        (dtype,) = result_types(record, [])
        record = _with_dtype(record, dtype)
        if is_iota and dtype is DataType.Bool:
            raise DtypeError("iota: dtype", expected="a type of numbers", got="Bool")
        if is_iota:
            self._check_iota(record)
        check_numbers(record, self._views(record))
        check_literals(record, record.inputs, [dtype] * len(record.inputs))
        return self._emit(record, _view(dtype, axes))

    def _check_iota(self, record: OpRecord) -> None:
        """As torch.arange; for numbers that a call gives, the kernel's arithmetic decides."""
        start, step = (self.scalars.number(operand) for operand in record.inputs)
        for name, value in (("start", start), ("step", step)):
            if value is not None and not isfinite(value):
                raise record.error(name, "a finite number", value)
        if step == 0:
            raise record.error("step", "a number other than 0", step, "use ops.full")

    def _random(self, record: OpRecord) -> None:
        """Makes the random stream of an op explicit:

            T0 = uniform(lo=0.0, hi=1.0, shape=[8], dtype=DataType.Float)
        ->  S0 = define_scalar(drawn="seed"); S1 = define_scalar(drawn="offset")
            T2 = uniform(lo=0.0, hi=1.0, rng_seed=S0, rng_offset=S1, ...)
        """
        axes = tuple(map(self.fresh, self.sizes(record.attr("shape"))))
        (dtype,) = result_types(record, [])
        record = _with_dtype(record, dtype)
        if not dtype.is_float or dtype.is_float8:
            wanted = "a float of 16 bits or more"
            raise DtypeError(f"{record.op}: dtype", expected=wanted, got=dtype.name)
        if len(record.inputs) == 3:
            wanted = "rng_seed and rng_offset, or neither"
            raise DefinitionError(f"ops.{record.op}", expected=wanted, got="one of the two")
        check_numbers(record, self._views(record))
        stream = record.inputs[2:] or (self._seed or self._drawn("seed"), self._drawn("offset"))
        compute = (dtype.compute, dtype.compute, DataType.Int, DataType.Int)
        inputs = self._cast_all((*record.inputs[:2], *stream), compute)
        self._emit(replace(record, inputs=inputs), _view(dtype, axes))

    def _drawn(self, word: str) -> str:
        attrs = (("dtype", DataType.Int), ("drawn", word))
        return self._define_scalar(OpRecord("define_scalar", (), (), attrs))

    def _lookup(self, record: OpRecord) -> None:
        operands = self._views(record)
        (dtype,) = result_types(record, operands)
        self._emit(record, _view(dtype, indexed.axes(record, operands, self.fresh)))

    def _call(self, record: OpRecord) -> None:
        operands = self._views(record)
        if record.op == "scatter" and operands[2].is_scalar and names_of(record)[2:]:
            attrs: tuple[tuple[str, AttrValue], ...] = (("shape", ()), ("dtype", operands[0].dtype))
            filled = self._factory(OpRecord("full", record.inputs[2:], (), attrs))
            record = replace(record, inputs=(*record.inputs[:2], filled))
            operands = self._views(record)
        for name in (record.attr(key) for key in ("dropout_p", "is_causal", "scale")):
            if isinstance(name, str):
                self.shape_scalars |= self.scalars.arguments_of(name)
        extents = torch_calls.result_sizes(record, operands, self.sizes)
        axes = [tuple(map(self.fresh, sizes)) for sizes in extents]
        check_streams(record, operands, axes[0])
        views = [*map(_view, result_types(record, operands), axes)]
        order = operands[0].domain.allocation
        if record.op == "sdpfa_fwd" and order[-1] == len(order) - 1:  # torch keeps the query's
            views[0] = _laid(views[0], order)
        self._emit(record, *views)

    def _communicate(self, record: OpRecord) -> None:
        (view,) = self._views(record)
        self._emit(record, _view(view.dtype, communication.axes(record, view, self.fresh)))


_BY_KIND: dict[OpKind, Callable[[Definer, OpRecord], object]] = {
    OpKind.POINTWISE: Definer._pointwise,
    OpKind.MOVEMENT: Definer._movement,
    OpKind.INDEX: Definer._lookup,
    OpKind.REDUCTION: Definer._reduction,
    OpKind.SCAN: Definer._scan,
    OpKind.FACTORY: Definer._factory,
    OpKind.RANDOM: Definer._random,
    OpKind.SCALAR: Definer._size_of,
    OpKind.EXTERNAL: Definer._call,
    OpKind.COMMUNICATION: Definer._communicate,
}


def _with_dtype(record: OpRecord, dtype: DataType) -> OpRecord:
    """The record with the type of its result, which it may leave to the op."""
    if record.attr("dtype") is not None:
        return record
    return replace(record, attrs=(*record.attrs, ("dtype", dtype)))


def _laid(view: TensorView, allocation: tuple[int, ...]) -> TensorView:
    """The view with its axes in this order in memory, without gaps."""
    axes = view.domain.logical
    contiguity = tuple(None if axes[at].is_broadcast else True for at in allocation)
    return replace(view, domain=view.domain.with_allocation(allocation, contiguity))


def _view(dtype: DataType, axes: Domain = (), *, is_scalar: bool = False) -> TensorView:
    """A row-major value that has no name yet."""
    return TensorView("", dtype, TensorDomain.of(axes), is_scalar=is_scalar)
