# SPDX-License-Identifier: Apache-2.0
"""A joint trace and a policy -> the trace whose backward reads from the forward what is kept.

    t1 = convert(x, f32)          kept by Thunder's rules: t1 and t2, 8 bytes an element
    t2 = tanh(t1)
    y  = convert(t2, bf16)
    g  = get_grad(y)              kept now: x, 2 bytes
    t3 = f(g, t1, t2)         ->  t1r = convert(x, f32); t2r = tanh(t1r); t3 = f(g, t1r, t2r)

Every run of neighbouring ops of the backward that can be fused makes again what it reads itself,
so that nothing made again lives from one region to the next.

Never made again: what no region takes (matrix products, attention, convolutions, collectives, all
that torch runs); reductions and scans, but over axes of size 1; random numbers without an explicit
state; what reads a tensor that is written in place; and what carries Thunder's tags against it.
What Thunder itself repeats for torch.utils.checkpoint is the backward's own by now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import compress
from math import prod

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.pytree import tree_iter
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace, tracectx

from thunder_fuser.ir.op_table import OPS
from thunder_fuser.rematerialization.cost import Machine
from thunder_fuser.rematerialization.plan import Facts, Operation, Plan, Value, plan
from thunder_fuser.rematerialization.policy import RANDOM, STORED, VIEW, WRITTEN, Policy, Tags
from thunder_fuser.rematerialization.proxies import makes, reads
from thunder_fuser.rematerialization.sharing import VIEWS, proxies, written_in_place

Supported = Callable[[BoundSymbol], bool]
Leaves = Callable[[BoundSymbol], Iterable[BoundSymbol]]

_DRAWN = frozenset({"random_uniform", "random_normal", PrimIDs.UNIFORM_PHILOX})
_STATEFUL = frozenset({PrimIDs.UNIFORM, PrimIDs.RANDN})
_NO_REPEAT = frozenset(
    {
        OpTags.REDUCTION_OP, OpTags.DONT_RECOMPUTE_IN_BACKWARD, OpTags.MATMUL_OP,
        OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD, OpTags.IN_PLACE, OpTags.DEVICE_SYNC_OP,
    }
)  # fmt: skip
_SCANS = frozenset({"torch.cumsum", PrimIDs.ARGMAX, PrimIDs.ARGMIN, PrimIDs.VAR_MEAN})
# Where a primitive's name is not that of its row in ir/op_table.py; any other missing one costs 1.
_NAMES = {"convert_element_type": "cast", "random_uniform": "uniform", "random_normal": "normal"}


@dataclass(frozen=True)
class Remade:
    """What became of a trace: the plan, and for each value made again the names of its copies.

    kinds: type and shape of what is kept or made again, as in "bf16[2, 16]"; stages: the policy's.
    """

    facts: Facts
    plan: Plan
    copies: dict[str, tuple[str, ...]]
    kinds: dict[str, str]
    stages: int


def rematerialized(
    trace: TraceCtx, policy: Policy, machine: Machine, supported: Supported, leaves_of: Leaves
) -> tuple[TraceCtx, Remade | None]:
    """The trace with the policy's cut made; unchanged, and None, if it has no backward.

    supported: whether a bound symbol can be fused; leaves_of: the primitives of one that can.
    """
    if not any(map(is_backward, trace.bound_symbols)):
        return trace, None
    reading = Reading(trace.bound_symbols, supported, leaves_of)
    facts = reading.facts()
    decided = plan(facts, policy, machine)
    again = {value.name for at in decided.again for value in facts.operations[at].outputs}
    again -= set(decided.kept)
    new = from_trace(trace)
    copies: dict[str, list[str]] = {}
    new.bound_symbols = [*_Writer(new, reading, again, copies).bsyms()]
    new.set_provenance(TraceProvenance(f"Rematerialization by the policy {decided.policy}"))
    made = {name: tuple(names) for name, names in copies.items()}
    return new, Remade(facts, decided, made, reading.kinds({*decided.kept, *made}), policy.stages)


def is_backward(bsym: BoundSymbol) -> bool:
    """True for what runs in the backward."""
    return BoundSymbolTag.BACKWARD in bsym.tags


# ------------------------------------------------------------------------------ a trace as facts


class Reading:
    """The bound symbols of a joint trace, which of them can be fused, and what follows of that."""

    def __init__(
        self, bsyms: Sequence[BoundSymbol], supported: Supported, leaves_of: Leaves
    ) -> None:
        self.bsyms, self.fusible = bsyms, [supported(bsym) for bsym in bsyms]
        self.runs = runs_of(bsyms, self.fusible)
        self._leaves_of = leaves_of

    def leaves(self, at: int) -> tuple[BoundSymbol, ...]:
        """The primitives of the bound symbol at a place, itself if it cannot be fused."""
        bsym = self.bsyms[at]
        return tuple(self._leaves_of(bsym)) if self.fusible[at] else (bsym,)

    @property
    def groups(self) -> Iterator[tuple[BoundSymbol, ...]]:
        """Those of each bound symbol, in order."""
        return map(self.leaves, range(len(self.bsyms)))

    @cached_property
    def forward(self) -> list[BoundSymbol]:
        """What runs in the forward, without the return."""
        return [b for b in self.bsyms if not is_backward(b) and not _is_return(b)]

    @cached_property
    def maker(self) -> dict[str, BoundSymbol]:
        """Of each result of the forward, what makes it."""
        return {out.name: b for b in self.forward for out in makes(b)}

    @cached_property
    def written(self) -> set[str]:
        """Tensors that are written in place, and what may share their memory."""
        return written_in_place(self.bsyms)

    def facts(self) -> Facts:
        """The forward, and what the backward needs of it."""
        returned = _gradients(self.bsyms[-1])
        needed = set(returned)
        for bsym in self.bsyms:
            if is_backward(bsym) and bsym.sym.id is not PrimIDs.GET_GRAD:
                needed.update(proxy.name for proxy in reads(bsym))
        read = _Read(self, needed, returned)
        operations: list[Operation] = []
        given: dict[str, int] = {}
        for at, bsym in enumerate(self.bsyms):
            if is_backward(bsym) or _is_return(bsym):
                continue
            if bsym.sym.id in _GIVERS:
                given.update((p.name, _bytes(p)) for p in makes(bsym))
            else:
                operations.append(read.operation(at))
        return Facts(tuple(operations), given)

    def kinds(self, names: set[str]) -> dict[str, str]:
        """t3 -> bf16[2, 16], of results of the forward."""
        return {
            out.name: f"{out.dtype.shortname()}{[int(n) for n in out._shape]}"
            for bsym in self.forward for out in makes(bsym)
            if out.name in names and isinstance(out, TensorProxy)
        }


_GIVERS = frozenset({PrimIDs.UNPACK_TRIVIAL, PrimIDs.UNPACK_SEQUENCE})


class _Read:
    """What is asked of each bound symbol of the forward."""

    def __init__(self, reading: Reading, needed: set[str], returned: set[str]) -> None:
        self.reading, self.needed = reading, needed
        self.stored = _stored(reading)
        self.written_again = _written_again(reading, returned)

    def operation(self, at: int) -> Operation:
        """The facts of the bound symbol at a place."""
        bsym, leaves = self.reading.bsyms[at], self.reading.leaves(at)
        views = is_view(leaves)
        return Operation(
            bsym.sym.name,
            tuple(proxy.name for proxy in reads(bsym)),
            tuple(self._value(out, leaves, views) for out in makes(bsym)),
            sum(map(_operations, leaves)),
            self._refusal(bsym, self.reading.fusible[at], leaves),
            self.reading.runs[at],
        )

    def _value(self, out: Proxy, leaves: Sequence[BoundSymbol], is_view: bool) -> Value:
        tags = _tags(
            out.name in self.stored,
            out.name in self.written_again and not is_view,
            is_view,
            any(leaf.sym.id in _DRAWN for leaf in leaves),
        )
        return Value(out.name, _bytes(out), out.name in self.needed, tags)

    def _refusal(self, bsym: BoundSymbol, fusible: bool, leaves: Sequence[BoundSymbol]) -> str:
        if not fusible:
            return f"torch runs {bsym.sym.name}"
        if any(proxy.name in self.reading.written for proxy in proxies(bsym)):
            return "it reads or makes what is written in place"
        if _NO_REPEAT.intersection(bsym.sym.tags or ()) - {OpTags.REDUCTION_OP}:
            return f"Thunder's tags of {bsym.sym.name}"
        return next(filter(None, map(_refuse_primitive, leaves)), "")


@cache
def _tags(*holds: bool) -> Tags:
    """Few kinds of values share one set each."""
    return frozenset(compress((STORED, WRITTEN, VIEW, RANDOM), holds))


def _refuse_primitive(leaf: BoundSymbol) -> str:
    if leaf.sym.id in _STATEFUL:
        return "random numbers of a hidden state"
    tags = _NO_REPEAT.intersection(leaf.sym.tags or ())
    if not (tags or leaf.sym.id in _SCANS) or _is_trivial_reduction(leaf):
        return ""
    return f"{leaf.sym.name}, a reduction or scan"


def is_view(leaves: Sequence[BoundSymbol]) -> bool:
    """True for nothing but views, which torch makes without a kernel."""
    return all(leaf.sym.id in VIEWS for leaf in leaves)


def runs_of(bsyms: Sequence[BoundSymbol], fusible: Sequence[bool]) -> list[int]:
    """A number for each maximal run of fusible bound symbols of one direction, and each other."""
    runs: list[int] = []
    for at, (bsym, can) in enumerate(zip(bsyms, fusible, strict=True)):
        joins = (
            at > 0 and can and fusible[at - 1] and is_backward(bsym) == is_backward(bsyms[at - 1])
        )
        runs.append(runs[-1] if joins else at)
    return runs


def _gradients(bsym: BoundSymbol) -> set[str]:
    """Names of what the backward returns."""
    return {p.name for p in tree_iter(bsym.args[0].get("output")) if isinstance(p, Proxy)}


def _is_return(bsym: BoundSymbol) -> bool:
    return bsym.sym.id is PrimIDs.RETURN


def _stored(reading: Reading) -> set[str]:
    """Results that the forward writes for others than their own run."""
    run = {
        out.name: number
        for bsym, number in zip(reading.bsyms, reading.runs, strict=True)
        for out in makes(bsym)
    }
    found = {
        proxy.name
        for bsym, number in zip(reading.bsyms, reading.runs, strict=True)
        if not is_backward(bsym)
        for proxy in reads(bsym)
        if run.get(proxy.name, number) != number
    }
    torch_made = (
        out.name
        for bsym, can in zip(reading.bsyms, reading.fusible, strict=True)
        if not can for out in makes(bsym)
    )  # fmt: skip
    return found | set(torch_made)


def _written_again(reading: Reading, returned: set[str]) -> set[str]:
    """Values of the forward that torch reads in the backward, itself or a view of them."""
    names = set(returned)
    for at in reversed(range(len(reading.bsyms))):
        bsym = reading.bsyms[at]
        if _is_return(bsym) or bsym.sym.id is PrimIDs.GET_GRAD:
            continue
        by_torch = is_backward(bsym) and not reading.fusible[at]
        views = is_view(reading.leaves(at))
        if by_torch or (views and any(out.name in names for out in makes(bsym))):
            names.update(proxy.name for proxy in reads(bsym))
    return names


def _size(proxy: Proxy) -> int:
    return prod(int(size) for size in proxy._shape) if isinstance(proxy, TensorProxy) else 0


def _bytes(proxy: Proxy) -> int:
    return _size(proxy) * proxy.dtype.bytes if isinstance(proxy, TensorProxy) else 0


def _operations(leaf: BoundSymbol) -> int:
    """Of all elements, in the units of ir/op_table.py. Random numbers count nothing, for
    what is needed of them is two integers, not a tensor."""
    if leaf.sym.id in VIEWS or leaf.sym.id in _DRAWN:
        return 0
    row = OPS.get(_NAMES.get(leaf.sym.name, leaf.sym.name))
    size = max((_size(out) for out in makes(leaf)), default=0)
    return size * (1 if row is None else row.cost)


def _is_trivial_reduction(bsym: BoundSymbol) -> bool:
    """True over axes of size 1: there is nothing to add."""
    sizes = {_size(proxy) for proxy in proxies(bsym) if isinstance(proxy, TensorProxy)}
    return len(sizes) == 1 and OpTags.REDUCTION_OP in (bsym.sym.tags or ())


# -------------------------------------------------------------------------------- facts as a trace


class _Writer:
    """Writes the trace anew, with copies of what is made again in front of what reads it."""

    def __init__(
        self, trace: TraceCtx, reading: Reading, again: set[str], copies: dict[str, list[str]]
    ) -> None:
        self.trace, self.reading, self.again, self.copies = trace, reading, again, copies
        places = {id(b): at for at, b in enumerate(reading.forward)}
        self.order = {name: places[id(b)] for name, b in reading.maker.items()}
        self.swaps: dict[Variable, Proxy] = {}

    def bsyms(self) -> Iterator[BoundSymbol]:
        run = -1
        reading = self.reading
        for bsym, can, number in zip(reading.bsyms, reading.fusible, reading.runs, strict=True):
            if not is_backward(bsym) or bsym.sym.id is PrimIDs.GET_GRAD:
                yield bsym
                continue
            if number != run and can:
                # What torch reads is written; until the next run there is no need to repeat it.
                run, self.swaps = number, {}
            yield from self._remade(reads(bsym))
            yield self._reading_copies(bsym)

    def _remade(self, wanted: Iterable[Proxy]) -> Iterator[BoundSymbol]:
        """Copies of the ops behind these values, in order."""
        found: dict[str, BoundSymbol] = {}
        stack = [proxy.name for proxy in wanted]
        while stack:
            name = stack.pop()
            if name not in self.again or name in found:
                continue
            bsym = self.reading.maker[name]
            if variableify(makes(bsym)[0]) in self.swaps:
                continue
            found.update((out.name, bsym) for out in makes(bsym))
            stack += [proxy.name for proxy in reads(bsym)]
        makers = {id(bsym): bsym for bsym in found.values()}
        for bsym in sorted(makers.values(), key=lambda b: self.order[makes(b)[0].name]):
            yield self._copy(bsym)

    def _copy(self, bsym: BoundSymbol) -> BoundSymbol:
        with tracectx(self.trace):
            for out in makes(bsym):
                new = out.replace_name(f"{out.name}r", disambiguate=True)
                self.swaps[variableify(out)] = new
                self.copies.setdefault(out.name, []).append(new.name)
        copy = bsym.from_bsym_swap_proxies(self.swaps)
        return copy.from_bsym(tags=copy.tags | {BoundSymbolTag.BACKWARD})

    def _reading_copies(self, bsym: BoundSymbol) -> BoundSymbol:
        if not any(variableify(proxy) in self.swaps for proxy in reads(bsym)):
            return bsym
        return bsym.from_bsym_swap_proxies(self.swaps, skip_output=True)
