# SPDX-License-Identifier: Apache-2.0
"""Sends and receives in host programs: their lines, what the verifier refuses, the plan's notes.

tests/helpers/gloo_point_to_point.py runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.meshes import MESH, as_rank

from thunder_fuser import FusionDefinition, MultiDeviceParams, options
from thunder_fuser.errors import VerifyError
from thunder_fuser.host.agree import digest
from thunder_fuser.host.statements import statements, verify_program
from thunder_fuser.host.stream_order import verify_order

WHERE = {"mesh": MESH[4], "on": "mesh_x"}


def gathered(fd: Any, a: Any, b: Any) -> Any:
    return fd.ops.matmul(fd.ops.all_gather(a, 0, **WHERE), b)


def gathered_weight(fd: Any, a: Any, b: Any) -> Any:
    return fd.ops.linear(a, fd.ops.all_gather(b, 0, **WHERE))


def scattered(fd: Any, a: Any, b: Any) -> Any:
    return fd.ops.reduce_scatter(fd.ops.linear(a, b), 0, **WHERE)


def reduced(fd: Any, a: Any, b: Any) -> Any:
    return fd.ops.all_reduce(fd.ops.matmul(a, b), **WHERE)


def in_streams(fd: Any, a: Any, b: Any) -> Any:
    y = gathered(fd, a, b)
    y.outer_split(0, 8).axis(0).parallelize("stream")
    return y


CASES: tuple[tuple[Callable[..., Any], tuple[int, int], tuple[int, int]], ...] = (
    (gathered, (4, 6), (6, 5)), (gathered_weight, (4, 6), (3, 6)), (scattered, (8, 6), (5, 6)),
    (reduced, (8, 6), (6, 5)),
)  # fmt: skip


def sent(**lower: Any) -> MultiDeviceParams:
    return MultiDeviceParams().with_(lower={"backend": "point_to_point", **lower})


def defined(build: Callable[..., Any], inputs: list[torch.Tensor]) -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(build(fd, *map(fd.from_pytorch, inputs)))
    return fd


def text_of(build: Callable[..., Any], a: tuple[int, ...], b: tuple[int, ...], rank: int) -> str:
    inputs = [torch.ones(a), torch.ones(b)]
    with as_rank(rank, 4):
        return str(defined(build, inputs).program(inputs))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_programs(case: Any, golden: Callable[..., None]) -> None:
    """One text for all ranks, which is sound and prints as it was read."""
    with options(multi_device=sent(overlap="always", chunks=2)):
        texts = {text_of(*case, rank) for rank in range(4)}
    (text,) = texts
    assert str(statements(text)) == text
    assert statements(str(statements(text))) == statements(text)
    verify_order(verify_program(statements(text)))
    golden(text)


def test_posts_are_compared_between_ranks() -> None:
    """Another number of chunks is another number, by the text of the posts alone."""
    inputs, lower = [torch.ones(4, 6), torch.ones(6, 5)], sent().lower
    found = []
    for chunks in (1, 2):
        with as_rank(0, 4), options(multi_device=sent(overlap="always", chunks=chunks)):
            program = defined(gathered, inputs).program(inputs)
        body = statements(str(program))
        assert len(body.posts) == 3 * chunks
        found.append(digest(program.segmented.fusion, body, lower))
    assert found[0] != found[1]


def test_the_plan_says_so() -> None:
    inputs = [torch.ones(4, 6), torch.ones(6, 5)]

    def notes(build: Callable[..., Any], **lower: Any) -> tuple[str, ...]:
        with options(multi_device=sent(**lower)):
            found: tuple[str, ...] = defined(build, inputs).plan(inputs).notes
        return found

    call = "T3 = all_gather_matmul(T0, T1): sends and receives, each device's part in"
    assert notes(gathered, overlap="always") == (f"{call} 1 chunk",)
    assert notes(gathered, overlap="always", chunks=3) == (f"{call} 3 chunks",)
    assert notes(in_streams) == (f"{call} 2 chunks",)


def test_only_where_it_is_asked_for() -> None:
    """Neither without the backend, nor without pieces or overlap."""
    case = (gathered, (4, 6), (6, 5))
    for params in (sent(), sent(overlap="never"), MultiDeviceParams(),
                   MultiDeviceParams().with_(lower={"overlap": "always"})):  # fmt: skip
        with options(multi_device=params):
            assert "post(" not in text_of(*case, 0)


# ---- the verifier

PROGRAM = """\
def run(T0, T1):
    T3 = empty_strided((12, 5), (5, 1), dtype=float32, device=device)
    T2 = empty_strided((8, 6), (6, 1), dtype=float32, device=device)
    P0 = post(receive(T2[0:4], 1), send(T0[0:4], -1), mesh=(0, 1, 2), on='mesh_x')
    P1 = post(receive(T2[4:8], 2), send(T0[0:4], -2), mesh=(0, 1, 2), on='mesh_x')
    matmul(T0, T1, out=part(T3, 0, mesh=(0, 1, 2), on='mesh_x'))
    wait(P0, 'T2')
    del P0
    matmul(T2[0:4], T1, out=part(T3, 1, mesh=(0, 1, 2), on='mesh_x')[0:4])
    wait(P1, 'T2')
    del P1
    matmul(T2[4:8], T1, out=part(T3, 2, mesh=(0, 1, 2), on='mesh_x')[0:4])
    del T2
    return [T3]
"""
RING = """\
def run(T0):
    T1 = empty_strided((12, 6), (6, 1), dtype=float32, device=device)
    P0 = post(receive(part(T1, 1, {on}), 1), send(part(T1, 0, {on}), -1), {on})
    matmul(T0, T0, out={place})
    wait(P0, 'T1')
    return [T1]
"""
FIRST = PROGRAM.splitlines()[3].strip()
SOUND = (
    # the distance -2 of three devices is 1; a post may have several sends
    ("send(T0[0:4], -2)", "send(T0[0:4], 1)"),
    ("send(T0[0:4], -1), mesh", "send(T0[0:4], -1), send(T0[0:1], 1), receive(T2[8:9], -1), mesh"),
    # what is sent may be read
    ("    wait(P0, 'T2')\n", "    matmul(T0[0:4], T1, out=part(T3, 1, mesh=(0, 1, 2), "
     "on='mesh_x'))\n    wait(P0, 'T2')\n"),
)  # fmt: skip
BROKEN = (
    # each wait has its post
    ("    wait(P0, 'T2')\n    del P0\n", "", "expected a wait for P0, got none"),
    ("    wait(P0, 'T2')\n", "    T4 = torch_1(P0)\n", "a wait for P0 first"),
    ("    wait(P1, 'T2')\n    del P1\n    matmul(T2[4:8], T1, out=part(T3, 2, mesh=(0, 1, 2), "
     "on='mesh_x')[0:4])\n    del T2\n", "", "expected a wait for P1"),
    ("    wait(P1, 'T2')\n    del P1\n", "    wait(P0, 'T2')\n", "P0 to be alive"),
    ("    del P0\n", "    wait(P0, 'T2')\n", "one post before it, awaited once"),
    (f"P0 = {FIRST[5:]}", FIRST[5:], "a name for what is posted"),
    ("    wait(P1, 'T2')\n", "    E0 = record_event()\n    with on_stream(1):\n"
     "        wait_event(E0)\n        wait(P1, 'T2')\n", "communication on the caller's stream"),
    # sends and receives match
    ("send(T0[0:4], -1), ", "", r"for each send to distance 2 a receive from -2, as long, "
     r"got sends \[\], receives \[\(4,\)\]"),
    ("receive(T2[0:4], 1), ", "", "a receive from -2"),
    ("send(T0[0:4], -1)", "send(T0[0:4], 1)", "a receive from -1"),
    ("send(T0[0:4], -1)", "send(T0[0:3], -1)", r"got sends \[\(3,\)\], receives \[\(4,\)\]"),
    ("send(T0[0:4], -1)", "send(T0[0:4], -1), send(T0[0:4], -1)", "as long"),
    ("send(T0[0:4], -1)", "send(T0[0:4], 3)", "another device than this one"),
    ("send(T0[0:4], -1)", "send(T0[0:4], T1)", "a tensor and a distance"),
    ("send(T0[0:4], -1)", "send(T0[0:4])", "a tensor and a distance"),
    ("send(T0[0:4], -1)", "T0", "only sends and receives"),
    (FIRST, "P0 = post(mesh=(0, 1, 2), on='mesh_x')", "only sends and receives"),
    (FIRST, FIRST.replace("on='mesh_x'", "on='mesh_y'"), "a mesh and its dimension"),
    (FIRST, FIRST.replace(", on='mesh_x'", ""), "a mesh and its dimension"),
    # buffers are live, and left alone until the wait
    ("    matmul(T0, T1, out=part(T3, 0", "    matmul(T2[0:4], T1, out=part(T3, 0",
     "a wait for the post of T2 first"),
    ("matmul(T2[0:4], T1, out=part(T3, 1", "matmul(T2[2:6], T1, out=part(T3, 1",
     "a wait for the post of T2 first"),
    ("    wait(P0, 'T2')\n", "    T4 = torch_1(T0)\n    wait(P0, 'T2')\n",
     r"T4 = torch_1\(T0\): expected a wait for the post of T0 first"),
    ("    wait(P1, 'T2')\n    del P1\n    matmul(T2[4:8], T1, out=part(T3, 2, mesh=(0, 1, 2), "
     "on='mesh_x')[0:4])\n    del T2\n", "    del T2\n    wait(P1, 'T2')\n",
     "del T2: expected a wait for the post of T2 first"),
    ("    wait(P1, 'T2')\n    del P1\n    matmul(T2[4:8], T1, out=part(T3, 2, mesh=(0, 1, 2), "
     "on='mesh_x')[0:4])\n    del T2\n    return [T3]\n",
     "    return [T3]\n", "expected a wait for P1"),
    ("receive(T2[4:8], 2)", "receive(T2[3:7], 2)", "P1 = .*a wait for the post of T2 first"),
    ("receive(T2[4:8], 2)", "receive(T0[0:4], 2)", "a wait for the post of T0 first"),
    ("    T2 = empty", "    T9 = empty", "T2 to be alive"),
    ("out=part(T3, 0, mesh", "out=part(T3, mesh", "a tensor and a distance"),
)  # fmt: skip


def verified(text: str) -> None:
    verify_order(verify_program(statements(text)))


@pytest.mark.parametrize(("old", "new"), SOUND)
def test_sound(old: str, new: str) -> None:
    verified(PROGRAM)
    assert old in PROGRAM
    verified(PROGRAM.replace(old, new, 1))


@pytest.mark.parametrize(("old", "new", "message"), BROKEN)
def test_refused(old: str, new: str, message: str) -> None:
    assert old in PROGRAM
    with pytest.raises(VerifyError, match=message):
        verified(PROGRAM.replace(old, new, 1))


@pytest.mark.parametrize("place", [
    # what arrives, what is sent, and what may overlap with them
    "part(T1, 1, {on})", "part(T1, -2, {on})", "part(T1, 0, {on})", "part(T1, 1, {on})[0:1]",
    "T1", "T1[0:1]", "part(T1, -1, dim=1, {on})", "part(T1, -1, mesh=(0, 1), on='mesh_x')",
])  # fmt: skip
def test_parts_of_devices(place: str) -> None:
    """A part is another one than those at other distances; of what else, nobody knows."""
    on = "mesh=(0, 1, 2), on='mesh_x'"
    verified(RING.format(on=on, place=f"part(T1, -1, {on})"))
    with pytest.raises(VerifyError, match="a wait for the post of T1 first"):
        verified(RING.format(on=on, place=place.format(on=on)))


def test_rows_of_a_part() -> None:
    """Of one part, rows that do not overlap."""
    on = "mesh=(0, 1, 2), on='mesh_x'"
    text = RING.replace("part(T1, 1, {on}), 1)", "part(T1, 1, {on})[0:2], 1)")
    text = text.replace("part(T1, 0, {on}), -1)", "part(T1, 0, {on})[0:2], -1)")
    verified(text.format(on=on, place=f"part(T1, 1, {on})[2:4]"))
    with pytest.raises(VerifyError, match="a wait for the post of T1 first"):
        verified(text.format(on=on, place=f"part(T1, 1, {on})[1:4]"))
    with pytest.raises(VerifyError, match="a wait for the post of T1 first"):  # whose rows count
        verified(text.format(on=on, place=f"part(part(T1, 1, {on}), 2, {on})"))
