# SPDX-License-Identifier: Apache-2.0
"""A trace and a policy -> the trace whose backward reads from the forward what is saved.

    t1 = convert(x, f32)          saved by Thunder's rules: t1 and t2, 8 bytes an element
    t2 = tanh(t1)
    y  = convert(t2, bf16)
    g  = get_grad(y)              saved now: x, 2 bytes
    t3 = f(g, t1, t2)         ->  t1r = convert(x, f32); t2r = tanh(t1r); t3 = f(g, t1r, t2r)

Each region of the backward recomputes the values that it reads, so that no recomputed value lives
from one region to the next.

Never recomputed: ops that torch runs (attention, convolutions, sorts, ...), but matrix products
under `memory` and `budget`; reductions and scans, except over axes of size 1; random numbers
without an explicit state; ops that read a tensor that is written in place; and ops that Thunder
tags as not to be recomputed. What Thunder itself repeats for torch.utils.checkpoint counts as
backward here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.pytree import tree_iter
from thunder.core.symbol import BoundSymbol

from thunder_fuser.analysis.cost import is_expensive
from thunder_fuser.ir.op_schema import Op as OpRow
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.rematerialization.forward import Forward, ForwardValue, Operation
from thunder_fuser.rematerialization.plan import CutPlan, Machine, plan
from thunder_fuser.rematerialization.policy import RANDOM, STORED, VIEW, WRITTEN, Policy
from thunder_fuser.trace.dataflow import DataFlow, with_what_they_view
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import (
    COLLECTIVES,
    VIEWS,
    bytes_of,
    elements_of,
    is_product,
    makes,
    parts,
    reads,
)
from thunder_fuser.trace.repeat import Repeater, repeats_of

_DRAWN = frozenset({"random_uniform", "random_normal", PrimIDs.UNIFORM_PHILOX})
_STATEFUL = frozenset({PrimIDs.UNIFORM, PrimIDs.RANDN})
_NO_REPEAT = frozenset(
    {
        OpTags.REDUCTION_OP, OpTags.DONT_RECOMPUTE_IN_BACKWARD, OpTags.MATMUL_OP,
        OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD, OpTags.IN_PLACE, OpTags.DEVICE_SYNC_OP,
    }
)  # fmt: skip
_PRODUCTS = (PrimIDs.LINEAR, PrimIDs.MATMUL)
_SLOWER = 16  # a product in float32 than one of 16-bit floats, on a GPU: 51e12 and 791e12 a second
_SCANS = frozenset({"torch.cumsum", PrimIDs.ARGMAX, PrimIDs.ARGMIN, PrimIDs.VAR_MEAN})
# Where a primitive's name is not that of its row in ir/op_table.py; any other missing one costs 1.
_NAMES = {"convert_element_type": "cast", "random_uniform": "uniform", "random_normal": "normal"}


@dataclass(frozen=True)
class Recomputation:
    """The values of the forward that the backward reads: the saved and the recomputed ones.

    copies: for each recomputed value, the names of its copies; kinds: type and shape of each saved
    or recomputed value, as in "bf16[2, 16]"; stages: those of the policy.
    """

    forward: Forward
    plan: CutPlan
    copies: dict[str, tuple[str, ...]]
    kinds: dict[str, str]
    stages: int


def rematerialize(prepared: Prepared, policy: Policy) -> tuple[Prepared, Recomputation | None]:
    """The trace with the policy's cut made; unchanged, and None, if it has no backward."""
    if not prepared.has_backward:
        return prepared, None
    ops, read = prepared.ops, _Reader(prepared.flow, on_gpu=not prepared.target.is_cpu)
    of_forward = [op for op in ops if not op.is_backward and not op.is_return]
    arguments = {
        proxy.name: bytes_of(proxy)
        for op in of_forward if op.bsym.sym.id in _GIVERS for proxy in op.makes
    }  # fmt: skip
    operations = (read.operation(op) for op in of_forward if op.bsym.sym.id not in _GIVERS)
    forward = Forward(tuple(operations), arguments)
    decided = plan(forward, policy, Machine.of(prepared.target))
    again = [value.name for at in decided.again for value in forward.operations[at].outputs]
    repeater = Repeater(prepared, again, lambda _, reader: reader.in_backward)
    after = prepared.with_ops(repeater.ops())
    after.verify("rematerialize", prepared)
    copies = {name: tuple(names) for name, names in repeater.copies.items()}
    kinds = _kinds(prepared.ops, {*decided.kept, *copies})
    return after, Recomputation(forward, decided, copies, kinds, policy.stages)


# ------------------------------------------------------------------------- a trace as a Forward

_GIVERS = frozenset({PrimIDs.UNPACK_TRIVIAL, PrimIDs.UNPACK_SEQUENCE})


def _kinds(ops: Sequence[Op], names: set[str]) -> dict[str, str]:
    """t3 -> bf16[2, 16], of results of the forward."""
    return {
        out.name: f"{out.dtype.shortname()}{[int(n) for n in out._shape]}"
        for op in ops if not op.is_backward for out in op.makes
        if out.name in names and isinstance(out, TensorProxy)
    }  # fmt: skip


class _Reader:
    """What the plan needs of each op of the forward."""

    def __init__(self, flow: DataFlow, *, on_gpu: bool) -> None:
        ops, self.on_gpu = flow.ops, on_gpu
        gradients = tree_iter(ops[-1].bsym.args[0].get("output"))
        returned = {proxy.name for proxy in gradients if isinstance(proxy, Proxy)}
        self.needed = returned | {name for op in ops if op.in_backward for name in op.read_names}
        self.written, forward = flow.written, flow.of_forward
        self.lasting = self.written | with_what_they_view(ops, {*ops[-1].read_names})
        self.stored = {*forward.crossing}
        self.stored |= {name for op in forward.ops if not op.is_fusible for name in op.made_names}
        # Values that torch reads in the backward, directly or through a view.
        by_torch = [op for op in ops if op.in_backward and not op.is_fusible and not op.is_return]
        read_by_torch = {name for op in by_torch for name in op.read_names}
        self.stored_again = with_what_they_view(ops, returned | read_by_torch)
        self.repeats = repeats_of(ops)
        apart = (op for op in forward.ops if op.bsym.sym.id in COLLECTIVES)
        communicated = {name for op in apart for name in (*op.read_names, *op.made_names)}
        self.runs_once = communicated | _read_early(ops)

    def operation(self, op: Op) -> Operation:
        """What the plan needs of an op."""
        return Operation(
            op.bsym.sym.name,
            tuple(op.read_names),
            tuple(self._value(out, op) for out in op.makes),
            sum(map(_operations, op.leaves)),
            self._refusal(op),
            op.region,
            sum(map(self._repeated, op.leaves)),
            self._product(op),
        )

    def _product(self, op: Op) -> int:
        """The arithmetic of a matrix product that torch runs; 0 for any other op. Where what it
        multiplies or makes is communicated, both may be one call; where an op of the backward
        stands early, the result would live from there on; what is returned lives anyway."""
        (*_, part) = parts(op.bsym)
        is_able = not (op.is_fusible or op.reads_any(self.written) or op.makes_any(self.lasting))
        if not is_able or not is_product(op.bsym) or part.sym.id not in _PRODUCTS:
            return 0
        if not self.runs_once.isdisjoint((part.args[0].name, *op.made_names)):
            return 0
        slower = _SLOWER if self.on_gpu and part.output.dtype.bytes > 2 else 1
        return 2 * slower * elements_of(part.output) * int(part.args[0]._shape[-1])

    def _repeated(self, leaf: BoundSymbol) -> int:
        """The arithmetic beyond the first time, for a result that a kernel computes repeatedly."""
        row = _row(leaf)
        times = max((self.repeats.get(out.name, 1) for out in makes(leaf)), default=1)
        return 0 if row is None or not is_expensive(row) else (times - 1) * _operations(leaf)

    def _value(self, out: Proxy, op: Op) -> ForwardValue:
        tags = {
            STORED: out.name in self.stored,
            WRITTEN: out.name in self.stored_again and not op.is_view,
            VIEW: op.is_view,
            RANDOM: any(leaf.sym.id in _DRAWN for leaf in op.leaves),
        }
        holding = frozenset(tag for tag, holds in tags.items() if holds)
        return ForwardValue(out.name, bytes_of(out), out.name in self.needed, holding)

    def _refusal(self, op: Op) -> str:
        if not op.is_fusible:
            return f"torch runs {op.bsym.sym.name}"
        if op.reads_any(self.written) or op.makes_any(self.written):
            return "it reads or makes a tensor that is written in place"
        if _NO_REPEAT.intersection(op.bsym.sym.tags or ()) - {OpTags.REDUCTION_OP}:
            return f"Thunder's tags of {op.bsym.sym.name}"
        for leaf in op.leaves:
            if leaf.sym.id in _STATEFUL:
                return "random numbers from a hidden state"
            row = _row(leaf)
            if row is not None and row.kind is OpKind.EXTERNAL:
                return f"torch runs {leaf.sym.name}"
            tags = _NO_REPEAT.intersection(leaf.sym.tags or ())
            tensors = (p for p in (*reads(leaf), *makes(leaf)) if isinstance(p, TensorProxy))
            # A reduction over axes of size 1 has nothing to add.
            is_trivial = OpTags.REDUCTION_OP in tags and len({*map(elements_of, tensors)}) == 1
            if (tags or leaf.sym.id in _SCANS) and not is_trivial:
                return f"{leaf.sym.name}, a reduction or scan"
        return ""


def _read_early(ops: Sequence[Op]) -> set[str]:
    """What ops of the backward read that stand in the forward, and what regions make it from:
    Thunder moves them between a collective and its wait."""
    forward = [at for at, op in enumerate(ops) if not op.is_backward and not op.is_return]
    before = ops[: max(forward, default=0)]
    names = {name for op in before if op.in_backward for name in op.read_names}
    for op in reversed(before):
        if op.is_fusible and op.makes_any(names):
            names.update(op.read_names)
    return names


def _operations(leaf: BoundSymbol) -> int:
    """The arithmetic for all elements, in the units of ir/op_table.py. Random numbers cost nothing:
    a seed and an offset are enough to draw them again."""
    if leaf.sym.id in VIEWS or leaf.sym.id in _DRAWN:
        return 0
    row = _row(leaf)
    size = max(map(elements_of, makes(leaf)), default=0)
    return size * (1 if row is None else row.cost)


def _row(leaf: BoundSymbol) -> OpRow | None:
    return OPS.get(_NAMES.get(leaf.sym.name, leaf.sym.name))
