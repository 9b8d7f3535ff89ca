# SPDX-License-Identifier: Apache-2.0
"""Tensors spread over devices: what each rank computes, what goes on with it, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import TARGETS
from helpers.meshes import MESH, as_rank, on_each, shard

from thunder_fuser import DataType, FusionDefinition, ParallelType
from thunder_fuser.errors import CommunicationError, DefinitionError, InputError, MeshError
from thunder_fuser.ir.frontend.language import Recorder, rebuild
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.mesh import Mesh
from thunder_fuser.ir.rules.communication import is_communication

each_target = pytest.mark.parametrize("target", TARGETS)
X, Y = ParallelType.mesh_x, ParallelType.mesh_y


def whole_tensor_facts(devices: int | None) -> FusionDefinition:
    """All that knows the size of the whole tensor, or the place of an element in it."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        rows, columns = fd.ops.shape(x)
        counter = fd.ops.broadcast(fd.ops.iota(rows, 5, 3, DataType.Float), [False, True])
        random = fd.ops.uniform(0.0, 1.0, [rows, columns], DataType.Float, 7, 3)
        fd.add_output(fd.ops.add(fd.ops.mul(x, rows), counter))
        fd.add_output(fd.ops.add(x, random))
        fd.add_output(fd.ops.sum(fd.ops.mul(x, rows), [1]))
        fd.add_output(fd.ops.normal(0.0, 1.0, [columns], DataType.Float, 7, 9))
        if devices is not None:
            shard(x, 0, devices)
    return fd


@each_target
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_whole_tensor_facts(devices: int, target: str) -> None:
    """size, iota, reductions over axes that are whole, and the same random bits as one device."""
    given = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
    expected = whole_tensor_facts(None).execute([given], target=target)
    for part in (lambda one: one, lambda one: one[None]):
        found = on_each(
            devices, lambda: whole_tensor_facts(devices),
            lambda rank, part=part: [part(given.chunk(devices)[rank])], target,
        )
        for at in range(3):
            assert torch.equal(torch.cat([results[at] for results in found]), expected[at])
        assert all(torch.equal(results[3], expected[3]) for results in found)


def test_one_text_serves_all_ranks() -> None:
    texts = set()
    for rank in range(4):
        with as_rank(rank, 4):
            program = whole_tensor_facts(4).program([torch.zeros(4, 6)])
            texts.add((program.text, *(source.text for source in program.sources)))
    assert len(texts) == 1


@each_target
def test_two_dimensions(target: str) -> None:
    """Rows over mesh_y, columns over mesh_x; and one axis over both."""
    mesh = [[0, 1], [2, 3]]
    given = torch.randn(8, 6, generator=torch.Generator().manual_seed(2))

    def build() -> FusionDefinition:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1], True)
            v = fd.define_tensor([-1], True)
            random = fd.ops.uniform(0.0, 1.0, fd.ops.shape(x), DataType.Float, 7, 3)
            fd.add_output(fd.ops.add(fd.ops.neg(x), random))
            fd.add_output(fd.ops.add(v, fd.ops.iota(fd.ops.size(v, 0), dtype=DataType.Float)))
            for tensor in (x, v):
                tensor.set_device_mesh(mesh)
            x.outer_split(0, 2).axis(0).parallelize(Y)
            x.outer_split(2, 2).axis(2).parallelize(X)
            v.outer_split(0, 2).axis(0).parallelize(Y)
            v.outer_split(1, 2).axis(1).parallelize(X)
        return fd

    def part(rank: int) -> list[torch.Tensor]:
        rows = given.chunk(2)[rank // 2]
        return [rows.chunk(2, 1)[rank % 2].contiguous(), given.reshape(-1).chunk(4)[rank]]

    found = on_each(4, build, part, target)
    rows = [torch.cat([found[2 * at][0], found[2 * at + 1][0]], 1) for at in range(2)]
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        random = fd.ops.uniform(0.0, 1.0, fd.ops.shape(x), DataType.Float, 7, 3)
        fd.add_output(fd.ops.add(fd.ops.neg(x), random))
    assert torch.equal(torch.cat(rows), fd.execute([given], target=target)[0])
    line = torch.cat([results[1] for results in found])
    assert torch.equal(line, given.reshape(-1) + torch.arange(48.0))


@each_target
def test_an_axis_of_devices_itself(target: str) -> None:
    """logical [D, S], the first axis on devices: the part is [1, S] or [S]."""
    def build() -> FusionDefinition:
        with FusionDefinition() as fd:
            x = fd.define_tensor([4, -1], True)
            fd.add_output(fd.ops.add(x, fd.ops.size(x, 0)))
            x.set_device_mesh(MESH[4])
            x.axis(0).parallelize(X)
        return fd

    given = torch.arange(20.0).reshape(4, 5)
    for part in (lambda r: given[r : r + 1], lambda r: given[r]):
        found = on_each(4, build, lambda r, part=part: [part(r)], target)
        assert torch.equal(torch.cat([results[0] for results in found]), given + 4)


@each_target
def test_parts_with_a_layout_of_their_own(target: str) -> None:
    """Each device's part lies inner before outer."""
    def build() -> FusionDefinition:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1], True)
            y = fd.ops.mul(x, fd.ops.size(x, 0))
            fd.add_output(y)
            for t in (x, y):
                t.set_device_mesh(MESH[2])
                t.outer_split(0, 2)
                t.axis(0).parallelize(X)
                t.outer_split(1, 2)
                t.merge(2, 1)
                t.set_allocation_domain(t.get_loop_domain())
        return fd

    for lead in ((), (1,)):
        found = on_each(
            2, build,
            lambda r, lead=lead: [torch.tensor([0.0, 3, 1, 4, 2, 5]).reshape(*lead, 6) + 6 * r],
            target,
        )
        parts = [results[0].logical() for results in found]
        assert torch.equal(torch.cat(parts), torch.arange(12.0) * 12)


def everything(fd: Recorder, x: Tensor, w: Tensor, b: Tensor, index: Tensor) -> list[Any]:
    """x [8, 12] by rows; w [6, 12], b [6] and index [8] by their first axis or whole."""
    ops = fd.ops
    return [
        ops.reshape(x, [8, 3, 4]),
        ops.reshape(x, [96]),
        ops.permute(ops.reshape(x, [2, 4, 12]), [1, 0, 2]),
        ops.slice(x, [0, 2], [8, 10]),
        ops.pad(x, [1, 2]),
        ops.cat([x, ops.neg(x)], 1),
        ops.flip(x, [1]),
        ops.cumsum(x, 1),
        ops.broadcast_in_dim(ops.sum(x, [1]), [8, 5], [0]),
        ops.expand(ops.sum(x, [1], keepdim=True), [8, 7]),
        ops.squeeze(ops.broadcast(x, [False, True, False]), [1]),
        ops.linear(x, w, b),
        ops.matmul(x, ops.permute(w, [1, 0])),
        ops.index_select(w, index, 0),
        ops.take_along_axis(x, ops.broadcast(index, [False, True]), 1),
        ops.var_mean(x, [1])[0],
        ops.full([3], 2.0, DataType.Float),
        ops.topk(x, 3, 1)[0],
        ops.stride_order(x, [0, 1]),
    ]


@each_target
@pytest.mark.parametrize("devices", [2, 4])
def test_ops_on_axes_that_are_whole(target: str, devices: int) -> None:
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randn(n, 12, generator=generator) for n in (8, 6))
    b, index = torch.randn(6, generator=generator), torch.randint(6, (8,), generator=generator)

    def build(sharded: bool) -> FusionDefinition:
        with FusionDefinition() as fd:
            given = [fd.from_pytorch(t) for t in (x, w, b, index)]
            for result in everything(fd, *given):
                fd.add_output(result)
            if sharded:
                shard(given[0], 0, devices)
                shard(given[3], 0, devices)
                for t in given[1:3]:
                    t.set_device_mesh(MESH[devices])
        return fd

    if devices == 4:  # [2, 4, 12] has two rows
        plan = build(True).plan([x[:2], w, b, index[:2]], target=target)
        assert any(is_communication(e) for one in plan.segments for e in one.ops)
        return
    expected = build(False).execute([x, w, b, index], target=target)
    found = on_each(
        devices, lambda: build(True),
        lambda r: [x.chunk(devices)[r], w, b, index.chunk(devices)[r]], target,
    )
    for at, value in enumerate(expected):
        parts = [results[at] for results in found]
        dim = 1 if at == 2 else 0
        got = parts[0] if at == 16 else torch.cat(parts, dim)
        torch.testing.assert_close(got, value, msg=f"result {at}")


@each_target
def test_column_parallel_linear(target: str) -> None:
    generator = torch.Generator().manual_seed(4)
    x, w, b = (torch.randn(*s, generator=generator) for s in ((3, 5), (8, 5), (8,)))

    def build() -> FusionDefinition:
        with FusionDefinition() as fd:
            given = [fd.from_pytorch(t) for t in (x, w, b)]
            y = fd.ops.linear(*given)
            fd.add_output(fd.ops.mul(y, fd.ops.sigmoid(y)))
            given[0].set_device_mesh(MESH[4])
            shard(given[1], 0, 4)
            shard(given[2], 0, 4)
        return fd

    found = on_each(4, build, lambda r: [x, w.chunk(4)[r], b.chunk(4)[r]], target)
    expected = torch.nn.functional.silu(torch.nn.functional.linear(x, w, b))
    torch.testing.assert_close(torch.cat([r[0] for r in found], 1), expected)


def test_a_result_that_says_its_sharding() -> None:
    """A counter alone is whole, unless the result is said to be on devices."""
    def build() -> FusionDefinition:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1], True)
            y = fd.ops.iota(12)
            fd.add_output(fd.ops.neg(x))
            fd.add_output(y)
            x.set_device_mesh(MESH[2])
            shard(y, 0, 2)
        return fd

    found = on_each(2, build, lambda _: [torch.ones(3)], "cpu")
    assert torch.equal(torch.cat([results[1] for results in found]), torch.arange(12))


def test_text_holds_mesh_and_sharding() -> None:
    fd = whole_tensor_facts(2)
    text = str(fd)
    for line in ("T0.set_device_mesh([0, 1])", "T0.split(0, 2, False)",
                 "T0.parallelize(0, 'mesh_x')"):
        assert f"    {line}\n" in text
    assert rebuild(text) == fd.fusion
    assert fd.fusion != whole_tensor_facts(4).fusion


# ---- what needs other devices' elements; helpers/gloo_communication.py computes with them


def _fewer_rows(fd: Recorder, y: Tensor) -> Any:
    """An index of 4 rows for a source of 8: a device's rows of the source are not those of it."""
    return fd.ops.cast(fd.ops.slice(y, [0, 0], [4, 4]), DataType.Int)


NEEDS: tuple[tuple[Callable[[Recorder, Tensor, Tensor], Any], str], ...] = (
    (lambda fd, x, y: fd.ops.sum(x, [0]), "all_reduce"),
    (lambda fd, x, y: fd.ops.sum(x), "all_reduce"),
    (lambda fd, x, y: fd.ops.cumsum(x, 0), "all_gather"),
    (lambda fd, x, y: fd.ops.flip(x, [0]), "all_gather"),
    (lambda fd, x, y: fd.ops.slice(x, [1, 0], [8, 4]), "all_gather"),
    (lambda fd, x, y: fd.ops.pad(x, [0, 0, 1, 0]), "all_gather"),
    (lambda fd, x, y: fd.ops.cat([x, x], 0), "all_gather"),
    (lambda fd, x, y: fd.ops.add(x, y), ""),  # each device cuts its rows from y
    (lambda fd, x, y: fd.ops.add(x, fd.ops.permute(fd.ops.reshape(x, [4, 8]), [1, 0])),
     "all_to_all"),
    (lambda fd, x, y: fd.ops.matmul(fd.ops.permute(x, [1, 0]), x), "all_reduce"),
    (lambda fd, x, y: fd.ops.matmul(x, fd.ops.permute(x, [1, 0])), "all_gather"),
    (lambda fd, x, y: fd.ops.index_select(x, 3, 0), "all_gather"),
    (lambda fd, x, y: fd.ops.gather(x, _fewer_rows(fd, y), 1), "all_gather"),
    (lambda fd, x, y: fd.ops.sort(x, 0)[0], "all_gather"),
    (lambda fd, x, y: fd.ops.reshape(x, [1, 32]), ""),
    (lambda fd, x, y: fd.ops.reshape(fd.ops.permute(x, [1, 0]), [32]), "all_gather"),
)  # fmt: skip


@pytest.mark.parametrize(("build", "communication"), NEEDS)
def test_what_needs_communication(
    build: Callable[[Recorder, Tensor, Tensor], Any], communication: str
) -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], True) for _ in range(2))
        fd.add_output(build(fd, x, y))
        shard(x, 0, 2)
        y.set_device_mesh(MESH[2])
    plan = fd.plan([torch.zeros(4, 4), torch.zeros(8, 4)])
    found = {e.op for one in plan.segments for e in one.ops if is_communication(e)}
    assert found == ({communication} if communication else set())
    assert all(len(one.ops) == 1 for one in plan.segments if is_communication(one.ops[0]))


def test_a_call_of_local_tensors_is_refused_on_a_mesh() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.all_gather(x, 0, MESH[2], "mesh_x"))
        shard(x, 0, 2)
    with pytest.raises(CommunicationError, match=r"call fd\.ops\.redistribute"):
        fd.plan([torch.zeros(4, 4)])


# ---- bad input


def negated(layout: Callable[[Tensor], Any], shape: tuple[int, ...] = (-1, -1)) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape, True)
        fd.add_output(fd.ops.neg(x))
        layout(x)
    return fd


MISTAKES: tuple[tuple[Callable[[Tensor], Any], type[Exception], str], ...] = (
    (lambda t: t.set_device_mesh([[0, 1], [2]]), MeshError, "lists of equal length"),
    (lambda t: t.set_device_mesh([0, 0]), MeshError, "distinct ranks"),
    (lambda t: t.set_device_mesh([0, 1]).set_device_mesh([0, 2]), MeshError, "expected"),
    (lambda t: t.outer_split(0, 2).axis(0).parallelize(X), MeshError, "call set_device_mesh"),
    (lambda t: t.set_device_mesh([0, 1]).outer_split(0, 4).parallelize(0, X), MeshError,
     "expected size 2, the devices"),
    (lambda t: t.set_device_mesh([0, 1]).outer_split(0, 2).parallelize(0, Y), MeshError,
     "a mesh with more dimensions"),
    (lambda t: t.set_device_mesh([0, 1]).split(0, 2).parallelize(1, X), MeshError,
     "outermost part of one logical axis"),
    (lambda t: t.set_device_mesh([0, 1]).merge(0).outer_split(0, 2).parallelize(0, X)
     .set_allocation_domain([0, 1]), MeshError, "outermost part of one logical axis"),
    (lambda t: t.set_device_mesh([0, 1]).outer_split(0, 2).parallelize(0, X).split(0, 2),
     DefinitionError, "an axis that is not on devices"),
)


@pytest.mark.parametrize(("layout", "error", "message"), MISTAKES)
def test_mistakes_of_a_definition(
    layout: Callable[[Tensor], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        negated(layout)


def test_31_over_8_devices() -> None:
    with pytest.raises(MeshError, match=r"a multiple of 8 devices.*must divide, got size 31"):
        negated(lambda t: shard(t, 0, 8), (31, 2))


def test_a_tensor_without_a_mesh() -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1], True) for _ in range(2))
        fd.add_output(fd.ops.add(x, y))
        shard(x, 0, 2)
    with as_rank(0, 2), pytest.raises(MeshError, match=r"argument T1: expected the mesh"):
        fd.execute([torch.zeros(4), torch.zeros(8)])


def test_two_meshes() -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1], True) for _ in range(2))
        fd.add_output(fd.ops.add(x, y))
        shard(x, 0, 2)
        shard(y, 0, 4)
    with as_rank(0, 4), pytest.raises(MeshError, match="expected one mesh"):
        fd.execute([torch.zeros(4), torch.zeros(2)])


def test_local_tensors_of_the_wrong_size() -> None:
    fd = negated(lambda t: shard(t, 0, 2), (8, 3))
    with as_rank(0, 2):
        with pytest.raises(InputError, match=r"axis i0: expected size 4 .* got size 8"):
            fd.execute([torch.zeros(8, 3)])
        with pytest.raises(InputError, match=r"axis i0\.o on mesh_x: expected size 1"):
            fd.execute([torch.zeros(2, 4, 3)])
        with pytest.raises(InputError, match="expected rank 2, or 3 with the axes on devices"):
            fd.execute([torch.zeros(8)])
        with pytest.raises(InputError, match=r"expected stride 1, .* contiguous"):
            fd.execute([torch.zeros(3, 4).t()])


def test_outside_of_a_process_group() -> None:
    with pytest.raises(MeshError, match="init_process_group"):
        whole_tensor_facts(2).execute([torch.zeros(4, 6)])


def test_a_rank_that_is_not_of_the_mesh() -> None:
    with as_rank(3, 4), pytest.raises(MeshError, match="expected a rank of the mesh"):
        whole_tensor_facts(2).execute([torch.zeros(4, 6)])


@pytest.mark.parametrize(("mesh", "on", "line"), [
    ([1, 0], "mesh_x", "1, 0"),
    ([[2, 3], [0, 1]], "mesh_y", "2, 0"),
])  # fmt: skip
def test_ranks_out_of_order(mesh: Any, on: str, line: str) -> None:
    """torch's groups sort their ranks, so that what is gathered would be in another order."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True)
        fd.add_output(fd.ops.all_gather(x, 0, mesh=mesh, on=on))
    size = 2 if on == "mesh_x" else 4
    with as_rank(0, size), pytest.raises(MeshError, match=f"ascending ranks along {on}.*{line}"):
        fd.execute([torch.zeros(4)])


def test_lines_of_a_mesh() -> None:
    mesh = Mesh.of([[0, 1, 2], [3, 4, 5]])
    assert mesh.line(4, X) == (3, 4, 5) and mesh.line(4, Y) == (1, 4)
    assert Mesh.of([[[0, 1], [2, 3]], [[4, 5], [6, 7]]]).line(7, Y) == (5, 7)
