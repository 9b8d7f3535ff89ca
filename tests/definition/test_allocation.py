# SPDX-License-Identifier: Apache-2.0
"""Tensors whose memory strides cannot describe: given, made, and passed between segments."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import TARGETS, poisoned
from helpers.layouts import Call, is_permutation, lay_out, random_chain, random_shape, stored

from thunder_fuser import AllocatedTensor, FusionDefinition
from thunder_fuser.cache.executable import MOST_VARIANTS, Executable
from thunder_fuser.errors import DefinitionError, InputError
from thunder_fuser.ir.frontend.language import rebuild
from thunder_fuser.ir.frontend.values import Tensor

# The property was shown with LAYOUT_SEEDS=500.
SEEDS = int(os.environ.get("LAYOUT_SEEDS", "6"))

each_target = pytest.mark.parametrize("target", TARGETS)


def inner_outer(tensor: Tensor) -> None:
    """Issue 3282 of nvFuser: [i0{6}] split by 2, merged inner before outer."""
    tensor.outer_split(0, 2)
    tensor.merge(1, 0)
    tensor.set_allocation_domain(tensor.get_loop_domain())


def doubled(*layouts: Callable[[Tensor], None] | None, size: int = -1) -> FusionDefinition:
    """T1 = 2 * T0, each laid out."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([size], True)
        y = fd.ops.mul(x, 2.0)
        fd.add_output(y)
        for tensor, layout in zip((x, y), layouts, strict=False):
            if layout is not None:
                layout(tensor)
    return fd


@each_target
@pytest.mark.parametrize("size", [-1, 6])
def test_inner_before_outer(target: str, size: int) -> None:
    fd = doubled(inner_outer, inner_outer, size=size)
    (result,) = fd.execute([torch.tensor([0.0, 3, 1, 4, 2, 5])], target=target)
    assert isinstance(result, AllocatedTensor)
    assert result.storage.tolist() == [0, 6, 2, 8, 4, 10]
    assert result.logical().tolist() == [0, 2, 4, 6, 8, 10]
    assert result.shape == (6,)
    (again,) = fd.execute([result], target=target)
    assert again.logical().tolist() == [0, 4, 8, 12, 16, 20]


def test_same_layouts_read_and_write_in_a_line() -> None:
    """The two chains cancel out: the kernel walks memory as it lies."""
    fd = doubled(inner_outer, inner_outer)
    (source,) = fd.sources([torch.zeros(4096)], target="emulator")
    assert "ldv<4>(T0" in source.text and "%" not in source.text.partition("extern")[2]


@each_target
def test_one_side_alone(target: str) -> None:
    x = torch.arange(6.0)
    (result,) = doubled(inner_outer, None).execute([torch.tensor([0.0, 3, 1, 4, 2, 5])],
                                                   target=target)
    assert result.tolist() == (2 * x).tolist()
    (result,) = doubled(None, inner_outer).execute([x], target=target)
    assert result.storage.tolist() == [0, 6, 2, 8, 4, 10]


@each_target
def test_an_intermediate_is_written_as_it_is_laid_out(target: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True)
        y = fd.ops.neg(x)
        fd.add_output(fd.ops.exp(y))
        inner_outer(y)
    given = torch.arange(6.0)
    (result,) = fd.execute([given], target=target)
    torch.testing.assert_close(result, torch.exp(-given))
    program = fd.program([given], target=target)
    assert len(program.segmented.segments) == 2
    assert "segment_set" in str(program.segmented.fusion)


@each_target
def test_a_permuted_result_is_a_tensor(target: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        y = fd.ops.neg(x)
        fd.add_output(y)
        y.set_allocation_domain([1, 0])
    given = torch.arange(12.0).reshape(3, 4)
    (result,) = fd.execute([given], target=target)
    assert result.stride() == (1, 3)
    assert torch.equal(result, -given)


@each_target
def test_written_into_a_storage(target: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True)
        inner_outer(x)
        fd.add_output(fd.ops.mul(x, 2.0), x)
    storage = torch.tensor([0.0, 3, 1, 4, 2, 5])
    assert fd.execute([storage], target=target) == []
    assert storage.tolist() == [0, 6, 2, 8, 4, 10]


@each_target
def test_rows_of_a_tiled_matrix(target: str) -> None:
    """Reductions and norms over a matrix stored in tiles of 4 by 8."""
    def tiled(tensor: Tensor) -> None:
        tensor.split(0, 4).split(2, 8).reorder([0, 2, 1, 3])
        tensor.set_allocation_domain(tensor.get_loop_domain())

    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        tiled(x)
        powers = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
        y = fd.ops.truediv(powers, fd.ops.sum(powers, [1], keepdim=True))
        fd.add_output(y)
        tiled(y)
    given = torch.randn(16, 32)
    storage = given.reshape(4, 4, 4, 8).transpose(1, 2).contiguous()
    (result,) = fd.execute([storage], target=target)
    assert result.storage.shape == (4, 4, 4, 8)
    torch.testing.assert_close(result.logical(), torch.softmax(given, 1))


@each_target
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_chains(target: str, seed: int) -> None:
    chance = random.Random(seed)
    shape = random_shape(chance)
    chains = [random_chain(chance, shape, uneven=seed % 3 == 0) for _ in range(3)]
    dim = chance.randrange(len(shape))
    static = chance.random() < 0.5 or seed % 3 == 0
    with FusionDefinition() as fd:
        sizes = [n if static or n == 1 else -1 for n in shape]
        tensors = [fd.define_tensor(sizes, True) for _ in range(2)]
        joined = fd.ops.add(tensors[0], fd.ops.mul(tensors[1], 2.0))
        centred = fd.ops.sub(joined, fd.ops.sum(joined, [dim], keepdim=True))
        fd.add_output(centred)
        for tensor, chain in zip((*tensors, centred), chains, strict=True):
            lay_out(tensor, chain)
    values = [torch.randn(shape, generator=torch.Generator().manual_seed(seed + at))
              for at in range(2)]
    given = [argument(v, chain, static) for v, chain in zip(values, chains, strict=False)]
    with poisoned():
        (result,) = fd.execute(given, target=target)
    total = values[0] + values[1] * 2.0
    expected = total - total.sum(dim, keepdim=True)
    got = result if is_permutation(chains[2]) else result.logical()
    torch.testing.assert_close(got, expected, msg=f"seed {seed}: {chains}")
    if not is_permutation(chains[2]):
        torch.testing.assert_close(result.storage, stored(expected, chains[2]))
    assert rebuild(str(fd.fusion)) == fd.fusion


def argument(value: torch.Tensor, chain: list[Call], static: bool) -> Any:
    """A tensor of strides, or the storage; with the logical shape where that is open."""
    storage = stored(value, chain)
    if is_permutation(chain):
        back = [chain[0][1][0].index(at) for at in range(value.dim())]
        return storage.permute(back)
    return storage if static else (storage, torch.empty(value.shape, device="meta"))


# ---- splits that do not divide


def by_eight(tensor: Tensor) -> None:
    tensor.split(0, 8)
    tensor.set_allocation_domain(tensor.get_loop_domain())


@each_target
def test_31_over_8_with_the_logical_shape(target: str) -> None:
    given = torch.arange(31.0)
    storage = torch.cat([given, torch.full((1,), torch.nan)]).reshape(4, 8)
    for fd, argument in (
        (doubled(by_eight, by_eight), (storage, torch.empty(31, device="meta"))),
        (doubled(by_eight, by_eight, size=31), storage),
    ):
        with poisoned():
            (result,) = fd.execute([argument], target=target)
        assert result.shape == (31,)
        assert torch.equal(result.logical(), 2 * given)
        assert result.storage[3, 7] == 0  # no element lies there
        (again,) = fd.execute([result], target=target)
        assert torch.equal(again.logical(), 4 * given)


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError) as raised:
        doubled(inner_outer).execute([torch.zeros(31)])
    assert "a split must divide, got size 31" in str(raised.value)
    with pytest.raises(InputError, match=r"axis i0\.i: expected size 8 in the allocation domain"):
        doubled(by_eight).execute([torch.zeros(4, 7)])
    with pytest.raises(InputError, match="expected size 4 in the allocation domain"):
        doubled(by_eight, size=31).execute([torch.zeros(5, 8)])


def test_variants_for_given_shapes_are_few() -> None:
    """The oldest one is dropped and made again, the newest one is kept."""
    fd = doubled(by_eight)

    def variant(size: int) -> Executable:
        storage = torch.empty(-(-size // 8), 8, device="meta")
        return fd.entry.prepare().bind([(storage, torch.empty(size, device="meta"))])[0]

    sizes = [size for size in range(25, 25 + 80) if size % 8][: MOST_VARIANTS + 1]
    made = [variant(size) for size in sizes]
    assert len({id(one) for one in made}) == MOST_VARIANTS + 1
    assert variant(sizes[-1]) is made[-1] and variant(sizes[0]) is not made[0]


# ---- bad input


def test_a_logical_tensor_for_a_storage_is_refused() -> None:
    with pytest.raises(InputError, match=r"argument T0: expected rank 2.* got .* shape \(32,\)"):
        doubled(by_eight).execute([torch.zeros(32)])


def test_a_logical_shape_that_does_not_fit() -> None:
    meta = torch.empty(40, device="meta")
    with pytest.raises(InputError, match=r"axis i0\.o: expected size 5"):
        doubled(by_eight).execute([(torch.zeros(4, 8), meta)])


def test_promised_contiguity_is_checked() -> None:
    apart = torch.zeros(4, 16)[:, :8]
    with pytest.raises(InputError, match=r"axis i0\.o: expected stride 8, .* contiguous"):
        doubled(by_eight).execute([apart])


@each_target
def test_gaps_that_were_announced(target: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True)
        x.split(0, 8)
        x.set_allocation_domain([0, 1], [False, True])
        fd.add_output(fd.ops.neg(x))
    given = torch.arange(64.0).reshape(4, 16)[:, :8]
    (result,) = fd.execute([given], target=target)
    assert torch.equal(result, -given.reshape(32))


def test_another_domain_than_defined() -> None:
    (result,) = doubled(None, inner_outer).execute([torch.arange(6.0)])
    with pytest.raises(InputError, match="expected allocation domain"):
        doubled(by_eight).execute([result])


MISTAKES: tuple[tuple[Callable[[Tensor], Any], str], ...] = (
    (lambda t: t.split(3, 2), "axis 3"),
    (lambda t: t.split(0, 0), "a factor >= 1"),
    (lambda t: t.split(0, 2), "set_allocation_domain after transforms"),
    (lambda t: t.reorder([0, 0]), "each of 2 axes once"),
    (lambda t: t.set_allocation_domain([0]), r"each axis of \[.*\] once"),
    (lambda t: t.set_allocation_domain([0, 1], [True]), "2 entries"),
    (lambda t: t.set_allocation_domain([0, 1]).split(0, 2), "before set_allocation_domain"),
    (lambda t: t.parallelize(0, "threadIdx.x"), "mesh_x, mesh_y, mesh_z or stream"),
    (lambda t: t.set_allocation_domain(["i0", 1]), "an axis or a position"),
)


@pytest.mark.parametrize(("mistake", "message"), MISTAKES)
def test_mistakes_of_a_definition(mistake: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message), FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.neg(x))
        mistake(x)


def test_text_of_a_layout() -> None:
    fd = doubled(inner_outer)
    text = str(fd)
    for line in ("T0.split(0, 2, False)", "T0.reorder([1, 0])", "T0.merge(0)",
                 "T0.set_allocation_domain([0], True)"):
        assert f"    {line}\n" in text
    assert "merge" not in str(doubled(None))


def test_dtype_of_an_allocated_tensor() -> None:
    (result,) = doubled(None, inner_outer).execute([torch.arange(6.0)])
    assert result.dtype is torch.float32 and result.device.type == "cpu"
    assert "allocation=[i0.i*i0.o{6}]" in repr(result)
    back = AllocatedTensor.of(result.logical(), result.domain)
    assert torch.equal(back.storage, result.storage)
