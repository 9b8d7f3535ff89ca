# SPDX-License-Identifier: Apache-2.0
"""Ops of a trace, and the check after each pass: it finds values lost, moved or of another type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import thunder
import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx, tracectx

from thunder_fuser.errors import VerifyError
from thunder_fuser.executors.pipeline import TRACE_PASSES, read_trace
from thunder_fuser.options import compile_options
from thunder_fuser.target import CPU
from thunder_fuser.trace.prepared import Pass, Prepared, run_passes


def function(x: Any, w: Any) -> Any:
    y = ltorch.softmax(x, -1) * 2
    return ltorch.tanh(y @ w) + y, y


def prepared(call: Callable[..., Any] = function) -> Prepared:
    trace = thunder.trace()(call, torch.randn(4, 4), torch.randn(4, 4))
    return read_trace(trace, CPU, compile_options())


def test_an_op_says_what_its_bound_symbol_reads_and_makes() -> None:
    (softmax,) = (op for op in prepared().ops if op.bsym.sym.id == "torch.softmax")
    assert {"amax", "sub", "exp", "sum", "div"} <= {leaf.sym.name for leaf in softmax.leaves}
    assert [proxy.name for proxy in softmax.reads] == ["x"]
    assert softmax.is_fusible and not softmax.is_backward and not softmax.is_view
    assert softmax.region is None


def test_what_torch_runs_has_itself_for_a_leaf_and_says_why() -> None:
    (product,) = (op for op in prepared().ops if op.bsym.sym.name == "matmul")
    assert product.leaves == (product.bsym,) and str(product.refusal) == "torch has a kernel for it"


def test_what_is_written_and_what_shares_memory() -> None:
    def written(x: Any, w: Any) -> Any:
        v = x.view(2, 8)
        v.mul_(3.0)
        return w + 1

    ops = prepared(written).ops
    (view,) = (op for op in ops if op.bsym.sym.name == "view")
    names = {proxy.name for proxy in (*view.reads, *view.makes)}
    assert "x" in names and {*view.shares[0]} == names
    (write,) = (op for op in ops if op.writes)
    assert view.makes[0].name in write.writes[0]


def test_twice_is_once() -> None:
    """The passes have nothing to do in a trace that they have prepared, but number its regions."""
    once = run_passes(TRACE_PASSES, prepared())
    twice = run_passes(TRACE_PASSES, once)
    assert [op.bsym for op in twice.ops] == [op.bsym for op in once.ops]
    assert [op.region for op in twice.ops] == [op.region for op in once.ops]


def lose(given: Prepared) -> Prepared:
    return given.with_ops(op for op in given.ops if op.bsym.sym.id != "torch.softmax")


def swap(given: Prepared) -> Prepared:
    first, *rest = given.ops
    return given.with_ops([*reversed(rest[:-1]), first, rest[-1]])


def retype(given: Prepared) -> Prepared:
    def double(proxy: Any) -> Any:
        with tracectx(TraceCtx(None)):
            return TensorProxy(proxy.name, like=proxy, dtype=dtypes.float64)

    return given.with_ops(
        replace(op, makes=tuple(map(double, op.makes))) if op.bsym.sym.name == "tanh" else op
        for op in given.ops
    )


def return_less(given: Prepared) -> Prepared:
    *rest, last = given.ops
    return given.with_ops([*rest, replace(last, reads=last.reads[:1])])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lose, "read but not made"),
        (swap, "read before it is made"),
        (retype, "float64"),
        (return_less, "other results"),
    ],
)
def test_a_broken_pass_is_named(broken: Callable[[Prepared], Prepared], message: str) -> None:
    with pytest.raises(VerifyError, match=f"{broken.__name__}(.|\n)*{message}"):
        run_passes((Pass(broken),), prepared())
