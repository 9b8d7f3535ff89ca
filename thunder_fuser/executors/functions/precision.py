# SPDX-License-Identifier: Apache-2.0
"""A function of several steps on 16-bit floats -> the same in float32, rounded once at its end.

torch computes such a function in one kernel, which rounds its result alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_map
from thunder.core.utils import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_type_promotion

Function = Callable[..., Any]
_SHORT = (dtypes.float16, dtypes.bfloat16)


def rounded_once(function: Function) -> Function:
    """f(bf16 x, bf16 y)  ->  to(f(to(x, f32), to(y, f32)), bf16)

    The result has the type to which its tensors promote.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, TensorProxy)]
        if not any(_is_short(one) for one in tensors):
            return function(*args, **kwargs)
        wide = tree_map(_widened, (args, kwargs))
        result = function(*wide[0], **wide[1])
        _, promoted = elementwise_type_promotion(
            *tensors, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        )
        return result if result is NotImplemented else ltorch.to(result, promoted)

    return call


def _is_short(one: Any) -> bool:
    return isinstance(one, TensorProxy) and dtypes.to_strong_dtype(one.dtype) in _SHORT


def _widened(one: Any) -> Any:
    return ltorch.to(one, dtypes.float32) if _is_short(one) else one
