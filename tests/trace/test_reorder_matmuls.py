# SPDX-License-Identifier: Apache-2.0
"""Matrix products step aside where one fusible op reads another across them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from helpers.cases import rand
from helpers.exactness import assert_as_exact_as_eager, with_gradients
from hypothesis import given
from hypothesis import strategies as st
from thunder.core import dtypes
from thunder.core.devices import cpu
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.torchex import ex as torch_executor

from thunder_fuser.explain.jitted import final_traces, jit
from thunder_fuser.options import compile_options
from thunder_fuser.target import CPU
from thunder_fuser.trace.op import Op, Reject
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.rewrites.reorder_matmuls import reorder_matmuls

IDS = {
    "f": PrimIDs.EXP, "c": PrimIDs.CONVERT_ELEMENT_TYPE, "p": "linear", "v": PrimIDs.RESHAPE,
    "x": "x",
}  # fmt: skip


def tensor(number: int, dtype: dtypes.dtype) -> TensorProxy:
    return TensorProxy(
        f"t{number}", shape=(2,), device=cpu, dtype=dtype, requires_grad=False
    )


def op(kind: str, makes: int, *reads: int) -> Op:
    """f is fusible, c a cast to a wider type, p a product, v a view, x none of these."""
    with tracectx(TraceCtx(None)):
        args = tuple(tensor(read, dtypes.float16) for read in dict.fromkeys(reads or (0,)))
        out = tensor(makes, dtypes.float32)
    sym = SimpleNamespace(id=IDS[kind], executor=torch_executor)
    bsym: Any = SimpleNamespace(sym=sym, args=args, kwargs={}, output=out)
    refusal = None if kind in "fcv" else Reject("torch runs it")
    return Op(bsym, (bsym,), args, (out,), refusal, False, None, frozenset({IDS[kind]}))


def order(*ops: Op) -> list[int]:
    rules: Any = None
    prepared = Prepared(TraceCtx(None), ops, rules, CPU, compile_options())
    places = {id(one): at for at, one in enumerate(ops)}
    return [places[id(one)] for one in reorder_matmuls(prepared).ops]


def test_a_product_that_does_not_read_the_first_goes_before() -> None:
    assert order(op("f", 1, 0), op("p", 2, 0), op("f", 3, 1, 2)) == [1, 0, 2]


def test_one_that_does_goes_after() -> None:
    assert order(op("f", 1, 0), op("p", 2, 1), op("f", 3, 1)) == [0, 2, 1]


def test_with_views_between() -> None:
    assert order(op("f", 1, 0), op("v", 2, 1), op("p", 3, 2), op("f", 4, 1)) == [0, 1, 3, 2]


def test_what_an_op_reads_besides_comes_with_it() -> None:
    """An op on values from before, alone, is nobody's; read by one that joins, it joins too."""
    ops = op("f", 1, 0), op("p", 2, 1), op("f", 3, 0), op("f", 4, 3, 1), op("f", 5, 2)
    assert order(*ops) == [0, 2, 3, 1, 4]


def test_and_what_another_reader_of_that_reads() -> None:
    """t5 joins as it reads t3, which t4 brings; so t6 has to come, though nothing else reads it."""
    ops = op("f", 1, 0), op("p", 2, 0), op("f", 3, 0), op("f", 6, 0), op("f", 4, 3, 1)
    assert order(*ops, op("f", 5, 3, 6), op("f", 7, 0)) == [1, 0, 2, 3, 4, 5, 6]


def test_a_cast_comes_with_its_reader() -> None:
    ops = op("f", 1, 0), op("p", 2, 1), op("c", 3, 1), op("f", 4, 3), op("f", 5, 2)
    assert order(*ops) == [0, 2, 3, 1, 4]


def test_twice_is_once() -> None:
    ops = op("f", 1, 0), op("p", 2, 0), op("v", 3, 1), op("p", 4, 3), op("f", 5, 1, 2)
    once = [ops[at] for at in order(*ops)]
    assert order(*once) == list(range(len(ops)))


def test_it_does_not_fire() -> None:
    stays = [
        (op("f", 1, 0), op("p", 2, 1), op("f", 3, 2)),  # needs the product
        (op("f", 1, 0), op("p", 2, 1), op("f", 3, 1, 2)),
        (op("f", 1, 0), op("p", 2, 0), op("f", 3, 0)),  # does not read the first
        (op("f", 1, 0), op("x", 2, 0), op("f", 3, 1)),  # in-place copies, random ops, ...
        (op("f", 1, 0), op("p", 2, 1), op("c", 3, 1), op("f", 4, 2, 3)),  # a cast for the others
    ]
    for ops in stays:
        assert order(*ops) == list(range(len(ops)))


@st.composite
def traces(draw: st.DrawFn) -> list[Op]:
    count = draw(st.integers(1, 24))
    kinds = draw(st.lists(st.sampled_from("fffcppvx"), min_size=count, max_size=count))
    return [
        op(kind, at + 1, *draw(st.lists(st.integers(0, at), max_size=3)))
        for at, kind in enumerate(kinds)
    ]


def kind_of(op: Op) -> str:
    return next(kind for kind, id in IDS.items() if id == op.bsym.sym.id)


@given(traces())
def test_any_order_is_one_that_can_run(ops: list[Op]) -> None:
    found = order(*ops)
    assert sorted(found) == list(range(len(ops)))
    made = {"t0"}
    for at in found:
        assert all(proxy.name in made for proxy in ops[at].reads)
        made.add(ops[at].makes[0].name)
    for at, one in enumerate(ops):
        if kind_of(one) == "x":  # nothing passes it
            assert set(found[: found.index(at)]) == set(range(at))


@given(traces())
def test_runs_become_fewer(ops: list[Op]) -> None:
    once = [ops[at] for at in order(*ops)]
    assert runs(once) <= runs(ops)


def runs(ops: list[Op]) -> int:
    """How many runs there are with an op that computes."""
    kinds = "".join(map(kind_of, ops)).replace("p", " ").replace("x", " ")
    return sum("f" in run or "c" in run for run in kinds.split())


Tensor = torch.Tensor


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def test_swiglu_is_one_fusion_each_way() -> None:
    weights = [rand(40, 16), rand(40, 16, seed=1), rand(16, 40, seed=2)]
    inputs = [rand(8, 16, seed=3), *weights]
    jitted = jit(swiglu, strict=True)
    got = with_gradients(jitted, inputs)
    exact = with_gradients(swiglu, [one.double() for one in inputs])
    assert_as_exact_as_eager(got, with_gradients(swiglu, inputs), exact)
    forward, backward = (str(trace) for trace in final_traces(jitted)[:2])
    assert forward.count("= thunderFusion") == 1
    # The silu's and the product's gradients; and the sum of both parts of dx.
    assert backward.count("= thunderFusion") == 2
