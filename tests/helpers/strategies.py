# SPDX-License-Identifier: Apache-2.0
"""What hypothesis draws from: layouts, strided tensors, chains of transforms, whole fusions.

`cases()` draws a definition and inputs for it, always valid. With tame=True it stays with ops
whose results are continuous and bounded, so that two ways of computing them can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from hypothesis import strategies as st

from thunder_fuser.ir.domain import (
    Domain,
    IterDomain,
    Merge,
    Parallelize,
    ParallelType,
    Reorder,
    Split,
    Transform,
    apply,
)
from thunder_fuser.ir.dtypes import COMPUTED, DataType
from thunder_fuser.ir.frontend.kinds import Value
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.op_schema import DtypeRule, OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.record import Definition, OpRecord, definition_text
from thunder_fuser.ir.rules.build import define
from thunder_fuser.ir.scalar import const
from thunder_fuser.ir.strides import compute_tensor_descriptor
from thunder_fuser.runtime.torch_types import from_torch_dtype, to_torch_dtype

# ---- layouts


def permutations(rank: int) -> st.SearchStrategy[tuple[int, ...]]:
    """An order of `rank` axes."""
    return st.permutations(range(rank)).map(tuple)


@st.composite
def strided_tensors(draw: st.DrawFn, sizes: Sequence[int] | None = None) -> torch.Tensor:
    """A float tensor of any strides torch can make without overlap but by expansion."""
    shape = list(draw(st.lists(st.integers(0, 4), max_size=4)) if sizes is None else sizes)
    return strided(draw, shape, torch.float32)


def strided(draw: st.DrawFn, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of this shape: permuted, cut out of a larger one, or expanded, or none of these."""
    order = draw(permutations(len(shape)))
    gaps = [draw(st.sampled_from([1, 1, 1, 2])) for _ in shape]
    expanded = [draw(st.sampled_from([False, False, False, True])) for _ in shape]
    base = [1 if e else n * g for n, g, e in zip(shape, gaps, expanded, strict=True)]
    memory = filled([base[axis] for axis in order], dtype)
    tensor = memory.permute([order.index(axis) for axis in range(len(shape))])
    cut = tuple(slice(None, None, 1 if e else g) for g, e in zip(gaps, expanded, strict=True))
    return tensor[cut].expand(tuple(shape))


def copied(x: torch.Tensor) -> torch.Tensor:
    """The same view of a copy of its memory; `clone` would undo gaps and expansion."""
    memory = torch.empty(0, dtype=x.dtype)
    storage = x.untyped_storage().clone()
    return memory.set_(storage, x.storage_offset(), x.shape, x.stride())


def filled(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Small values of every sign the dtype has, the same on each call."""
    generator = torch.Generator().manual_seed(math.prod(shape))
    if dtype.is_floating_point:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)
    low = -4 if dtype.is_signed else 0
    numbers = torch.randint(low, 6, tuple(shape), generator=generator)
    return numbers > 0 if dtype is torch.bool else numbers.to(dtype)


# ---- transforms

_MOST_POINTS = 1500


@st.composite
def transformed(draw: st.DrawFn) -> tuple[Domain, tuple[Transform, ...]]:
    """One to three axes and a chain of transforms that applies to them."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    axes = tuple(IterDomain(f"i{at}", const(size)) for at, size in enumerate(sizes))
    loops, chain = axes, []
    for _ in range(draw(st.integers(0, 5))):
        transform = _transform(draw, loops)
        after = apply(loops, transform)
        if math.prod(axis.extent.value for axis in after) <= _MOST_POINTS:
            loops = after
            chain.append(transform)
    return axes, tuple(chain)


def _transform(draw: st.DrawFn, loops: Domain) -> Transform:
    names = [axis.name for axis in loops]
    kind = draw(st.sampled_from(["split", "merge", "reorder", "parallel"]))
    if kind == "merge" and len(names) > 1:
        at = draw(st.integers(0, len(names) - 2))
        return Merge(names[at], names[at + 1])
    if kind == "reorder":
        return Reorder(tuple(draw(st.permutations(names))))
    name = draw(st.sampled_from(names))
    if kind == "parallel":
        return Parallelize(name, draw(st.sampled_from(list(ParallelType))))
    return Split(name, draw(st.integers(1, 5)))


# ---- fusions


def _described(x: torch.Tensor | float | int) -> str:
    if not isinstance(x, torch.Tensor):
        return f"#   {x}"
    return f"#   {x.dtype} {tuple(x.shape)} strides {x.stride()}"


@dataclass(frozen=True, eq=False)
class Case:
    """A definition and what to call it with."""

    definition: Definition
    inputs: tuple[torch.Tensor | float | int, ...]

    @cached_property
    def fusion(self) -> Fusion:
        return define(self.definition)

    def fresh_inputs(self) -> list[torch.Tensor | float | int]:
        """Inputs that a call may write into, of the same strides and alignment."""
        return [copied(x) if isinstance(x, torch.Tensor) else x for x in self.inputs]

    def __repr__(self) -> str:
        shown = [_described(x) for x in self.inputs]
        return definition_text(self.definition) + "\n".join(["# inputs:", *shown])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What hypothesis prints of a failing case."""
        printer.text(repr(self))


@st.composite
def cases(draw: st.DrawFn, *, tame: bool = False, most_ops: int = 15) -> Case:
    """One to four inputs, up to `most_ops` ops over all rows, one to three outputs."""
    writer = _Writer(draw, tame)
    for _ in range(draw(st.integers(1, 4))):
        writer.input()
    for _ in range(draw(st.integers(1, most_ops))):
        writer.op()
    writer.outputs()
    return Case(writer.fd.definition, tuple(writer.arguments))


def view_of(definition: Definition, name: str) -> TensorView:
    """The type of one value of an unfinished definition."""
    fusion = define((*definition, OpRecord("add_output", (name,))))
    return fusion.tensors[fusion.outputs[-1].name]


@dataclass(frozen=True)
class _Known:
    """A value made so far, with its sizes in numbers."""

    value: Value
    dtype: DataType
    shape: tuple[int, ...]
    is_scalar: bool

    @property
    def rank(self) -> int:
        return len(self.shape)


_COMPLEX = ("imag", "complex")
_FLOATS = [d for d in COMPUTED if d.is_float]
_MOST_ELEMENTS = 3000
_TAME_UNARY = ["neg", "abs", "relu", "tanh", "sigmoid", "sin", "cos", "erf", "atan", "silu"]
_TAME_BINARY = ["add", "sub", "mul", "minimum", "maximum", "atan2"]
_NO_BOOL = {
    "abs", "neg", "relu", "sub", "ceil", "floor", "trunc", "round", "fmod", "mod", "remainder",
    "div", "pow", "clamp", "threshold", "gcd", "bitwise_left_shift", "bitwise_right_shift",
    "logical_right_shift",
}
_NEEDS_NONZERO = {"div", "fmod", "mod", "remainder", "truediv"}
_SHIFTS = {"bitwise_left_shift", "bitwise_right_shift", "logical_right_shift"}


def _rows(arity: int) -> list[str]:
    pointwise = [r for r in OPS.values() if r.kind is OpKind.POINTWISE and r.arity == arity]
    return [r.name for r in pointwise if r.name not in _COMPLEX]


class _Writer:
    """Draws one definition, call by call. Every choice is valid by construction."""

    def __init__(self, draw: st.DrawFn, tame: bool) -> None:
        self.draw, self.tame = draw, tame
        self.fd = Recorder()
        self.known: list[_Known] = []
        self.arguments: list[torch.Tensor | float | int] = []
        self.symbols: dict[str, int] = {}
        self.inputs: list[_Known] = []
        # Equal sizes make operands that combine; a few of them are enough.
        self.sizes = draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 7]), min_size=2, max_size=3))

    def pick(self, options: Sequence[object]) -> object:
        return self.draw(st.sampled_from(list(options)))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def note(self, value: Value) -> _Known:
        """Looks the new value's type up and remembers it, if it is small enough to go on with."""
        view = view_of(self.fd.definition, value.name)
        shape = tuple(extent.substitute(self.symbols).value for extent in view.shape)
        known = _Known(value, view.dtype, shape, view.is_scalar)
        if math.prod(shape) <= _MOST_ELEMENTS:
            self.known.append(known)
        return known

    # ---- inputs

    def input(self) -> None:
        if self.known and self.draw(st.integers(0, 5)) == 0:
            self._scalar_input()
        else:
            self._tensor_input()

    def _scalar_input(self) -> None:
        dtype = self.pick([DataType.Double, DataType.Float, DataType.Int])
        value = self.fd.define_scalar(dtype=dtype)
        number = self.draw(st.integers(2, 4))
        self.arguments.append(float(number) / 2 if dtype.is_float else number)
        if dtype is DataType.Int:
            self.symbols[value.name] = number
        self.note(value)

    def _tensor_input(self) -> None:
        dtype = self.pick(_FLOATS if self.tame else COMPUTED)
        rank = self.draw(st.integers(0, 4))
        shape = [self.pick(self.sizes) for _ in range(rank)]
        tensor = strided(self.draw, shape, to_torch_dtype(dtype))
        value = self._define(tensor)
        self.arguments.append(tensor)
        view = view_of(self.fd.definition, value.name)
        for extent, size in zip(view.shape, shape, strict=True):
            self.symbols.update(dict.fromkeys(extent.symbols, size))
        self.inputs.append(self.note(value))

    def _define(self, tensor: torch.Tensor) -> Value:
        """As given by sizes and strides, or spelled out."""
        sizes, strides = tuple(tensor.shape), tensor.stride()
        dtype = from_torch_dtype(tensor.dtype)
        if self.flag():
            return self.fd.define_tensor(
                sizes=sizes, strides=strides, dtype=dtype, static_sizes=self.flag()
            )
        contiguity, order = compute_tensor_descriptor(sizes, strides)
        shape = [n if n == 1 or self.flag() else -1 for n in sizes]
        return self.fd.define_tensor(
            shape=shape, contiguity=contiguity, dtype=dtype, stride_order=order
        )

    # ---- ops

    def op(self) -> None:
        """Appends one op, drawn by kind and then by row."""
        kinds: dict[str, Callable[[_Known], Value | None]] = {
            "unary": self._unary,
            "binary": self._binary,
            "ternary": self._ternary,
            "cast": self._cast,
            "movement": self._movement,
            "reduction": self._reduction,
            "other": self._other,
        }
        source = self.pick(self.known)
        made = kinds[str(self.pick([*kinds, "binary", "movement"]))](source)
        if made is not None:
            self.note(made)

    def _float_of(self, source: _Known) -> Value:
        return source.value if source.dtype.is_float else self.fd.ops.cast(
            source.value, DataType.Float
        )

    def _unary(self, source: _Known) -> Value | None:
        names = _TAME_UNARY if self.tame else [n for n in _rows(1) if n != "cast"]
        name = str(self.pick([n for n in names if _takes(n, source.dtype)]))
        return getattr(self.fd.ops, name)(source.value)

    def _binary(self, source: _Known) -> Value | None:
        other = self._partner(source)
        dtypes = [source.dtype] if other is None else [source.dtype, other.dtype]
        names = _TAME_BINARY if self.tame else _rows(2)
        fits = [n for n in names if all(_takes(n, d) for d in dtypes)]
        name = str(self.pick(fits))
        if other is None or name in _NEEDS_NONZERO | _SHIFTS | {"pow"}:
            right: object = self._number(name, source)
        else:
            right = other.value
        return getattr(self.fd.ops, name)(source.value, right)

    def _number(self, name: str, source: _Known) -> bool | int | float:
        if name in _SHIFTS or name == "pow" or not source.dtype.is_float:
            return self.draw(st.integers(1, 3))
        return self.draw(st.sampled_from([0.5, 2.0, 3, 1.25]))

    def _partner(self, source: _Known) -> _Known | None:
        """A value whose shape broadcasts with the source's."""
        fits = [k for k in self.known if _broadcasts(k.shape, source.shape)]
        return self.pick(fits) if fits and self.draw(st.integers(0, 3)) else None

    def _ternary(self, source: _Known) -> Value | None:
        name = self.pick(["where", "where", "clamp", "lerp", "threshold"])
        ops = self.fd.ops
        other = self._partner(source) or source
        if name == "where":
            return ops.where(ops.gt(source.value, 0), source.value, other.value)
        if name == "lerp":
            return ops.lerp(self._float_of(source), other.value, 0.25)
        if not _takes(str(name), source.dtype):
            return None
        return getattr(ops, str(name))(source.value, *((-1, 2) if name == "clamp" else (1, 0)))

    def _cast(self, source: _Known) -> Value | None:
        return self.fd.ops.cast(source.value, self.pick(_FLOATS if self.tame else COMPUTED))

    def _reduction(self, source: _Known) -> Value | None:
        if source.is_scalar:
            return None
        dims = [axis for axis in range(source.rank) if self.flag()]
        dims = [axis - source.rank if self.flag() else axis for axis in dims]
        empty = 0 in source.shape
        names = ["sum"] if self.tame or empty else ["sum", "prod", "max", "min"]
        name = self.pick([*names, "var_mean"] if source.dtype.is_float and not empty else names)
        if name == "var_mean":
            return self.fd.ops.var_mean(source.value, dims, 0, self.flag())[self.pick([0, 1])]
        dtype = self.pick([None, None, DataType.Float, DataType.Double])
        given = None if self.draw(st.integers(0, 3)) == 0 else dims
        return getattr(self.fd.ops, str(name))(source.value, given, self.flag(), dtype)

    def _other(self, source: _Known) -> Value | None:
        ops = self.fd.ops
        kind = self.pick(["full", "iota", "size", "triu", "uniform"])
        dtype = self.pick(_FLOATS if self.tame else COMPUTED)
        if kind == "iota" and dtype is not DataType.Bool:
            return ops.iota(self.pick([2, 3, 4]), 1, 2, dtype)
        if kind == "size" and source.rank:
            return ops.size(source.value, self.draw(st.integers(-source.rank, source.rank - 1)))
        if kind == "triu" and source.rank == 2 and source.dtype is not DataType.Bool:
            return ops.triu(source.value, self.draw(st.integers(-1, 1)))
        shape = [self._size(source, axis) for axis in range(source.rank)]
        if kind == "uniform" and dtype.is_float:
            return ops.uniform(self.pick([0.0, -1]), self.pick([1.0, 3]), shape, dtype, 3, 7)
        return ops.full(shape, self.pick([0, 1, 2.5]), dtype)

    def _size(self, source: _Known, axis: int) -> object:
        """The size of an axis, as a number or as a scalar of the definition."""
        # A symbolic 1 would have to be specialised to a broadcast first.
        if source.shape[axis] == 1 or source.is_scalar or self.flag():
            return source.shape[axis]
        return self.fd.ops.size(source.value, axis)

    # ---- movement

    def _movement(self, source: _Known) -> Value | None:
        if source.is_scalar:
            return None
        makers: list[Callable[[_Known], Value | None]] = [
            self._set, self._broadcast, self._broadcast_in_dim, self._expand, self._squeeze,
            self._permute, self._reshape, self._slice, self._pad, self._cat, self._stride_order,
        ]
        return self.pick(makers)(source)

    def _set(self, source: _Known) -> Value:
        return getattr(self.fd.ops, str(self.pick(["set", "segment_set"])))(source.value)

    def _broadcast(self, source: _Known) -> Value | None:
        if source.rank > 3:
            return None
        at = self.draw(st.integers(0, source.rank))
        flags = [False] * source.rank
        return self.fd.ops.broadcast(source.value, [*flags[:at], True, *flags[at:]])

    def _broadcast_in_dim(self, source: _Known) -> Value | None:
        if source.rank > 3:
            return None
        at = self.draw(st.integers(0, source.rank))
        sizes = [3 if n == 1 else self._size(source, axis) for axis, n in enumerate(source.shape)]
        dims = [axis + (axis >= at) for axis in range(source.rank)]
        shape = [*sizes[:at], 2, *sizes[at:]]
        return self.fd.ops.broadcast_in_dim(source.value, shape, dims)

    def _expand(self, source: _Known) -> Value:
        return self.fd.ops.expand(source.value, [4 if n == 1 else -1 for n in source.shape])

    def _squeeze(self, source: _Known) -> Value | None:
        ones = [axis for axis, n in enumerate(source.shape) if n == 1]
        return self.fd.ops.squeeze(source.value, ones) if ones else None

    def _permute(self, source: _Known) -> Value:
        return self.fd.ops.permute(source.value, list(self.draw(permutations(source.rank))))

    def _reshape(self, source: _Known) -> Value | None:
        shape = list(source.shape)
        if len(shape) > 1 and self.flag():
            at = self.draw(st.integers(0, len(shape) - 2))
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif len(shape) < 4:
            even = [axis for axis, n in enumerate(shape) if n and n % 2 == 0]
            if not even:
                return self.fd.ops.reshape(source.value, [1, *shape])
            at = int(self.pick(even))
            shape[at : at + 1] = [2, shape[at] // 2]
        guessed = [axis for axis, n in enumerate(shape) if n > 1]
        if guessed and 0 not in shape and self.flag():
            shape[int(self.pick(guessed))] = -1
        return self.fd.ops.reshape(source.value, shape)

    def _slice(self, source: _Known) -> Value:
        starts = [self.draw(st.integers(0, min(n, 1))) for n in source.shape]
        ends = [self.draw(st.integers(s, n)) for s, n in zip(starts, source.shape, strict=True)]
        return self.fd.ops.slice(source.value, starts, ends)

    def _pad(self, source: _Known) -> Value:
        axes = self.draw(st.integers(0, source.rank))
        # Beside an empty or a single element, a width of 1 could make a symbolic size of 1.
        widths = [self.pick([0, 2, 3]) for _ in range(2 * axes)]
        value: bool | float = False if source.dtype is DataType.Bool else self.pick([0, 1, 3])
        return self.fd.ops.pad(source.value, widths, value)

    def _cat(self, source: _Known) -> Value | None:
        if not source.rank:
            return None
        dim = self.draw(st.integers(0, source.rank - 1))
        like = [k for k in self.known if not k.is_scalar and _differ_at(k.shape, source.shape, dim)]
        more = [self.pick(like).value for _ in range(self.draw(st.integers(0, 2)))]
        return self.fd.ops.cat([source.value, *more], dim - source.rank if self.flag() else dim)

    def _stride_order(self, source: _Known) -> Value:
        order = list(self.draw(permutations(source.rank)))
        return self.fd.ops.stride_order(source.value, order)

    # ---- outputs

    def outputs(self) -> None:
        computed = [k for k in self.known[len(self.arguments) :] if not k.is_scalar]
        ends = computed or [self.note(self.fd.ops.set(self.inputs[0].value))]
        free = list(self.inputs)
        for known in ends[-self.draw(st.integers(1, 3)) :]:
            targets = [t for t in free if t.dtype is known.dtype and t.shape == known.shape]
            targets = [t for t in targets if not self._is_expanded(t)]
            if targets and self.draw(st.integers(0, 4)) == 0:
                target = self.pick(targets)
                free.remove(target)
                self.fd.add_output(known.value, target.value)
            elif self.draw(st.integers(0, 2)) == 0:
                order = list(self.draw(permutations(known.rank)))
                self.fd.add_output(known.value, stride_order=order)
            else:
                self.fd.add_output(known.value)

    def _is_expanded(self, known: _Known) -> bool:
        """True if elements share memory, so that writing to it has no meaning."""
        tensors = [a for a in self.arguments if isinstance(a, torch.Tensor)]
        tensor = next(a for k, a in zip(self.inputs, tensors, strict=True) if k is known)
        return 0 in tensor.stride()


def _takes(name: str, dtype: DataType) -> bool:
    """True if torch has the op for the dtype."""
    if OPS[name].rule is DtypeRule.INTEGER and dtype.is_float:
        return False
    return dtype is not DataType.Bool or name not in _NO_BOOL


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(1 in pair or pair[0] == pair[1] for pair in pairs)


def _differ_at(a: Sequence[int], b: Sequence[int], dim: int) -> bool:
    """True if the shapes agree but for one axis."""
    if len(a) != len(b):
        return False
    return all(x == y or at == dim for at, (x, y) in enumerate(zip(a, b, strict=True)))
