# SPDX-License-Identifier: Apache-2.0
"""Functions of Thunder's passes: the same results and errors as Thunder's own."""

from __future__ import annotations

import re
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import optree
import pytest
import thunder
import torch
from thunder.core import (
    codeutils,
    dtypes,
    jit_ext,
    prims,
    pytree,
    symbol,
    trace_interpreter,
    transform_common,
    utils,
)
from thunder.core.proxies import CollectionProxy, TensorProxy, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.core.trace_interpreter import TraceSubstitutionProcessor
from thunder.distributed import prims as distributed

from thunder_fuser.executors.fuser import fuser
from thunder_fuser.thunder_patches import bound_symbols, passes

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
        "tree_flatten": passes._flatten_of_thunder,
        "tree_flatten_with_dataclass": passes._peel_of_thunder,
    }[name]
    try:
        expected = of_thunder(tree)
    except TypeError as error:
        with pytest.raises(TypeError) as caught:
            getattr(passes, name)(tree)
        assert str(caught.value) == str(error)
    else:
        leaves, spec = getattr(passes, name)(tree)
        assert leaves == expected[0] and spec == expected[1]
        assert optree.tree_unflatten(spec, leaves) == tree


def test_proxies_and_what_is_in_dataclasses_are_leaves() -> None:
    one = proxy()
    assert passes.tree_flatten(one)[0] == [one]
    assert passes.tree_flatten_with_dataclass((one, 1))[0] == [one, 1]
    for tree in (Output(one), (Output(one, [2]), 3), {"a": [Output(one)]}):
        leaves, spec = passes.tree_flatten_with_dataclass(tree)
        assert any(leaf is one for leaf in leaves)
        assert (leaves, spec) == passes._peel_of_thunder(tree)


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_bound_symbols_have_the_same_leaves(tree: Any) -> None:
    one = proxy()
    expected = passes._peel_of_thunder(((tree, one), {"b": tree, "a": 1}))[0]
    made = BoundSymbol(prims.add, (tree, one), {"b": tree, "a": 1}, tree)
    assert made.flat_args == expected and list(made.flat_proxy_args) == [one]
    made = BoundSymbol(prims.add, (), {}, (tree, one))
    assert made.flat_outs == passes._peel_of_thunder((tree, one))[0]


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
        expected = bound_symbols._swap_of_thunder(bsym, chain, *skipped)
        assert told(found) == told(expected) and found is not bsym
    assert bsym.from_bsym_swap_proxies({}) is bsym


def test_proxies_in_collections_and_in_circles() -> None:
    one, other = map(proxy, ("t1", "t2"))
    with tracectx(TraceCtx(None)):
        box = CollectionProxy([one, {"a": one}], name="C0")
    assert bound_symbols.swapped((box,), {variableify(one): other}) == (box,)
    assert box.collection() == [other, {"a": other}]
    with pytest.raises(RuntimeError, match="Detected a cycle"):
        bound_symbols.swapped(one, {variableify(one): other, variableify(other): one})


def test_a_long_chain_of_replacements_is_followed_once() -> None:
    """Each write in place adds a link: a loop of 2048 followed two million."""
    proxies = [proxy(f"t{at}") for at in range(100)]
    links = {variableify(a): b for a, b in pairwise(proxies)}
    assert bound_symbols.swapped((proxies[3],), links) == (proxies[-1],)
    assert links[variableify(proxies[3])] is proxies[-1]
    assert links[variableify(proxies[50])] is proxies[-1]
    assert links[variableify(proxies[2])] is proxies[3]


def test_producers_are_the_same() -> None:
    one, other, third = map(proxy, ("t1", "t2", "t3"))
    made = [
        BoundSymbol(prims.neg, (one,), {}, other), BoundSymbol(prims.neg, (one,), {}, one),
        BoundSymbol(prims.neg, (other,), {}, (third, other)),
        BoundSymbol(prims.comment, ("text",), {}, one), BoundSymbol(prims.neg, (one,), {}, third),
    ]  # fmt: skip
    for given in ({}, {"_map_to_numbers": True}):
        expected = bound_symbols._producers_of_thunder(made, **given)._dict
        assert utils.producers(made, **given)._dict == expected
    assert expected == {"t2": 0, "t3": 2}


def test_what_is_printed_is_the_same() -> None:
    one, thing = proxy(), object()
    for tree in (*TREES, (), [], {}, {"b": one, "a": thing}, (one, thing), Output(one)):
        found, expected = ({"import_ctx": {}, "object_ctx": {}} for _ in range(2))
        made = bound_symbols.to_printable(TraceCtx(None), (tree, [tree]), **found)
        other = bound_symbols._print_of_thunder(TraceCtx(None), (tree, [tree]), **expected)
        hidden = [re.sub("0x[0-9a-f]+", "0x", repr(one)) for one in (made, other)]
        assert found == expected and hidden[0] == hidden[1]
        bsym = BoundSymbol(prims.add, (tree,), {"a": tree}, one)
        if not isinstance(tree, OrderedDict):  # which Thunder cannot print
            assert bsym.gather_ctxs() == (bsym.import_ctx(), {}, bsym.object_ctx())


def test_functions_of_leaves() -> None:
    one = proxy()
    for trees in (([], []), ([one, 1, None], [2, one, one]), ([[one], 1], [[2], 3]), ([one],)):
        found = [utils.safe_map_flat(lambda *leaves: leaves, *trees)]
        assert found == [bound_symbols._map_of_thunder(lambda *leaves: leaves, *trees)]
    for tree in (*TREES, one, [one, {"a": one}]):
        assert pytree.tree_map(repr, tree) == bound_symbols._tree_of_thunder(repr, tree)
    assert pytree.tree_map(max, 1, 2) == 2 and pytree.tree_map is transform_common.tree_map
    with pytest.raises(AssertionError, match="layout mismatch"):
        utils.safe_map_flat(max, [one], [one, one])


def traced() -> TraceCtx:
    """With a primitive whose result nobody needs, a part without parts, and what always stays."""
    trace = TraceCtx(None)
    with tracectx(trace):
        x = TensorProxy(
            "x", shape=(2,), device=thunder.core.devices.cpu, dtype=dtypes.float32,
            requires_grad=False,
        )  # fmt: skip
        trace.args = (x,)
        prims.unpack_trivial(x, name="x")
        prims.neg(prims.sin(x))
        prims.check_len(x, 2)
        one, other = thunder.torch.softmax(x, 0), thunder.torch.relu(x)
        empty = BoundSymbol(thunder.torch.relu, (x,), {}, other)
        trace.bound_symbols[-1].subsymbols[:0] = [empty, BoundSymbol(prims.neg, (1,), {}, 1)]
        prims.python_return((one, {"a": other}))
    return trace


@pytest.mark.parametrize("needed", [None, {"t0"}])
def test_dead_code_is_the_same(needed: set[str] | None) -> None:
    texts, wanted = [], []
    for function in (transform_common.dce, bound_symbols._dce_of_thunder):
        trace = traced()
        made = [out for one in trace.bound_symbols for out in one.flat_proxy_outs]
        also = None if needed is None else {variableify(o) for o in made if o.name in needed}
        found = function(trace, also)
        texts.append([re.sub(r"took \d+", "", str(one)) for one in (found, trace)])
        wanted.append(also)
    assert texts[0] == texts[1] and wanted[0] == wanted[1]
    assert ("neg" in texts[0][0], "sin" in texts[0][0]) == (False, needed is not None)
    assert "check_len" in texts[0][0]


def test_a_guard_is_added_once() -> None:
    one, other = map(proxy, ("t1", "t2"))
    same = [(print, one, 1), (print, one, 1), (print, one, 2), (print, other, 1), (print, one)]
    added = []
    for add in (jit_ext.JitCtx.add_constraint, bound_symbols._add_of_thunder):
        context = jit_ext.JitCtx.__new__(jit_ext.JitCtx)
        context._constraints = []
        for constraint in (*same, (str, one, other), (str, one, other), *same):
            add(context, constraint)
        added.append(context._constraints)
    assert added[0] == added[1] and len(added[0]) == 5


def test_thunder_calls_them() -> None:
    assert transform_common.dce is bound_symbols.dce
    inside = [cell.cell_contents for cell in thunder.dce.__closure__]  # thunder_patches/hooks.py
    assert bound_symbols.dce in inside
    assert trace_interpreter.safe_map_flat is bound_symbols.safe_map_flat
    assert codeutils.to_printable is bound_symbols.to_printable
    assert utils.producers is bound_symbols.producers
    assert symbol.tree_flatten_with_dataclass is passes.tree_flatten_with_dataclass
    assert utils.tree_flatten is pytree.tree_flatten is passes.tree_flatten


def test_arguments_are_bound_as_before() -> None:
    one = proxy()
    assert prims.add.normalize(one, 2) == ((one, 2), {})
    with pytest.raises(TypeError, match="too many positional"):
        prims.add.normalize(one, 2, 3)
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
    # Not so with a collective, which may be a part of a bound symbol.
    wait = symbol.BoundSymbol(distributed.wait, (), {}, None)
    monkeypatch.setattr(passes, "parts", lambda bsym: [bsym, wait])
    assert claims(monkeypatch, executors=[fuser]) == alone


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
