# SPDX-License-Identifier: Apache-2.0
"""One rank of a real process group: Thunder's distributed transforms, against one process.

Run by tests/thunder/test_distributed.py, or by hand:

    torchrun --nproc-per-node 2 tests/helpers/gloo_thunder.py
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import thunder_fuser
from helpers.one_rank import join, leave, run_checks
from thunder_fuser import fuser
from thunder_fuser.doors.recipes import FuserRecipe
from thunder_fuser.errors import CommunicationError, OptionError
from thunder_fuser.executors.cuda_graphs.transform import why_on_host
from thunder_fuser.executors.overlap.find import Finder, _calls
from thunder_fuser.explain import report
from thunder_fuser.multi_device import MultiDeviceParams

import thunder  # isort: skip
from thunder.distributed import FSDPBucketingStrategy, FSDPType, ddp, fsdp  # isort: skip
from thunder.core.transforms import add_transform  # isort: skip
from thunder.dynamo import ThunderCompiler  # isort: skip
from thunder.plugins import DDP, FSDP  # isort: skip
from thunder.distributed.tensor_parallel.column_wise import (  # isort: skip
    TransformForColumnWiseParallel,
)
from thunder.distributed.tensor_parallel.row_wise import (  # isort: skip
    TransformForRowWiseParallel,
)

OPTIONS: dict[str, Any] = {"executors": [fuser], "fuser_strict": True}


class Block(nn.Module):
    """A norm, a gated MLP and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.gate = nn.Linear(16, 32, bias=False)
        self.up = nn.Linear(16, 32, bias=False)
        self.down = nn.Linear(32, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Mlp(nn.Module):
    """As Thunder's tensor parallel takes it: one product after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))) * 2)


def block(kind: type[nn.Module] = Block) -> nn.Module:
    torch.manual_seed(3)
    return kind()


def batch(rank: int) -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(50 + rank))


def expected() -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """The results of each rank's batch, and the gradients of the mean over ranks."""
    model = block()
    results = [model(batch(rank)) for rank in range(dist.get_world_size())]
    losses = [one.square().mean() for one in results]
    (sum(losses) / len(losses)).backward()
    return [r.detach() for r in results], {n: p.grad for n, p in model.named_parameters()}


def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    result = model(x)
    result.square().mean().backward()
    return result.detach()


def parameters_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name.removeprefix("_model."): p for name, p in model.named_parameters()}


def regions() -> int:
    assert fuser.last_claims is not None
    return len(fuser.last_claims.regions)


def check_ddp() -> None:
    results, gradients = expected()
    for bucket in (0.0, 25.0)[dist.get_world_size() > 2 :]:  # fewer cases where it is slow
        model = ddp(thunder.jit(block(), **OPTIONS), bucket_size_in_mb=bucket)
        found = step(model, batch(dist.get_rank()))
        torch.testing.assert_close(found, results[dist.get_rank()])
        for name, parameter in parameters_of(model).items():
            torch.testing.assert_close(parameter.grad, gradients[name], msg=name)
        assert regions() >= 2


def check_fsdp() -> None:
    results, gradients = expected()
    rank, size = dist.get_rank(), dist.get_world_size()
    none, layer = FSDPBucketingStrategy.NONE, FSDPBucketingStrategy.LAYER
    for kind, bucketing, overlap in (
        (FSDPType.ZERO2, none, "always"), (FSDPType.ZERO3, layer, "auto"),
    ):  # fmt: skip
        params = MultiDeviceParams().with_(lower={"overlap": overlap})
        model = fsdp(
            thunder.jit(block(), **OPTIONS, fuser_multi_device=params),
            device=torch.device("cpu"), sharding_strategy=kind, bucketing_strategy=bucketing,
        )
        found = step(model, batch(rank))
        torch.testing.assert_close(found, results[rank])
        for name, parameter in parameters_of(model).items():
            part = gradients[name].chunk(size)[rank]
            torch.testing.assert_close(parameter.grad, part, msg=f"{name} {kind} {bucketing}")
        assert regions() >= 2


def check_plugins() -> None:
    """Thunder's plugins beside our recipe; the whole gradient with DDP, a part with FSDP."""
    results, gradients = expected()
    rank, size = dist.get_rank(), dist.get_world_size()
    for plugin, parts in ((DDP(), 1), (FSDP(device=torch.device("cpu")), size)):
        recipe = FuserRecipe(plugins=[plugin], fuser_strict=True)
        model = thunder.compile(block(), recipe=recipe)
        torch.testing.assert_close(step(model, batch(rank)), results[rank])
        for name, parameter in parameters_of(model).items():
            part = gradients[name].chunk(parts)[rank % parts]
            torch.testing.assert_close(parameter.grad, part, msg=f"{name} {plugin}")
        assert regions() >= 2


def check_torch_wrappers() -> None:
    """DDP around a jitted module; FSDP2 with the backend of torch.compile."""
    results, gradients = expected()
    rank = dist.get_rank()
    sharded = fully_shard(block(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    with pytest.raises(OptionError, match="a module without FSDP2, got FSDPBlock"):
        thunder_fuser.jit(sharded)
    sharded.compile(backend=ThunderCompiler(executors=[fuser]))
    for model in (DistributedDataParallel(thunder_fuser.jit(block())), sharded):
        fuser.last_claims = None
        torch.testing.assert_close(step(model, batch(rank)), results[rank])
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            gradient = gradient.full_tensor() if model is sharded else gradient
            wanted = gradients[name.removeprefix("module.").removeprefix("_model.")]
            torch.testing.assert_close(gradient, wanted, msg=name)
        assert regions() >= 1


def claimed(jitted: Any) -> tuple[dict[str, int], dict[str, int]]:
    """The calls of products with communication in the forward, and in the backward."""
    traces = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    for bsym in (bsym for trace in traces for _, bsym in _calls(trace.bound_symbols)):
        assert why_on_host(bsym, "cpu", ()) == "it communicates", bsym  # it is in no CUDA graph
    forward, backward = map(overlapped, traces)
    return forward, backward


def overlapped(trace: Any) -> dict[str, int]:
    """{name: the number of such calls in the trace}"""
    return dict(Counter(one.name for one, _ in _calls(trace.bound_symbols)))


def check_tensor_parallel() -> None:
    for overlap in ("never", "always"):
        _check_tensor_parallel(overlap)


def check_gathered_operands() -> None:
    """A product of a gathered tensor runs once, so that the backward gathers this as one call."""
    params = MultiDeviceParams().with_(lower={"overlap": "always"})
    for policy in ("time", "memory"):
        keywords = {"fuser_multi_device": params, "fuser_rematerialization": policy}
        x, w = (torch.randn(size, 16, requires_grad=True) for size in (4, 32))

        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            whole = functional.all_gather_tensor(torch.tanh(x), 0, dist.group.WORLD)
            return F.gelu(F.linear(whole, w))

        jitted = thunder.jit(function, **OPTIONS, **keywords)
        jitted(x, w).sum().backward()
        assert claimed(jitted)[1] == {"all_gather_products": 1, "matmul_reduce_scatter": 1}, policy


def check_hidden_collectives() -> None:
    """In the backward the gradient of the weight runs beside the sum: left to Thunder's passes,
    unless somebody asks. In the forward nothing does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Finder, "_is_plain", lambda self, one: True)  # as on a GPU
        for policy in ("time", "memory"):  # no product that runs again comes between
            _check_tensor_parallel("auto", policy, backend="process_group")


def _check_tensor_parallel(overlap: str, policy: str = "time", **more: str) -> None:
    """Columns of up, rows of down: each rank sees the same batch."""
    rank, size, x = dist.get_rank(), dist.get_world_size(), batch(0)
    plain = block(Mlp)
    result = plain(x)
    result.square().mean().backward()
    lower = {"overlap": overlap, **more}
    params = MultiDeviceParams().with_(lower=lower)
    keywords = {"fuser_multi_device": params, "fuser_rematerialization": policy}
    model = thunder.jit(block(Mlp), **OPTIONS, **keywords)
    for parallel, names in (
        (TransformForColumnWiseParallel, ("up",)), (TransformForRowWiseParallel, ("down",)),
    ):  # fmt: skip
        transform = parallel(
            rank=rank, world_size=size, process_group=dist.group.WORLD, target_modules=names
        )
        transform.device = torch.device("cpu")  # Thunder takes CUDA for granted
        model = add_transform(model, transform=[transform])
    found = step(model, x)
    torch.testing.assert_close(found, result.detach())
    gradients = {name: p.grad for name, p in plain.named_parameters()}
    for name, parameter in parameters_of(model).items():
        wanted = gradients[name]
        if name.startswith("up"):
            wanted = wanted.chunk(size, 0)[rank]
        elif name == "down.weight":
            wanted = wanted.chunk(size, 1)[rank]
        torch.testing.assert_close(parameter.grad, wanted, msg=name)
    assert regions() >= 2
    one = {"matmul_all_reduce": 1}
    wanted = {"never": ({}, {}), "auto": (one, {}), "always": (one, one)}
    assert claimed(model) == wanted[overlap], claimed(model)


def check_functional_collectives() -> None:
    """Sequence parallelism by hand: rows gathered before a product, its result scattered."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    torch.manual_seed(9)
    x, up, down = torch.randn(8, 16), torch.randn(32, 16) / 4, torch.randn(16, 32) / 4

    def parallel(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        whole = functional.all_gather_tensor(torch.tanh(x), 0, group)
        product = F.linear(F.gelu(F.linear(whole, up)), down)
        part = functional.reduce_scatter_tensor(product, "sum", 0, group)
        return part * 2 + x

    def alone(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(F.linear(torch.tanh(x), up)), down) * 2 + x

    given = [x.chunk(size)[rank], up.chunk(size)[rank], down.chunk(size, 1)[rank]]
    given = [one.clone().requires_grad_() for one in given]
    plain = [one.clone().requires_grad_() for one in (x, up, down)]
    expected = alone(*plain)
    expected.sum().backward()
    for overlap, policy in (("never", "time"), ("always", "time"), ("always", "memory")):
        params = MultiDeviceParams().with_(lower={"overlap": overlap})
        keywords = {"fuser_multi_device": params, "fuser_rematerialization": policy}
        jitted = thunder.jit(parallel, **OPTIONS, **keywords)
        found = jitted(*given)
        torch.testing.assert_close(found, expected.chunk(size)[rank])
        found.sum().backward()  # an expanded gradient
        for ours, theirs, dim in zip(given, plain, (0, 0, 1), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad.chunk(size, dim)[rank])
            ours.grad = None
        assert regions() >= 2
        both = {"all_gather_matmul": 1, "matmul_reduce_scatter": 1}
        again = {"all_gather_products": 2, "matmul_reduce_scatter": 1}
        assert claimed(jitted) == ((both, again) if overlap == "always" else ({}, {}))
        lines = report(jitted).products
        assert len(lines) == (5 if overlap == "always" else 0), lines
        assert all(f", {size} ranks: pipeline in" in one for one in lines), lines
        assert all(one in str(report(jitted)) for one in lines)
        with torch.no_grad():
            torch.testing.assert_close(jitted(*given), expected.chunk(size)[rank])
    for overlap in ("never", "always"):
        _check_batches(rank, size, overlap)
        for biased in (False, True):
            _check_layers(rank, size, overlap, biased)


def _check_layers(rank: int, size: int, overlap: str, biased: bool) -> None:
    """Two layers of three axes, with gradients. Their products differ in kind, size and layout.

    The second one's bias is added before its sum is scattered: its gradient reads what the backward
    gathers as well, so that is gathered as it is.
    """
    group = dist.group.WORLD
    torch.manual_seed(12)
    shapes = ((4, 3, 16), (8, 16), (24, 8), (12, 24), (12, 16), (16,))
    x, a, b, c, d, bias = (torch.randn(shape) / 4 for shape in shapes)

    def parallel(x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        a, b, c, d, bias = more
        y = F.linear(functional.all_gather_tensor(x * 2, 0, group), a)
        y = functional.reduce_scatter_tensor(F.linear(torch.tanh(y), b), "sum", 0, group)
        y = F.linear(functional.all_gather_tensor(torch.sin(y), 0, group), c)
        z = torch.tanh(y) @ d
        return functional.reduce_scatter_tensor(z + bias if biased else z, "sum", 0, group) + 1

    def alone(x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        a, b, c, d, bias = more
        y = F.linear(torch.tanh(F.linear(x * 2, a)), b) * size
        z = torch.tanh(F.linear(torch.sin(y), c)) @ d
        return (z + bias if biased else z) * size + 1

    params = MultiDeviceParams().with_(lower={"overlap": overlap})
    jitted = thunder.jit(parallel, **OPTIONS, fuser_multi_device=params)
    given = [one.clone().requires_grad_() for one in (x.chunk(size)[rank], a, b, c, d, bias)]
    plain = [one.clone().requires_grad_() for one in (x, a, b, c, d, bias)]
    found, expected = jitted(*given), alone(*plain)
    torch.testing.assert_close(found, expected.chunk(size)[rank])
    weights = torch.cos(torch.arange(expected.numel())).view_as(expected)
    (found * weights.chunk(size)[rank]).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(given[0].grad, plain[0].grad.chunk(size)[rank])
    for ours, theirs in zip(given[1 : 6 - (not biased)], plain[1:], strict=False):
        total = ours.grad.clone()  # each rank has the part of its own products
        dist.all_reduce(total)
        torch.testing.assert_close(total, theirs.grad, msg=str(tuple(ours.shape)))
    forward, backward = claimed(jitted)
    both = {"all_gather_matmul": 2, "matmul_reduce_scatter": 2 - biased}
    assert forward == (both if overlap == "always" else {}), forward
    again = {"all_gather_products": 4 - biased, "matmul_reduce_scatter": 2}
    assert backward == (again if overlap == "always" else {}), backward


def _check_batches(rank: int, size: int, overlap: str) -> None:
    """Operands of three axes, without gradients; the first axis is gathered and scattered."""
    torch.manual_seed(11)
    x, w = torch.randn(4, 3, 16), torch.randn(8, 16)
    group = dist.group.WORLD

    def parallel(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.linear(functional.all_gather_tensor(x * 2, 0, group), w)
        return functional.reduce_scatter_tensor(F.linear(torch.tanh(y), w.t()), "sum", 0, group) + 1

    params = MultiDeviceParams().with_(lower={"overlap": overlap})
    jitted = thunder.jit(parallel, **OPTIONS, fuser_multi_device=params)
    expected = F.linear(torch.tanh(F.linear(x * 2, w)), w.t()) * size + 1
    torch.testing.assert_close(jitted(x.chunk(size)[rank], w), expected.chunk(size)[rank])
    calls = overlapped(thunder.last_traces(jitted)[-1])
    both = {"all_gather_matmul": 1, "matmul_reduce_scatter": 1}
    assert calls == (both if overlap == "always" else {}), calls


def check_functional_operations() -> None:
    """Other axes and reductions, and the operations under the functions."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group, name = dist.group.WORLD, dist.group.WORLD.group_name
    every = [torch.randn(4, 8, generator=torch.Generator().manual_seed(at)) for at in range(size)]
    stack = torch.stack(every)
    ops = torch.ops._c10d_functional
    for call, expected in (
        (lambda x: functional.all_gather_tensor(x, 1, group), torch.cat(every, 1)),
        (lambda x: functional.reduce_scatter_tensor(x, "avg", 1, group),
         stack.mean(0).chunk(size, 1)[rank]),
        (lambda x: functional.all_reduce(x, "sum", group), stack.sum(0)),
        (lambda x: functional.all_reduce(x, "max", group), stack.amax(0)),
        (lambda x: functional.all_to_all_single(x.repeat(size, 1), None, None, group),
         torch.cat(every)),
        (lambda x: functional.broadcast(x.t(), size - 1, group), every[-1].t()),
        (lambda x: functional.permute_tensor(x.flatten(), [*range(1, size), 0], group),
         every[rank - 1].flatten()),
        (lambda x: ops.wait_tensor(ops.broadcast(x, 0, name)), every[0]),
        (lambda x: ops.wait_tensor(ops.all_gather_into_tensor(x, size, name)),
         torch.cat(every, 0)),
        (lambda x: ops.wait_tensor(ops.reduce_scatter_tensor(x, "sum", size, name)),
         stack.sum(0).chunk(size)[rank]),
    ):  # fmt: skip
        found = thunder.jit(lambda x, call=call: torch.tanh(call(x * 1)), **OPTIONS)(every[rank])
        torch.testing.assert_close(found, expected.tanh())
    try:
        thunder.jit(lambda x: functional.reduce_scatter_tensor(x, "sum", 0, group), **OPTIONS)(
            torch.ones(size + 1)
        )
    except CommunicationError as error:
        assert f"axis 0: expected a multiple of {size} devices" in str(error)
    else:
        raise AssertionError("an axis that does not divide")


def check_all_to_all() -> None:
    """Rank r sends d + 1 rows to rank d, with gradients: those that torch's own call gives."""
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    rows = [to + 1 for to in range(size)]
    made = [rank + 1] * size
    x = torch.randn(sum(rows), 3, generator=torch.Generator().manual_seed(rank))

    def exchange(x: torch.Tensor, call: Any = functional.all_to_all_single) -> torch.Tensor:
        y = call(torch.tanh(x.t().clone().t()), made, rows, group)
        return torch.sin(functional.wait_tensor(y))

    found, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    jitted = thunder.jit(exchange, **OPTIONS)
    y, expected = jitted(found), exchange(plain, functional.all_to_all_single_autograd)
    for trace in (thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]):
        (call,) = (one for one in trace.bound_symbols if one.sym.name == "torch_all_to_all_single")
        assert why_on_host(call, "cpu", ()) == "it communicates"
    weights = torch.arange(1.0, y.numel() + 1).view_as(y) * (rank + 1)
    (y * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(found.grad, plain.grad)
    for call, what in (
        (lambda x: functional.all_to_all_single(x, [1] * size, [1] * size, group),
         f"axis 0: expected {size} sizes each, of the input {x.shape[0]} together"),
        (lambda x: functional.all_to_all_single(x, None, [1] * size, group), "got one"),
        (lambda x: functional.all_to_all_single(x, None, None, group),
         f"axis 0: expected a multiple of {size} devices"),
    ):  # fmt: skip
        with pytest.raises(CommunicationError, match=what):
            thunder.jit(call, **OPTIONS)(x.clone().requires_grad_())


def check_gradients_of_what_one_device_has() -> None:
    """Of maxima, also equal ones, and of a source: the losses of all devices are added."""
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    torch.manual_seed(3)
    every = torch.randn(size, 4, 8)
    every[:, 0] = every[0, 0]  # all devices have the maximum
    every[:, 1, :2] = torch.nan  # on all: backends differ in a maximum of NaN and others
    last = size - 1
    for call, alone in (
        (lambda x: functional.all_reduce(x, "max", group), lambda xs: [xs.amax(0)] * size),
        (lambda x: functional.all_reduce(x, "avg", group), lambda xs: [xs.mean(0)] * size),
        (lambda x: functional.reduce_scatter_tensor(x, "max", 1, group),
         lambda xs: xs.amax(0).chunk(size, 1)),
        (lambda x: functional.broadcast(x, last, group), lambda xs: [xs[last]] * size),
    ):  # fmt: skip
        plain, own = every.clone().requires_grad_(), every[rank].clone().requires_grad_()
        jitted = thunder.jit(lambda x, call=call: torch.sin(call(torch.tanh(x))), **OPTIONS)
        found, expected = jitted(own), alone(plain.tanh())
        torch.testing.assert_close(found, expected[rank].sin(), equal_nan=True)
        (found * torch.cos(found.detach() + rank)).sum().backward()
        sum((e.sin() * torch.cos(e.sin().detach() + at)).sum()
            for at, e in enumerate(expected)).backward()  # fmt: skip
        torch.testing.assert_close(own.grad, plain.grad[rank], equal_nan=True)


def check_broadcast_in_a_group() -> None:
    """The source counts in its group, as torch's does."""
    pair, _ = dist.new_subgroups(2)
    x = torch.full((3,), float(dist.get_rank()))
    found = thunder.jit(lambda x: functional.broadcast(x + 1, 1, pair) * 2, **OPTIONS)(x)
    expected = functional.wait_tensor(functional.broadcast(x + 1, 1, pair))
    torch.testing.assert_close(found, expected * 2)


def main() -> None:
    join()
    run_checks((
        check_functional_collectives, check_functional_operations, check_all_to_all,
        check_gradients_of_what_one_device_has, check_broadcast_in_a_group, check_ddp, check_fsdp,
        check_tensor_parallel,
    ))  # fmt: skip
    if dist.get_world_size() == 2:  # these say the same of more ranks
        run_checks((
            check_plugins, check_torch_wrappers, check_hidden_collectives, check_gathered_operands,
        ))  # fmt: skip
    leave()


if __name__ == "__main__":
    main()
