# SPDX-License-Identifier: Apache-2.0
"""A seed -> a random fusion of few expressions over large tensors: what plans are compared on.

Row and column reductions, broadcasts back, casts, slices, reshapes, cheap and dear arithmetic and,
rarely, a matmul, over bf16 or f32 matrices and vectors.
"""

from __future__ import annotations

from random import Random

import torch

from benchmarks.plans.families import Graph
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.values import Tensor

SHAPES = ((4096, 4096), (2048, 512), (16384, 1024), (64, 64))


def random_graph(seed: int, ops: int) -> Graph:
    """A fusion of about so many expressions and meta tensors to plan it for."""
    return _Writer(Random(seed)).graph(ops)


class _Writer:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.rows, self.columns = random.choice(SHAPES)
        self.fd = FusionDefinition()
        self.known: list[tuple[Tensor, str]] = []  # full, row (a value a row) or column
        self.inputs: list[torch.Tensor] = []

    def graph(self, ops: int) -> Graph:
        for kind in ("full", *self.random.choices(("full", "row", "column"), k=2)):
            self._input(kind)
        made = 0
        while made < ops:
            self._op()
            made += 1
        used = self.random.randint(1, 3)
        for value, _ in self.known[len(self.inputs) :][-used:]:
            self.fd.add_output(value)
        return self.fd, self.inputs

    def _input(self, kind: str) -> None:
        sizes = {"full": (self.rows, self.columns), "row": (self.rows,), "column": (self.columns,)}
        dtype = self.random.choice((DataType.BFloat16, DataType.Float))
        torch_dtype = torch.bfloat16 if dtype is DataType.BFloat16 else torch.float32
        shape = sizes[kind]
        value = self.fd.define_tensor(shape=[-1] * len(shape), contiguity=True, dtype=dtype)
        self.known.append((value, kind))
        self.inputs.append(torch.empty(shape, dtype=torch_dtype, device="meta"))

    def _op(self) -> None:
        # Late values first: a graph of loose ends plans itself.
        weights = [at + 1 for at in range(len(self.known))]
        (value, kind), = self.random.choices(self.known, weights)
        make = self.random.choice(
            (self._unary, self._unary, self._binary, self._binary, self._reduce, self._spread,
             self._cast, self._half)
        )
        self.known.append(make(value, kind))

    def _unary(self, value: Tensor, kind: str) -> tuple[Tensor, str]:
        return getattr(self.fd.ops, self.random.choice(("neg", "relu", "exp", "tanh")))(value), kind

    def _binary(self, value: Tensor, kind: str) -> tuple[Tensor, str]:
        others = [v for v, k in self.known if k == kind]
        name = self.random.choice(("add", "mul", "sub"))
        return getattr(self.fd.ops, name)(value, self.random.choice(others)), kind

    def _reduce(self, value: Tensor, kind: str) -> tuple[Tensor, str]:
        if kind != "full":
            return self._unary(value, kind)
        along = self.random.choice((0, 1, 1))
        name = self.random.choice(("sum", "max"))
        return getattr(self.fd.ops, name)(value, [along]), "row" if along else "column"

    def _spread(self, value: Tensor, kind: str) -> tuple[Tensor, str]:
        if kind == "full":
            return self._binary(value, kind)
        full = self.random.choice([v for v, k in self.known if k == "full"])
        flags = [False, True] if kind == "row" else [True, False]
        return self.fd.ops.mul(full, self.fd.ops.broadcast(value, flags)), "full"

    def _cast(self, value: Tensor, kind: str) -> tuple[Tensor, str]:
        dtype = self.random.choice((DataType.BFloat16, DataType.Float))
        return self.fd.ops.cast(value, dtype), kind

    def _half(self, value: Tensor, kind: str) -> tuple[Tensor, str]:
        """The two halves of a matrix's rows change places."""
        if kind != "full":
            return self._cast(value, kind)
        ops, half = self.fd.ops, self.columns // 2
        left = ops.slice(value, [0, 0], [self.rows, half])
        right = ops.slice(value, [0, half], [self.rows, self.columns])
        return ops.cat([right, left], 1), "full"
