# SPDX-License-Identifier: Apache-2.0
"""A product whose result only a cross entropy reads -> one symbol, before the gradient is taken.

Transforms have run: a head whose words are divided over devices is a product and a gather.

    t0 = linear(h, w, b)
    t1 = to(t0, float32); t2 = div(t1, 30.0); t3 = tanh(t2); t4 = mul(t3, 30.0)
    t5 = getitem(t4, (:, :-1)); t6 = reshape(t5, -1, 128256)
    loss = cross_entropy(t6, target)
->  t7 = slice(h, ...); t8 = reshape(t7, (8188, 2048))
    loss = loss_in_chunks(h, w, b, target, None, (("div", 30.0), ("tanh", 0.0), ("mul", 30.0)), ...)

What moves whole rows of the logits moves the same rows of the hidden state instead. The symbol
stands where the loss was, so between the product and the loss nothing may be written in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes, prims
from thunder.core.prims import PrimIDs
from thunder.core.proxies import ProxyTag, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace, get_tracectx, tracectx
from thunder.core.utils import sequencify
from thunder.distributed.prims import PrimIDs as Collectives
from thunder.distributed.tensor_parallel.common import TensorParallelLayerType

from thunder_fuser.executors.support.dtypes import is_known_number
from thunder_fuser.functions.chunked_loss.loop import NeedsGradient
from thunder_fuser.functions.chunked_loss.symbol import loss_in_chunks, recomputes
from thunder_fuser.functions.define import compute_type
from thunder_fuser.functions.losses import CrossEntropy
from thunder_fuser.options import in_force, option
from thunder_fuser.rematerialization.policy import Policy, policy_of
from thunder_fuser.source.jit_options import jit_option, options_of_jit
from thunder_fuser.source.lines import line_of
from thunder_fuser.trace.op import Reject
from thunder_fuser.trace.proxies import RENAMES, makes, parts, reads

Note = Callable[[BoundSymbol, Reject], None]
_LOSS = "torch.nn.functional.cross_entropy"
_SUMS = "torch.logsumexp"
_ARITHMETIC = {PrimIDs.MUL: "mul", PrimIDs.DIV: "div", PrimIDs.TANH: "tanh"}
_SAME_ROWS = (PrimIDs.SHALLOW_COPY, PrimIDs.STRIDE_ORDER)
_PRODUCTS = (PrimIDs.LINEAR, PrimIDs.MATMUL)
# Measured on a GPU (benchmarks/results/h200_loss.json); a CPU needs fewer.
ROWS = {"cuda": 2048, "cpu": 512}
_TYPES = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)


def losses_in_chunks(trace: TraceCtx, note: Note) -> TraceCtx:
    """The trace with such losses as symbols; itself if it has none. note: called with each other
    loss whose logits would be computed in chunks, and why they are not."""
    bsyms = trace.bound_symbols
    losses = [(at, bsym) for at, bsym in enumerate(bsyms) if bsym.sym.id == _LOSS]
    calls = [(at, CrossEntropy(*bsym.args, **bsym.kwargs)) for at, bsym in losses]
    known = [(at, call) for at, call in calls if not call.refuses()]
    wanted = [(at, call) for at, call in known if rows_of(call, trains=False)]
    if not wanted:
        return trace
    facts, matches = _TraceUses.of(bsyms), {}
    for at, call in wanted:
        match = _match(bsyms, at, call, facts)
        if isinstance(match, _ProductLoss):
            matches[match.at] = match
        elif rows_of(call, trains=True):
            note(bsyms[at], match)
    if not matches:
        return trace
    dropped = {at for match in matches.values() for at in match.dropped}
    changed = from_trace(trace)
    changed.bound_symbols = []
    for at, bsym in enumerate(bsyms):
        if at in matches:
            changed.bound_symbols += matches[at].symbols(changed)
        elif at not in dropped:
            changed.bound_symbols.append(bsym)
    changed.set_provenance(TraceProvenance("Losses without their logits"))
    return changed


@dataclass(frozen=True, slots=True)
class _TraceUses:
    """The primitives and bound symbols of a trace.

    makers: {value: its primitive}; places: {value: the place of its bound symbol}; readers: {value:
    the places of its readers}; tracked: the values that depend on what requires a gradient; writes:
    the places of writes in place.
    """

    makers: dict[str, BoundSymbol] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)
    tracked: set[str] = field(default_factory=set)
    writes: list[int] = field(default_factory=list)

    @staticmethod
    def of(bsyms: Sequence[BoundSymbol]) -> _TraceUses:
        facts = _TraceUses()
        for at, bsym in enumerate(bsyms):
            leaves = [bsym] if bsym.sym.id in (_LOSS, _SUMS) else [*parts(bsym)]
            for leaf in leaves:
                facts._add(at, leaf)
            if any(leaf.sym.id in RENAMES for leaf in leaves):
                facts.writes.append(at)
        return facts

    def _add(self, at: int, leaf: BoundSymbol) -> None:
        results = [proxy for proxy in makes(leaf) if isinstance(proxy, TensorProxy)]
        operands = [proxy for proxy in reads(leaf) if isinstance(proxy, TensorProxy)]
        if not results and leaf.sym.id is not PrimIDs.RETURN:
            return  # it asks for a shape
        for proxy in operands:
            self.readers.setdefault(proxy.name, []).append(at)
        is_tracked = any(p.requires_grad or p.name in self.tracked for p in operands)
        for proxy in results:
            if proxy.name in {operand.name for operand in operands}:
                continue
            self.makers[proxy.name], self.places[proxy.name] = leaf, at
            if is_tracked and not _is_detached(proxy):
                self.tracked.add(proxy.name)

    def needs(self, proxy: Any) -> bool:
        """True if the tensor has a gradient."""
        return proxy is not None and (proxy.requires_grad or proxy.name in self.tracked)


@dataclass(frozen=True, slots=True)
class _ProductLoss:
    """A loss at this place, and the bound symbols that it replaces.

    before: primitives inside of the product's bound symbol that it reads. moves: the primitives
    that move rows of the logits, in order. sums: a logsumexp of the logits, or None.
    """

    at: int
    dropped: frozenset[int]
    call: CrossEntropy
    bsym: BoundSymbol
    product: BoundSymbol
    before: tuple[BoundSymbol, ...]
    moves: tuple[BoundSymbol, ...]
    steps: tuple[tuple[str, float], ...]
    needs: NeedsGradient
    rows: int
    sums: BoundSymbol | None
    ranks: Any  # the process group that the columns are divided over, or None

    def symbols(self, trace: TraceCtx) -> list[BoundSymbol]:
        """The bound symbols to put in place of the loss's."""
        added: list[BoundSymbol] = [*self.before]
        trace.push_scope(added)
        with tracectx(trace):
            self._write()
        trace.pop_scope()
        place = self.bsym.source_filename, self.bsym.source_positions
        for bsym in added:
            bsym.source_filename, bsym.source_positions = place
        return added

    def _write(self) -> None:
        h, w, b = _operands(self.product)
        width = h.shape[-1]
        if self.product.sym.id is PrimIDs.MATMUL:
            w = prims.transpose(w, (1, 0))
        for move in self.moves:
            h = _moved(move, h, width)
        call, loss = self.call, self.bsym.output
        args = (
            h, w, b, call.target, call.weight, self.steps, call.ignore_index, call.reduction,
            float(call.label_smoothing), self.sums is not None, self.rows, self.ranks,
            self.needs, line_of(self.bsym),
        )  # fmt: skip
        scope, kind = get_tracectx().peek_scope(), compute_type(h)
        if self.sums is None and kind == loss.dtype:
            scope.append(loss_in_chunks.bind(*args, output=loss))
            return
        results = loss_in_chunks(*args)
        outputs = [loss] if self.sums is None else [loss, self.sums.output]
        for result, output in zip(sequencify(results), outputs, strict=True):
            if result._shape != output._shape:
                result = prims.reshape(result, output._shape)
            scope.append(prims.convert_element_type.bind(result, output.dtype, output=output))


def _operands(product: BoundSymbol) -> tuple[Any, Any, Any]:
    """The hidden state, the weight and the bias of a product."""
    a, w, *rest = product.args
    return a, w, rest[0] if rest else None


def _moved(move: BoundSymbol, h: Any, width: int) -> Any:
    """The rows of the hidden state, moved as those of the logits are."""
    if move.sym.id is PrimIDs.RESHAPE:
        return prims.reshape(h, (*move.args[1][:-1], width))
    _, starts, ends, *strides = move.args
    steps = (strides or [move.kwargs.get("strides")])[0]
    return prims.slice_prim(h, starts, [*ends[:-1], width], steps)


# ------------------------------------------------------------------------------- what is a match


def _match(
    bsyms: Sequence[BoundSymbol], at: int, call: CrossEntropy, facts: _TraceUses
) -> _ProductLoss | Reject:
    """The match of the loss at this place, or why there is none."""
    bsym = bsyms[at]
    chain = _LogitsPath(facts, at)
    if refused := chain.follow(bsyms, call.logits):
        return refused
    product = chain.product
    h, w, b = _operands(product)
    if refused := _refuses_operands(h, w, b):
        return refused
    called = {bsyms[at].sym for at in chain.dropped}
    # Thunder makes an executor for an autograd.Function of the user.
    if ltorch.checkpoint in called or any(symbol.executor for symbol in called):
        return Reject("logits of a custom function, which has its own gradient, or of a checkpoint")
    sums = None if chain.sums is None else bsyms[chain.sums]
    ends = [at] if chain.sums is None else [at, chain.sums]
    if any(min(chain.dropped) <= write < max(ends) for write in facts.writes):
        return Reject("a write in place between the product and the loss")
    late = [x for x in (call.target, call.weight) if x is not None]
    if any(facts.places.get(x.name, -1) > min(ends) for x in late):
        return Reject("targets that are computed behind the logsumexp of the logits")
    is_tracked = not _is_detached(call.logits)
    results = [bsyms[end].output for end in ends]
    if any(is_tracked == _is_detached(result) for result in results):
        return Reject("logits that are detached")
    of_h, of_w, of_b = (is_tracked and facts.needs(operand) for operand in (h, w, b))
    needs = of_h, of_w, of_b
    again = recomputes(call.reduction, sums is not None, h.dtype, needs)
    rows = rows_of(call, trains=again or of_w or of_b)
    half = _half(call, h) if of_w and not again else 0
    # Chunks alone have a short soft cap, which outweighs what halves cost.
    if half and (rows or (_is_cap_short(chain.steps, h) and rows_of(call, trains=False))):
        rows = half
    if not rows:
        return Reject("the policy keeps its logits")
    parts_of_product = [*parts(bsyms[facts.places[product.output.name]])]
    before = parts_of_product[: parts_of_product.index(product)]
    return _ProductLoss(
        min(ends), frozenset({*chain.dropped, *ends}), call, bsym, product, tuple(before),
        tuple(reversed(chain.moves)), tuple(reversed(chain.steps)), needs, rows, sums, chain.ranks,
    )  # fmt: skip


def _refuses_operands(h: Any, w: Any, b: Any) -> Reject | None:
    tensors = [x for x in (h, w, b) if x is not None]
    if any(type(x) is not TensorProxy or x.dtype != h.dtype for x in tensors):
        return Reject("a product of operands that are not plain tensors of one type")
    if h.dtype not in _TYPES:
        return Reject(f"a product of {h.dtype}")
    if h.ndim < 2 or w.ndim != 2 or not all(type(s) is int for x in tensors for s in x._shape):
        return Reject("a product of batches, or of sizes that are not known")
    return None


class _LogitsPath:
    """The way from the loss's logits back to the product."""

    def __init__(self, facts: _TraceUses, at: int) -> None:
        self.facts, self.at = facts, at
        self.product: Any = None
        self.moves: list[BoundSymbol] = []
        self.steps: list[tuple[str, float]] = []
        self.dropped: set[int] = set()
        self.rounded: set[Any] = set()  # types that values are narrowed to
        self.sums: int | None = None  # the place of a logsumexp of the rows
        self.ranks: Any = None  # the process group whose logits were gathered

    def follow(self, bsyms: Sequence[BoundSymbol], value: Any) -> Reject | None:
        """Why a value on the way is needed, or is computed in another way; None at the product."""
        reader = self.at
        while True:
            leaf = self.facts.makers.get(value.name)
            if leaf is None:
                return Reject("logits that are an argument")
            readers = [*self.facts.readers[value.name]]
            readers.remove(reader)
            if len(readers) == 1 and self._takes_sums(bsyms[readers[0]], value):
                self.sums = readers.pop()
            if readers:
                return _read_elsewhere(bsyms[readers[0]])
            reader = self.facts.places[value.name]
            self.dropped.add(reader)
            if leaf.sym.id in _PRODUCTS:
                self.product = leaf
                # A bf16 op rounds its float32 result; here the steps stay in float32.
                is_same = self.rounded <= {value.dtype}
                return None if is_same else Reject("logits that are cast to a shorter type")
            if not self._takes(leaf, value):
                return _not_taken(leaf, bsyms[reader])
            (value,) = (p for p in reads(leaf) if isinstance(p, TensorProxy))

    def _takes_sums(self, reader: BoundSymbol, value: Any) -> bool:
        """True for a logsumexp of these rows, with which nothing but views happens to the loss."""
        if reader.sym.id != _SUMS or self.sums is not None or self.steps:
            return False
        (dim,) = reader.args[1] if isinstance(reader.args[1], Sequence) else (reader.args[1],)
        is_last = dim in (-1, value.ndim - 1)
        return is_last and all(move.sym.id is PrimIDs.RESHAPE for move in self.moves)

    def _takes(self, leaf: BoundSymbol, result: Any) -> bool:
        """Notes what a primitive does to the logits; False if it is not known."""
        operands = [p for p in reads(leaf) if isinstance(p, TensorProxy)]
        if len(operands) != 1 or _is_detached(operands[0]) != _is_detached(result):
            return False
        (x,), kind = operands, leaf.sym.id
        if kind in _SAME_ROWS:
            return True
        if kind is PrimIDs.CONVERT_ELEMENT_TYPE:
            if result.dtype.bytes < x.dtype.bytes:
                self.rounded.add(result.dtype)
            return bool(dtypes.is_float_dtype(x.dtype) and dtypes.is_float_dtype(result.dtype))
        if kind in _ARITHMETIC:
            return self._takes_step(kind, leaf)
        if kind is Collectives.SYNCHRONIZE_TENSOR_PARALLEL_OUTPUT:
            return self._takes_ranks(*leaf.args[1:])
        if kind is PrimIDs.RESHAPE or (kind is PrimIDs.SLICE and _is_of_rows(leaf)):
            self.moves.append(leaf)
            return bool(x._shape[-1] == result._shape[-1])
        return False

    def _takes_ranks(self, ranks: Any, layer: TensorParallelLayerType) -> bool:
        """True for logits whose columns all ranks gather; each can compute the loss of its own."""
        taken = self.ranks is None and layer is TensorParallelLayerType.COLUMN_PARALLEL_LINEAR
        self.ranks = ranks
        return taken

    def _takes_step(self, kind: PrimIDs, leaf: BoundSymbol) -> bool:
        number, *_ = [arg for arg in leaf.args if not isinstance(arg, TensorProxy)] or [0.0]
        number = number.value if is_known_number(number) else number
        divides = kind is PrimIDs.DIV and not isinstance(leaf.args[0], TensorProxy)
        if not isinstance(number, (int, float)) or divides:
            return False
        self.steps.append((_ARITHMETIC[kind], float(number)))
        return True


def _not_taken(leaf: BoundSymbol, whole: BoundSymbol) -> Reject:
    """Why a primitive ends the way; whole: the bound symbol that it is a part of."""
    if any(isinstance(part.sym.id, Collectives) for part in parts(whole)):
        return Reject("logits that devices exchange otherwise than Thunder's column_parallel does")
    return Reject(f"logits that {leaf.sym.name} computes")


def _read_elsewhere(reader: BoundSymbol) -> Reject:
    if reader.sym.id is PrimIDs.RETURN:
        return Reject("its logits are returned too: return the loss alone to compute it in chunks")
    where = line_of(reader) or reader.sym.name
    return Reject(f"its logits stay whole, for they are read at {where} too")


def _is_detached(value: TensorProxy) -> bool:
    return ProxyTag.DETACHED_AUTOGRAD_GRAPH in value.tags


def _is_of_rows(leaf: BoundSymbol) -> bool:
    """True for a slice that keeps all of the last axis."""
    x, starts, ends, *strides = leaf.args
    steps = (strides or [leaf.kwargs.get("strides")])[0]
    return (starts[-1], ends[-1]) == (0, x._shape[-1]) and (steps is None or steps[-1] == 1)


# ----------------------------------------------------------------------------- how many rows


def rows_of(call: CrossEntropy, *, trains: bool) -> int:
    """The rows of the logits that exist at a time; 0: all, since chunks would not pay. trains:
    whether chunks take more time, for sums of the weight's gradient or for logits that the backward
    computes again. The option `loss_rows` says it, or leaves it to the policy:

        none()                logits are kept, as all values
        time()                in chunks where neither the weight nor the bias has a gradient, and
                              in halves on a GPU where 16-bit logits have a soft cap
        memory(), budget(x)   in chunks
    """
    with in_force(options_of_jit()):
        rows, policy = option("loss_rows"), policy_of(option("rematerialization"))
    assert isinstance(rows, int)
    if rows < 0:
        rows = ROWS[call.logits.device.type] if _pays(policy, trains) else 0
    return rows if rows < call.logits._shape[0] else 0


def _half(call: CrossEntropy, h: Any) -> int:
    """Half of all rows, if that takes no more bytes than chunks with float32 sums, which two chunks
    do not need (loop.py, Note [As exact as eager]); else 0. The option `loss_rows` goes before."""
    half = -(-int(call.logits._shape[0]) // 2)
    with in_force(options_of_jit()):
        is_free = option("loss_rows") == -1
    sums = (dtypes.float32.bytes - h.dtype.bytes) * h._shape[-1]  # for a word of the vocabulary
    others = h.dtype.bytes * (half - ROWS[h.device.type])
    return half if is_free and half < call.logits._shape[0] and others <= sums else 0


def _is_cap_short(steps: Sequence[tuple[str, float]], h: Any) -> bool:
    """True for a soft cap of 16-bit logits on a GPU."""
    is_short = h.dtype.bytes < dtypes.float32.bytes and any(name == "tanh" for name, _ in steps)
    return is_short and (h.device.type != "cpu" or bool(jit_option("emulate")))


def _pays(policy: Policy, trains: bool) -> bool:
    """True if fewer bytes are worth more time."""
    name = policy.text.partition("(")[0]
    return name in ("memory", "budget") or (name == "time" and not trains)
