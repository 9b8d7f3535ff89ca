# SPDX-License-Identifier: Apache-2.0
"""What a plan is made of, what it costs, and that its segments compute what the fusion means."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
from helpers.graphs import Graph, meta, rows, softmax
from helpers.strategies import Case, cases
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.prices import forced
from thunder_fuser import compiler
from thunder_fuser.analysis.part import Part
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import ScheduleError
from thunder_fuser.host.call.dispatch import input_keys
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.options import compile_options
from thunder_fuser.presegment import run_passes
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.runtime.eager.evaluate import Evaluator, evaluate, values_of
from thunder_fuser.schedule import registry
from thunder_fuser.schedule.pointwise import Pointwise
from thunder_fuser.schedule.scheduler import Match, NoMatch
from thunder_fuser.segment.acceptance import Acceptance
from thunder_fuser.segment.candidate import Candidate
from thunder_fuser.segment.fusion_info import FusionInfo
from thunder_fuser.segment.merge import Groups, by_gain, coarsen, merge_greedily
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.segment.run_order import by_liveness, peak
from thunder_fuser.segment.segmenter import candidates_of, each_alone, planned
from thunder_fuser.segment.units import merged, units_of
from thunder_fuser.target import CPU, H200

D = DataType
SLOW = settings(
    deadline=None, derandomize=True, phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def names(plan: SegmentedFusion) -> list[str]:
    return [one.scheduler.name for one in plan.segments]


# ------------------------------------------------------------------------------------ nvFuser #3832


def forced_beside_a_norm(columns: int) -> Graph:
    """A row normalised by its sum, and an unrelated value behind a boundary."""
    fd, x = rows(4, columns, dtype=D.BFloat16)
    other = fd.define_tensor(shape=[-1], contiguity=True, dtype=D.BFloat16)
    wide = fd.ops.set(fd.ops.cast(x, D.Float))
    total = fd.ops.broadcast(fd.ops.sum(wide, [1]), [False, True])
    fd.add_output(fd.ops.cast(fd.ops.add(wide, total), D.BFloat16))
    fd.add_output(fd.ops.segment_set(fd.ops.cast(other, D.Float)))
    return fd, [meta(4, columns, dtype=D.BFloat16), meta(10, dtype=D.BFloat16)]


def test_a_forced_segment_does_not_widen_what_stays_on_chip() -> None:
    fd, (_, other) = forced_beside_a_norm(65536)
    plan = fd.plan([meta(128, 65536, dtype=D.BFloat16), other], target="h200")
    assert names(plan) == ["persistent", "pointwise"]
    norm, forced = plan.segments
    (kept,) = norm.persistent_buffers
    assert (kept.name, kept.dtype, kept.bytes) == (norm.inputs[0], D.BFloat16, 131072)
    assert norm.inputs == (plan.fusion.inputs[0],) and forced.inputs == (plan.fusion.inputs[1],)
    assert plan.edge_bytes == plan.lower_bound and plan.peak_bytes == 0
    assert not forced.persistent_buffers


@pytest.mark.parametrize(("target", "columns"), [("cpu", 65536), ("emulator", 512)])
def test_its_results(target: str, columns: int) -> None:
    fd, _ = forced_beside_a_norm(columns)
    x, other = torch.randn(4, columns).bfloat16(), torch.randn(10).bfloat16()
    got, forced = fd.execute([x, other], target=target)
    want = x.double() + x.double().sum(1, keepdim=True)
    torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=1e-2)
    assert torch.equal(forced, other.float())


def test_the_kernel_of_a_norm_is_one_with_and_without_a_forced_segment() -> None:
    found = forced(2, torch.device("cpu"), seconds=0.0)
    assert found["same_kernel"]
    assert found["schedulers"]["forced"] == ["persistent", "pointwise"]
    assert found["schedulers"]["norm alone"] == ["persistent"]


# ----------------------------------------------------------------------------- what plans look like


def two_sums(dtype: DataType) -> Graph:
    """Sums over rows and over columns of an expensive bf16 value, which both cast up."""
    fd, x = rows(64, 128, dtype=dtype)
    y = fd.ops.cast(fd.ops.cast(fd.ops.tanh(x), D.BFloat16), D.Float)
    fd.add_output(fd.ops.sum(fd.ops.mul(y, y), [1]))
    fd.add_output(fd.ops.max(y, [0]))
    return fd, [meta(64, 128, dtype=dtype)]


def test_an_edge_carries_the_narrow_value_and_both_sides_cast_it() -> None:
    fd, inputs = two_sums(D.Float)
    plan = fd.plan(inputs, target="h200")
    made = {name for one in plan.segments for name in one.outputs}
    edges = {n for one in plan.segments for n in one.inputs if n in made}
    full = [n for n in edges if plan.fusion.tensors[n].sizes == (64, 128)]
    assert [plan.fusion.tensors[n].dtype for n in full] == [D.BFloat16]
    up = [e for e in plan.fusion.exprs if e.op == "cast" and e.inputs == (full[0],)]
    assert sum(set(up) <= set(one.ops) for one in plan.segments) == 2


def test_readers_of_one_input_share_a_segment() -> None:
    fd, x = rows(1024, 1024)
    for number in (1.0, 2.0, 3.0):
        fd.add_output(fd.ops.tanh(fd.ops.mul(x, number)))
    fd.add_output(fd.ops.matmul(x, x))
    plan = fd.plan([meta(1024, 1024)], target="h200")
    assert sorted(names(plan)) == ["expr_eval", "pointwise"]
    assert max(len(one.outputs) for one in plan.segments) == 3


def test_halves_of_a_made_value_are_read_where_it_is_made() -> None:
    fd, x = rows(64, 128)
    y = fd.ops.tanh(x)
    left = fd.ops.slice(y, [0, 0], [64, 64])
    right = fd.ops.slice(y, [0, 64], [64, 128])
    fd.add_output(fd.ops.cat([fd.ops.neg(right), left], 1))
    plan = fd.plan([meta(64, 128)], target="h200")
    assert names(plan) == ["pointwise"]
    assert plan.edge_bytes == 2 * 64 * 128 * 4


def repeated_and_turned(rows: int) -> Graph:
    """The gradient of a repeated head, summed over its copies and turned, as in RoPE's backward."""
    fd = FusionDefinition()
    x = fd.define_tensor(shape=[-1] * 3, contiguity=True, dtype=D.BFloat16)
    total = fd.ops.sum(fd.ops.cast(x, D.Float), [1])
    left = fd.ops.slice(total, [0, 0], [rows, 64])
    right = fd.ops.slice(total, [0, 64], [rows, 128])
    turned = fd.ops.cat([fd.ops.neg(right), left], 1)
    fd.add_output(fd.ops.cast(fd.ops.add(total, turned), D.BFloat16))
    return fd, [meta(rows, 4, 128, dtype=D.BFloat16)]


def test_a_short_sum_is_made_where_it_is_read() -> None:
    fd, inputs = repeated_and_turned(1024)
    plan = fd.plan(inputs, target="h200")
    assert names(plan) == ["pointwise"] and plan.edge_bytes == 5 * 1024 * 128 * 2


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_results_of_a_short_sum(target: str) -> None:
    fd, _ = repeated_and_turned(16)
    x = torch.randn(16, 4, 128).bfloat16()
    (got,) = fd.execute([x], target=target)
    total = x.double().sum(1)
    want = total + torch.cat([-total[:, 64:], total[:, :64]], 1)
    torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=2**-7)


def test_a_slice_alone_counts_as_what_it_reads() -> None:
    fd, x = rows(64, 128)
    fd.add_output(fd.ops.tanh(fd.ops.slice(x, [0, 0], [64, 32])))
    assert fd.plan([meta(64, 128)], target="h200").edge_bytes == 2 * 64 * 32 * 4


def test_the_text_says_what_a_segment_moves_and_keeps() -> None:
    fd, inputs = softmax(64, 8192, dtype=D.BFloat16)
    text = str(fd.plan(inputs, target="h200"))
    for part in ("persistent(", "stays on chip: T0 (bf16, 16384 bytes a row in registers)",
                 "bytes at its edges", "bytes at segment edges", "bytes of intermediates at most"):
        assert part in text


def test_the_picture_has_every_segment_and_edge() -> None:
    fd, inputs = two_sums(D.Float)
    plan = fd.plan(inputs, target="h200")
    lines = plan.dot().splitlines()
    assert lines[0] == "digraph plan {" and lines[-1] == "}"
    for number, one in enumerate(plan.segments):
        assert sum(line.startswith(f"  s{number} [") for line in lines) == 1
        arrows = [line for line in lines if f"-> s{number} [" in line]
        assert len(arrows) == len(one.inputs)


# ---------------------------------------------------------------------------------- forced segments


def test_a_value_is_never_read_where_its_boundary_is() -> None:
    fd, x = rows(64, 128)
    middle = fd.ops.segment_set(fd.ops.tanh(x))
    fd.add_output(fd.ops.exp(middle))
    fd.add_output(fd.ops.sin(fd.ops.segment_set(fd.ops.cos(middle))))
    plan = fd.plan([meta(64, 128)], target="h200")
    for one in plan.segments:
        cut = {e.outputs[0] for e in one.ops if e.op == "segment_set"}
        assert not any(cut & set(e.inputs) for e in one.ops)
    assert len(plan.segments) == 3


def around(boundary: str) -> SegmentedFusion:
    """exp(x) * tanh(boundary(exp(x))): the product may not join exp(x) around the boundary."""
    fd, x = rows(1024, 1024)
    a = fd.ops.exp(x)
    between = fd.ops.segment_set(a) if boundary == "segment_set" else fd.ops.matmul(a, a)
    between = fd.ops.segment_set(fd.ops.tanh(between))
    fd.add_output(fd.ops.mul(a, between))
    return fd.plan([meta(1024, 1024)], target="h200")


@pytest.mark.parametrize("boundary", ["segment_set", "matmul"])
def test_a_join_around_a_boundary_is_refused_with_the_path(boundary: str) -> None:
    plan = around(boundary)
    paths = [r.reason for one in plan.refusals for r in one.reasons if "cycle" in r.reason]
    assert paths and all(" -> " in path for path in paths)
    made: set[str] = set(plan.fusion.inputs)
    for one in plan.segments:
        assert set(one.inputs) <= made
        made |= set(one.outputs)


def test_what_no_scheduler_takes_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fd, x = rows(64, 128)
    fd.add_output(fd.ops.tanh(fd.ops.exp(x)))
    fd.add_output(fd.ops.sin(x))

    class Picky(Pointwise):
        name = "picky"

        @classmethod
        def match(cls, part: Part, *given: Any) -> Match | NoMatch:
            bad = [e.op for e in part.exprs if e.op in ("tanh", "sin")]
            return NoMatch("picky", f"no {bad[0]}") if bad else cls(part, *given)

    monkeypatch.setattr(registry, "SCHEDULERS", (Picky,))
    with pytest.raises(ScheduleError, match="2 expressions that no scheduler takes") as raised:
        fd.plan([meta(64, 128)])
    text = str(raised.value)
    assert "fd.ops.tanh(T1): picky: no tanh" in text and "fd.ops.sin(T0): picky: no sin" in text
    assert "fd.ops.exp(T0)" not in text


# ----------------------------------------------------------------------------------------- liveness


def test_segments_run_in_the_order_that_keeps_few_bytes_alive() -> None:
    """Four large values, each made and used up: made one after the other, not all at first."""
    fd, x = rows(256, 256)
    inputs = [fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(3)]
    larges = [fd.ops.matmul(one, one) for one in (x, *inputs)]
    for large in larges:
        fd.add_output(fd.ops.matmul(large, large))
    plan = fd.plan([meta(256, 256)] * 4, target="h200")
    info = FusionInfo(plan.fusion, H200)
    candidates = [_candidate(info, one) for one in plan.segments]
    widest = max(range(20), key=lambda seed: peak(info, _shuffled(info, candidates, seed)))
    worst = _shuffled(info, candidates, widest)
    assert peak(info, by_liveness(info, worst)) < peak(info, worst)
    assert plan.peak_bytes == peak(info, candidates) == 256 * 256 * 4


def _candidate(info: FusionInfo, one: Any) -> Candidate:
    made = (info.number[e.outputs[0]] for e in one.ops)
    exprs = frozenset(at for at in made if not info.is_number(at))
    return Candidate(exprs, frozenset(one.outputs))


def _shuffled(info: FusionInfo, candidates: Sequence[Candidate], seed: int) -> list[Candidate]:
    """A random order in which every candidate reads earlier ones."""
    chance, left, have = random.Random(seed), list(candidates), set(info.fusion.inputs)
    line: list[Candidate] = []
    while left:
        ready = [d for d in left if all(
            n in have for at in d.exprs for n in info.operands[at]
            if info.number.get(n, -1) not in d.exprs
        )]
        one = chance.choice(ready)
        left.remove(one)
        line.append(one)
        have |= one.stores
    return line


# ------------------------------------------------------------------------------- they are all right


def specialised(case: Case) -> Acceptance:
    keys = input_keys(case.fusion, case.inputs)
    options = compile_options()
    return Acceptance(FusionInfo(run_passes(specialise(case.fusion, keys), options), CPU), options)


def at_random(seed: int) -> Any:
    chance = random.Random(seed)
    return lambda groups, a, b: chance.choice((-chance.random(), 1.0))


def plans(case: Case, seed: int) -> list[SegmentedFusion]:
    """Groups that grew at random, coarsened units as in large fusions, lone expressions."""
    acceptance = specialised(case)
    units = units_of(acceptance.info)
    candidates = [
        candidates_of(merge_greedily(units, acceptance, at_random(seed))),
        candidates_of(merge_greedily(coarsen(acceptance, units), acceptance, by_gain)),
    ]
    with suppress(ScheduleError):  # what only fits together with another one
        candidates.append(each_alone(acceptance))
    good = [d for d in candidates if not any(acceptance.refusals(o) for o in d)]
    return [planned(acceptance, one, ()) for one in good]


@settings(SLOW, max_examples=30)
@given(case=cases(most_ops=60), seed=st.integers(0, 1 << 30))
def test_segments_compute_what_the_fusion_means(case: Case, seed: int) -> None:
    """Each runs expressions of the fusion, in an order in which all that they read is there."""
    keys = input_keys(case.fusion, case.inputs)
    whole = compiler.plan_segments(case.fusion, keys, CPU, compile_options())
    for plan in (whole, *plans(case, seed)):
        torch.manual_seed(0)
        want = values_of(plan.fusion, case.inputs)
        torch.manual_seed(0)
        got = _piece_by_piece(plan, case.inputs)
        for output in plan.fusion.outputs:
            torch.testing.assert_close(
                got[output.name], want[output.name], rtol=0, atol=0, equal_nan=True
            )


def _piece_by_piece(plan: SegmentedFusion, inputs: Sequence[Any]) -> dict[str, torch.Tensor]:
    evaluator = Evaluator(plan.fusion.tensors, torch.device("cpu"))
    evaluator.read(plan.fusion.inputs, inputs)
    evaluator.draw(plan.fusion)
    memory = dict(evaluator.values)
    for one in plan.segments:
        evaluator.values = {name: memory[name] for name in one.inputs}
        evaluator.run(one.ops)
        memory.update({name: evaluator.values[name] for name in one.outputs})
    return memory


@settings(SLOW, max_examples=4)
@given(case=cases(tame=True, most_ops=12), seed=st.integers(0, 1 << 30))
def test_kernels_of_random_partitions_agree_with_the_oracle(case: Case, seed: int) -> None:
    keys = input_keys(case.fusion, case.inputs)
    for plan in plans(case, seed)[:1]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiler, "plan_segments", lambda *_, plan=plan: plan)
            on, options = torch.device("cpu"), compile_options()
            program = compiler.compile_fusion(case.fusion, keys, CPU, options, on)
        want = evaluate(case.fusion, case.fresh_inputs())
        got = program.run(*case.fresh_inputs())
        for ours, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2, equal_nan=True)


@settings(SLOW, max_examples=25)
@given(case=cases(most_ops=25), seed=st.integers(0, 1 << 30), large=st.booleans())
def test_summaries_say_what_schedulers_say(case: Case, seed: int, large: bool) -> None:
    """Of pairs of random groups: what summaries accept is accepted, and what they refuse not."""
    acceptance = specialised(case)
    info = acceptance.info
    units = units_of(info)
    units = coarsen(acceptance, units) if large else units
    groups: Groups = merge_greedily(units, acceptance, at_random(seed))
    for a, b in dict.fromkeys(groups.pairs()):
        if a == b:
            continue
        both = merged(info, groups.summary[a], groups.summary[b])
        asked = Candidate(frozenset(both.exprs), frozenset(both.stores))
        assert bool(acceptance.refuses(both)) == bool(acceptance.refusals(asked)), (a, b)


def test_an_unused_result_of_a_torch_call_needs_no_reader() -> None:
    fd = FusionDefinition()
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    values, _ = fd.ops.topk(x, 2, 1, True, True)
    fd.add_output(fd.ops.exp(values))
    assert "expr_eval" in names(fd.plan([meta(8, 8)]))
