# SPDX-License-Identifier: Apache-2.0
"""A reshape of an argument, as a result, is a view of the argument where its layout allows one."""

from __future__ import annotations

import pytest
import torch
from helpers.cases import Runner, rand
from helpers.rows import after_row

from thunder_fuser import FusionDefinition
from thunder_fuser.ir.frontend.language import Recorder, rebuild
from thunder_fuser.ir.rules.build import define


@pytest.mark.parametrize("static", [False, True])
def test_reshapes_share_memory(run: Runner, static: bool) -> None:
    """Also a reshape of a reshape, beside a kernel that reads the argument."""
    x = rand(4, 6)

    def build(fd: FusionDefinition) -> None:
        t = fd.from_pytorch(x, static_sizes=static)
        flat = fd.ops.reshape(t, [24])
        fd.add_output(flat)
        fd.add_output(fd.ops.reshape(flat, [2, 3, 4]))
        fd.add_output(fd.ops.neg(flat))

    expected = [x.reshape(24), x.reshape(2, 3, 4), -x.reshape(24)]
    first, second, computed = run(build, [x], expected)
    assert first.data_ptr() == second.data_ptr() == x.data_ptr() != computed.data_ptr()


def test_a_definition_of_views_alone(run: Runner) -> None:
    x = rand(4, 6).requires_grad_()

    def build(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.reshape(fd.from_pytorch(x), [24]))

    (result,) = run(build, [x.detach()], [x.detach().reshape(24)])
    assert result.data_ptr() == x.data_ptr()
    with FusionDefinition() as fd:
        build(fd)
    assert not fd.execute([x])[0].requires_grad


def test_what_shares_nothing(run: Runner) -> None:
    """A transposed argument, one with gaps, one that is written, and what is not only reshaped."""
    turned, gaps, written = rand(6, 4).t(), rand(4, 12)[:, ::2], rand(4, 6)
    before = written.clone()

    def build(fd: FusionDefinition) -> None:
        for x in (turned, gaps):
            fd.add_output(fd.ops.reshape(fd.from_pytorch(x), [24]))
        t = fd.from_pytorch(written)
        fd.add_output(fd.ops.reshape(t, [24]))
        fd.add_output(fd.ops.reshape(fd.ops.permute(t, [1, 0]), [24]))
        fd.add_output(fd.ops.add(t, 1.0), t)

    expected = [turned.reshape(24), gaps.reshape(24), before.reshape(24), before.t().reshape(24)]
    with FusionDefinition() as fd:
        build(fd)
    results = run.execute(fd, [turned, gaps, written])
    assert all(map(torch.equal, results, expected))
    assert torch.equal(written, before + 1)
    assert not {x.data_ptr() for x in results} & {x.data_ptr() for x in (turned, gaps, written)}


def test_only_a_fusion_definition_asks_for_it() -> None:
    fd, asks = Recorder(), FusionDefinition()
    for one in (fd, asks):
        one.add_output(one.ops.reshape(one.define_tensor([4, 6], True, strides=[6, 1]), [24]))
    fusion, asking = define(fd.definition), define(asks.definition)
    assert rebuild(str(asking)) == asking
    assert after_row("share_results", fusion) is fusion
    (shared,) = after_row("share_results", asking).outputs
    assert (shared.name, shared.shape) == ("T0", (24,))
