# SPDX-License-Identifier: Apache-2.0
"""The op table, with one row an op. CONTRIBUTING.md says how to add one.

A row has the signature, type rule and cost of an op, its spelling in C, and the torch expression
that defines it. In `c`, {0} {1} {2} are the operands, and {f} is "f" for float and "" for double.
`c_int` is the spelling for integers and bools if it differs. `c_complex` is the spelling for
complex types; rows without it refuse them. In `torch`, operands are a, b, c, d, attributes have
their names, and `own` is the type of the result. A line of op_summaries.py says what the op does;
op_docs.py makes the docstring of `fd.ops.<op>` from it and from the row.

Note [Random numbers]: element i (row-major, of the logical shape) of a RANDOM op is word i % 4 of
Philox 4x32-10 with key `seed` and counter (offset, i // 4); a Double takes two words. So it does
not depend on schedule, layout or target, and recomputing it gives the same bits. Ops without a
seed share one that each run draws, and each has its own offset (ir/rules/build.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.op_schema import DtypeRule, Op, OpKind
from thunder_fuser.ir.op_summaries import SUMMARIES

_S, _F, _I = DtypeRule.SAME, DtypeRule.FLOAT, DtypeRule.INTEGER
_A = DtypeRule.ATTRIBUTE


def _pointwise(
    name: str, signature: str, rule: DtypeRule, c: str, torch: str = "", **more: Any
) -> Op:
    """All arguments are operands. By default torch has a function of the same name."""
    arity = len(signature.split(","))
    torch = torch or f"torch.{name}({', '.join('abc'[:arity])})"
    spelled = {key: _applied(more.get(key, ""), arity) for key in ("c_int", "c_complex")}
    c = _applied(c, arity)
    return Op(name, OpKind.POINTWISE, signature, arity, rule, torch, c, **{**more, **spelled})


def _applied(c: str, arity: int) -> str:
    """An operator or a function as an expression of the operands; an expression as it is.

    "+"  ->  "({0} + {1})"          "pow{f}"  ->  "pow{f}({0}, {1})"
    """
    if "{0}" in c or c in ("", "true", "false"):
        return c
    if c[0].isalpha():
        return f"{c}({', '.join(f'{{{at}}}' for at in range(arity))})"
    return f"({{0}} {c} {{1}})"


def _unary(name: str, rule: DtypeRule, c: str, torch: str = "", **more: Any) -> Op:
    return _pointwise(name, "x", rule, c, torch, **more)


# `short`: true if fewer exact digits suffice in every kernel that computes the value.
_WITH_SHORT_FORM = ("div", "erf", "exp", "reciprocal", "tanh")


def _binary(name: str, rule: DtypeRule, c: str, torch: str = "", **more: Any) -> Op:
    row = _pointwise(name, "lhs, rhs", rule, c, torch, **more)
    return replace(row, signature="lhs, rhs, short=None") if name in _WITH_SHORT_FORM else row


_COMPLEX_MATH = (
    "exp", "log", "log2", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid",
)  # fmt: skip


def _math(name: str, cost: int = 8, c: str = "", torch: str = "", c_complex: str = "") -> Op:
    """A unary float function. By default its name is the same in C and torch."""
    if name in _COMPLEX_MATH:
        c_complex = f"c_{name}"
    row = _unary(name, _F, c or name + "{f}", torch, c_complex=c_complex, cost=cost)
    return replace(row, signature="x, short=None") if name in _WITH_SHORT_FORM else row


def _compare(name: str, sign: str) -> Op:
    return _binary(name, DtypeRule.COMPARE, sign, c_complex=sign if name in ("eq", "ne") else "")


def _predicate(name: str, c_int: str = "false", parts: str = "") -> Op:
    """parts: the operator between the answers for the parts of a complex number."""
    c_complex = f"({name}_({{0}}.re) {parts} {name}_({{0}}.im))" if parts else ""
    return _unary(name, DtypeRule.PREDICATE, name + "_", c_int=c_int, c_complex=c_complex)


def _reduction(name: str, rule: DtypeRule, torch: str) -> Op:
    """`chunk`: partial results over runs of that many elements, along a new first axis."""
    signature = "arg, dims=None, keepdim=False, dtype=None, chunk=None"
    signature += ", short=None" * (name == "sum")
    return Op(name, OpKind.REDUCTION, signature, 1, rule, torch)


def _random(name: str, first: str, second: str, bits: str, cost: int) -> Op:
    """`bits`: what the C function takes, {word}, or {words} and {lane}."""
    signature = f"{first}, {second}, shape, dtype=None, rng_seed=None, rng_offset=None"
    torch, keywords = f"{name}(a, b, (c, d), shape, own).to(dtype)", (first, second, *_STREAM)
    c = f"{name}_<{{to}}>({bits}, {{0}}, {{1}})"
    return Op(name, OpKind.RANDOM, signature, 4, _A, torch, c, cost=cost, keywords=keywords)


def _scan(name: str, rule: DtypeRule, torch: str) -> Op:
    return Op(name, OpKind.SCAN, "arg, dim", 1, rule, torch)


def _movement(name: str, signature: str, torch: str = "", arity: int = 1) -> Op:
    """By default runtime/eager/evaluate.py has a function of the same name."""
    torch = torch or f"{name}({signature.replace('arg', 'a', 1)})"
    return Op(name, OpKind.MOVEMENT, signature, arity, DtypeRule.KEEP, torch, cost=0)


def _index(name: str, signature: str, torch: str, source: int = 0) -> Op:
    return Op(name, OpKind.INDEX, signature, 2, DtypeRule.KEEP, torch, cost=4, source=source)


def _factory(name: str, signature: str, operands: tuple[str, ...], torch: str, cost: int) -> Op:
    arity = len(operands)
    return Op(name, OpKind.FACTORY, signature, arity, _A, torch, cost=cost, keywords=operands)


def _external(
    name: str, signature: str, arity: int, torch: str, *results: DataType | None, **more: Any
) -> Op:
    kinds = results or (None,)
    return Op(name, OpKind.EXTERNAL, signature, arity, DtypeRule.KEEP, torch, results=kinds, **more)


def _communication(name: str, signature: str) -> Op:
    """The host program has the call. On a single device, as in `torch`, it does nothing."""
    return Op(name, OpKind.COMMUNICATION, signature, 1, DtypeRule.KEEP, "a", cost=0)


_CAST = "convert<{to}>({0})"
_STREAM = ("rng_seed", "rng_offset")
_ATTENTION = "dropout_p=None, is_causal=None, scale=None, attn_mask=None"
_ORDER = "dim=-1, descending=False, stable=False"
_ORDERED = "dim=dim, descending=descending, stable=stable"

_ROWS = (
    # ---- unary
    _unary("abs", DtypeRule.REAL, "fabs{f}", c_int="wrap_abs", c_complex="c_abs", bools=False),
    _unary("neg", _S, "(-{0})", c_int="wrap_neg", c_complex="(-{0})", bools=False),
    _unary("relu", _S, "relu", bools=False),
    _unary("sign", _S, "sign"),
    _unary("ceil", _S, "ceil{f}", c_int="{0}", bools=False),
    _unary("floor", _S, "floor{f}", c_int="{0}", bools=False),
    _unary("trunc", _S, "trunc{f}", c_int="{0}", bools=False),
    _unary("round", _S, "round_even", c_int="{0}", bools=False),
    *map(_math, ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p")),
    # These first reduce the range of the argument.
    _math("sin", 40),
    _math("cos", 40),
    _math("tanh"),
    _math("tan", 40),
    *(_math(name, 16) for name in ("asin", "acos", "atan", "sinh", "cosh", "asinh")),
    *(_math(name, 16) for name in ("acosh", "atanh", "erf", "erfc")),
    _math("one_plus_tanh", c="one_plus_tanh", torch="1 + torch.tanh(a)"),
    _math("erfinv", 32, c="erfinv_"),
    _math("erfcinv", 32, c="erfcinv_", torch="erfcinv(a)"),
    _math("lgamma", 32),
    _math("digamma", 64, c="digamma_"),
    # The normal quantile. erfcinv keeps the digits of the tail.
    _math("ndtri", 32, "(-1.4142135623730951{f} * erfcinv_(2.0{f} * {0}))",
          "torch.special.ndtri(a)"),
    _math("sqrt", 2),
    _math("rsqrt", 2, c="rsqrt_", c_complex="({to}{{1, 0}} / c_sqrt({0}))"),
    _math("reciprocal", 2, c="reciprocal", c_complex="({to}{{1, 0}} / {0})"),
    _math("frac", 1, c="frac"),
    _math("sigmoid", c="sigmoid"),
    _math("silu", c="silu", torch="torch.nn.functional.silu(a)"),
    # ---- complex
    _unary("real", DtypeRule.REAL, "{0}", c_complex="{0}.re"),
    _unary("imag", DtypeRule.REAL, "", c_complex="{0}.im"),
    _pointwise("complex", "real, imag", DtypeRule.COMPLEX, "{to}{{{0}, {1}}}"),
    # ---- predicates
    _predicate("isfinite", c_int="true", parts="&&"),
    _predicate("isinf", parts="||"),
    _predicate("isnan", parts="||"),
    _predicate("isneginf"),
    _predicate("isposinf"),
    _predicate("signbit", c_int="({0} < 0)"),
    _unary("isreal", DtypeRule.PREDICATE, "true", c_complex="({0}.im == 0)"),
    _unary("logical_not", DtypeRule.LOGICAL, "(!{0})"),
    # In C, ~ of a bool is that of an int, which is always true.
    _unary("bitwise_not", _I, "({0} ^ static_cast<{to}>(-1))"),
    # ---- binary
    _binary("add", _S, "+", c_int="wrap_add", c_complex="+"),
    _binary("sub", _S, "-", c_int="wrap_sub", c_complex="-", bools=False),
    _binary("mul", _S, "*", c_int="wrap_mul", c_complex="*"),
    _binary("div", _S, "/", "(trunc_div(a, b) if is_exact(a) else torch.div(a, b))",
            c_int="int_div", c_complex="/", cost=2, bools=False),
    _binary("truediv", _F, "/", "torch.true_divide(a, b)", c_complex="/", cost=2),
    _binary("fmod", _S, "c_fmod", cost=16, bools=False),
    _binary("mod", _S, "c_fmod", "torch.fmod(a, b)", cost=16, bools=False),
    _binary("remainder", _S, "remainder_py", cost=16, bools=False),
    _binary("pow", _S, "pow{f}", c_int="ipow", cost=16, bools=False),
    _binary("atan2", _F, "atan2{f}", cost=16),
    _binary("nextafter", _F, "nextafter_", cost=4),
    _binary("zeta", _F, "zeta_", "torch.special.zeta(a, b)", cost=128),
    _binary("minimum", _S, "minimum"),
    _binary("maximum", _S, "maximum"),
    _binary("gcd", _I, "gcd_", cost=32, bools=False),
    _compare("eq", "=="),
    _compare("ne", "!="),
    _compare("lt", "<"),
    _compare("le", "<="),
    _compare("gt", ">"),
    _compare("ge", ">="),
    _binary("logical_and", DtypeRule.LOGICAL, "&&"),
    _binary("logical_or", DtypeRule.LOGICAL, "||"),
    _binary("bitwise_and", _I, "&"),
    _binary("bitwise_or", _I, "|"),
    _binary("bitwise_xor", _I, "^"),
    _binary("bitwise_left_shift", _I, "shift_left", bools=False),
    _binary("bitwise_right_shift", _I, "shift_right_arith", bools=False),
    _binary("logical_right_shift", _I, "shift_right_logical", "logical_right_shift(a, b)",
            bools=False),
    # ---- ternary
    _pointwise("where", "condition, a, b", DtypeRule.SELECT, "({0} ? {1} : {2})"),
    _pointwise("lerp", "start, end, weight", _F, "lerp_"),
    _pointwise("clamp", "x, min, max", _S, "clamp_", bools=False),
    _pointwise("threshold", "x, threshold, value", _S, "threshold_", "torch.where(a <= b, c, a)"),
    # ---- cast
    Op("cast", OpKind.POINTWISE, "arg, dtype", 1, _A, "a.to(dtype)", _CAST, _CAST),
    # ---- movement
    _movement("set", "arg", "a.clone()"),
    _movement("segment_set", "arg", "a.clone()"),
    _movement("stride_order", "arg, stride_order", "a"),
    _movement("broadcast", "arg, is_broadcast_dim"),
    _movement("broadcast_in_dim", "arg, shape, broadcast_dims"),
    _movement("expand", "arg, shape", "a.expand(shape)"),
    _movement("squeeze", "arg, dims", "a.squeeze(dims)"),
    _movement("permute", "arg, dims", "a.permute(dims)"),
    _movement("reshape", "arg, new_shape", "a.reshape(new_shape)"),
    _movement("slice", "arg, start_indices, end_indices, strides=None",
              "a[slices(a, start_indices, end_indices, strides)]"),
    _movement("pad", "arg, pad_widths, value=0",
              "torch.nn.functional.pad(a, pad_widths, value=value)"),
    _movement("cat", "tensors, dim=0", "torch.cat(operands, dim)", arity=-1),
    _movement("flip", "arg, dims", "torch.flip(a, dims)"),
    # ---- reads at computed indices
    _index("index_select", "arg, index, dim", "torch.index_select(a, dim, b.long())"),
    _index("take_along_axis", "arg, index, dim", "torch.take_along_dim(a, b.long(), dim)"),
    _index("gather", "arg, index, dim", "torch.gather(a, dim, b.long())"),
    _index("embedding_fwd",
           "input, weight, padding_idx=None, max_norm=None, norm_type=2.0, "
           "scale_grad_by_freq=False, sparse=False",
           "torch.nn.functional.embedding(a, b)", source=1),
    _index("index_store", "arg, index, dim, size", "a.clone()"),
    # ---- factories
    _factory("full", "shape, fill_value, dtype", ("fill_value",), "a.to(dtype).expand(shape)", 0),
    _factory("iota", "length, start=0, step=1, dtype=None", ("start", "step"),
             "iota(length, a, b, dtype)", 1),
    # ---- random numbers. A quarter of Philox is cheaper than writing and reading four bytes.
    _random("uniform", "lo", "hi", "{word}", cost=2),
    _random("normal", "mean", "std", "{words}, {lane}", cost=32),
    # ---- sizes
    Op("size", OpKind.SCALAR, "arg, dim", 1, _A, "torch.tensor(a.shape[dim], device=a.device)",
       cost=0),
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
    _external("matmul", "a, b, streams=None", 2, "torch.matmul(a, b)"),
    _external("grouped_mm", "mat1, mat2, offsets", 3, "grouped_mm(a, b, c)"),
    _external("sdpfa_fwd", f"query, key, value, {_ATTENTION}", 4,
              "attention(operands, dropout_p, is_causal, scale)",
              None, DataType.Float, DataType.Int, DataType.Int,
              keywords=("query", "key", "value", "attn_mask")),
    _external("sdpfa_bwd",
              "grad_output, query, key, value, output, logsumexp, dropout_p, is_causal, "
              "philox_seed, philox_offset, scale=None, attn_mask=None", 9,
              "attention_backward(operands, dropout_p, is_causal, scale)", None, None, None,
              keywords=("grad_output", "query", "key", "value", "output", "logsumexp",
                        "philox_seed", "philox_offset", "attn_mask")),
    _external("linear", "arg, weight, bias=None, streams=None", 3,
              "torch.nn.functional.linear(a, b, c)"),
    _external("scatter", "arg, index, src, dim", 3,
              "torch.scatter(a, dim, b.long(), filled(c, b))"),
    _external("scatter_add", "arg, index, src, dim", 3, "torch.scatter_add(a, dim, b.long(), c)"),
    _external("index_add", "arg, index, src, dim", 3, "torch.index_add(a, dim, b, c)"),
    _external("index_copy", "arg, index, src, dim", 3, "torch.index_copy(a, dim, b.long(), c)"),
    _external("index_put", "arg, index, src", 3, "torch.index_put(a, (b,), c)"),
    _external("index_put_accumulate", "arg, index, src", 3, "torch.index_put(a, (b,), c, True)"),
    _external("embedding_backward",
              "grad, indices, num_weights, padding_idx=-1, scale_grad_by_freq=False", 2,
              "torch.ops.aten.embedding_dense_backward("
              "a, b, num_weights, padding_idx, scale_grad_by_freq)"),
    _external("argsort", f"arg, {_ORDER}", 1, f"torch.argsort(a, {_ORDERED})", DataType.Int),
    _external("sort", f"arg, {_ORDER}", 1, f"torch.sort(a, {_ORDERED})", None, DataType.Int),
    _external("topk", "arg, k, dim=-1, largest=True, sorted=False", 1,
              "torch.topk(a, k, dim, largest, sorted)", None, DataType.Int),
    # ---- communication
    _communication("redistribute", "arg, placements"),
    _communication("all_gather", "arg, dim, mesh, on"),
    _communication("reduce_scatter", "arg, dim, mesh, on, reduce='sum'"),
    _communication("all_reduce", "arg, mesh, on, reduce='sum'"),
    _communication("all_to_all", "arg, split_dim, cat_dim, mesh, on"),
    _communication("broadcast_from", "arg, root, mesh, on"),
)  # fmt: skip

# The reduction with the same operator as a scan.
SCANS = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}

_NAMES = [*(row.name for row in _ROWS), *SUMMARIES]
if any(_NAMES.count(name) != 2 for name in _NAMES):
    odd = sorted({name for name in _NAMES if _NAMES.count(name) != 2})
    raise AssertionError(f"ops without exactly one row and one summary: {odd}")
OPS: dict[str, Op] = {row.name: replace(row, summary=SUMMARIES[row.name]) for row in _ROWS}
