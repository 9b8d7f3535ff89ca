# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels launched from C: the same results as from Python, on every stream and thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.host.call.native import native
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.options import options

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(native() is None, reason="there is no compiler"),
]


def scaled(dtype: DataType) -> FusionDefinition:
    """x * f + i, and its sum over rows: a kernel with numbers, and one without."""
    fd = FusionDefinition()
    x = fd.define_tensor(shape=[-1, -1], dtype=dtype)
    f, i = fd.define_scalar(dtype=DataType.Double), fd.define_scalar(dtype=DataType.Int)
    y = fd.ops.cast(fd.ops.add(fd.ops.mul(x, f), i), dtype)
    fd.add_output(y)
    fd.add_output(fd.ops.sum(fd.ops.exp(y), [0]))
    return fd


def launched(fd: FusionDefinition, arguments: list[Any]) -> bool:
    names = fd.program(arguments).run.__code__.co_names
    return any(name.endswith("_in_c") for name in names)


def given(dtype: torch.dtype) -> list[Any]:
    return [torch.randn(300, 77, device="cuda", dtype=dtype), 0.25, 3]


def in_each(make: Callable[[], FusionDefinition], arguments: list[Any]) -> list[Any]:
    found = []
    for in_c in (True, False):
        with FusionCache(), options(native_calls=in_c):
            fd = make()
            found.append(fd.execute(arguments))
            assert launched(fd, arguments) == in_c
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_same_in_c_and_in_python(dtype: torch.dtype) -> None:
    name = {torch.float32: "Float", torch.float64: "Double", torch.bfloat16: "BFloat16"}[dtype]
    arguments = given(dtype)
    ours, theirs = in_each(lambda: scaled(DataType[name]), arguments)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(
        ours[0].double(), (arguments[0].double() * 0.25 + 3).to(dtype).double()
    )


def test_on_another_stream() -> None:
    fd, arguments = scaled(DataType.Float), given(torch.float32)
    want = fd.execute(arguments)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        busy = torch.randn(4096, 4096, device="cuda")
        for _ in range(10):
            busy = busy @ busy
        found = fd.execute(arguments)
    stream.synchronize()
    assert all(map(torch.equal, found, want))


def test_in_a_graph() -> None:
    fd, arguments = scaled(DataType.Float), given(torch.float32)
    fd.execute(arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = fd.execute(arguments)
    arguments[0].copy_(torch.randn_like(arguments[0]))
    graph.replay()
    assert all(map(torch.equal, found, fd.execute(arguments)))


def test_on_many_threads() -> None:
    """Each has arguments of its own; a block of arguments that they shared would mix them."""
    fd = scaled(DataType.Float)
    fd.execute(given(torch.float32))

    def work(number: int) -> bool:
        x = torch.full((300, 77), float(number), device="cuda")
        results = [fd.execute([x, 0.5, number])[0] for _ in range(200)]
        return all(bool((one == number * 1.5).all()) for one in results)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


def test_too_much_memory_is_torchs_own_error() -> None:
    fd = FusionDefinition()
    x = fd.define_tensor(shape=[-1, 1], contiguity=[True, None], dtype=DataType.Float)
    y = fd.define_tensor(shape=[1, -1], contiguity=[None, True], dtype=DataType.Float)
    fd.add_output(fd.ops.add(x, y))
    arguments = [torch.ones(2**20, 1, device="cuda"), torch.ones(1, 2**20, device="cuda")]
    with pytest.raises(torch.OutOfMemoryError):
        fd.execute(arguments)
