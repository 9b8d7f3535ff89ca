# SPDX-License-Identifier: Apache-2.0
"""A matrix product of few rows becomes a sum, which fuses with what is around it.

    T2 = linear(T0: bf16[1, k], T1: bf16[n, k])
->  T3 = cast(T0, Float); T4 = broadcast(T3, [False, True, False])
    T5 = cast(T1, Float); T6 = broadcast(T5, [True, False, False])
    T7 = mul(T4, T6);     T8 = sum(T7, dims=[2]); T2 = cast(T8, BFloat16)

Such a product is bound by the bytes of its matrix. The kernels of sums read these once, and a bias,
an activation or a residual behind it needs no kernel of its own. From three rows on, tensor cores
compute the sum (schedule/products.py). Every block reads the rows, so computed rows are stored
first:

    T0 = silu(T9)  ->  T10 = silu(T9); T0 = segment_set(T10)

A scale of each row, as of an RMS norm, goes behind the sum, and each block computes it again:

    r = rsqrt(sum(x * x)); y = cast(x * broadcast(r) * w, BFloat16); sum(cast(y, Float) * m)
->  sum(x * w * m) * rsqrt(sum(broadcast(x * x)))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import replace
from math import prod
from typing import NamedTuple

from thunder_fuser.analysis.cost import is_recomputable
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.record import Operand, OpRecord, names_of
from thunder_fuser.presegment.materialize_broadcasts import with_boundary
from thunder_fuser.presegment.rewrite import Chain, RewriteRule, makers
from thunder_fuser.schedule.products import FEWEST_ROWS, MOST_ROWS, NARROW
from thunder_fuser.target import Target

LEAST_ELEMENTS = 1 << 16  # of the matrix; smaller ones were not measured
# Of tensor cores: one block sums all of 16 columns, so a few long ones would leave the others idle.
FEWEST_COLUMNS, LONGEST = 128, 1 << 14
PRODUCTS = ("linear", "matmul")
HALVES = frozenset({DataType.Half, DataType.BFloat16})
SUMMED = HALVES | {DataType.Float}
MOST_FACTORS = 2  # of rows: each block loads all of each
_BROADCASTS = frozenset({"broadcast", "broadcast_in_dim", "expand"})
_SPREADS = _BROADCASTS | {"reshape", "squeeze"}


def few_rows(fusion: Fusion, target: Target, options: CompileOptions) -> RewriteRule:
    """Turns matrix products of few rows into sums.

    Tensor cores have an order of their own, so under `repeatable` products of three rows and more
    stay with torch. So do a CPU's, whose sums would be in double then.
    """
    most = min(options.few_rows, FEWEST_ROWS - 1) if options.repeatable else options.few_rows
    most = 0 if options.repeatable and target.is_cpu else most
    products = {
        record: product for record in fusion.exprs
        if (product := _product(fusion, record, most, target)) is not None
    }  # fmt: skip
    scaled = {} if target.is_cpu or options.repeatable else _scaled(fusion, products)
    short = True if target.is_cpu else None
    new = {
        record: _summed(fusion, record, product, short, scaled.get(_source(fusion, product.rows)))
        for record, product in products.items()
    }
    stored = dict.fromkeys(
        rows for product in products.values()
        if _stores(fusion, rows := _read(fusion, product, scaled), product.height)
    )  # fmt: skip
    for rows in stored:
        maker = fusion.producer[rows]
        *before, last = new.get(maker, [maker])
        new[maker] = [*before, *with_boundary(last)]
    return new


def _source(fusion: Fusion, name: str) -> str:
    """The value that was reshaped to this one: stored there, it needs no copy."""
    while (maker := fusion.producer.get(name)) is not None and maker.op == "reshape":
        (name,) = names_of(maker)
    return name


def _read(fusion: Fusion, product: _RowsAndMatrix, scaled: Mapping[str, _Scaled]) -> str:
    """The value of which a product reads its rows; if their scale is apart, before casts."""
    name = _source(fusion, product.rows)
    return _source(fusion, _unrounded(fusion, scaled[name].rest)) if name in scaled else name


def _stores(fusion: Fusion, rows: str, height: int) -> bool:
    """True if the rows are stored before the product: if a kernel computes them alone, by more than
    casts of what is in memory. Tensor cores need them in memory as they are."""
    is_free = _only_moves if height < FEWEST_ROWS else _is_move
    chain = [*makers(fusion.producer, rows, is_free)]
    computes = any(not is_free(r) and r.row.kind is not OpKind.EXTERNAL for r in chain)
    return computes and len(chain[0].outputs) == 1


def _is_move(record: OpRecord) -> bool:
    return record.row.kind is OpKind.MOVEMENT


def _only_moves(record: OpRecord) -> bool:
    return record.op == "cast" or _is_move(record)


def is_of_few_rows(
    op: str, a: tuple[int, ...], b: tuple[int, ...], most: int, *, is_half: bool, on_cpu: bool
) -> bool:
    """True if operands of these sizes have at most `most` rows, and a matrix worth a kernel. Three
    rows and more are for tensor cores: of 16-bit floats, 16 bytes at once along the summed axis. On
    a CPU it is one row of 16-bit floats: torch's products of others are as fast.

    >>> gpu, cpu = {"is_half": True, "on_cpu": False}, {"is_half": True, "on_cpu": True}
    >>> [is_of_few_rows("linear", (8, k), (512, k), 8, **gpu) for k in (2048, 2044)]
    [True, False]
    >>> [is_of_few_rows("linear", (rows, 64), (64, 64), 8, **cpu) for rows in (1, 2)]
    [True, False]
    """
    if op == "matmul" and len(b) == 1:
        a, b = b, a
    rows, length = prod(a[:-1]), a[-1]
    if len(b) != 2 or not 0 < rows <= most:
        return False
    if on_cpu:
        return rows == 1 and is_half and length <= LONGEST
    if prod(b) < LEAST_ELEMENTS:
        return False
    if rows < FEWEST_ROWS:
        return True
    is_wide = prod(b) >= FEWEST_COLUMNS * length and length <= LONGEST
    return rows <= MOST_ROWS and is_half and is_wide and not length % 8


# ---- rows with a scale


class _Scaled(NamedTuple):
    """Rows that are a product of `rest`, the factors, and the scale, which has one number a row."""

    rest: str
    factors: tuple[Operand, ...]
    scale: str


Readers = Mapping[str, list[OpRecord]]


def _scaled(fusion: Fusion, products: Mapping[OpRecord, _RowsAndMatrix]) -> dict[str, _Scaled]:
    """{rows: their parts}, of those that products of one row alone read."""
    readers = dict[str, list[OpRecord]]()
    for record in fusion.exprs:
        for name in names_of(record):
            readers.setdefault(name, []).append(record)
    few = {r: p for r, p in products.items() if p.height == 1}
    widths = {_source(fusion, p.rows): fusion.tensors[p.rows].sizes[-1] for p in few.values()}

    def are_alone(name: str, width: int) -> bool:
        """A reshape may not join rows."""
        return name not in fusion.results and fusion.tensors[name].sizes[-1] == width and all(
            are_alone(reader.outputs[0], width) if reader.op == "reshape"
            else reader in few and few[reader].rows == name
            for reader in readers.get(name, ())
        )  # fmt: skip

    alone = [name for name, width in widths.items() if are_alone(name, width)]
    parts = {name: _parts(fusion, readers, name) for name in alone}
    return {
        name: scaled for name, scaled in parts.items()
        if scaled is not None and _saves_a_kernel(fusion, scaled.rest, few)
    }  # fmt: skip


def _saves_a_kernel(fusion: Fusion, rest: str, few: Collection[OpRecord]) -> bool:
    """True if `rest` is in memory as rows, or a kernel of another sum stores it. Else the kernel of
    the norm would become one that stores `rest`."""
    chain = [*makers(fusion.producer, rest, is_recomputable)]
    if any(record in few or record.row.kind is OpKind.REDUCTION for record in chain):
        return True
    if not all(r.op in {"cast", "reshape"} for r in chain):
        return False
    names = {rest, *(name for record in chain for name in names_of(record))}
    (read,) = names.difference(fusion.producer)
    is_row = all(fusion.tensors[n].sizes[-1] == fusion.tensors[rest].sizes[-1] for n in names)
    return is_row and _is_fastest(fusion, read, len(fusion.tensors[read].sizes) - 1)


def _parts(
    fusion: Fusion, readers: Readers, name: str, *, factors: tuple[Operand, ...] = ()
) -> _Scaled | None:
    """The parts of rows, if each block may compute them. Casts between are left out."""
    maker = fusion.producer.get(name)
    if maker is None or maker.op not in ("cast", "mul") or fusion.tensors[name].dtype not in SUMMED:
        return None
    views = {operand: fusion.tensors[operand] for operand in names_of(maker)}
    whole = {operand for operand, view in views.items() if view.sizes == fusion.tensors[name].sizes}
    alone = {o for o in whole if readers[o] == [maker] and o not in fusion.results}
    if maker.op == "cast":
        return _parts(fusion, readers, *alone, factors=factors) if alone else None
    pairs = [(str(a), b) for a, b in (maker.inputs, maker.inputs[::-1]) if a in whole]
    for rest, other in pairs:
        if other in views and (scale := _scale(fusion, str(other), rest)):
            return _Scaled(rest, factors, scale)
    for rest, other in pairs if len(factors) < MOST_FACTORS else ():
        cheap = all(map(is_recomputable, makers(fusion.producer, str(other))))
        if cheap and rest in alone:
            scaled = _parts(fusion, readers, rest, factors=(*factors, other))
            if scaled is not None:
                return scaled
    return None


def _scale(fusion: Fusion, name: str, rest: str) -> str:
    """The value of which `name` is a broadcast, if it has one number for each row of `rest` and is
    computed of sums of rows; or nothing. The rows are cheap to compute, mostly the squares of rest.
    """
    tensors, sizes = fusion.tensors, fusion.tensors[rest].sizes
    rows, ends = prod(sizes[:-1]), {rest, _unrounded(fusion, rest)}

    def is_small(value: str) -> bool:
        return prod(tensors[value].sizes) == rows < sizes[-1]

    def fits(record: OpRecord) -> bool:
        if record.op != "sum":
            operands = names_of(record)
            known = all(is_small(each) and each in fusion.producer for each in operands)
            return known and (record.op in _SPREADS or record.row.kind is OpKind.POINTWISE)
        (source,) = names_of(record)
        inner = makers(fusion.producer, source, lambda record: record.outputs[0] not in ends)
        return (
            tensors[source].sizes == sizes and record.ints("dims") == (len(sizes) - 1,)
            and all(record.outputs[0] in ends or is_recomputable(record) for record in inner)
        )  # fmt: skip

    scale = _spread(fusion, name, is_small, _SPREADS)
    chain = [*makers(fusion.producer, scale, lambda record: record.op != "sum")]
    return scale if any(r.op == "sum" for r in chain) and all(map(fits, chain)) else ""


def _spread(
    fusion: Fusion, name: str, fits: Callable[[str], bool], ops: Set[str] = _BROADCASTS
) -> str:
    """The value that fits, of those that were broadcast or cast to this one; or nothing."""
    while not fits(name):
        maker = fusion.producer.get(name)
        if maker is None or not (maker.op in ops or _is_between_floats(fusion, maker)):
            return ""
        (name,) = names_of(maker)
    return name


def _is_between_floats(fusion: Fusion, record: OpRecord) -> bool:
    """True for a cast that loses digits at most: no cast to integers or to 8 bits."""
    dtypes = {fusion.tensors[name].dtype for name in (*names_of(record), *record.outputs)}
    return record.op == "cast" and dtypes <= SUMMED


def _unrounded(fusion: Fusion, name: str) -> str:
    """The value that was cast to this one, to a type as wide."""
    while (maker := fusion.producer.get(name)) is not None and maker.op == "cast":
        (source,) = names_of(maker)
        if fusion.tensors[source].dtype.bytes > fusion.tensors[name].dtype.bytes:
            return name
        name = source
    return name


def _scale_behind(
    fusion: Fusion, scale: str, product: _RowsAndMatrix, name: str
) -> tuple[list[OpRecord], str]:
    """The records that compute a scale for each result of a product, and its name.

    r = rsqrt(sum(T0: [1, k], dims=[1]))
    ->  T1 = broadcast_in_dim(T0, shape=[1, n, k]); T2 = sum(T1, dims=[2]); r = rsqrt(T2: [1, n])
    """
    sizes, columns = fusion.tensors[product.rows].sizes, fusion.tensors[product.matrix].sizes
    lacking, new = len(sizes) - product.summed, dict[str, str]()
    shape = (*sizes[:lacking], columns[1 - product.summed], *sizes[lacking:])
    kept = tuple(axis for axis in range(len(shape)) if axis != lacking)
    chain = {*makers(fusion.producer, scale, lambda record: record.op != "sum")}
    records = list[OpRecord]()
    for record in filter(chain.__contains__, fusion.exprs):
        (old,), source = record.outputs, str(record.inputs[0])
        if record.op == "sum":
            again = Chain(source, f"{name}.{old}")
            again.add("reshape", new_shape=sizes)
            again.add("broadcast_in_dim", shape=shape, broadcast_dims=kept)
            again.add("sum", dims=(len(sizes) - 1 + product.summed,), keepdim=False)
            records, new[old] = [*records, *again.records], again.last
        elif record.op in _SPREADS:
            new[old] = new[source]
        else:
            new[old] = f"{old}.{name}.scale"
            inputs = tuple(new.get(str(operand), operand) for operand in record.inputs)
            records.append(replace(record, inputs=inputs, outputs=(new[old],)))
    return records, new[scale]


# ---- the records of a product


class _RowsAndMatrix(NamedTuple):
    """The names of its rows and its matrix, the axis of the matrix that it sums, the number of
    rows, and a value by which the matrix [n, k] is multiplied, [n, 1] or one number, or nothing."""

    rows: str
    matrix: str
    summed: int
    height: int
    scale: str = ""


def _product(
    fusion: Fusion, record: OpRecord, most: int, target: Target
) -> _RowsAndMatrix | None:
    """The operands of a product that is to become a sum; None for another record."""
    if record.op not in PRODUCTS:
        return None
    a, b, *bias = names_of(record)
    views = [fusion.tensors[name] for name in (a, b, *bias)]
    sizes = [view.sizes for view in views]
    dtypes = {view.dtype for view in views}
    if len(dtypes) > 1 or not dtypes <= SUMMED or record.attr("streams") is not None:
        return None
    kind = {"is_half": views[0].dtype.is_half, "on_cpu": target.is_cpu}
    if not is_of_few_rows(record.op, sizes[0], sizes[1], most, **kind):
        return None
    if any(shape != sizes[1][:1] for shape in sizes[2:]):
        return None  # the bias has one element, or several axes
    product = _RowsAndMatrix(a, b, 1 if record.op == "linear" else 0, prod(sizes[0][:-1]))
    if record.op == "matmul" and len(sizes[1]) == 1:
        product = _RowsAndMatrix(b, a, 1, 1)
    product = _without_scale(fusion, product)
    behind = makers(fusion.producer, product.matrix, _only_moves)
    if product.height >= FEWEST_ROWS and not all(_is_read(fusion, record) for record in behind):
        return None  # tensor cores need the matrix in memory as it is, or in 8 bits
    return product if _is_fastest(fusion, product.matrix, product.summed) else None


def _is_read(fusion: Fusion, record: OpRecord) -> bool:
    """True for a move, and for a cast of 8 or 16 bits to a wider type: tensor cores need no other
    values in memory."""
    if record.op != "cast":
        return _is_move(record)
    source, wider = (fusion.tensors[name].dtype for name in (*names_of(record), *record.outputs))
    return source in HALVES | NARROW and source.bytes < wider.bytes


def _without_scale(fusion: Fusion, product: _RowsAndMatrix) -> _RowsAndMatrix:
    """The product with the scale of a quantised matrix apart, one number, or one for each row.

    T2 = mul(cast(T0: i8[n, k], BFloat16), T1: bf16[n, 1])  ->  the matrix cast(T0), the scale T1
    """
    tensors, name = fusion.tensors, product.matrix
    while (maker := fusion.producer.get(name)) is not None and _is_between_floats(fusion, maker):
        (name,) = names_of(maker)
    sizes, of_rows = tensors[name].sizes, (tensors[name].sizes[0], 1)
    if maker is None or maker.op != "mul" or product.summed == 0 or len(names_of(maker)) < 2:
        return product

    def is_narrow(name: str) -> bool:
        chain = makers(fusion.producer, name, _only_moves)
        return any(tensors[source].dtype in NARROW for r in chain for source in names_of(r))

    for rest, other in (names_of(maker), names_of(maker)[::-1]):
        scale = _spread(fusion, other, lambda n: prod(s := tensors[n].sizes) == 1 or s == of_rows)
        floats = {tensors[n].dtype for n in (name, rest, other, scale or other)} <= SUMMED
        if scale and floats and tensors[rest].sizes == sizes and is_narrow(rest):
            return product._replace(matrix=rest, scale=scale)
    return product


def _is_fastest(fusion: Fusion, name: str, axis: int) -> bool:
    """True if the elements along an axis of a matrix lie side by side in memory.

    Torch's products of others are as fast: with one row, a weight of 32 MiB takes 12.1 us as two
    kernels of ours and 11.0 in torch, with two rows 15.3 and 10.7 (H200).
    """
    while (maker := fusion.producer.get(name)) is not None and maker.op in ("permute", "cast"):
        axis = maker.ints("dims")[axis] if maker.op == "permute" else axis
        (name,) = names_of(maker)
    if maker is not None:
        return axis == 1
    defined = next(record for record in fusion.definition if name in record.outputs)
    return defined.ints("strides")[axis] == 1


def _summed(
    fusion: Fusion, record: OpRecord, product: _RowsAndMatrix, short: bool | None,
    scaled: _Scaled | None,
) -> list[OpRecord]:
    """The records of the product. short: a CPU adds in Float, as torch does, each lane of a vector
    a part of at most LONGEST products, which are exact. scaled: the parts of the rows, if their
    scale goes behind the sum."""
    rows, matrix, summed, *_ = product
    (name,), sizes = record.outputs, fusion.tensors[rows].sizes
    axes = len(sizes) - 1
    of_rows = Chain(scaled.rest if scaled else rows, f"{name}.rows")
    of_matrix = Chain(matrix, f"{name}.matrix")
    of_rows.add("cast", dtype=DataType.Float)
    for factor in scaled.factors if scaled else ():
        of_rows.add("mul", factor)
    if scaled:
        of_rows.add("reshape", new_shape=sizes)
    lacking = axes + 1 - summed  # of the axes of both, the one that the rows lack
    of_rows.add("broadcast", is_broadcast_dim=tuple(at == lacking for at in range(axes + 2)))
    of_matrix.add("cast", dtype=DataType.Float)
    of_matrix.add("broadcast", is_broadcast_dim=(True,) * axes + (False, False))
    total = Chain(of_rows.last, f"{name}.product")
    total.add("mul", of_matrix.last)
    attrs = {} if short is None else {"short": short}
    total.add("sum", dims=(axes + summed,), keepdim=False, **attrs)
    records = [*of_rows.records, *of_matrix.records]
    if scaled:
        scales, scale = _scale_behind(fusion, scaled.scale, product, name)
        records += scales
        total.add("mul", scale)
    if product.scale:
        behind = Chain(product.scale, f"{name}.scales")
        behind.add("reshape", new_shape=(prod(fusion.tensors[product.scale].sizes),))
        behind.add("broadcast", is_broadcast_dim=(True,) * axes + (False,))
        records += behind.records
        total.add("mul", behind.last)
    for bias in names_of(record)[2:]:
        added = Chain(bias, f"{name}.bias")
        added.add("cast", dtype=DataType.Float)
        if axes:
            added.add("broadcast", is_broadcast_dim=(True,) * axes + (False,))
        records += added.records
        total.add("add", added.last)
    total.add("cast", dtype=fusion.tensors[name].dtype)
    return [*records, *total.named(name)]
