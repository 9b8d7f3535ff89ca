# SPDX-License-Identifier: Apache-2.0
"""A trace and a policy -> the trace whose backward reads from the forward what is saved.

    t1 = convert(x, f32)          saved by Thunder's rules: t1 and t2, 8 bytes an element
    t2 = tanh(t1)
    y  = convert(t2, bf16)
    g  = get_grad(y)              saved now: x, 2 bytes
    t3 = f(g, t1, t2)         ->  t1r = convert(x, f32); t2r = tanh(t1r); t3 = f(g, t1r, t2r)

Each region of the backward recomputes what it reads itself, so that no recomputed value lives from
one region to the next.

Never recomputed: what no region takes (matrix products, attention, convolutions, collectives, all
that torch runs); reductions and scans, but over axes of size 1; random numbers without an explicit
state; what reads a tensor that is written in place; and what carries Thunder's tags against it.
What Thunder itself repeats for torch.utils.checkpoint belongs to the backward by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import compress, count
from math import prod

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import Proxy, TensorProxy, Variable, variableify
from thunder.core.pytree import tree_iter
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from thunder.core.trace import tracectx

from thunder_fuser.ir.op_table import OPS
from thunder_fuser.rematerialization.plan import Facts, Machine, Operation, Plan, Value, plan
from thunder_fuser.rematerialization.policy import RANDOM, STORED, VIEW, WRITTEN, Policy, Tags
from thunder_fuser.trace.memory import written_in_place
from thunder_fuser.trace.op import Op, alike
from thunder_fuser.trace.prepared import Prepared, check
from thunder_fuser.trace.proxies import makes
from thunder_fuser.trace.sharing import VIEWS, proxies

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
class Recomputation:
    """What the backward reads of the forward: what is saved, and what it recomputes.

    copies: for each recomputed value the names of its copies; kinds: type and shape of each value
    that is saved or recomputed, as in "bf16[2, 16]"; stages: the policy's.
    """

    facts: Facts
    plan: Plan
    copies: dict[str, tuple[str, ...]]
    kinds: dict[str, str]
    stages: int


def rematerialize(prepared: Prepared, policy: Policy) -> tuple[Prepared, Recomputation | None]:
    """The trace with the policy's cut made; unchanged, and None, if it has no backward."""
    if not prepared.has_backward:
        return prepared, None
    facts = facts_of(prepared.ops)
    decided = plan(facts, policy, Machine.of(prepared.target))
    again = {value.name for at in decided.again for value in facts.operations[at].outputs}
    writer = _Writer(prepared, again - set(decided.kept))
    after = prepared.with_ops(writer.ops())
    check("rematerialize", prepared, after)
    copies = {name: tuple(names) for name, names in writer.copies.items()}
    kinds = _kinds(prepared.ops, {*decided.kept, *copies})
    return after, Recomputation(facts, decided, copies, kinds, policy.stages)


# ------------------------------------------------------------------------------ a trace as facts

_GIVERS = frozenset({PrimIDs.UNPACK_TRIVIAL, PrimIDs.UNPACK_SEQUENCE})


def facts_of(ops: Sequence[Op]) -> Facts:
    """The forward, and what the backward needs of it."""
    returned = _gradients(ops[-1])
    needed = returned | {p.name for op in ops if op.in_backward for p in op.reads}
    read = _Reader(ops, needed, returned)
    forward = [op for op in ops if not op.is_backward and not op.is_return]
    given = {
        proxy.name: _bytes(proxy)
        for op in forward if op.bsym.sym.id in _GIVERS for proxy in op.makes
    }  # fmt: skip
    made = (read.operation(op) for op in forward if op.bsym.sym.id not in _GIVERS)
    return Facts(tuple(made), given)


def _kinds(ops: Sequence[Op], names: set[str]) -> dict[str, str]:
    """t3 -> bf16[2, 16], of results of the forward."""
    return {
        out.name: f"{out.dtype.shortname()}{[int(n) for n in out._shape]}"
        for op in ops if not op.is_backward for out in op.makes
        if out.name in names and isinstance(out, TensorProxy)
    }  # fmt: skip


class _Reader:
    """What is asked of each op of the forward."""

    def __init__(self, ops: Sequence[Op], needed: set[str], returned: set[str]) -> None:
        self.needed = needed
        self.written = written_in_place(ops)
        self.stored = _stored(ops)
        self.stored_again = _stored_again(ops, returned)

    def operation(self, op: Op) -> Operation:
        """What the plan must know of an op."""
        return Operation(
            op.bsym.sym.name,
            tuple(proxy.name for proxy in op.reads),
            tuple(self._value(out, op) for out in op.makes),
            sum(map(_operations, op.leaves)),
            self._refusal(op),
            op.region,
        )

    def _value(self, out: Proxy, op: Op) -> Value:
        tags = _tags(
            out.name in self.stored,
            out.name in self.stored_again and not op.is_view,
            op.is_view,
            any(leaf.sym.id in _DRAWN for leaf in op.leaves),
        )
        return Value(out.name, _bytes(out), out.name in self.needed, tags)

    def _refusal(self, op: Op) -> str:
        if not op.is_fusible:
            return f"torch runs {op.bsym.sym.name}"
        if op.reads_any(self.written) or op.makes_any(self.written):
            return "it reads or makes what is written in place"
        if _NO_REPEAT.intersection(op.bsym.sym.tags or ()) - {OpTags.REDUCTION_OP}:
            return f"Thunder's tags of {op.bsym.sym.name}"
        return next(filter(None, map(_refuse_primitive, op.leaves)), "")


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


def _gradients(op: Op) -> set[str]:
    """Names of what the backward returns."""
    return {p.name for p in tree_iter(op.bsym.args[0].get("output")) if isinstance(p, Proxy)}


def _stored(ops: Sequence[Op]) -> set[str]:
    """Results that the forward stores for others than their own region."""
    region = {out.name: op.region for op in ops if op.is_fusible for out in op.makes}
    read = {
        proxy.name
        for op in ops if not op.is_backward
        for proxy in op.reads
        if region.get(proxy.name, op.region) != op.region
    }  # fmt: skip
    return read | {out.name for op in ops if not op.is_fusible for out in op.makes}


def _stored_again(ops: Sequence[Op], returned: set[str]) -> set[str]:
    """Values of the forward that torch reads in the backward, itself or a view of them."""
    names = set(returned)
    for op in reversed(ops):
        if op.is_return or op.bsym.sym.id is PrimIDs.GET_GRAD:
            continue
        if (op.is_backward and not op.is_fusible) or (op.is_view and op.makes_any(names)):
            names.update(proxy.name for proxy in op.reads)
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
    """Writes the trace anew, with recomputed values in front of what reads them.

    again: the values of the forward that are recomputed; copies: the names of the copies of each.
    """

    def __init__(self, prepared: Prepared, again: set[str]) -> None:
        self.trace, self.rules, self.all = prepared.trace, prepared.rules, prepared.ops
        self.again = again
        self.copies: dict[str, list[str]] = {}
        forward = [op for op in self.all if not op.is_backward and not op.is_return]
        self.maker = {out.name: op for op in forward for out in op.makes}
        self.order = {out.name: at for at, op in enumerate(forward) for out in op.makes}
        self.swaps: dict[Variable, Proxy] = {}
        self.numbers = count(1 + max((op.region or 0 for op in self.all), default=0))

    def ops(self) -> Iterator[Op]:
        last: Op | None = None  # the op before, in the new trace
        region: int | None = None
        for op in self.all:
            if not op.in_backward:
                yield op
                continue
            if op.region is not None and op.region != region:
                # What torch reads is stored; until the next region nothing need be repeated.
                region, self.swaps = op.region, {}
            for copy in self._recomputed(op.reads):
                last = copy.in_region(self._region(copy, op, last))
                yield last
            last = self._reading_copies(op)
            yield last

    def _region(self, copy: Op, reader: Op, last: Op | None) -> int:
        """That of its reader; what torch reads joins the region before, or is one by itself."""
        if reader.region is not None:
            return reader.region
        if last is not None and last.region is not None and alike(last, copy):
            return last.region
        return next(self.numbers)

    def _recomputed(self, wanted: Iterable[Proxy]) -> Iterator[Op]:
        """Copies of the ops behind these values, in order."""
        found: dict[str, Op] = {}
        stack = [proxy.name for proxy in wanted]
        while stack:
            name = stack.pop()
            if name not in self.again or name in found:
                continue
            op = self.maker[name]
            if variableify(op.makes[0]) in self.swaps:
                continue
            found.update((out.name, op) for out in op.makes)
            stack += [proxy.name for proxy in op.reads]
        makers = {id(op): op for op in found.values()}
        for op in sorted(makers.values(), key=lambda op: self.order[op.makes[0].name]):
            yield self._copy(op)

    def _copy(self, op: Op) -> Op:
        with tracectx(self.trace):
            for out in op.makes:
                new = out.replace_name(f"{out.name}r", disambiguate=True)
                self.swaps[variableify(out)] = new
                self.copies.setdefault(out.name, []).append(new.name)
        copy = op.bsym.from_bsym_swap_proxies(self.swaps)
        return self.rules.fused(copy.from_bsym(tags=copy.tags | {BoundSymbolTag.BACKWARD}))

    def _reading_copies(self, op: Op) -> Op:
        if not any(variableify(proxy) in self.swaps for proxy in op.reads):
            return op
        swapped = op.bsym.from_bsym_swap_proxies(self.swaps, skip_output=True)
        return self.rules.rewritten(op, swapped)
