# SPDX-License-Identifier: Apache-2.0
"""A token of a Llama with a static cache of keys and values, by each contender.

    logits = model(tokens: i64[batch, 1], position: i64[1])     one step of every sequence

The cache has room for SEQUENCE places. index_copy_ writes the row of the position. The heads of
queries that share a head of keys are the rows of one attention.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import thunder_fuser
from benchmarks.clock import medians, wait
from benchmarks.train_step import off
from thunder_fuser.demo.blocks import SEED
from thunder_fuser.explain.shown import table

EAGER, COMPILE = "eager", "torch.compile"
MODES = ("reduce-overhead", "max-autotune")  # of torch.compile, beside the default
OURS, OURS_GRAPHS, OURS_TORCH = "ours", "ours, graphs", "ours, graphs, torch's products"
OURS_IN_TURN = "ours, graphs, launched in turn"
BF16 = "bf16"
NARROW = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
POSITION = 100  # of the token that is measured
WRONG = 1.5  # times eager's error
LEAST_ERROR = 1e-2
WARM_UPS = 4  # calls, of which CUDA graphs take two
# Calls in a row, as in a loop. With few of them, a slow host's first launch and its wait for the
# last token would be a part of what is measured.
IN_A_ROW = 64


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes of Llama-3.2-1B, if not given."""

    layers: int = 16
    width: int = 2048
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 8192
    vocabulary: int = 128256
    sequence: int = 512
    experts: int = 0  # feed-forward nets, of which each token has two

    @property
    def head(self) -> int:
        return self.width // self.heads


SMALL = Model(2, 256, 4, 2, 512, 1024, 32)
MODELS = {
    "Llama-3.2-1B": Model(),
    "Qwen2.5-0.5B": Model(24, 896, 14, 2, 4864, 151936),
    "Llama-3-8B": Model(32, 4096, 32, 8, 14336),
    "2 of 8 experts": Model(experts=8),
}


class Layer(nn.Module):
    """x + attention(norm(x)), then + swiglu(norm of that)."""

    def __init__(self, sizes: Model, batch: int) -> None:
        super().__init__()
        self.sizes, width, kv = sizes, sizes.width, sizes.kv_heads * sizes.head
        self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.project = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, kv, bias=False) for _ in range(2))
        self.net = Experts(sizes, batch) if sizes.experts else Net(sizes)
        for name in ("keys", "values"):
            cache = torch.zeros(batch, sizes.kv_heads, sizes.sequence, sizes.head)
            self.register_buffer(name, cache)

    def forward(
        self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], position: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        x = x + self.project(self.attention(self.norm_1(x), turn, position, mask))
        return x + self.net(self.norm_2(x))

    def attention(
        self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], position: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        batch, sizes = x.shape[0], self.sizes
        group = sizes.heads // sizes.kv_heads
        q = rotate(self.q(x).view(batch, sizes.kv_heads, group, sizes.head), turn)
        k = rotate(self.k(x).view(batch, sizes.kv_heads, 1, sizes.head), turn)
        v = self.v(x).view(batch, sizes.kv_heads, 1, sizes.head)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return y.reshape(batch, 1, sizes.width)


class Net(nn.Module):
    """A feed-forward net: swiglu."""

    def __init__(self, sizes: Model) -> None:
        super().__init__()
        width, hidden = sizes.width, sizes.hidden
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Of several feed-forward nets two for each token, whose weights alone are read.

    Tokens prefer experts so clearly that no rounding decides which ones they have.
    """

    def __init__(self, sizes: Model, batch: int) -> None:
        super().__init__()
        count, width, hidden = sizes.experts, sizes.width, sizes.hidden
        self.router = nn.Linear(width, count, bias=False)
        preferred = torch.stack([8.0 * torch.randperm(count) for _ in range(batch)])
        self.register_buffer("preferred", preferred)

        def weights(of: int, to: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(count, to, of) / of**0.5)

        self.gate, self.up = weights(width, hidden), weights(width, hidden)
        self.down = weights(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, 0]
        shares, chosen = (self.router(x) + self.preferred).topk(2)
        gate = torch.einsum("ti,taoi->tao", x, self.gate[chosen])
        up = torch.einsum("ti,taoi->tao", x, self.up[chosen])
        y = torch.einsum("tao,taio->tai", F.silu(gate) * up, self.down[chosen])
        return torch.einsum("tai,ta->ti", y, shares.softmax(-1))[:, None]

    @property
    def unread(self) -> float:
        """The part of the experts that no token has."""
        return 1 - len(self.preferred.topk(2).indices.unique()) / len(self.gate)


def rotate(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary position embedding in its rotate-half form."""
    cos, sin = turn
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos + turned * sin).to(x.dtype)


class Llama(nn.Module):
    """Tokens [batch, 1] at a position [1] -> logits [batch, vocabulary]."""

    def __init__(self, sizes: Model, batch: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes, batch) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width, eps=1e-5)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        frequencies = 500000.0 ** (-torch.arange(0, sizes.head, 2).double() / sizes.head)
        angles = torch.outer(torch.arange(sizes.sequence).double(), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos().float())
        self.register_buffer("sin", angles.sin().float())
        self.register_buffer("places", torch.arange(sizes.sequence))

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        turn = (self.cos[position].to(x.dtype), self.sin[position].to(x.dtype))
        mask = self.places[None, :] <= position[:, None]
        for layer in self.layers:
            x = layer(x, turn, position, mask)
        return self.head(self.norm(x))[:, 0]

    @property
    def read_bytes(self) -> int:
        """Bytes of all weights but the embedding, of which a token reads a row, and of experts that
        no token has."""
        narrow = (layer for layer in self.modules() if isinstance(layer, Quantised))
        read = [*self.parameters(), *(buffer for layer in narrow for buffer in layer.buffers())]
        unread = sum(
            int(part.unread * weight.nbytes)
            for part in self.modules() if isinstance(part, Experts)
            for weight in (part.gate, part.up, part.down)
        )  # fmt: skip
        return sum(weight.nbytes for weight in read) - self.tokens.weight.nbytes - unread


class Quantised(nn.Module):
    """A linear layer with a weight of 8 bits, and a scale for each of its rows."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        weight, is_float = linear.weight.detach().float(), dtype.is_floating_point
        most = torch.finfo(dtype).max if is_float else torch.iinfo(dtype).max
        scale = weight.abs().amax(1, keepdim=True) / most
        narrow = weight / scale if is_float else (weight / scale).round()
        self.register_buffer("weight", narrow.to(dtype))
        self.register_buffer("scale", scale.to(linear.weight.dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale)


def quantise(model: nn.Module, dtype: torch.dtype) -> None:
    """Replaces each linear layer of a model."""
    for module in [*model.modules()]:
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, Quantised(child, dtype))


Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@contextlib.contextmanager
def default_device(device: torch.device) -> Iterator[None]:
    """Modules are made on this device, in bfloat16."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)


def make(sizes: Model, batch: int, device: torch.device, weights: str = BF16) -> Llama:
    """Seeded weights, and a cache of random rows."""
    torch.manual_seed(SEED)
    with default_device(device):
        model = Llama(sizes, batch)
    if weights in NARROW:
        quantise(model, NARROW[weights])
    for layer in model.layers:
        layer.keys.normal_()
        layer.values.normal_()
    return model


def contenders(model: Llama, with_compile: bool) -> dict[str, Call]:
    """Who computes a token. Each is made here, and compiles at its first call."""
    calls: dict[str, Call] = {EAGER: model, OURS: thunder_fuser.jit(model)}
    if model.cos.is_cuda:
        calls[OURS_GRAPHS] = thunder_fuser.jit(model, fuser_cuda_graphs=True)
        calls[OURS_IN_TURN] = thunder_fuser.jit(
            model, fuser_cuda_graphs=True, fuser_dependent_launches=False
        )
        calls[OURS_TORCH] = thunder_fuser.jit(model, fuser_cuda_graphs=True, fuser_few_rows=0)
    if with_compile:
        torch._dynamo.reset()
        calls[COMPILE] = torch.compile(model, dynamic=False)
        for mode in MODES if model.cos.is_cuda else ():
            calls[f"{COMPILE} {mode}"] = torch.compile(model, dynamic=False, mode=mode)
    return calls


@dataclass(frozen=True, slots=True)
class Measured:
    """A contender at a batch size. floor: milliseconds of clone for as many bytes as it reads."""

    batch: int
    contender: str
    ms: float
    floor: float
    error: float
    first_call_s: float

    def content(self) -> dict[str, Any]:
        """The figures for the JSON."""
        return {**asdict(self), "of_floor": self.floor / self.ms}


@dataclass(frozen=True, slots=True)
class Context:
    """The model, the rate of clone in bytes a microsecond, and how to measure."""

    sizes: Model
    rate: float
    seconds: float
    device: torch.device
    with_compile: bool
    weights: str = BF16


def measure(context: Context, batch: int) -> tuple[list[Measured], dict[str, str]]:
    """Each contender's token, and what those that failed said."""
    sizes, device = context.sizes, context.device
    model = make(sizes, batch, device, context.weights)
    tokens = torch.arange(batch, device=device)[:, None] + 5
    position = torch.tensor([POSITION % sizes.sequence], device=device)
    broken: dict[str, str] = {}
    first: dict[str, float] = {}
    errors: dict[str, float] = {}
    calls = contenders(model, context.with_compile)
    with torch.no_grad():
        exact = _exact(model, tokens, position)
        for name, call in [*calls.items()]:
            try:
                start = time.perf_counter()
                found = call(tokens, position)
                wait(device)
                first[name] = time.perf_counter() - start
                for _ in range(WARM_UPS):
                    found = call(tokens, position)
                errors[name] = off([found], [exact])
            except Exception as error:
                if name.startswith(OURS):
                    raise
                broken[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
                del calls[name]
        steps = {name: partial(_in_a_row, call, tokens, position) for name, call in calls.items()}
        times = medians(steps, context.seconds, device)
    floor = model.read_bytes / context.rate / 1e3
    return [
        Measured(batch, name, us / 1e3 / IN_A_ROW, floor, errors[name], first[name])
        for name, us in times.items()
    ], broken


def _in_a_row(call: Call, tokens: torch.Tensor, position: torch.Tensor) -> None:
    """A loop that keeps no logits."""
    for _ in range(IN_A_ROW):
        call(tokens, position)


def _exact(model: Llama, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """The logits in float32, of the same weights and cache."""
    return copy.deepcopy(model).float()(tokens, position)


def checks(found: list[Measured]) -> Iterator[tuple[str, bool, str]]:
    """(contender, whether its error is at most eager's by a factor, what it is)."""
    eager = {one.batch: one.error for one in found if one.contender == EAGER}
    for one in found:
        if one.contender.startswith(OURS):
            limit = max(WRONG * eager[one.batch], LEAST_ERROR)
            detail = f"error {one.error:.2e}, at most {limit:.2e}"
            yield f"{one.contender}, batch {one.batch}", one.error <= limit, detail


def text(found: list[Measured], broken: Mapping[str, str]) -> str:
    """The table."""
    head = ("batch", "contender", "ms", "of floor", "error", "first s")
    lines = [
        (
            str(one.batch), one.contender, f"{one.ms:.3f}", f"{one.floor / one.ms:.2f}",
            f"{one.error:.1e}", f"{one.first_call_s:.1f}",
        )
        for one in found
    ]  # fmt: skip
    return "\n".join((table(head, lines), *(f"{name}: {why}" for name, why in broken.items())))
