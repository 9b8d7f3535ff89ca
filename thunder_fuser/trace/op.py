# SPDX-License-Identifier: Apache-2.0
"""A trace -> its Ops: the facts that every pass asks of a bound symbol, read once.

    t3 = softmax(t1, 1)  ->  Op(bsym, leaves=(amax, sub, exp, sum, div), reads=(t1,), makes=(t3,))
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.symbol import BoundSymbol, BoundSymbolTag

from thunder_fuser.trace.proxies import VIEWS, NameTuple, makes, parts, reads, shared_by, written_by

Kinds = frozenset[PrimIDs | str]
MOST_OPS = 256  # of a region that others may join


@dataclass(frozen=True, slots=True)
class Reject:
    """Why a bound symbol stays with torch."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Rules:
    """The executor's functions of a bound symbol.

    refuse: why it stays with torch, or None; leaves: the primitives of a fusible one; place: its
    device and mesh.
    """

    refuse: Callable[[BoundSymbol], Reject | None]
    leaves: Callable[[BoundSymbol], Iterable[BoundSymbol]]
    place: Callable[[BoundSymbol], Hashable]

    def op(self, bsym: BoundSymbol) -> Op:
        """The Op of a bound symbol."""
        return self.known(bsym, self.refuse(bsym))

    def rewritten(self, op: Op, bsym: BoundSymbol) -> Op:
        """The Op with another bound symbol, which does the same computation on other operands."""
        return op if bsym is op.bsym else self.known(bsym, op.refusal, op.region)

    def apart(self, op: Op) -> Iterator[Op]:
        """The primitives of a fusible Op, with its tags and in its region."""
        for leaf in op.leaves:
            yield self.known(leaf.from_bsym(tags=leaf.tags | op.bsym.tags), region=op.region)

    def reading(self, op: Op, swaps: Mapping[Variable, Proxy]) -> Op:
        """The Op with other names of the same values as operands."""
        if not any(variableify(proxy) in swaps for proxy in op.reads):
            return op
        return self.rewritten(op, op.bsym.from_bsym_swap_proxies(swaps, skip_output=True))

    def known(
        self, bsym: BoundSymbol, refusal: Reject | None = None, region: int | None = None
    ) -> Op:
        """The Op of a bound symbol whose refusal is already known; None means fusible."""
        fusible = refusal is None
        return Op(
            bsym,
            tuple(self.leaves(bsym)) if fusible else (bsym,),
            tuple(reads(bsym)),
            tuple(makes(bsym)),
            refusal,
            BoundSymbolTag.BACKWARD in bsym.tags,
            self.place(bsym) if fusible else None,
            frozenset(part.sym.id for part in parts(bsym)),
            tuple(written_by(bsym)),
            tuple(shared_by(bsym, in_torch=not fusible)),
            region,
        )


@dataclass(frozen=True, slots=True)
class Op:
    """A bound symbol of a trace, and the facts that follow from it.

    leaves: its primitives, or itself if torch runs it; reads and makes: its operands and results;
    refusal: why torch runs it, None if it can be fused; place: where a fusible one computes; kinds:
    the ids of the primitives it consists of; writes: the tensors it writes in place, under their
    old and new names; shares: names that may share memory; region: the number of its region, None
    before the partition and for what torch runs.
    """

    bsym: BoundSymbol
    leaves: tuple[BoundSymbol, ...]
    reads: tuple[Proxy, ...]
    makes: tuple[Proxy, ...]
    refusal: Reject | None
    is_backward: bool
    place: Hashable
    kinds: Kinds
    writes: tuple[NameTuple, ...] = ()
    shares: tuple[NameTuple, ...] = ()
    region: int | None = None
    read_names: NameTuple = field(init=False, repr=False)
    made_names: NameTuple = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "read_names", (*[proxy.name for proxy in self.reads],))
        object.__setattr__(self, "made_names", (*[proxy.name for proxy in self.makes],))

    @property
    def is_fusible(self) -> bool:
        return self.refusal is None

    @property
    def is_view(self) -> bool:
        """True if all its leaves are views, which need no kernel."""
        return all(leaf.sym.id in VIEWS for leaf in self.leaves)

    @property
    def widens(self) -> bool:
        """True for nothing but a cast whose result has more bytes than its operand."""
        (leaf, *more) = self.leaves
        if more or leaf.sym.id is not PrimIDs.CONVERT_ELEMENT_TYPE:
            return False
        source, result = leaf.args[0], leaf.output
        both = isinstance(source, TensorProxy) and isinstance(result, TensorProxy)
        return both and source.dtype.bytes < result.dtype.bytes

    @property
    def is_return(self) -> bool:
        return self.bsym.sym.id is PrimIDs.RETURN

    @property
    def in_backward(self) -> bool:
        """True for an op of the backward; get_grad only names a value of the forward."""
        return self.is_backward and self.bsym.sym.id is not PrimIDs.GET_GRAD

    def only(self, kinds: Kinds) -> bool:
        """True if it consists of primitives of these kinds."""
        return self.kinds <= kinds

    def reads_any(self, names: Set[str]) -> bool:
        return not names.isdisjoint(self.read_names)

    def makes_any(self, names: Set[str]) -> bool:
        return not names.isdisjoint(self.made_names)

    def in_region(self, region: int | None) -> Op:
        return replace(self, region=region)


def alike(op: Op, other: Op) -> bool:
    """True if two fusible ops may be in one region: direction and place are the same."""
    return op.is_backward == other.is_backward and op.place == other.place
