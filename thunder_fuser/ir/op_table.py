# SPDX-License-Identifier: Apache-2.0
"""The op table, with one row an op. CONTRIBUTING.md says how to add one.

A row has the signature, type rule and cost of an op, its spelling in C, and the torch expression
that defines it. In `c`, {0} {1} {2} are the operands, and {f} is "f" for float and "" for double.
`c_int` is the spelling for integers and bools if it differs. `c_complex` is the spelling for
complex types; rows without it refuse them. In `torch`, operands are a, b, c, d, attributes have
their names, and `own` is the type of the result.

Note [Random numbers]: element i (row-major, of the logical shape) of a RANDOM op is word i % 4 of
Philox 4x32-10 with key `seed` and counter (offset, i // 4); a Double takes two words. So it does
not depend on schedule, layout or target, and recomputing it gives the same bits. Ops without a
seed share one that each run draws, and each has its own offset (ir/build.py).
"""

from __future__ import annotations

from typing import Any

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.op_schema import DtypeRule, Op, OpKind


def _pointwise(name: str, signature: str, rule: DtypeRule, torch: str, c: str, **more: Any) -> Op:
    arity = len(signature.split(","))
    return Op(name, OpKind.POINTWISE, signature, arity, rule, torch, c, **more)


# `short`: true if fewer exact digits suffice in every kernel that computes the value.
_WITH_SHORT_FORM = ("exp", "tanh")
_COMPLEX_MATH = ("exp", "log", "sqrt", "sin", "cos", "tan", "tanh")


def _math(
    name: str, cost: int = 8, c: str = "", torch: str = "", c_complex: str = ""
) -> Op:
    """A unary float function. By default its name is the same in C and torch."""
    spelled = c or f"{name}{{f}}({{0}})"
    if name in _COMPLEX_MATH:
        c_complex = f"c_{name}({{0}})"
    torch = torch or f"torch.{name}(a)"
    signature = "x, short=None" if name in _WITH_SHORT_FORM else "x"
    kind, rule = OpKind.POINTWISE, DtypeRule.FLOAT
    return Op(name, kind, signature, 1, rule, torch, spelled, c_complex=c_complex, cost=cost)


def _compare(name: str, sign: str) -> Op:
    spelled = f"({{0}} {sign} {{1}})"
    complex_ = spelled if name in ("eq", "ne") else ""
    torch = f"torch.{name}(a, b)"
    return _pointwise(name, "lhs, rhs", DtypeRule.COMPARE, torch, spelled, c_complex=complex_)


def _predicate(name: str, c_int: str = "false") -> Op:
    return _pointwise(
        name, "x", DtypeRule.PREDICATE, f"torch.{name}(a)", f"{name}_({{0}})", c_int=c_int
    )


def _reduction(name: str, rule: DtypeRule, torch: str) -> Op:
    """`chunk`: partial results over runs of that many elements, along a new first axis."""
    signature = "arg, dims=None, keepdim=False, dtype=None, chunk=None"
    return Op(name, OpKind.REDUCTION, signature, 1, rule, torch)


def _random(name: str, first: str, second: str, bits: str, cost: int) -> Op:
    """`bits`: what the C function takes, {word}, or {words} and {lane}."""
    return Op(
        name,
        OpKind.RANDOM,
        f"{first}, {second}, shape, dtype, rng_seed=None, rng_offset=None",
        4,
        DtypeRule.ATTRIBUTE,
        f"{name}(a, b, (c, d), shape, own).to(dtype)",
        f"{name}_<{{to}}>({bits}, {{0}}, {{1}})",
        cost=cost,
        keywords=(first, second, "rng_seed", "rng_offset"),
    )


def _scan(name: str, rule: DtypeRule, torch: str) -> Op:
    return Op(name, OpKind.SCAN, "arg, dim", 1, rule, torch)


def _movement(name: str, signature: str, torch: str, arity: int = 1) -> Op:
    return Op(name, OpKind.MOVEMENT, signature, arity, DtypeRule.KEEP, torch, cost=0)


def _index(name: str, signature: str, torch: str, source: int = 0) -> Op:
    return Op(name, OpKind.INDEX, signature, 2, DtypeRule.KEEP, torch, cost=4, source=source)


def _external(name: str, signature: str, arity: int, torch: str, *results: DataType | None) -> Op:
    kinds = results or (None,)
    return Op(name, OpKind.EXTERNAL, signature, arity, DtypeRule.KEEP, torch, results=kinds)


_S, _F, _I = DtypeRule.SAME, DtypeRule.FLOAT, DtypeRule.INTEGER

_ROWS = (
    # ---- unary
    _pointwise(
        "abs",
        "x",
        DtypeRule.REAL,
        "torch.abs(a)",
        "fabs{f}({0})",
        c_int="wrap_abs({0})",
        c_complex="c_abs({0})",
        bools=False,
    ),
    _pointwise(
        "neg",
        "x",
        _S,
        "torch.neg(a)",
        "(-{0})",
        c_int="wrap_neg({0})",
        c_complex="(-{0})",
        bools=False,
    ),
    _pointwise("relu", "x", _S, "torch.relu(a)", "relu({0})", bools=False),
    _pointwise("sign", "x", _S, "torch.sign(a)", "sign({0})"),
    _pointwise("ceil", "x", _S, "torch.ceil(a)", "ceil{f}({0})", c_int="{0}", bools=False),
    _pointwise("floor", "x", _S, "torch.floor(a)", "floor{f}({0})", c_int="{0}", bools=False),
    _pointwise("trunc", "x", _S, "torch.trunc(a)", "trunc{f}({0})", c_int="{0}", bools=False),
    _pointwise("round", "x", _S, "torch.round(a)", "round_even({0})", c_int="{0}", bools=False),
    _math("exp"),
    _math("exp2"),
    _math("expm1"),
    _math("log"),
    _math("log2"),
    _math("log10"),
    _math("log1p"),
    _math("sin"),
    _math("cos"),
    _math("tan", 16),
    _math("asin", 16),
    _math("acos", 16),
    _math("atan", 16),
    _math("sinh", 16),
    _math("cosh", 16),
    _math("tanh"),
    _math("one_plus_tanh", c="one_plus_tanh({0})", torch="1 + torch.tanh(a)"),
    _math("asinh", 16),
    _math("acosh", 16),
    _math("atanh", 16),
    _math("erf", 16),
    _math("erfc", 16),
    _math("erfinv", 32, c="erfinv_({0})"),
    _math("erfcinv", 32, c="erfcinv_({0})", torch="erfcinv(a)"),
    _math("lgamma", 32),
    _math("digamma", 64, c="digamma_({0})"),
    # The normal quantile. erfcinv keeps the digits of the tail.
    _math(
        "ndtri",
        32,
        c="(-1.4142135623730951{f} * erfcinv_(2.0{f} * {0}))",
        torch="torch.special.ndtri(a)",
    ),
    _math("sqrt", 2),
    _math("rsqrt", 2, c="rsqrt_({0})", c_complex="({to}{{1, 0}} / c_sqrt({0}))"),
    _math("reciprocal", 2, c="reciprocal({0})", c_complex="({to}{{1, 0}} / {0})"),
    _math("frac", 1, c="frac({0})"),
    _math("sigmoid", c="sigmoid({0})"),
    _math("silu", c="silu({0})", torch="torch.nn.functional.silu(a)"),
    # ---- complex
    _pointwise("real", "x", DtypeRule.REAL, "torch.real(a)", "{0}", c_complex="{0}.re"),
    _pointwise("imag", "x", DtypeRule.REAL, "torch.imag(a)", "", c_complex="{0}.im"),
    _pointwise(
        "complex", "real, imag", DtypeRule.COMPLEX, "torch.complex(a, b)", "{to}{{{0}, {1}}}"
    ),
    # ---- predicates
    _predicate("isfinite", c_int="true"),
    _predicate("isinf"),
    _predicate("isnan"),
    _predicate("isneginf"),
    _predicate("isposinf"),
    _predicate("signbit", c_int="({0} < 0)"),
    _pointwise(
        "isreal", "x", DtypeRule.PREDICATE, "torch.isreal(a)", "true", c_complex="({0}.im == 0)"
    ),
    _pointwise("logical_not", "x", DtypeRule.LOGICAL, "torch.logical_not(a)", "(!{0})"),
    # In C, ~ of a bool is that of an int, which is always true.
    _pointwise("bitwise_not", "x", _I, "torch.bitwise_not(a)", "({0} ^ static_cast<{to}>(-1))"),
    # ---- binary
    _pointwise(
        "add",
        "lhs, rhs",
        _S,
        "torch.add(a, b)",
        "({0} + {1})",
        c_int="wrap_add({0}, {1})",
        c_complex="({0} + {1})",
    ),
    _pointwise(
        "sub",
        "lhs, rhs",
        _S,
        "torch.sub(a, b)",
        "({0} - {1})",
        c_int="wrap_sub({0}, {1})",
        c_complex="({0} - {1})",
        bools=False,
    ),
    _pointwise(
        "mul",
        "lhs, rhs",
        _S,
        "torch.mul(a, b)",
        "({0} * {1})",
        c_int="wrap_mul({0}, {1})",
        c_complex="({0} * {1})",
    ),
    _pointwise(
        "div",
        "lhs, rhs",
        _S,
        "(trunc_div(a, b) if is_exact(a) else torch.div(a, b))",
        "({0} / {1})",
        c_int="int_div({0}, {1})",
        c_complex="({0} / {1})",
        cost=2,
        bools=False,
    ),
    _pointwise(
        "truediv",
        "lhs, rhs",
        _F,
        "torch.true_divide(a, b)",
        "({0} / {1})",
        c_complex="({0} / {1})",
        cost=2,
    ),
    _pointwise(
        "fmod", "lhs, rhs", _S, "torch.fmod(a, b)", "c_fmod({0}, {1})", cost=16, bools=False
    ),
    _pointwise("mod", "lhs, rhs", _S, "torch.fmod(a, b)", "c_fmod({0}, {1})", cost=16, bools=False),
    _pointwise(
        "remainder",
        "lhs, rhs",
        _S,
        "torch.remainder(a, b)",
        "remainder_py({0}, {1})",
        cost=16,
        bools=False,
    ),
    _pointwise(
        "pow",
        "lhs, rhs",
        _S,
        "torch.pow(a, b)",
        "pow{f}({0}, {1})",
        c_int="ipow({0}, {1})",
        cost=16,
        bools=False,
    ),
    _pointwise("atan2", "lhs, rhs", _F, "torch.atan2(a, b)", "atan2{f}({0}, {1})", cost=16),
    _pointwise(
        "nextafter", "lhs, rhs", _F, "torch.nextafter(a, b)", "nextafter_({0}, {1})", cost=4
    ),
    _pointwise(
        "zeta", "lhs, rhs", _F, "torch.special.zeta(a, b)", "zeta_({0}, {1})", cost=128
    ),
    _pointwise("minimum", "lhs, rhs", _S, "torch.minimum(a, b)", "minimum({0}, {1})"),
    _pointwise("maximum", "lhs, rhs", _S, "torch.maximum(a, b)", "maximum({0}, {1})"),
    _pointwise("gcd", "lhs, rhs", _I, "torch.gcd(a, b)", "gcd_({0}, {1})", cost=32, bools=False),
    _compare("eq", "=="),
    _compare("ne", "!="),
    _compare("lt", "<"),
    _compare("le", "<="),
    _compare("gt", ">"),
    _compare("ge", ">="),
    _pointwise(
        "logical_and", "lhs, rhs", DtypeRule.LOGICAL, "torch.logical_and(a, b)", "({0} && {1})"
    ),
    _pointwise(
        "logical_or", "lhs, rhs", DtypeRule.LOGICAL, "torch.logical_or(a, b)", "({0} || {1})"
    ),
    _pointwise("bitwise_and", "lhs, rhs", _I, "torch.bitwise_and(a, b)", "({0} & {1})"),
    _pointwise("bitwise_or", "lhs, rhs", _I, "torch.bitwise_or(a, b)", "({0} | {1})"),
    _pointwise("bitwise_xor", "lhs, rhs", _I, "torch.bitwise_xor(a, b)", "({0} ^ {1})"),
    _pointwise(
        "bitwise_left_shift",
        "lhs, rhs",
        _I,
        "torch.bitwise_left_shift(a, b)",
        "shift_left({0}, {1})",
        bools=False,
    ),
    _pointwise(
        "bitwise_right_shift",
        "lhs, rhs",
        _I,
        "torch.bitwise_right_shift(a, b)",
        "shift_right_arith({0}, {1})",
        bools=False,
    ),
    _pointwise(
        "logical_right_shift",
        "lhs, rhs",
        _I,
        "logical_right_shift(a, b)",
        "shift_right_logical({0}, {1})",
        bools=False,
    ),
    # ---- ternary
    _pointwise(
        "where", "condition, a, b", DtypeRule.SELECT, "torch.where(a, b, c)", "({0} ? {1} : {2})"
    ),
    _pointwise("lerp", "start, end, weight", _F, "torch.lerp(a, b, c)", "lerp_({0}, {1}, {2})"),
    _pointwise(
        "clamp",
        "x, min, max",
        _S,
        "torch.clamp(a, b, c)",
        "clamp_({0}, {1}, {2})",
        bools=False,
    ),
    _pointwise(
        "threshold",
        "x, threshold, value",
        _S,
        "torch.where(a <= b, c, a)",
        "threshold_({0}, {1}, {2})",
    ),
    # ---- cast
    Op(
        "cast",
        OpKind.POINTWISE,
        "arg, dtype",
        1,
        DtypeRule.ATTRIBUTE,
        "a.to(dtype)",
        c="convert<{to}>({0})",
        c_int="convert<{to}>({0})",
    ),
    # ---- movement
    _movement("set", "arg", "a.clone()"),
    _movement("segment_set", "arg", "a.clone()"),
    _movement("stride_order", "arg, stride_order", "a"),
    _movement("broadcast", "arg, is_broadcast_dim", "broadcast(a, is_broadcast_dim)"),
    _movement(
        "broadcast_in_dim",
        "arg, shape, broadcast_dims",
        "broadcast_in_dim(a, shape, broadcast_dims)",
    ),
    _movement("expand", "arg, shape", "a.expand(shape)"),
    _movement("squeeze", "arg, dims", "a.squeeze(dims)"),
    _movement("permute", "arg, dims", "a.permute(dims)"),
    _movement("reshape", "arg, new_shape", "a.reshape(new_shape)"),
    _movement(
        "slice",
        "arg, start_indices, end_indices, strides=None",
        "a[slices(a, start_indices, end_indices, strides)]",
    ),
    _movement(
        "pad", "arg, pad_widths, value=0", "torch.nn.functional.pad(a, pad_widths, value=value)"
    ),
    _movement("cat", "tensors, dim=0", "torch.cat(operands, dim)", arity=-1),
    _movement("flip", "arg, dims", "torch.flip(a, dims)"),
    # ---- reads at computed indices
    _index("index_select", "arg, index, dim", "torch.index_select(a, dim, b.long())"),
    _index("take_along_axis", "arg, index, dim", "torch.take_along_dim(a, b.long(), dim)"),
    _index("gather", "arg, index, dim", "torch.gather(a, dim, b.long())"),
    _index(
        "embedding_fwd",
        "input, weight, padding_idx=None, max_norm=None, norm_type=2.0, "
        "scale_grad_by_freq=False, sparse=False",
        "torch.nn.functional.embedding(a, b)",
        source=1,
    ),
    # ---- factories
    Op(
        "full",
        OpKind.FACTORY,
        "shape, fill_value, dtype",
        1,
        DtypeRule.ATTRIBUTE,
        "a.to(dtype).expand(shape)",
        cost=0,
        keywords=("fill_value",),
    ),
    Op(
        "iota",
        OpKind.FACTORY,
        "length, start=0, step=1, dtype=None",
        2,
        DtypeRule.ATTRIBUTE,
        "iota(length, a, b, dtype)",
        cost=1,
        keywords=("start", "step"),
    ),
    # ---- random numbers. A quarter of Philox is cheaper than writing and reading four bytes.
    _random("uniform", "lo", "hi", "{word}", cost=2),
    _random("normal", "mean", "std", "{words}, {lane}", cost=32),
    # ---- sizes
    Op(
        "size",
        OpKind.SCALAR,
        "arg, dim",
        1,
        DtypeRule.ATTRIBUTE,
        "torch.tensor(a.shape[dim], device=a.device)",
        cost=0,
    ),
    # ---- reductions
    _reduction("sum", DtypeRule.ACCUMULATE, "torch.sum(a, dims, keepdim, dtype=a.dtype)"),
    _reduction("prod", DtypeRule.ACCUMULATE, "prod(a, dims, keepdim)"),
    _reduction("max", DtypeRule.SAME, "torch.amax(a, dims, keepdim)"),
    _reduction("min", DtypeRule.SAME, "torch.amin(a, dims, keepdim)"),
    # ---- scans
    _scan("cumsum", DtypeRule.ACCUMULATE, "torch.cumsum(a, dim, dtype=a.dtype)"),
    _scan("cumprod", DtypeRule.ACCUMULATE, "torch.cumprod(a, dim, dtype=a.dtype)"),
    _scan("cummax", DtypeRule.SAME, "torch.cummax(a, dim).values"),
    _scan("cummin", DtypeRule.SAME, "torch.cummin(a, dim).values"),
    # ---- one torch call
    _external("matmul", "a, b", 2, "torch.matmul(a, b)"),
    _external("linear", "arg, weight, bias=None", 3, "torch.nn.functional.linear(a, b, c)"),
    _external(
        "scatter", "arg, index, src, dim", 3, "torch.scatter(a, dim, b.long(), filled(c, b))"
    ),
    _external("scatter_add", "arg, index, src, dim", 3, "torch.scatter_add(a, dim, b.long(), c)"),
    _external("index_add", "arg, index, src, dim", 3, "torch.index_add(a, dim, b, c)"),
    _external("index_copy", "arg, index, src, dim", 3, "torch.index_copy(a, dim, b.long(), c)"),
    _external("index_put", "arg, index, src", 3, "torch.index_put(a, (b,), c)"),
    _external("index_put_accumulate", "arg, index, src", 3, "torch.index_put(a, (b,), c, True)"),
    _external(
        "embedding_backward",
        "grad, indices, num_weights, padding_idx=-1, scale_grad_by_freq=False",
        2,
        "torch.ops.aten.embedding_dense_backward("
        "a, b, num_weights, padding_idx, scale_grad_by_freq)",
    ),
    _external(
        "argsort",
        "arg, dim=-1, descending=False, stable=False",
        1,
        "torch.argsort(a, dim=dim, descending=descending, stable=stable)",
        DataType.Int,
    ),
    _external(
        "sort",
        "arg, dim=-1, descending=False, stable=False",
        1,
        "torch.sort(a, dim=dim, descending=descending, stable=stable)",
        None,
        DataType.Int,
    ),
    _external(
        "topk",
        "arg, k, dim=-1, largest=True, sorted=False",
        1,
        "torch.topk(a, k, dim, largest, sorted)",
        None,
        DataType.Int,
    ),
)

# The reduction with the same operator as a scan.
SCANS = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}

OPS: dict[str, Op] = {row.name: row for row in _ROWS}
if len(OPS) != len(_ROWS):
    names = [row.name for row in _ROWS]
    raise AssertionError(f"op listed twice: {sorted({n for n in names if names.count(n) > 1})}")
