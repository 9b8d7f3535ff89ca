# SPDX-License-Identifier: Apache-2.0
"""Functions that route tokens to experts: products of groups, and counts of tokens per expert.

    y = _grouped_mm(a[m, k], b[g, k, n], offs=ends)   ->  y = grouped_product(a, b, ends)
                                                      da = grouped_product(dy, b.mT, ends)
                                                      db = grouped_weight_gradient(a, dy, ends, b)
    histc(x, bins=8, min=0, max=7)                    ->  sum(bin(x)[:, None] == arange(8), 0)

Thunder's product of groups has no gradient, no argument by torch's name `offs`, and no groups along
the summed axis, which the gradient of the weights needs.
"""

from __future__ import annotations

from numbers import Number
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import register_grad
from thunder.core.utils import check

from thunder_fuser.executors.support.dtypes import FLOATS, data_type
from thunder_fuser.functions.define import (
    Backward,
    Table,
    compute_type,
    refuses_tensors,
    rewrites,
    with_gradient,
)
from thunder_fuser.runtime.eager.torch_calls import grouped_mm, grouped_weight_gradient
from thunder_fuser.trace.op import Reject
from thunder_fuser.trace.proxies import TORCH_KERNELS


def _meta(a: TensorProxy, b: TensorProxy, ends: TensorProxy) -> TensorProxy:
    """The result, for groups of rows of a, of columns of b, or along the summed axis."""
    ranks = (a.ndim, b.ndim, ends.ndim)
    check(ranks in ((2, 3, 1), (3, 2, 1), (2, 2, 1)), lambda: f"grouped_mm of ranks {ranks}")
    groups = b.shape[0] if b.ndim == 3 else a.shape[0] if a.ndim == 3 else ends.shape[0]
    fits = a.shape[-1] == b.shape[-2] and ends.shape[0] == groups
    shapes = [tuple(tensor.shape) for tensor in (a, b, ends)]
    check(fits, lambda: f"grouped_mm of shapes {shapes}")
    check(a.dtype == b.dtype, lambda: f"grouped_mm of {a.dtype} and {b.dtype}")
    shape = (groups,) * (a.ndim == b.ndim) + (a.shape[-2], b.shape[-1])
    return TensorProxy(like=a, shape=shape)


_product = TORCH_KERNELS.register_operator(
    "grouped_product", meta=_meta, fn=grouped_mm, tags=[OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD]
)


_weight_gradient = TORCH_KERNELS.register_operator(
    "grouped_weight_gradient", meta=lambda a, g, ends, b: TensorProxy(like=b),
    fn=grouped_weight_gradient,
)


def _refuses(a: Any, b: Any, ends: Any) -> Reject | None:
    if refused := refuses_tensors("a product of groups", a, b, ends):
        return refused
    return None if data_type(a.dtype) in FLOATS else Reject("a grouped product not of floats")


def _forward(a: Any, b: Any, ends: Any) -> tuple[Any, Backward]:
    def backward(g: Any) -> Any:
        yield a, _product(g, ltorch.transpose(b, -2, -1), ends)
        if b.ndim == 3 and a.ndim == 2:
            yield b, _weight_gradient(a, g, ends, b)
        else:
            yield b, _product(ltorch.transpose(a, -2, -1), g, ends)

    return _product(a, b, ends), backward


_COMPOSITE = with_gradient(_refuses, _forward, _product)
# thunderfx asks Thunder whether a product has a gradient, before it asks an executor.
register_grad(_product.id, _COMPOSITE.gradient)


@ltorch.torchsymbol(torch._grouped_mm, id="torch.grouped_mm")
def _grouped_mm(
    self: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """Replaces Thunder's symbol, with torch's argument names. It has another id, since executors
    that claim Thunder's symbol expect Thunder's arguments."""
    is_plain = bias is None and out_dtype in (None, dtypes.to_torch_dtype(self.dtype))
    check(
        offs is not None and is_plain,
        lambda: "torch._grouped_mm is known with offs, and without bias and another out_dtype",
        NotImplementedError,
    )
    return _product(self, mat2, offs)


def histc(input: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """Counts over equal parts of [min, max], in the type of the input."""
    numbers = all(isinstance(number, Number) for number in (bins, min, max))
    if not numbers or not min < max or bins < 1:
        return NotImplemented  # torch computes the extremes, or refuses the call
    x = ltorch.reshape(input, (-1,))
    wide = compute_type(x)
    place = ltorch.floor((ltorch.to(x, wide) - min) * bins / (max - min))
    place = ltorch.where(ltorch.eq(place, bins), bins - 1, place)
    within = (x >= min) & (x <= max)
    bin_of = ltorch.unsqueeze(ltorch.where(within, place, -1), 1)
    is_in = ltorch.eq(bin_of, ltorch.arange(bins, device=input.device, dtype=wide))
    return ltorch.to(ltorch.sum(is_in, 0), input.dtype)


GROUPS: Table = {
    **rewrites("torch.", histc, grouped_mm=_grouped_mm),
    "grouped_product": _COMPOSITE,
}
