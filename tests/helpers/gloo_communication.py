# SPDX-License-Identifier: Apache-2.0
"""One rank of a real process group: fusions that communicate, against one process.

Run by tests/definition/test_communication.py, or by hand:

    torchrun --nproc-per-node 2 tests/helpers/gloo_communication.py
    MESH_DEVICE=cuda torchrun --nproc-per-node 2 tests/helpers/gloo_communication.py    NCCL
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from helpers.one_rank import join, leave, run_checks
from thunder_fuser import DataType, FusionDefinition, options
from thunder_fuser.communication.transport import collectives
from thunder_fuser.errors import CacheMissError, PeerError
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.multi_device import MultiDeviceParams

DEVICE = os.environ.get("MESH_DEVICE", "cpu")
WHOLE, ROWS, COLUMNS = Replicate(), Shard(0), Shard(1)


def make(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(DEVICE)
    return (found * 4).to(dtype) if not dtype.is_complex else torch.complex(found, found).to(dtype)


def run(
    build: Callable[..., Any], inputs: Sequence[torch.Tensor], placements: Sequence[Any],
    mesh: DeviceMesh, **more: Any,
) -> Any:
    """The definition of whole tensors, on DTensors in these placements."""
    with FusionDefinition() as fd:
        made = build(fd, *[fd.from_pytorch(t) for t in inputs])
        fd.add_output(made)
    assert rebuild(str(fd.fusion)) == fd.fusion
    given = [
        distribute_tensor(t, mesh, p if isinstance(p, list) else [p])
        for t, p in zip(inputs, placements, strict=True)
    ]
    return fd.execute(given, **more)[0]


def softmax(fd: Any, x: Any) -> Any:
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
    return fd.ops.truediv(e, fd.ops.sum(e, [1], keepdim=True))


# ---- what propagation places, and communication serves

CASES: tuple[tuple[str, list[torch.Tensor], list[Any], Callable[..., Any], Callable[..., Any]],
             ...] = (
    ("sum over devices", [make(8, 6), make(6, seed=1)], [ROWS, WHOLE],
     lambda fd, x, y: fd.ops.mul(fd.ops.tanh(fd.ops.sum(x, [0])), y),
     lambda x, y: torch.tanh(x.sum(0)) * y),
    ("sum of everything", [make(8, 6)], [ROWS],
     lambda fd, x: fd.ops.neg(fd.ops.sum(x)), lambda x: -x.sum()),
    ("max over devices", [make(8, 6)], [ROWS],
     lambda fd, x: fd.ops.exp(fd.ops.max(x, [0], keepdim=True)),
     lambda x: x.amax(0, keepdim=True).exp()),
    ("softmax over devices", [make(5, 16)], [COLUMNS],
     softmax, lambda x: torch.softmax(x, 1)),
    ("cumsum", [make(8, 6)], [ROWS],
     lambda fd, x: fd.ops.cumsum(fd.ops.neg(x), 0), lambda x: (-x).cumsum(0)),
    ("two shardings", [make(8, 12), make(8, 12, seed=1)], [ROWS, COLUMNS],
     lambda fd, x, y: fd.ops.add(fd.ops.exp(x), y), lambda x, y: x.exp() + y),
    ("whole beside sharded", [make(8, 6), make(8, 6, seed=1)], [WHOLE, ROWS],
     lambda fd, x, y: fd.ops.sub(x, y), lambda x, y: x - y),
    ("transpose beside", [make(8, 8)], [ROWS],
     lambda fd, x: fd.ops.add(x, fd.ops.permute(x, [1, 0])), lambda x: x + x.t()),
    ("row-parallel linear", [make(5, 16), make(24, 16, seed=1), make(24, seed=2)],
     [COLUMNS, COLUMNS, WHOLE],
     lambda fd, x, w, b: fd.ops.relu(fd.ops.linear(x, w, b)),
     lambda x, w, b: F.relu(F.linear(x, w, b))),
    ("row-parallel, scattered", [make(8, 16), make(12, 16, seed=1), make(12, seed=2)],
     [COLUMNS, COLUMNS, WHOLE],
     lambda fd, x, w, b: fd.ops.relu(
         fd.ops.redistribute(fd.ops.neg(fd.ops.linear(x, w, b)), [ROWS])),
     lambda x, w, b: (-F.linear(x, w, b)).relu()),
    ("gathered rows, column-parallel", [make(8, 16), make(12, 16, seed=1)], [ROWS, ROWS],
     lambda fd, x, w: fd.ops.tanh(fd.ops.linear(fd.ops.redistribute(x, [WHOLE]), w)),
     lambda x, w: F.linear(x, w).tanh()),
    ("gathered weight", [make(8, 16), make(16, 12, seed=1)], [ROWS, ROWS],
     lambda fd, x, w: fd.ops.tanh(fd.ops.matmul(x, w)), lambda x, w: (x @ w).tanh()),
    ("what is made from nothing", [make(8, 6)], [ROWS],
     lambda fd, x: fd.ops.add(
         fd.ops.sum(x, [0]), fd.ops.iota(fd.ops.size(x, 1), dtype=DataType.Float)),
     lambda x: x.sum(0) + torch.arange(6.0, device=DEVICE)),
    ("flip", [make(8, 6)], [ROWS], lambda fd, x: fd.ops.flip(x, [0]), lambda x: x.flip(0)),
    ("norm over devices", [make(4, 32), make(32, seed=1)], [COLUMNS, ROWS],
     lambda fd, x, w: fd.ops.mul(
         fd.ops.mul(x, fd.ops.rsqrt(fd.ops.var_mean(x, [1], 0, True)[0])), w),
     lambda x, w: x * x.var(1, correction=0, keepdim=True).rsqrt() * w),
)  # fmt: skip


def check_cases(mesh: DeviceMesh) -> None:
    for name, inputs, placements, build, reference in CASES:
        expected = reference(*inputs)
        emulated = DEVICE == "cpu" and name.startswith(("softmax", "sum"))
        for target in (None, "emulator") if emulated else (None,):
            result = run(build, inputs, placements, mesh, target=target)
            torch.testing.assert_close(result.full_tensor(), expected, msg=name)


def check_awaited_at_once(mesh: DeviceMesh) -> None:
    params = MultiDeviceParams().with_(executor={"early": False})
    with options(multi_device=params):
        name, inputs, placements, build, reference = CASES[3]
        result = run(build, inputs, placements, mesh)
        torch.testing.assert_close(result.full_tensor(), reference(*inputs), msg=name)


LOWERS: tuple[dict[str, Any], ...] = (
    {"overlap": "always"}, {"overlap": "always", "chunks": 3},
    {"overlap": "always", "backend": "process_group"}, {"overlap": "never"},
)  # fmt: skip


def check_overlap(mesh: DeviceMesh, lowers: Sequence[dict[str, Any]] = LOWERS) -> None:
    """Products with communication as one call, in chunks or as the cost model says."""
    size, rank = mesh.size(), dist.get_rank()
    where = {"mesh": list(range(size)), "on": "mesh_x"}
    x, w = make(4 * size, 4 * size), make(4 * size, 3 * size, seed=1)
    part, columns = x.chunk(size)[rank], x.chunk(size, 1)[rank].contiguous()
    rows = w.chunk(size)[rank]
    wide = w.t().contiguous()
    cases: tuple[tuple[str, list[torch.Tensor], Callable[..., Any], torch.Tensor], ...] = (
        ("all_gather_matmul", [part, w],
         lambda fd, a, b: fd.ops.matmul(fd.ops.all_gather(a, 0, **where), b), x @ w),
        ("all_gather_matmul", [part, wide],
         lambda fd, a, b: fd.ops.linear(fd.ops.all_gather(a, 0, **where), b), x @ w),
        ("all_gather_linear", [x, wide.chunk(size)[rank]],
         lambda fd, a, b: fd.ops.linear(a, fd.ops.all_gather(b, 0, **where)), x @ w),
        ("matmul_reduce_scatter", [columns, rows],
         lambda fd, a, b: fd.ops.reduce_scatter(fd.ops.matmul(a, b), 0, **where),
         (x @ w).chunk(size)[rank]),
        ("matmul_reduce_scatter", [columns, rows.t().contiguous()],
         lambda fd, a, b: fd.ops.reduce_scatter(fd.ops.linear(a, b), 0, **where),
         (x @ w).chunk(size)[rank]),
        ("matmul_all_reduce", [columns, rows],
         lambda fd, a, b: fd.ops.all_reduce(fd.ops.matmul(a, b), **where), x @ w),
    )  # fmt: skip
    bias = make(3 * size, seed=2)
    cases += (
        ("all_gather_matmul", [part, wide, bias],
         lambda fd, a, b, c: fd.ops.linear(fd.ops.all_gather(a, 0, **where), b, c), x @ w + bias),
        ("all_gather_linear", [x, wide.chunk(size)[rank], bias],
         lambda fd, a, b, c: fd.ops.linear(a, fd.ops.all_gather(b, 0, **where), c), x @ w + bias),
    )  # fmt: skip
    # The leading axes are rows of a matrix, of which the first is on devices.
    deep, flat = (t.unflatten(0, (-1, 2)).contiguous() for t in (x, columns))
    cases += (
        ("all_gather_matmul", [deep.chunk(size)[rank], wide],
         lambda fd, a, b: fd.ops.linear(fd.ops.all_gather(a, 0, **where), b), deep @ w),
        ("matmul_reduce_scatter", [flat, rows],
         lambda fd, a, b: fd.ops.reduce_scatter(fd.ops.matmul(a, b), -3, **where),
         (deep @ w).chunk(size)[rank]),
        ("matmul_all_reduce", [flat, rows.t().contiguous()],
         lambda fd, a, b: fd.ops.all_reduce(fd.ops.linear(a, b), **where), deep @ w),
    )  # fmt: skip
    for lower in lowers:
        with options(multi_device=MultiDeviceParams().with_(lower=lower)):
            for name, inputs, build, expected in cases:
                with FusionDefinition() as fd:
                    given = [fd.ops.mul(fd.from_pytorch(t), 1.0) for t in inputs]
                    fd.add_output(fd.ops.tanh(build(fd, *given)))
                (found,) = fd.execute(inputs)
                # Each rank adds its part of a sum: another order than one product's.
                error = (found - expected.tanh()).abs().max()
                assert error < 1e-4, f"{name} {lower}: {error}"
                is_joined = f"= {name}(" in str(fd.program(inputs))
                assert is_joined == (lower["overlap"] != "never"), fd.program(inputs)


def check_placements(
    mesh: DeviceMesh,
    dtypes: Sequence[torch.dtype] = (torch.bfloat16, torch.int64),
) -> None:
    """From every placement to all others, for dtypes, in any layout."""
    size = mesh.size()
    targets = (WHOLE, ROWS, COLUMNS)
    for source in (*targets, Partial()):
        for dtype in dtypes:
            x = make(2 * size, 3 * size, dtype=dtype)
            with FusionDefinition() as fd:
                t = fd.ops.mul(fd.from_pytorch(x), 2)
                for target in targets:
                    fd.add_output(fd.ops.redistribute(t, [target]))
            if isinstance(source, Partial):
                given = DTensor.from_local(x, mesh, [source], run_check=False)
                expected = x * (2 * size)
            else:
                given, expected = distribute_tensor(x, mesh, [source]), x * 2
            for result, target in zip(fd.execute([given]), targets, strict=True):
                assert result.placements == (target,), (source, target, result.placements)
                found = result.full_tensor().to(expected.dtype)
                torch.testing.assert_close(found, expected, msg=str((source, target, dtype)))
        if isinstance(source, Partial):
            continue
        x = make(3 * size, 2 * size).t()
        for target in targets:
            with FusionDefinition() as fd:
                t = fd.define_tensor([-1, -1])
                fd.add_output(fd.ops.redistribute(t, [target]), stride_order=[0, 1])
            (result,) = fd.execute([distribute_tensor(x, mesh, [source])])
            assert result.to_local().stride(0) == 1
            torch.testing.assert_close(result.full_tensor(), x)


def check_two_dimensions() -> None:
    """All pairs of placements on a mesh of two dimensions."""
    if dist.get_world_size() != 4:
        return
    mesh = init_device_mesh(DEVICE, (2, 2))
    every = list(itertools.product((WHOLE, ROWS, COLUMNS), repeat=2))
    x = make(8, 12)
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        for target in every:
            fd.add_output(fd.ops.redistribute(t, target))
    assert rebuild(str(fd.fusion)) == fd.fusion
    for source in every:
        results = fd.execute([distribute_tensor(x, mesh, source)])
        for result, target in zip(results, every, strict=True):
            assert result.placements == target, (source, target)
            torch.testing.assert_close(result.full_tensor(), x, msg=str((source, target)))
    y = make(8, 12, seed=3)
    result = run(
        lambda fd, a, b: fd.ops.sum(fd.ops.mul(a, b), [0]), [x, y],
        [[ROWS, ROWS], [COLUMNS, ROWS]], mesh,
    )
    torch.testing.assert_close(result.full_tensor(), (x * y).sum(0))


def check_by_hand(mesh: DeviceMesh) -> None:
    """Local tensors, and the mesh and the placement of each value in the definition."""
    size, rank, x = mesh.size(), dist.get_rank(), make(8, 12)
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        y = fd.ops.sum(t, [0])
        fd.add_output(y)
        for tensor in (t, y):
            tensor.set_device_mesh(mesh)
            tensor.outer_split(0, size).axis(0).parallelize("mesh_x")
    part = x.chunk(size)[rank]
    (found,) = fd.execute([part])
    torch.testing.assert_close(found, x.sum(0).chunk(size)[rank])
    assert "reduce_scatter" in str(fd.program([part]))


def check_local_calls(mesh: DeviceMesh) -> None:
    """The calls on local tensors, without a mesh on any of them."""
    size, rank = mesh.size(), dist.get_rank()
    ranks, every = list(range(size)), [make(4, 2 * size, seed=at) for at in range(size)]
    wheres = {"mesh": ranks, "on": "mesh_x"}
    total = torch.stack(every).sum(0)
    for build, expected in (
        (lambda fd, t: fd.ops.all_gather(t, 1, **wheres), torch.cat(every, 1)),
        (lambda fd, t: fd.ops.all_gather(t, 0, **wheres), torch.cat(every, 0)),
        (lambda fd, t: fd.ops.all_reduce(t, **wheres), total),
        (lambda fd, t: fd.ops.all_reduce(t, **wheres, reduce="avg"), total / size),
        (lambda fd, t: fd.ops.all_reduce(t, **wheres, reduce="min"),
         torch.stack(every).amin(0)),
        (lambda fd, t: fd.ops.reduce_scatter(t, 1, **wheres), total.chunk(size, 1)[rank]),
        (lambda fd, t: fd.ops.reduce_scatter(t, 1, **wheres, reduce="max"),
         torch.stack(every).amax(0).chunk(size, 1)[rank]),
        (lambda fd, t: fd.ops.all_to_all(t, 1, 0, **wheres),
         torch.cat([one.chunk(size, 1)[rank] for one in every], 0)),
        (lambda fd, t: fd.ops.broadcast_from(t, 1, **wheres), every[1]),
    ):  # fmt: skip
        with FusionDefinition() as fd:
            t = fd.from_pytorch(every[rank])
            fd.add_output(fd.ops.tanh(build(fd, fd.ops.mul(t, 1.0))))
        assert rebuild(str(fd.fusion)) == fd.fusion
        (found,) = fd.execute([every[rank]])
        torch.testing.assert_close(found, torch.tanh(expected), msg=str(fd))


def check_collectives(mesh: DeviceMesh) -> None:
    """Each dtype moves, and is reduced if it has arithmetic; NaN is the greatest everywhere."""
    size, rank = mesh.size(), dist.get_rank()
    where = {"mesh": tuple(range(size)), "on": "mesh_x"}
    for dtype in (torch.bool, torch.int16, torch.float16, torch.complex64, torch.float8_e4m3fn):
        count = torch.arange(4, device=DEVICE)
        x = (count + rank).to(dtype)
        found = collectives.wait(collectives.all_gather(x, dim=0, **where), "x")
        expected = torch.cat([(count + at).to(dtype) for at in range(size)])
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    for dtype in (torch.int16, torch.bfloat16, torch.complex64):
        x = torch.ones(4, dtype=dtype, device=DEVICE) * (rank + 1)
        found = collectives.wait(collectives.all_reduce(x, **where), "x")
        assert found.dtype == dtype and (found == size * (size + 1) // 2).all()
    x = torch.tensor([float("nan") if rank == 1 else 5.0, float(rank)], device=DEVICE)
    for found in (
        collectives.wait(collectives.all_reduce(x, reduce="max", **where), "x"),
        collectives.wait(collectives.all_reduce(x, reduce="min", **where), "x"),
    ):
        assert found[0].isnan() and not found[1].isnan()


def check_one_text(mesh: DeviceMesh) -> None:
    """All ranks run one text."""
    name, inputs, placements, build, _ = CASES[0]
    with FusionDefinition() as fd:
        fd.add_output(build(fd, *[fd.from_pytorch(t) for t in inputs]))
    given = [distribute_tensor(t, mesh, [p]) for t, p in zip(inputs, placements, strict=True)]
    fd.execute(given)
    text = str(fd.program(given)) if hasattr(fd, "program") else ""
    found: list[str] = [""] * mesh.size()
    dist.all_gather_object(found, text)
    assert len(set(found)) == 1, name


def check_strides_may_differ(mesh: DeviceMesh) -> None:
    """A rank whose tensor lies otherwise, or at an odd address, compiles anew and asks nobody."""
    rank, size = dist.get_rank(), mesh.size()
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.exp(fd.ops.all_reduce(t, list(range(size)), "mesh_x")))
    for odd in (False, True, False):
        x = make(8, 6, seed=rank)
        if odd and rank == 1:
            x = make(6, 8, seed=rank).t()
        every = [make(6, 8, seed=at).t() if odd and at == 1 else make(8, 6, seed=at)
                 for at in range(size)]  # fmt: skip
        torch.testing.assert_close(fd.execute([x])[0], torch.stack(every).sum(0).exp())


def check_programs_differ(mesh: DeviceMesh) -> None:
    """Every rank raises, and the group is usable afterwards."""
    rank, where = dist.get_rank(), {"mesh": list(range(mesh.size())), "on": "mesh_x"}
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1], True)
        scaled = fd.ops.mul(t, 2.0 if rank else 3.0)
        fd.add_output(fd.ops.all_reduce(scaled, **where))
    try:
        fd.execute([torch.ones(3, device=DEVICE)])
    except PeerError as error:
        assert "rank 0" in str(error) and f"rank {rank}: the program" in str(error)
    else:
        raise AssertionError("programs that differ ran")
    dist.barrier()


def check_a_rank_that_cannot_compile(mesh: DeviceMesh) -> None:
    """It raises its own error, and the others one that names it."""
    last, where = mesh.size() - 1, {"mesh": list(range(mesh.size())), "on": "mesh_x"}
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1], True)
        fd.add_output(fd.ops.sinh(fd.ops.all_reduce(fd.ops.exp(t), **where)))
    is_broken = dist.get_rank() == last
    # A kernel that is not in the store is an error there.
    with options(assert_cache_hit=is_broken, cache="off" if is_broken else "rw"):
        try:
            fd.execute([torch.ones(3, device=DEVICE)])
        except PeerError as error:
            assert not is_broken and f"none on rank {last}" in str(error)
        except CacheMissError:
            assert is_broken
        else:
            raise AssertionError("a rank without a program ran")
    fd.execute([torch.ones(3, device=DEVICE)])


def check_late_and_dead_peers(mesh: DeviceMesh) -> None:
    """Both end in an error that names this rank, the call and the value. The other ranks end."""
    where = {"mesh": list(range(mesh.size())), "on": "mesh_x"}
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1], True)
        fd.add_output(fd.ops.neg(fd.ops.all_reduce(fd.ops.exp(t), **where)))
    params = MultiDeviceParams().with_(executor={"seconds": 0.5})
    with options(multi_device=params):
        fd.execute([torch.ones(3, device=DEVICE)])  # warm: nothing is compared from now on
        if dist.get_rank() != 0:
            time.sleep(1)
            return
        for late in (True, False):
            try:
                fd.execute([torch.ones(3, device=DEVICE)])
            except PeerError as error:
                assert "rank 0: T2 = all_reduce(mesh=" in str(error) or not late, error
                assert "rank 0: " in str(error) and "all_reduce" in str(error), error
                assert "0.5 s" in str(error) or not late, error
            else:
                raise AssertionError("nobody came, and nothing was raised")
            time.sleep(1.5)


def joined() -> DeviceMesh:
    """The mesh of all ranks, each with its device."""
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    join("cpu:gloo,cuda:nccl" if DEVICE == "cuda" else "gloo")
    return init_device_mesh(DEVICE, (dist.get_world_size(),))


def main() -> None:
    mesh = joined()
    checks = (
        check_collectives, check_cases, check_awaited_at_once, check_placements, check_by_hand,
        check_local_calls, check_overlap, check_strides_may_differ, check_programs_differ,
        check_a_rank_that_cannot_compile,
    )  # fmt: skip
    run_checks(checks, mesh)
    check_two_dimensions()
    if DEVICE == "cpu":  # NCCL's own watchdog ends a process that waits for a dead one
        check_late_and_dead_peers(mesh)
    leave(together=False)


if __name__ == "__main__":
    main()
