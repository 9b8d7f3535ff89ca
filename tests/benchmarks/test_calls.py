# SPDX-License-Identifier: Apache-2.0
"""The pieces of a call add up, and the tables have a line for each figure."""

from __future__ import annotations

import pytest
import torch

from benchmarks import calls

CPU = torch.device("cpu")


def test_the_pieces_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "TURNS", 1)
    monkeypatch.setattr(calls, "PARAMETERS", (3,))
    found = calls.pieces(CPU)
    forward, _ = found.pop("forward"), found.pop("backward")
    assert sum(found.values()) == pytest.approx(forward)
    guards = calls.guard_costs(CPU)
    assert guards.keys() == {"3"}
    costs = calls.costs({"eager": lambda f: f}, calls.multiply_add, [torch.ones(2), torch.ones(2)])
    text = "\n".join(
        calls.lines({"calls": {"one kernel": costs}, "pieces": found, "guards": guards})
    )
    assert "one kernel      eager" in text and "guards of   3 parameters" in text
    assert all(name in text for name in found)


def test_each_call_has_its_turns() -> None:
    seen: list[str] = []
    found = calls.least({name: lambda name=name: seen.append(name) for name in "ab"}, CPU)
    assert found.keys() == {"a", "b"} and min(found.values()) > 0
    assert seen.count("a") >= 2 * calls.TURNS
