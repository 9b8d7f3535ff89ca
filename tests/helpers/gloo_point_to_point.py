# SPDX-License-Identifier: Apache-2.0
"""One rank of a real process group: products with communication as sends and receives.

Run by tests/communication/test_point_to_point.py, or by hand:

    torchrun --nproc-per-node 2 tests/helpers/gloo_point_to_point.py
    MESH_DEVICE=cuda torchrun --nproc-per-node 2 tests/helpers/gloo_point_to_point.py    NCCL
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from helpers.gloo_communication import DEVICE, joined, make
from helpers.gloo_streams import (
    PIPELINES,
    ROWS,
    K,
    M,
    N,
    defined,
    gathered,
    gathered_weight,
    part,
)
from helpers.one_rank import leave, run_checks
from thunder_fuser import FusionDefinition, MultiDeviceParams, options
from thunder_fuser.communication import pipelines
from thunder_fuser.errors import PeerError
from thunder_fuser.host.statements import statements, verify_program
from thunder_fuser.host.stream_order import verify_order

F = torch.nn.functional
SENT = MultiDeviceParams().with_(lower={"backend": "point_to_point"})


@contextmanager
def without_collectives() -> Iterator[None]:
    """No collective runs, and no pipeline through memory that processes share."""
    names = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce", "all_to_all_single")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(dist, name, None)
        patch.setattr(pipelines, "exchange_for", None)
        yield


def posts(name: str, q: int, world: int) -> int:
    """How many a rank has: of the gather, of the ring of sums, or of both."""
    rounds = {"matmul_all_reduce": 2}.get(name, 1)
    return rounds * q * (world - 1)


def check_sends_and_receives(mesh: DeviceMesh) -> None:
    """The same pipelines as lines that send and receive pieces, call after call."""
    for build, name, x_at, w_at, is_part in PIPELINES:
        for q in (1, 2):
            with options(multi_device=SENT):
                fd, text = None, ""
                for seed in range(4):
                    x, w = make(M, K, seed=seed) / 4, make(K, N, seed=seed + 9) / 4
                    given = [x, w.t().contiguous() if build is gathered_weight else w]
                    inputs = [part(one, at) for one, at in zip(given, (x_at, w_at), strict=True)]
                    if fd is None:
                        fd = defined(build, mesh, inputs, q)
                        fd.execute(inputs)
                        text = str(fd.program(inputs))
                    time.sleep((dist.get_rank() + seed) % 3 / 500)
                    with without_collectives():
                        (found,) = fd.execute(inputs)
                    wanted = part((x @ w).tanh(), ROWS) if is_part else (x @ w).tanh()
                    torch.testing.assert_close(found, wanted, msg=f"{build.__name__} {q}")
            assert text.count(" = post(") == posts(name, q, mesh.size()), text
            verify_order(verify_program(statements(text)))
            assert str(statements(text)) == text
            assert name not in text and "_sent" not in text, text


def check_sends_without_streams(mesh: DeviceMesh) -> None:
    """Calls on local tensors: chunks of uneven size, leading axes, types, a bias, strides."""
    size = mesh.size()
    where = {"mesh": list(range(size)), "on": "mesh_x"}
    x, w, b = make(2 * size, 3, K), make(N, K, seed=1), make(N, seed=2)
    own = dist.get_rank()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        given = [one.to(dtype) for one in (x, w, b)]
        shard = given[0][2 * own : 2 * own + 2].transpose(0, 1).contiguous().transpose(0, 1)
        lower = {"backend": "point_to_point", "overlap": "always", "chunks": 3}
        with FusionDefinition() as fd:
            t, v, c = (fd.from_pytorch(one) for one in (shard, *given[1:]))
            y = fd.ops.linear(fd.ops.all_gather(t, 0, **where), v, c)
            fd.add_output(y)
            fd.add_output(fd.ops.reduce_scatter(fd.ops.linear(y, fd.ops.permute(v, [1, 0])), 0,
                                                **where))  # fmt: skip
        with options(multi_device=MultiDeviceParams().with_(lower=lower)):
            found = fd.execute([shard, *given[1:]])
            text = str(fd.program([shard, *given[1:]]))
        assert text.count(" = post(") == 4 * (size - 1), text  # two rows: no more chunks
        expected = F.linear(*given)
        back = F.linear(expected.double(), given[1].double().t())[2 * own : 2 * own + 2] * size
        torch.testing.assert_close(found[0], expected)
        close = 8 * torch.finfo(dtype).eps * float(back.abs().max())
        torch.testing.assert_close(found[1].double(), back, rtol=0, atol=close)


def check_sends_along_a_dimension(mesh: DeviceMesh) -> None:
    """Of a mesh of two: the devices of the other one are no peers."""
    if mesh.size() != 4:
        return
    x, w, rank = make(4, K), make(K, N, seed=1), dist.get_rank()
    lower = {"backend": "point_to_point", "overlap": "always"}
    row, column = rank // 2 * 2, rank % 2
    for on, line in (("mesh_x", [row, row + 1]), ("mesh_y", [column, column + 2])):
        with FusionDefinition() as fd:
            t, v = fd.from_pytorch(x[:1]), fd.from_pytorch(w)
            whole = fd.ops.all_gather(t, 0, mesh=[[0, 1], [2, 3]], on=on)
            fd.add_output(fd.ops.matmul(whole, v))
        with options(multi_device=MultiDeviceParams().with_(lower=lower)):
            (found,) = fd.execute([x[rank : rank + 1], w])
            assert f"mesh=((0, 1), (2, 3)), on='{on}')" in str(fd.program([x[:1], w]))
        torch.testing.assert_close(found, x[line] @ w)


def check_rows_that_do_not_divide(mesh: DeviceMesh) -> None:
    """Three rows of matrices are no rows of devices: a collective, as there would be otherwise."""
    x, w = make(3, 4, K), make(K, N, seed=1)
    with FusionDefinition() as fd:
        y = fd.ops.matmul(fd.from_pytorch(x), fd.from_pytorch(w))
        fd.add_output(fd.ops.all_reduce(y, mesh=list(range(mesh.size())), on="mesh_x"))
    lower = {"backend": "point_to_point", "overlap": "always"}
    with options(multi_device=MultiDeviceParams().with_(lower=lower)):
        (found,) = fd.execute([x, w])
        assert "matmul_all_reduce" in str(fd.program([x, w]))
    torch.testing.assert_close(found, x @ w * mesh.size(), rtol=1e-4, atol=1e-4)


def check_a_dead_peer(mesh: DeviceMesh) -> None:
    """An error names this rank, the peers and the value; a late one breaks the connection."""
    x, w = make(M, K), make(K, N, seed=1)
    params = MultiDeviceParams().with_(
        lower={"backend": "point_to_point"}, executor={"seconds": 0.5}
    )
    with options(multi_device=params):
        inputs = [part(x, ROWS), w]
        fd = defined(gathered, mesh, inputs, 1)
        fd.execute(inputs)  # warm: nothing is compared from now on
        if dist.get_rank() != 0:
            time.sleep(1.5)
            return
        with pytest.raises(PeerError, match=r"rank 0: .*post to and from ranks 1.*within 0\.5 s"):
            fd.execute(inputs)


def main() -> None:
    mesh = joined()
    checks = (
        check_sends_and_receives, check_sends_without_streams, check_sends_along_a_dimension,
        check_rows_that_do_not_divide,
    )  # fmt: skip
    run_checks(checks, mesh)
    if DEVICE == "cpu":  # NCCL's own watchdog ends a process that waits for a dead one
        check_a_dead_peer(mesh)
    leave(together=False)


if __name__ == "__main__":
    main()
