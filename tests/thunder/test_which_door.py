# SPDX-License-Identifier: Apache-2.0
"""The table of docs/which-door.md that says which program goes by which door."""

from __future__ import annotations

import copy
import re
import warnings
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
from thunder.dynamo import thunderfx
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import thunder_fuser
from thunder_fuser import fuser

PAGE = Path(__file__).resolve().parents[2] / "docs" / "which-door.md"
TABLE = re.compile(r"^\| program \|.*\n\|[-|]*\n(?P<rows>(?:\|.*\n)*)", re.MULTILINE)

DOORS: dict[str, Callable[[nn.Module], Any]] = {
    "thunder.jit": lambda model: thunder.jit(model, executors=[fuser]),
    "thunder_fuser.jit": thunder_fuser.jit,
    "thunderfx": lambda model: thunderfx(model, executors=[fuser]),
}
Pair = namedtuple("Pair", "first second")


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return first * 2 + second * 3


class Asking(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor | None:
        return gradient * 2 if ctx.needs_input_grad[0] else None


class Program(nn.Module):
    """A function of modules and a tensor."""

    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Any:
        return self.function(*self.inner, x)


def _linear() -> nn.Module:
    return nn.Linear(8, 8)


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def _hooked(net: nn.Module, x: Tensor) -> Tensor:
    hook = net.register_forward_hook(lambda module, inputs, result: result * 2)
    y = net(x)
    hook.remove()
    return y.tanh()  # type: ignore[no-any-return]


PROGRAMS: dict[str, Callable[[], Program]] = {
    "`nn.MultiheadAttention`": lambda: Program(
        lambda net, x: net(x, x, x), nn.MultiheadAttention(8, 2, batch_first=True)
    ),
    "`nn.MultiheadAttention`, called with `need_weights=False`": lambda: Program(
        lambda net, x: net(x, x, x, need_weights=False)[0],
        nn.MultiheadAttention(8, 2, batch_first=True),
    ),
    "`nn.TransformerEncoder`": lambda: Program(lambda net, x: net(x), _encoder()),
    "a layer with a hook that `forward` registers and removes": lambda: Program(
        _hooked, _linear()
    ),
    "`nn.LSTM`": lambda: Program(lambda net, x: net(x)[0], nn.LSTM(8, 8, batch_first=True)),
    "`nn.GRU`": lambda: Program(lambda net, x: net(x)[0], nn.GRU(8, 8, batch_first=True)),
    "`parametrizations.weight_norm`": lambda: Program(
        lambda net, x: net(x).tanh(), parametrizations.weight_norm(_linear())
    ),
    "`parametrizations.spectral_norm`": lambda: Program(
        lambda net, x: net(x).tanh(), parametrizations.spectral_norm(_linear())
    ),
    "`nn.BatchNorm1d(8)`": lambda: Program(
        lambda net, x: net(x.transpose(1, 2)), nn.BatchNorm1d(8)
    ),
    "`nn.BatchNorm1d(8, momentum=None)`": lambda: Program(
        lambda net, x: net(x.transpose(1, 2)), nn.BatchNorm1d(8, momentum=None)
    ),
    "`x[mask]`": lambda: Program(lambda x: x[x > 0].tanh()),
    "`x.masked_scatter_(mask, y)`": lambda: Program(
        lambda x: (x * 1).masked_scatter_(x > 0, x.exp())
    ),
    "`x * torch.eye(8)`": lambda: Program(lambda x: x * torch.eye(8)),
    "a named tuple as a result": lambda: Program(lambda x: Pair(x.tanh(), x.exp())),
    "`torch.autograd.Function`": lambda: Program(lambda x: Square.apply(x).tanh()),
    "`torch.autograd.Function` with two results": lambda: Program(
        lambda x: torch.add(*Both.apply(x)).tanh()
    ),
    "`torch.autograd.Function` that asks for `ctx.needs_input_grad`": lambda: Program(
        lambda x: Asking.apply(x).tanh()
    ),
    "`torch.func.grad`": lambda: Program(
        lambda x: torch.func.grad(lambda y: (y * y * y).sum())(x) * 2
    ),
    "`torch.func.vmap`": lambda: Program(lambda x: torch.func.vmap(torch.tanh)(x) * 2),
    "`checkpoint(use_reentrant=False)`": lambda: Program(
        lambda net, x: checkpoint(net, x, use_reentrant=False).tanh(), _linear()
    ),
    "`checkpoint(use_reentrant=True)`": lambda: Program(
        lambda net, x: checkpoint(net, x, use_reentrant=True).tanh(), _linear()
    ),
}


def outcome(name: str, door: str) -> str:
    """fused, torch, or the name of the error; an AssertionError if anything is unlike eager's."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager = PROGRAMS[name]()
    model = copy.deepcopy(eager)
    x = torch.randn(4, 8, 8, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    fuser.last_claims = None
    try:
        result = DOORS[door](model)(x)
    except Exception as error:
        return f"`{type(error).__name__}`"
    expected = eager(y)
    assert type(result) is type(expected)
    for call in (result, expected):
        sum(leaf.square().sum() for leaf in tree_leaves(call)).backward()
    found = [*tree_leaves(result), x.grad, *(p.grad for p in model.parameters())]
    wanted = [*tree_leaves(expected), y.grad, *(p.grad for p in eager.parameters())]
    torch.testing.assert_close([*found, *model.buffers()], [*wanted, *eager.buffers()])
    return "fused" if fuser.last_claims is not None and fuser.last_claims.regions else "torch"


def rows() -> dict[str, str]:
    """{program: its row} of the page."""
    table = TABLE.search(PAGE.read_text("utf-8"))
    assert table is not None
    return {row.split(" | ")[0].removeprefix("| "): row for row in table["rows"].splitlines()}


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_row(name: str, request: pytest.FixtureRequest) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Thunder and Dynamo, on what they leave out
        row = f"| {' | '.join([name, *(outcome(name, door) for door in DOORS)])} |"
    if request.config.getoption("--update-golden"):
        _replace(name, row)
    else:
        assert rows().get(name) == row


def _replace(name: str, row: str) -> None:
    text = PAGE.read_text("utf-8")
    changed = {**rows(), name: row}
    body = "".join(f"{changed[each]}\n" for each in PROGRAMS if each in changed)
    table = TABLE.search(text)
    assert table is not None
    PAGE.write_text(text[: table.start("rows")] + body + text[table.end("rows") :], "utf-8")


def test_the_table_has_these_programs() -> None:
    assert list(rows()) == list(PROGRAMS)
