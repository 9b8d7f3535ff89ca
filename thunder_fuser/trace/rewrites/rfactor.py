# SPDX-License-Identifier: Apache-2.0
"""A trace -> the same in which sums over different axes of one tensor share the sums of its rows.

    db = sum(g: f32[8, 256, 32, 32], (0, 2, 3))      the gradient of the bias after a group norm
    ds = sum(h: f32[8, 32, 8, 32, 32], (2, 3, 4))    a sum over each group; h is computed from g
->  t1 = sum(g, (2, 3));  db = sum(t1, (0,))
    t2 = sum(h, (3, 4));  ds = sum(t2, (2,))

One kernel then reads g once for both. presegment/rfactor.py does the same in functions without
gradients, once it knows which ops share a kernel. With a backward, the policy decides that. A sum
in two stages may have other bits, so this pass decides before the policy does: no policy may change
a gradient's bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

from thunder.core import dtypes
from thunder.core.prims import PrimIDs, convert_element_type
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import tracectx

from thunder_fuser.base.union_find import UnionFind
from thunder_fuser.schedule import nested
from thunder_fuser.trace.op import Op, Rules
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import elements_of, makes, reads

Fits = Callable[[int, int, int, int], bool]  # of groups, rows, columns and bytes an element

_SUMMED = {dtypes.bfloat16, dtypes.float16, dtypes.float32, dtypes.float64}
_BYTES = 4  # read for each element: 16 bits of a gradient and 16 bits of an input
MIN_COLUMNS = 24  # of a row: partial results must be a small part of the bytes


def rfactor_sums(prepared: Prepared) -> Prepared:
    """Sums over rows first where gradients need sums over other axes too, if a group fits."""
    if not prepared.has_backward:
        return prepared
    regions: dict[int, list[BoundSymbol]] = {}
    for op in prepared.ops:
        if op.region is not None:
            regions.setdefault(op.region, []).extend(op.leaves)
    fits = partial(nested.fits, target=prepared.target, options=prepared.options)
    columns: dict[str, int] = {}
    for leaves in regions.values():
        columns |= _columns(leaves, fits)
    if not columns:
        return prepared
    with tracectx(prepared.trace):
        return prepared.with_ops(
            part for op in prepared.ops for part in _written(op, columns, prepared.rules)
        )


# ---------------------------------------------------------------------------- which sums


@dataclass(frozen=True, slots=True)
class _Sum:
    """The sizes of a sum's operand, and the axes it sums."""

    sizes: tuple[int, ...]
    dims: tuple[int, ...]

    @staticmethod
    def of(leaf: BoundSymbol) -> _Sum:
        """The sum that a bound symbol computes."""
        sizes = tuple(int(size) for size in leaf.args[0]._shape)
        return _Sum(sizes, tuple(sorted(int(dim) % len(sizes) for dim in leaf.args[1])))

    @property
    def summed(self) -> int:
        """The number of elements that are added for one element of the result."""
        return prod(self.sizes[at] for at in self.dims)

    @property
    def kept(self) -> list[int]:
        """The axes that are not summed."""
        return [at for at in range(len(self.sizes)) if at not in self.dims]

    @property
    def columns(self) -> int:
        """The elements of the last axes, if the sum is over the first and last axes; else 0."""
        kept, last = self.kept, len(self.sizes) - 1
        around = kept and 0 < kept[0] and kept[-1] < last
        if not around or kept != [*range(kept[0], kept[-1] + 1)]:
            return 0
        return prod(self.sizes[kept[-1] + 1 :])

    def inner(self, columns: int) -> tuple[int, ...]:
        """The last axes that have so many elements together, if it sums them all; else none."""
        at = len(self.sizes)
        while at > 0 and prod(self.sizes[at:]) < columns:
            at -= 1
        dims = tuple(range(at, len(self.sizes)))
        return dims if prod(self.sizes[at:]) == columns and set(dims) <= set(self.dims) else ()


def _columns(leaves: Sequence[BoundSymbol], fits: Fits) -> dict[str, int]:
    """For each sum of a region that becomes two, by its result's name: the elements of a row."""
    sums = {leaf.output.name: _Sum.of(leaf) for leaf in leaves if _is_sum(leaf)}
    if not any(each.columns for each in sums.values()):
        return {}
    families = _families(leaves)
    widest: dict[str, int] = {}  # for each value, the most elements of anything computed from it
    for leaf in reversed(leaves):
        most = max((max(elements_of(p), widest.get(p.name, 0)) for p in makes(leaf)), default=0)
        for arg in reads(leaf):
            widest[arg.name] = max(widest.get(arg.name, 0), most)
    # If a result as wide as the operand is computed from a sum, that sum must be complete first:
    # it stays one sum.
    again = {each for name, each in sums.items() if widest.get(name, 0) >= prod(each.sizes)}
    kinds = {
        leaf.output.name: (families.find(leaf.args[0].name), sums[leaf.output.name])
        for leaf in leaves if _is_sum(leaf)
    }  # fmt: skip
    columns: dict[tuple[str, _Sum], int] = {}
    for kind, other in product(dict.fromkeys(kinds.values()), repeat=2):
        (family, over), (family_of_group, group) = kind, other
        if family == family_of_group and over not in again and _nests(over, group, fits):
            columns[kind] = over.columns
            if group.summed > over.columns:
                columns.setdefault(other, over.columns)
    return {name: columns[kind] for name, kind in kinds.items() if kind in columns}


def _nests(over: _Sum, group: _Sum, fits: Fits) -> bool:
    """True if a group is made of whole rows of the other sum, and the nested scheduler takes it."""
    columns, size = over.columns, group.summed
    sums_last_axes = group.dims and group.kept and group.kept[-1] < group.dims[0]
    if columns < MIN_COLUMNS or not sums_last_axes:
        return False
    groups = prod(group.sizes) // size
    outer = prod(over.sizes[: over.kept[0]])
    if size % columns or groups % outer or not group.inner(columns):
        return False
    return size == columns or fits(groups, size // columns, columns, _BYTES)


def _families(leaves: Sequence[BoundSymbol]) -> UnionFind[str]:
    """Joins values of one size if one is computed from the other."""
    families: UnionFind[str] = UnionFind()
    for leaf in leaves:
        if leaf.sym.id is PrimIDs.TRANSPOSE:
            continue
        tensors = (p for p in (*makes(leaf), *reads(leaf)) if isinstance(p, TensorProxy))
        sizes = {tensor.name: elements_of(tensor) for tensor in tensors}
        names = [name for name, size in sizes.items() if size == max(sizes.values())]
        for name in names[1:]:
            families.join(names[0], name)
    return families


def _is_sum(leaf: BoundSymbol) -> bool:
    """True for a sum of floats whose result has the operand's type."""
    if leaf.sym.id is not PrimIDs.SUM or not leaf.args[0]._shape:
        return False
    dtype = dtypes.to_strong_dtype(leaf.args[0].dtype)
    return dtype == dtypes.to_strong_dtype(leaf.output.dtype) and dtype in _SUMMED


# ---------------------------------------------------------------------------- two sums for one


def _written(op: Op, columns: dict[str, int], rules: Rules) -> Iterator[Op]:
    """The op. If it holds such a sum: its primitives, with two sums in place of the one."""
    if not any(_is_sum(leaf) and leaf.output.name in columns for leaf in op.leaves):
        yield op
        return
    for part in rules.apart(op):
        of_sum = columns.get(part.bsym.output.name) if _is_sum(part.bsym) else None
        if of_sum is None:
            yield part
            continue
        for bsym in _two_sums(part.bsym, of_sum):  # with the notes on the sum, as its direction
            noted = bsym.from_bsym(tags=part.bsym.tags, header=part.bsym.header)
            yield rules.known(noted, region=op.region)


def _two_sums(leaf: BoundSymbol, columns: int) -> Iterator[BoundSymbol]:
    """The sums of the rows, in float32 or wider, and the sum of these."""
    whole = _Sum.of(leaf)
    inner = whole.inner(columns)
    outer = tuple(at for at in whole.dims if at not in inner)
    kept = tuple(n for at, n in enumerate(whole.sizes) if at not in inner)
    operand, result = leaf.args[0], leaf.output
    wide = dtypes.float32 if operand.dtype.bytes < 4 else dtypes.to_strong_dtype(operand.dtype)
    if operand.dtype.bytes < 4:
        narrow, operand = operand, TensorProxy(like=operand, dtype=wide)
        yield convert_element_type.bind(narrow, wide, output=operand)
    rows = TensorProxy(like=operand, shape=kept)
    yield leaf.sym.bind(operand, inner, output=rows)
    if result.dtype.bytes == wide.bytes:
        yield leaf.sym.bind(rows, outer, output=result)
        return
    total = TensorProxy(like=result, dtype=wide)
    yield leaf.sym.bind(rows, outer, output=total)
    yield convert_element_type.bind(total, result.dtype, output=result)
