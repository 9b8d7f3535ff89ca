# SPDX-License-Identifier: Apache-2.0
"""Random ops that are given no seed: where theirs comes from, and that it is in no key."""

from __future__ import annotations

import pytest
import torch
from helpers.cases import TARGETS, rand
from helpers.random_numbers import numbers, uniform

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import LaunchError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.options import compile_options
from thunder_fuser.presegment import run_passes
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.runtime import random
from thunder_fuser.runtime.eager.evaluate import evaluate

targets = pytest.mark.parametrize("target", TARGETS)


def hidden(count: int = 1, *shape: int) -> FusionDefinition:
    fd = FusionDefinition()
    for _ in range(count):
        fd.add_output(fd.ops.uniform(0.0, 1.0, list(shape or (64,)), DataType.Float))
    return fd


@targets
def test_manual_seed_reproduces(target: str) -> None:
    fd = hidden(2)
    torch.manual_seed(11)
    first = fd.execute([], target=target)
    second = fd.execute([], target=target)
    torch.manual_seed(11)
    again = fd.execute([], target=target)
    assert not torch.equal(first[0], first[1]), "two ops have a stream each"
    assert not torch.equal(first[0], second[0]), "two executes draw two seeds"
    assert all(map(torch.equal, first, again))
    torch.manual_seed(12)
    assert not torch.equal(fd.execute([], target=target)[0], first[0])


def test_the_reference_draws_as_programs_do() -> None:
    fd = hidden(3)
    torch.manual_seed(11)
    ours = fd.execute([])
    torch.manual_seed(11)
    assert all(map(torch.equal, ours, evaluate(fd.fusion, [])))


def test_fork_and_state() -> None:
    fd = hidden()
    torch.manual_seed(11)
    with torch.random.fork_rng(devices=[]):
        inside = fd.execute([])[0]
    assert torch.equal(fd.execute([])[0], inside)
    state = torch.get_rng_state()
    after = fd.execute([])[0]
    torch.set_rng_state(state)
    assert torch.equal(fd.execute([])[0], after)


def test_only_random_fusions_draw() -> None:
    x = rand(8)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.from_pytorch(x)))
    before = torch.get_rng_state()
    fd.execute([x])
    uniform(8).execute([])  # a seed of its own
    assert torch.equal(torch.get_rng_state(), before)
    assert "draw" not in str(fd.program([x])) and "draw" not in str(uniform(8).program([]))
    hidden().execute([])
    assert not torch.equal(torch.get_rng_state(), before)


def test_a_seed_is_in_no_key() -> None:
    fd = hidden()
    programs = {id(fd.program([])) for _ in range(3) if fd.execute([])}
    assert len(programs) == 1 and len(fd.entry.held_programs()) == 1


def test_text_of_hidden_seeds() -> None:
    fusion = hidden(2).fusion
    assert rebuild(str(fusion)) == fusion
    assert fusion.inputs == () and fusion.drawn == (("S0", None), ("S1", 0), ("S3", 1))
    assert "S1 = fd.define_scalar(dtype=DataType.Int, drawn='offset')" in str(fusion)
    text = str(hidden(2).program([]))
    assert "    seed, offset = draw(device, 2)\n    S0 = seed\n" in text
    assert "S3 = offset + 1" in text


def test_a_seed_drawn_by_name() -> None:
    """What random ops define for themselves can be said, and returned."""
    with FusionDefinition() as fd:
        seed, offset = (fd.define_scalar(drawn=word) for word in ("seed", "offset"))
        fd.add_output(fd.ops.uniform(0.0, 1.0, [64], DataType.Float, seed, offset))
        fd.add_output(fd.ops.cast(seed, DataType.Int))
    torch.manual_seed(11)
    made, drawn = fd.execute([])
    assert torch.equal(made, numbers(64, stream=(int(drawn), 0)))
    torch.manual_seed(11)
    assert torch.equal(hidden().execute([])[0], made)


def test_common_subexpressions() -> None:
    """Hidden streams differ; one explicit stream is one value."""
    assert len(run_passes(specialise(hidden(2).fusion, ()), compile_options()).exprs) == 2
    with FusionDefinition() as fd:
        pair = [fd.ops.uniform(0.0, 1.0, [8], DataType.Float, 3, 7) for _ in range(2)]
        fd.add_output(fd.ops.sub(*pair))
    after = run_passes(specialise(fd.fusion, ()), compile_options())
    assert [e.op for e in after.exprs] == ["uniform", "sub"]
    assert not fd.execute([])[0].any()


def test_rand_like_of_symbolic_sizes() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, 1, -1], contiguity=[True, None, True], dtype=DataType.Half)
        fd.add_output(fd.ops.rand_like(x, 3, 7))
        fd.add_output(fd.ops.randn_like(x))
    for rows in (3, 4):
        like, normal = fd.execute([torch.zeros(rows, 1, 5, dtype=torch.float16)])
        assert torch.equal(like, numbers(rows, 1, 5, dtype=torch.float16))
        assert normal.shape == like.shape and normal.dtype is torch.float16


def test_a_mask_is_made_again_rather_than_stored() -> None:
    """Row and column sums take two kernels; neither reads a mask that the other has written."""
    x = rand(64, 128)
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        kept = fd.ops.mul(a, fd.ops.lt(fd.ops.rand_like(a, 3, 7), 0.5))
        fd.add_output(fd.ops.sum(kept, [0]))
        fd.add_output(fd.ops.sum(fd.ops.mul(kept, 2.0), [1]))
    segments = fd.program([x]).segmented.segments
    assert len(segments) == 2
    assert all(s.part.inputs == ("T0",) and len(s.part.outputs) == 1 for s in segments)
    down, across = fd.execute([x])
    kept = x * (numbers(64, 128) < 0.5)
    torch.testing.assert_close(down, kept.sum(0))
    torch.testing.assert_close(across, (kept * 2).sum(1))


class FakeGenerator:
    """The three methods of a CUDA generator that `draw` calls; no CPU generator has them."""

    def __init__(self, seed: int, offset: int) -> None:
        self.seed, self.offset = seed, offset

    def initial_seed(self) -> int:
        return self.seed

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset


def test_draws_on_cuda_move_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    own = FakeGenerator(2**64 - 2, 6)
    monkeypatch.setattr(torch.cuda, "default_generators", (FakeGenerator(1, 0), own))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert random.draw(torch.device("cuda", 1), 3) == (-2, 2)
    assert own.offset == 20, "offsets 8 to 19 are used up"
    assert random.draw(torch.device("cuda", 1), 1) == (-2, 5)
    assert own.offset == 24
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(LaunchError, match="same numbers"):
        random.draw(torch.device("cuda", 1), 1)
    assert own.offset == 24
