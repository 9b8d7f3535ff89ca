# SPDX-License-Identifier: Apache-2.0
"""How far a result may lie from eager torch's: the one place where documented differences stand.

An integer, a bool, and what only exact operations made, must be equal. Anything else is held
against several runs in torch: eager's own; eager with every inexact result shaken by a few units in
its last place, which tells how far a program carries an error; and a run in double. A result must
have the class (NaN, inf, -inf, finite) of one of them, and lie between them or near.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.fuzz.leeway import (
    NOISE,
    UNDEFINED,
    WEAK,
    is_inexact,
    loses_spread,
    otherwise,
    reason_of,
)
from benchmarks.fuzz.program import words

ULPS = {torch.float16: 4, torch.bfloat16: 4}  # of the result; 16 for the other types
SHAKEN_ULPS = 4  # the C library's vector functions promise 4
SHAKES = 6

# What computes nothing, or rounds once, or whose result is a number of the type by nature.
EXACT = set(words(
    """abs neg sign sgn floor ceil trunc round relu where maximum minimum fmax fmin clamp
    clamp_min clamp_max amax amin max min flip roll cat stack constant_pad_nd index_select
    gather fill full zeros ones scalar_tensor lift_fresh lift_fresh_copy clone copy_ copy
    detach alias view reshape _unsafe_view permute transpose t expand squeeze unsqueeze
    slice select as_strided repeat tile real imag view_as_real view_as_complex _conj
    _neg_view resolve_conj resolve_neg conj_physical copysign nan_to_num masked_fill
    threshold hardtanh sort topk cummax cummin tril triu arange full_like zeros_like
    ones_like new_zeros new_full new_ones empty empty_like empty_strided new_empty
    new_empty_strided zero_ fill_ neg_ clamp_ relu_ floor_ ceil_ trunc_ round_ abs_
    nextafter contiguous _reshape_alias unbind split split_with_sizes diagonal unfold zero
    threshold_backward masked_fill_ complex frac fmod positive _local_scalar_dense
    select_backward slice_backward diagonal_backward _cummax_helper _cummin_helper polar_"""
))

# What they make of integers and a Python float is weak in Thunder, and its own tests hold that
# (test_core.py: 2.0 - i64 + f16 and i64 + 3.0 + f16 are f16). Other floats of integers are torch's.
KEEP_INTEGERS = set(words(
    "add sub rsub mul pow remainder fmod floor_divide where clamp clamp_min clamp_max"
))  # fmt: skip

# Their error grows with the operands, not with the result.
REDUCING = set(words(
    """sum mean var var_mean std norm linalg_vector_norm cumsum cumprod prod _softmax _safe_softmax
    _log_softmax logsumexp native_layer_norm mm dot addmm bmm _softmax_backward_data
    std_mean cumsum_ _log_softmax_backward_data native_layer_norm_backward mse_loss nansum
    logcumsumexp _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_efficient_attention
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_backward"""
))

# The logarithm of a sum of about 1, of which a unit in the last place is all that the result is.
LOGARITHMS = set(words("_log_softmax logsumexp logcumsumexp"))

# Words in a program for which the run in double may lend its class, and why.
DOUBLE_CLASSES = {
    "remainder": "exact, where torch's float32 gives NaN for far operands",
    "fmod": "exact, where torch's float32 gives NaN for far operands",
    "%": "is remainder",
    "//": "is made of fmod",
    "floor": "floor_divide is made of fmod",
    "sum": "sums of float32 run in float64 on the CPU, so they overflow later",
    "mean": "is a sum",
    "var": "is a sum",
    "std": "is a sum",
    "norm": "is a sum",
    "prod": "products of float32 run in float64 on the CPU",
    "cumprod": "products of float32 run in float64 on the CPU",
    "mse_loss": "is a sum",
    "complex": "functions of complex numbers are computed in double",
    "expand": "its gradient is a sum",
}

# Words in a program whose complex results may differ where torch has NaN or inf, and why.
TORCH_IS_NAN = {
    "add": "torch adds alpha * other, and 1 times (0, inf) is (NaN, inf)",
    "sub": "torch subtracts alpha * other",
    " + ": "is add",
    " - ": "is sub",
    "prod": "torch begins with 1 times the first; the order decides between NaN and inf",
    "sum": "the gradient of broadcasting, and lerp, add",
}

# Words in a program whose result is exact where all runs of torch, also in double, have NaN: the
# operands are too far apart for its quotient.
EXACT_WHERE_NAN = ("fmod", "remainder", "%", "//", "floor_divide")

# Words in torch's errors that need not be ours, and why.
REFUSED_BY_TORCH_ALONE = {
    "modified by an inplace operation": "what a backward needs of it is copied before",
    "must be Tensor, not": "Thunder takes numbers there",
    "must be float, not complex": "F.pad's number, of which a bool is made",
    "where() received an invalid combination": "Thunder takes True for a condition",
    "view size is not compatible": "Thunder has no strides, and our results are row-major",
    "Boolean inputs not supported for relu": "inductor takes them, beside the fuser",
    "cannot be converted to type int64_t": "Thunder takes integers of any size",
    "int too big to convert": "the same",
    "Autograd not support dtype": "torch's sum of floats as integers requires a gradient",
    "cannot be converted to type c10::": "a number beyond a 16-bit float is infinite there",
    "Subtraction, the `-` operator, with a bool": "torch's gradient of a power of bools",
    "Negation, the `-` operator, on a bool": "torch's gradient of atan2 of bools",
    "INTERNAL ASSERT FAILED": "an assertion inside of torch",
    "leaf Variable that requires grad is being used in an in": "Thunder takes such writes",
    "ZeroDivisionError": "a definition's kernel has no errors: integers by 0 are 0, as on a GPU",
    '" not implemented for': "a kernel that torch happens to lack",
    "doesn't match the broadcast shape": "torch.clamp with a tensor twice does not broadcast it",
    "If so, please report an enhancement": "an assertion inside of torch",
    "can't be cast to the desired output type": "Thunder takes such writes in place",
    "is not implemented": "a derivative that torch happens to lack",
    "does not support automatic differentiation": "the same",
    "for `weight` but got dtype": "Thunder's lerp computes in the wider type",
    "for `end` but got dtype": "the same",
    "torch.sign is not intended to support complex": "Thunder's is sgn",
    "refer to a single memory location": "Thunder reads all operands before it writes",
    "Boolean alpha only supported": "Thunder takes True for 1",
    "last dimension must be contiguous": "a mask of attention that torch's kernel does not copy",
    "is not correctly aligned": "the same",
    "no kernel found to launch": "the same",
    "in range of [-1, 0], but got -2": "a mask of attention with one axis, for some kernels",
}

# Words in errors of ours, or the places that raise them, that need not be torch's, and why.
REFUSED_BY_US_ALONE = {
    "SourcelessBuilder.create does not know": "torchcompile's Dynamo does not read Thunder's"
    " gradients of functions for which it calls torch",
    "no kernel found to launch": "torch chooses among kernels for a mask of bools as for no other",
    "Expected one broadcast dimension": "Thunder's gradient of a sum over (), torch's word for all"
    " axes; plain Thunder may refuse a write before it",
    "OutOfRangeError": "wrong indices raise, where some of torch's kernels read on",
    "a tensor of indices holds": "the same, in the emulator",
    "InPlaceError": "writes that Thunder 0.2.6 would lose, and that are not followed, are refused",
    "torch_autograd.py:backward": "Thunder moves a write into a view of what has no gradient to"
    " the backward; where the write changes nothing, plain Thunder happens to be right",
    "is a view and": "autograd refuses to write a view that a Function"
    " returns; a result may be one of memory that nothing else has",
}

# Words in a program for which writing a result before the backward may be refused by us alone.
SAVES_RESULT = {
    "scaled_dot_product_attention": "torch's flash kernels read it in the backward, its others not",
}

# torch refuses a view with other sizes of what is not row-major. Ours may have another order than
# torch's: a region's results have that of its operands.
LIES_OTHERWISE = "view size is not compatible"
ORDERED_OTHERWISE = {
    "scaled_dot_product_attention": "each of torch's kernels leaves it in an order of its own",
    "softmax(": "torch's is row-major, whatever its operand",
    "logsigmoid(": "the same, on a CPU",
}

# 16-bit floats are computed in float32 and rounded where a region ends: runs with these in their
# place are held against, too.
WIDER = {"float16": "float32", "bfloat16": "float32"}
DOUBLE = {**WIDER, "float16": "float64", "bfloat16": "float64", "float32": "float64"}


class Shaken(TorchDispatchMode):
    """Moves each inexact result by a few units in its last place, and notes what is left open.

    With an odd seed, calls give what other kernels of torch would; see leeway.py. The last two
    seeds move every element the same way, to both sides of where a remainder steps. epsilon: how
    far, relative to a result; 0 only notes.
    """

    def __init__(self, seed: int, epsilon: float | None = None) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.is_other = bool(seed % 2)
        self.way = {SHAKES - 2: 1.0, SHAKES - 1: -1.0}.get(seed)
        self.epsilon = epsilon
        self.count = 0
        self.open = ""
        self.weak: list[torch.Tensor] = []  # floats made of integers and a Python float

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        terms, given, dtype = 1, args, (kwargs or {}).get("dtype")
        reduces = name.rstrip("_") in REDUCING or name in REDUCING
        if reduces:
            args = tuple(self._operand(one, dtype) for one in args)
            terms = max(one.numel() for one in args if isinstance(one, torch.Tensor))
        out = otherwise(name, args, kwargs) if self.is_other else None
        if out is None:
            out = func(*args, **(kwargs or {}))
        casts = name in ("_to_copy", "copy_") or (reduces and dtype is not None)
        if casts and _is_undefined(given[name == "copy_"], out):
            self.open = UNDEFINED
        self.open = self.open or self._meets_weak(name, given, out) or reason_of(name, given, out)
        if self.epsilon == 0.0 and loses_spread(name, given, out):
            self.open = self.open or NOISE
        if name in EXACT or (name == "_to_copy" and not _rounds(args[0], out)):
            return out
        for one in out if isinstance(out, (tuple, list)) else (out,):
            self._shaken(one, terms, least=_least(name, args))
        return out

    def _meets_weak(self, name: str, args: tuple[Any, ...], out: Any) -> str:
        """Why the type is open where a weak float meets 16 bits; notes the weak ones."""
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        if not tensors or not isinstance(out, torch.Tensor) or out.dtype is not torch.float32:
            return ""
        weak = [any(one is other for other in self.weak) for one in tensors]
        if any(weak) and any(one.dtype.itemsize == 2 and is_inexact(one) for one in tensors):
            return WEAK
        begins = name in KEEP_INTEGERS and any(isinstance(one, float) for one in args)
        exact = [_is_exact(one) for one in tensors]
        if all(map(operator.or_, weak, exact)) and (begins or any(weak)):
            self.weak.append(out)
        return ""

    def _operand(self, one: Any, dtype: torch.dtype | None) -> Any:
        """Moved. Integers that are summed as floats are floats, which an order of terms rounds."""
        floats = dtype is not None and (dtype.is_floating_point or dtype.is_complex)
        if isinstance(one, torch.Tensor) and floats:
            one = one.to(dtype)
        return self._shaken(one.clone()) if is_inexact(one) else one

    def _shaken(self, out: Any, terms: int = 1, least: float | torch.Tensor = 0.0) -> Any:
        """Moved in place: by more, where the order of so many terms makes a difference, and as if
        no number were smaller than the least."""
        if not is_inexact(out) or not out.numel():
            return out
        self.count += 1
        usual = torch.finfo(out.dtype).eps * SHAKEN_ULPS
        epsilon = usual if self.epsilon is None else self.epsilon
        epsilon *= max(terms, 1) ** 0.5
        wide = out.detach().to(torch.complex128 if out.is_complex() else torch.float64).clone()
        parts = torch.view_as_real(wide) if out.is_complex() else wide
        size = wide.abs().clamp(min=least)
        size = size.unsqueeze(-1) if out.is_complex() else size
        drawn = torch.rand(parts.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        drawn = drawn if self.way is None else torch.full_like(drawn, self.way)
        moved = parts + size * drawn.to(parts.device) * epsilon
        parts.copy_(torch.where(torch.isfinite(size), moved, parts))
        return out.copy_(wide.to(out.dtype))


def _least(name: str, args: tuple[Any, ...]) -> float | torch.Tensor:
    """What a result's last step rounds, where its own size says too little: of gelu the half of x
    times 1 + erf, which is nearly 0."""
    if name == "gelu":
        return args[0].detach().abs().double() / 2
    return float(name in LOGARITHMS)


def _is_undefined(source: Any, out: torch.Tensor) -> bool:
    """Whether a cast from floats to integers meets a number that the integers do not have."""
    exact = _is_exact(out) and out.dtype is not torch.bool
    is_cast = isinstance(source, torch.Tensor) and not _is_exact(source)
    if not exact or not is_cast or not source.numel():
        return False
    parts, facts = parts_of(source).trunc(), torch.iinfo(out.dtype)
    return not bool(((parts >= facts.min) & (parts < facts.max + 1.0)).all())


def _rounds(source: Any, out: Any) -> bool:
    return (is_inexact(out) and out.dtype in (torch.float16, torch.bfloat16)) or (
        isinstance(source, torch.Tensor) and is_inexact(source) and out.dtype != source.dtype
    )


def _is_exact(value: torch.Tensor) -> bool:
    return not value.is_floating_point() and not value.is_complex()


def wrong(
    ours: torch.Tensor, eager: torch.Tensor, samples: Sequence[torch.Tensor],
    double: torch.Tensor | None = None, *, words_in: str = "", is_exact: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Where a result is none that it may be, over its elements, or their two parts.

    words_in: the statements of the program
    """
    runs = [one.to(eager.dtype) for one in (eager, *samples) if one.shape == eager.shape]
    may_be_exact = any(word in words_in for word in EXACT_WHERE_NAN)
    if not is_inexact(eager):
        bad = _differs_from_settled(ours, runs)
        is_nan = torch.stack([one.float().isnan() for one in runs]).all(0)
        return bad & ~is_nan if may_be_exact else bad
    if is_exact:
        return ~_same(parts_of(ours), parts_of(eager))
    parts, seen = parts_of(ours), torch.stack([parts_of(one) for one in runs])
    is_nan = seen.isnan().all(0)
    if double is not None and double.shape == eager.shape:
        lent = parts_of(double.to(eager.dtype))
        if not _has_any(words_in, DOUBLE_CLASSES):
            lent = torch.where(_class(lent) == _class(seen[0]), lent, seen[0])
        seen = torch.cat([seen, lent.unsqueeze(0)])
    size = _size(torch.stack(runs))
    if "scaled_dot_product_attention" in words_in:  # sums of terms that cancel, in one call
        size = size.amax()
    bad = ~_near(parts, seen, size, eager.dtype)
    if eager.is_complex() and _has_any(words_in, TORCH_IS_NAN):
        bad &= ~seen.isnan().any(0) & ~(seen.isinf().any(0) & parts.isnan())
    if may_be_exact:
        bad &= ~(is_nan & parts.isfinite())
    return bad


def _differs_from_settled(ours: torch.Tensor, runs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Where all runs have one integer, bool or 8-bit float, and ours is another."""
    is_narrow = runs[0].is_floating_point()  # torch compares no 8-bit floats
    ours, first, *shaken = (one.float() if is_narrow else one for one in (ours, *runs))
    settled = torch.ones_like(first, dtype=torch.bool)
    for one in shaken:
        settled &= _same(one, first)
    return settled & ~_same(ours, first)


def _has_any(words_in: str, table: dict[str, str]) -> bool:
    return any(word in words_in for word in table)


def _near(
    ours: torch.Tensor, seen: torch.Tensor, size: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    has_class = (_class(seen) == _class(ours)).any(0)
    finite = torch.isfinite(seen)
    low = torch.where(finite, seen, torch.inf).amin(0)
    high = torch.where(finite, seen, -torch.inf).amax(0)
    facts = torch.finfo(dtype)
    has_pole = (low < -(facts.eps**-0.5)) & (high > facts.eps**-0.5)  # no run meets it exactly
    has_pole &= seen.abs().amax(0) > 2 * seen.abs().amin(0)
    slack = 2 * (high - low) + ULPS.get(dtype, 16) * facts.eps * size + facts.tiny
    within = (ours >= low - slack) | (seen == -torch.inf).any(0)
    within &= (ours <= high + slack) | (seen == torch.inf).any(0)  # near a pole
    return (has_class | (has_pole & ours.isinf())) & (within | ~torch.isfinite(ours))


def _same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Equal, or both NaN."""
    return torch.isclose(a, b, rtol=0, atol=0, equal_nan=True)


def parts_of(one: torch.Tensor) -> torch.Tensor:
    if one.is_complex():
        return torch.view_as_real(one.to(torch.complex128).resolve_conj())
    return one.to(torch.float64)


def _size(alike: torch.Tensor) -> torch.Tensor:
    """The largest magnitude among the finite samples, and among finite parts of complex ones."""
    if not alike.is_complex():
        wide = alike.to(torch.float64).abs()
        return torch.where(torch.isfinite(wide), wide, 0).amax(0)
    parts = torch.view_as_real(alike.to(torch.complex128).resolve_conj())
    return torch.where(torch.isfinite(parts), parts, 0).norm(dim=-1).amax(0).unsqueeze(-1)


def _class(one: torch.Tensor) -> torch.Tensor:
    return one.isnan() * 3 + one.isposinf() * 1 + one.isneginf() * 2
