# SPDX-License-Identifier: Apache-2.0
"""log_softmax, forward and backward, as exact as torch's.

    Thunder:  x - (max + log(sum(exp(x - max))))    of [1e8, 1e8]: [0, 0]; of [1, inf]: [-inf, NaN]
->  here:     x - max - log(sum(exp(x - max)))      of [1e8, 1e8]: [-0.69, -0.69]; of [1, inf]: NaN

Next to a large maximum the logarithm of the sum would be rounded off. 16-bit floats are computed in
float32.
"""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes, prims

from thunder_fuser.executors.types import are_floats, as_type, compute_type, refuses_tensors
from thunder_fuser.trace.op import Reject


def log_softmax(a: Any, /, dim: int, *, dtype: Any = None) -> Any:
    return as_type(_wide_log_softmax(a, dim, dtype), _result_type(a, dtype))


def log_softmax_gradient(a: Any, /, dim: int, *, dtype: Any = None) -> Any:
    """The gradient is g - softmax * sum(g), of the result as it was rounded, as in torch."""
    result = log_softmax(a, dim, dtype=dtype)
    y = as_type(result, compute_type(result))
    g = as_type(prims.get_grad(result), y.dtype)
    pushed = ltorch.mul(ltorch.exp(y), ltorch.sum(g, dim, True))
    prims.put_grad(a, as_type(ltorch.sub(g, pushed), a.dtype))
    return result


def _wide_log_softmax(a: Any, dim: int, dtype: Any) -> Any:
    rounded = as_type(a, _result_type(a, dtype))
    x = as_type(rounded, compute_type(rounded))
    below = ltorch.sub(x, ltorch.amax(x, dim, True))
    return ltorch.sub(below, ltorch.log(ltorch.sum(ltorch.exp(below), dim, True)))


def _result_type(a: Any, dtype: Any) -> Any:
    return a.dtype if dtype is None else dtypes.to_dtype(dtype)


def refuses_log_softmax(a: Any, /, dim: int, *, dtype: Any = None) -> Reject | None:
    """Taken: floats of any layout but none without elements."""
    if refused := refuses_tensors("log_softmax", [a]):
        return refused
    if not are_floats(a) or not a.numel or not a.ndim:
        return Reject("log_softmax of no elements, of a 0-dim tensor, or of other than floats")
    if dtype is not None and not dtypes.is_float_dtype(dtypes.to_dtype(dtype)):
        return Reject("log_softmax in a type that is none of floats")
    return None if isinstance(dim, int) else Reject("log_softmax along a computed dimension")
