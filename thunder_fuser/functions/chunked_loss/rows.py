# SPDX-License-Identifier: Apache-2.0
"""A chunk of logits -> its losses and, in the memory of the logits, their gradient.

    x[r, C], target[r]                loss[r]; most[r], log_sum[r]     one pass over the rows
    x[n, c], most, log_sum, scale  -> dx[n, c], written over x         a pointwise kernel

    x[r, C / ranks], target[r]        most[r], sum[r], x[target][r]    of the columns of one rank
    these of all ranks, target[r]  -> loss[r]; most[r], log_sum[r]     the same on each rank

A loss reads rows of all classes; a gradient, some rows or some columns, whose targets count from
the first of these. Each of the two is a region, as the executor makes them of a trace. So it is
compiled, cached and reported in the same way, and torch runs it where it cannot be compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import prims
from thunder.core.devices import to_device
from thunder.core.dtypes import float32, int64, to_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx, tracectx

from thunder_fuser.executors.regions.plan import RegionMemory
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.executors.run.region_callable import RegionCallable, compile_region
from thunder_fuser.executors.support.check import leaves_of
from thunder_fuser.functions.define import as_type, wide
from thunder_fuser.functions.losses import CrossEntropy, RowSum, picked
from thunder_fuser.options import OptionValue
from thunder_fuser.trace.rewrites.approximate import tagged_leaves

# What a model does to its logits, in order: ("div", 30.0), ("tanh", 0.0), ("mul", 30.0).
Steps = tuple[tuple[str, float], ...]
NamedTensors = Mapping[str, torch.Tensor | None]
STATISTICS = RowSum._fields
SUMS = ("most", "sums", "at_target", "smooth")  # of the columns of one rank

_FORWARD: Mapping[str, Callable[[Any, float], Any]] = {
    "mul": prims.mul,
    "div": prims.div,
    "tanh": lambda x, _: prims.tanh(x),
}
_LARGEST_BOUND = 40.0
_ROUNDING = 1e-12  # what 30 * (1 / 30) may be beside 1


@dataclass(frozen=True, slots=True)
class Options:
    """What a call of cross_entropy asks for, beside its tensors, and what is done to the logits.

    with_sums: the logsumexp of each row is a result too. classes: the columns of all chunks, on all
    ranks. first: the first column of this rank.
    """

    classes: int
    steps: Steps = ()
    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0
    with_sums: bool = False
    first: int = 0

    def call(self, logits: Any, target: Any, weight: Any) -> CrossEntropy:
        """The call of cross_entropy with these logits."""
        return CrossEntropy(
            logits, target, weight, ignore_index=self.ignore_index, reduction="none",
            label_smoothing=self.label_smoothing, classes=self.classes,
        )  # fmt: skip


class RowKernels:
    """The kernels for chunks of one shape and type, by the names that profiles show."""

    def __init__(self, options: Options, of_jit: Mapping[str, OptionValue], where: str) -> None:
        self.options, self._of_jit, self._where = options, of_jit, where
        self._known: dict[tuple[Any, ...], _RowKernel] = {}
        self._functions: Mapping[str, Callable[..., list[Any]]] = {
            "lossTotal": self._total, "lossOfRows": self._losses, "gradientOfRows": self._gradient,
            "sumsOfRows": self._sums, "lossOfSums": self._losses_of_sums,
        }  # fmt: skip

    def run(self, name: str, tensors: NamedTensors) -> Sequence[torch.Tensor]:
        """The results of a kernel. A gradient lies in the memory of the logits most often."""
        named = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        key = name, *((at, x.shape, x.dtype, x.device) for at, x in named.items())
        if key not in self._known:
            region, order = _region(self._functions[name], named, self._where)
            memory = RegionMemory(donated=("x",) * (name == "gradientOfRows"))
            call = RegionCallable(name, region, memory, compile_region, self._of_jit)
            self._known[key] = _RowKernel(call, tuple(p.name for p in region.inputs), order)
        return self._known[key](named)

    # ---- what the kernels compute, of proxies

    def _total(self, target: Any, weight: Any = None) -> list[Any]:
        """The divisor of a mean, for the targets and the weights of all rows."""
        call = self.options.call(None, target, weight)
        if weight is None:
            return [call.total(None, float32)]
        classes = ltorch.where(call.counted(), target, 0)
        return [call.total(prims.take(wide(weight), classes, 0), None)]

    def _losses(self, x: Any, target: Any, weight: Any = None) -> list[Any]:
        """The losses of a chunk, and the statistics of its rows."""
        call = self.options.call(self._values(x)[-1], target, weight)
        at_target = _stepped(picked(x, call.class_read()), self.options.steps)[-1]
        return _counted(call, *call.losses(at_target, self._bound(x)))

    def _sums(self, x: Any, target: Any, weight: Any = None) -> list[Any]:
        """Of a rank's columns: the maximum of each row, its sum of exponentials, the logit of its
        target, or 0 on all other ranks, and what smoothing adds."""
        x, target = self._values(x)[-1], as_type(target, int64)
        call = self.options.call(x, target, weight)
        most, last = ltorch.amax(x, 1), self.options.first + x.shape[1]
        below = ltorch.unsqueeze(_finite(most), 1) - x
        is_here = (target >= self.options.first) & (target < last)
        is_class = (target >= 0) & (target < self.options.classes)
        # A target that no rank has raises as an index.
        column = ltorch.where(is_class, 0, call.class_read())
        column = ltorch.where(is_here, target - self.options.first, column)
        at_target = ltorch.where(is_here & call.counted(), picked(x, column), 0.0)
        sums = most, ltorch.sum(ltorch.exp(-below), 1), at_target, call.smooth(below)
        return [value for value in sums if value is not None]

    def _losses_of_sums(  # noqa: PLR0917 - by name
        self, most: Any, sums: Any, at_target: Any, target: Any, smooth: Any = None,
        weight: Any = None,
    ) -> list[Any]:  # fmt: skip
        """The losses of rows, and their statistics, from the sums of each rank."""
        call, of_ranks, most = self.options.call(None, target, weight), most, ltorch.amax(most, 0)
        log_sum = ltorch.log(ltorch.sum(ltorch.exp(of_ranks - most) * sums, 0))
        if smooth is not None:
            ranks, every = of_ranks.shape[0], float(self.options.classes // of_ranks.shape[0])
            if weight is not None:
                by_rank = ltorch.reshape(wide(weight), (ranks, -1))
                every = ltorch.unsqueeze(ltorch.sum(by_rank, 1), 1)
            smooth = ltorch.sum(smooth + (most - _finite(of_ranks)) * every, 0)
        at_target = ltorch.sum(at_target, 0)
        return _counted(call, *call.losses_of(most, log_sum, at_target, smooth))

    def _gradient(
        self, x: Any, target: Any, scale: Any, weight: Any = None, of_sums: Any = None,
        **statistics: Any,
    ) -> list[Any]:  # fmt: skip
        values, rows = self._values(x), RowSum(**statistics)
        call = self.options.call(values[-1], target, weight)
        softmax = call.softmax(rows)
        g = call.row_gradient(rows, softmax) * ltorch.unsqueeze(scale, 1)
        if of_sums is not None:
            g = g + softmax * ltorch.unsqueeze(of_sums, 1)
        factor = 1.0  # of all multiplications: that of a soft cap, 30 * (1 / 30), needs none
        for (name, number), y in zip(reversed(self.options.steps), reversed(values), strict=False):
            if name == "tanh":
                g = g * (1.0 - y * y)
            elif name == "div" and not _has_reciprocal(number):
                g = prims.div(g, number)
            else:
                factor *= number if name == "mul" else 1.0 / number
        g = g if abs(factor - 1.0) < _ROUNDING else prims.mul(g, factor)
        return [as_type(g, x.dtype)]

    def _bound(self, x: Any) -> float | None:
        """A bound of capped 16-bit logits: with it for their maximum, a row is read once.

        For a cap of 30, exp(x - 30) is at least exp(-60), far above the least float32.
        """
        *_, (before, _), (last, cap) = ("", 0.0), ("", 0.0), *self.options.steps
        is_cap = x.dtype.bytes < float32.bytes and (before, last) == ("tanh", "mul")
        return cap if is_cap and 0 < cap <= _LARGEST_BOUND else None

    def _values(self, x: Any) -> list[Any]:
        """The logits in the type of the computation, before and after each step.

        16-bit logits have 8 or 11 bits, so the reciprocal of a divisor serves them.
        """
        is_short = x.dtype.bytes < float32.bytes
        return _stepped(x, [
            ("mul", 1.0 / number)
            if name == "div" and is_short and _has_reciprocal(number) else (name, number)
            for name, number in self.options.steps
        ])  # fmt: skip


def _has_reciprocal(number: float) -> bool:
    """Whether 1 / number is a float with all digits; not of 0, which a program may divide by."""
    return 1e-30 < abs(number) < 1e30


def _stepped(x: Any, steps: Iterable[tuple[str, float]]) -> list[Any]:
    """A value in the type of the computation, before and after each step."""
    values = [wide(x)]
    for name, number in steps:
        values.append(_FORWARD[name](values[-1], number))
    return values


def _counted(call: CrossEntropy, losses: Any, rows: RowSum) -> list[Any]:
    """The losses, 0 for ignored rows, and the statistics that there are."""
    kept = [value for value in rows if value is not None]
    return [ltorch.where(call.counted(), losses, 0.0), *kept]


def _finite(most: Any) -> Any:
    """0 where a rank has no word that is possible: -inf - -inf would be NaN."""
    return ltorch.where(most == -math.inf, 0.0, most)


@dataclass(frozen=True, slots=True)
class _RowKernel:
    """A region and the names of its inputs. order: the places of the results among its outputs."""

    call: RegionCallable
    inputs: tuple[str, ...]
    order: tuple[int, ...]

    def __call__(self, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        results = self.call.call(*(tensors[name] for name in self.inputs))
        return [results[at] for at in self.order]


def _region(
    function: Callable[..., list[Any]], tensors: Mapping[str, torch.Tensor], where: str
) -> tuple[Region, tuple[int, ...]]:
    """The region that computes a function of proxies, for tensors like these."""
    trace = TraceCtx()
    with tracectx(trace):
        proxies = {name: _proxy(name, tensor) for name, tensor in tensors.items()}
        results = [proxy.name for proxy in function(**proxies)]
    leaves = tuple(leaf for bsym in trace.bound_symbols for leaf in leaves_of(bsym))
    leaves = tuple(tagged_leaves(leaves, results))
    region = Region(leaves, (), (), is_backward=False, where=where).narrowed(results)
    outputs = [proxy.name for proxy in region.outputs]
    return region, tuple(map(outputs.index, results))


def _proxy(name: str, tensor: torch.Tensor) -> TensorProxy:
    return TensorProxy(
        name, shape=tuple(tensor.shape), device=to_device(tensor.device),
        dtype=to_dtype(tensor.dtype), requires_grad=False,
    )  # fmt: skip


def loss_type(x: torch.Tensor) -> torch.dtype:
    """float64 for float64 logits, float32 for all others."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


