# SPDX-License-Identifier: Apache-2.0
"""One rank of a real process group: axes of matrix products over streams, against one process.

Run by tests/communication/test_streams.py, or by hand:

    torchrun --nproc-per-node 2 tests/helpers/gloo_streams.py
    MESH_DEVICE=cuda torchrun --nproc-per-node 2 tests/helpers/gloo_streams.py    NCCL
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from helpers.gloo_communication import joined, make
from helpers.one_rank import leave, run_checks
from thunder_fuser import FusionDefinition, MultiDeviceParams, ParallelType, options
from thunder_fuser.communication.products import pipelines
from thunder_fuser.communication.products.cost import Decision
from thunder_fuser.errors import CommunicationError
from thunder_fuser.ir.frontend.values import Tensor

ROWS, COLUMNS, WHOLE = Shard(0), Shard(1), Replicate()
M, K, N = 16, 8, 24


def on_mesh(tensor: Tensor, mesh: DeviceMesh, axis: int | None = None) -> None:
    """Whole on each device, or an axis over all of them."""
    tensor.set_device_mesh(mesh)
    if axis is not None:
        tensor.outer_split(axis, mesh.size()).axis(axis).parallelize(ParallelType.mesh_x)


def over_streams(tensor: Tensor, axis: int, pieces: int) -> None:
    tensor.outer_split(axis, pieces).axis(axis).parallelize(ParallelType.stream)


class Seen:
    """The chunks of each pipeline that ran, none where a collective did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chunks: list[int] = []
        kept = pipelines._exchange

        def noted(form: Any, group: Any, decision: Decision, like: torch.Tensor) -> Any:
            found = kept(form, group, decision, like)
            self.chunks += [decision.chunks] * (found is not None)
            return found

        monkeypatch.setattr(pipelines, "_exchange", noted)


Build = Callable[[Any, DeviceMesh, int, Tensor, Tensor], Tensor]


def gathered(fd: Any, mesh: DeviceMesh, q: int, x: Tensor, w: Tensor) -> Tensor:
    """Rows of x on devices; the result's rows over streams."""
    y = fd.ops.matmul(x, w)
    on_mesh(x, mesh, 0)
    on_mesh(w, mesh)
    over_streams(y, 0, q * mesh.size())
    return y  # type: ignore[no-any-return]


def gathered_by_hand(fd: Any, mesh: DeviceMesh, q: int, x: Tensor, w: Tensor) -> Tensor:
    """The gathered operand over streams."""
    whole = fd.ops.redistribute(x, [WHOLE])
    on_mesh(x, mesh, 0)
    on_mesh(w, mesh)
    over_streams(whole, 0, q * mesh.size())
    return fd.ops.matmul(whole, w)  # type: ignore[no-any-return]


def gathered_weight(fd: Any, mesh: DeviceMesh, q: int, x: Tensor, w: Tensor) -> Tensor:
    """Rows of a weight [n, k] on devices; the result's columns over streams."""
    y = fd.ops.linear(x, w)
    on_mesh(x, mesh)
    on_mesh(w, mesh, 0)
    over_streams(y, 1, q * mesh.size())
    return y  # type: ignore[no-any-return]


def scattered(fd: Any, mesh: DeviceMesh, q: int, x: Tensor, w: Tensor) -> Tensor:
    """The summed axis on devices, rows of the operand over streams, rows of the result on
    devices."""
    y = fd.ops.matmul(x, w)
    x.set_device_mesh(mesh)
    over_streams(x, 0, q * mesh.size())
    x.outer_split(2, mesh.size()).axis(2).parallelize(ParallelType.mesh_x)
    on_mesh(w, mesh, 0)
    on_mesh(y, mesh, 0)
    return y  # type: ignore[no-any-return]


def scattered_result(fd: Any, mesh: DeviceMesh, q: int, x: Tensor, w: Tensor) -> Tensor:
    """The same, with the inner part of the result's rows over streams."""
    y = fd.ops.matmul(x, w)
    on_mesh(x, mesh, 1)
    on_mesh(w, mesh, 0)
    on_mesh(y, mesh, 0)
    y.outer_split(1, q).axis(1).parallelize(ParallelType.stream)
    return y  # type: ignore[no-any-return]


def reduced(fd: Any, mesh: DeviceMesh, q: int, x: Tensor, w: Tensor) -> Tensor:
    y = fd.ops.matmul(x, w)
    on_mesh(x, mesh, 1)
    on_mesh(w, mesh, 0)
    over_streams(y, 0, q * mesh.size())
    return y  # type: ignore[no-any-return]


PIPELINES: tuple[tuple[Build, str, Any, Any, bool], ...] = (
    # what a rank has of x and of w, and whether the result is this rank's rows
    (gathered, "all_gather_matmul", ROWS, WHOLE, False),
    (gathered_by_hand, "all_gather_matmul", ROWS, WHOLE, False),
    (gathered_weight, "all_gather_linear", WHOLE, ROWS, False),
    (scattered, "matmul_reduce_scatter", COLUMNS, ROWS, True),
    (scattered_result, "matmul_reduce_scatter", COLUMNS, ROWS, True),
    (reduced, "matmul_all_reduce", COLUMNS, ROWS, False),
)


def part(whole: torch.Tensor, placement: Any) -> torch.Tensor:
    if placement == WHOLE:
        return whole
    rank, size = dist.get_rank(), dist.get_world_size()
    return whole.chunk(size, placement.dim)[rank].contiguous()


def defined(build: Callable[..., Any], mesh: DeviceMesh, inputs: Sequence[torch.Tensor],
            *more: Any) -> FusionDefinition:  # fmt: skip
    with FusionDefinition() as fd:
        y = build(fd, mesh, *more, *[fd.from_pytorch(one) for one in inputs])
        fd.add_output(fd.ops.tanh(y))
    return fd


def check_pipelines(mesh: DeviceMesh) -> None:
    """By hand there is a pipeline with so many chunks, whatever is asked of others."""
    for build, name, x_at, w_at, is_part in PIPELINES:
        x, w = make(M, K) / 4, make(K, N, seed=1) / 4
        expected = (x @ w).tanh()
        given = [x, w.t().contiguous() if build is gathered_weight else w]
        inputs = [part(one, at) for one, at in zip(given, (x_at, w_at), strict=True)]
        for lower in ({}, {"overlap": "never"}, {"overlap": "always", "chunks": 1},
                      {"backend": "process_group"}):  # fmt: skip
            for q in (2,) if lower else (1, 2):
                params = MultiDeviceParams().with_(lower=lower)
                with options(multi_device=params), pytest.MonkeyPatch.context() as patch:
                    seen = Seen(patch)
                    fd = defined(build, mesh, inputs, q)
                    (found,) = fd.execute(inputs)
                    text = str(fd.program(inputs))
                    wanted = part(expected, ROWS) if is_part else expected
                    torch.testing.assert_close(found, wanted, msg=f"{build.__name__} {lower} {q}")
                    assert f"= {name}(" in text and f"chunks={q})" in text, text
                    assert "on_stream" not in text and "_sent" not in text, text
                    assert seen.chunks == [q] * ("backend" not in lower), (build, lower, q)


def check_plan(mesh: DeviceMesh) -> None:
    """The plan says what was asked for, with the predicted times of both ways."""
    inputs = [part(make(M, K), ROWS), make(K, N, seed=1)]
    (note,) = defined(gathered, mesh, inputs, 2).plan(inputs).notes
    assert f"{mesh.size()} ranks: pipeline in 2 chunks; predicted:" in note, note


def check_leading_axes(mesh: DeviceMesh) -> None:
    """As nvFuser's users write it: the axis of devices is one of its own, and over streams."""
    size = mesh.size()
    x, w, b = make(size, 3, K), make(N, K, seed=1), make(N, seed=2)
    with FusionDefinition() as fd:
        t, weight = fd.define_tensor([size, 3, K], True), fd.define_tensor([N, K], True)
        bias = fd.define_tensor([N], True)
        y = fd.ops.linear(t, weight, bias)
        fd.add_output(y)
        for one in (t, weight, bias, y):
            one.set_device_mesh(mesh)
        t.axis(0).parallelize(ParallelType.mesh_x)
        y.axis(0).parallelize(ParallelType.stream)
    own = x[dist.get_rank()][None].contiguous()
    (found,) = fd.execute([own, w, b])
    torch.testing.assert_close(found, torch.nn.functional.linear(x, w, b))
    assert "all_gather_matmul(T0, T1.t(), bias=T2, mesh" in str(fd.program([own, w, b]))


def check_dtensors(mesh: DeviceMesh) -> None:
    x, w = make(M, K), make(K, N, seed=1)
    with FusionDefinition() as fd:
        y = fd.ops.matmul(fd.from_pytorch(x), fd.from_pytorch(w))
        fd.add_output(y)
        over_streams(y, 0, mesh.size())
    given = [distribute_tensor(x, mesh, [ROWS]), distribute_tensor(w, mesh, [WHOLE])]
    with pytest.MonkeyPatch.context() as patch:
        seen = Seen(patch)
        (found,) = fd.execute(given)
        assert seen.chunks == [1]
    assert found.placements == (WHOLE,)
    torch.testing.assert_close(found.full_tensor(), x @ w)


def another_axis(fd: Any, mesh: DeviceMesh, x: Tensor, w: Tensor) -> Tensor:
    y = fd.ops.matmul(fd.ops.redistribute(x, [WHOLE]), w)
    on_mesh(x, mesh, 0)
    on_mesh(w, mesh)
    over_streams(y, 1, 3)
    return y  # type: ignore[no-any-return]


def in_step(fd: Any, mesh: DeviceMesh, x: Tensor, w: Tensor) -> Tensor:
    y = fd.ops.matmul(x, w)
    on_mesh(x, mesh, 0)
    x.outer_split(1, 2).axis(1).parallelize(ParallelType.stream)
    on_mesh(w, mesh)
    return y  # type: ignore[no-any-return]


def read_twice(fd: Any, mesh: DeviceMesh, x: Tensor, w: Tensor) -> Tensor:
    whole = fd.ops.redistribute(x, [WHOLE])
    y = fd.ops.matmul(whole, w)
    fd.add_output(fd.ops.neg(whole))
    on_mesh(x, mesh, 0)
    on_mesh(w, mesh)
    over_streams(y, 0, 2 * mesh.size())
    return y  # type: ignore[no-any-return]


def check_loops(mesh: DeviceMesh) -> None:
    """Over another axis than the devices', or of what others read too: products in a loop."""
    x, w = make(M, K) / 4, make(K, N, seed=1) / 4
    inputs, size = [part(x, ROWS), w], mesh.size()
    for build, pieces, at, expected in (
        (another_axis, 3, -1, (x @ w).tanh()),
        (in_step, 2, -1, part((x @ w).tanh(), ROWS)),
        (read_twice, 2 * size, -1, (x @ w).tanh()),
    ):
        for streams in (1, 4):
            with options(multi_device=MultiDeviceParams().with_(executor={"streams": streams})):
                fd = defined(build, mesh, inputs)
                torch.testing.assert_close(fd.execute(inputs)[at], expected, msg=build.__name__)
                text = str(fd.program(inputs))
            assert text.count("        matmul(") == pieces, text
            assert text.count("wait_event(E0)") == min(streams, pieces), text
            assert "all_gather_matmul" not in text


def check_refusals(mesh: DeviceMesh) -> None:
    """Pieces that are no equal number for each device, on all ranks."""
    size = mesh.size()
    x, w = make(3 * size, K), make(K, N, seed=1)
    inputs = [part(x, ROWS), w]

    def uneven(fd: Any, mesh: DeviceMesh, t: Tensor, v: Tensor) -> Tensor:
        y = fd.ops.matmul(t, v)
        on_mesh(t, mesh, 0)
        on_mesh(v, mesh)
        over_streams(y, 0, 3)
        return y  # type: ignore[no-any-return]

    with pytest.raises(
        CommunicationError,
        match=rf"axis 0 on stream: expected a multiple of {size} pieces.*all_gather, got 3 pieces",
    ):
        defined(uneven, mesh, inputs).execute(inputs)
    dist.barrier()


def main() -> None:
    mesh = joined()
    checks = (
        check_pipelines, check_plan, check_leading_axes, check_dtensors, check_loops,
        check_refusals,
    )  # fmt: skip
    run_checks(checks, mesh)
    leave()


if __name__ == "__main__":
    main()
