# SPDX-License-Identifier: Apache-2.0
"""Calls of the definition language -> what they mean, in torch. Slots are those of table.py.

`up` makes 16-bit floats float32, in which the language computes, and which its results have.
"""

from __future__ import annotations

import re

from benchmarks.fuzz.program import words

_UNARY = words(
    """abs neg relu sign ceil floor trunc round exp exp2 expm1 log log2 log10 log1p sin cos tan
    asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma sqrt
    rsqrt reciprocal frac sigmoid isfinite isinf isnan isneginf isposinf signbit isreal
    logical_not bitwise_not real imag"""
)
_BINARY = words(
    """add sub mul fmod remainder pow atan2 minimum maximum eq ne lt le gt ge logical_and
    logical_or bitwise_and bitwise_or bitwise_xor nextafter"""
)
_COMPLEX = words(
    """exp log sqrt sin cos tan tanh rsqrt reciprocal abs real imag neg"""
)

# A constant that is defined with a type, in a call -> a tensor of one number of that type. Beside
# tensors it is that number: of its type only the kind counts.
TYPED = {
    "fd.ops.where({b}, <n t>, <n2 t2>)": "torch.where({b}, <n t>, <n2 t2>)",
    "fd.ops.where({b}, {x}, <n t>)": "torch.where({b}, {x}, <n t>.item())",
    "fd.ops.where({b}, <n t>, {x})": "torch.where({b}, <n t>.item(), {x})",
    **{
        f"fd.ops.{name}({{x}}, <n t>)": f"torch.{name}(up({{x}}), <n t>.item())"
        for name in words("add sub mul pow fmod eq lt")
    },
    "fd.ops.truediv(<n t>, {x})": "<n t>.item() / up({x})",
    "fd.ops.clamp({x}, <n t>, <n2 t>)": "torch.clamp(up({x}), <n t>.item(), <n2 t>.item())",
    "fd.ops.mul({x}, fd.ops.add(<n t>, <n2 t2>))": "up({x}) * (up(<n t>) + up(<n2 t2>)).item()",
    "fd.ops.add({x}, <n t> * <n2 t2>)": "up({x}) + (up(<n t>) * up(<n2 t2>)).item()",
    "fd.ops.full([{k}, 3], <n t>, {t2})": "torch.full([{k}, 3], <n t>.item(), dtype={t2})",
    "fd.ops.pad({x}, [1, 2], <n t>)": "torch.nn.functional.pad({x}, [1, 2], value=<n t>.item())",
}


def _with_constants(text: str, made: str) -> str:
    return re.sub(r"<(\w+) (\w+)>", made, text)


MEANINGS = {
    **{
        _with_constants(call, r"fd.define_scalar({\1}, {\2})"):
            _with_constants(meaning, r"torch.tensor({\1}, dtype={\2})")
        for call, meaning in TYPED.items()
    },
    **{f"fd.ops.{name}({{x}})": f"torch.{name}(up({{x}}))" for name in _UNARY},
    **{f"fd.ops.{name}({{c}})": f"torch.{name}({{c}})" for name in _COMPLEX},
    **{f"fd.ops.{name}({{x}}, {{x2}})": f"torch.{name}(up({{x}}), up({{x2}}))" for name in _BINARY},
    **{f"fd.ops.{name}({{x}}, {{n}})": f"torch.{name}(up({{x}}), {{n}})" for name in _BINARY[:5]},
    "fd.ops.truediv({x}, {x2})": "torch.true_divide(up({x}), up({x2}))",
    "fd.ops.div({i}, {i2})": "torch.div({i}, {i2}, rounding_mode='trunc')",
    "fd.ops.where({b}, {x}, {x2})": "torch.where({b}, {x}, {x2})",
    "fd.ops.clamp({x}, {n}, {n2})": "torch.clamp(up({x}), {n}, {n2})",
    "fd.ops.lerp({f}, {f2}, {f3})": "torch.lerp(up({f}), up({f2}), up({f3}))",
    "fd.ops.addcmul({f}, {f2}, {f3})": "torch.addcmul(up({f}), up({f2}), up({f3}))",
    "fd.ops.cast({x}, dtype={t})": "{x}.to({t})",
    "fd.ops.cast({x}, {t})": "{x}.to({t})",
    "fd.ops.cast(fd.ops.cast({f}, {e}), {t})": "{f}.to({e}).to({t})",
    # ---- reductions
    "fd.ops.sum({x}, dims={D}, keepdim={B})": "torch.sum(up({x}), {D}, {B})",
    "fd.ops.sum({x}, {D})": "torch.sum(up({x}), {D})",
    "fd.ops.sum({x}, dims=[{d}], dtype={t})": "torch.sum(up({x}), [{d}], dtype={t})",
    "fd.ops.prod({x}, dims=[{d}], keepdim={B})": "torch.prod(up({x}), {d}, {B})",
    "fd.ops.prod({x}, dims=[{d}], dtype={t})": "torch.prod(up({x}), {d}, dtype={t})",
    "fd.ops.max({x}, {D}, keepdim={B})": "torch.amax({x}, {D}, {B})",
    "fd.ops.min({x}, {D}, keepdim={B})": "torch.amin({x}, {D}, {B})",
    "fd.ops.var({f}, {D}, correction={k})": "torch.var(up({f}), {D}, correction={k})",
    "fd.ops.var({c}, {D}, correction={k})": "torch.var({c}, {D}, correction={k})",
    "fd.ops.var_mean({c}, {D}, 1, {B})[0]":
        "torch.var_mean({c}, {D}, correction=1, keepdim={B})[0]",
    "fd.ops.var_mean({x}, {D})[1]": "torch.var_mean(up({x}), {D})[1]",
    "fd.ops.argmax({x}, {d}, keepdim={B})": "torch.argmax({x}, {d}, {B})",
    "fd.ops.argmin({x}, {d})": "torch.argmin({x}, {d})",
    "fd.ops.cumsum({x}, {d})": "torch.cumsum({x}, {d})",
    "fd.ops.cumprod({x}, {d})": "torch.cumprod({x}, {d})",
    "fd.ops.cummax({x}, {d})": "torch.cummax({x}, {d})[0]",
    # ---- movement
    "fd.ops.set({x})": "{x}.clone()",
    "fd.ops.segment_set({x})": "{x}.clone()",
    "fd.ops.permute({x}, dims=[1, 0])": "{x}.permute([1, 0])",
    "fd.ops.permute({x}, dims=[{d}, {d2}])": "{x}.permute([{d}, {d2}])",
    "fd.ops.flip({x}, dims={D})": "torch.flip({x}, {D})",
    "fd.ops.slice({x}, [{k}], [{k2}])": "{x}[{k}:{k2}]",
    "fd.ops.slice({x}, [0, {k}], [1, {k2}])": "{x}[0:1, {k}:{k2}]",
    "fd.ops.pad({x}, [{k}, {k2}])": "torch.nn.functional.pad({x}, [{k}, {k2}])",
    "fd.ops.pad({x}, [1, 2], {n})": "torch.nn.functional.pad({x}, [1, 2], value={n})",
    "fd.ops.cat([{x}, {x2}], {d})": "torch.cat([{x}, {x2}], {d})",
    "fd.ops.reshape({x}, [-1])": "{x}.reshape([-1])",
    "fd.ops.squeeze({x}, dims=[{d}])": "{x}.squeeze([{d}])",
    "fd.ops.index_select({x}, {l}, {d})": "torch.index_select({x}, {d}, {l})",
    "fd.ops.gather({x}, {l}, {d})": "torch.gather({x}, {d}, {l})",
    "fd.ops.triu({x}, {k})": "torch.triu({x}, {k})",
    "fd.ops.select({x}, {k}, {d})": "torch.select({x}, {d}, {k})",
    "fd.ops.topk({x}, {k}, {d}, {B}, True)[0]": "torch.topk({x}, {k}, {d}, {B}, True)[0]",
    "fd.ops.sort({x}, {d}, {B})[0]": "torch.sort({x}, {d}, {B})[0]",
    # ---- factories
    "fd.ops.full([{k}, 3], {n}, {t})": "torch.full([{k}, 3], {n}, dtype={t})",
    "fd.ops.iota({k}, {k2}, {k3}, DataType.Int)": "{k2} + {k3} * torch.arange({k})",
}
