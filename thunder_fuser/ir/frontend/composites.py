# SPDX-License-Identifier: Apache-2.0
"""Ops made of rows of the op table: variance, argmax and argmin, triangles and others.

rand_like(T0: f32[i0, 8])  ->  S1 = size(T0, dim=0); T2 = uniform(0.0, 1.0, [S1, 8], Float)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from thunder_fuser.errors import DefinitionError, DtypeError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.kinds import F, Owner, Scalar, Value, checked, checked_argument
from thunder_fuser.ir.frontend.op_methods import OpMethods
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.op_schema import OpKind
from thunder_fuser.ir.op_table import OPS
from thunder_fuser.ir.rules.shapes import normalise_axes, normalise_axis

_EXACT = {r.name for r in OPS.values() if r.kind is OpKind.MOVEMENT and r.arity == 1} | {"cast"}


def as_row(name: str) -> Callable[[F], F]:
    """Decorates a composite that stands for a row: it keeps the row's signature and docstring."""
    return wraps(getattr(OpMethods, name))  # type: ignore[return-value]


class Composites(OpMethods):
    """The composite ops, beside the rows of the op table."""

    _fd: Owner

    def _rank(self, arg: Tensor, call: str) -> int:
        return len(self._fd.view_of(str(self._fd.operand(arg, call, "arg"))).shape)

    @checked
    def shape(self, arg: Tensor) -> list[Scalar]:
        """The extents of a tensor, as scalars."""
        return [self.size(arg, dim) for dim in range(self._rank(arg, "shape"))]

    @checked
    def tensor_sizes(self, arg: Tensor) -> list[Scalar]:
        """Another name of shape."""
        return self.shape(arg)

    @checked
    def at(self, vector: Sequence[Value | int], index: int) -> Value | int:
        """One entry of a list of scalars, such as a shape. A negative index counts from the end."""
        try:
            return vector[index]
        except IndexError:
            expected = f"an index of {len(vector)} entries"
            raise DefinitionError("at: index", expected=expected, got=str(index)) from None

    @as_row("pad")
    def pad(self, *args: Any, **kwargs: Any) -> Tensor:
        """As the row of the table. The value may also be a scalar of the definition, and a complex
        number for complex tensors."""
        bound = OPS["pad"].bind(args, kwargs)
        value = bound["value"]
        if isinstance(value, complex):
            value = self.complex(value.real, value.imag)
        if not isinstance(value, Value):
            return super().pad(**bound)
        self._check_scalar("pad: value", value)
        padded = super().pad(**{**bound, "value": 0})
        if value.dtype().is_complex and not padded.dtype().is_complex:
            expected = f"a number of type {padded.dtype().name}"
            raise DtypeError("pad: value", expected=expected, got=value.dtype().name)
        inside = self.full(self.shape(bound["arg"]), True, DataType.Bool)
        chosen = self.where(super().pad(**{**bound, "arg": inside, "value": 0}), padded, value)
        return self.cast(chosen, padded.dtype())

    @as_row("cat")
    def cat(self, *args: Any, manual_padding: Any = False, **kwargs: Any) -> Tensor:
        """As the row of the table. manual_padding: ops.pad has already padded each tensor with 0 to
        the size of the result, which is how nvFuser prints a cat."""
        bound = OPS["cat"].bind(args, kwargs)
        if checked_argument("cat", "manual_padding", manual_padding, False):
            tensors = checked_argument("cat", "tensors", bound["tensors"], ())
            bound["tensors"] = [self._before_padding(tensor) for tensor in tensors]
        return super().cat(**bound)

    def _check_scalar(self, what: str, value: Value) -> None:
        shape = self._fd.view_of(value.name).shape
        if shape:
            got = f"a tensor of sizes [{', '.join(map(str, shape))}]"
            raise DefinitionError(what, expected="a number or a scalar", got=got)

    def _before_padding(self, padded: Any) -> Tensor:
        name = self._fd.operand(padded, "cat", "tensors")
        padding = next((r for r in self._fd.records if name in r.outputs and r.op == "pad"), None)
        if padding is None or padding.attr("value"):
            what, do = "cat: manual_padding", "pad each tensor, or leave manual_padding out"
            expected = "tensors that ops.pad made, with the value 0"
            raise DefinitionError(what, expected=expected, got=str(name), do=do)
        return Tensor(str(padding.inputs[0]), self._fd)

    @as_row("embedding_fwd")
    def embedding_fwd(self, *args: Any, **kwargs: Any) -> Tensor:
        """As the row of the table, with max_norm: longer rows are scaled down to it. torch also
        scales them in the weight, which stays as it is here. All but the tensors may be scalars;
        those that decide about gradients alone, and the padding, change nothing."""
        row = OPS["embedding_fwd"]
        bound = row.bind(args, kwargs)
        options = {
            name: checked_argument(row.name, name, bound.pop(name), row.default(name))
            for name in list(bound)[2:]
        }
        for name, value in options.items():
            if isinstance(value, Value):
                self._check_scalar(f"embedding_fwd: {name}", value)
        rows, most = super().embedding_fwd(**bound), options["max_norm"]
        if most is None:
            return rows
        norm = self._norm(rows, options["norm_type"])
        scale = self.truediv(most, self.add(norm, 1e-7))
        shorter = self.mul(rows, self.where(self.gt(norm, most), scale, 1.0))
        return self.cast(shorter, rows.dtype())

    @as_row("sdpfa_fwd")
    def sdpfa_fwd(self, *args: Any, bias: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        """As the row of the table, with the two masks of nvFuser: bias is added to the scores, and
        only those where mask is True count."""
        return super().sdpfa_fwd(*args, **self._masked(kwargs, args, 0, bias, mask))

    @as_row("sdpfa_bwd")
    def sdpfa_bwd(self, *args: Any, bias: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        """As the row of the table; see sdpfa_fwd. A bias has no gradient here."""
        return super().sdpfa_bwd(*args, **self._masked(kwargs, args, 1, bias, mask))

    def _masked(
        self, kwargs: dict[str, Any], args: tuple[Any, ...], at: int, bias: Any, mask: Any
    ) -> dict[str, Any]:
        """The keywords with both masks as one, in the query's type; `at` is the query's place."""
        if bias is None and mask is None:
            return kwargs
        query = args[at] if len(args) > at else kwargs["query"]
        if mask is not None:
            mask = self.where(mask, 0.0, -math.inf)
        both = mask if bias is None else bias if mask is None else self.add(bias, mask)
        return {**kwargs, "attn_mask": self.cast(both, query.dtype())}

    def _norm(self, x: Tensor, order: float | Value) -> Any:
        """The norm over the last axis, which stays with size 1. The order may be a scalar."""
        size = self.abs(x)
        special: dict[float, Callable[[], Any]] = {
            math.inf: lambda: self.max(size, [-1], keepdim=True),
            -math.inf: lambda: self.min(size, [-1], keepdim=True),
            0.0: lambda: self.sum(self.ne(x, 0.0), [-1], keepdim=True),
        }
        if order in special:
            return special[order]()
        total = self.sum(self.pow(size, order), [-1], keepdim=True)
        norm = self.pow(total, self.truediv(1.0, order))
        if isinstance(order, Value):
            for number, norm_of in special.items():
                norm = self.where(self.eq(order, number), norm_of(), norm)
        return norm

    @checked
    def var_mean(
        self,
        arg: Tensor,
        dims: int | Sequence[int] | None = None,
        correction: float = 1,
        keepdim: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """(variance, mean) in two passes: sum(|x - mean|**2) / max(n - correction, 0)."""
        axes = list(normalise_axes(dims, self._rank(arg, "var"), "var"))  # type: ignore[arg-type]
        count = self._count(arg, axes)
        is_complex = self._fd.view_of(arg.name).dtype.is_complex
        mean = self._quotient(self.sum(arg, axes, keepdim=True), count, is_complex=is_complex)
        squares = self._square_of_size(self.sub(arg, mean), is_complex=is_complex)
        total = self.sum(squares, axes, keepdim=True)
        rest = self.sub(count, float(correction))
        if correction < 0:  # the divisor exceeds the number of elements
            divisor = self.mul(rest, self.minimum(count, 1.0))
        else:  # 0 for no elements, whose variance is NaN
            divisor = self.maximum(rest, 0.0)
        variance = self.truediv(total, divisor)
        if keepdim or not axes:
            return variance, mean
        return self.squeeze(variance, axes), self.squeeze(mean, axes)

    def _quotient(self, x: Value, real: Value, *, is_complex: bool) -> Tensor:
        """x / real, part by part: a complex division turns infinite parts into NaN."""
        if not is_complex:
            return self.truediv(x, real)
        return self.complex(*(self.truediv(part, real) for part in (self.real(x), self.imag(x))))

    def _square_of_size(self, x: Value, *, is_complex: bool) -> Tensor:
        """|x|**2, a real number."""
        if not is_complex:
            return self.mul(x, x)
        re, im = self.real(x), self.imag(x)
        return self.add(self.mul(re, re), self.mul(im, im))

    @checked
    def var(
        self,
        arg: Tensor,
        dims: int | Sequence[int] | None = None,
        correction: float = 1,
        keepdim: bool = False,
    ) -> Tensor:
        """The variance; see var_mean."""
        return self.var_mean(arg, dims, correction, keepdim)[0]

    @checked
    def welford(self, arg: Tensor, dims: int | Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """(mean, sum of squared distances from it, number of elements)."""
        rank = self._rank(arg, "welford")
        count = self._count(arg, list(normalise_axes(dims, rank, "welford")))  # type: ignore[arg-type]
        variance, mean = self.var_mean(arg, dims, 0)
        return mean, self.mul(variance, count), count

    @checked
    def rand_like(self, arg: Tensor, rng_seed: Any = None, rng_offset: Any = None) -> Tensor:
        """Uniform numbers in [0, 1), of the argument's shape and dtype."""
        return self._random_like("uniform", arg, (rng_seed, rng_offset))

    @checked
    def randn_like(self, arg: Tensor, rng_seed: Any = None, rng_offset: Any = None) -> Tensor:
        """Standard normal numbers, of the argument's shape and dtype."""
        return self._random_like("normal", arg, (rng_seed, rng_offset))

    def _random_like(self, op: str, arg: Tensor, state: tuple[Any, Any]) -> Tensor:
        view = self._fd.view_of(str(self._fd.operand(arg, op, "arg")))
        sizes = [
            extent.value if extent.is_const else self.size(arg, axis)
            for axis, extent in enumerate(view.shape)
        ]
        draw: Callable[..., Tensor] = getattr(self, op)
        return draw(0.0, 1.0, sizes, view.dtype, *state)

    @checked
    def cummax_indices(self, arg: Tensor, dim: int) -> Tensor:
        """The indices of cummax's values: the last of equal ones, and NaN from the first NaN on."""
        return self._last_equal(arg, self.cummax(arg, dim), dim)

    @checked
    def cummin_indices(self, arg: Tensor, dim: int) -> Tensor:
        """The indices of cummin's values; see cummax_indices."""
        return self._last_equal(arg, self.cummin(arg, dim), dim)

    def _last_equal(self, arg: Tensor, extreme: Value, dim: int) -> Tensor:
        """x [1, 3, 3, 2], extreme [1, 3, 3, 3]  ->  [0, 1, 2, 2]: the last equal index."""
        rank = self._rank(arg, "cummax")
        dim = normalise_axis(dim, rank, "cummax")
        places = self.iota(self.size(arg, dim), 0, 1, DataType.Int)
        places = self.broadcast(places, [at != dim for at in range(rank)])
        met = self.logical_or(self.eq(arg, extreme), self.ne(arg, arg))
        return self.cummax(self.where(met, places, 0), dim)

    @checked
    def addcmul(self, x: Any, a: Any, b: Any, value: Any = 1.0) -> Tensor:
        """x + value * a * b"""
        return self.add(x, self.mul(self.mul(value, a), b))

    @checked
    def add_alpha(self, lhs: Any, rhs: Any, alpha: Any) -> Tensor:
        """lhs + alpha * rhs"""
        return self.add(lhs, self.mul(rhs, alpha))

    @checked
    def sub_alpha(self, lhs: Any, rhs: Any, alpha: Any) -> Tensor:
        """lhs - alpha * rhs"""
        return self.sub(lhs, self.mul(rhs, alpha))

    @checked
    def triu(self, arg: Tensor, diagonal: Any = 0) -> Tensor:
        """The upper triangle of the last two axes; zero elsewhere."""
        row, column = self._row_and_column(arg)
        return self.where(self.le(self.add(row, diagonal), column), arg, False)

    @checked
    def tril(self, arg: Tensor, diagonal: Any = 0) -> Tensor:
        """The lower triangle of the last two axes; zero elsewhere."""
        row, column = self._row_and_column(arg)
        return self.where(self.ge(self.add(row, diagonal), column), arg, False)

    def _row_and_column(self, arg: Tensor) -> tuple[Tensor, Tensor]:
        """The row number and the column number of each element, over the last two axes."""
        rows, columns = self.size(arg, -2), self.size(arg, -1)
        row = self.broadcast(self.iota(rows, 0, 1, DataType.Int), [False, True])
        return row, self.broadcast(self.iota(columns, 0, 1, DataType.Int), [True, False])

    @checked
    def select(self, arg: Tensor, index: Any, dim: int) -> Tensor:
        """One slice along an axis, without that axis. A negative index counts from the end.

        index: a number, an integer scalar, or a tensor with one element.
        """
        computed = isinstance(index, Value)
        if computed or index < 0:
            wrapped = self.add(self.size(arg, dim), index)
            index = self.where(self.lt(index, 0), wrapped, index) if computed else wrapped
        return self.squeeze(self.index_select(arg, index, dim), [dim])

    @checked
    def argmax(self, arg: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The first index of the largest element, as Int. NaN counts as the largest.

        Without dim, the index is over all elements in row-major order.
        """
        return self._place_of("argmax", arg, self.max, dim, keepdim)

    @checked
    def argmin(self, arg: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The first index of the smallest element. NaN counts as the smallest; see argmax."""
        return self._place_of("argmin", arg, self.min, dim, keepdim)

    @checked
    def in_memory(self, arg: Tensor) -> Tensor:
        """An input itself, also after a cast; else a copy in memory, with readers in other kernels.
        What is computed twice costs more, and its last bits might differ."""
        producers = {name: record for record in self._fd.records for name in record.outputs}
        record = producers[arg.name]
        while record.op in _EXACT and (source := record.inputs[0]) in producers:
            record = producers[str(source)]
        return arg if record.op == "define_tensor" else self.segment_set(arg)

    def _place_of(
        self, call: str, arg: Tensor, extremum: Callable[..., Any], dim: int | None, keepdim: bool
    ) -> Tensor:
        """The smallest index of the elements that equal the extremum or are NaN."""
        rank = self._rank(arg, call)
        dims = list(range(rank)) if dim is None else [normalise_axis(dim, rank, call)]
        arg = self.in_memory(arg)
        sizes = self.shape(arg)
        count: Any = 1
        for at in dims:
            count = self.mul(count, sizes[at])
        places = self.iota(count, 0, 1, DataType.Int)
        if dim is None:
            places = self.reshape(places, sizes)
        else:
            places = self.broadcast_in_dim(places, sizes, dims)
        best = extremum(arg, dims, keepdim=True)
        is_best = self.logical_or(self.eq(arg, best), self.ne(arg, arg))
        return self.min(self.where(is_best, places, count), dims, keepdim)

    def _count(self, arg: Tensor, axes: list[int]) -> Tensor:
        count: Any = 1.0
        for axis in axes:
            count = self.mul(self.cast(self.size(arg, axis), DataType.Double), count)
        return count if isinstance(count, Tensor) else self.cast(1.0, DataType.Double)
