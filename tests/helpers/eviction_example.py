# SPDX-License-Identifier: Apache-2.0
"""The worked example of docs/caches.md: five definitions through three leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.definition import FusionDefinition

Ops = Sequence[str]
MUL_ADD_SUM: Ops = ("mul", "add", "sum")
MUL_ADD_DIV: Ops = ("mul", "add", "truediv")
MUL_EXP: Ops = ("mul", "exp")
SUB: Ops = ("sub",)
MUL_ADD_NEG: Ops = ("mul", "add", "neg")

STEPS: Sequence[tuple[str, Sequence[Ops]]] = (
    ("three definitions fill it", (MUL_ADD_SUM, MUL_ADD_DIV, MUL_EXP)),
    ("mul-add-sum again: a hit, and now the newest", (MUL_ADD_SUM,)),
    ("a fourth evicts mul-add-truediv, whose mul and add still lead to fusion 0", (SUB,)),
    ("a fifth evicts mul-exp", (MUL_ADD_NEG,)),
    ("mul-add-truediv comes back, with a number of its own", (MUL_ADD_DIV,)),
)

_BINARY = {"mul": torch.mul, "add": torch.add, "truediv": torch.div, "sub": torch.sub}
_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp, "neg": torch.neg, "sum": lambda x: x.sum(0),
}  # fmt: skip


def recorded(ops: Ops) -> FusionDefinition:
    """The ops one after the other; those of two operands take T1 as the second."""
    fd = FusionDefinition()
    x, y = (fd.define_tensor(shape=[-1], contiguity=[True]) for _ in range(2))
    for op in ops:
        x = fd.ops.sum(x, [0]) if op == "sum" else getattr(fd.ops, op)(x, *[y] * (op in _BINARY))
    fd.add_output(x)
    return fd


def expected(ops: Ops, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What torch makes of them."""
    for op in ops:
        x = _BINARY[op](x, y) if op in _BINARY else _UNARY[op](x)
    return x


def transcript() -> str:
    """The cache after each step, every result compared."""
    x, y = torch.linspace(1, 2, 12), torch.linspace(2, 3, 12)
    told = []
    with FusionCache(max_fusions=3) as cache:
        for title, definitions in STEPS:
            for ops in definitions:
                (result,) = recorded(ops).execute([x, y], target="cpu")
                torch.testing.assert_close(result, expected(ops, x, y))
            told.append(f"# {title}\n{cache}\n")
    return _without_types("\n".join(told))


def _without_types(text: str) -> str:
    """The attributes of tensors left out: they are the same everywhere."""
    return text.replace(
        "shape=[-1], contiguity=[True], dtype=DataType.Float, is_cpu=False, stride_order=[0]", "..."
    )
