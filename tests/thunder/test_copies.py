# SPDX-License-Identifier: Apache-2.0
"""What shares memory with what: a result is a view where torch's is one, and else a copy.

Each op is asked of a tensor on which it changes nothing, where that can be: there a compiler is
tempted to hand back the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser.explain.jitted import jit

Op = Callable[[Any], Any]

# One of each category: what is a view does not depend on the width.
EVERY = (
    torch.bool, torch.uint8, torch.int32, torch.bfloat16, torch.float32, torch.complex64,
)  # fmt: skip

# Thunder makes nothing of these, or views alone.
MOVED: dict[str, Op] = {
    # ---- copies in torch
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "fix": torch.fix,
    "x.floor": lambda x: x.floor(),
    "abs": torch.abs,
    "absolute": torch.absolute,
    "builtin abs": abs,
    "roll 0": lambda x: torch.roll(x, 0),
    "roll 0 of dim": lambda x: x.roll(0, 0),
    "roll all": lambda x: x.roll((2, 3), (0, 1)),
    "tile": lambda x: torch.tile(x, ()),
    "x.tile of a number": lambda x: x.tile(1),
    "x.tile of numbers": lambda x: x.tile(1, 1),
    "tile of row": lambda x: torch.tile(x[0], (1,)),
    "repeat": lambda x: x.repeat(1, 1),
    "repeat of row": lambda x: x[1].repeat(1),
    "repeat_interleave": lambda x: x.repeat_interleave(1, 0),
    "flip": lambda x: torch.flip(x, ()),
    "flip 1": lambda x: torch.flip(x[:1], (0,)),
    "fliplr": lambda x: torch.fliplr(x[:, :1]),
    "to copy": lambda x: x.to(x.dtype, copy=True),
    "clone": lambda x: x.clone(),
    "diff": lambda x: torch.diff(x, n=0),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x[None, None], 1),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[None, None], 1),
    "channel_shuffle": lambda x: F.channel_shuffle(x[None], 1),
    # ---- the argument itself, and views
    "to": lambda x: x.to(x.dtype),
    "type_as": lambda x: x.type_as(x),
    "half": lambda x: x.half(),
    "int": lambda x: x.int(),
    "contiguous": lambda x: x.contiguous(),
    "dropout 0": lambda x: F.dropout(x, 0.0, True),
    "dropout eval": lambda x: F.dropout(x, 0.5, False),
    "real": torch.real,
    "x.imag": lambda x: x.imag,
    "conj": torch.conj,
    "resolve_conj": lambda x: x.resolve_conj(),
    "expand": lambda x: x.expand(2, 3),
    "broadcast_to": lambda x: torch.broadcast_to(x, (2, 3)),
    "movedim": lambda x: torch.movedim(x, 0, 0),
    "moveaxis": lambda x: torch.moveaxis(x, 0, 1),
    "swapaxes": lambda x: x.swapaxes(0, 0),
    "narrow": lambda x: x.narrow(0, 0, 2),
    "x[...]": lambda x: x[...],
    "x[1:]": lambda x: x[1:],
    "atleast_1d": torch.atleast_1d,
    "squeeze": lambda x: x.squeeze(),
    "reshape": lambda x: x.reshape(2, 3),
    "reshape_as": lambda x: x.reshape_as(x),
    "flatten": lambda x: x.flatten(0, 0),
    "ravel": lambda x: x.ravel(),
    "diagonal": lambda x: x.diagonal(),
    "chunk": lambda x: x.chunk(2)[1],
    "unbind": lambda x: x.unbind(0)[0],
    "split_with_sizes": lambda x: x.split_with_sizes([2])[0],
    "select": lambda x: x.select(0, 1),
}

# These compute, if only what was there before.
COMPUTED: dict[str, Op] = {
    "sum": lambda x: x[:1].sum(0),
    "amax": lambda x: x[:1].amax(0),
    "mean": lambda x: x[:1].mean(0),
    "cumsum": lambda x: x[:1].cumsum(0),
    "clamp": lambda x: x.clamp(0, 100),
    "clamp_min": lambda x: x.clamp_min(0),
    "where": lambda x: torch.where(torch.eq(x, x), x, x),
    "cat": lambda x: torch.cat([x]),
    "stack": lambda x: torch.stack([x]),
    "pad": lambda x: F.pad(x, (0, 0)),
    "constant_pad_nd": lambda x: torch.constant_pad_nd(x, (0, 0)),
    "nan_to_num": torch.nan_to_num,
    "floor_divide": lambda x: x // 1,
    "div trunc": lambda x: torch.div(x, 1, rounding_mode="trunc"),
    "pow": lambda x: x**1,
    "times 1": lambda x: x * 1,
    "plus 0": lambda x: x + 0,
    "or 0": lambda x: x | 0,
    "shift 0": lambda x: x << 0,
    "sign": torch.sign,
    "relu": F.relu,
    "maximum": lambda x: torch.maximum(x, x),
    "index_select": lambda x: x.index_select(0, torch.arange(2)),
    "x[[0, 1]]": lambda x: x[[0, 1]],
    "take_along_dim": lambda x: torch.take_along_dim(x, torch.zeros_like(x, dtype=torch.long), 0),
    "tril": lambda x: x.tril(5),
    "masked_fill": lambda x: x.masked_fill(torch.ne(x, x), 0),
}

OPS = {**MOVED, **COMPUTED}

# Of which the type decides what is copied.
TYPED = (
    "floor", "round", "abs", "builtin abs", "clone", "to", "half", "int", "contiguous", "real",
    "x.imag", "conj",
)  # fmt: skip

def written(y: torch.Tensor) -> None:
    """All of it, in place."""
    if y.dtype is torch.bool:
        y.copy_(y.logical_not())
    else:
        y.add_(10)


def argument(op: Op, x: Any) -> Any:
    return x, op(x)


def argument_written(op: Op, x: Any) -> Any:
    y = op(x)
    written(y)
    return x, y


def computed(op: Op, x: Any) -> Any:
    t = x | False if x.dtype is torch.bool else x * 2
    return t, op(t)


def computed_written(op: Op, x: Any) -> Any:
    t = x | False if x.dtype is torch.bool else x * 2
    y = op(t)
    written(y)
    return t, y


def argument_written_later(op: Op, x: Any) -> Any:
    y = op(x)
    written(x)
    return x, y


def argument_written_between(op: Op, x: Any) -> Any:
    """The result is read by what is computed after the write."""
    y = op(x)
    written(x)
    return x, y == y[..., :1]


FORMS = {
    one.__name__: one
    for one in (
        argument, argument_written, argument_written_later, argument_written_between, computed,
        computed_written,
    )
}  # fmt: skip


def tensor(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)


def known_to_torch(name: str, form: str, dtype: torch.dtype) -> bool:
    """False for what torch does not take, or would not write in place."""
    try:
        FORMS[form](OPS[name], tensor(dtype))
    except (RuntimeError, TypeError):
        return False
    return True


def seen(x: torch.Tensor, pair: Any) -> tuple[list[bool], list[torch.Tensor]]:
    """Who shares memory; the values, then those after a write to the result by the caller."""
    memory = [one.untyped_storage().data_ptr() for one in (x, *pair)]
    values = [one.clone() for one in (x, *pair)]
    written(pair[1])
    return [one == memory[2] for one in memory], values + [one.clone() for one in (x, *pair)]


def check(
    form: str, dtype: torch.dtype, apart: bool = False, ops: Iterable[str] = MOVED
) -> None:
    """All ops in one function; `apart` with a call between them that ends the region before it.

    It reads no global: Thunder takes milliseconds for one that is a large dict.
    """
    names = [name for name in ops if known_to_torch(name, form, dtype)]
    call, chosen = FORMS[form], [OPS[name] for name in names]

    def all_of_them(stop: Any, *xs: Any) -> Any:
        pairs = []
        for op, x in zip(chosen, xs, strict=True):
            pairs.append(call(op, x))
            if apart:
                stop = torch.special.i0(stop)
        return pairs, stop

    xs, mine = ([tensor(dtype) for _ in names] for _ in range(2))
    got, _ = jit(all_of_them, strict=True)(torch.ones(1), *mine)
    for name, x, y, pair in zip(names, xs, mine, got, strict=True):
        right = seen(x, FORMS[form](OPS[name], x))
        shared, values = seen(y, pair)
        assert shared == right[0], name
        for one, other in zip(values, right[1], strict=True):
            torch.testing.assert_close(one, other, msg=name)


def test_results_are_copies_where_those_of_torch_are() -> None:
    check("argument", torch.int32)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_results_of_each_type(dtype: torch.dtype) -> None:
    check("argument", dtype, ops=TYPED)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32], ids=str)
def test_computed_results_are_copies(dtype: torch.dtype) -> None:
    check("argument", dtype, ops=COMPUTED)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "argument"])
def test_writes_reach_what_they_reach_in_torch(form: str) -> None:
    check(form, torch.int32)


def test_of_each_op_alone() -> None:
    check("argument", torch.uint8, apart=True, ops=TYPED)


def test_with_gradients() -> None:
    def function(x: Any, w: Any) -> Any:
        t = x * w
        return t.roll(0, 0), t.repeat(1, 1), w.repeat(1, 1), w.roll(0), t

    w, x = tensor(torch.float32), tensor(torch.float32).requires_grad_()
    results = jit(function, strict=True)(x, w)
    *copies, t = (one.detach() for one in results)
    assert all(one.data_ptr() not in (w.data_ptr(), t.data_ptr()) for one in copies)
    sum(one.sum() for one in results).backward()
    assert torch.equal(x.grad, 3 * w)
