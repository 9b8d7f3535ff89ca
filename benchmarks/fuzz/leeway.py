# SPDX-License-Identifier: Apache-2.0
"""Calls of torch whose operands let several results be right: read off each call of a run.

OTHERWISE computes a call as torch's other kernels do (its scalar path beside its vectorised one);
reason_of says why a result may be anything, so that the program is set aside.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.fuzz.program import Program, words

DIVISIONS = set(words("div div_ floor_divide floor_divide_ fmod fmod_ remainder remainder_"))
PRODUCTS = set(words("prod cumprod"))
SUMS = set(words("sum mean cumsum nansum"))
MEANS = set(words("var_mean std_mean"))
SPREADS = set(words("var std var_mean std_mean"))
SQUARES = set(words(
    """var std var_mean std_mean native_layer_norm native_layer_norm_backward norm
    linalg_vector_norm mse_loss"""
))  # fmt: skip
FACTORED = set(words("mul mul_ square div div_"))
COMPLEX_PRODUCTS = set(words("mul mul_ div div_ reciprocal rsqrt pow pow_ addcmul sigmoid"))
LOSSES = set(words("mse_loss huber_loss smooth_l1_loss"))
# torch multiplies what it adds by alpha, by 1 too.
COMPLEX_SUMS = set(words("add add_ sub sub_ rsub"))
COMPLEX_FUNCTIONS = set(words(
    "exp log sqrt sin cos tan tanh sinh cosh asin acos atan log2 log10 log1p exp_ sigmoid_"
))  # fmt: skip

BY_ZERO = "an integer is divided by 0, which CUDA leaves open"
UNDEFINED = "a float that an integer type does not hold is cast, which C and torch leave open"
PRODUCT = "the order of a product decides where it overflows, or meets a complex infinity"
SUM = "the order of a sum decides where it overflows; 16-bit floats are summed in float32"
COMPLEX_SUM = "torch divides and adds complex infinities as pairs, with NaN for a part"
SPREAD = "squares overflow or are lost, or a mean is moved towards infinities by steps, and NaN"
NOISE = "values, or their mean, vary by less than a mean of 32 or 64 bits is rounded"
COMPLEX = "C leaves open what the parts of a complex infinity give; thrust has other rules"
WEAK = "the sum of integers and a Python float is weak in Thunder, and gives way to 16 bits"
MIXED = "torch's losses choose a type of their own between two, and give a number the other's shape"
GRADIENT = "an intermediate of torch's gradient overflows"
SIGNS = "torch's gradient of copysign divides an infinity by itself"
GELU = "gelu's gradient is a sum of products, and one of them is of an infinity and 0"
ALONE = "the variance of one element is NaN: where only the mean is read, 0 times it may be too"
POLE = "digamma is infinite at 0, by the sign of the zero, which is another in one-step lerp"
SCORES = "attention's gradient has scores that are rounded at the size of a large mask"
DIVIDED = "torch's gradient of a product divides by its factors where none of all rows is 0"
TWO_ZEROS = "torch's gradient of a product of all elements is 0 beside two zeros, whatever others"
MASKED = "torch's gradient of nan_to_num is NaN where it multiplies an infinity by 0"
WHOLE = "the power of a negative number is NaN unless the exponent is whole, and it nearly is"
LARGE = "a large exponent magnifies the last digit of its base"
LEAST = "gelu of the least number of half is half of it, which rounds to it or to 0"
NEGATIVE = "torch.compile writes an argument that is a negative view with the wrong sign"
BEYOND = "an integer beyond half is infinite there, and is not in float32"
ZERO_PART = "torch makes no negative zero of a part of a complex number, unless it is read alone"
HARDSWISH = "torch's gradient of hardswish at NaN is that of its result"
ZEROTH = "Thunder's gradient of a complex 0 ** 0 is NaN, with any executor"
INVERSE = "torch multiplies by the inverse of a divisor, which is infinite"
EQUAL_BOUNDS = "torch's gradient of clamp is lost between equal bounds that are above the value"

OF_TYPES = (WEAK, MIXED)  # they leave a result's type open too

PARTS = r"\breal\b|\bimag\b|view_as_real"

# Statements whose results may be anything, and why.
STATEMENTS = {
    r"\*\* False|pow_?\([^()]*False\)": "torch's gradient of x ** False is 0 * x ** -1",
    r"pad\(.*value=-?(2\*\*|10\*\*|n\b)": "F.pad's number is a double",  # n: an argument
}


# Functions whose gradient is 0, that of attention in hidden rows. torch multiplies it by infinite
# derivatives, or infinite gradients by it, which gives NaN.
STEPS = set(words("""floor floor_ ceil ceil_ round round_ trunc trunc_ sign sgn frac
    scaled_dot_product_attention"""))  # fmt: skip


def has_step(body: str) -> bool:
    """Whether one of the functions with a gradient of 0 is called."""
    return not STEPS.isdisjoint(re.findall(r"\w+(?=\()", body))


def has_rounded_quotient(body: str) -> bool:
    """Whether a quotient is rounded. Its gradient is 0, by which Thunder multiplies the quotient's,
    and torch does not."""
    return bool(re.search(r"rounding_mode=|floor_divide|//", body))


def reason_in(body: str, program: Program) -> str:
    """Why the statements of a program may give anything."""
    is_negative = "torch._neg_view(" in program.text or ".conj().imag" in program.text
    if "torch._neg_view(made(torch.complex" in program.text and re.search(PARTS, body):
        return ZERO_PART
    if "'torchcompile'" in program.executors and is_negative:
        return NEGATIVE
    return next((why for row, why in STATEMENTS.items() if re.search(row, body)), "")


def reason_of(name: str, args: tuple[Any, ...], out: Any) -> str:
    """Why a call may give anything; "" if it may not."""
    tensors = [one for one in args if isinstance(one, torch.Tensor) and one.numel()]
    of_all, out = out, out[0] if isinstance(out, (tuple, list)) and out else out
    if not tensors or not isinstance(out, torch.Tensor):
        return ""
    if not is_inexact(out):
        by_zero = name in DIVISIONS and out.is_cuda and _has_zero(args[1])
        return BY_ZERO if by_zero else ""
    first = tensors[0]
    if name in LOSSES and first.dtype is not tensors[1].dtype:
        return MIXED
    if name in ("var_mean", "std_mean") and _is_finite(first) and bool(out.isnan().any()):
        return ALONE
    if name in ("var_mean", "std_mean") and _cancels(first, of_all[1]):
        return NOISE
    if name == "_safe_softmax" and 1024 < _sizes(first).nan_to_num(0, 0).max():
        return SCORES  # a kernel of attention's gradient takes exp(score - logsumexp) for it
    if name == "gelu_backward" and not _is_finite(first):
        return GELU
    if name == "hardswish_backward" and bool(tensors[1].isnan().any()):
        return HARDSWISH
    if out.dtype is torch.float16 and any(map(_is_beyond_half, tensors)):
        return BEYOND
    if name == "gelu" and first.dtype is torch.float16 and _has_least(first):
        return LEAST
    if name == "reciprocal" and not out.is_complex() and bool((out.isinf() & (first != 0)).any()):
        return INVERSE
    if name == "digamma" and bool((first == 0).any()):
        return POLE
    if name in ("pow", "pow_") and _is_nearly_whole(*args[:2]):
        return WHOLE
    if name in ("pow", "pow_") and out.is_complex() and _is_zeroth(*args[:2]):
        return ZEROTH
    if name in ("pow", "pow_") and _magnifies(args[1], out):
        return LARGE
    if name == "copysign" and not _is_finite(first):
        return SIGNS
    if name == "clamp" and len(tensors) == 3:
        least, most = tensors[1:]
        if ((first < least) & (least == most)).any():
            return EQUAL_BOUNDS
    if name in PRODUCTS:
        return _reason_of_product(first.to(out.dtype), args[1:2], out)
    if name in SUMS | MEANS and first.is_complex() and not _is_finite(first):
        return COMPLEX_SUM
    if name in SUMS | MEANS and _total(_sizes(first)) > torch.finfo(out.dtype).max:
        return SUM
    if name in MEANS and not _is_finite(first):
        return SPREAD
    if name in SQUARES and _loses_squares(_sizes(first), out):
        return SPREAD
    if out.is_complex() and not all(map(_is_finite, (*tensors, out))):
        return _reason_of_complex(name, tensors)
    is_backward = torch._C._current_graph_task_id() != -1
    if is_backward and name == "mul" and len(tensors) == 2 and tensors[1].dtype is torch.bool:
        return MASKED if bool((~first.isfinite() & ~tensors[1]).any()) else ""
    return GRADIENT if is_backward and name in FACTORED and _overflows(name, args, out) else ""


def _is_nearly_whole(base: Any, exponent: Any) -> bool:
    """Whether an exponent of a negative number may be whole where its last digits are others."""
    is_real = not torch.as_tensor(base).is_complex()
    if not (is_real and isinstance(exponent, torch.Tensor) and exponent.is_floating_point()):
        return False
    past = (exponent - exponent.round()).abs()
    near = (past > 0) & (past <= 8 * torch.finfo(exponent.dtype).eps * exponent.abs())
    return bool((near & (torch.as_tensor(base) < 0)).any())


def _is_beyond_half(x: torch.Tensor) -> bool:
    is_integer = not is_inexact(x) and x.dtype.itemsize > 1
    return is_integer and bool((x.double().abs() > torch.finfo(torch.float16).max).any())


def _has_least(x: torch.Tensor) -> bool:
    least = torch.finfo(torch.float16).smallest_normal * 2.0**-10
    return bool((x.abs() == least).any())


def _is_zeroth(base: Any, exponent: Any) -> bool:
    """Of a call in place the base is the result by now."""
    is_zeroth = not isinstance(exponent, torch.Tensor) and exponent == 0
    return is_zeroth and bool(((base == 0) | (base == 1)).any())


def _magnifies(exponent: Any, power: torch.Tensor) -> bool:
    """Whether an exponent is so large that the last digit of the base decides about the power."""
    number = exponent if isinstance(exponent, torch.Tensor) else torch.tensor(1.0 * exponent)
    is_large = number.abs() * torch.finfo(power.dtype).eps >= 1
    return bool((is_large & power.isfinite() & (power != 0)).any())


def _cancels(x: torch.Tensor, mean: torch.Tensor) -> bool:
    """Whether a mean is not 0, but may be where the values are added in another order."""
    parts = torch.view_as_real(mean.resolve_conj()) if mean.is_complex() else mean
    noise = torch.finfo(mean.dtype).eps * 8 * float(_sizes(x).nan_to_num(0.0, 0.0).max())
    return bool(((parts != 0) & (parts.abs() < noise)).any())


def _overflows(name: str, args: tuple[Any, ...], out: torch.Tensor) -> bool:
    """Whether a product or a quotient of finite numbers is infinite.

    A kernel that adds to it in one step does not round it, so it is not infinite there. Of a
    call in place the first operand is the result by now; it is taken for finite.
    """
    tensors = [one for one in args[name.endswith("_") :] if isinstance(one, torch.Tensor)]
    finite = torch.ones_like(out, dtype=torch.bool)
    for one in tensors:
        finite = finite & one.isfinite()
    is_of_zero = name.startswith("div") and args[1] == 0
    return bool((out.isinf() & finite & ~torch.as_tensor(is_of_zero, device=out.device)).any())


def _reason_of_product(x: torch.Tensor, dims: tuple[Any, ...], out: torch.Tensor) -> str:
    """Whether a product of some of the factors may overflow, or lose digits, or be 0."""
    if x.is_complex() and not (_is_finite(x) and _is_finite(out)):
        return PRODUCT
    if not dims and (x == 0).sum() > 1 and not _is_finite(x):
        return TWO_ZEROS
    if dims and x.requires_grad and (x == 0).any() and not _is_finite(x):
        return DIVIDED
    sizes = _sizes(x)
    logs = torch.where((sizes > 0) & sizes.isfinite(), sizes, 1.0).log2()
    dim = dims[0] if dims and x.ndim else None
    facts = torch.finfo(out.dtype)
    narrow = torch.finfo(torch.float32) if facts.bits < 64 else facts
    most, least = (part.sum(dim).abs().max() for part in (logs.clamp(min=0), logs.clamp(max=0)))
    top = torch.tensor(facts.max, dtype=torch.float64).log2()
    bottom = torch.tensor(narrow.tiny, dtype=torch.float64).log2()
    return PRODUCT if most >= top or -least <= bottom else ""


def _reason_of_complex(name: str, tensors: list[torch.Tensor]) -> str:
    if name in COMPLEX_PRODUCTS:
        return COMPLEX
    if name in COMPLEX_SUMS:
        return COMPLEX_SUM
    if name not in COMPLEX_FUNCTIONS:
        return ""
    parts = torch.view_as_real(tensors[0].resolve_conj())
    both = ~parts.isfinite().any(-1)
    return COMPLEX if both.any() or tensors[0].is_cuda else ""


def _sizes(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64).abs()


def _loses_squares(sizes: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether a sum of squares overflows, or is lost below the smallest normal number.

    Also whether one of them is, where a result is infinite or NaN: it may be all of a sum that is
    divided by 0.
    """
    facts = torch.finfo(out.dtype)
    smallest = facts.tiny if facts.bits == 64 else torch.finfo(torch.float32).tiny
    total, lost = _total(sizes, 2), (0 < sizes) & (sizes**2 < smallest)
    is_lost = 0 < total < smallest or (bool(lost.any()) and not _is_finite(out))
    return total > facts.max or is_lost


def loses_spread(name: str, args: tuple[Any, ...], out: Any) -> bool:
    """Whether a variance is below what the rounding of the mean adds, in two passes over x.

    A mean of n values is off by some units in its last place where their sum is not exact. The
    values' distances from it are squared, so they all have its square. torch's sums by Welford
    begin with a value and add differences, which are 0 for equal values. Sums of 16-bit floats are
    exact, so they vary by 0 here as well.
    """
    if name not in SPREADS:
        return False
    x, out = args[0], out[0] if isinstance(out, tuple) else out
    if not is_inexact(x) or not x.numel() or not out.numel() or out.dtype.itemsize == 2:
        return False
    noise = torch.finfo(out.dtype).eps * 8 * float(_sizes(x).nan_to_num(0.0, 0.0).max())
    spread = _sizes(out) if name.startswith("std") else _sizes(out).sqrt()
    return bool((spread < noise).any())


def _total(sizes: torch.Tensor, power: int = 1) -> float:
    """Of the finite ones; what is infinite overflows nowhere."""
    return float((sizes[sizes.isfinite()] ** power).sum())


def _has_zero(divisor: Any) -> bool:
    return bool((divisor == 0).any()) if isinstance(divisor, torch.Tensor) else divisor == 0


def _is_finite(x: torch.Tensor) -> bool:
    return bool((x.float() if x.dtype.itemsize == 1 else x).isfinite().all())


def is_inexact(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (
        (value.is_floating_point() and value.dtype.itemsize > 1) or value.is_complex()
    )


# ---- as torch's other kernels compute it


def _gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Vectorised kernels make NaN of infinity; scalar ones, which do the last elements, do not.

    Where 1 + tanh or 1 + erf loses all digits, a result with digits is right too.
    """
    wide = x.double()
    if approximate == "tanh":
        inner = (wide + 0.044715 * wide**3) * (2 / torch.pi) ** 0.5
        return (wide * (2 * inner).sigmoid()).to(x.dtype)
    return (wide * 0.5 * (-wide * 0.5**0.5).erfc()).to(x.dtype)


def _pow(x: Any, exponent: Any) -> Any:
    """A number is one of the type of the result; torch takes 1e-310 for no 0 beside float32."""
    kind = torch.result_type(x, exponent)
    if not kind.is_floating_point:
        return None
    return torch.pow(*(
        one if isinstance(one, torch.Tensor) else torch.tensor(float(one), dtype=kind).item()
        for one in (x, exponent)
    ))  # fmt: skip


def _sub(x: Any, other: Any, alpha: Any = 1) -> Any:
    """As for add; and torch negates the number as an int64, in which -2**63 is its own negative."""
    if alpha == -(2**63):
        return x - other * float(alpha)
    return _add(x, other, -alpha) if alpha != 1 else None


def _signbit(x: torch.Tensor) -> torch.Tensor:
    """The sign of NaN is that of the instruction that made it."""
    return torch.where(x.isnan(), ~x.signbit(), x.signbit())


def _copysign(x: Any, sign: Any) -> Any:
    if not isinstance(sign, torch.Tensor) or not sign.is_floating_point():
        return None
    return torch.copysign(x, torch.where(sign.isnan(), -sign, sign))


def _neg(x: torch.Tensor) -> Any:
    """Vectorised kernels subtract complex numbers from 0, others change the sign of a zero too."""
    if not x.is_complex():
        return None
    parts = torch.view_as_real(x.neg().resolve_conj().resolve_neg().clone())
    return torch.view_as_complex(torch.where(parts == 0, -parts, parts))


def _hardsigmoid(x: torch.Tensor) -> torch.Tensor:
    """CUDA's kernels have float constants beside doubles."""
    return (x + 3).clamp(0, 6) / 6


def _relu(x: torch.Tensor) -> Any:
    """CUDA's kernel makes 0.0 of -0.0, the CPU's keeps it: here the other sign of a zero."""
    if not x.is_floating_point():
        return None
    result = x.relu()
    return torch.where(x == 0, -result, result)


def _elu(x: torch.Tensor, alpha: float = 1.0, scale: float = 1.0, within: float = 1.0) -> Any:
    """CUDA's kernel takes 0 for one of the negative numbers, the CPU's does not: beside an infinite
    alpha they give NaN and 0."""
    of_zero = x * scale if x.is_cuda else x * (alpha * scale)
    return torch.where(x == 0, of_zero, torch.ops.aten.elu(x, alpha, scale, within))


def _clamp(x: Any, *bounds: Any, **named: Any) -> Any:
    """The other sign of a zero: max(-0.0, 0.0) may be either."""
    result = torch.ops.aten.clamp(x, *bounds, **named)
    return torch.where(result == 0, -result, result) if result.is_floating_point() else None


def _addcmul(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, value: Any = 1) -> torch.Tensor:
    """torch's vectorised kernel multiplies and adds in one step, where no product overflows."""
    return x + a * b * value


def _add(x: Any, other: Any, alpha: Any = 1) -> Any:
    """torch's vectorised kernel multiplies and adds in one step, where no product overflows."""
    is_inexact_sum = isinstance(x, torch.Tensor) and is_inexact(x) and alpha != 1
    return x + other * alpha if is_inexact_sum else None


def _addcdiv(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, value: Any = 1) -> torch.Tensor:
    """torch's kernel for a CPU multiplies first, and may overflow; that for a GPU divides first."""
    return x + value * (a / b)


def _div(x: Any, other: Any, *, rounding_mode: Any = None) -> Any:
    """CUDA's kernel multiplies by the inverse of a number, which may be infinite."""
    is_number = isinstance(other, (int, float)) and other != 0 and rounding_mode is None
    is_divided = isinstance(x, torch.Tensor) and x.is_floating_point() and is_number
    return x * (1.0 / other) if is_divided else None


def _threshold(x: torch.Tensor, threshold: Any, value: Any) -> Any:
    """CUDA's kernel has numbers of the type of x; the CPU's has floats beside 16 bits."""
    if not x.is_floating_point():
        return None
    limit, other = torch.tensor([threshold, value], dtype=torch.float64).to(x).unbind()
    return torch.where(x <= limit, other, x)


def _erf(x: torch.Tensor) -> Any:
    """torch's vectorised kernel makes 0 of the least number of half, whose erf rounds to itself."""
    is_short = x.dtype in (torch.float16, torch.bfloat16)
    return torch.erf(x.double()).to(x.dtype) if is_short else None


OTHERWISE: dict[str, Callable[..., Any]] = {
    "add": _add,
    "addcdiv": _addcdiv,
    "addcmul": _addcmul,
    "clamp": _clamp,
    "div": _div,
    "erf": _erf,
    "gelu": _gelu,
    "pow": _pow,
    "sub": _sub,
    "threshold": _threshold,
    "signbit": _signbit,
    "copysign": _copysign,
    "neg": _neg,
    "relu": _relu,
    "hardsigmoid": _hardsigmoid,
    "elu": _elu,
    "hardswish": lambda x: x * _hardsigmoid(x),
}


def otherwise(name: str, args: tuple[Any, ...], kwargs: Any) -> Any:
    """The result of other kernels; None if they have the same. Written to what a call writes to."""
    other = OTHERWISE.get(name.rstrip("_"))
    result = None if other is None else other(*args, **(kwargs or {}))
    if result is not None and name.endswith("_"):
        return args[0].copy_(result)
    return result
