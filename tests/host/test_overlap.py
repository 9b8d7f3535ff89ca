# SPDX-License-Identifier: Apache-2.0
"""What a plan says of products with communication, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from thunder_fuser import FusionDefinition, MultiDeviceParams, options
from thunder_fuser.communication.products import bandwidths
from thunder_fuser.communication.products.cost import H200, decide

WHERE = {"mesh": [0, 1, 2, 3], "on": "mesh_x"}
M, K, N = 16384, 8192, 2048
PREDICTED = re.compile(r"predicted: pipeline ([0-9.]+) ms, collective ([0-9.]+) ms; rates of (.*)")


def gathered(fd: Any, a: Any, b: Any) -> Any:
    return fd.ops.matmul(fd.ops.all_gather(a, 0, **WHERE), b)


def gathered_weight(fd: Any, a: Any, b: Any) -> Any:
    return fd.ops.linear(a, fd.ops.all_gather(b, 0, **WHERE))


def scattered(fd: Any, a: Any, b: Any) -> Any:
    return fd.ops.reduce_scatter(fd.ops.linear(a, b), 0, **WHERE)


def reduced(fd: Any, a: Any, b: Any) -> Any:
    return fd.ops.all_reduce(fd.ops.matmul(a, b), **WHERE)


def planned(
    build: Callable[..., Any], a: tuple[int, int], b: tuple[int, int], target: str = "h200"
) -> Any:
    inputs = [torch.empty(one, dtype=torch.bfloat16, device="meta") for one in (a, b)]
    with FusionDefinition() as fd:
        fd.add_output(build(fd, *map(fd.from_pytorch, inputs)))
    return fd.plan(inputs, target=target)


@pytest.mark.parametrize(("build", "a", "b", "kind", "sizes"), [
    (gathered, (M // 4, K), (K, N), "all_gather_matmul", (M, K, N)),
    (gathered_weight, (M, K), (N // 4, K), "all_gather_matmul", (N, K, M)),
    (scattered, (M, K), (N, K), "matmul_reduce_scatter", (M, K, N)),
    (reduced, (M, K), (K, N), "matmul_all_reduce", (M, K, N)),
])  # fmt: skip
def test_the_decision_is_in_the_plan(
    build: Any, a: tuple[int, int], b: tuple[int, int], kind: str, sizes: tuple[int, int, int]
) -> None:
    plan = planned(build, a, b)
    (note,) = plan.notes
    assert str(decide(kind, *sizes, dtype="bfloat16", world=4, rates=H200)) in note
    assert note.endswith("; rates of two H200; this machine's are measured at the first call")
    assert note in str(plan).splitlines()


def test_the_rates_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as this process knows them, for as many ranks."""
    class Group:
        def size(self) -> int:
            return 4

    slow = H200.__class__(H200.flops, H200.launch, 1e9, 1.0, 255e9, 22e-6, 132)
    monkeypatch.setattr(bandwidths, "_GROUPS", {Group(): {"cuda": slow}})
    (note,) = planned(gathered, (M // 4, K), (K, N)).notes
    assert "4 ranks: collective; predicted: pipeline" in note
    assert note.endswith("; rates of this machine")
    assert bandwidths.known_rates(2, "cuda") is bandwidths.known_rates(4, "cpu") is None


def test_what_was_asked_for() -> None:
    def note(**lower: Any) -> str:
        with options(multi_device=MultiDeviceParams().with_(lower=lower)):
            return "".join(planned(gathered, (M // 4, K), (K, N)).notes)

    times = [PREDICTED.search(note(overlap="always", chunks=chunks)) for chunks in (1, 8)]
    assert times[0] and times[1] and times[0][1] != times[1][1]
    assert "pipeline in 8 chunks" in note(overlap="always", chunks=8)
    assert "4 ranks: collective;" in note(backend="process_group")
    assert note(overlap="never") == ""


def test_where_there_are_none() -> None:
    """On a CPU nobody asked; a product without communication decides nothing."""
    assert planned(gathered, (4, 8), (8, 12), "cpu").notes == ()
    assert planned(lambda fd, a, b: fd.ops.matmul(a, b), (M, K), (K, N)).notes == ()
