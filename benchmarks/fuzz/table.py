# SPDX-License-Identifier: Apache-2.0
"""The statements that programs are made of, and the numbers they are about.

A slot's first letter says what goes there: x any tensor, f floats, c complex, i integers, b bools,
l a tensor of int64; y a tensor or a number, n a number, k a whole number; d an axis, D some axes,
t a dtype, s sizes, B True or False.
"""

from __future__ import annotations

from benchmarks.fuzz.program import DEFAULTS, words

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
EIGHTS = ("float8_e4m3fn", "float8_e5m2")
COMPLEX = ("complex64", "complex128")
DTYPES = (*FLOATS, *INTEGERS, "bool", *COMPLEX)

# What a tensor is filled with: the ends of each type, and a little ordinary.
FLOAT_VALUES = (
    "nan", "inf", "-inf", "0.0", "-0.0", "1e-310", "1e-40", "6e-8", "-1e-40", "1e308", "3.4e38",
    "-3.4e38", "65504.0", "1.0", "-1.0", "2.0", "0.5", "-0.5", "3.25", "-2.5", "1.5", "100.0",
    "-100.0", "0.1", "1e4", "-7.0", "1e-3", "16777217.0",
)  # fmt: skip
EDGES = ("nan", "inf", "-inf", "0.0", "-0.0", "1.0", "-1.0", "2.0", "0.5")
INTEGER_VALUES = {
    "uint8": ("0", "1", "2", "3", "127", "128", "200", "255"),
    "int8": ("0", "1", "-1", "2", "-3", "100", "127", "-128"),
    "int16": ("0", "1", "-1", "5", "-7", "300", "32767", "-32768"),
    "int32": ("0", "1", "-1", "5", "-7", "70000", "2147483647", "-2147483648"),
    "int64": ("0", "1", "-1", "5", "-7", "2**31", "2**53 + 1", "2**63 - 1", "-2**63"),
}
COMPLEX_VALUES = (
    "1+1j", "0j", "-2+0.5j", "1j", "complex(-0.0, 1)", "complex(1, -0.0)", "complex(inf, 1)",
    "complex(1, inf)", "complex(-inf, 2)", "complex(nan, 1)", "complex(1, -inf)", "complex(0, inf)",
    "complex(inf, inf)", "1e4+1j", "200+300j", "-100-1e-3j", "complex(-inf, 0)", "complex(inf, 0)",
)  # fmt: skip
TAME = ("0.5", "1.0", "-1.0", "2.0", "-0.75", "1.25", "3.0", "-2.0", "0.1")

NUMBERS = (
    "0", "1", "-1", "2", "-2", "3", "True", "False", "0.5", "-0.0", "2.5", "-1.5", "1e30", "nan",
    "inf", "-inf", "127", "128", "-129", "255", "256", "300", "-200", "40000", "2**31", "2**31 - 1",
    "-2**31", "2**53 + 1", "2**63 - 1", "-2**63", "2**63", "10**30", "1e-310", "7.0", "1j", "1+2j",
)  # fmt: skip
COMMON = ("2", "0.5", "-1", "0", "1", "3", "-2")
WHOLE = ("0", "1", "-1", "2", "3", "-2", "5")

_UNARY = words(
    """abs neg sign floor ceil trunc round square reciprocal rsqrt sqrt exp exp2 expm1 log log2
    log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv
    lgamma digamma sigmoid isfinite isinf isnan isneginf isposinf isreal signbit logical_not
    bitwise_not real frac nan_to_num clone positive"""
)
_ACTIVATIONS = words(
    """relu gelu silu elu celu selu mish leaky_relu hardswish hardtanh relu6 logsigmoid
    softplus tanhshrink softsign hardsigmoid"""
)
_BINARY = words(
    """add sub mul true_divide floor_divide fmod remainder pow atan2 copysign minimum maximum
    fmax fmin xlogy logaddexp eq ne lt le gt ge logical_and logical_or logical_xor
    bitwise_and bitwise_or bitwise_xor nextafter hypot"""
)
_OPERATORS = words(
    """+ - * / // % ** & | ^ << >> < == >="""
)
_REDUCTIONS = words(
    """sum mean prod amax amin var std argmax any all logsumexp norm"""
)

POINTWISE = (
    *(f"torch.{name}({{x}})" for name in _UNARY),
    *(f"F.{name}({{f}})" for name in _ACTIVATIONS),
    "F.gelu({f}, approximate='tanh')", "F.elu({f}, {n})", "torch.round({f}, decimals={k})",
)  # fmt: skip
BINARY = (
    *(f"torch.{name}({{x}}, {{y}})" for name in _BINARY),
    *(f"{{x}} {sign} {{y}}" for sign in _OPERATORS),
    *(f"{{n}} {sign} {{x}}" for sign in _OPERATORS[:9]),
    "{i} // {n}", "{i} % {n}", "{i} ** {k}", "{f} ** {n}", "{i} + {i2}",
    "{i}.clamp({n}, {n2})", "{i} * {n}", "torch.xlogy({f}, {f2})",
    "torch.div({x}, {y}, rounding_mode='floor')", "torch.div({x}, {y}, rounding_mode='trunc')",
    "torch.add({x}, {y}, alpha={n})",
    "torch.sub({x}, {y}, alpha={n})", "torch.where({b}, {y}, {y2})", "torch.where({x}, {y}, {y2})",
    "torch.lerp({f}, {f2}, {n})", "torch.lerp({f}, {f2}, {f3})", "torch.addcmul({x}, {x2}, {x3})",
    "torch.addcdiv({f}, {f2}, {f3}, value={n})", "{x}.clamp({n}, {n2})", "{x}.clamp(max={n})",
    "{x}.clamp(min={n})", "torch.clamp({x}, {x2}, {x3})", "{x}.masked_fill({b}, {n})",
    "torch.complex({f}, {f2})", "F.mse_loss({f}, {f2})", "F.threshold({x}, {n}, {n2})",
)  # fmt: skip
REDUCING = (
    *(f"torch.{name}({{x}}, {{d}})" for name in _REDUCTIONS),
    *(f"{{x}}.{name}()" for name in _REDUCTIONS if name != "logsumexp"),
    *(f"torch.{name}({{x}}, {{D}}, keepdim={{B}})" for name in ("sum", "mean", "amax", "amin")),
    "torch.sum({x}, {D}, dtype=torch.{t})", "torch.prod({x}, {d}, dtype=torch.{t})",
    "torch.mean({x}, {d}, dtype=torch.{t})", "torch.var({f}, {D}, correction={k})",
    "torch.var_mean({f}, {D}, keepdim={B})[0]", "torch.var_mean({x}, {D})[1]",
    "torch.var({c}, {d})", "torch.argmin({x})", "torch.softmax({f}, {d})",
    "torch.log_softmax({f}, {d})",
    "torch.softmax({x}, {d}, dtype=torch.{t})", "torch.cumsum({x}, {d})", "torch.cumprod({x}, {d})",
    "torch.cumsum({x}, {d}, dtype=torch.{t})", "F.layer_norm({f}, {f}.shape[-1:])",
    "F.normalize({f}, dim={d})", "torch.cummax({x}, {d})[0]",
)  # fmt: skip
MOVING = (
    "torch.roll({x}, {k}, {d})", "torch.roll({x}, 0)", "torch.tile({x}, (1,))",
    "torch.tile({x}, (2,))", "{x}.repeat({s})", "torch.flip({x}, {D})", "torch.flip({x}, ())",
    "{x}.permute(*range({x}.ndim)[::-1])", "{x}.reshape(-1)", "{x}.view(-1)", "{x}.flatten()",
    "{x}.unsqueeze({d})", "{x}.squeeze()", "{x}.expand(2, *{x}.shape)", "{x}[..., 1:]",
    "{x}[..., ::2]", "{x}[1:]", "{x}[{k}]", "torch.cat([{x}, {x2}], {d})",
    "torch.stack([{x}, {x2}], {d})", "torch.chunk({x}, 2, {d})[0]", "F.pad({x}, (1, {k}))",
    "F.pad({x}, (1, 2), value={n})", "{x}.contiguous()", "{x}.detach()", "{x}.narrow({d}, 0, 1)",
    "torch.movedim({x}, 0, -1)", "torch.tril({x}, {k})", "torch.triu({x})", "{x}.t()",
    "torch.index_select({x}, {d}, {l})", "torch.take_along_dim({x}, {l}, {d})",
    "torch.full_like({x}, {n})", "torch.zeros_like({x})", "torch.ones_like({x}, dtype=torch.{t})",
    "{x}.new_zeros({x}.shape)", "torch.broadcast_to({x}, (2, *{x}.shape))", "{x}.T",
    "torch.diagonal({x})", "torch.unflatten({x}, 0, (1, -1))",
)  # fmt: skip
CASTING = (
    "{x}.to(torch.{t})", "{x}.to(torch.{t}).to(torch.{t2})", "{x}.type_as({x2})", "{x}.float()",
    "{x}.half()", "{x}.bool()", "{x}.to(torch.{e})", "{x}.to(torch.{e}).to(torch.{t})",
    "{x}.to({x}.dtype)", "{x}.long()", "{x}.double()",
)  # fmt: skip
COMPLEX_BITS = (
    "torch.conj({x})", "torch.conj({c}).imag", "{c}.imag", "{c}.real", "{c}.conj().imag",
    "torch.view_as_real({c})", "torch.fft.rfft({f}).conj().imag", "torch.fft.rfft({f})",
    "torch.resolve_conj({x})", "torch._neg_view({x})", "torch.abs({c})", "torch.angle({x})",
    "{c} * {c2}.conj()", "torch.exp({c})", "torch.sqrt({c})", "torch.cos({c})", "torch.log({c})",
    "torch.tanh({c})", "{c} * {c2}", "{c} / {c2}", "torch.reciprocal({c})", "torch.rsqrt({c})",
)  # fmt: skip
WRITING = (
    "{x}.add_({y})", "{x}.mul_({y})", "{x}.sub_({y})", "{x}.copy_({x2})", "{x}.zero_()",
    "{x}.neg_()", "{x}.clamp_({n}, {n2})", "{x}.exp_()", "{x}.add_(10)", "{x}.mul_(2)",
    "{x}.fill_({n})", "{x}.div_({y})", "{x}.relu_()", "{x}.floor_()", "{x}.pow_({n})",
    "{x}.view(-1).add_(1)", "{x}[..., 1:].mul_(2)", "{x}.masked_fill_({b}, {n})",
    "{x}.sigmoid_()", "{x}.remainder_({n})", "F.relu({x}, inplace=True)",
    "F.silu({x}, inplace=True)", "{x}[..., 1:] = {n}", "{x}[{k}] = {y}", "{x}[0] = {x}[-1]",
    "{x}.index_copy_(0, torch.arange({x}.shape[0]).flip(0), {x2})",
    "{x}.index_add_(0, torch.arange({x}.shape[0]), {x2})",
)  # fmt: skip

# Where infinities, NaN and zeros have rules of their own, for gradients too.
EDGY = (
    "torch.log_softmax({f}, {d})", "torch.softmax({f}, {d})", "{f} ** {n}", "torch.pow({f}, {f2})",
    "torch.xlogy({f}, {f2})", "torch.xlogy({f}, {n})", "torch.logaddexp({f}, {f2})",
    "torch.logsumexp({f}, {d})", "F.softplus({f})", "F.logsigmoid({f})", "torch.atan2({f}, {f2})",
    "torch.lerp({f}, {f2}, {f3})", "torch.rsqrt({f})", "torch.sqrt({f})", "torch.prod({f}, {d})",
    "torch.cumprod({f}, {d})", "torch.special.xlog1py({f}, {f2})", "torch.hypot({f}, {f2})",
    "torch.nan_to_num({f})", "F.gelu({f})", "torch.remainder({f}, {f2})", "{n} ** {f}",
    "torch.maximum({f}, {f2})", "torch.fmin({f}, {f2})", "{f}.clamp({n}, {n2})", "torch.sinc({f})",
)  # fmt: skip

GROUPS = {
    POINTWISE: 6, BINARY: 7, EDGY: 3, REDUCING: 3, MOVING: 3, CASTING: 2, COMPLEX_BITS: 2,
}  # fmt: skip

# Pairs of a copy, and a write into it: what shares memory by mistake shows in the argument.
COPIES = (
    "torch.floor({x})", "torch.ceil({x})", "torch.round({x})", "torch.trunc({x})",
    "torch.abs({x})", "torch.roll({x}, 0)", "torch.tile({x}, (1,))", "{x}.repeat(1)",
    "torch.flip({x}, ())", "torch.clone({x})", "{x} + 0", "{x} * 1", "torch.relu({x})",
    "torch.cat([{x}])", "{x}.clamp(max=inf)", "torch.nan_to_num({x})", "F.pad({x}, (0, 0))",
    "torch.where(True, {x}, {x})", "torch.sum({x}, ())", "{x}[:]", "torch.positive({x})",
    "{x}.to({x}.dtype, copy=True)", "torch.real({x})", "{x}.contiguous()", "F.dropout({x}, 0.0)",
    "torch.masked_fill({x}, {x} != {x}, 0)", "torch.maximum({x}, {x})", "torch.roll({x}, {k}, {d})",
    "torch.conj_physical({x})", "torch.square({x})", "{x}.new_zeros({x}.shape)", "torch.sgn({x})",
)  # fmt: skip

# Attention with a mask, and how a mask may be made.
ATTENTION = (
    "F.scaled_dot_product_attention({f}, {f2}, {f3}, {x})",
    "F.scaled_dot_product_attention({f} * 2, {f2}, {f3}, attn_mask={x}, scale=0.25)",
)
MASKS = (
    "torch.where({x} > 0, 0.0, -1e4).to({f}.dtype)", "torch.logical_not({b})", "{x} > 0.75",
    "{x} * 2", "torch.cos({f})", "{x}.squeeze(0)",
)  # fmt: skip

# What is done between a forward and its backward, to results or views of them; and to arguments,
# past the check that autograd makes of leaves.
DETACHED = ("{x}.detach().mul_(3)", "{x}.detach()[..., 1:].add_(1)", "{x}.detach().zero_()")
BETWEEN = (
    "{x}.mul_(2)", "{x}.add_(1)", "{x}.zero_()", "{x}[..., 1:].mul_(2)", "{x}.view(-1).add_(1)",
    "{x}[0].fill_(0)", "{x}.neg_()", "F.relu({x}, inplace=True)", *DETACHED,
)  # fmt: skip

# What jits a program, with which executors beside the fuser. Where another one fuses after it,
# Thunder edits what the fuser has made.
JITS: dict[tuple[str, tuple[str, ...]], int] = {
    ("thunder.jit", ("fuser",)): 60,
    ("thunder_fuser.jit", ("fuser",)): 15,
    ("thunder.jit", ("fuser", DEFAULTS)): 12,
    ("thunder.jit", (DEFAULTS, "fuser")): 6,
    ("thunder_fuser.jit", ("fuser", DEFAULTS)): 6,
    ("thunder.jit", ("fuser", "'torchcompile'")): 1,
}
RECOMPUTED = ("none", "memory")  # other policies of what a backward recomputes
