# SPDX-License-Identifier: Apache-2.0
"""Writes in place whose effect another name shows, where a gradient is taken -> plain values.

    b = mul(a, 1)                         b = mul(a, 1)
    t2 = getitem(b, 1)                    t2 = getitem(b, 1)
    t4 = add_(t2, 10)               ->    t3 = add(t2, 10)
    return b                              t5 = where(mask, pad(t3), b)
                                          return t5

Thunder keeps such a write in the forward only if somebody reads its own result. Here b is read, so
the split into forward and backward moves the write to the backward: values and gradients are as if
it had not happened. As values, all of this is differentiated like other ops.

A memory whose writes are seen through the written name alone stays as it is. A written argument is
read as values too, and copied back into the argument at the end, which the caller sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes, prims
from thunder.core.compile_data import get_compile_data
from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, ProxyTag, TensorProxy, variableify
from thunder.core.pytree import tree_iter, tree_map
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace, tracectx
from thunder.core.update_aliases import replace_args_with_alias_map

from thunder_fuser.errors import InPlaceError
from thunder_fuser.executors.functional_writes.view_links import EagerLayouts, Link, links_of
from thunder_fuser.source.jit_options import jit_option, may_differentiate
from thunder_fuser.source.lines import line_of
from thunder_fuser.trace.dataflow import Memory
from thunder_fuser.trace.proxies import COPIES, MOVES, elements_of, makes, overwritten, parts, reads

_DETACHED = ProxyTag.DETACHED_AUTOGRAD_GRAPH
_SWITCH = "; the option functional_writes=False leaves the write to Thunder"


def writes_as_values(trace: TraceCtx, aliases: list[list[int]]) -> TraceCtx | None:
    """The trace with such writes as values, and one proxy for arguments that share memory; None if
    Thunder's own way is right: no gradient will be taken, or nothing is written in place."""
    data = get_compile_data()
    if data is None or data.disable_torch_autograd_support:
        return None
    tensors = (argument for argument in trace.args if isinstance(argument, TensorProxy))
    kinds = (part.sym.id for bsym in trace.bound_symbols for part in parts(bsym))
    if not any(tensor.requires_grad for tensor in tensors) or COPIES.isdisjoint(kinds):
        return None
    if not jit_option("functional_writes"):
        return None
    merged, _ = replace_args_with_alias_map(trace, aliases)
    changed = functional(merged)
    return None if changed is merged else changed


def functional(trace: TraceCtx) -> TraceCtx:
    """The trace with such writes as values; itself if it has none."""
    seen = _Seen.in_trace(trace)
    names = seen.memory.sharing(seen.with_neighbours())
    if doubted := {name for name in names & seen.links.keys() if not seen.links[name].is_sure}:
        layouts = EagerLayouts(trace, doubted)
        seen = _Seen.in_trace(trace, layouts)
        seen.roots |= set(map(seen.root, names)) - seen.detached  # strides differ where it runs
        layouts.guard()
    if not seen.roots:
        return trace
    changed = from_trace(trace)
    with tracectx(changed):
        rewriter = _Rewriter(changed, seen)
        for bsym in trace.bound_symbols:
            rewriter.follow(bsym)
    changed.set_provenance(TraceProvenance("Writes through views as values"))
    return changed


# --------------------------------------------------------------------------- what shares memory


class _Memories:
    """The tensors of a trace so far.

    links: those that are views; same: results of writes -> what they wrote; outdated: names whose
    memory was written through another name since, and where.
    """

    def __init__(self, layouts: EagerLayouts | None = None) -> None:
        self.layouts, self.memory = layouts, Memory()
        self.links: dict[str, Link] = {}
        self.same: dict[str, str] = {}
        self.outdated: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The name that the tensor had before it was written."""
        while name in self.same:
            name = self.same[name]
        return name

    def above(self, name: str) -> Iterator[str]:
        """The tensor, what it views, and so on."""
        yield name
        while name in self.links:
            name = self.of(self.links[name].parent)
            yield name

    def root(self, name: str) -> str:
        return self.memory.of(name)

    def link_all(self, bsym: BoundSymbol) -> None:
        links = links_of(bsym, self.layouts).items()
        fresh = {name: link for name, link in links if name not in self.same}
        self.links.update(fresh)
        self.memory.join((link.parent, name) for name, link in fresh.items())

    def rename(self, copy: BoundSymbol, target: str) -> None:
        """The result of a write is another name of what it writes."""
        self.same[copy.output.name] = target
        self.memory.join([(target, copy.output.name)])

    def touched(self, name: str) -> list[str]:
        """What a write to a tensor may change beside it and what it is a view of."""
        path, touched = self._path(name), []
        for other in self.memory.sharing([name]).difference(self.above(name)):
            pairs = zip(self._path(other), path, strict=False)
            differ = next((pair for pair in pairs if not pair[0].is_like(pair[1])), None)
            if differ is None or not differ[0].is_apart(differ[1]):
                touched.append(other)
        return touched

    def _path(self, name: str) -> list[Link]:
        return [self.links[at] for at in reversed([*self.above(name)]) if at in self.links]


class _Seen(_Memories):
    """A first walk, in which a write is seen by the written name alone, as in Thunder's split.

    roots: the memories of which an outdated name is read; tracked: those through which a gradient
    may flow; detached: tracked ones that were written under no_grad.
    """

    def __init__(self, args: Sequence[Proxy], layouts: EagerLayouts | None) -> None:
        super().__init__(layouts)
        self.roots: set[str] = set()
        self.tracked = {p.name for p in args if isinstance(p, TensorProxy) and p.requires_grad}
        self._with_gradients = frozenset(self.tracked)  # the arguments
        self._arguments = {proxy.name for proxy in args}
        self.detached: set[str] = set()
        self._together = Memory()  # memories written by one bound symbol

    @classmethod
    def in_trace(cls, trace: TraceCtx, layouts: EagerLayouts | None = None) -> _Seen:
        seen = cls(trace.args if may_differentiate() else (), layouts)
        for bsym in trace.bound_symbols:
            seen.follow(bsym)
        return seen

    def follow(self, bsym: BoundSymbol) -> None:
        copies = [part for part in parts(bsym) if part.sym.id in COPIES]
        for part in parts(bsym) if copies else (bsym,):
            self._read(part)
            if part.sym.id in COPIES:
                self._copy(part, line_of(bsym))
        if copies:
            self._together.join([tuple(self.root(proxy.name) for proxy in overwritten(bsym))])
        self.link_all(bsym)

    def with_neighbours(self) -> set[str]:
        """These memories, and all that one bound symbol writes beside one of them."""
        return self.roots | self._together.sharing(self.roots)

    def _read(self, bsym: BoundSymbol) -> None:
        every = [proxy.name for proxy in reads(bsym)]
        self.roots.update(self.root(name) for name in every if self.of(name) in self.outdated)
        if bsym.sym.id is PrimIDs.RETURN:
            # Without the arguments, which Thunder lists behind the results.
            results = tree_iter(bsym.args[0]["output"])
            names = {result.name for result in results if isinstance(result, Proxy)}
            count = Counter(map(self.of, names))  # Thunder forgets the gradient of a second one
            self.roots.update(self.root(name) for name in names if count[self.of(name)] > 1)
            read = {self.root(name) for name in names if self.of(name) not in self._arguments}
        elif any(map(_has_gradient, makes(bsym))):
            read = {self.root(name) for name in every}
        else:
            return
        self.roots |= read & self.detached
        if read & self.tracked:
            self.tracked.update(proxy.name for proxy in makes(bsym) if _has_gradient(proxy))

    def _copy(self, copy: BoundSymbol, where: str) -> None:
        target = self.of(reads(copy)[1].name)
        written = self._with_gradients & {target, *self.memory.sharing([target])}
        if written and _has_gradient(copy.output):
            raise _of_argument(min(written), where)
        if copy.output.name in self.tracked:
            self.tracked.add(self.root(target))
        elif _DETACHED in copy.output.tags and self.root(target) in self.tracked:
            self.detached.add(self.root(target))
        self.rename(copy, target)
        changed = {*self.above(target), *self.touched(target)} - {target}
        self.outdated.update(dict.fromkeys(changed, where))
        self.outdated.pop(target, None)


def _has_gradient(proxy: Proxy) -> bool:
    is_real = isinstance(proxy, TensorProxy) and dtypes.is_inexact_dtype(proxy.dtype)
    return is_real and _DETACHED not in proxy.tags


# ------------------------------------------------------------------------------------- the values


class _Rewriter(_Memories):
    """The second walk, which writes a trace without these writes.

    values: what a name stands for now, if not for itself; lost: names whose memory may have been
    written or not, with the view in doubt and the line of the write.
    """

    def __init__(self, trace: TraceCtx, seen: _Seen) -> None:
        super().__init__(seen.layouts)
        self.trace, self.roots, self.tracked = trace, seen.with_neighbours(), seen.tracked
        self.values: dict[str, TensorProxy] = {}
        self.lost: dict[str, tuple[Link, str]] = {}
        self.line = ""

    def follow(self, bsym: BoundSymbol) -> None:
        """Adds the bound symbol, or what stands in its place."""
        self.line = line_of(bsym)
        start = len(self.trace.bound_symbols)
        if bsym.sym.id is PrimIDs.RETURN:
            self._return(bsym)
        else:
            computing = (part for part in parts(bsym) if part.sym.id not in MOVES | COPIES)
            self._add(bsym, {proxy.name for part in computing for proxy in makes(part)})
        place = bsym.source_filename, bsym.source_positions
        for added in self.trace.bound_symbols[start:]:
            if added.source_filename is None:
                added.source_filename, added.source_positions = place

    def _add(self, bsym: BoundSymbol, computed: Set[str]) -> None:
        """computed: the values in new memory that the user's operation makes."""
        if not any(self.root(proxy.name) in self.roots for proxy in overwritten(bsym)):
            read = {proxy.name: proxy for part in (bsym, *parts(bsym)) for proxy in reads(part)}
            swaps = {variableify(proxy): self._value(proxy) for proxy in read.values()}
            changed = {old: new for old, new in swaps.items() if new is not old.proxy}
            self.trace.bound_symbols.append(
                bsym.from_bsym_swap_proxies(changed, skip_output=True)
            )
            self.link_all(bsym)
        elif bsym.sym.id in COPIES:
            self._copy(bsym, computed)
        else:
            for part in bsym.subsymbols:
                self._add(part, computed)

    def link_all(self, bsym: BoundSymbol) -> None:
        """What lies inside the bound symbol has no value in the trace."""
        super().link_all(bsym)
        results = {proxy.name for proxy in makes(bsym)}
        inside = {part.output.name for part in parts(bsym) if part.sym.id in MOVES}
        self.outdated.update(dict.fromkeys(inside - results, self.line))

    def _value(self, proxy: Any) -> Any:
        """What the proxy stands for now. An outdated view is recomputed from what it views."""
        name = self.of(proxy.name)
        if name in self.lost:
            raise _refusal(*self.lost[name])
        if name in self.outdated and self.root(name) in self.roots:
            step = self._step(name)
            if step is None:
                raise _refusal(self.links[name], self.outdated[name])
            viewed, *others = step.args
            self.values[name] = step.sym(self._value(viewed), *others, **step.kwargs)
            del self.outdated[name]
        return self.values.get(name, proxy)

    def _step(self, name: str) -> BoundSymbol | None:
        """What makes a view; None if that is unknown, or under no_grad."""
        link = self.links[name]
        if link.step is None or not link.is_sure:
            return None
        is_detached = _DETACHED in link.step.output.tags and self.root(name) in self.tracked
        return None if is_detached else link.step

    def _copy(self, copy: BoundSymbol, computed: Set[str]) -> None:
        source, target = reads(copy)[:2]
        name = self.of(target.name)
        is_detached = _DETACHED in copy.output.tags
        if is_detached and self.root(name) in self.tracked:
            raise _error("gradients on", "no_grad", self.line, "write to a detached clone")
        start = len(self.trace.bound_symbols)
        value = self._value(source)
        self._write(name, value if source.name in computed else prims.clone(value))
        self.rename(copy, name)
        for bsym in self.trace.bound_symbols[start:] if is_detached else ():
            for proxy in makes(bsym):
                proxy.tags.add(_DETACHED)

    def _write(self, name: str, value: TensorProxy) -> None:
        """The tensor has this value from now on, and so has its part of all that it views."""
        values = {name: value}
        for at in [other for other in self.above(name) if other in self.links]:
            step, maker = self._step(at), self.links[at].step
            inverse = _INVERSES.get(step.sym.id) if step else None
            overlaps = maker and elements_of(maker.output) > elements_of(maker.args[0])
            if not (step and inverse) or overlaps:
                # The write may have changed the others or not, and other parts of what overlaps.
                sure = name if overlaps else at
                for other in {*self.above(at), *self.touched(at)}:
                    if sure not in self.above(other):
                        self.lost[other] = self.links[at], self.line
                break
            viewed = step.args[0]
            value = inverse(step, self._value(viewed), value)
            values[self.of(viewed.name)] = value
        self.values.update(values)
        for written in values:
            self.outdated.pop(written, None)
        self.outdated.update(dict.fromkeys(self.touched(name), self.line))

    def _return(self, bsym: BoundSymbol) -> None:
        """Arguments get their values. Results are views of each other as in eager torch."""
        returned = bsym.args[0]
        for argument in returned["flat_args"]:
            if isinstance(argument, TensorProxy) and argument.name in self.roots:
                value = self._value(argument)
                if value is not argument:
                    ltorch.copy_(argument, value)
                    self.values[argument.name] = argument
        for name in self.memory.sharing(self.roots):
            steps = [self._step(at) for at in self.above(name) if at in self.links]
            if steps and None not in steps and name not in self.lost:
                self.outdated[name] = self.line
        first: dict[str, str] = {}

        def result(old: Any) -> Any:
            """Of two names of one tensor, each has a proxy."""
            if not isinstance(old, TensorProxy):
                return old
            value = self._value(old)
            is_first = first.setdefault(value.name, old.name) == old.name
            return value if is_first else prims.shallow_copy(value)

        output = tree_map(result, returned["output"])
        self.trace.bound_symbols.append(bsym.from_bsym(args=({**returned, "output": output},)))


def _refusal(link: Link, where: str) -> InPlaceError:
    if link.is_sure:
        got = f"a view made by {link.by}"
        do = "write to what it views, or clone it first"
    else:
        got = f"the result of {link.by}, a view for some strides and a copy for others"
        do = "call view instead, or clone the result to write to a copy"
    return _error("views that slice, reshape by view, squeeze or transpose", got, where, do)


def _of_argument(name: str, where: str) -> InPlaceError:
    """Autograd would have to make it a result of the function, which Thunder does not tell it."""
    return InPlaceError(
        "a write in place to an argument", where=where,
        expected="an argument without gradient, or a value that the function computes",
        got=f"{name}, which requires a gradient",
        do=f"write y = x * 2 instead of x.mul_(2), or begin with x = x.clone(){_SWITCH}",
    )  # fmt: skip


def _error(expected: str, got: str, where: str, do: str) -> InPlaceError:
    what = "a write in place that another name shows, where a gradient is taken"
    return InPlaceError(what, expected=expected, got=got, where=where, do=f"{do}{_SWITCH}")


# -------------------------------------------------------------------- a view's value -> its whole


def _slice_written(step: BoundSymbol, whole: TensorProxy, part: TensorProxy) -> TensorProxy:
    """The whole, with these elements in the slice."""
    if 0 in part.shape:
        return whole
    _, starts, _, strides = step.args
    widths = [
        (start, size - start - (count - 1) * stride - 1, stride - 1)
        for start, size, count, stride in zip(starts, whole.shape, part.shape, strides, strict=True)
    ]
    if not any(map(any, widths)):
        return part
    zero = dtypes.dtype_to_numbertype(part.dtype)(0)
    inside = prims.full(part.shape, True, device=part.device, dtype=dtypes.bool8)
    return prims.where(prims.pad(inside, False, widths), prims.pad(part, zero, widths), whole)


def _reshaped(step: BoundSymbol, whole: TensorProxy, part: TensorProxy) -> TensorProxy:
    return prims.reshape(part, whole.shape)


def _transposed(step: BoundSymbol, whole: TensorProxy, part: TensorProxy) -> TensorProxy:
    order = step.args[1]
    return prims.transpose(part, tuple(order.index(axis) for axis in range(len(order))))


# {a view: (the bound symbol, what it views, the written value) -> the value of what it views}
_INVERSES: Mapping[Any, Callable[[BoundSymbol, TensorProxy, TensorProxy], TensorProxy]] = {
    PrimIDs.SLICE: _slice_written,
    PrimIDs.RESHAPE: _reshaped,
    PrimIDs.SQUEEZE: _reshaped,
    PrimIDs.BROADCAST_IN_DIM: _reshaped,
    PrimIDs.TRANSPOSE: _transposed,
    **dict.fromkeys((PrimIDs.STRIDE_ORDER, PrimIDs.SHALLOW_COPY), lambda step, whole, part: part),
}
