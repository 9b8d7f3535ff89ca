# SPDX-License-Identifier: Apache-2.0
"""`Prepared`, which each pass over a trace takes and returns; and what a pass is: a named function
from one frozen plan of a trace to the next, checked after it ran."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.trace import TraceCtx, tracectx

from thunder_fuser.base.threads import cached_property
from thunder_fuser.compile_options import CompileOptions
from thunder_fuser.errors import VerifyError
from thunder_fuser.target import Target
from thunder_fuser.trace.dataflow import DataFlow
from thunder_fuser.trace.op import Op, Rules


@dataclass(frozen=True)
class Prepared:
    """A joint or inference trace between two passes. trace: it gives new values their names."""

    trace: TraceCtx
    ops: tuple[Op, ...]
    rules: Rules
    target: Target
    options: CompileOptions

    @cached_property
    def flow(self) -> DataFlow:
        """Who reads a value, which memory it has, and what is written."""
        return DataFlow(self.ops)

    def with_ops(self, ops: Iterable[Op]) -> Prepared:
        return replace(self, ops=tuple(ops))

    def in_order(self, places: Sequence[int]) -> Prepared:
        """The trace with its ops in the order of these places."""
        if places == [*range(len(self.ops))]:
            return self
        return self.with_ops(self.ops[at] for at in places)

    def renamed(self, proxy: Proxy, suffix: str) -> Proxy:
        """A proxy like this one with a new name, for a copy of its value."""
        with tracectx(self.trace):
            return proxy.replace_name(f"{proxy.name}{suffix}", disambiguate=True)

    @property
    def has_backward(self) -> bool:
        return any(op.is_backward for op in self.ops)

    def verify(self, name: str, before: Prepared) -> None:
        """VerifyError unless values are made before they are read, all results are still returned,
        and no value changes its type. name: of the pass between the two."""
        plans = self.ops, before.ops
        values, known = ({it.name: it for op in ops for it in op.makes} for ops in plans)
        for value in values.keys() & known.keys():
            now, then = values[value], known[value]
            if now is not then and type_of(now) != type_of(then):
                raise _error(name, value, f"type {type_of(then)}", str(type_of(now)))
        ready: set[str] = set()
        for op in self.ops:
            for value in op.read_names:
                if value not in ready and (value in values or value in known):
                    got = "read before it is made" if value in values else "read but not made"
                    raise _error(name, value, f"made before {op.bsym.sym.name} reads it", got)
            ready.update(op.made_names)
        if lost := _returned(before.ops) ^ _returned(self.ops):
            raise _error(name, ", ".join(sorted(lost)), "returned as before", "other results")


def type_of(proxy: Proxy) -> object:
    """What a pass must keep of a value."""
    is_tensor = isinstance(proxy, TensorProxy)
    return (proxy.dtype, tuple(proxy._shape), proxy.device) if is_tensor else type(proxy)


def _returned(ops: Sequence[Op]) -> set[str]:
    return {name for op in ops[-1:] if op.is_return for name in op.read_names}


def _error(name: str, value: str, expected: str, got: str) -> VerifyError:
    return VerifyError(f"{value} after the trace pass {name}", expected=expected, got=got)


# ------------------------------------------------------------------------------------------- passes


class Verified(Protocol):
    """A plan. `verify` raises VerifyError if this one cannot follow from the plan before."""

    def verify(self, name: str, before: Any) -> None: ...


P = TypeVar("P", bound=Verified)


@dataclass(frozen=True, slots=True)
class Pass(Generic[P]):
    """One row of a table of passes. needed: why it cannot be left out; empty if it can."""

    run: Callable[[P], P]
    needed: str = ""

    @property
    def name(self) -> str:
        return self.run.__name__


def run_passes(
    passes: Sequence[Pass[P]],
    plan: P,
    skipped: Collection[str] = (),
    note: Callable[[str, P], None] = lambda name, plan: None,
) -> P:
    """The plan after all passes, each of which is verified.

    skipped: the names of passes to leave out. note: is called with each pass's name and its plan.
    """
    for each in passes:
        if each.name in skipped:
            continue
        after = each.run(plan)
        if after is not plan:
            after.verify(each.name, plan)
        note(each.name, after)
        plan = after
    return plan
