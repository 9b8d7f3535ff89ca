# SPDX-License-Identifier: Apache-2.0
"""Reads at places that a tensor of indices holds: what is fused with them, and wrong indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import Runner, rand
from helpers.definitions import assert_refused, tensor
from helpers.opinfo_index import indices

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import DefinitionError, DtypeError, EmulatorError, OutOfRangeError
from thunder_fuser.ir.dtypes import COMPUTED, DataType

D = DataType
Body = Callable[..., Any]


def defined(body: Body, inputs: list[Any]) -> FusionDefinition:
    """The fusion of one result, with an input for each tensor or integer."""
    with FusionDefinition() as fd:
        build(body, inputs)(fd)
    return fd


def build(body: Body, inputs: list[Any]) -> Callable[[FusionDefinition], None]:
    def fusion(fd: FusionDefinition) -> None:
        given = [
            fd.from_pytorch(x) if isinstance(x, torch.Tensor) else fd.define_scalar(dtype=D.Int)
            for x in inputs
        ]
        fd.add_output(body(fd, *given))

    return fusion


def schedulers(fd: FusionDefinition, inputs: list[Any], target: str = "cpu") -> list[str]:
    return [segment.scheduler.name for segment in fd.plan(inputs, target=target).segments]


def check(
    run: Runner, body: Body, inputs: list[Any], expected: torch.Tensor, *names: str,
    tolerance: float | None = None,
) -> None:  # fmt: skip
    """The result, and the schedulers of the segments."""
    run(build(body, inputs), inputs, [expected], tolerance=tolerance)
    assert schedulers(defined(body, inputs), inputs, run.target) == list(names)


# ---- what a lookup is fused with


def test_a_lookup_between_pointwise_ops(run: Runner) -> None:
    x, index = rand(6, 10), indices(10, 6, 3)

    def body(fd: Any, a: Any, i: Any) -> Any:
        return fd.ops.mul(fd.ops.gather(fd.ops.abs(a), i, 1), 2.0)

    check(run, body, [x, index], x.abs().gather(1, index) * 2, "pointwise")


def test_computed_indices(run: Runner) -> None:
    x, index = rand(6, 10), indices(5, 6, 3)

    def body(fd: Any, a: Any, i: Any) -> Any:
        return fd.ops.gather(a, fd.ops.add(fd.ops.mul(i, 2), 1), 1)

    check(run, body, [x, index], x.gather(1, index * 2 + 1), "pointwise")


def test_a_lookup_of_a_lookup(run: Runner) -> None:
    x, first, second = rand(9, 4), indices(9, 5), indices(5, 7)

    def body(fd: Any, a: Any, i: Any, j: Any) -> Any:
        by_index = fd.ops.index_select(a, fd.ops.index_select(i, j, 0), 0)
        return fd.ops.add(by_index, 1.0)

    check(run, body, [x, first, second], x[first[second]] + 1, "pointwise")


def test_a_lookup_through_movement(run: Runner) -> None:
    """A pad, a reshape, a flip and a cat between the source and the index."""
    x, index = rand(4, 6), indices(30, 11)

    def body(fd: Any, a: Any, i: Any) -> Any:
        wide = fd.ops.pad(fd.ops.flip(a, [1]), [1, 1], -1.0)
        flat = fd.ops.reshape(fd.ops.cat([wide, wide], 0), [64])
        return fd.ops.index_select(flat, i, 0)

    wide = torch.nn.functional.pad(x.flip(1), (1, 1), value=-1.0)
    check(run, body, [x, index], torch.cat([wide, wide]).reshape(64)[index], "pointwise")


def test_a_lookup_that_is_padded(run: Runner) -> None:
    """Indices are read only inside of what is padded."""
    x, index = rand(6, 5), indices(6, 4)

    def body(fd: Any, a: Any, i: Any) -> Any:
        return fd.ops.pad(fd.ops.index_select(a, i, 0), [0, 0, 2, 3], 7.0)

    expected = torch.nn.functional.pad(x[index], (0, 0, 2, 3), value=7.0)
    check(run, body, [x, index], expected, "pointwise")


def test_an_index_into_a_factory(run: Runner) -> None:
    index = indices(9, 4, 3)

    def body(fd: Any, i: Any) -> Any:
        counted = fd.ops.broadcast(fd.ops.iota(9, 5, 2, D.Int), [True, False])
        return fd.ops.take_along_axis(fd.ops.expand(counted, [4, 9]), i, 1)

    check(run, body, [index], index * 2 + 5, "pointwise")


def test_random_numbers_that_are_looked_up(run: Runner) -> None:
    """An element of a stream is the same wherever it is made: rows, and single elements."""
    rows, places = indices(16, 5), indices(64, 16, 7)
    fd = FusionDefinition()
    drawn = fd.ops.uniform(0.0, 1.0, [16, 64], D.Float, 3, 8)
    fd.add_output(drawn)
    fd.add_output(fd.ops.index_select(drawn, fd.from_pytorch(rows), 0))
    fd.add_output(fd.ops.gather(drawn, fd.from_pytorch(places), 1))
    whole, by_row, by_place = run.execute(fd, [rows, places])
    assert torch.equal(by_row, whole[rows])
    assert torch.equal(by_place, whole.gather(1, places))


def test_a_sum_of_what_is_looked_up(run: Runner) -> None:
    x, index = rand(6, 10), indices(10, 6, 30)

    def body(fd: Any, a: Any, i: Any) -> Any:
        return fd.ops.sum(fd.ops.gather(a, i, 1), [1])

    check(run, body, [x, index], x.gather(1, index).sum(1), "reduction", tolerance=1e-5)


@pytest.mark.parametrize("hidden", [64, 2048, 7])
def test_a_bag_of_rows(run: Runner, hidden: int) -> None:
    """The sum runs over the words of a bag; the lanes walk the row."""
    weight, words = rand(11, hidden), indices(11, 2, 9)

    def body(fd: Any, i: Any, w: Any) -> Any:
        return fd.ops.sum(fd.ops.embedding_fwd(i, w), [1])

    check(run, body, [words, weight], weight[words].sum(1), "reduction", tolerance=1e-5)


def test_indices_that_the_lanes_walk(run: Runner) -> None:
    """Each lane reads another row: no access may be wide, though the columns are neighbours."""
    x, index = rand(8, 64), indices(8, 16, 64)

    def body(fd: Any, a: Any, i: Any) -> Any:
        return fd.ops.sum(fd.ops.gather(a, i, 0), [0])

    check(run, body, [x, index], x.gather(0, index).sum(0), "reduction", tolerance=1e-5)
    check(run, lambda fd, a, i: fd.ops.gather(a, i, 0), [x, index], x.gather(0, index), "pointwise")


@pytest.mark.parametrize("hidden", [64, 7])
def test_an_embedding_and_its_norm_are_one_kernel(run: Runner, hidden: int) -> None:
    weight, words = rand(50, hidden), indices(50, 3, 7)

    def body(fd: Any, i: Any, w: Any) -> Any:
        found = fd.ops.embedding_fwd(i, w)
        variance, mean = fd.ops.var_mean(found, [2], 0, True)
        scale = fd.ops.rsqrt(fd.ops.add(variance, 1e-5))
        return fd.ops.mul(fd.ops.sub(found, mean), scale)

    expected = torch.nn.functional.layer_norm(weight[words], (hidden,))
    check(run, body, [words, weight], expected, "persistent", tolerance=1e-5)


def test_a_normalised_row_of_looked_up_elements(run: Runner) -> None:
    """The row is read through the indices once and kept."""
    x, index = rand(6, 10), indices(10, 6, 40)

    def body(fd: Any, a: Any, i: Any) -> Any:
        found = fd.ops.gather(a, i, 1)
        powers = fd.ops.exp(fd.ops.sub(found, fd.ops.max(found, [1], True)))
        return fd.ops.truediv(powers, fd.ops.sum(powers, [1], True))

    check(run, body, [x, index], x.gather(1, index).softmax(1), "persistent", tolerance=1e-5)


def log_probability(fd: Any, x: Any, target: Any) -> Any:
    shifted = fd.ops.sub(x, fd.ops.max(x, [1], True))
    total = fd.ops.log(fd.ops.sum(fd.ops.exp(shifted), [1], True))
    column = fd.ops.broadcast(target, [False, True])
    return fd.ops.squeeze(fd.ops.take_along_axis(fd.ops.sub(shifted, total), column, 1), [1])


@pytest.mark.parametrize("columns", [40, 1000])
def test_cross_entropy_is_one_kernel(run: Runner, columns: int) -> None:
    x, target = rand(9, columns), indices(columns, 9)

    def body(fd: Any, a: Any, i: Any) -> Any:
        return fd.ops.neg(log_probability(fd, a, i))

    expected = torch.nn.functional.cross_entropy(x, target, reduction="none")
    check(run, body, [x, target], expected, "persistent", tolerance=1e-5)


def test_an_index_that_a_reduction_makes(run: Runner) -> None:
    x, y = rand(6, 10), rand(6, 10, seed=1)

    def body(fd: Any, a: Any, b: Any) -> Any:
        return fd.ops.take_along_axis(b, fd.ops.argmax(a, 1, True), 1)

    expected = y.gather(1, x.argmax(1, keepdim=True))
    check(run, body, [x, y], expected, "persistent")


# ---- what is cut before a lookup


def test_a_row_of_a_reduction_is_looked_up_in_a_second_kernel(run: Runner) -> None:
    """Another row's sum is not in this block."""
    x, index = rand(6, 10), indices(6, 4)

    def body(fd: Any, a: Any, i: Any) -> Any:
        return fd.ops.index_select(fd.ops.sum(a, [1]), i, 0)

    check(run, body, [x, index], x.sum(1)[index], "reduction", "pointwise", tolerance=1e-5)


def test_an_expensive_source_is_computed_once_where_more_is_looked_up(run: Runner) -> None:
    x, few, many = rand(6, 10), indices(6, 6), indices(6, 60)

    def body(fd: Any, a: Any, i: Any) -> Any:
        return fd.ops.index_select(fd.ops.tanh(a), i, 0)

    check(run, body, [x, few], x.tanh()[few], "pointwise", tolerance=1e-6)
    check(run, body, [x, many], x.tanh()[many], "pointwise", "pointwise", tolerance=1e-6)


def test_a_cheap_source_is_made_where_it_is_looked_up(run: Runner) -> None:
    x, many = rand(6, 10), indices(6, 60)

    def body(fd: Any, a: Any, i: Any) -> Any:
        return fd.ops.index_select(fd.ops.neg(a), i, 0)

    check(run, body, [x, many], -x[many], "pointwise")


# ---- composites


@pytest.mark.parametrize("index", [0, 3, -1, -4])
def test_select(run: Runner, index: int) -> None:
    x = rand(4, 6)

    def body(fd: Any, a: Any, *given: Any) -> Any:
        return fd.ops.select(a, *(given or (index,)), dim=0)

    for arguments in ([x], [x, index], [x, torch.tensor(index)], [x, torch.tensor([index])]):
        check(run, body, arguments, x[index], "pointwise")


ARG = ("argmax", "argmin")


@pytest.mark.parametrize("name", ARG)
@pytest.mark.parametrize("dim", [0, 1, -1, None])
@pytest.mark.parametrize("keepdim", [False, True])
def test_places_of_extrema(run: Runner, name: str, dim: int | None, keepdim: bool) -> None:
    """Of equal elements the first; NaN before all numbers."""
    x = indices(3, 5, 12).float()
    x[1, 4] = x[1, 7] = torch.nan
    x[2] = torch.inf
    x[3] = -torch.inf
    x[4, 0], x[4, 1] = -0.0, 0.0

    def body(fd: Any, a: Any) -> Any:
        return getattr(fd.ops, name)(a, dim, keepdim)

    check(run, body, [x], getattr(torch, name)(x, dim, keepdim), "persistent")


@pytest.mark.parametrize("name", ARG)
@pytest.mark.parametrize("dtype", [d for d in COMPUTED if d is not D.Bool], ids=lambda d: d.short)
def test_places_of_extrema_in_every_type(run: Runner, name: str, dtype: DataType) -> None:
    from helpers.opinfo_index import values

    x = values(dtype, 5, 33)
    results = defined(lambda fd, a: getattr(fd.ops, name)(a, 1), [x])
    (result,) = run.execute(results, [x])
    assert torch.equal(result, getattr(torch, name)(x, 1))


def test_places_of_extrema_of_computed_values(run: Runner) -> None:
    """The vector exp of one nest and the scalar one of another differ in the last bit: what is
    compared with the extremum must be what the extremum was taken of."""
    x = rand(3, 16, 1)

    def body(fd: Any, a: Any) -> Any:
        wide = fd.ops.pad(fd.ops.pad(a, [0, 0, 0, 2, 2, 2], 0.5), [2, 0, 2, 0, 2, 0], 0.5)
        return fd.ops.argmax(fd.ops.exp(wide), 2)

    (place,) = run.execute(defined(body, [x]), [x])
    pad = torch.nn.functional.pad
    values = pad(pad(x, (0, 0, 0, 2, 2, 2), value=0.5), (2, 0, 2, 0, 2, 0), value=0.5).exp()
    assert int(place.max()) < 3
    torch.testing.assert_close(values.gather(2, place[..., None])[..., 0], values.amax(2))


def test_places_of_extrema_in_shapes_with_ones(run: Runner) -> None:
    for x in (rand(1, 7), rand(7, 1), rand(1), rand()):
        run(build(lambda fd, a: fd.ops.argmax(a), [x]), [x], [x.argmax()])


@pytest.mark.parametrize("diagonal", [-2, 0, 1, 9])
def test_tril(run: Runner, diagonal: int) -> None:
    x = rand(3, 5, 7)
    check(run, lambda fd, a: fd.ops.tril(a, diagonal), [x], x.tril(diagonal), "pointwise")


# ---- wrong indices

# (op, the call, the sizes of the index, the size of the axis)
Read = tuple[str, Body, list[int], int]
READS: list[Read] = [
    ("index_select", lambda fd, a, i: fd.ops.index_select(a, i, 0), [4], 6),
    ("take_along_axis", lambda fd, a, i: fd.ops.take_along_axis(a, i, 1), [6, 2], 10),
    ("gather", lambda fd, a, i: fd.ops.gather(a, i, 0), [2, 10], 6),
    ("embedding_fwd", lambda fd, a, i: fd.ops.embedding_fwd(i, a), [2, 3], 6),
    ("sum", lambda fd, a, i: fd.ops.sum(fd.ops.gather(a, i, 1), [1]), [6, 30], 10),
    ("index_select", lambda fd, a, i: fd.ops.index_select(fd.ops.full([6], 1.0, D.Float), i, 0),
     [4], 6),
]  # fmt: skip


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("past", [False, True])
def test_an_index_out_of_range(run: Runner, read: Read, dtype: torch.dtype, past: bool) -> None:
    """The CPU raises an IndexError that names the op; the emulator names the line. The next call
    is as good as any."""
    op, body, shape, size = read
    x, wrong = rand(6, 10), indices(size, *shape, dtype=dtype)
    fd = defined(body, [x, wrong])
    (before,) = fd.execute([x, wrong], target=run.target)
    value = size if past else -1
    wrong.view(-1)[-1] = value
    if run.target == "cpu":
        name = "gather" if op == "sum" else op
        with pytest.raises(OutOfRangeError) as error:
            fd.execute([x, wrong], target="cpu")
        assert f"fd.ops.{name}(" in str(error.value)
        assert f"index: expected numbers from 0 to {size - 1}, got {value}" in str(error.value)
        assert isinstance(error.value, IndexError)
    else:
        with pytest.raises(EmulatorError, match=f"holds {value}, where 0 to {size - 1}"):
            fd.execute([x, wrong], target="emulator")
    again = indices(size, *shape, dtype=dtype)
    assert torch.equal(fd.execute([x, again], target=run.target)[0], before)


def test_a_huge_index_is_no_wild_read(run: Runner) -> None:
    x, index = rand(6, 10), torch.tensor([2**40, -(2**62)])
    fd = defined(READS[0][1], [x, index])
    with pytest.raises((OutOfRangeError, EmulatorError)):
        fd.execute([x, index], target=run.target)


def test_of_many_wrong_indices_one_is_named() -> None:
    """Threads meet them at once."""
    x, index = rand(6, 1000), torch.full((500,), 6)
    fd = defined(READS[0][1], [x, index])
    for _ in range(5):
        with pytest.raises(OutOfRangeError, match="got 6"):
            fd.execute([x, index], target="cpu")


def test_an_index_into_nothing_raises(run: Runner) -> None:
    """torch's own error: no kernel is made for a tensor without elements."""
    x, index = rand(0, 5), torch.tensor([0])
    with pytest.raises((IndexError, RuntimeError)):
        defined(READS[0][1], [x, index]).execute([x, index], target=run.target)


# ---- refusals

index_of = Any
REFUSALS = [
    (lambda fd: fd.ops.index_select(tensor(fd, 4, 6), tensor(fd, 3), 0), DtypeError,
     "index_select: index: expected Int or Int32, got Float. To fix it: cast it to DataType.Int."),
    (lambda fd: fd.ops.index_select(tensor(fd, 4, 6), tensor(fd, 3, 2, dtype=D.Int), 0),
     DefinitionError, "index_select: index: expected rank 0 or 1, got rank 2"),
    (lambda fd: fd.ops.index_select(tensor(fd, 4, 6), 4, 0), DefinitionError,
     "index_select: index: expected 0 to 3, on axis 0, got 4"),
    (lambda fd: fd.ops.index_select(tensor(fd, 4, 6), tensor(fd, 3, dtype=D.Int), 2),
     DefinitionError, "index_select: axis 2: expected an axis from -2 to 1, got 2"),
    (lambda fd: fd.ops.gather(tensor(fd, 4, 6), tensor(fd, 5, 6, dtype=D.Int), 1),
     DefinitionError, "gather: axis 0 of the index: expected at most 4, got 5"),
    (lambda fd: fd.ops.take_along_axis(tensor(fd, 4, 6), tensor(fd, 3, dtype=D.Int), 1),
     DefinitionError, "take_along_axis: index: expected rank 2, got rank 1"),
    (lambda fd: fd.ops.take_along_axis(tensor(fd, 4, 6), tensor(fd, 3, 6, dtype=D.Int), 1),
     DefinitionError, "take_along_axis: axis 0: expected equal sizes, got 4, 3"),
    (lambda fd: fd.ops.embedding_fwd(tensor(fd, 3, dtype=D.Int), tensor(fd, 4)),
     DefinitionError, "embedding_fwd: weight: expected rank 2, got rank 1"),
    (lambda fd: fd.ops.flip(tensor(fd, 4, 6), [0, 0]), DefinitionError,
     "flip: axes: expected each axis once, got (0, 0)"),
    (lambda fd: fd.ops.scatter(tensor(fd, 4, 6), tensor(fd, 4, 7, dtype=D.Int),
                               tensor(fd, 4, 6), 0), DefinitionError,
     "scatter: axis 1 of the index: expected at most 6, got 7"),
    (lambda fd: fd.ops.scatter_add(tensor(fd, 4, 6), tensor(fd, 4, 6, dtype=D.Int),
                                   tensor(fd, 4, 6, dtype=D.Half), 0), DtypeError,
     "scatter_add: src: expected Float, got Half. To fix it: cast it first."),
    (lambda fd: fd.ops.index_add(tensor(fd, 4, 6), tensor(fd, 3, dtype=D.Int),
                                 tensor(fd, 2, 6), 0), DefinitionError,
     "index_add: src: expected sizes [3, 6], got [2, 6]"),
    (lambda fd: fd.ops.index_put(tensor(fd, 4, 6), tensor(fd, 3, dtype=D.Int),
                                 tensor(fd, 3, 5)), DefinitionError,
     "index_put: src: expected sizes [3, 6], got [3, 5]"),
    (lambda fd: fd.ops.embedding_backward(tensor(fd, 3, 6), tensor(fd, 4, dtype=D.Int), 9),
     DefinitionError,
     "embedding_backward: grad: expected the sizes of the indices and one more axis, got "
     "[3, 6] and [4]"),
    (lambda fd: fd.ops.topk(tensor(fd, 4, 6), 7, 1)[0], DefinitionError,
     "topk: k: expected 0 to 6, got 7"),
    (lambda fd: fd.ops.topk(tensor(fd, 4, 6, dtype=D.Bool), 2)[0], DtypeError,
     "ops.topk: expected numbers, got Bool. To fix it: cast to DataType.Int."),
]  # fmt: skip


@pytest.mark.parametrize(("body", "kind", "message"), REFUSALS)
def test_refusals(body: Body, kind: type[Exception], message: str) -> None:
    assert_refused(body, kind, message)
