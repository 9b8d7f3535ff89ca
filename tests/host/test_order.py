# SPDX-License-Identifier: Apache-2.0
"""The order of a host program's nodes, and what its verifier refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from helpers.meshes import MESH, as_rank

from thunder_fuser import FusionDefinition
from thunder_fuser.errors import VerifyError
from thunder_fuser.host.programs.nodes import (
    Allocate,
    Call,
    Collective,
    CopyInto,
    Draw,
    Free,
    HostNode,
    LaunchKernel,
    Pieces,
    Return,
    ReturnedValue,
    View,
    Wait,
)
from thunder_fuser.host.programs.program import ordered, verify

WHERE = {"mesh": MESH[2], "on": "mesh_x"}
ATTRS = (("mesh", (0, 1)), ("on", "mesh_x"))


def allocate(name: str) -> Allocate:
    return Allocate(name, (4,), (1,), torch.float32)


def kernel(number: int, reads: Sequence[str], writes: Sequence[str]) -> LaunchKernel:
    return LaunchKernel(
        number, "{run}({arguments})", "{}", tuple((name, None) for name in reads), tuple(writes)
    )  # type: ignore[arg-type]


def post(operand: str, name: str) -> Collective:
    return Collective("all_reduce", operand, Wait(name), ATTRS)


def call(reads: str, makes: str) -> Call:
    return Call("torch_0", (reads,), (reads,), (makes,), is_listed=True)


@pytest.mark.parametrize(("node", "effects"), [
    (allocate("T1"), ("", "T1", "", "")),
    (View("T1", "T0"), ("T0", "T1", "", "")),
    (CopyInto("T1", "T0"), ("T0", "", "T1", "")),
    (Free(("T1", "T2")), ("", "", "", "T1 T2")),
    (kernel(0, ["T0", "T1", "T0"], ["T2"]), ("T0 T1", "", "T2", "")),
    (call("T0", "T1"), ("T0", "T1", "", "")),
    (Draw((("S0", None), ("S1", 0))), ("", "S0 S1", "", "")),
    (Pieces("matmul", (("T0", 0), ("T1", None)), "T2", 0, 6, 2, 2), ("T0 T1", "", "T2", "")),
    (post("T0", "T1"), ("T0", "T1_sent", "", "")),
    (Wait("T1"), ("T1_sent", "T1", "", "")),
    (Return((ReturnedValue("T0"), ReturnedValue("T1"))), ("T0 T1", "", "", "")),
])  # fmt: skip
def test_effects(node: HostNode, effects: tuple[str, ...]) -> None:
    found = (node.reads, node.makes, node.writes, node.frees)
    assert found == tuple(tuple(names.split()) for names in effects)


def texts(nodes: Any) -> list[str]:
    return [str(node).replace(", mesh=(0, 1), on='mesh_x'", "") for node in nodes]


STEPS = ([post("T0", "T1")], [allocate("T2"), kernel(1, ["T0"], ["T2"])], [call("T1", "T3")])


def test_a_wait_stands_before_the_first_step_that_reads_what_arrives() -> None:
    assert texts(ordered(STEPS, {"T0", "T3"}, is_early=True)) == [
        "T1_sent = all_reduce(T0)",
        *texts(STEPS[1]),
        "T1 = wait(T1_sent, 'T1')", "del T1_sent", "T3, = torch_0(T1)", "del T1",
    ]  # fmt: skip


def test_a_wait_behind_its_post_if_asked() -> None:
    found = texts(ordered(STEPS, {"T3"}, is_early=False))
    assert found[:3] == ["T1_sent = all_reduce(T0)", "T1 = wait(T1_sent, 'T1')", "del T1_sent"]
    assert found[-3:] == ["del T0", "T3, = torch_0(T1)", "del T1"]


def test_what_nobody_reads_is_awaited_at_the_end() -> None:
    steps = ([post("T0", "T2"), post("T1", "T3")], [call("T0", "T4")])
    assert texts(ordered(steps, {"T0", "T1"}, is_early=True))[-4:] == [
        "T2 = wait(T2_sent, 'T2')", "del T2_sent", "T3 = wait(T3_sent, 'T3')", "del T3_sent"
    ]  # fmt: skip


def test_memory_that_is_sent_is_not_overwritten_before_it_has_arrived() -> None:
    """A kernel takes the memory of a donated argument, which a collective still sends."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True, donated=True)
        total = fd.ops.all_reduce(x, **WHERE)
        fd.add_output(fd.ops.exp(x))
        fd.add_output(fd.ops.neg(total))
    with as_rank(0, 2):
        nodes = list(fd.program([torch.ones(4, 6)]).nodes)
    at = {type(node): number for number, node in reversed([*enumerate(nodes)])}
    assert nodes[at[Collective]].reads == ("T0",) and nodes[at[View]].reads == ("T0",)
    assert at[Collective] < at[Wait] < at[View]
    nodes.insert(at[View] + 3, nodes.pop(at[Wait]))
    with pytest.raises(VerifyError, match=r"a wait for T1_sent first, got a write of what it sen"):
        verify(["T0"], nodes)


def test_a_kernel_that_would_turn_the_order_is_cut() -> None:
    """One kernel for exp and mul would post the second collective first."""
    with FusionDefinition() as fd:
        x, z = (fd.define_tensor([-1, -1], True) for _ in range(2))
        e = fd.ops.exp(x)
        first = fd.ops.all_reduce(e, **WHERE, reduce="max")
        second = fd.ops.all_reduce(z, **WHERE)
        fd.add_output(first)
        fd.add_output(fd.ops.mul(e, second))
    with as_rank(0, 2):
        program = fd.program([torch.ones(4, 6), torch.ones(4, 6)])
    posts = [node for node in program.nodes if isinstance(node, Collective)]
    assert ["max" in str(node) for node in posts] == [True, False]


# ---- the verifier

PROGRAM: tuple[HostNode, ...] = (
    post("T0", "T1"), Wait("T1"), Free(("T1_sent",)), call("T1", "T2"), Free(("T1",)),
    Return((ReturnedValue("T2"),)),
)  # fmt: skip
POST, WAIT, DEL_SENT, CALL, DEL, RETURN = range(len(PROGRAM))

Change = Callable[[list[HostNode]], Any]
BROKEN: dict[str, tuple[Change, str]] = {
    "no wait": (lambda p: p.pop(WAIT), "T1 to be alive"),
    "nor a reader": (lambda p: p.__setitem__(slice(WAIT, RETURN), [call("T0", "T2")]),
                     "a wait for T1_sent, got none"),
    "read early": (lambda p: p.__setitem__(WAIT, call("T1_sent", "T1")),
                   "a wait for T1_sent first, got a read"),
    "awaited twice": (lambda p: p.__setitem__(DEL_SENT, Wait("T1")), "awaited once"),
    "no post": (lambda p: p.__setitem__(POST, call("T0", "T1_sent")), "one collective before it"),
    "read when freed": (lambda p: p.insert(RETURN, call("T1", "T4")), "T1 to be alive"),
    "freed twice": (lambda p: p.insert(RETURN, Free(("T1",))), "T1 to be alive"),
    "freed, not made": (lambda p: p.insert(RETURN, Free(("T9",))), "T9 to be alive"),
    "memory not made": (lambda p: p.insert(RETURN, kernel(1, ["T0"], ["T9"])), "T9 to be alive"),
    "copied into nothing": (lambda p: p.insert(RETURN, CopyInto("T9", "T0")), "T9 to be alive"),
    "sent and written": (lambda p: p.insert(WAIT, CopyInto("T0", "T0")),
                         "a wait for T1_sent first, got a write"),
    "no return": (lambda p: p.pop(), "one return, as the last node"),
    "two returns": (lambda p: p.append(p[-1]), "one return, as the last node"),
    "a node behind it": (lambda p: p.append(call("T2", "T3")), "one return, as the last node"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_refused(name: str) -> None:
    change, message = BROKEN[name]
    verify(["T0"], PROGRAM)
    nodes = [*PROGRAM]
    change(nodes)
    with pytest.raises(VerifyError, match=message):
        verify(["T0"], nodes)
