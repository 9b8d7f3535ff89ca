# SPDX-License-Identifier: Apache-2.0
"""Products over streams: the lines of their programs, results, what is refused, and the calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from thunder_fuser import FusionDefinition, MultiDeviceParams, ParallelType, options
from thunder_fuser.errors import DefinitionError, GivenScheduleError, TorchCallError
from thunder_fuser.host.programs import pieces
from thunder_fuser.host.programs.pieces import Streams
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.presegment.specialise import in_streams

F = torch.nn.functional
Build = Callable[..., Any]


def over_streams(tensor: Any, axis: int, pieces: int) -> None:
    tensor.outer_split(axis, pieces).axis(axis).parallelize(ParallelType.stream)


def defined(build: Build, inputs: Sequence[torch.Tensor]) -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(build(fd, *map(fd.from_pytorch, inputs)))
    return fd


def columns(fd: Any, x: Any, w: Any) -> Any:
    y = fd.ops.matmul(x, w)
    over_streams(y, 1, 3)
    return fd.ops.tanh(y)


def twice(fd: Any, x: Any, v: Any, w: Any) -> Any:
    """Two products with pieces of their own."""
    y = fd.ops.matmul(x, v)
    z = fd.ops.matmul(y, w)
    over_streams(y, 0, 3)
    over_streams(z, 1, 2)
    return z


def inner(fd: Any, x: Any, w: Any) -> Any:
    """Pieces of two rows, however many."""
    y = fd.ops.linear(x, w)
    y.inner_split(0, 2).axis(0).parallelize("stream")
    return y


def bias(fd: Any, x: Any, w: Any, b: Any) -> Any:
    y = fd.ops.linear(x, w, b)
    over_streams(y, 2, 2)
    return y


def batches(fd: Any, x: Any, w: Any) -> Any:
    """Each element of the axis is a piece; the other operand is the same for all."""
    y = fd.ops.matmul(x, w)
    y.axis(0).parallelize(ParallelType.STREAM)
    return y


def broadcast(fd: Any, x: Any, w: Any) -> Any:
    return batches(fd, x, w)


def of_the_weight(fd: Any, x: Any, w: Any) -> Any:
    over_streams(w, 0, 4)
    return fd.ops.linear(x, w)


def transposed(fd: Any, x: Any, w: Any) -> Any:
    y = fd.ops.matmul(fd.ops.permute(x, [1, 0]), w)
    over_streams(y, 0, 2)
    return y


def make(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# a definition, its arguments, eager torch, and how many products run
CASES: tuple[tuple[Build, tuple[torch.Tensor, ...], Build, int], ...] = (
    (columns, (make(5, 7), make(7, 6)), lambda x, w: (x @ w).tanh(), 3),
    (twice, (make(6, 3), make(3, 5), make(5, 4)), lambda x, v, w: x @ v @ w, 5),
    (inner, (make(8, 3), make(5, 3)), F.linear, 4),
    (bias, (make(2, 3, 5), make(4, 5), make(4)), F.linear, 2),
    (batches, (make(4, 3, 5), make(5, 2)), torch.matmul, 4),
    (broadcast, (make(1, 3, 5), make(4, 5, 2)), torch.matmul, 4),
    (of_the_weight, (make(3, 5), make(8, 5)), F.linear, 4),
    (transposed, (make(3, 4), make(3, 5)), lambda x, w: x.t() @ w, 2),
)


def products(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if ", out=" in line]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_results(case: Any, count: int) -> None:
    build, inputs, reference, runs = case
    with options(multi_device=MultiDeviceParams().with_(executor={"streams": count})):
        fd = defined(build, inputs)
        for target in (None, "emulator"):
            (found,) = fd.execute(inputs, target=target)
            torch.testing.assert_close(found, reference(*inputs))
        text = str(fd.program(inputs))
    assert len(products(text)) == runs, text
    assert rebuild(str(fd.fusion)) == fd.fusion
    numbers = {line.strip() for line in text.splitlines() if "on_stream" in line}
    assert len(numbers) == min(count, runs if build is not twice else 3)


def test_only_the_product_that_is_asked_for() -> None:
    """A tensor that one product makes and another one reads is of the first one's pieces."""
    def build(fd: Any, x: Any, v: Any, w: Any) -> Any:
        y = fd.ops.matmul(x, v)
        over_streams(y, 0, 3)
        return fd.ops.matmul(y, w)

    inputs = (make(6, 3), make(3, 5), make(5, 4))
    fd = defined(build, inputs)
    (found,) = fd.execute(inputs)
    torch.testing.assert_close(found, inputs[0] @ inputs[1] @ inputs[2])
    assert len(products(str(fd.program(inputs)))) == 3


def test_one_size_after_another() -> None:
    fd = defined(columns, (make(5, 7), make(7, 6)))
    for n in (3, 9, 6):
        x, w = make(5, 7, seed=n), make(7, n)
        torch.testing.assert_close(fd.execute([x, w])[0], (x @ w).tanh())
    with pytest.raises(DefinitionError, match=r"axis i5\.o on stream: expected a multiple of 3"):
        fd.execute([make(5, 7), make(7, 8)])
    (found,) = fd.execute([make(5, 7), make(7, 0)])
    assert found.shape == (5, 0)


def test_a_bias_is_added_before_the_product_is_rounded() -> None:
    """As F.linear does, where `out=` of torch's own rounds twice for three axes."""
    inputs = tuple(one.bfloat16() for one in (make(4, 3, 64), make(32, 64), make(32)))

    def build(fd: Any, x: Any, w: Any, b: Any) -> Any:
        y = fd.ops.linear(x, w, b)
        over_streams(y, 0, 2)
        return y

    (found,) = defined(build, inputs).execute(inputs)
    exact = F.linear(*(one.double() for one in inputs))
    assert (found - exact).abs().max() <= (exact.bfloat16() - exact).abs().max() * 1.01


def test_arguments_that_want_gradients() -> None:
    """Their products are written into memory, which torch refuses while it records gradients."""
    x, w = make(3, 5).requires_grad_(), make(8, 5)
    (found,) = defined(of_the_weight, (x, w)).execute([x, w])
    torch.testing.assert_close(found, F.linear(x.detach(), w))


def test_the_pass_is_idempotent() -> None:
    inputs = (make(6, 3), make(3, 5), make(5, 4))
    once = defined(twice, inputs).plan(inputs).fusion
    assert in_streams(once) is once
    assert [one.attr("streams") for one in once.exprs] == [(0, 3), (1, 2)]
    plain = defined(lambda fd, x, w: fd.ops.matmul(x, w), inputs[:2]).plan(inputs[:2]).fusion
    assert all(one.attr("streams") is None for one in plain.exprs)


# ---- what is refused


def kernels(fd: Any, x: Any, w: Any) -> Any:
    y = fd.ops.exp(x)
    over_streams(y, 0, 2)
    return y


def summed(fd: Any, x: Any, w: Any) -> Any:
    over_streams(x, 1, 2)
    return fd.ops.matmul(x, w)


def unread(fd: Any, x: Any, w: Any) -> Any:
    over_streams(x, 0, 2)
    return fd.ops.neg(w)


def sorts(fd: Any, x: Any, w: Any) -> Any:
    y = fd.ops.argsort(x, 0)
    over_streams(y, 0, 2)
    return y


def uneven(fd: Any, x: Any, w: Any) -> Any:
    y = fd.ops.matmul(x, w)
    over_streams(y, 0, 3)
    return y


def two_axes(fd: Any, x: Any, w: Any) -> Any:
    y = fd.ops.matmul(x, w)
    over_streams(y, 0, 2)
    over_streams(y, 2, 2)
    return y


def two_ways(fd: Any, x: Any, w: Any) -> Any:
    over_streams(x, 0, 2)
    over_streams(w, 1, 2)
    return fd.ops.matmul(x, w)


def the_inner_part(fd: Any, x: Any, w: Any) -> Any:
    y = fd.ops.matmul(x, w)
    y.outer_split(0, 2).axis(1).parallelize("stream")
    return y


def outside_of_devices(fd: Any, x: Any, w: Any) -> Any:
    x.set_device_mesh([0, 1])
    x.outer_split(0, 2).axis(0).parallelize("stream")
    x.outer_split(1, 2).axis(1).parallelize("mesh_x")
    return fd.ops.matmul(x, w)


def laid_out(fd: Any, x: Any, w: Any) -> Any:
    y = fd.ops.matmul(x, w)
    over_streams(y, 0, 2)
    y.set_allocation_domain(y.get_loop_domain())
    return y


REFUSED: tuple[tuple[Build, str], ...] = (
    (kernels, r"T2: axis i0\.o on stream: expected an axis of a product of matrices.*"
              r"got T2 = fd\.ops\.exp\(T0\), which a generated kernel computes"),
    (summed, r"T0: axis i1\.o on stream: expected .*not summed, got axis 1 of T2 = fd\.ops\.mat"),
    (unread, r"T0: axis i0\.o on stream: .* got no product beside it"),
    (sorts, r"axis i4\.o on stream: .*argsort\(.*which torch computes"),
    (uneven, r"axis i4\.o on stream: expected a multiple of 3: streams take equal pieces,"
             r" got axis 0 of size 4\. To fix it: pad the axis first"),
    (two_axes, r"T2: stream: expected one axis, got axes i4\.o, i5\.o"),
    (two_ways, r"T2: axis .* on stream: expected one axis over streams, as i0\.o"),
    (the_inner_part, r"T2: axis i4\.i on stream: expected an axis, or the outer part"),
    (outside_of_devices, r"T0: axis i0\.o on stream: expected .*inside of what devices have"),
    (laid_out, r"T2: axis i4\.o on stream: expected no set_allocation_domain, got one"),
    (lambda fd, x, w: fd.ops.matmul(x, w, streams=[2, 2]), "axis 2: expected an axis of the res"),
    (lambda fd, x, w: fd.ops.matmul(x, w, streams=[0]), "an axis and a number of pieces"),
)  # fmt: skip


@pytest.mark.parametrize(("build", "message"), REFUSED)
def test_refused(build: Build, message: str) -> None:
    inputs = (make(4, 6), make(6, 4))
    with pytest.raises(DefinitionError, match=message):
        defined(build, inputs).plan(inputs)


def test_vectors_are_refused() -> None:
    def build(fd: Any, x: Any, w: Any) -> Any:
        over_streams(x, 0, 2)
        return fd.ops.matmul(x, w)

    inputs = (make(4, 6), make(6))
    with pytest.raises(DefinitionError, match=r"expected an axis of a product of matrices"):
        defined(build, inputs).plan(inputs)


def test_no_axis_of_a_generated_kernel() -> None:
    def given(s: Any) -> None:
        s.parallelize("i0", "stream")

    fd = defined(lambda fd, x: fd.ops.exp(x), (make(4, 6),))
    with pytest.raises(GivenScheduleError, match=r"parallelize i0: expected one of .*'stream'"):
        fd.execute([make(4, 6)], schedules={0: given})
    with pytest.raises(DefinitionError, match="expected mesh_x, mesh_y, mesh_z or stream"):
        defined(lambda fd, x: x.parallelize(0, "threadIdx.x"), (make(4, 6),))


def test_errors_of_torch_are_typed() -> None:
    with pytest.raises(TorchCallError, match="a piece of matmul"):
        pieces.named(torch.device("cpu"))["matmul"](make(2, 3), make(4, 5), out=make(2, 5))


# ---- the calls on a GPU, of which a list notes the order


class FakeStream:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def record_event(self) -> str:
        self.log.append(f"{self.name} records")
        return f"event of {self.name}"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for the {event}")

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """torch.cuda's streams, as a log."""
    log: list[str] = []
    current = [FakeStream(log, "caller")]
    made: list[FakeStream] = []

    def stream_of(device: torch.device) -> FakeStream:
        made.append(FakeStream(log, f"side {len(made) + 1}"))
        return made[-1]

    @contextmanager
    def on(stream: FakeStream) -> Any:
        current.append(stream)
        try:
            yield
        finally:
            current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", stream_of)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    monkeypatch.setattr(pieces, "_SIDES", {})
    return log


def test_calls_on_a_gpu(cuda: list[str]) -> None:
    on = Streams(torch.device("cuda", 0))
    begin = on.record_event()
    with on.on_stream(1):
        on.wait_event(begin)
        end = on.record_event()
    on.wait_event(end)
    assert cuda == [
        "caller records", "side 1 waits for the event of caller", "side 1 records",
        "caller waits for the event of side 1",
    ]  # fmt: skip


def test_an_error_leaves_no_stream_behind(cuda: list[str]) -> None:
    """What has been freed is used again by the caller's stream, so that waits for all others."""
    on = Streams(torch.device("cuda", 0))
    with on.on_stream(1):
        pass
    with pytest.raises(ValueError, match="x"), on.on_stream(2):
        raise ValueError("x")
    assert cuda == ["caller waits for side 1", "caller waits for side 2"]
