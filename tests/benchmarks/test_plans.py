# SPDX-License-Identifier: Apache-2.0
"""Plans beside the best ones there are, their growth with the fusion, and that they never vary.

`python -m benchmarks plan` runs more of all three.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.plans import run as plans
from benchmarks.plans.exhaustive import least_cost, plan_cost
from benchmarks.plans.families import FAMILIES
from benchmarks.plans.random_graphs import random_graph
from thunder_fuser.segment import acceptance
from thunder_fuser.segment.acceptance import MAX_OPS
from thunder_fuser.segment.acyclic import GroupOrder
from thunder_fuser.segment.candidate import Candidate
from thunder_fuser.target import H200


def test_plans_are_near_the_best() -> None:
    ratios = plans.optimum_ratios(48)
    assert len(ratios) >= 36
    assert min(ratios) > 1 - 1e-9  # or the search for the best is none
    assert sum(ratios) / len(ratios) <= plans.MEAN
    assert max(ratios) <= plans.MOST


def test_the_best_plan_costs_less_than_one_kernel_an_op() -> None:
    fd, inputs = random_graph(2, 6)
    plan = fd.plan(inputs, target="h200")
    apart = H200.launch_bytes * len(plan.fusion.exprs)
    assert least_cost(plan.fusion, H200) <= plan_cost(plan, H200) < apart


MOST_ASKED = 32  # for each expression of the fusion, however many it has


class Counter:
    """What planning asks and searches: expressions shown to schedulers, steps of path searches."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        part = acceptance.Acceptance.part

        def count_part(own: acceptance.Acceptance, one: Candidate) -> object:
            self.count += len(one.exprs)
            return part(own, one)

        step = GroupOrder._neighbours

        def count_step(own: GroupOrder, edges: list[list[int]], group: int) -> list[int]:
            self.count += 1
            return step(own, edges, group)

        patch.setattr(acceptance.Acceptance, "part", count_part)
        patch.setattr(GroupOrder, "_neighbours", count_step)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_asked_grows_with_the_fusion(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(monkeypatch)
    for ops in (MAX_OPS // 2, 4 * MAX_OPS):
        counter.count = 0
        fd, inputs = FAMILIES[family](ops)
        fd.plan(inputs, target="h200")
        assert counter.count <= MOST_ASKED * ops


def test_plans_do_not_depend_on_hashes() -> None:
    assert plans.different_plans(60, (77,)) == 1


def test_the_command_writes_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("RoPE, Phi-3", "Llama-2 RMS norm backward")
    monkeypatch.setattr(plans, "GRAPHS", {name: plans.GRAPHS[name] for name in names})
    path = tmp_path / "plan.json"
    arguments = ["plan", "--parts", "graphs", "optimum", "--fusions", "4"]
    assert main([*arguments, "--json", str(path)]) == 0
    content = json.loads(path.read_text())["figures"]
    assert [row["graph"] for row in content["graphs"]] == [names[0], names[0], names[1]]
    assert all(1 <= row["ratio"] <= plans.BOUND for row in content["graphs"])
    assert content["optimum"]["fusions"] > 0
    assert "over least" in capsys.readouterr().out


def test_a_wrong_command_line() -> None:
    with pytest.raises(SystemExit) as raised:
        main(["plan", "--fusions", "0"])
    assert raised.value.code == 2
