# SPDX-License-Identifier: Apache-2.0
"""The text of a host program as statements, and what its verifier refuses."""

from __future__ import annotations

import pytest
import torch
from helpers.meshes import MESH, as_rank

from thunder_fuser import FusionDefinition
from thunder_fuser.errors import VerifyError
from thunder_fuser.host.programs.statements import statements, verify_program


def text() -> str:
    """Two collectives, of which the first hides behind a kernel that does not read it."""
    where = {"mesh": MESH[2], "on": "mesh_x"}
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], True) for _ in range(2))
        gathered = fd.ops.all_gather(fd.ops.exp(x), 0, **where)
        own = fd.ops.sum(fd.ops.tanh(y), [1])
        fd.add_output(fd.ops.mul(fd.ops.sum(gathered, [1]), 2.0))
        fd.add_output(fd.ops.neg(fd.ops.all_reduce(own, **where)))
    with as_rank(0, 2):
        return str(fd.program([torch.ones(4, 6), torch.ones(4, 6)]))


def test_statements_print_the_text() -> None:
    program = statements(text())
    assert str(program) == text()
    assert statements(str(program)) == program
    assert verify_program(program) is program
    kinds = [one.kind for one in program.body]
    assert kinds.count("post") == kinds.count("wait") == 2 and kinds[-1] == "return"


def test_what_does_not_wait_runs_first() -> None:
    """Posted as early as it can be, awaited where it is read."""
    body = statements(text()).body
    names = [one.makes[0] if one.kind in ("post", "wait") else one.kind for one in body]
    first, second = [name for name in names if name.endswith("_sent")][:2]
    start, end = names.index(first), names.index(first.removesuffix("_sent"))
    assert "call" in names[start:end], names
    assert names.index(second) < end


def test_posts_keep_the_order_of_the_definition() -> None:
    assert [one.text.split(" = ")[1].split("(")[0] for one in statements(text()).posts] == [
        "all_gather", "all_reduce"
    ]  # fmt: skip


def test_a_kernel_that_would_turn_the_order_is_cut() -> None:
    """One kernel for exp and mul would post the second collective first."""
    where = {"mesh": MESH[2], "on": "mesh_x"}
    with FusionDefinition() as fd:
        x, z = (fd.define_tensor([-1, -1], True) for _ in range(2))
        e = fd.ops.exp(x)
        first = fd.ops.all_reduce(e, **where, reduce="max")
        second = fd.ops.all_reduce(z, **where)
        fd.add_output(first)
        fd.add_output(fd.ops.mul(e, second))
    with as_rank(0, 2):
        program = fd.program([torch.ones(4, 6), torch.ones(4, 6)])
    posts = statements(str(program)).posts
    assert ["max" in post.text for post in posts] == [True, False]


PROGRAM = """\
def run(T0):
    T1_sent = all_reduce(T0, mesh=(0, 1), on='mesh_x', reduce='sum')
    T1 = wait(T1_sent, 'T1')
    del T1_sent
    T2 = torch_1(T1)
    del T1
    return [T2]
"""

BROKEN = (
    ("    T1 = wait(T1_sent, 'T1')\n", "", "T1 to be alive"),
    (PROGRAM[PROGRAM.index("    T1 = wait"):PROGRAM.index("    return")],
     "    T2 = torch_1(T0)\n", "a wait for T1_sent"),
    ("    T1 = wait(T1_sent, 'T1')\n", "    T1 = torch_0(T1_sent)\n", "a wait for T1_sent first"),
    ("    del T1_sent\n", "    T3 = wait(T1_sent, 'T3')\n", "awaited once"),
    ("wait(T1_sent, 'T1')", "wait(T0, 'T1')", "one post before it"),
    ("    del T1\n", "    del T1\n    T4 = torch_1(T1)\n", "T1 to be alive"),
    ("    del T1\n", "    del T1\n    del T1\n", "T1 to be alive"),
    ("    del T1\n", "    del T9\n", "T9 to be alive"),
    ("    return [T2]\n", "    T3 = torch_1(T2)\n", "one return"),
)


@pytest.mark.parametrize(("old", "new", "message"), BROKEN)
def test_refused(old: str, new: str, message: str) -> None:
    verify_program(statements(PROGRAM))
    assert old in PROGRAM
    with pytest.raises(VerifyError, match=message):
        verify_program(statements(PROGRAM.replace(old, new)))


@pytest.mark.parametrize("wrong", ["x = 1", "def run(:", ""])
def test_no_program(wrong: str) -> None:
    with pytest.raises(VerifyError, match="host program"):
        statements(wrong)
