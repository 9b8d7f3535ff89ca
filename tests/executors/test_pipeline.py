# SPDX-License-Identifier: Apache-2.0
"""The tables of passes: each can be left out by name, or says why not; a broken plan is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from thunder_fuser import options
from thunder_fuser.errors import OptionError, VerifyError
from thunder_fuser.executors.pipeline import REGION_PASSES, TRACE_PASSES
from thunder_fuser.executors.regions.plan import Plan
from thunder_fuser.executors.regions.region import Region
from thunder_fuser.explain.jitted import jit
from thunder_fuser.trace.prepared import Pass

PASSES = {each.name: each.needed for each in TRACE_PASSES} | {
    each.name: each.needed for each in REGION_PASSES
}
OPTIONAL = [name for name, needed in PASSES.items() if not needed]


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = F.gelu(F.linear(F.layer_norm(x, (8,)), w)).bfloat16().float()
    return F.relu(F.linear(h, w.t()) + x, inplace=True).permute(1, 0).reshape(-1).sum()


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return (
        torch.randn(4, 8, generator=generator).requires_grad_(),
        torch.randn(16, 8, generator=generator).requires_grad_(),
    )


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_pass_may_be_left_out(name: str) -> None:
    args = arguments()
    jitted = jit(block, strict=True, skip_passes=name)
    expected = torch.autograd.grad(block(*args), args)
    found = torch.autograd.grad(jitted(*args), args)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", [name for name, needed in PASSES.items() if needed])
def test_a_needed_pass_says_why(name: str) -> None:
    with pytest.raises(OptionError, match="can be left out") as caught:
        jit(block, skip_passes=name)(*arguments())
    assert PASSES[name] in str(caught.value)


def test_an_unknown_pass_names_the_nearest() -> None:
    for name in ("drop_roundings", "remove_common"):
        with pytest.raises(OptionError, match=f"write {name}"):
            jit(block, skip_passes=name[:-1])(*arguments())


def test_a_program_that_is_made_inside_of_the_option_and_one_behind_it(tmp_path: Path) -> None:
    """A function traced before, called with other strides: the option in force then counts."""
    x = torch.randn(4, 8)
    jitted = jit(lambda x: torch.exp(x) + torch.exp(x), strict=True, dump=str(tmp_path))
    jitted(x)
    with options(skip_passes="drop_roundings, remove_common"):
        jitted(x.t().contiguous().t())
    jitted(torch.randn(4, 16)[:, ::2])
    passes = [path.read_text() for path in sorted(tmp_path.rglob("1_passes.txt"))]
    assert sum("== remove_common\n" in text for text in passes) == 2


def test_passes_over_traces_and_over_fusions_are_left_out_together(tmp_path: Path) -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x).bfloat16().float() + torch.exp(x)

    x = torch.randn(4, 8)
    for at, skipped in enumerate(["", "drop_roundings, remove_round_trips, remove_common"]):
        folder = tmp_path / str(at)
        found = jit(twice, strict=True, skip_passes=skipped, dump=str(folder))(x)
        torch.testing.assert_close(found, twice(x), rtol=1e-2, atol=0)
        passes = [path.read_text() for path in folder.rglob("1_passes.txt")]
        assert any("== remove_common\n" in text for text in passes) == (at == 0)
        assert ("== drop_roundings\n" in (folder / "plan_0.txt").read_text()) == (at == 0)


def lose_an_item(plan: Plan) -> Plan:
    first = next(item for item in plan.items if isinstance(item, Region))
    return plan.with_items(item for item in plan.items if item is not first)


def donate_what_is_not_read(plan: Plan) -> Plan:
    return plan.noting({plan.regions[0].number: {"donated": ("nothing",)}})


def return_nothing(plan: Plan) -> Plan:
    return replace(plan, items=plan.items[:-1])


@pytest.mark.parametrize("broken", [lose_an_item, donate_what_is_not_read, return_nothing])
def test_a_broken_region_pass_is_named(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = (*REGION_PASSES, Pass(broken))
    monkeypatch.setattr("thunder_fuser.executors.fuser.REGION_PASSES", changed)
    with pytest.raises(VerifyError, match=broken.__name__):
        jit(block)(*arguments())
