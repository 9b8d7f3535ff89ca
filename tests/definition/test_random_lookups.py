# SPDX-License-Identifier: Apache-2.0
"""Random graphs of lookups among movement, pointwise ops and reductions, beside torch op by op."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import TARGETS
from helpers.opinfo_index import layouts

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.runtime.eager.evaluate import evaluate

Shape = list[int]


class Graph:
    """A definition that grows by random steps. A step maps a value and its shape to another."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.fd = FusionDefinition()
        self.inputs: list[torch.Tensor] = []
        shape = [self.random.choice([1, 3, 8, 33]) for _ in range(2)]
        value = self.input(torch.randn(shape, generator=self.generator))
        steps: list[Callable[[Any, Shape, int], tuple[Any, Shape]]] = [
            self.select, self.along, self.along, self.embed, self.places, self.flip, self.slice,
            self.pad, self.permute, self.centre, self.exp, self.exp,
        ]  # fmt: skip
        for _ in range(self.random.randrange(3, 8)):
            axis = self.random.randrange(2)
            value, shape = self.random.choice(steps)(value, shape, axis)
            if self.random.random() < 0.2:
                self.fd.add_output(self.fd.ops.set(value))
        self.fd.add_output(self.fd.ops.set(value))

    def input(self, x: torch.Tensor) -> Any:
        """In a random layout, of those that keep all elements."""
        x = self.random.choice(layouts(x)[:4]) if x.ndim == 2 else x
        self.inputs.append(x)
        return self.fd.from_pytorch(x)

    def indices(self, size: int, *shape: int) -> Any:
        dtype = self.random.choice([torch.int64, torch.int32])
        return self.input(torch.randint(0, size, shape, generator=self.generator).to(dtype))

    def select(self, value: Any, shape: Shape, axis: int) -> tuple[Any, Shape]:
        count = self.random.choice([1, 2, 9])
        index = self.indices(shape[axis], count)
        return self.fd.ops.index_select(value, index, axis), self.sized(shape, axis, count)

    def along(self, value: Any, shape: Shape, axis: int) -> tuple[Any, Shape]:
        wanted = self.sized(shape, axis, self.random.choice([1, 4, 7]))
        index = self.indices(shape[axis], *wanted)
        read = self.random.choice([self.fd.ops.gather, self.fd.ops.take_along_axis])
        return read(value, index, axis), wanted

    def embed(self, value: Any, shape: Shape, axis: int) -> tuple[Any, Shape]:
        count = self.random.choice([1, 5])
        index = self.indices(shape[0], count)
        return self.fd.ops.embedding_fwd(index, value), [count, shape[1]]

    def places(self, value: Any, shape: Shape, axis: int) -> tuple[Any, Shape]:
        place = self.fd.ops.argmax(value, axis, True)
        return self.fd.ops.take_along_axis(value, place, axis), self.sized(shape, axis, 1)

    def flip(self, value: Any, shape: Shape, axis: int) -> tuple[Any, Shape]:
        return self.fd.ops.flip(value, [axis]), shape

    def slice(self, value: Any, shape: Shape, axis: int) -> tuple[Any, Shape]:
        starts, ends, strides = [0, 0], [*shape], [1, 1]
        starts[axis], strides[axis] = self.random.randrange(shape[axis]), self.random.choice([1, 2])
        count = -(-(shape[axis] - starts[axis]) // strides[axis])
        return self.fd.ops.slice(value, starts, ends, strides), self.sized(shape, axis, count)

    def pad(self, value: Any, shape: Shape, axis: int) -> tuple[Any, Shape]:
        widths = [0, 0, 1, 2] if axis == 0 else [1, 2]
        return self.fd.ops.pad(value, widths, 0.5), self.sized(shape, axis, shape[axis] + 3)

    def permute(self, value: Any, shape: Shape, axis: int) -> tuple[Any, Shape]:
        return self.fd.ops.permute(value, [1, 0]), shape[::-1]

    def centre(self, value: Any, shape: Shape, axis: int) -> tuple[Any, Shape]:
        return self.fd.ops.sub(value, self.fd.ops.max(value, [axis], True)), shape

    def exp(self, value: Any, shape: Shape, axis: int) -> tuple[Any, Shape]:
        return self.fd.ops.exp(self.fd.ops.neg(self.fd.ops.abs(value))), shape

    @staticmethod
    def sized(shape: Shape, axis: int, size: int) -> Shape:
        return [size if at == axis else other for at, other in enumerate(shape)]


@pytest.mark.parametrize("seed", range(12))
def test_random_lookups(seed: int) -> None:
    graph = Graph(seed)
    expected = evaluate(graph.fd.fusion, graph.inputs)
    for target in TARGETS:
        results = graph.fd.execute(graph.inputs, target=target)
        for result, value in zip(results, expected, strict=True):
            torch.testing.assert_close(result, value, rtol=1e-5, atol=1e-6)
