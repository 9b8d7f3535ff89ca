# SPDX-License-Identifier: Apache-2.0
"""What reads the results of a region alone joins it, though in-place copies stand between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from thunder.core import dtypes
from thunder.core.devices import cpu
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx, tracectx

from thunder_fuser.explain.jitted import jit
from thunder_fuser.options import compile_options
from thunder_fuser.target import CPU
from thunder_fuser.trace.op import Op, Reject
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import shared_by, written_by
from thunder_fuser.trace.rewrites.join_across_copies import join_across_copies

IDS = {"f": PrimIDs.EXP, "v": PrimIDs.RESHAPE, "w": PrimIDs.COPY_, "x": "linear"}


def tensor(number: int, size: int = 2) -> TensorProxy:
    return TensorProxy(
        f"t{number}", shape=(size,), device=cpu, dtype=dtypes.float32, requires_grad=False
    )


def op(kind: str, makes: int, *reads: int, size: int = 2) -> Op:
    """f is fusible, v a view, w writes its second operand, x a product; t0 and t-1 are given."""
    with tracectx(TraceCtx(None)):
        args, out = tuple(map(tensor, dict.fromkeys(reads))), tensor(makes, size)
    sym = SimpleNamespace(id=IDS[kind], executor=None, tags=())
    bsym: Any = SimpleNamespace(
        sym=sym, args=args, kwargs={}, output=out, subsymbols=(), tags=()
    )
    refusal = None if kind in "fv" else Reject("torch runs it")
    writes, shares = tuple(written_by(bsym)), () if kind == "x" else tuple(shared_by(bsym))
    kinds = frozenset({IDS[kind]})
    return Op(bsym, (bsym,), args, (out,), refusal, False, None, kinds, writes, shares)


def order(*ops: Op) -> list[int]:
    rules: Any = None
    prepared = Prepared(TraceCtx(None), ops, rules, CPU, compile_options())
    places = {id(one): at for at, one in enumerate(ops)}
    return [places[id(one)] for one in join_across_copies(prepared).ops]


def test_a_reader_of_the_region_joins_it() -> None:
    assert order(op("f", 1, 0), op("w", 2, 1, 0), op("f", 3, 1)) == [0, 2, 1]


def test_across_several_copies() -> None:
    ops = op("f", 1, 0), op("w", 2, 1, 0), op("w", 4, 1, 8), op("f", 3, 1), op("x", 5, 3)
    assert order(*ops) == [0, 3, 1, 2, 4]


def test_with_what_it_reads_besides() -> None:
    """A value of an earlier product, as a residual is; and what is made of that alone."""
    ops = op("x", 1, 0), op("f", 2, 1), op("w", 3, 2, 0), op("f", 4, 1), op("f", 5, 2, 4)
    assert order(*ops) == [0, 1, 3, 4, 2]


def test_the_rest_stays_behind() -> None:
    ops = op("f", 1, 0), op("w", 2, 1, 0), op("f", 3, 1), op("f", 4, 3, 0)
    assert order(*ops) == [0, 2, 1, 3]


STAY = {
    "reads an argument": (op("f", 1, 0), op("w", 2, 1, 8), op("f", 3, 1, 0)),
    "reads a view of one": (op("v", 4, 0), op("f", 1, 4), op("w", 2, 1, 8), op("f", 3, 1, 4)),
    "reads what is written": (op("f", 1, 0), op("w", 2, 0, 1), op("f", 3, 1)),
    "reads the copy": (op("f", 1, 0), op("w", 2, 1, 0), op("f", 3, 1, 2)),
    "reads nothing of the region": (
        op("x", 1, 0), op("f", 2, 0), op("w", 3, 2, 0), op("f", 4, 1),
    ),
    "a product between": (op("f", 1, 0), op("w", 2, 1, 0), op("x", 5, 1), op("f", 3, 1)),
    "a larger value to hand on": (
        op("f", 1, 0), op("w", 2, 1, 0), op("f", 3, 1, size=9), op("f", 4, 3, 0),
    ),
    "no copy": (op("f", 1, 0), op("x", 2, 1), op("f", 3, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", STAY)
def test_it_does_not_fire(name: str) -> None:
    assert order(*STAY[name]) == list(range(len(STAY[name])))


@st.composite
def traces(draw: st.DrawFn) -> list[Op]:
    count = draw(st.integers(1, 24))
    kinds = draw(st.lists(st.sampled_from("fffvwwx"), min_size=count, max_size=count))
    made: list[Op] = []
    for at, kind in enumerate(kinds):
        most = {"w": 2, "v": 1}.get(kind, 3)
        least = 2 if kind == "w" else 1
        places = st.lists(st.integers(-1, at), min_size=least, max_size=most, unique=True)
        made.append(op(kind, at + 1, *draw(places), size=draw(st.integers(1, 4))))
    return made


@given(traces())
def test_no_read_of_memory_that_may_be_written_moves(ops: list[Op]) -> None:
    found = order(*ops)
    assert sorted(found) == list(range(len(ops)))
    made, shared = {"t0", "t-1"}, {"t0", "t-1"}
    for one in [*ops, *reversed(ops), *ops]:
        views = {*one.read_names, *one.made_names}
        if one.bsym.sym.id is PrimIDs.COPY_:
            shared.update([one.read_names[1], *one.made_names])
        elif one.bsym.sym.id is PrimIDs.RESHAPE and shared & views:
            shared |= views
    writes = [at for at, one in enumerate(ops) if one.bsym.sym.id is PrimIDs.COPY_]
    for at in found:
        assert made.issuperset(ops[at].read_names)
        made.update(ops[at].made_names)
    for at, one in enumerate(ops):
        if at in writes or shared & {*one.read_names}:
            for write in writes:
                assert (at < write) == (found.index(at) < found.index(write)) or at == write


def test_a_read_of_unknown_memory_of_the_same_stays_behind_the_write() -> None:
    """Beside arguments that nothing reads, Thunder takes others for those that share memory."""

    def function(a: Any, b: Any, c: Any, alias: Any) -> Any:
        y = torch.exp(c)
        alias.copy_(y)
        return torch.log(y) + a

    def arguments() -> tuple[torch.Tensor, ...]:
        a, b, c = (torch.ones((), dtype=torch.float64) for _ in range(3))
        return a, b, c, a.view(())

    torch.testing.assert_close(jit(function, strict=True)(*arguments()), function(*arguments()))
