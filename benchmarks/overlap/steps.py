# SPDX-License-Identifier: Apache-2.0
"""Training steps of Llama on several devices: a layer in tensor parallel, a model in FSDP.

Run by each rank of `python -m benchmarks overlap --step`. A way is a model and what runs it:

    eager          torch's collectives, or FSDP2, which gathers the next layer's weights ahead
    compile        the same through torch.compile; async tensor parallel is on
    thunder        eager's, with what lies between the products through thunder.jit without us
    fuser          the same with the fuser
    pipelines      the fuser's parts, and our products with communication behind them

The reference of all results is eager in the next wider type, of the same numbers: no way may be
much less exact than eager. Times are medians over rounds of the slowest rank's.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import thunder
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import ProcessGroup
from torch.distributed._symmetric_memory import enable_symm_mem_for_group
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import thunder_fuser
from benchmarks.overlap.llama import (
    DEVIATION,
    LARGE,
    PLAIN,
    TINY,
    Layer,
    Model,
    Parts,
    Sizes,
    positions,
)
from benchmarks.overlap.products import Collectives, Pipelines, Products, Traced, all_gather
from thunder_fuser.communication.products.cost import Bandwidths
from thunder_fuser.communication.transport.rank_consistency import from_all, from_first

BURST = 3  # steps that are timed together
_WARM_UPS, _LEAST_ROUNDS, _MOST_ROUNDS = 2, 3, 15
_WIDER = {torch.bfloat16: torch.float32, torch.float32: torch.float64}
_FACTOR, _FLOOR = 1.2, 1e-6  # of eager's error
_AHEAD = 4_000_000  # cycles of the device, in which the host goes ahead
Results = dict[str, torch.Tensor]
Tell = Callable[[str], None]


@dataclass
class Way:
    """step: what is timed. results: of forward and backward, after one step of them."""

    name: str
    step: Callable[[], None]
    results: Callable[[], Results]


@dataclass(frozen=True)
class Setting:
    """What all ways of a rank have in common."""

    group: ProcessGroup
    device: torch.device
    dtype: torch.dtype
    sizes: Sizes
    pipelines: Pipelines
    parts: Mapping[str, Parts] = field(default_factory=dict)
    numbers: torch.dtype = torch.float32  # that random numbers are rounded to

    def wider(self) -> Setting:
        """The same numbers in the next wider type."""
        return replace(self, dtype=_WIDER[self.dtype], numbers=self.dtype)

    @property
    def ranks(self) -> int:
        return self.group.size()

    def random(self, seed: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Normal numbers, the same on all ranks that give the same seed."""
        made = torch.Generator(self.device).manual_seed(seed)
        found = scale * torch.randn(shape, generator=made, device=self.device)
        return found.to(self.numbers).to(self.dtype)


def measure(
    group: ProcessGroup, device: torch.device, rates: Bandwidths, *, small: bool, seconds: float,
    figures: dict[str, Any], tell: Tell,
) -> None:  # fmt: skip
    """Fills figures["steps"] = {name: {"errors": ..., "ms": ..., "first_s": ...}}."""
    parts = {"eager": PLAIN, "fuser": Parts.made(thunder_fuser.jit)}
    if not small:
        parts["thunder"] = Parts.made(thunder.jit)
    setting = Setting(
        group, device, torch.float32 if small else torch.bfloat16, TINY if small else LARGE,
        Pipelines(group, rates, forced=small), parts, torch.float32 if small else torch.bfloat16,
    )  # fmt: skip
    start = time.monotonic()
    steps = figures["steps"] = {}
    for name, make in (("layer", layer_ways), ("fsdp", model_ways)):
        found = steps[name] = {key: {} for key in ("errors", "ms", "first_s", "failed")}
        found["wrong"] = []
        # Each gets half of what is left, and its ways are made in about half of that.
        left = (0.85 * seconds - (time.monotonic() - start)) * (0.4 if name == "layer" else 1.0)
        expected = next(make(setting.wider())).results()
        _measure(setting, make(setting), expected, found, left, small=small, tell=tell)


def _measure(
    setting: Setting, ways: Iterator[Way], expected: Results, found: dict[str, Any],
    seconds: float, *, small: bool, tell: Tell,
) -> None:  # fmt: skip
    begin, made = time.monotonic(), []
    for way in ways:
        start = time.monotonic()
        results, problem = _tried(way)
        if any(problems := from_all(problem, setting.group)):
            found["failed"][way.name] = next(filter(None, problems))
            tell(f"{way.name} failed: {found['failed'][way.name]}")
            continue
        found["first_s"][way.name] = time.monotonic() - start
        error = max(from_all(_error(results, expected), setting.group))
        found["errors"][way.name] = error
        if not error <= _FACTOR * found["errors"]["eager"] + _FLOOR:
            found["wrong"].append(way.name)
        made.append(way)
        tell(f"{way.name}: error {error:.2g}, first {found['first_s'][way.name]:.1f} s")
    if not small:
        found["ms"] = _times(made, setting.group, seconds - (time.monotonic() - begin))
        tell(str(found["ms"]))


def _tried(way: Way) -> tuple[Results, str]:
    """The results, or what is wrong: one way that does not run here leaves the others."""
    try:
        return way.results(), ""
    except Exception as error:  # whatever a compiler raises
        return {}, f"{type(error).__name__}: {error}"[:2000]


def _error(results: Results, expected: Results) -> float:
    """The largest of all results, each relative to its norm; infinite for NaN."""
    worst = 0.0
    for name, wanted in expected.items():
        difference = (results[name].float() - wanted.float()).norm()
        one = float(difference / wanted.float().norm().clamp_min(1e-30))
        worst = max(worst, math.inf if math.isnan(one) else one)
    return worst


def _times(ways: list[Way], group: ProcessGroup, seconds: float) -> dict[str, float]:
    """{way: ms of a step}; ways take turns."""
    for _ in range(_WARM_UPS):
        for way in ways:
            way.step()
    begin = time.monotonic()
    rounds = [_round(ways)]
    one = max(time.monotonic() - begin, 1e-3)
    more = max(_LEAST_ROUNDS, min(_MOST_ROUNDS, int(seconds / one))) - 1
    rounds += [_round(ways) for _ in range(from_first(more, group))]
    ranks = from_all(rounds, group)
    return {
        way.name: statistics.median(
            max(rank[at][way.name] for rank in ranks) for at in range(len(rounds))
        )
        for way in ways
    }


def _round(ways: list[Way]) -> dict[str, float]:
    found = {}
    for way in ways:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_AHEAD)
        dist.all_reduce(torch.ones(1, device="cuda"))
        start.record()
        for _ in range(BURST):
            way.step()
        end.record()
        torch.cuda.synchronize()
        found[way.name] = start.elapsed_time(end) / BURST
    return found


# ------------------------------------------------------------------------------- tensor parallelism


def layer_ways(setting: Setting) -> Iterator[Way]:
    """A layer whose rank has some of the heads, and between the products some of the tokens."""
    collectives = Collectives(setting.group)
    yield _layer_way("eager", setting, PLAIN, collectives)
    yield _layer_way("pipelines", setting, setting.parts["fuser"], setting.pipelines)
    yield _layer_way("fuser", setting, setting.parts["fuser"], collectives)
    if "thunder" in setting.parts:
        yield _layer_way("thunder", setting, setting.parts["thunder"], collectives)
    if setting.device.type == "cuda":
        torch._inductor.config._micro_pipeline_tp = True
        enable_symm_mem_for_group(setting.group.group_name)
        traced = Traced(setting.group.group_name)
        yield _layer_way("compile", setting, PLAIN, traced, torch.compile)


def _layer_way(
    name: str, setting: Setting, parts: Parts, products: Products,
    compiled: Callable[[Any], Any] = lambda layer: layer,
) -> Way:  # fmt: skip
    sizes, rank, ranks = setting.sizes, setting.group.rank(), setting.ranks
    weights = {
        name: setting.random(100 * rank + at, *shape, scale=DEVIATION)
        for at, (name, shape) in enumerate(sizes.matrices(ranks).items())
    }
    weights |= {name: setting.random(7, sizes.width) for name in ("first", "second")}
    layer = Layer(sizes, parts, products.gather, products.scatter, weights)
    tokens = sizes.batch * sizes.sequence // ranks
    x, gradient = (setting.random(100 * rank + at, tokens, sizes.width) for at in (50, 51))
    x.requires_grad_()
    angles, call = positions(sizes, setting.device, setting.dtype), compiled(layer)

    def step() -> torch.Tensor:
        x.grad = None
        layer.zero_grad()
        found: torch.Tensor = call(x, angles)
        found.backward(gradient)
        return found

    def results() -> Results:
        found = {"result": step().detach(), "x": x.grad}
        return {**found, **_gradients(layer)}  # type: ignore[dict-item]

    return Way(name, step, results)  # type: ignore[arg-type]


def _gradients(module: torch.nn.Module) -> Results:
    """Copies, by the names of parameters."""
    return {
        name: one.grad.clone() for name, one in module.named_parameters() if one.grad is not None
    }


# --------------------------------------------------------------------------------------------- FSDP


def model_ways(setting: Setting) -> Iterator[Way]:
    """A model whose parameters lie in shards of their rows, and a step of AdamW."""
    yield _sharded_way("eager", setting, PLAIN)
    yield _pipelined_way("pipelines", setting, setting.parts["fuser"])
    yield _sharded_way("fuser", setting, setting.parts["fuser"])
    if "thunder" in setting.parts:
        yield _sharded_way("thunder", setting, setting.parts["thunder"])
    if setting.device.type == "cuda":
        yield _sharded_way("compile", setting, PLAIN, compiled=True)


def _sharded_way(name: str, setting: Setting, parts: Parts, *, compiled: bool = False) -> Way:
    """Through torch's FSDP2, which averages gradients."""
    model = Model(setting.sizes, parts, F.linear, lambda whole: whole, _whole_weights(setting))
    mesh = dist.device_mesh.init_device_mesh(setting.device.type, (setting.ranks,))
    for layer in model.layers:
        if compiled:
            layer.compile()
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _model_way(name, setting, model, model)


def _pipelined_way(name: str, setting: Setting, parts: Parts) -> Way:
    """Through our linears, which gather weights; norms, with a weight for a column, are whole."""
    rank, group = setting.group.rank(), setting.group
    weights = {
        name: one if one.dim() == 1 else one.chunk(setting.ranks)[rank].clone()
        for name, one in _whole_weights(setting).items()
    }
    model = Model(
        setting.sizes, parts, setting.pipelines.linear,
        lambda shard: all_gather(shard, group), weights,
    )
    norms = [one for one in model.parameters() if one.dim() == 1]

    def loss(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(tokens, targets) / setting.ranks
        return found

    return _model_way(name, setting, model, loss, partial(_sum_gradients, norms, group))


def _sum_gradients(parameters: list[torch.nn.Parameter], group: ProcessGroup) -> None:
    gradients = [one.grad for one in parameters if one.grad is not None]
    flat = torch.cat(gradients)
    dist.all_reduce(flat, group=group)
    torch._foreach_copy_(gradients, list(flat.split([one.numel() for one in gradients])))


def _whole_weights(setting: Setting) -> dict[str, torch.Tensor]:
    sizes = setting.sizes
    shapes = {"words": (sizes.words, sizes.width), "head": (sizes.words, sizes.width)}
    layers = range(sizes.layers)
    for layer in layers:
        shapes |= {f"{layer}.{name}": (n, k) for name, (k, n) in sizes.matrices(1).items()}
    found = {
        name: setting.random(200 + at, *shape, scale=DEVIATION)
        for at, (name, shape) in enumerate(shapes.items())
    }
    norms = ["last", *(f"{layer}.{name}" for layer in layers for name in ("first", "second"))]
    return {**found, **{name: torch.ones_like(found["head"][0]) for name in norms}}


def _model_way(
    name: str, setting: Setting, model: Model, loss: Callable[..., torch.Tensor],
    after: Callable[[], None] = lambda: None,
) -> Way:  # fmt: skip
    rank, sizes = setting.group.rank(), setting.sizes
    made = torch.Generator(setting.device).manual_seed(1 + rank)
    tokens, targets = torch.randint(
        sizes.words, (2, sizes.batch * sizes.sequence), generator=made, device=setting.device
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=setting.device.type == "cuda")

    def gradients() -> None:
        model.zero_grad()
        loss(tokens, targets).backward()
        after()

    def step() -> None:
        gradients()
        optimizer.step()

    def results() -> Results:
        gradients()
        return {name: _local(one, setting) for name, one in _gradients(model).items()}

    return Way(name, step, results)


def _local(gradient: torch.Tensor, setting: Setting) -> torch.Tensor:
    """A rank's part of it, as FSDP2 has it: rows, or of a norm some columns."""
    if isinstance(gradient, DTensor):
        return gradient.to_local()
    return gradient.chunk(setting.ranks)[setting.group.rank()] if gradient.dim() == 1 else gradient
