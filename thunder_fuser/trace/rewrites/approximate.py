# SPDX-License-Identifier: Apache-2.0
"""A trace -> the same in which each function that may be less exact carries a tag.

    t3 = exp(t2)                   APPROXIMATE: all that is computed from t3 is rounded to 16 bits
    t5 = mul(t4, t3)
    y  = convert(t5, bf16)

On a GPU an approximate exp takes 2 instructions instead of 10, a tanh 7 instead of 17, an erf 18
instead of 30, and a division 1 instead of some 10 and a branch. A kernel could judge this from its
own results. But which results it has depends on what is recomputed, and a recomputed value must
have the same bits as the first. So this pass tags the values of forward and backward at once,
before the cut is chosen; copies keep the tag.

An exp may be approximate if everything computed from it ends in 16-bit floats. It may also be if it
is exp(x - max(x)) and is only summed: beside the largest term, which is 1, a term e^-t adds an
error of 2 + t units times e^-t to the sum. A tanh needs more: only 1 + tanh or tanh * tanh may read
it, as in gelu and its gradient, since its error is as large as that of a number near 1. So does an
erf: only 1 + erf or 0.5 + 0.5 * erf. So may a soft cap before a softmax, exp(c * tanh(x) - y): an
error of the exponent is a relative one of the result. The logsumexp of capped 16-bit logits is a
float32, and has that error too, 2^-17 at most: the logits have one of 2^-9 themselves. A division
may be a multiplication by the reciprocal if the divisor is a number (but a mean is exact: what is
near it is subtracted), or if it is the sigmoid.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum, auto
from typing import Any

from thunder.core import dtypes
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import SIXTEEN_BITS, makes, reads

_SAME = frozenset({PrimIDs.SHALLOW_COPY, PrimIDs.BROADCAST_IN_DIM})
_SUMS = frozenset({PrimIDs.ADD, PrimIDs.SUB})
_DIFFERENCES = frozenset({PrimIDs.SUB, PrimIDs.NEG})
_LARGEST_CAP = 64  # its tanh adds an error of 2^-17 to the exponent, as an approximate exp has


class Approximation(Enum):
    """A tag of bound symbols."""

    APPROXIMATE = auto()


def tag_approximate(prepared: Prepared) -> Prepared:
    """Tags ops whose approximate form is as good for results of 16 bits."""
    users = _Uses([(leaf, op.is_fusible) for op in prepared.ops for leaf in op.leaves])
    ops: list[Op] = []
    for op in prepared.ops:
        if len(op.leaves) == 1 and users.may_be_approximate(op.leaves[0]):
            (leaf,) = op.leaves  # in place of a composite of this primitive alone
            op = prepared.rules.rewritten(op, _tagged(leaf, op.bsym.tags))
        ops.append(op)
    return prepared.with_ops(ops)


def tagged_leaves(leaves: Sequence[BoundSymbol], results: Collection[str]) -> list[BoundSymbol]:
    """The primitives of one region, tagged by the same rule. results: the values it returns."""
    users = _Uses([(leaf, True) for leaf in leaves], results)
    return [_tagged(leaf) if users.may_be_approximate(leaf) else leaf for leaf in leaves]


def _tagged(leaf: BoundSymbol, others: Collection[Any] = ()) -> BoundSymbol:
    return leaf.from_bsym(tags=leaf.tags | {*others, Approximation.APPROXIMATE})


class _Uses:
    """The maker and the readers of each value, and the values that are needed in full precision."""

    def __init__(
        self, leaves: Sequence[tuple[BoundSymbol, bool]], results: Collection[str] = ()
    ) -> None:
        """leaves: with whether a fusion may have them. results: what is read behind all."""
        self.maker = {out.name: leaf for leaf, _ in leaves for out in makes(leaf)}
        self.readers: dict[str, list[BoundSymbol]] = {}
        self.exact, needed = set(results), set(results)
        for leaf, can in reversed(leaves):
            outs = makes(leaf)
            if leaf.sym.id is PrimIDs.GET_GRAD or (
                can and needed.isdisjoint(out.name for out in outs)
            ):
                continue
            names = dict.fromkeys(proxy.name for proxy in reads(leaf))
            needed.update(names)
            for name in names:
                self.readers.setdefault(name, []).append(leaf)
            if not can or any(map(self._in_full, outs)):
                self.exact.update(names)

    def _in_full(self, out: Proxy) -> bool:
        """True for floats of which more than 16 bits count, and for all other types."""
        if not isinstance(out, TensorProxy) or not dtypes.is_float_dtype(out.dtype):
            return True
        return out.name in self.exact and out.dtype not in SIXTEEN_BITS

    def may_be_approximate(self, leaf: BoundSymbol) -> bool:
        rule = _RULES.get(leaf.sym.id)
        if rule is None or not isinstance(leaf.output, TensorProxy):
            return False
        if self._in_full(leaf.output):
            fits = {PrimIDs.EXP: self._is_only_summed, PrimIDs.TANH: self._caps_logits}
            return leaf.sym.id in fits and fits[leaf.sym.id](leaf)
        return rule(self, leaf)

    def all_read(self, value: Proxy, *allowed: Callable[[_Uses, BoundSymbol], bool]) -> bool:
        """True if each reader of the value is one of these."""
        readers = self.readers.get(value.name, [])
        return all(any(fits(self, reader) for fits in allowed) for reader in readers)

    def is_one_plus_exp(self, value: Any) -> bool:
        """True for 1 + exp(x)."""
        add = self._made_by(value, PrimIDs.ADD)
        return add is not None and _adds(1)(self, add) and any(
            self._made_by(arg, PrimIDs.EXP) is not None for arg in add.args
        )

    def _fades(self, exp: BoundSymbol) -> bool:
        """True for exp(x - max(x, dims)) whose only use is its sum over the same dims."""
        dims = self._dims_of_subtracted_max(exp)
        sums = [
            reader.sym.id is PrimIDs.SUM and tuple(reader.args[1]) == dims
            for reader in self._final_readers(exp.output)
        ]
        return dims is not None and bool(sums) and all(sums)

    def _caps_logits(self, tanh: BoundSymbol) -> bool:
        """True for c * tanh(x) of 16-bit x, of which only the maximum and sums of exponentials are
        taken."""
        caps = [*self._final_readers(tanh.output)]
        are_caps = bool(caps) and all(_is_cap(mul) and self._ends_in_sums(mul) for mul in caps)
        return are_caps and self._has_16_bits(tanh.args[0])

    def _ends_in_sums(self, bsym: BoundSymbol) -> bool:
        return all(
            reader.sym.id is PrimIDs.AMAX
            or (reader.sym.id is PrimIDs.EXP and self._is_summed(reader))
            or (reader.sym.id in _DIFFERENCES and self._ends_in_sums(reader))
            for reader in self._final_readers(bsym.output)
        )

    def _is_only_summed(self, exp: BoundSymbol) -> bool:
        """True for exp(x - max(x)), or of capped logits, of which only sums are taken."""
        return self._fades(exp) or (self._is_summed(exp) and self._is_capped(exp.args[0]))

    def _is_summed(self, exp: BoundSymbol) -> bool:
        readers = [*self._final_readers(exp.output)]
        return bool(readers) and all(reader.sym.id is PrimIDs.SUM for reader in readers)

    def _is_capped(self, value: Any) -> bool:
        """True for c * tanh(x) of 16-bit x, or its difference from another value."""
        maker = self.maker.get(self._same(value))
        if maker is None:
            return False
        if maker.sym.id in _DIFFERENCES:
            return any(self._is_capped(arg) for arg in maker.args)
        (factor, *_) = reads(maker) or (None,)
        tanh = self._made_by(factor, PrimIDs.TANH)
        return _is_cap(maker) and tanh is not None and self._has_16_bits(tanh.args[0])

    def _has_16_bits(self, value: Any) -> bool:
        """True for a cast from a 16-bit float, or such a cast times or over a number."""
        maker = self.maker.get(getattr(value, "name", ""))
        if maker is None or not isinstance(maker.args[0], TensorProxy):
            return False
        if maker.sym.id is PrimIDs.CONVERT_ELEMENT_TYPE:
            return maker.args[0].dtype in SIXTEEN_BITS
        scales = maker.sym.id in (PrimIDs.MUL, PrimIDs.DIV) and not isinstance(maker.args[1], Proxy)
        return scales and self._has_16_bits(maker.args[0])

    def _final_readers(self, value: Proxy) -> Iterator[BoundSymbol]:
        for reader in self.readers.get(value.name, []):
            if reader.sym.id is PrimIDs.SHALLOW_COPY:
                yield from self._final_readers(reader.output)
            else:
                yield reader

    def _dims_of_subtracted_max(self, exp: BoundSymbol) -> tuple[int, ...] | None:
        """The dims of exp(x - max(x, dims)) or exp(-(max(x, dims) - x))."""
        negated = self._made_by(exp.args[0], PrimIDs.NEG)
        difference = self._made_by(exp.args[0] if negated is None else negated.args[0], PrimIDs.SUB)
        if difference is None:
            return None
        x, most = difference.args if negated is None else reversed(difference.args)
        maximum = self._made_by(most, PrimIDs.AMAX)
        if maximum is None or self._same(maximum.args[0]) != self._same(x):
            return None
        return tuple(maximum.args[1])

    def _made_by(self, value: Any, kind: PrimIDs) -> BoundSymbol | None:
        """The maker of a value if it is of this kind; copies and broadcasts are looked through."""
        maker = self.maker.get(self._same(value))
        return maker if maker is not None and maker.sym.id is kind else None

    def _same(self, value: Any) -> str:
        """The name of the value that this one copies or broadcasts; else its own name."""
        name = getattr(value, "name", "")
        maker = self.maker.get(name)
        if maker is None or maker.sym.id not in _SAME:
            return name
        return self._same(maker.args[0])


def _adds(number: float) -> Callable[[_Uses, BoundSymbol], bool]:
    """A function that is true for x + number."""
    return lambda users, bsym: bsym.sym.id is PrimIDs.ADD and _has_number(bsym, number)


def _has_number(bsym: BoundSymbol, number: float) -> bool:
    return any(isinstance(arg, (int, float)) and arg == number for arg in bsym.args)


def _squares(users: _Uses, bsym: BoundSymbol) -> bool:
    lhs, *rhs = reads(bsym)
    return bsym.sym.id is PrimIDs.MUL and [proxy.name for proxy in rhs] == [lhs.name]


def _caps_before_exp(users: _Uses, bsym: BoundSymbol) -> bool:
    """True for c * x if only exponentials are computed from it, with or without sums between."""
    return _is_cap(bsym) and users.all_read(bsym.output, _ends_in_exp)


def _is_cap(bsym: BoundSymbol) -> bool:
    """True for c * x with a number c that is no larger than caps of logits are."""
    factors = [arg for arg in bsym.args if isinstance(arg, (int, float))]
    return bsym.sym.id is PrimIDs.MUL and len(factors) == 1 and abs(factors[0]) <= _LARGEST_CAP


def _ends_in_exp(users: _Uses, bsym: BoundSymbol) -> bool:
    if bsym.sym.id in _SUMS:
        return users.all_read(bsym.output, _ends_in_exp)
    return bsym.sym.id is PrimIDs.EXP


def _halves_before_half(users: _Uses, bsym: BoundSymbol) -> bool:
    """True for 0.5 * x if only 0.5 + 0.5 * x reads it."""
    is_half = bsym.sym.id is PrimIDs.MUL and _has_number(bsym, 0.5)
    return is_half and users.all_read(bsym.output, _adds(0.5))


def _multiplies(users: _Uses, division: BoundSymbol) -> bool:
    """True if the division may be a multiplication by the reciprocal."""
    dividend, divisor = division.args
    if isinstance(divisor, Proxy):
        return not isinstance(dividend, Proxy) and dividend == 1 and users.is_one_plus_exp(divisor)
    return bool(divisor) and users._made_by(dividend, PrimIDs.SUM) is None


_RULES: dict[Any, Callable[[_Uses, BoundSymbol], bool]] = {
    PrimIDs.DIV: _multiplies,
    PrimIDs.ERF: lambda users, erf: users.all_read(erf.output, _adds(1), _halves_before_half),
    PrimIDs.EXP: lambda users, exp: True,
    PrimIDs.RECIPROCAL: lambda users, division: users.is_one_plus_exp(division.args[0]),
    PrimIDs.TANH: lambda users, tanh: users.all_read(
        tanh.output, _adds(1), _squares, _caps_before_exp
    ),
}
