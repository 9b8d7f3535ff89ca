# SPDX-License-Identifier: Apache-2.0
"""16-bit floats are computed in float32.

torch computes a function of several steps in one kernel, and rounds its result alone.
"""

from __future__ import annotations

import functools
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_map
from thunder.core.utils import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_type_promotion

from thunder_fuser.executors.functions.kinds import Function
from thunder_fuser.executors.types import as_type, compute_type


def wide(tensor: TensorProxy) -> Any:
    return as_type(tensor, compute_type(tensor))


def promoted(*tensors: TensorProxy) -> dtypes.dtype:
    """The type to which tensors of several types promote."""
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    return elementwise_type_promotion(*tensors, type_promotion_kind=kind)[1]


def rounded_once(function: Function) -> Function:
    """f(bf16 x, bf16 y)  ->  to(f(to(x, f32), to(y, f32)), bf16)"""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, TensorProxy)]
        if not any(map(_is_16_bit, tensors)):
            return function(*args, **kwargs)
        args, kwargs = tree_map(lambda one: wide(one) if _is_16_bit(one) else one, (args, kwargs))
        result = function(*args, **kwargs)
        return result if result is NotImplemented else ltorch.to(result, promoted(*tensors))

    return call


def _is_16_bit(one: Any) -> bool:
    types = (dtypes.float16, dtypes.bfloat16)
    return isinstance(one, TensorProxy) and dtypes.to_strong_dtype(one.dtype) in types
