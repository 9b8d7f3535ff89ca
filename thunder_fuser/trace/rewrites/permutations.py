# SPDX-License-Identifier: Apache-2.0
"""The gradient of rows that were taken in a new order is taken in the old order, and not scattered.

    order: i64[64] = sort(experts)[1]                          a permutation, as argsort gives
    back = empty; back[order] = arange(64)                     its inverse
    x = take(h: f32[16, 8], floor_divide(order, 4), 0)         each row of h is taken four times

    dh = embedding_backward(dx, floor_divide(order, 4), 16)
->  dh = sum(reshape(take(dx, back, 0), (16, 4, 8)), (1,))

    dx = embedding_backward(dy, back, 64)  ->  dx = take(dy, order, 0)
    dw = index_add(zeros, order, dv, 0)    ->  dw = take(dv, back, 0)

So does a mixture of experts sort its tokens. Torch's embedding_backward sorts the indices again,
and adds the rows in two passes; a take is part of a kernel. If the trace does not compute the
inverse, the backward does. An index that the pass cannot follow to a permutation is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from thunder.core import dtypes, prims
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import tracectx

from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import COPIES, FENCES, makes, parts, renamed_by

_SCATTERS = frozenset({PrimIDs.EMBEDDING_BACKWARD, PrimIDs.INDEX_ADD})
_SORTS = frozenset({PrimIDs.SORT, "torch.argsort", "sort", "argsort"})
_SETS = frozenset({PrimIDs.COPY_WITH_SETITEM, "copy_with_setitem_impl"})


@dataclass(frozen=True, slots=True)
class _Taken:
    """An index tensor: floor(permutation / every), where the permutation has `size` elements."""

    permutation: Proxy
    size: int
    every: int = 1

    @property
    def rows(self) -> int:
        """The rows that it takes, each `every` times; 0 if some are taken less often."""
        return 0 if self.size % self.every else self.size // self.every


# What else may be known of a tensor's elements.
_ZERO, _COUNTS, _UNWRITTEN = "zero", "0, 1, 2, ...", "never written"
Fact = _Taken | str | None


def take_in_old_order(prepared: Prepared) -> Prepared:
    """Takes rows by the inverse of a permutation, instead of scattering them."""
    if not any(op.kinds & _SCATTERS for op in prepared.ops):
        return prepared
    facts = _IndexFacts()
    with tracectx(prepared.trace):
        return prepared.with_ops(
            part for op in prepared.ops for part in _rewritten(op, facts, prepared)
        )


def _rewritten(op: Op, facts: _IndexFacts, prepared: Prepared) -> Iterator[Op]:
    facts.read(op)
    scatter = op.leaves[0]
    taken = facts.of_scatter(scatter) if len(op.leaves) == 1 else None
    if taken is None:
        yield op
        return
    bsyms = [*facts.inverse(taken)]
    g = scatter.args[2] if scatter.sym.id is PrimIDs.INDEX_ADD else scatter.args[0]
    bsyms += _taken_back(g, taken, facts.inverses[taken.permutation.name], scatter.output)
    tags = scatter.tags | op.bsym.tags
    for bsym in bsyms:
        yield prepared.rules.op(bsym.from_bsym(tags=tags, header=op.bsym.header))


def _taken_back(
    g: TensorProxy, taken: _Taken, inverse: Proxy, result: TensorProxy
) -> Iterator[BoundSymbol]:
    """The bound symbols that compute the result from the gradient of the rows taken."""
    if taken.every == 1:
        yield prims.take.bind(g, inverse, 0, output=result)
        return
    rows = TensorProxy(like=g)
    yield prims.take.bind(g, inverse, 0, output=rows)
    sizes = (taken.rows, taken.every, *g._shape[1:])
    groups = TensorProxy(like=g, shape=sizes)
    yield prims.reshape.bind(rows, sizes, output=groups)
    if g.dtype.bytes >= dtypes.float32.bytes:
        yield prims.sum.bind(groups, (1,), output=result)
        return
    wide = TensorProxy(like=groups, dtype=dtypes.float32)
    total = TensorProxy(like=result, dtype=dtypes.float32)
    yield prims.convert_element_type.bind(groups, dtypes.float32, output=wide)
    yield prims.sum.bind(wide, (1,), output=total)
    yield prims.convert_element_type.bind(total, result.dtype, output=result)


# ---- what is known of the elements of index tensors


@dataclass(slots=True)
class _IndexFacts:
    """What is known of each tensor by its name, and the inverses of permutations.

    written: the results of the last in-place copy, the only names whose value a fence keeps.
    visible: the names that ops make, as against those inside a composite. inverted: for the name of
    a permutation, the vector that it is the inverse of, in which an index may be negative.
    """

    of: dict[str, Fact] = field(default_factory=dict)
    inverses: dict[str, Proxy] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    visible: set[str] = field(default_factory=set)
    inverted: dict[str, TensorProxy] = field(default_factory=dict)

    def read(self, op: Op) -> None:
        """Notes what the results of an op are."""
        self.visible.update(op.made_names)
        for part in parts(op.bsym):
            identity = part.sym.id
            if identity in COPIES or identity in FENCES:
                self._rename(part)
            elif identity in _SORTS:
                self._sort(part)
            elif identity in _SETS:
                self._set(part)
            elif identity is PrimIDs.EMPTY:
                self.of[part.output.name] = _UNWRITTEN
                self.written.add(part.output.name)
            elif identity in _RULES and isinstance(part.output, TensorProxy):
                self.of[part.output.name] = _RULES[identity](self, *part.args, **part.kwargs)

    def find(self, value: Any) -> Fact:
        """What is known of an operand."""
        if isinstance(value, Proxy):
            return self.of.get(value.name)
        return _ZERO if isinstance(value, (int, float)) and value == 0 else None

    def of_scatter(self, bsym: BoundSymbol) -> _Taken | None:
        """What is taken, if the scatter adds the gradients of all rows of a permutation."""
        if bsym.sym.id is PrimIDs.EMBEDDING_BACKWARD:
            g, index, rows, padding, scaled, sparse = bsym.args
            fits = padding == -1 and not scaled and not sparse
        elif bsym.sym.id is PrimIDs.INDEX_ADD:
            zeros, index, g, dim = bsym.args
            fits, rows = self.find(zeros) == _ZERO and dim == 0, zeros._shape[0]
        else:
            return None
        taken = self.find(index)
        if not fits or not isinstance(taken, _Taken) or taken.rows != rows:
            return None
        is_float = bsym.output.dtype == g.dtype and dtypes.is_float_dtype(g.dtype)
        return taken if is_float and taken.permutation.name in self.visible else None

    def inverse(self, taken: _Taken) -> Iterator[BoundSymbol]:
        """What computes the inverse, unless the trace already does."""
        order = taken.permutation
        known = self.inverses.get(order.name)
        if known is not None and known.name in self.visible:
            return
        back = TensorProxy(like=order)
        self._are_inverse(order, back)
        self.visible.add(back.name)
        inverted = self.inverted.get(order.name)
        if inverted is None:  # back[order] = 0, 1, 2, ...
            counts = TensorProxy(like=order)
            kind = {"device": order.device, "dtype": dtypes.int64}
            yield prims.iota.bind(taken.size, start=0, step=1, **kind, output=counts)
            yield prims.scatter.bind(order, order, counts, 0, output=back)
            return
        below, size = TensorProxy(like=order, dtype=dtypes.bool8), TensorProxy(like=order)
        yield prims.lt.bind(inverted, 0, output=below)
        yield prims.where.bind(below, taken.size, 0, output=size)
        yield prims.add.bind(inverted, size, output=back)

    def _rename(self, bsym: BoundSymbol) -> None:
        """A copy gives its result the value of its source. A fence keeps that of the last copy."""
        is_copy = bsym.sym.id in COPIES
        for operand, result in renamed_by(bsym):
            known = self.of.get(operand.name) if is_copy or operand.name in self.written else None
            if known != _UNWRITTEN:
                known = _converted(self, operand, result.dtype) if known else None
            inverse = self.inverses.get(operand.name)
            if isinstance(known, _Taken) and known.permutation.name == operand.name:
                known = replace(known, permutation=result)
                if inverse is not None:  # from here on, the trace may read the new name alone
                    self._are_inverse(inverse, result)
                if operand.name in self.inverted:
                    self.inverted[result.name] = self.inverted[operand.name]
            self.of[result.name] = known
        if is_copy:
            self.written = {result.name for result in makes(bsym)}

    def _sort(self, bsym: BoundSymbol) -> None:
        """The order of a vector; that of a permutation, from the least on, is its inverse."""
        order = makes(bsym)[-1]
        if len(order._shape) != 1 or type(order._shape[0]) is not int:
            return
        self.of[order.name] = _Taken(order, order._shape[0])
        known = self.find(bsym.args[0])
        descends = any([*bsym.args[2:3], bsym.kwargs.get("descending")])
        if isinstance(known, _Taken) and known.every == 1 and not descends:
            self._are_inverse(known.permutation, order)

    def _set(self, bsym: BoundSymbol) -> None:
        """y[order] = 0, 1, 2, ...: y is the inverse of the order.

        An order of which nothing is known must be a permutation too if nothing was written to y
        before: y would else keep elements that have no value.
        """
        before, order, counts = bsym.args
        result, known = bsym.output, self.find(order)
        if self.find(counts) != _COUNTS or not isinstance(order, TensorProxy):
            return
        if not result._shape == counts._shape == order._shape or not _is_wide(result.dtype):
            return
        if known is None and self.find(before) == _UNWRITTEN and _is_wide(order.dtype):
            self.of[result.name] = _Taken(result, result._shape[0])
            self.inverted[result.name] = order
        elif isinstance(known, _Taken) and known.every == 1:
            self.of[result.name] = _Taken(result, known.size)
            self._are_inverse(known.permutation, result)

    def _are_inverse(self, order: Proxy, back: Proxy) -> None:
        self.inverses[order.name] = back
        self.inverses[back.name] = order


def _is_negative(facts: _IndexFacts, a: Any, bound: Any = 0) -> Fact:
    return _ZERO if isinstance(facts.find(a), _Taken) and facts.find(bound) == _ZERO else None


def _plus(facts: _IndexFacts, a: Any, b: Any) -> Fact:
    return facts.find(a) if facts.find(b) == _ZERO else None


def _divided(facts: _IndexFacts, a: Any, b: Any) -> Fact:
    known = facts.find(a)
    if not isinstance(known, _Taken) or type(b) is not int or b < 1:
        return None
    return replace(known, every=known.every * b)


def _converted(facts: _IndexFacts, a: Any, dtype: Any) -> Fact:
    known = facts.find(a)
    return known if known == _ZERO or _is_wide(dtype) else None


def _is_wide(dtype: Any) -> bool:
    """True for int64: in a narrower type, numbers may have wrapped around."""
    return dtypes.to_strong_dtype(dtype) is dtypes.int64


_RULES: Mapping[Any, Any] = {
    PrimIDs.ADD: _plus,
    PrimIDs.BITWISE_AND: lambda facts, a, b: (
        _ZERO if _ZERO in (facts.find(a), facts.find(b)) else None
    ),
    PrimIDs.CONVERT_ELEMENT_TYPE: _converted,
    PrimIDs.DIV: _divided,
    PrimIDs.FULL: lambda facts, shape, fill_value=None, **_: facts.find(fill_value),
    PrimIDs.IOTA: lambda facts, length, *, start, step, dtype, **_: (
        _COUNTS if (start, step) == (0, 1) and _is_wide(dtype) else None
    ),
    PrimIDs.LT: _is_negative,
    PrimIDs.NE: lambda facts, a, b: _ZERO if facts.find(a) == facts.find(b) == _ZERO else None,
    PrimIDs.SHALLOW_COPY: lambda facts, a: facts.find(a),
    PrimIDs.SIGNBIT: _is_negative,
    PrimIDs.SUB: _plus,
    PrimIDs.WHERE: lambda facts, condition, a, b: (
        facts.find(b) if facts.find(condition) == _ZERO else None
    ),
}
