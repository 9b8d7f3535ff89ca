# SPDX-License-Identifier: Apache-2.0
"""In-place copies and fences go behind fusible ops, up to one that reads what they write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from thunder.core import dtypes
from thunder.core.devices import cpu
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx, tracectx

from thunder_fuser.executors.traces import final_traces, jit
from thunder_fuser.options import compile_options
from thunder_fuser.target import CPU
from thunder_fuser.trace.op import Op, Reject
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.sink_copies import sink_copies

IDS = {"f": PrimIDs.EXP, "c": PrimIDs.COPY_, "v": PrimIDs.RESHAPE, "x": "linear"}


def op(kind: str, makes: int, *reads: int) -> Op:
    """f is fusible, v a view of torch's, x a torch call; c copies its first operand to another."""
    with tracectx(TraceCtx(None)):
        args, out = tuple(map(tensor, reads)), tensor(makes)
    bsym: Any = SimpleNamespace(sym=SimpleNamespace(id=IDS[kind]), args=args, kwargs={}, output=out)
    names = tuple(f"t{one}" for one in (*reads, makes))
    return Op(
        bsym, (bsym,), args, (out,), None if kind == "f" else Reject("torch runs it"), False, None,
        frozenset({IDS[kind]}),
        writes=(names[1:],) if kind == "c" else (),
        shares=(names,) if kind == "v" else (),
    )  # fmt: skip


def tensor(number: int) -> TensorProxy:
    given = {"shape": (2,), "device": cpu, "dtype": dtypes.float32, "requires_grad": False}
    return TensorProxy(f"t{number}", **given)


def order(*ops: Op) -> list[int]:
    rules: Any = None
    prepared = Prepared(TraceCtx(None), ops, rules, CPU, compile_options())
    places = {id(one): at for at, one in enumerate(ops)}
    after = sink_copies(prepared)
    assert sink_copies(after) is after
    return [places[id(one)] for one in after.ops]


def test_a_copy_goes_behind_the_fusible_ops_after_it() -> None:
    # mean, copied to the buffer t9; then what else reads the mean
    assert order(op("f", 1, 0), op("c", 2, 1, 9), op("f", 3, 1), op("x", 4, 3)) == [0, 2, 1, 3]


def test_copies_keep_their_order() -> None:
    ops = op("c", 2, 1, 8), op("f", 3, 1), op("c", 4, 3, 9), op("f", 5, 3)
    assert order(*ops) == [1, 3, 0, 2]


def test_a_copy_stays_before_what_reads_its_result() -> None:
    assert order(op("c", 2, 1, 9), op("f", 3, 1), op("f", 4, 2), op("f", 5, 1)) == [1, 0, 2, 3]


def test_a_copy_stays_before_what_reads_the_tensor_under_another_name() -> None:
    # t8 is a view of the buffer t9
    ops = op("v", 8, 9), op("c", 2, 1, 9), op("f", 3, 8), op("f", 4, 1)
    assert order(*ops) == [0, 1, 2, 3]


def test_a_second_copy_to_one_tensor_comes_second() -> None:
    ops = op("c", 2, 1, 9), op("f", 3, 1), op("c", 4, 3, 2), op("f", 5, 1)
    assert order(*ops) == [1, 3, 0, 2]


def test_a_copy_passes_nothing_that_torch_runs() -> None:
    assert order(op("c", 2, 1, 9), op("x", 3, 1), op("f", 4, 3)) == [0, 1, 2]


def test_a_trace_without_copies_stays_as_it_is() -> None:
    assert order(op("f", 1, 0), op("x", 2, 1), op("f", 3, 2)) == [0, 1, 2]


def test_buffers_between_are_written_and_the_ops_are_one_region() -> None:
    def function(x: torch.Tensor, mean: torch.Tensor, power: torch.Tensor) -> torch.Tensor:
        mean.copy_(x.mean(0))
        power.copy_((x * x).mean(0))
        return x.exp() - x.mean(0)

    x, mean, power = torch.randn(4, 3), torch.zeros(3), torch.zeros(3)
    jitted = jit(function, strict=True)
    torch.testing.assert_close(jitted(x, mean, power), x.exp() - x.mean(0))
    torch.testing.assert_close(mean, x.mean(0))
    torch.testing.assert_close(power, (x * x).mean(0))
    (trace,) = final_traces(jitted)
    assert sum(bsym.sym.is_fusion for bsym in trace.bound_symbols) == 1
