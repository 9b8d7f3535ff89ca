# SPDX-License-Identifier: Apache-2.0
"""Definition -> Fusion: infers types, shapes and axes, and inserts implicit casts.

    T2 = add(T0: bf16[i0], T1: f32[i0])
->  T2 = cast(T0, Float); T3 = add(T2, T1)

`define` is idempotent: the records of a Fusion define the same Fusion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from thunder_fuser.errors import AliasError, DefinitionError, DtypeError
from thunder_fuser.ir import indexed, shapes
from thunder_fuser.ir.domain import Domain, IterDomain, IterType, TensorDomain
from thunder_fuser.ir.dtypes import DataType, of_number, promote
from thunder_fuser.ir.fusion import Fusion, TensorView, is_found_at_run
from thunder_fuser.ir.layout_records import Layouts
from thunder_fuser.ir.op_schema import DtypeRule, OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.outputs import check_alias, check_shape
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
from thunder_fuser.ir.scalar import Scalar, const, symbol, wrap
from thunder_fuser.ir.strides import allocation_of, check_stride_order
from thunder_fuser.ir.type_rules import (
    check_collected,
    check_drawn,
    check_literals,
    check_number,
    check_operands,
    collected_type,
    gives_scalar,
    made_type,
    pointwise_types,
    result_types,
)


def define(definition: Definition, *, check: bool = True) -> Fusion:
    """The typed Fusion of a definition; DefinitionError if it is invalid.

    With check=False the definition may lack outputs, because it is still being recorded.
    """
    definer = _Definer()
    for record in definition:
        definer.add(record)
    if check:
        definer.finish()
    return Fusion(tuple(definer.records), definer.tensors, frozenset(definer.shape_scalars))


class Views:
    """The type and axes of values while a definition is being recorded.

    Each record is typed once, and later questions reuse the result.
    """

    def __init__(self) -> None:
        self._definer, self._seen = _Definer(), 0

    def of(self, records: Sequence[OpRecord], name: str) -> TensorView:
        """The view of a value. `records` extends the records of the previous call."""
        try:
            while self._seen < len(records):
                self._definer.add(records[self._seen])
                self._seen += 1
        except DefinitionError:  # the record may have been added in part
            self._definer, self._seen = _Definer(), 0
            raise
        return self._definer.tensors[self._definer.renamed[name]]


class _Definer:
    """Types the records in one walk. `renamed` maps recorded names to the Fusion's names."""

    def __init__(self) -> None:
        self.records: list[OpRecord] = []
        self.tensors: dict[str, TensorView] = {}
        self.renamed: dict[str, str] = {}
        self.integers: dict[str, Scalar] = {}
        self.shape_scalars: set[str] = set()
        self._tensor_inputs: set[str] = set()
        self._written: set[str] = set()
        self._seed = ""
        self._casts: dict[tuple[str, DataType], str] = {}
        self._layouts = Layouts()
        self._axes = 0

    def add(self, record: OpRecord) -> None:
        """Types one record and appends it, after the casts and broadcasts that it implies."""
        for operand in names_of(record):
            self._check_known(operand, record)
        record = rename(record, self.renamed)
        try:
            self._add(record)
        except DefinitionError as error:
            raise error.at(self._where(record)) from None

    def _add(self, record: OpRecord) -> None:
        if record.op == "add_output":
            self._add_output(record)
        elif record.op == "define_tensor":
            self._tensor_inputs.add(self._emit(record, self._input_tensor(record)))
        elif record.op == "define_scalar":
            check_drawn(record)
            name = self._emit(record, self._scalar(record.attr("dtype")))  # type: ignore[arg-type]
            if record.attr("drawn") == "seed":
                self._seed = self._seed or name
        elif record.op in OPS:
            self._op(record)
        elif record.op in LAYOUT:
            self._layout(record)
        else:
            raise DefinitionError(f"record {record.op}", expected="an op of the table")

    def _layout(self, record: OpRecord) -> None:
        (name,) = names_of(record)
        self.tensors[name] = self._layouts.add(record, self.tensors[name])
        self.records.append(record)

    def finish(self) -> None:
        """Completes the layouts; DefinitionError if one is incomplete or there is no output."""
        _check_outputs(self)
        laid = dict.fromkeys(n for r in self.records if r.op in LAYOUT for n in names_of(r))
        for name in laid:
            self.tensors[name] = self._layouts.finish(self.tensors[name])

    def _where(self, record: OpRecord) -> str:
        """For an error: the call, its operands, and the arguments that share axes with them."""
        names = dict.fromkeys(names_of(record))
        axes = {axis.name for name in names for axis in self.tensors[name].domain.logical}
        given = [one.outputs[0] for one in self.records if one.op == "define_tensor"]
        sources = [
            name for name in given
            if name not in names
            and any(axis.name in axes for axis in self.tensors[name].domain.logical)
        ]
        read = ", ".join(str(self.tensors[name]) for name in names)
        text = record_text(record) + f" with {read}" * bool(read)
        return text + f", of {', '.join(str(self.tensors[n]) for n in sources)}" * bool(sources)

    def _check_known(self, name: str, record: OpRecord) -> None:
        if name not in self.renamed:
            known = ", ".join(self.renamed) or "nothing"
            raise DefinitionError(
                f"{record.op}: {name}", expected=f"a defined value ({known})", got=name
            )

    def _emit(self, record: OpRecord, *views: TensorView) -> str:
        """Appends a record with new names for its results; returns the first name."""
        letter = "S" if record.op in ("define_scalar", "size") else "T"
        names = tuple(f"{letter}{len(self.tensors) + at}" for at in range(len(views)))
        if record.outputs:
            self.renamed.update(zip(record.outputs, names, strict=True))
        self.records.append(replace(record, outputs=names))
        for name, view in zip(names, views, strict=True):
            _check_sizes(record, view)
            self.tensors[name] = replace(view, name=name)
        self._note_integer(names[0], self.records[-1])
        return names[0]

    def fresh(self, extent: Scalar) -> IterDomain:
        """A new axis, which is a broadcast if its size is 1."""
        self._axes += 1
        kind = IterType.BROADCAST if extent is const(1) else IterType.ITERATION
        return IterDomain(f"{kind.value}{self._axes - 1}", extent, kind)

    def sizes(self, value: AttrValue) -> tuple[Scalar, ...]:
        """A shape attribute as Scalars: numbers, or names of integer scalars."""
        if not isinstance(value, tuple):
            raise DefinitionError("shape", expected="a list of sizes", got=repr(value))
        return tuple(self._size(entry) for entry in value)

    def _size(self, entry: AttrValue) -> Scalar:
        if isinstance(entry, int):
            return const(entry)
        name = str(entry)
        if name not in self.integers:
            raise DefinitionError(
                f"size {entry}", expected="an integer, or a scalar made of sizes and arguments"
            )
        self.shape_scalars |= self.integers[name].symbols
        return self.integers[name]

    def _note_integer(self, name: str, record: OpRecord) -> None:
        """Keeps an integer scalar for shapes: an argument, a size, or arithmetic on those."""
        view = self.tensors[name]
        if not view.is_scalar or view.dtype is not DataType.Int:
            return
        if record.op == "define_scalar":
            if not is_found_at_run(record):
                self.integers[name] = symbol(name, lo=0)
        elif record.op == "size":
            source = self.tensors[names_of(record)[0]]
            dim = shapes.normalise_axis(record.attr("dim"), len(source.shape), "size")
            self.integers[name] = source.shape[dim]
        elif record.op in _INTEGER_OPS and all(self._is_integer(o) for o in record.inputs):
            left, right = (self._integer(o) for o in record.inputs)
            self.integers[name] = _INTEGER_OPS[record.op](left, right)

    def _is_integer(self, operand: Operand) -> bool:
        return isinstance(operand, Literal) or operand in self.integers

    def _integer(self, operand: Operand) -> Scalar:
        return wrap(int(operand.value)) if isinstance(operand, Literal) else self.integers[operand]

    # ---- inputs and outputs

    def _input_tensor(self, record: OpRecord) -> TensorView:
        shape: tuple[int, ...] = record.attr("shape")  # type: ignore[assignment]
        order: tuple[int, ...] = record.attr("stride_order")  # type: ignore[assignment]
        axes = tuple(self._input_axis(size) for size in shape)
        domain = TensorDomain.of(axes).with_allocation(
            allocation_of(order),
            record.attr("contiguity"),  # type: ignore[arg-type]
        )
        dtype: DataType = record.attr("dtype")  # type: ignore[assignment]
        return TensorView("", dtype, domain, is_cpu=bool(record.attr("is_cpu")))

    def _input_axis(self, size: int) -> IterDomain:
        if size >= 0:
            return self.fresh(const(size))
        return self.fresh(symbol(f"i{self._axes}", lo=0))

    def _scalar(self, dtype: DataType) -> TensorView:
        return TensorView("", dtype, TensorDomain.of(()), is_scalar=True)

    def _add_output(self, record: OpRecord) -> None:
        name = names_of(record)[0]
        view = self.tensors[name]
        order = record.attr("stride_order")
        if order is not None:
            check_stride_order(order, len(view.shape))  # type: ignore[arg-type]
        alias = record.attr("alias")
        if alias is not None and order is not None:
            raise AliasError(
                f"output {view.name}",
                expected="an alias or a stride order",
                got="both",
                do="leave stride_order out: the input's memory has an order of its own",
            )
        shape = record.attr("shape")
        if shape is not None:
            check_shape(view, record, is_input=view.name in self._tensor_inputs)
        if alias is not None:
            check_alias(view, self.tensors[str(alias)], self._tensor_inputs, self._written)
            self._written.add(str(alias))
        self.records.append(record)

    # ---- ops

    def _op(self, record: OpRecord) -> None:
        kind = record.row.kind
        check_operands(record)
        if record.op == "set" and isinstance(number := record.inputs[0], Literal):
            dtype = of_number(number.value)  # a copy of a number is a cast
            record = replace(record, op="cast", attrs=(("dtype", dtype),))
        if record.row.kind is OpKind.POINTWISE:
            self._pointwise(record)
        elif kind is OpKind.REDUCTION:
            self._reduction(record)
        elif kind is OpKind.SCAN:
            self._scan(record)
        elif kind is OpKind.SCALAR:
            self._emit(_with_attr(record, "dtype", None), self._scalar(DataType.Int))
        elif kind is OpKind.FACTORY:
            self._factory(record)
        elif kind is OpKind.RANDOM:
            self._random(record)
        elif kind is OpKind.EXTERNAL:
            self._emit(record, *self._external(record))
        elif kind is OpKind.INDEX:
            self._emit(record, self._indexed(record))
        else:
            self._movement(record)

    def _pointwise(self, record: OpRecord) -> None:
        operands = [self._as_view(o) for o in record.inputs]
        compute, result = pointwise_types(record, operands)
        check_literals(record, record.inputs, compute)
        inputs = [
            self._cast(o, view, dtype)
            for o, view, dtype in zip(record.inputs, operands, compute, strict=True)
        ]
        record = replace(record, inputs=tuple(self._ranked(inputs)))
        views = [self.tensors[o] for o in record.inputs if isinstance(o, str)]
        domains = [view.domain.no_reductions for view in views if view.shape]
        axes = shapes.pointwise(domains, record.op, self.fresh) if domains else ()
        scalar = gives_scalar(record, views)
        self._emit(record, TensorView("", result, TensorDomain.of(axes), is_scalar=scalar))

    def _as_view(self, operand: Operand) -> TensorView:
        if isinstance(operand, Literal):
            return self._scalar(of_number(operand.value))
        return self.tensors[operand]

    def _cast(self, operand: Operand, view: TensorView, dtype: DataType) -> Operand:
        """The operand cast to the type that the op computes in. The printer converts literals."""
        if isinstance(operand, Literal) or view.dtype is dtype:
            return operand
        if (operand, dtype) not in self._casts:
            record = OpRecord("cast", (operand,), (), (("dtype", dtype),))
            view = replace(view, dtype=dtype, domain=_fresh_domain(view), is_cpu=False)
            self._casts[operand, dtype] = self._emit(record, view)
        return self._casts[operand, dtype]

    def _ranked(self, inputs: list[Operand]) -> list[Operand]:
        """Adds leading broadcast axes to operands of lower rank, as torch does."""
        ranks = [len(self.tensors[o].shape) for o in inputs if isinstance(o, str)]
        rank = max(ranks, default=0)
        return [self._raised(o, rank) for o in inputs]

    def _raised(self, operand: Operand, rank: int) -> Operand:
        if isinstance(operand, Literal) or len(self.tensors[operand].shape) in (0, rank):
            return operand
        view = self.tensors[operand]
        flags = (True,) * (rank - len(view.shape)) + (False,) * len(view.shape)
        record = OpRecord("broadcast", (operand,), (), (("is_broadcast_dim", flags),))
        return self._emit(record, self._moved(record, [view]))

    def _reduction(self, record: OpRecord) -> None:
        (name,) = names_of(record)
        view = self.tensors[name]
        rank = len(view.shape)
        check_collected(record, view)
        dims = shapes.normalise_axes(record.attr("dims"), rank, record.op)
        adds = record.row.rule is DtypeRule.ACCUMULATE
        dtype = collected_type(record, view.dtype)
        # Integers are added in 64 bits and then truncated, which gives the bits of the narrow type.
        compute = dtype.accumulate if adds else dtype.compute
        if compute.is_int:  # torch casts first: the sum of 0.5 and 0.5 as Int is 0
            name = str(self._cast(name, view, dtype))
        source = str(self._cast(name, self.tensors[name], compute))
        attrs: tuple[tuple[str, AttrValue], ...] = (
            ("dims", dims),
            ("keepdim", bool(record.attr("keepdim"))),
        )
        if record.attr("chunk") is not None:
            attrs = (*attrs, ("chunk", record.attr("chunk")))
        last = record.outputs
        record = OpRecord(record.op, (source,), last, attrs)
        domain = self.tensors[source].domain.no_reductions
        axes = shapes.reduction(domain, record, self.fresh)
        out = self._emit(record, TensorView("", compute, TensorDomain.of(axes)))
        if compute is not dtype:
            self.renamed[last[0]] = str(self._cast(out, self.tensors[out], dtype))

    def _scan(self, record: OpRecord) -> None:
        """[i0, i1] -> [i0, i1]: a scan keeps every axis."""
        (name,) = names_of(record)
        view = self.tensors[name]
        check_collected(record, view)
        dim = shapes.normalise_axis(record.attr("dim"), len(view.shape), record.op)
        dtype = collected_type(record, view.dtype)
        source = str(self._cast(name, view, dtype))
        record = OpRecord(record.op, (source,), record.outputs, (("dim", dim),))
        axes = self.tensors[source].domain.no_reductions
        self._emit(record, TensorView("", dtype, TensorDomain.of(axes)))

    def _movement(self, record: OpRecord) -> None:
        views = [self._as_view(o) for o in record.inputs]
        if record.op == "cat":
            dtype = promote(*(view.dtype for view in views))
            inputs = [self._cast(o, v, dtype) for o, v in zip(record.inputs, views, strict=True)]
            record = replace(record, inputs=tuple(inputs))
            views = [self._as_view(o) for o in inputs]
        if record.op == "pad":
            check_literals(record, [Literal.of(record.attr("value") or 0)], [views[0].dtype])  # type: ignore[arg-type]
        self._emit(record, self._moved(record, views))

    def _moved(self, record: OpRecord, views: list[TensorView]) -> TensorView:
        domains = [view.domain.no_reductions for view in views]
        axes = shapes.movement(domains, record, self.sizes, self.fresh)
        scalar = gives_scalar(record, views)
        domain = TensorDomain.of(axes)
        if record.op == "stride_order":
            order = check_stride_order(record.attr("stride_order"), len(axes))  # type: ignore[arg-type]
            allocation = allocation_of(order)
            contiguity = tuple(None if axes[at].is_broadcast else True for at in allocation)
            domain = domain.with_allocation(allocation, contiguity)
        return TensorView("", views[0].dtype, domain, is_scalar=scalar)

    def _factory(self, record: OpRecord) -> None:
        if record.op == "iota":
            (extent,) = self.sizes((record.attr("length"),))
            record = _with_attr(record, "dtype", made_type(record))
            axes: Domain = (self.fresh(extent),)
        else:
            axes = tuple(self.fresh(extent) for extent in self.sizes(record.attr("shape")))
        dtype = made_type(record)
        if record.op == "iota" and dtype is DataType.Bool:
            raise DtypeError("iota: dtype", expected="a type of numbers", got="Bool")
        for word, operand in zip(record.row.keywords, record.inputs, strict=True):
            check_number(record, word, operand, self._as_view(operand))
        check_literals(record, record.inputs, [dtype] * len(record.inputs))
        self._emit(record, TensorView("", dtype, TensorDomain.of(axes)))

    def _random(self, record: OpRecord) -> None:
        """Makes the random stream of an op explicit:

            T0 = uniform(lo=0.0, hi=1.0, shape=[8], dtype=DataType.Float)
        ->  S0 = define_scalar(drawn="seed"); S1 = define_scalar(drawn="offset")
            T2 = uniform(lo=0.0, hi=1.0, rng_seed=S0, rng_offset=S1, ...)
        """
        axes = tuple(self.fresh(extent) for extent in self.sizes(record.attr("shape")))
        dtype = made_type(record)
        if not dtype.is_float or dtype.is_float8:
            wanted = "a float of 16 bits or more"
            raise DtypeError(f"{record.op}: dtype", expected=wanted, got=dtype.name)
        self._check_random(record)
        given = record.inputs
        stream = given[2:] or (self._drawn("seed"), self._drawn("offset"))
        compute = (dtype.compute, dtype.compute, DataType.Int, DataType.Int)
        inputs = [
            self._cast(o, self._as_view(o), to)
            for o, to in zip((*given[:2], *stream), compute, strict=True)
        ]
        record = replace(record, inputs=tuple(inputs))
        self._emit(record, TensorView("", dtype, TensorDomain.of(axes)))

    def _check_random(self, record: OpRecord) -> None:
        row = record.row
        if len(record.inputs) == 3:
            raise DefinitionError(
                f"ops.{row.name}", expected="rng_seed and rng_offset, or neither", got="one of them"
            )
        for word, operand in zip(row.keywords, record.inputs, strict=False):
            check_number(record, word, operand, self._as_view(operand))

    def _drawn(self, word: str) -> str:
        """The fusion's drawn seed, or a new drawn offset."""
        if word == "seed" and self._seed:
            return self._seed
        attrs = (("dtype", DataType.Int), ("drawn", word))
        name = self._emit(OpRecord("define_scalar", (), (), attrs), self._scalar(DataType.Int))
        if word == "seed":
            self._seed = name
        return name

    def _external(self, record: OpRecord) -> list[TensorView]:
        operands = [self._as_view(o) for o in record.inputs]
        extents = indexed.extents(record, operands)
        return [
            TensorView("", dtype, TensorDomain.of(tuple(map(self.fresh, extents))))
            for dtype in result_types(record, operands)
        ]

    def _indexed(self, record: OpRecord) -> TensorView:
        views = [self._as_view(o) for o in record.inputs]
        axes = indexed.axes(record, views, self.fresh)
        return TensorView("", views[record.row.source].dtype, TensorDomain.of(axes))


_INTEGER_OPS: dict[str, Callable[[Scalar, Scalar], Scalar]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a // b,
}


def _check_sizes(record: OpRecord, view: TensorView) -> None:
    for at, extent in enumerate(view.shape):
        if extent.is_const and extent.value < 0:
            raise DefinitionError(
                f"{record.op}: axis {at} of the result", expected="a size >= 0", got=str(extent)
            )


def _with_attr(record: OpRecord, key: str, value: AttrValue) -> OpRecord:
    rest = tuple(item for item in record.attrs if item[0] != key)
    return replace(record, attrs=rest if value is None else (*rest, (key, value)))


def _fresh_domain(view: TensorView) -> TensorDomain:
    return TensorDomain.of(view.domain.no_reductions)


def _check_outputs(definer: _Definer) -> None:
    if not any(record.op == "add_output" for record in definer.records):
        raise DefinitionError(
            "the fusion", expected="at least one output", got="none", do="call add_output"
        )
