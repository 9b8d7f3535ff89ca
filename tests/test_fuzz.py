# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks fuzz`: a few seeds, a planted defect, and that seeds repeat."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from benchmarks.fuzz import definitions, judge, tolerance
from benchmarks.fuzz.definitions import DefinitionProgram, Twist
from benchmarks.fuzz.findings import Finder, make
from benchmarks.fuzz.generate import program_of
from benchmarks.fuzz.program import Input, Program, Statement
from benchmarks.fuzz.workers import Work, outcomes
from thunder_fuser import FusionCache

CLEAN = (4, 5, 6, 7, 9, 11)  # definitions among them


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


@pytest.mark.parametrize(("ends", "kind"), [("os._exit(9)", "crash"), ("input()", "hang")])
def test_a_process_that_gives_no_answer_is_a_finding(
    ends: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = "import json, os; print(json.dumps({'ready': True}), flush=True); input(); "
    command = [sys.executable, "-c", ready + ends]
    monkeypatch.setattr("benchmarks.fuzz.workers.command", lambda target: command)
    work = Work("cpu", first=5, seconds=60, jobs=1, limit=1, count=1)
    (found,) = [one for outcome in outcomes(work) for one in outcome.findings]
    assert found.kind == kind and found.seed == 5 and "def program" in found.script
