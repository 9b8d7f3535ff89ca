# SPDX-License-Identifier: Apache-2.0
"""Writes in place, by the functions that make a new tensor.

    y.sigmoid_()     ->  copy_(sigmoid(y), y)
    y.fill_(2)       ->  copy_(full_like(y, 2), y)
    y.clamp_(0, 1)   ->  copy_(clip(y, 0, 1), y)

Thunder has about eighty such methods, of which some call a function for which there is a better one
here; for others it raises an AttributeError. Methods that change a shape or draw numbers stay so.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core.dtypes import to_torch_dtype
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

from thunder_fuser.functions.define import Composite, Function, Rewrite, noted, replacement

MISSING = (
    "absolute_", "addbmm_", "addmm_", "addmv_", "addr_", "arccos_", "arccosh_", "arcsin_",
    "arcsinh_", "arctan2_", "arctan_", "arctanh_", "baddbmm_", "bitwise_left_shift_",
    "bitwise_right_shift_", "clamp_max_", "clamp_min_", "clip_", "cumprod_", "deg2rad_",
    "divide_", "fill_", "fix_", "frac_", "gcd_", "greater_", "greater_equal_", "heaviside_",
    "hypot_", "i0_", "igamma_", "igammac_", "index_fill_", "lcm_", "ldexp_", "less_",
    "less_equal_", "logit_", "masked_scatter_", "multiply_", "nan_to_num_", "negative_",
    "not_equal_", "rad2deg_", "sgn_", "sigmoid_", "sinc_", "subtract_", "xlogy_",
)  # fmt: skip


def _filled(a: Any, value: Any) -> Any:
    if not isinstance(value, TensorProxy):
        return ltorch.full_like(a, value)
    if value.ndim:
        raise RuntimeError(f"fill_ only supports 0-dimension value tensor but got {value.ndim}")
    return ltorch.expand(value, a.shape)


def _copied(a: Any, b: Any, /) -> Any:
    """y[3, 4].copy_(x[4])  ->  y.copy_(expand(x, (3, 4))), for Thunder takes equal shapes only."""
    same = not isinstance(b, TensorProxy) or a.shape == b.shape
    return NotImplemented if same else ltorch.copy_(a, ltorch.expand(b, a.shape))


def rewritten(functions: Mapping[str, Rewrite | Composite]) -> dict[str, Rewrite]:
    """{the id of a method: its Rewrite}, for methods of Thunder whose functions have one."""
    symbols = [*ltorch._torch_to_thunder_function_map.values()]
    known = {s.id: s.name for s in symbols if isinstance(s, Symbol) and s.name.endswith("_")}
    bases = {id: functions.get(f"torch.{name[:-1]}") for id, name in known.items()}
    return {"torch.Tensor.copy_": Rewrite(_copied, may_be_view=True)} | {
        id: Rewrite(_written(base.function, known[id]))
        for id, base in bases.items() if isinstance(base, Rewrite)
    }  # fmt: skip


def define_methods(functions: Mapping[str, Rewrite | Composite]) -> dict[Function, Function]:
    """Gives Thunder the methods that it lacks, and whose functions it has; {torch's: Thunder's}."""
    defined: dict[Function, Function] = {}
    for name in MISSING:
        function = _filled if name == "fill_" else _function_of(name[:-1], functions)
        called = [getattr(torch, name)] if hasattr(torch, name) else []
        if function is None or hasattr(ltorch, name):
            continue
        symbol = ltorch.torchsymbol(
            *called, is_method=True, id=f"torch.Tensor.{name}", tags=(OpTags.IN_PLACE,),
            out_of_place=function,
        )(_written(function, name))  # fmt: skip
        defined |= dict.fromkeys([*called, getattr(torch.Tensor, name)], noted(symbol))
    return defined


def _function_of(name: str, functions: Mapping[str, Rewrite | Composite]) -> Function | None:
    """The function that makes a new tensor: ours where it fits, else Thunder's, or None."""
    called = getattr(torch, name, None) or getattr(torch.Tensor, name)
    symbol = ltorch._torch_to_thunder_function_map.get(called)
    rewrite = None if symbol is None else functions.get(symbol.id)
    return symbol if not isinstance(rewrite, Rewrite) else replacement(rewrite, symbol)


def _written(function: Function, name: str) -> Function:
    @functools.wraps(function)
    def write(a: Any, /, *args: Any, **kwargs: Any) -> Any:
        if (result := function(a, *args, **kwargs)) is NotImplemented:
            return NotImplemented
        kind, wanted = to_torch_dtype(result.dtype), to_torch_dtype(a.dtype)
        if not torch.can_cast(kind, wanted):
            raise RuntimeError(f"{name}: result type {kind} can't be cast to {wanted}")
        return ltorch.copy_(a, result)

    write.__name__ = name
    return write
