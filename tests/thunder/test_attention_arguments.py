# SPDX-License-Identifier: Apache-2.0
"""Masks that indices decide are not read, and keys that heads share are not repeated."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import thunder
import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from helpers.exactness import assert_as_exact_as_eager, with_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from thunder.core.langctxs import Languages, langctx
from thunder.core.prims import PrimIDs
from torch._subclasses.fake_tensor import FakeTensorMode

from thunder_fuser.explain.jitted import final_traces, jit
from thunder_fuser.functions import index_masks
from thunder_fuser.functions.index_masks import kind_of
from thunder_fuser.trace.proxies import parts

LENGTH, KEYS = 5, 7


def called(jitted: Any) -> list[Any]:
    """The bound symbols of the final traces that are attention."""
    traces = final_traces(jitted)
    return [one for trace in traces for one in trace.bound_symbols if "attention" in one.sym.name]


def names(jitted: Any) -> set[str]:
    return {one.sym.name for trace in final_traces(jitted) for one in trace.bound_symbols}


def check(function: Callable[..., torch.Tensor], values: list[torch.Tensor]) -> list[Any]:
    jitted = jit(function, strict=True)
    got = with_gradients(jitted, values)
    exact = with_gradients(function, [one.double() for one in values])
    assert_as_exact_as_eager(got, with_gradients(function, values), exact)
    return called(jitted)


# -------------------------------------------------------------------------------------- masks


def rows_and_keys(length: int, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As libraries of models make them: [1, 1, L, 1] and [1, 1, 1, S]."""
    rows, columns = torch.arange(length) + 0, torch.arange(keys) + 0
    return rows[None, None, :, None], columns[None, None, None, :]


Mask = Callable[[int, int], torch.Tensor]


def _of(compare: Callable[[Any, Any], Any]) -> Mask:
    return lambda length, keys: compare(*rows_and_keys(length, keys))


def of_positions(positions: Callable[[int], torch.Tensor]) -> Mask:
    """The mask of transformers 5.x: keys of the same sequence, in a row of several, not after."""
    def mask(length: int, keys: int) -> torch.Tensor:
        position = positions(keys)[None].expand(2, -1)
        packed = (torch.diff(position, prepend=position[:, :1] - 1, dim=-1) != 1).cumsum(-1)
        batch, (rows, columns) = torch.arange(2)[:, None, None, None], rows_and_keys(length, keys)
        same = packed[batch, rows] == packed[batch, columns]
        found = rows.new_ones((), dtype=torch.bool) & same.to(rows.device)
        return found & (position[batch, columns] <= position[batch, rows])

    return mask


CAUSAL: dict[str, Mask] = {
    "keys <= rows": _of(lambda rows, keys: keys <= rows),
    "rows >= keys": _of(lambda rows, keys: rows >= keys),
    "not after": _of(lambda rows, keys: keys < rows + 1),
    "of differences": _of(lambda rows, keys: rows - keys > -1),
    "and all": _of(lambda rows, keys: (keys <= rows) & (rows >= 0)),
    "expanded": lambda n, m: _of(lambda rows, keys: keys <= rows)(n, m).expand(2, -1, n, m),
    "of two axes": lambda n, m: torch.arange(m)[None] <= torch.arange(n)[:, None],
    "by steps": lambda n, m: torch.arange(0, 2 * m, 2)[None] <= torch.arange(0, 2 * n, 2)[:, None],
    "32 bits": lambda n, m: torch.arange(m).int()[None] <= torch.arange(n).int()[:, None],
    "sliced": lambda n, m: torch.arange(m + 3)[3:][None] - 3 <= torch.arange(n)[:, None],
    "of transformers": of_positions(lambda keys: torch.arange(keys) + 0),
    "tril": lambda n, m: torch.ones(n, m, dtype=torch.bool).tril(),
}  # fmt: skip
ALL: dict[str, Mask] = {
    "rows": lambda n, m: _of(lambda rows, keys: rows >= 0)(n, m).expand(2, -1, n, m),
    "keys": _of(lambda rows, keys: keys > -1),
    "of one row": lambda n, m: torch.arange(m)[None] >= 0,
    "ones": lambda n, m: torch.ones(n, m, dtype=torch.bool),
    "of bytes": lambda n, m: (torch.arange(m) + 200).to(torch.uint8) >= torch.full((n, 1), 200),
}
OTHERS: dict[str, Mask] = {
    "strictly": _of(lambda rows, keys: (keys < rows) | (keys == 0)),
    "window": _of(lambda rows, keys: (keys <= rows) & (keys > rows - 3)),
    "one later": _of(lambda rows, keys: keys <= rows + 1),
    "of every second": _of(lambda rows, keys: 2 * keys <= rows),
    "of batches": lambda n, m: torch.arange(m) < torch.tensor([2, 4]).view(2, 1, 1, 1),
    "first rows": lambda n, m: (torch.arange(n) <= n)[:, None] & (torch.arange(m) < m - 1),
    "of bytes that wrap": lambda n, m: (
        (torch.arange(m) + 252).to(torch.uint8) >= torch.full((n, 1), 252)
    ),
    "of packed sequences": of_positions(lambda keys: torch.arange(keys) % 3),
    "of one batch": lambda n, m: (
        (torch.arange(m) <= torch.arange(n)[:, None]) & (torch.arange(2).view(2, 1, 1, 1) == 0)
        | (torch.arange(m) == 0)
    ),
    "random": lambda n, m: torch.rand(n, m) >= 0,
}  # fmt: skip


def attended(mask: Mask, keys: int = LENGTH) -> tuple[Callable[..., torch.Tensor], list[Any]]:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q * 2, k, v, mask(LENGTH, keys))

    return function, [torch.randn(2, 3, size, 8) for size in (LENGTH, keys, keys)]


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_mask_is_is_causal(name: str) -> None:
    forward, _ = check(*attended(CAUSAL[name]))
    assert forward.args[1] is None and forward.kwargs["is_causal"]


@pytest.mark.parametrize("name", ALL)
def test_a_mask_of_nothing_is_none(name: str) -> None:
    forward, _ = check(*attended(ALL[name], KEYS))
    assert forward.args[1] is None and not forward.kwargs["is_causal"]


@pytest.mark.parametrize("name", OTHERS)
def test_another_mask_is_read(name: str) -> None:
    forward, _ = check(*attended(OTHERS[name]))
    assert forward.args[1] is not None


def test_a_mask_that_is_written_is_read() -> None:
    def mask(length: int, keys: int) -> torch.Tensor:
        made = torch.arange(keys)[None] <= torch.arange(length)[:, None]
        made.copy_(torch.arange(keys)[None] < torch.arange(length)[:, None] + 2)
        return made

    forward, _ = check(*attended(mask))
    assert forward.args[1] is not None


def test_a_mask_beside_what_is_written_is_known() -> None:
    """A mixture of experts writes the inverse of its order in place before the next layer."""

    def function(q: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(LENGTH)[None] <= torch.arange(LENGTH)[:, None]
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(LENGTH)
        return F.scaled_dot_product_attention(q * 2, q, q, mask) * inverse.sum()

    jitted = jit(function)
    values = torch.randn(2, 3, LENGTH, 8, requires_grad=True), torch.randperm(LENGTH)
    torch.testing.assert_close(jitted(*values), function(*values))
    assert called(jitted)[0].kwargs["is_causal"]


def test_keys_that_are_overwritten_stay_repeated() -> None:
    def function(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        own = k * 2
        repeated = own[:, :, None].expand(2, 2, 3, LENGTH, 8).reshape(2, 6, LENGTH, 8)
        own.mul_(0.5)
        return F.scaled_dot_product_attention(q, repeated, repeated) + own.sum()

    values = torch.randn(2, 6, LENGTH, 8, requires_grad=True), torch.randn(2, 2, LENGTH, 8)
    jitted = jit(function)
    torch.testing.assert_close(jitted(*values), function(*values))


def test_a_mask_of_a_written_index_is_read() -> None:
    def mask(length: int, keys: int) -> torch.Tensor:
        columns = torch.arange(keys)
        rows = columns.view(-1, 1)
        columns[0] = 3
        return torch.arange(keys)[None] <= rows[:length]

    forward, _ = check(*attended(mask))
    assert forward.args[1] is not None


def test_a_mask_of_an_argument_is_read() -> None:
    def function(q: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(LENGTH) < counts[:, None, None, None]
        return F.scaled_dot_product_attention(q, q, q, mask)

    values = torch.randn(2, 3, LENGTH, 8), torch.tensor([LENGTH, LENGTH])
    jitted = jit(function, strict=True)
    torch.testing.assert_close(jitted(*values), function(*values))
    assert called(jitted)[0].args[3] is not None


def test_a_large_mask_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_masks, "_MOST_BYTES", LENGTH * LENGTH - 1)
    forward, _ = check(*attended(CAUSAL["of two axes"]))
    assert forward.args[1] is not None


def test_layers_ask_about_their_mask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = mock.Mock(wraps=index_masks._computed)
    monkeypatch.setattr(index_masks, "_computed", computed)

    def function(q: torch.Tensor) -> torch.Tensor:
        mask = CAUSAL["of transformers"](LENGTH, LENGTH)
        for _ in range(3):
            q = F.scaled_dot_product_attention(q * 2, q, q, mask)
        return q

    found = check(function, [torch.randn(2, 3, LENGTH, 8)])
    assert [one.args[1] for one in found if one.sym.name == "attention_forward"] == [None] * 3
    assert computed.call_count == 1


def kind(mask: Callable[[], Any]) -> str | None:
    """What is said of a mask that ltorch makes."""
    asked: list[str | None] = []
    thunder.trace()(langctx(Languages.TORCH)(lambda: asked.append(kind_of(mask()))))
    return asked[0]


on_cpu = functools.partial(ltorch.arange, device="cpu")


def test_a_mask_without_elements_is_of_no_kind() -> None:
    assert kind(lambda: (on_cpu(3)[None] <= on_cpu(3)[:, None])[:0]) is None


def test_a_mask_is_computed_whatever_surrounds_the_call() -> None:
    with FakeTensorMode(), torch.device("meta"), torch.inference_mode():
        assert kind(lambda: on_cpu(3)[None] <= on_cpu(3)[:, None]) == index_masks.CAUSAL


def test_random_numbers_are_not_drawn() -> None:
    before = torch.get_rng_state()
    how = {"device": "cpu", "dtype": torch.float32}
    for draw in (ltorch.rand, ltorch.randn):
        assert kind(functools.partial(lambda draw: draw(3, 3, **how) < 99, draw)) is None
    assert torch.equal(torch.get_rng_state(), before)


def test_a_causal_mask_of_one_row_is_no_mask_of_all() -> None:
    """[1, S] is for all rows, whatever their number."""
    forward, _ = check(*attended(lambda n, m: torch.arange(m)[None] <= torch.arange(1)[:, None]))
    assert forward.args[1] is not None


ATOMS = st.sampled_from(("rows", "keys"))
NUMBERS = st.integers(-3, 3)
COMPARE = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt}
SIDES = st.tuples(ATOMS, NUMBERS, NUMBERS)  # which, times, plus


@settings(max_examples=300, deadline=None)
@given(SIDES, SIDES, st.sampled_from([*COMPARE]), st.booleans(), SIDES)
def test_what_is_said_of_a_mask_holds(
    one: Any, other: Any, compare: str, both: bool, third: Any
) -> None:
    """The mask of all, or that of is_causal, and no other."""
    def side(index: dict[str, Any], given: Any) -> Any:
        return index[given[0]] - index["rows"] * given[1] + given[2]

    def mask(arange: Callable[[int], Any]) -> Any:
        index = {"rows": arange(LENGTH)[:, None], "keys": arange(LENGTH)[None]}
        made = side(index, one), side(index, other)
        found = COMPARE[compare](*made)
        return found & (side(index, third) >= 0) if both else found

    real = mask(torch.arange)
    is_causal = bool((real == torch.ones(LENGTH, LENGTH).tril()).all())
    wanted = index_masks.ALL if real.all() else index_masks.CAUSAL if is_causal else None
    assert kind(lambda: mask(on_cpu)) == wanted


# ------------------------------------------------------------------- masks of bools, converted


def converted(jitted: Any) -> list[int]:
    """How often each final trace makes what is added to the scores: -infinity or 0."""
    return [
        sum(PrimIDs.WHERE == one.sym.id for bsym in trace.bound_symbols for one in parts(bsym))
        for trace in final_traces(jitted)
    ]


def layers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        q = F.scaled_dot_product_attention(q * 2, k, v, mask)
    return q


SHARED: dict[str, torch.Tensor] = {
    "random": torch.rand(2, 1, LENGTH, KEYS, generator=torch.Generator().manual_seed(0)) > 0.5,
    "no key for a row": torch.arange(LENGTH)[:, None] % 2 * torch.ones(KEYS) > 0,
    "expanded": (torch.arange(KEYS) > 2).expand(LENGTH, KEYS),
}


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("groups", (3, 1))
@pytest.mark.parametrize("name", SHARED)
def test_layers_share_one_converted_mask(name: str, groups: int, dtype: torch.dtype) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if groups == 1:
            k, v = (one.repeat_interleave(3, dim=1) for one in (k, v))
        return layers(q, k, v, SHARED[name])

    shapes = (2, 3, LENGTH, 8), (2, groups, KEYS, 8), (2, groups, KEYS, 8)
    values = [torch.randn(shape).to(dtype) for shape in shapes]
    jitted = jit(function, strict=True)
    torch.testing.assert_close(jitted(*values), function(*values))
    assert converted(jitted) == [1]
    got, exact = with_gradients(jitted, values), [one.double() for one in values]
    wanted = with_gradients(function, values), with_gradients(function, exact)
    assert_as_exact_as_eager(got, *wanted)
    assert converted(jitted) == [1, 0]


def test_the_converted_mask_is_saved_once() -> None:
    mask = torch.rand(2, 1, LENGTH, KEYS) > 0.3
    values = [torch.randn(2, 3, size, 8).requires_grad_() for size in (LENGTH, KEYS, KEYS)]
    saved: list[torch.Tensor] = []
    jitted = jit(layers, strict=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        jitted(*values, mask)
    assert [one.dtype for one in saved if one.shape == mask.shape] == [torch.float32]


def test_a_mask_is_converted_to_each_type_of_queries() -> None:
    mask = torch.rand(LENGTH, LENGTH) > 0.3

    def function(q: torch.Tensor) -> torch.Tensor:
        made = F.scaled_dot_product_attention(q * 2, q, q, mask)
        q = q.bfloat16()
        return made + F.scaled_dot_product_attention(q, q, q, mask)

    values = [torch.randn(2, 3, LENGTH, 8)]
    got, wanted = (with_gradients(one, values) for one in (jit(function, strict=True), function))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=2e-2, rtol=2e-2, equal_nan=True)


def test_a_mask_in_checkpoints() -> None:
    mask = SHARED["random"]

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        def block(q: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q * 2, k, v, mask)

        for _ in range(2):
            q = block(torch.utils.checkpoint.checkpoint(block, q, use_reentrant=False))
        return q

    check(function, [torch.randn(2, 3, size, 8) for size in (LENGTH, KEYS, KEYS)])


# ----------------------------------------------------------------------------- groups of heads


def expanded(x: torch.Tensor) -> torch.Tensor:
    batch, groups, length, width = x.shape
    return x[:, :, None].expand(batch, groups, 2, length, width).reshape(batch, -1, length, width)


REPEATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1),
    "expand": expanded,
    "computed": lambda x: expanded(x * 2.0),
    "unsqueeze": lambda x: x.unsqueeze(2).expand(-1, -1, 2, -1, -1).flatten(1, 2),
}
NOT_REPEATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "written": lambda x: x.mul_(1.0).repeat_interleave(2, dim=1),
}


def heads(groups: int = 3, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(2, many, 5, 8).to(dtype) for many in (6, groups, groups)]


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("name", REPEATS)
def test_repeated_heads_are_read_where_they_were(name: str, dtype: torch.dtype) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = REPEATS[name](k), REPEATS[name](v)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    forward, backward = check(function, heads(dtype=dtype))
    assert [one.shape[1] for one in forward.args[0]] == [6, 3, 3]
    assert [one.shape[1] for one in backward.output] == [6, 3, 3]


@pytest.mark.parametrize("name", NOT_REPEATS)
def test_other_repeats_are_copies(name: str) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (NOT_REPEATS[name](one + 0.0) for one in (k, v))
        return F.scaled_dot_product_attention(q, k, v)

    forward, _ = check(function, heads())
    assert [one.shape[1] for one in forward.args[0]] == [6, 6, 6]


def test_keys_written_after_they_were_repeated_are_copies() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = k * 1.0, v * 1.0
        many = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        k.zero_()
        return F.scaled_dot_product_attention(q, *many) + k.sum()

    values = heads()
    torch.testing.assert_close(jit(function, strict=True)(*values), function(*values))


@pytest.mark.parametrize("groups", (1, 2, 3, 6))
@pytest.mark.parametrize("keywords", ({}, {"is_causal": True}, {"scale": 0.3}), ids=str)
def test_enable_gqa(groups: int, keywords: dict[str, Any]) -> None:
    """Torch's argument, which Thunder's function does not have."""
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **keywords)

    forward, _ = check(function, heads(groups))
    assert [one.shape[1] for one in forward.args[0]] == [6, groups, groups]


@pytest.mark.parametrize(("is_added", "heads_read"), ((False, 3), (True, 6)))
def test_groups_with_a_mask(is_added: bool, heads_read: int) -> None:
    """What is added to the scores may want a gradient, of all heads."""
    mask = torch.rand(5, 5) > 0.3
    mask[:, 0] = True
    mask = mask.float() if is_added else mask

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    jitted = jit(function, strict=True)
    values = heads()
    torch.testing.assert_close(jitted(*values), function(*values))
    got, wanted = with_gradients(jitted, values), with_gradients(function, values)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    forward, _ = called(jitted)
    assert [one.shape[1] for one in forward.args[0]] == [6, heads_read, heads_read]


def test_groups_without_gradients() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, expanded(k), expanded(v))

    values = heads()
    jitted = jit(function, strict=True)
    torch.testing.assert_close(jitted(*values), function(*values))
    assert "attention_forward" in names(jitted)


def test_one_head_of_keys_is_shared_by_all() -> None:
    forward, _ = check(F.scaled_dot_product_attention, heads(1))
    assert [one.shape[1] for one in forward.args[0]] == [6, 1, 1]
