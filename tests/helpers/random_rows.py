# SPDX-License-Identifier: Apache-2.0
"""Seed -> a fusion over long rows: norms, reductions, casts, biases and moved columns.

`strategies.cases` draws every op on tiny tensors; these few ops on longer ones make tails, several
steps a thread, persistent buffers and partial blocks.
"""

from __future__ import annotations

import random

import torch

from helpers.strategies import Case, view_of
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.kinds import Value
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.runtime.torch_types import from_torch_dtype

_ROWS = [1, 3, 17, 33, 130]
_COLUMNS = [3, 24, 100, 129, 1000, 1032, 2048, 3073, 5000]
_FLOATS = [torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64]


def rows_case(seed: int) -> Case:
    """The definition and the inputs of a seed."""
    writer = _Rows(random.Random(seed))
    for _ in range(writer.random.randint(2, 6)):
        writer.step()
    return writer.finish()


class _Rows:
    """Writes one definition. Every value but the inputs is in `values`, all of rank 2."""

    def __init__(self, chance: random.Random) -> None:
        self.random = chance
        self.fd = Recorder()
        self.tensors: list[torch.Tensor] = []
        rows, columns = chance.choice(_ROWS), chance.choice(_COLUMNS)
        self.values = [self._input((rows, columns))]
        self.bias = self._input((columns,))

    def _input(self, shape: tuple[int, ...]) -> Value:
        """Row-major, column-major, or one element off alignment."""
        generator = torch.Generator().manual_seed(self.random.randrange(2**31))
        dtype = self.random.choice(_FLOATS)
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        memory = torch.randn(count + 1, generator=generator, dtype=torch.float64).to(dtype)
        layout = self.random.choice(["plain", "plain", "moved", "turned"])
        tensor = memory[1:].view(shape) if layout == "moved" else memory[:-1].view(shape)
        if layout == "turned":
            tensor = memory[:-1].view(shape[::-1]).permute(*reversed(range(len(shape))))
        self.tensors.append(tensor)
        return self.fd.define_tensor(
            sizes=tuple(shape),
            strides=tensor.stride(),
            dtype=from_torch_dtype(dtype),
            static_sizes=True,
        )

    def step(self) -> None:
        """Appends an op, or a norm, to one of the last values."""
        source = self.random.choice(self.values[-3:])
        steps = [self._softmax, self._layer_norm, self._shift, self._sum, self._cast]
        self.values.append(self.random.choice([*steps, self._move, self._plain])(source))

    def finish(self) -> Case:
        """The last value and one other as results."""
        for value in dict.fromkeys([self.values[-1], self.random.choice(self.values[1:])]):
            order = self.random.choice([[1, 0], [1, 0], [0, 1]])
            self.fd.add_output(value, stride_order=order)
        return Case(self.fd.definition, tuple(self.tensors))

    def _sizes(self, value: Value) -> list[int]:
        return [int(n.value) for n in view_of(self.fd.definition, value.name).shape]

    def _axes(self) -> list[int]:
        return self.random.choice([[1], [1], [1], [0], [0, 1]])

    def _float(self, x: Value) -> Value:
        is_double = view_of(self.fd.definition, x.name).dtype is DataType.Double
        return x if is_double else self.fd.ops.cast(x, DataType.Float)

    def _softmax(self, x: Value) -> Value:
        ops, axes, x = self.fd.ops, self._axes(), self._float(x)
        powers = ops.exp(ops.sub(x, ops.max(x, axes, keepdim=True)))
        return ops.truediv(powers, ops.sum(powers, axes, keepdim=True))

    def _layer_norm(self, x: Value) -> Value:
        ops, x = self.fd.ops, self._float(x)
        variance, mean = ops.var_mean(x, self._axes(), 0, True)
        return ops.mul(ops.sub(x, mean), ops.rsqrt(ops.add(variance, 0.1)))

    def _shift(self, x: Value) -> Value:
        fits = self._sizes(x)[1] == self.tensors[1].shape[0]
        return self.fd.ops.add(x, self.bias if fits else 0.5)

    def _sum(self, x: Value) -> Value:
        return self.fd.ops.tanh(self.fd.ops.sum(self._float(x), self._axes(), keepdim=True))

    def _cast(self, x: Value) -> Value:
        return self.fd.ops.cast(x, from_torch_dtype(self.random.choice(_FLOATS)))

    def _plain(self, x: Value) -> Value:
        return getattr(self.fd.ops, self.random.choice(["sin", "tanh", "relu", "neg"]))(x)

    def _move(self, x: Value) -> Value:
        rows, columns = self._sizes(x)
        kind = self.random.choice(["slice", "pad", "cat"])
        if kind == "slice":
            start = self.random.randint(0, columns // 2)
            return self.fd.ops.slice(x, [0, start], [rows, columns])
        if kind == "pad":
            return self.fd.ops.pad(x, [self.random.randint(0, 3), self.random.randint(1, 3)])
        return self.fd.ops.cat([x, self.fd.ops.neg(x)], self.random.choice([0, 1]))
