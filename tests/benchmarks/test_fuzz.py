# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks fuzz`: a few seeds, a planted defect, and that seeds repeat."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import fuzz
from benchmarks.fuzz import definitions, judge, leeway, post_mortem, tolerance
from benchmarks.fuzz.definitions import DefinitionProgram, Twist
from benchmarks.fuzz.findings import Finder, Finding, Outcome, make
from benchmarks.fuzz.generate import program_of
from benchmarks.fuzz.program import DEFAULTS, Input, Program, Statement
from benchmarks.fuzz.workers import Work, outcomes
from benchmarks.report import Report
from thunder_fuser import FusionCache, FusionDefinition, compiler, fuser

CLEAN = (5, 7, 8, 11, 13, 16, 23, 26, 29, 31, 39)  # definitions among them


def test_a_seed_is_a_program() -> None:
    texts = [str(make(seed, "cpu")) for seed in range(40)]
    assert texts == [str(make(seed, "cpu")) for seed in range(40)]
    assert len(set(texts)) == 40


def test_a_seed_is_one_program_on_all_targets() -> None:
    cpu, emulator = (program_of(9, target) for target in ("cpu", "emulator"))
    assert (cpu.inputs, cpu.statements) == (emulator.inputs, emulator.statements)


@pytest.mark.parametrize("seed", CLEAN)
def test_right_programs_are_no_findings(seed: int) -> None:
    assert not Finder("cpu").run(seed).findings


def test_every_meaning_can_be_drawn() -> None:
    """Rows whose slots do not fit would never be run."""
    drawn = {one.template for seed in range(3, 3000, 4)
             for one in make(seed, "cpu").program.statements}  # fmt: skip
    assert len(drawn) > 0.8 * len(definitions.MEANINGS)


PLANTED = Program(
    (
        Input("a", "float32", (4, 5), ("1.0", "2.5", "-3.0"), ("permuted", "offset")),
        Input("b", "float32", (4, 5), ("0.5", "2.0"), ("plain", "sliced")),
    ),
    (
        Statement("v0", "{x} + {y}", ("a", "b")),
        Statement("v1", "torch.sin({x})", ("v0",)),
        Statement("v2", "torch.floor({x})", ("v1",)),
        Statement("v3", "{x} * {y}", ("v2", "3")),
    ),
    ("v0", "v1", "v3"),
)


def test_a_planted_defect_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor whose floor is ceil: of four statements one is left, of two arguments one."""

    def jit(function: Any, executors: Any, **options: Any) -> Any:
        def wrong(*arguments: Any) -> Any:
            with monkeypatch.context() as patch:
                patch.setattr(torch, "floor", torch.ceil)
                return function(*arguments)

        return wrong if executors else function

    monkeypatch.setattr(judge.thunder, "jit", jit)
    monkeypatch.setattr("benchmarks.fuzz.findings.make", lambda seed, target: PLANTED)
    (found,) = Finder("cpu").run(0).findings
    assert found.kind == "result value"
    assert found.ops == ("torch.floor(_)",)
    body = judge.text_of_body(found.script)
    assert body.split() == ["def", "program(a):", "v2", "=", "torch.floor(a)", "return", "v2,"]


KINDS: dict[str, Callable[[Program], bool]] = {
    "executors that fuse after us": lambda one: one.executors[1:] == (DEFAULTS,),
    "executors that fuse before us": lambda one: one.executors[:1] == (DEFAULTS,),
    "a compiler after us": lambda one: "'torchcompile'" in one.executors,
    "our own jit": lambda one: one.jit == "thunder_fuser.jit",
    "another policy": lambda one: "fuser_rematerialization" in dict(one.options),
    "a result is written before the backward": lambda one: one.has_grad and any(
        name in one.results for write in one.between for name in write.operands
    ),
    "an argument is written before the backward": lambda one: one.has_grad and any(
        write.operands == (argument.name,) for write in one.between for argument in one.inputs
    ),
    "a result is written before the next call": lambda one: one.calls > 1 and bool(one.between),
    "a mask of one batch for several": lambda one: _broadcasts(one, -4, 1),
    "a mask without a batch": lambda one: _broadcasts(one, -4, None),
    "a mask of one column": lambda one: _broadcasts(one, -1, 1),
}  # fmt: skip


def _broadcasts(program: Program, axis: int, size: int | None) -> bool:
    """Whether a mask of attention has that size where the scores have more."""
    shapes = {one.name: one.shape for one in program.inputs}
    if "scaled_dot_product_attention" not in program.text or "m" not in shapes:
        return False
    mask, scores = shapes["m"], (*shapes["a"][:3], shapes["b"][2])
    found = mask[axis] if -axis <= len(mask) else None
    return found == size and scores[axis] > 1


@pytest.fixture(scope="module")
def drawn() -> list[Program]:
    return [program_of(seed) for seed in range(800)]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_drawn(kind: str, drawn: list[Program]) -> None:
    assert any(map(KINDS[kind], drawn))


def test_constants_of_each_type_are_drawn() -> None:
    texts = " ".join(make(seed, "cpu").text for seed in range(3, 1203, 4))
    found = set(re.findall(r"define_scalar\(.*?, DataType.(\w+)", texts))
    assert found > {"Int32", "Half", "Float", "Double", "Bool", "UInt8"}


class _Unguarded(torch.autograd.Function):
    """exp, whose backward reads its result without autograd's knowledge."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.kept = x.exp()
        return ctx.kept  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * ctx.kept


def _unguarded(function: Any) -> Any:
    return lambda x: (_Unguarded.apply(x),)


def _kept(function: Any) -> Any:
    """The results of the first call, for every call."""
    results: list[Any] = []
    return lambda *args: results.append(function(*args)) or results[0]


def _fewer_masks(function: Any) -> Any:
    """A kernel that takes no mask of one batch for several."""

    def call(q: Any, k: Any, v: Any, mask: Any) -> Any:
        if mask.shape[0] < q.shape[0]:
            raise RuntimeError("Expected all inputs to have same batch_size")
        return function(q, k, v, mask)

    return call


def _one(template: str, *inputs: Input, **facts: Any) -> Program:
    names = tuple(one.name for one in inputs)
    return Program(inputs, (Statement("v0", template, names),), ("v0",), **facts)


FLOATS = Input("a", "float32", (4,), ("0.5", "1.0"), ("plain", "plain"), grad=True)
Q, K, V = (Input(name, "float32", (3, 2, 4, 8), ("0.5", "-1.0")) for name in "abc")
DOUBLED = (Statement("", "{x}.detach().mul_(2)", ("v0",)),)
WRONG: dict[str, tuple[Program, Callable[[Any], Any], str]] = {
    # a program of the kind, what a wrong compiler makes of its function, what is found
    "beside another executor": (
        replace(PLANTED, executors=("fuser", DEFAULTS)),
        lambda function: lambda *args: tuple(one + 1 for one in function(*args)), "result value",
    ),
    "a write before the backward": (
        _one("torch.exp({x})", FLOATS, between=DOUBLED), _unguarded, "gradient value",
    ),
    "a write before the next call": (
        _one("torch.zeros_like({x})", replace(FLOATS, grad=False), between=(
            Statement("", "{x}.add_(1)", ("v0",)),
        )), _kept, "warm result value",
    ),
    "a mask that broadcasts": (
        _one("F.scaled_dot_product_attention({f}, {f2}, {f3}, {x})", Q, K, V,
             Input("m", "bool", (1, 1, 4, 4), ("True",))),
        _fewer_masks, "raises RuntimeError",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_each_kind_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain Thunder, and a program that is jitted without other executors, are right."""
    program, wrong, kind = WRONG[name]
    assert not judge.judge(program).failures

    def jit(function: Any, executors: Any, **options: Any) -> Any:
        is_meant = fuser in executors and len(executors) >= len(program.executors)
        return wrong(function) if is_meant else function

    monkeypatch.setattr(judge.thunder, "jit", jit)
    monkeypatch.setattr("benchmarks.fuzz.findings.make", lambda seed, target: program)
    (found,) = Finder("cpu").run(0).findings
    assert found.kind == kind
    assert ("writes afterwards" in found.ops) == bool(program.between)
    assert (DEFAULTS in found.ops) == (DEFAULTS in program.executors)


def test_a_refused_gradient_is_that_of_the_values_which_the_forward_had() -> None:
    """Where torch refuses and another does not, it has to be right."""
    program = _one("torch.exp({x})", FLOATS, between=DOUBLED)
    truth = judge.Truth(program)
    assert truth.eager[0].is_refused
    assert not list(truth.failures(lambda x: (x.exp().clone(),)))
    (cold,) = truth.failures(_unguarded(None))
    assert cold.kind == "gradient value"


def test_a_constant_that_loses_its_type_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    row = "fd.ops.where({b}, fd.define_scalar({n}, {t}), fd.define_scalar({n2}, {t2}))"
    operands = ("a", "3.0", "DataType.Half", "5.0", "DataType.Half")
    made = (Statement("v0", row, operands),)
    program = DefinitionProgram(
        Program((Input("a", "bool", (3,), ("True", "False")),), made, ("v0",)), "cpu"
    )
    assert not definitions.judge(program).failures
    defined = FusionDefinition.define_scalar
    monkeypatch.setattr(
        FusionDefinition, "define_scalar", lambda fd, value, dtype=None: defined(fd, value)
    )
    (found,) = definitions.judge(program).failures
    assert found.kind == "result dtype"


def test_a_complex_constant_beside_half() -> None:
    """torch has complex numbers of half precision, a definition computes in float32."""
    row = "fd.ops.where({b}, fd.define_scalar({n}, {t}), {x})"
    body = (Statement("v0", row, ("a", "2", "DataType.ComplexDouble", "b")),)
    inputs = (Input("a", "bool", (), ("True",)), Input("b", "float16", (), ("1",)))
    assert not definitions.judge(
        DefinitionProgram(Program(inputs, body, ("v0",)), "cpu")
    ).failures  # fmt: skip


def test_a_variance_below_the_rounding_of_a_mean() -> None:
    for x, expected in (
        (torch.full((6,), 0.1), leeway.NOISE), (torch.full((6,), 0.1).bfloat16(), ""),
        (torch.arange(6.0), ""),
    ):  # fmt: skip
        with tolerance.Shaken(0, 0.0) as still:
            torch.var_mean(x, 0)
        assert still.open == expected


def test_a_bug_in_a_build_is_internal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the name of what was raised, and not of the typed error that a build makes of it."""
    monkeypatch.setattr(compiler, "segment", lambda *stage: None)
    programs = (make(seed, "cpu") for seed in range(40))
    made = next(one for one in programs if isinstance(one, DefinitionProgram))
    with FusionCache():
        (of_program, *_) = judge.judge(PLANTED).failures
        (of_definition, *_) = definitions.judge(made).failures
    for one in (of_program, of_definition):
        assert one.kind == "internal AttributeError" and "in donate.py" in one.detail


def test_a_script_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(str(PLANTED), "script", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert printed.count("eager gives") == printed.count("fused gives") == 2


def test_a_twisted_attribute_that_a_cache_takes_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cache that keeps the first error it met for every definition after it."""
    one = Statement("v0", "fd.ops.permute({x}, dims=[{d}, {d2}])", ("a", "1", "0"))
    plain = Program((Input("a", "float32", (2, 3), ("1.0",)),), (one,), ("v0",))
    program = DefinitionProgram(plain, "cpu", Twist(0, 0, "'x'", is_first=True))
    assert not definitions.judge(program).failures
    met: dict[FusionCache, Any] = {}
    outcome = definitions._outcome

    def forgetful(*given: Any) -> Any:
        found = outcome(*given)
        return met.setdefault(FusionCache.get(), found) if found.error else met.get(
            FusionCache.get(), found
        )  # fmt: skip

    monkeypatch.setattr(definitions, "_outcome", forgetful)
    assert [one.kind for one in definitions.judge(program).failures] == ["cache"]


def test_what_may_differ_and_what_may_not() -> None:
    eager = torch.tensor([1.0, float("inf"), float("nan"), 100.0])
    shaken = torch.tensor([1.0, float("inf"), float("nan"), 100.001])

    def wrong(*values: float, exact: bool = False) -> list[bool]:
        ours = torch.tensor(values)
        bad = tolerance.wrong(ours, eager, [shaken], is_exact=exact)
        return bad.tolist()  # type: ignore[no-any-return]

    nan, inf = float("nan"), float("inf")
    assert not any(wrong(1.0, inf, nan, 100.001))
    assert not any(wrong(1.0 + 1e-6, inf, nan, 99.999))
    assert all(wrong(1.001, -inf, inf, nan))
    assert wrong(1.0 + 1e-6, inf, nan, 100.0, exact=True) == [True, False, False, False]


def test_a_remainder_of_far_operands() -> None:
    """torch's float32 is NaN there, also where the run in double has a number."""
    eager, double = torch.tensor([NAN]), torch.tensor([0.25], dtype=torch.float64)
    bad = tolerance.wrong(
        torch.tensor([0.5]), eager, [eager], double, words_in="torch.remainder(a, b)"
    )
    assert not bad.any()


def test_a_result_in_another_order_than_torchs() -> None:
    """torch's roll is row-major, a region's result has the order of its operand."""
    inputs = (Input("a", "float32", (2, 3), ("1.0",), layouts=("permuted",)),)
    body = (Statement("v0", "torch.roll({x}, 2, 0)", ("a",)),)
    outside = (Statement("", "{x}.view(-1).add_(1)", ("v0",)),)
    assert judge.judge(Program(inputs, body, ("v0",), between=outside)) == judge.Verdict()


def test_near_a_pole() -> None:
    """Of two of torch's runs, one infinite, any number that is larger than the other's is right."""
    ours, eager = torch.tensor([1e8, -1e8]), torch.full((2,), torch.inf)
    samples = [torch.full((2,), 1e7), torch.full((2,), 2e7)]
    assert tolerance.wrong(ours, eager, samples).tolist() == [False, True]
    ours = torch.tensor([torch.inf, torch.inf])  # a divisor of both signs, and of one
    samples = [torch.tensor([-1e7, 1e6]), torch.tensor([3e7, 1e7])]
    assert tolerance.wrong(ours, samples[0], samples).tolist() == [False, True]


def test_another_kernel_at_a_pole() -> None:
    """Runs that are moved meet no pole, where a vectorised kernel may give NaN for infinity."""
    inputs = (Input("a", "float16", (2,), ("-1.0",)),)
    body = (Statement("v0", "F.gelu(torch.special.xlog1py({x}, {x}))", ("a",)),)
    bounds = judge.Truth(Program(inputs, body, ("v0",))).bounds(0)
    infinite, nan = torch.full((2,), INF).half(), torch.full((2,), NAN).half()
    assert bounds.differ("result v0", infinite, nan) == ("", "")


def test_a_part_of_a_negative_view() -> None:
    inputs = (Input("a", "complex64", (2,), ("complex(0, 1)",), layouts=("neg",)),)
    for text, reason in (("torch.real({x}) ** -1", leeway.ZERO_PART), ("{x} * 2", "")):
        program = Program(inputs, (Statement("v0", text, ("a",)),), ("v0",))
        assert leeway.reason_in(judge.text_of_body(program.text), program) == reason


INF, NAN = float("inf"), float("nan")
LEFT_OPEN: dict[str, tuple[Callable[..., Any], list[Any], list[Any]]] = {
    # what is called, operands for which its result is open, and some for which it is not
    leeway.PRODUCT: (lambda x: x.prod(0), [1e38, 1e38, 1e-40], [1e30, 0.0, INF]),
    leeway.TWO_ZEROS: (lambda x: x.prod(), [0.0, 0.0, INF], [0.0, INF]),
    leeway.SUM: (lambda x: x.half().mean(0), [4e4, 4e4], [1.0, INF]),
    leeway.COMPLEX_SUM: (lambda x: x.sum(0), [complex(INF, 1)], [1j, 2]),
    leeway.SPREAD: (lambda x: torch.var_mean(x)[1], [INF, 1.0], [1.0, 1e10]),
    leeway.COMPLEX: (lambda x: x.sin(), [complex(INF, INF)], [complex(INF, 1)]),
    leeway.ALONE: (lambda x: torch.var_mean(x)[1], [1.0], [1.0, 2.0]),
    leeway.POLE: (torch.digamma, [0.0], [1.0, NAN]),
    leeway.GELU: (
        lambda x: torch.ops.aten.gelu_backward(x, x * 0, approximate="tanh"), [INF], [1.0],
    ),
    leeway.WHOLE: (lambda x: torch.tensor(-2.0) ** x, [3.0000002], [3.0, 3.5]),
    leeway.LEAST: (lambda x: torch.nn.functional.gelu(x.half()), [6e-8], [0.0, 1e-3]),
    leeway.LARGE: (lambda x: torch.tensor(1.0) ** x, [2.0**53], [2.0**20]),
    leeway.ZEROTH: (lambda x: x**0, [0j], [2j]),
    leeway.INVERSE: (lambda x: 0 / x, [1e-40], [1.0, 0.0]),
    leeway.BEYOND: (lambda x: x.half().sub_(x.int()), [1e5], [1e4]),
    leeway.HARDSWISH: (
        lambda x: torch.ops.aten.hardswish_backward(x.nan_to_num(), x), [NAN], [-4.0, INF],
    ),
    leeway.EQUAL_BOUNDS: (lambda x: x.clamp(x * 0, x * 0), [-1.0], [1.0]),
    leeway.MASKED: (
        lambda x: torch.autograd.grad(x.requires_grad_().nan_to_num(), x, x.detach()), [INF], [1.0],
    ),
    leeway.UNDEFINED: (lambda x: x.to(torch.float8_e4m3fn).int(), [NAN], [1.0]),
}


def test_a_sum_in_integers_is_a_cast() -> None:
    for number, expected in ((INF, leeway.UNDEFINED), (2.5, "")):
        with tolerance.Shaken(0) as shaken:
            torch.tensor([number]).half().prod(-1, dtype=torch.int64)
        assert shaken.open == expected


@pytest.mark.parametrize("reason", LEFT_OPEN)
def test_what_torch_leaves_open(reason: str) -> None:
    call, is_open, is_not = LEFT_OPEN[reason]
    for operands, expected in ((is_open, reason), (is_not, "")):
        with tolerance.Shaken(0) as shaken:
            call(torch.tensor(operands))
        assert shaken.open == expected


def test_other_kernels_of_torch_overflow_or_round_elsewhere() -> None:
    large, least = torch.tensor(3e38), torch.tensor([6e-8], dtype=torch.float16)
    with tolerance.Shaken(1):
        found = (
            torch.addcdiv(large, large, large, value=2), torch.erf(least), large.double() / 1e-310,
            torch.threshold(torch.tensor(torch.inf).half(), 1e30, 2),
        )  # fmt: skip
    assert found[0].isfinite() and found[1] == least and found[2].isinf() and found[3] == 2
    assert torch.addcdiv(large, large, large, value=2).isinf()


def test_other_kernels_of_torch_keep_another_zero() -> None:
    x = torch.tensor([-0.0, -1.0, 2.0])
    with tolerance.Shaken(1):
        found = torch.relu(x)
    assert found.signbit().tolist()[1:] == [False, False]
    assert found.signbit()[0] != torch.relu(x).signbit()[0]


def test_complex_infinities_are_added_as_products() -> None:
    for size, expected in ((INF, leeway.COMPLEX_SUM), (1.0, "")):
        x = torch.tensor([complex(size, 0)])
        with tolerance.Shaken(0) as shaken:
            x + x
        assert shaken.open == expected


def test_a_zero_by_which_a_gradient_divides() -> None:
    """A run that is moved divides by a small number instead, and 1 + (inf, NaN) is (NaN, NaN)."""
    made = (
        Statement("v0", "torch.atanh({x})", ("a",)), Statement("v1", "torch.log({x})", ("a",)),
    )  # fmt: skip
    inputs = (Input("a", "complex64", (), ("1",), grad=True),)
    verdict = judge.judge(Program(inputs, made, ("v0", "v1")))
    assert (verdict.failures, verdict.aside) == ((), leeway.COMPLEX)


def test_a_gradient_of_zero_meets_an_infinite_derivative() -> None:
    """torch multiplies the gradient of floor, which is 0, by the derivative of sqrt at 0."""
    made = (
        Statement("v0", "torch.sqrt({x})", ("a",)), Statement("v1", "torch.floor({x})", ("v0",)),
        Statement("v2", "torch.sin({x}) + {y}", ("a", "v1")),
    )  # fmt: skip
    inputs = (Input("a", "float32", (2,), ("0.0", "2.5"), grad=True),)
    verdict = judge.judge(Program(inputs, made, ("v2",)))
    assert (verdict.failures, verdict.aside) == ((), "")
    assert leeway.has_step("F.scaled_dot_product_attention(q, q, q, m)")
    assert leeway.has_step("v0.floor_()") and not leeway.has_step("F.fractional_pool(v0)")


def test_a_rounded_quotient_of_infinities() -> None:
    inputs = (Input("a", "float64", (2,), ("-inf", "2.0"), grad=True),)
    body = (
        Statement("v0", "torch.div({x}, {x}, rounding_mode='floor')", ("a",)),
        Statement("v1", "{x} * 2", ("a",)),
    )
    assert judge.judge(Program(inputs, body, ("v0", "v1"))) == judge.Verdict()
    assert leeway.has_rounded_quotient("a // b") and not leeway.has_rounded_quotient("a / b")


def test_negative_views_beside_torchcompile() -> None:
    body = (Statement("", "{x}.add_(1)", ("a",)),)
    for layout in ("neg", "negimag"):
        inputs = (Input("a", "float32", (2,), ("1.0",), layouts=(layout,)),)
        alone, beside = (Program(inputs, body, ("a",), executors=each)
                         for each in (("fuser",), ("fuser", "'torchcompile'")))  # fmt: skip
        assert leeway.reason_in("", alone) == "" and leeway.reason_in("", beside) == leeway.NEGATIVE


def test_weak_types_beside_16_bits() -> None:
    """A float that a function, or a division, makes of integers has torch's type."""
    x = torch.arange(3)
    for made, other, expected in (
        (lambda x: (x + 3.0) * 2, torch.float16, leeway.WEAK),
        (lambda x: x // 1e30, torch.float16, leeway.WEAK),
        (lambda x: (x + 3.0) * 2, torch.float32, ""),
        (lambda x: x / 2.5, torch.float16, ""),
        (lambda x: torch.lgamma(x) * 2, torch.bfloat16, ""),
    ):
        with tolerance.Shaken(0) as shaken:
            made(x) + torch.ones(3, dtype=other)
        assert shaken.open == expected
    made = (Statement("v0", "{x} + 3.0", ("a",)), Statement("v1", "{x} + {y}", ("v0", "b")))
    inputs = (Input("a", "int64", (2,), ("1",)), Input("b", "float16", (2,), ("1.5",)))
    verdict = judge.judge(Program(inputs, made, ("v1",)))
    assert (verdict.failures, verdict.aside) == ((), leeway.WEAK)


def test_losses_between_two_types() -> None:
    """torch gives both operands one shape first, so that no number gives way."""
    target = Input("b", "float16", (), ("1.5",))
    for kind, expected in (("bfloat16", leeway.MIXED), ("float16", "")):
        inputs = (Input("a", kind, (1,), ("1",)), target)
        body = (Statement("v0", "F.celu(F.mse_loss({x}, {y}))", ("a", "b")),)
        assert judge.judge(Program(inputs, body, ("v0",))) == judge.Verdict((), expected)


def test_an_infinite_gradient_of_attention() -> None:
    inputs = (Input("a", "float32", (1, 1, 2, 8), ("1",), grad=True),)
    attend = "F.scaled_dot_product_attention({x}, {x}, {x})"
    bounds = judge.Truth(
        Program(inputs, (Statement("v0", attend, ("a",)),), ("v0",))
    ).bounds(0)  # fmt: skip
    ours, eager = torch.full((1, 1, 2, 8), NAN), torch.full((1, 1, 2, 8), INF)
    assert bounds.differ("gradient a", ours, eager) == ("", "")
    assert bounds.differ("gradient a", ours * 1j, eager * (1 + 1j)) == ("", "")  # of two parts
    assert bounds.differ("gradient a", ours, torch.ones_like(eager))[0] == "value"
    assert bounds.differ("result v0", ours, eager)[0] == "value"


def test_squares_that_are_lost() -> None:
    for size, expected in ((1e-40, leeway.SPREAD), (0.0, ""), (1e-10, "")):
        with tolerance.Shaken(0) as shaken:
            torch.tensor([size, size]).norm()
        assert shaken.open == expected


def test_a_square_that_is_lost_in_one_of_the_results() -> None:
    for correction, expected in ((2, leeway.SPREAD), (1, "")):  # 0 / 0, where torch has 5e-81 / 0
        with tolerance.Shaken(0) as shaken:
            torch.var(torch.tensor([[0.0, -1e-40], [1.0, 0.0]]), [0], correction=correction)
        assert shaken.open == expected


def test_a_gradient_whose_intermediate_overflows() -> None:
    for size, expected in ((3e38, leeway.GRADIENT), (1.0, "")):
        x = torch.tensor([size, INF], requires_grad=True)
        with tolerance.Shaken(0) as shaken:
            torch.atan2(x, torch.ones(2)).sum().backward()
        assert shaken.open == expected


def test_a_quotient_in_a_gradient_that_overflows() -> None:
    """A kernel that adds to 1 / 1e-40 in one step has -inf for the NaN of inf - inf."""
    for divisor, expected in ((1e-40, leeway.GRADIENT), (1.0, ""), (0.0, "")):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        with tolerance.Shaken(0) as shaken:
            (x / torch.tensor([divisor, 1.0])).sum().backward()
        assert shaken.open == expected
        with tolerance.Shaken(0) as shaken:  # divided in place
            d = torch.tensor([divisor, 1.0], requires_grad=True)
            torch.addcdiv(x, x, d).sum().backward()
        assert shaken.open == expected


def test_complex_numbers_of_half_precision_are_compared() -> None:
    """torch.equal takes none."""
    made = (Statement("v0", "{x} * 1j", ("a",)),)
    program = Program((Input("a", "float16", (2,), ("1.0",)),), made, ("v0",))
    truth = judge.Truth(program)
    assert truth.eager[0].values["result v0"].dtype is torch.complex32
    assert not list(truth.failures(lambda a: (a * 1j,)))
    (wrong,) = truth.failures(lambda a: (a * 2j,))
    assert wrong.kind == "result value"


ELSEWHERE = {  # statements, an operand, what another kernel of torch gives, what none gives
    "F.gelu({x})": ("inf", INF, -INF),
    "{x} ** 1e-310": ("-7.0", 1.0, INF),
    "F.gelu({x} ** 2**63)": ("2.0", INF, -INF),
    "torch.sub({x}, {x}, alpha=-2**63)": ("1.0", 2.0**63, INF),
    "F.elu({x}, inf)": ("0.0", NAN, INF),
    "torch.signbit({x} - {x})": ("inf", None, None),
    "torch.copysign({x}, {x} - {x} + nan)": ("2.0", -2.0, INF),
}


@pytest.mark.parametrize("template", ELSEWHERE)
def test_what_another_kernel_gives(template: str) -> None:
    value, right, wrong = ELSEWHERE[template]
    given = (Input("a", "float32", (4,), (value,)),)
    program = Program(given, (Statement("v0", template, ("a",)),), ("v0",))
    eager = judge.Truth(program).eager[0].values["result v0"]
    bounds = judge.Bounds(program, 0, (("a",), ("v0",)))
    if right is None:
        assert bounds.differ("result v0", ~eager, eager) == ("", "")
        return
    assert bounds.differ("result v0", torch.full_like(eager, right), eager) == ("", "")
    assert bounds.differ("result v0", torch.full_like(eager, wrong), eager)[0] == "value"


def test_an_order_of_terms_rounds_integers_that_are_summed_as_floats() -> None:
    given = (Input("a", "int32", (3,), ("2**31 - 1", "7 - 2**31", "1")),)
    made = (Statement("v0", "torch.sum({x}, 0, dtype=torch.float32)", ("a",)),)
    program = Program(given, made, ("v0",))
    bounds = judge.Bounds(program, 0, (("a",), ("v0",)))
    eager = judge.Truth(program).eager[0].values["result v0"]
    assert bounds.differ("result v0", eager + 100, eager) == ("", "")
    assert bounds.differ("result v0", eager + 1e7, eager)[0] == "value"


def test_errors_that_are_ours_alone_and_right() -> None:
    indices = Input("a", "int64", (1,), ("1",))
    beyond = Statement("v0", "torch.take_along_dim({x}, {x}, 0)", ("a",))
    floats = Input("a", "float32", (2,), ("1.0",), grad=True)
    zeros = Statement("v0", "{x}.new_zeros({x}.shape)", ("a",))
    write = Statement("v1", "{x}[..., 1:].mul_(2)", ("v0",))
    assert not judge.judge(Program((indices,), (beyond,), ("v0",))).failures
    assert not judge.judge(Program((floats,), (zeros, write), ("v0",))).failures
    total = Statement("v0", "torch.sum({x}, ())", ("a",))
    assert not judge.judge(Program((floats,), (total,), ("v0",))).failures


def test_the_number_of_pad() -> None:
    inputs = (Input("a", "bool", (1,), ("True",)),)
    body = (Statement("v0", "F.pad({x}, (1, 2), value=1+2j)", ("a",)),)
    assert judge.judge(Program(inputs, body, ("v0",))) == judge.Verdict()


def test_the_sign_of_a_complex_zero_that_neg_leaves() -> None:
    given = (Input("a", "complex64", (8,), ("1+0j",)),)
    program = Program(given, (Statement("v0", "torch.log(-{x})", ("a",)),), ("v0",))
    bounds = judge.Bounds(program, 0, (("a",), ("v0",)))
    eager = judge.Truth(program).eager[0].values["result v0"]
    assert bounds.differ("result v0", eager.conj_physical(), eager) == ("", "")
    assert bounds.differ("result v0", eager + 1, eager)[0] == "value"


def _outcome_of(
    monkeypatch: pytest.MonkeyPatch, serving: str, examining: str = "", seconds: float = 60
) -> Outcome:
    """What comes of a seed whose processes run these lines, once they are ready."""
    ready = "import json, os, sys, time; tell = lambda **it: print(json.dumps(it), flush=True); "
    ready += f"exec({examining!r}) or os._exit(0) if len(sys.argv) > 1 else tell(ready=1); "
    command = [sys.executable, "-c", ready + "input(); " + serving]
    monkeypatch.setattr("benchmarks.fuzz.workers.command", lambda target: command)
    (outcome,) = outcomes(Work("cpu", first=5, seconds=seconds, jobs=1, limit=1, count=1))
    return outcome


SHRUNK = "tell(ops=['a'], script='drawn'); tell(script='small')"


@pytest.mark.parametrize(("ends", "kind"), [("os._exit(9)", "crash"), ("input()", "hang")])
def test_a_process_that_gives_no_answer_is_a_finding(
    ends: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = _outcome_of(monkeypatch, ends, SHRUNK).findings
    assert (found.kind, found.seed, found.script) == (kind, 5, "small")


@pytest.mark.parametrize("ends", ["os._exit(9)", "input()"])
def test_what_ends_a_process_while_it_shrinks_loses_no_finding(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"kind": "result value", "ops": ["a"], "seed": 5, "detail": "", "script": "drawn"}
    (kept,) = _outcome_of(monkeypatch, f"tell(found=[{found}]); {ends}").findings
    assert (kept.kind, kept.script) == ("result value", "drawn")


def test_an_interrupted_run_has_its_table_and_its_scripts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(work: Work) -> Iterator[Outcome]:
        yield Outcome(5, [Finding("result value", ("a",), 5, "", "the script")])
        raise KeyboardInterrupt

    monkeypatch.setattr(fuzz, "outcomes", interrupted)
    monkeypatch.setattr(fuzz.signal, "signal", lambda *_: None)
    parser = argparse.ArgumentParser()
    fuzz.add_options(parser)
    report = Report({}, str(tmp_path / "found.json"))
    fuzz.run(parser.parse_args(["--target", "cpu", "--out", str(tmp_path)]), report)
    assert report.finish() == 1
    assert "1 groups of findings" in "\n".join(report.lines)
    (found,) = json.loads((tmp_path / "found.json").read_text())["figures"]["findings"]
    assert found["script"] == "the script"


def test_attention_with_a_mask_of_misaligned_operands() -> None:
    """torch's kernel ends the process, unless the mask is such that torch takes another."""
    masked = "F.scaled_dot_product_attention({x}, {x}, {x}, attn_mask=None)"
    for text, layout, is_torchs in (
        (masked, "offset", True), (masked, "sliced", True), (masked, "plain", False),
        (masked.replace(", attn_mask=None", ""), "offset", False),
    ):  # fmt: skip
        inputs = (Input("a", "float32", (1, 1, 3, 8), ("1",), layouts=(layout,)),)
        program = Program(inputs, (Statement("v0", text, ("a",)),), ("v0",))
        assert post_mortem.is_misaligned_attention(program) is is_torchs


def test_a_program_that_torch_dies_of_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = _outcome_of(monkeypatch, "os._exit(9)", "tell(aside='torch itself: crash')")
    assert not outcome.findings and outcome.aside == "torch itself: crash"


def test_a_run_ends_though_its_processes_and_their_children_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The child keeps the pipe of its parent open."""
    monkeypatch.setattr("benchmarks.fuzz.workers.ENDING", 1.0)
    child = "import subprocess; subprocess.Popen(['sleep', '300']); time.sleep(300)"
    outcome = _outcome_of(monkeypatch, child, "time.sleep(300)", seconds=0.5)
    assert outcome.aside == "not ended when the time was up" or outcome.findings


def test_what_thunder_takes_too_long_for_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_mortem, "make", lambda *_: PLANTED)
    monkeypatch.setattr(post_mortem, "run_in_thunder", lambda _: time.sleep(60))
    monkeypatch.setattr(post_mortem, "TRY", 3.0)
    told: list[dict[str, Any]] = []
    post_mortem.examine("cpu", "hang", 5, 60, lambda **facts: told.append(facts))
    assert told == [{"aside": "Thunder too: hang"}]


def test_seeds_that_end_their_process_are_looked_at_in_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's own end is told from ours, and only ours is shrunk."""
    dies_in_torch = Input("a", "int64", (), ("-2**63",))
    quotient = Statement("v0", "torch.div({x}, {n}, rounding_mode='trunc')", ("a", "-1"))
    monkeypatch.setattr(post_mortem, "make", lambda *_: Program((dies_in_torch,), (quotient,), ()))
    told: list[dict[str, Any]] = []
    post_mortem.examine("cpu", "crash", 5, 60, lambda **facts: told.append(facts))
    assert told == [{"aside": "torch itself: crash"}]

    def dies(program: Program) -> None:
        if "torch.floor" in program.text:
            os._exit(9)

    told.clear()
    monkeypatch.setattr(post_mortem, "make", lambda *_: PLANTED)
    monkeypatch.setattr(post_mortem, "verdict_of", dies)
    post_mortem.examine("cpu", "crash", 5, 60, lambda **facts: told.append(facts))
    assert [one["ops"] for one in told][-1] == ("torch.floor(_)",)


def test_integers_that_the_kernels_of_torch_compile_divide_by_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dies(program: Program) -> None:
        if "'torchcompile'" in program.executors:
            os._exit(9)

    monkeypatch.setattr(post_mortem, "run_in_thunder", lambda _: None)
    monkeypatch.setattr(post_mortem, "verdict_of", dies)
    inputs, beside = (Input("a", "int8", (), ("1",)),), ("fuser", "'torchcompile'")
    for text, is_ours in (("3 // {x}", False), ("3 * {x}", True)):
        body = (Statement("v0", text, ("a",)),)
        program = Program(inputs, body, ("v0",), executors=beside)
        monkeypatch.setattr(post_mortem, "make", lambda *_, made=program: made)
        told: dict[str, Any] = {}
        post_mortem.examine("cpu", "crash", 5, 60, told.update)
        assert ("aside" in told) is not is_ours


def test_what_ends_in_torch_in_a_wider_type_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_mortem, "make", lambda *_: PLANTED)
    monkeypatch.setattr(judge, "Bounds", lambda *_: os._exit(9))
    told: list[dict[str, Any]] = []
    post_mortem.examine("cpu", "crash", 5, 60, lambda **facts: told.append(facts))
    assert told == [{"aside": "torch itself: crash"}]
