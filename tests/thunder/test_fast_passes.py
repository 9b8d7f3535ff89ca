# SPDX-License-Identifier: Apache-2.0
"""Functions of Thunder's passes: the same results and errors as Thunder's own."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import optree
import pytest
import thunder
import torch
from thunder.core import dtypes, prims, pytree, symbol, utils
from thunder.core.proxies import CollectionProxy, TensorProxy, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.core.trace_interpreter import TraceSubstitutionProcessor
from thunder.distributed import prims as distributed

from thunder_fuser.executors import fast_passes, fast_symbols
from thunder_fuser.executors.fuser import fuser

Pair = namedtuple("Pair", "one other")


@dataclass
class Output:
    """As a model of transformers returns it."""

    logits: Any
    cache: list[Any] = field(default_factory=list)


def proxy(name: str = "t0") -> TensorProxy:
    with tracectx(TraceCtx(None)):
        return TensorProxy(
            name, shape=(2,), device=thunder.core.devices.cpu, dtype=dtypes.float32,
            requires_grad=False,
        )  # fmt: skip


TREES: tuple[Any, ...] = (
    (), [], {}, None, (1, [2.0, {"b": None, "a": (3,)}], "text"), Pair(1, [2]), torch.Size([2, 3]),
    slice(1, 2), (slice(0, None), torch.Size([1])), dtypes.float32, 3, True, 2.5, "text",
    (torch.float32, torch.device("cpu")), [torch.Size([])], OrderedDict(b=1, a=2),
    [OrderedDict(b=1, a=2)],
)  # fmt: skip


@pytest.mark.parametrize("tree", TREES, ids=repr)
@pytest.mark.parametrize("name", ["tree_flatten", "tree_flatten_with_dataclass"])
def test_leaves_and_structures_are_the_same(name: str, tree: Any) -> None:
    of_thunder = {
        "tree_flatten": fast_passes._flatten_of_thunder,
        "tree_flatten_with_dataclass": fast_passes._peel_of_thunder,
    }[name]
    try:
        expected = of_thunder(tree)
    except TypeError as error:
        with pytest.raises(TypeError) as caught:
            getattr(fast_passes, name)(tree)
        assert str(caught.value) == str(error)
    else:
        leaves, spec = getattr(fast_passes, name)(tree)
        assert leaves == expected[0] and spec == expected[1]
        assert optree.tree_unflatten(spec, leaves) == tree


def test_proxies_and_what_is_in_dataclasses_are_leaves() -> None:
    one = proxy()
    assert fast_passes.tree_flatten(one)[0] == [one]
    assert fast_passes.tree_flatten_with_dataclass((one, 1))[0] == [one, 1]
    for tree in (Output(one), (Output(one, [2]), 3), {"a": [Output(one)]}):
        leaves, spec = fast_passes.tree_flatten_with_dataclass(tree)
        assert any(leaf is one for leaf in leaves)
        assert (leaves, spec) == fast_passes._peel_of_thunder(tree)


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_bound_symbols_have_the_same_leaves(tree: Any) -> None:
    one = proxy()
    expected = fast_passes._peel_of_thunder(((tree, one), {"b": tree, "a": 1}))[0]
    made = BoundSymbol(prims.add, (tree, one), {"b": tree, "a": 1}, tree)
    assert made.flat_args == expected and list(made.flat_proxy_args) == [one]
    made = BoundSymbol(prims.add, (), {}, (tree, one))
    assert made.flat_outs == fast_passes._peel_of_thunder((tree, one))[0]


def test_a_result_of_unknown_type_is_refused_as_before() -> None:
    with pytest.raises(TypeError, match="OrderedDict"):
        BoundSymbol(prims.add, (), {}, OrderedDict(a=1)).flat_outs


def with_all(tree: Any, *proxies: Any) -> BoundSymbol:
    part = BoundSymbol(prims.neg, (proxies[0],), {}, proxies[1])
    return BoundSymbol(prims.add, (tree, *proxies), {"a": proxies[0]}, (tree, *proxies), [part])


def told(bsym: BoundSymbol) -> Any:
    parts = [told(one) for one in bsym.subsymbols]
    return bsym.sym, bsym.args, bsym.kwargs, bsym.output, bsym.tags, parts


@pytest.mark.parametrize("skipped", [(), (True,), (False, True), (False, False, True)])
def test_proxies_are_swapped_as_before(skipped: tuple[bool, ...]) -> None:
    one, other, third = map(proxy, ("t1", "t2", "t3"))
    chain = {variableify(one): other, variableify(other): third, variableify(third): third}
    for tree in (*TREES, Output(one, [other]), [one, {"b": other}]):
        bsym = with_all(tree, one, other)
        found = bsym.from_bsym_swap_proxies(chain, *skipped)
        expected = fast_symbols._swap_of_thunder(bsym, chain, *skipped)
        assert told(found) == told(expected) and found is not bsym
    assert bsym.from_bsym_swap_proxies({}) is bsym


def test_proxies_in_collections_and_in_circles() -> None:
    one, other = map(proxy, ("t1", "t2"))
    with tracectx(TraceCtx(None)):
        box = CollectionProxy([one, {"a": one}], name="C0")
    assert fast_symbols.swapped((box,), {variableify(one): other}) == (box,)
    assert box.collection() == [other, {"a": other}]
    with pytest.raises(RuntimeError, match="Detected a cycle"):
        fast_symbols.swapped(one, {variableify(one): other, variableify(other): one})


def test_producers_are_the_same() -> None:
    one, other, third = map(proxy, ("t1", "t2", "t3"))
    made = [
        BoundSymbol(prims.neg, (one,), {}, other), BoundSymbol(prims.neg, (one,), {}, one),
        BoundSymbol(prims.neg, (other,), {}, (third, other)),
        BoundSymbol(prims.comment, ("text",), {}, one), BoundSymbol(prims.neg, (one,), {}, third),
    ]  # fmt: skip
    for given in ({}, {"_map_to_numbers": True}):
        expected = fast_symbols._producers_of_thunder(made, **given)._dict
        assert utils.producers(made, **given)._dict == expected
    assert expected == {"t2": 0, "t3": 2}


def test_thunder_calls_them() -> None:
    assert utils.producers is fast_symbols.producers
    assert symbol.tree_flatten_with_dataclass is fast_passes.tree_flatten_with_dataclass
    assert utils.tree_flatten is pytree.tree_flatten is fast_passes.tree_flatten


def test_arguments_are_bound_as_before() -> None:
    one = proxy()
    assert prims.add.normalize(one, 2) == ((one, 2), {})
    shape = {"shape": (2,), "device": one.device, "dtype": one.dtype}
    assert prims.full.normalize((2,), 1.0, device=one.device, dtype=one.dtype) == (
        ((2,), 1.0), {name: shape[name] for name in ("device", "dtype")}
    )  # fmt: skip
    with pytest.raises(TypeError, match="missing a required argument"):
        prims.add.normalize(one)
    symbol_of_a_method = symbol.Symbol("made", Output(1).cache.append)
    assert symbol_of_a_method.normalize(3) == ((3,), {})


def claims(monkeypatch: pytest.MonkeyPatch, **given: Any) -> int:
    """How often Thunder substitutes the bound symbols of a trace while it compiles a function."""
    found, run = [], TraceSubstitutionProcessor.__call__

    def noted(self: Any) -> Any:
        found.append(self)
        return run(self)

    x = torch.randn(3, 3)
    with monkeypatch.context() as patch:
        patch.setattr(TraceSubstitutionProcessor, "__call__", noted)
        jitted = thunder.jit(lambda x: torch.sin(x @ x) * 2, **given)
        torch.testing.assert_close(jitted(x), torch.sin(x @ x) * 2)
    return len(found)


def test_operations_are_claimed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, ours = claims(monkeypatch, executors=[]), claims(monkeypatch, executors=[fuser])
    assert ours == alone - 1
    monkeypatch.setattr(fast_passes, "_waits", lambda trace: True)
    assert claims(monkeypatch, executors=[fuser]) == alone


def test_a_trace_that_waits_for_a_collective() -> None:
    """The primitive of Thunder may be a part of a bound symbol."""
    trace = TraceCtx(None)
    trace.bound_symbols = [symbol.BoundSymbol(prims.add, (1, 2), {}, 3)]
    assert not fast_passes._waits(trace)
    wait = symbol.BoundSymbol(distributed.wait, (), {}, None)
    trace.bound_symbols.append(symbol.BoundSymbol(prims.add, (1, 2), {}, 3, (wait,)))
    assert fast_passes._waits(trace)


def test_a_model_returns_a_dataclass() -> None:
    """One that Thunder has not seen before."""

    @dataclass
    class Fresh:
        scaled: Any

    def function(x: torch.Tensor) -> Any:
        return Fresh(x * 2)

    x = torch.randn(3, requires_grad=True)
    found = thunder.jit(function)(x)
    assert isinstance(found, Fresh) and torch.equal(found.scaled, x * 2)
    found.scaled.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full((3,), 2.0))
