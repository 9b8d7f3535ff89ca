# SPDX-License-Identifier: Apache-2.0
"""Conversions and math helpers on the CPU and in the emulator: torch's results at the edges."""

import itertools

import pytest
import torch
from helpers.kernel_texts import DTYPES, expression_source, run_expressions

from thunder_fuser.codegen.source import Dialect
from thunder_fuser.runtime.cuda import compile_cubin

INF, NAN = float("inf"), float("nan")
FLOATS = ("double", "float")
INTEGERS = ("i64", "i32", "i16", "i8", "u8")
both_dialects = pytest.mark.parametrize("dialect", ["cpu", "cuda"])

# fmt: off
EDGES = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, -3.7, 100.6, 127.0, -128.0, 1e-40, -1e-40,
    2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 2.0**-14, 2.0**-14 - 2.0**-25, 1 + 2.0**-11,
    1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 2.0**-9, 1 + 3 * 2.0**-9, 65504.0, 65519.9, 65520.0, -1e5,
    3.39e38, 3.4e38,
    1e-8, INF, -INF, NAN,
]
# fmt: on
BOUNDS = {"u8": (0, 255), "i8": (-128, 127), "i16": (-(2**15), 2**15 - 1)}


def assert_same(got: torch.Tensor, expected: torch.Tensor, what: str, keep: torch.Tensor) -> None:
    """Equal where `keep`, the sign of zero included."""
    got, expected = got[keep], expected[keep]
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True, msg=what)
    if got.dtype.is_floating_point:
        numbers = ~expected.isnan()
        assert torch.equal(got.signbit()[numbers], expected.signbit()[numbers]), what


def representable(values: torch.Tensor, to: str) -> torch.Tensor:
    """Where a value converts to an integer type without overflow; C++ leaves the rest open."""
    low, high = BOUNDS.get(to, (-(2**31), 2**31 - 128))
    if to not in INTEGERS:
        return torch.ones_like(values, dtype=torch.bool)
    wide = values.double()
    return (wide.trunc() >= low) & (wide.trunc() <= high)


@both_dialects
def test_every_conversion(dialect: Dialect) -> None:
    base = torch.tensor(EDGES, dtype=torch.float64)
    whole = torch.nan_to_num(base, nan=7.0).clamp(-100, 100).trunc()
    inputs = {
        t: (t, (base if d.is_floating_point else whole.abs() if t == "u8" else whole).to(d))
        for t, d in DTYPES.items()
    }
    pairs = list(itertools.product(DTYPES, DTYPES))
    outputs = {f"{a}_to_{b}": (b, f"convert<{b}>({a})") for a, b in pairs}
    # An input's name must not be a type's.
    inputs = {f"v_{name}": value for name, value in inputs.items()}
    outputs = {name: (b, e.replace("(", "(v_")) for name, (b, e) in outputs.items()}
    results = run_expressions(dialect, inputs, outputs)
    for a, b in pairs:
        values = inputs[f"v_{a}"][1]
        name = f"{a}_to_{b}"
        assert_same(results[name], values.to(DTYPES[b]), name, representable(values, b))


@both_dialects
@pytest.mark.parametrize("ctype", ["f16", "bf16"])
def test_every_half_and_the_floats_around_it(dialect: Dialect, ctype: str) -> None:
    dtype = DTYPES[ctype]
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    wide = halves.float()
    between = torch.nextafter((wide + wide.roll(1)) / 2, wide)  # just off the tie
    values = torch.cat([wide, (wide + wide.roll(1)) / 2, between])
    inputs = {"half": (ctype, halves.repeat(3)), "value": ("float", values)}
    outputs = {"up": ("float", "convert<float>(half)"), "down": (ctype, f"convert<{ctype}>(value)")}
    results = run_expressions(dialect, inputs, outputs)
    everywhere = torch.ones_like(values, dtype=torch.bool)
    assert_same(results["up"], halves.repeat(3).float(), "up", everywhere)
    assert_same(results["down"], values.to(dtype), "down", everywhere)


UNARY_FLOAT = {
    "relu": torch.relu,
    "sign": torch.sign,
    "reciprocal": torch.reciprocal,
    "rsqrt_": torch.rsqrt,
    "frac": torch.frac,
    "round_even": torch.round,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "signbit_": torch.signbit,
    "isfinite_": torch.isfinite,
    "isinf_": torch.isinf,
    "isnan_": torch.isnan,
    "isposinf_": torch.isposinf,
    "isneginf_": torch.isneginf,
}
BINARY_FLOAT = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "c_fmod": torch.fmod,
    "remainder_py": torch.remainder,
    "nextafter_": torch.nextafter,
}
# Rounded differently from torch's vector code by an ulp or two.
INEXACT = {"rsqrt_", "sigmoid", "silu"}


def check(results: dict[str, torch.Tensor], name: str, expected: torch.Tensor) -> None:
    got = results[name].to(expected.dtype)
    if name in INEXACT:
        rtol = 1e-14 if expected.dtype == torch.float64 else 4e-7
        torch.testing.assert_close(got, expected, rtol=rtol, atol=0, equal_nan=True, msg=name)
    else:
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True, msg=name)


def grid_of(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    n = values.numel()
    return values.repeat(n), values.repeat_interleave(n)


@both_dialects
@pytest.mark.parametrize("ctype", FLOATS)
def test_float_helpers(dialect: Dialect, ctype: str) -> None:
    a, b = grid_of(torch.tensor(EDGES, dtype=DTYPES[ctype]))
    outputs = {name: (ctype, f"{name}(a)") for name in UNARY_FLOAT}
    outputs |= {name: (ctype, f"{name}(a, b)") for name in BINARY_FLOAT}
    inputs = {"a": (ctype, a), "b": (ctype, b)}
    results = run_expressions(dialect, inputs, outputs)
    for name, function in UNARY_FLOAT.items():
        check(results, name, function(a))
    for name, function in BINARY_FLOAT.items():
        exact = name in ("c_fmod", "remainder_py")  # torch's float32 ones give NaN for far operands
        check(results, name, function(a.double(), b.double()).to(a) if exact else function(a, b))


@both_dialects
@pytest.mark.parametrize("ctype", FLOATS)
def test_three_operand_helpers(dialect: Dialect, ctype: str) -> None:
    values = torch.tensor([0.0, 1.0, -2.5, 0.5, 0.3, 1e5, INF, NAN], dtype=DTYPES[ctype])
    a, b, c = (t.reshape(-1) for t in torch.meshgrid(values, values, values, indexing="ij"))
    inputs = {"a": (ctype, a), "b": (ctype, b), "c": (ctype, c)}
    names = ("lerp_", "clamp_", "threshold_")
    results = run_expressions(dialect, inputs, {n: (ctype, f"{n}(a, b, c)") for n in names})
    tolerance = 1e-15 if ctype == "double" else 2e-7  # torch contracts the mul and the add
    torch.testing.assert_close(
        results["lerp_"], torch.lerp(a, b, c), rtol=tolerance, atol=0.02, equal_nan=True
    )
    check(results, "clamp_", torch.clamp(a, b, c))
    check(results, "threshold_", torch.where(a <= b, c, a))


@both_dialects
@pytest.mark.parametrize("ctype", INTEGERS)
def test_integer_helpers(dialect: Dialect, ctype: str) -> None:
    dtype = DTYPES[ctype]
    info = torch.iinfo(dtype)
    edges = {0, 1, 2, 3, 5, 7, 8, 31, 63, 64, 100, -1, -2, -3, -7, info.min, info.max}
    kept = sorted(v for v in edges if info.min <= v <= info.max)
    a, b = grid_of(torch.tensor(kept, dtype=dtype))
    binary = {
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "shift_left": torch.bitwise_left_shift,
        "shift_right_arith": torch.bitwise_right_shift,
        "ipow": integer_power,
    }
    overflowing = {"gcd_": torch.gcd}  # for the least number, whose magnitude has no room
    divisions = {
        "int_div": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        "c_fmod": torch.fmod,
        "remainder_py": torch.remainder,
    }
    unary = {"relu": torch.relu, "sign": torch.sign, "signbit_": torch.signbit}
    unary |= {"isfinite_": torch.isfinite, "isinf_": torch.isinf, "isnan_": torch.isnan}
    outputs = {name: (ctype, f"{name}(a, b)") for name in (*binary, *overflowing, *divisions)}
    outputs |= {name: (ctype, f"{name}(a)") for name in unary}
    outputs["shift_right_logical"] = (ctype, "shift_right_logical(a, b)")
    results = run_expressions(dialect, {"a": (ctype, a), "b": (ctype, b)}, outputs)
    for name, function in unary.items():
        check(results, name, function(a))
    for name, function in binary.items():
        check(results, name, function(a, b))
    for name, function in overflowing.items():
        room = (a != info.min) & (b != info.min) | (ctype == "u8")
        check({name: results[name][room]}, name, function(a[room], b[room]))
    # The least number over -1 overflows: it stops torch's process, and wraps here.
    safe = (b != 0) & ~((b == -1) & (a == info.min))
    for name, function in divisions.items():
        check({name: results[name][safe]}, name, function(a[safe], b[safe]))
        assert not results[name][b == 0].any(), name
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    logical = [(x % 2**info.bits) >> y if 0 <= y < info.bits else 0 for x, y in pairs]
    assert [x % 2**info.bits for x in results["shift_right_logical"].tolist()] == logical


def integer_power(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Python's powers, wrapped: torch refuses an exponent tensor with a negative element."""
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    powers = [pow(x, y, 2**64) if y >= 0 else truncated_power(x, y) for x, y in pairs]
    wrapped = [power - 2**64 if power >= 2**63 else power for power in powers]
    return torch.tensor(wrapped, dtype=torch.int64).to(a.dtype)


def truncated_power(base: int, exponent: int) -> int:
    return {1: 1, -1: -1 if exponent % 2 else 1}.get(base, 0)


@both_dialects
@pytest.mark.parametrize("ctype", FLOATS)
def test_inverse_error_functions(dialect: Dialect, ctype: str) -> None:
    dtype = DTYPES[ctype]
    inside = torch.linspace(-0.999999, 0.999999, 1001, dtype=dtype)
    edges = torch.tensor([0.0, -0.0, 1.0, -1.0, 1.5, NAN, 1e-30], dtype=dtype)
    x = torch.cat([inside, edges])
    p = torch.cat([1 - x[:-1], torch.tensor([1e-30], dtype=dtype)])
    outputs = {"inverse": (ctype, "erfinv_(x)"), "tail": (ctype, "erfcinv_(p)")}
    results = run_expressions(dialect, {"x": (ctype, x), "p": (ctype, p)}, outputs)
    rtol = 1e-13 if ctype == "double" else 3e-6
    expected = torch.erfinv(x.double()).to(dtype)
    torch.testing.assert_close(results["inverse"], expected, rtol=rtol, atol=0, equal_nan=True)
    back = torch.special.erfc(results["tail"].double())
    inside_tail = (p > 0) & (p < 2)
    wide = p.double()[inside_tail]
    torch.testing.assert_close(back[inside_tail], wide, rtol=1e3 * rtol, atol=0)


LIBM = {
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "sin": torch.sin,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sqrt": torch.sqrt,
    "floor": torch.floor,
    "atan": torch.atan,
    "lgamma": torch.lgamma,
}


@both_dialects
@pytest.mark.parametrize("ctype", FLOATS)
def test_the_math_library(dialect: Dialect, ctype: str) -> None:
    suffix = "f" if ctype == "float" else ""
    a = torch.tensor([*EDGES, *torch.linspace(-20, 20, 997)], dtype=DTYPES[ctype])
    outputs = {name: (ctype, f"{name}{suffix}(a)") for name in LIBM}
    results = run_expressions(dialect, {"a": (ctype, a)}, outputs)
    for name, function in LIBM.items():
        exact = function(a.double()).to(a.dtype)
        rtol = 1e-13 if ctype == "double" else 1e-6
        torch.testing.assert_close(
            results[name], exact, rtol=rtol, atol=1e-44, equal_nan=True, msg=name
        )


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_helpers_compile_for_a_gpu(arch: str) -> None:
    x = torch.zeros(1)
    names = [*UNARY_FLOAT, "erfinv_", "erfcinv_"]
    for ctype in FLOATS:
        inputs = {"a": (ctype, x), "b": (ctype, x)}
        outputs = {name: (ctype, f"{name}(a)") for name in names}
        outputs |= {name: (ctype, f"{name}(a, b)") for name in BINARY_FLOAT}
        source = expression_source("cuda", inputs, outputs)
        assert compile_cubin(source.text, f"helpers_{ctype}", arch)
