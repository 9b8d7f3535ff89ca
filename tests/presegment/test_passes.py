# SPDX-License-Identifier: Apache-2.0
"""Each pass: where it fires, one step away where it must not, and twice is once."""

from __future__ import annotations

import pytest
from conftest import Golden
from helpers.definitions import Build, defined
from helpers.rows import after_row

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.kinds import Value
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.options import compile_options, options
from thunder_fuser.presegment import run_passes
from thunder_fuser.presegment.specialise import InputKey, specialise
from thunder_fuser.sharding.localise import FUSION_PASSES

D = DataType


def x(fd: Recorder, *shape: int, dtype: DataType = D.Float) -> Value:
    return fd.define_tensor(shape or (8, 4), True, dtype)


# ---- what fires: (pass, definition); the golden files hold before and after


def _laid_out(fd: Recorder) -> Value:
    """A storage read and one written, neither of which strides describe; 31 in steps of 8."""
    t, u = x(fd, 31), x(fd, 6)
    y = fd.ops.neg(t)
    fd.add_output(y)
    for tensor in (t, y):
        tensor.split(0, 8)
        tensor.set_allocation_domain([0, 1])
    u.outer_split(0, 2)
    u.merge(1, 0)
    u.set_allocation_domain([0])
    return fd.ops.exp(u)


def _reshaped_argument(fd: Recorder) -> None:
    t = fd.define_tensor([8, 4], True, strides=[4, 1])
    fd.add_output(fd.ops.reshape(fd.ops.reshape(t, [32]), [2, 16]), shares=True)


def _laid_out_between(fd: Recorder) -> Value:
    y = fd.ops.neg(x(fd))
    y.merge(1, 0)
    y.set_allocation_domain([0])
    return fd.ops.exp(y)


def _on_devices(fd: Recorder) -> Value:
    """Two devices with half of the rows each; a counter, a size and random numbers of all rows."""
    t = x(fd)
    rows = fd.ops.iota(8, dtype=D.Float)
    noise = fd.ops.uniform(0.0, 1.0, [8, 4], D.Float, 7, 3)
    y = fd.ops.add(fd.ops.mul(t, fd.ops.size(t, 0)), fd.ops.broadcast(rows, [False, True]))
    t.set_device_mesh([0, 1])
    t.outer_split(0, 2)
    t.axis(0).parallelize("mesh_x")
    return fd.ops.add(y, noise)


def _transposed_result(fd: Recorder) -> Value:
    y = fd.ops.neg(x(fd))
    y.set_allocation_domain([1, 0])
    return y


def _folded_size(fd: Recorder) -> Value:
    t = x(fd)
    count = fd.ops.cast(fd.ops.mul(fd.ops.size(t, 0), fd.ops.size(t, 1)), D.Float)
    return fd.ops.truediv(fd.ops.sum(t), fd.ops.maximum(fd.ops.sub(count, 1.0), 0.0))


def _folded_shape(fd: Recorder) -> Value:
    t = x(fd)
    return fd.ops.broadcast_in_dim(x(fd, 4), fd.ops.shape(t), [1])


def _pad_of_nothing(fd: Recorder) -> Value:
    t = x(fd, 8, 0)
    return fd.ops.exp(fd.ops.pad(t, [1, 3, 0, 0], 2.0))


def _cat_with_nothing(fd: Recorder) -> Value:
    t = x(fd)
    fd.add_output(fd.ops.cat([x(fd, 8, 0), t], 1))
    fd.add_output(fd.ops.cat([t, x(fd, 8, 0), t], 1))
    return fd.ops.exp(fd.ops.cat([t, x(fd, 8, 0)], 1))


def _rounded_twice(fd: Recorder) -> Value:
    """The value that replaces the last one is replaced itself."""
    t = fd.ops.cast(x(fd, dtype=D.BFloat16), D.Float)
    once = fd.ops.cast(t, D.BFloat16)
    twice = fd.ops.cast(fd.ops.cast(once, D.Float), D.BFloat16)
    fd.add_output(once)
    fd.add_output(twice)
    return fd.ops.exp(fd.ops.cast(twice, D.Float))


def _trivial(fd: Recorder) -> Value:
    t = x(fd, 8, 1)
    return fd.ops.exp(fd.ops.sum(t, [1]))


def _trivial_keepdim(fd: Recorder) -> Value:
    return fd.ops.exp(fd.ops.max(x(fd, 8, 1), [1], keepdim=True))


def _trivial_result(fd: Recorder) -> Value:
    return fd.ops.prod(x(fd, 8, 1), [1], keepdim=True)


def _trivial_no_axis(fd: Recorder) -> Value:
    return fd.ops.exp(fd.ops.sum(x(fd), []))


def _up_and_down(fd: Recorder) -> Value:
    t = x(fd, dtype=D.BFloat16)
    return fd.ops.neg(fd.ops.cast(fd.ops.cast(t, D.Float), D.BFloat16))


def _rotated(fd: Recorder) -> tuple[Value, Value]:
    """The halves of a vector, the second one negated, in 16 bits."""
    t = x(fd, 8, 4, dtype=D.BFloat16)
    first, second = fd.ops.slice(t, [0, 0], [8, 2]), fd.ops.slice(t, [0, 2], [8, 4])
    return fd.ops.cast(fd.ops.neg(fd.ops.cast(second, D.Float)), D.BFloat16), first


def _cat_of_rounded(fd: Recorder) -> Value:
    return fd.ops.cat([*_rotated(fd)], 1)


def _cat_with_rounded_product(fd: Recorder) -> Value:
    wide = fd.ops.mul(x(fd), 0.3)
    return fd.ops.cat([x(fd, dtype=D.BFloat16), fd.ops.cast(wide, D.BFloat16)], 0)


def _pad_of_a_rounded_slice(fd: Recorder) -> Value:
    wide = fd.ops.cast(fd.ops.mul(x(fd), 0.3), D.BFloat16)
    return fd.ops.pad(fd.ops.slice(wide, [0, 0], [8, 2]), [0, 2, 0, 0], 0.0)


def _padded_and_widened(fd: Recorder) -> Value:
    wide = fd.ops.pad(fd.ops.cast(x(fd, dtype=D.BFloat16), D.Float), [0, 2, 0, 0], 0.0)
    return fd.ops.exp(fd.ops.cast(fd.ops.cast(wide, D.BFloat16), D.Float))


def _negated_and_widened(fd: Recorder) -> Value:
    return fd.ops.exp(fd.ops.cast(_rotated(fd)[0], D.Float))


def _rotated_in_float(fd: Recorder) -> Value:
    """What widen_joins makes of a rotation, whose result is widened again."""
    negated, first = _rotated(fd)
    wide = fd.ops.cat([fd.ops.cast(negated, D.Float), fd.ops.cast(first, D.Float)], 1)
    return fd.ops.exp(fd.ops.cast(fd.ops.cast(wide, D.BFloat16), D.Float))


def _up_and_down_to_a_result(fd: Recorder) -> None:
    """The other value is computed here: it becomes the result."""
    t = fd.ops.reshape(fd.ops.cast(fd.ops.neg(x(fd)), D.BFloat16), [32])
    wide = fd.ops.cast(t, D.Float)
    fd.add_output(fd.ops.cast(wide, D.BFloat16))
    fd.add_output(fd.ops.sum(wide, [0]))


def _same_cast(fd: Recorder) -> Value:
    return fd.ops.exp(fd.ops.cast(x(fd), D.Float))


def _set(fd: Recorder) -> Value:
    return fd.ops.exp(fd.ops.set(x(fd)))


def _common(fd: Recorder) -> Value:
    t = x(fd)
    return fd.ops.add(fd.ops.exp(t), fd.ops.exp(t))


def _common_results(fd: Recorder) -> None:
    t = x(fd)
    for _ in range(3):
        fd.add_output(fd.ops.exp(t))


def _common_with_results(fd: Recorder) -> None:
    """The first is no result, and stands for one of two."""
    t = x(fd)
    fd.add_output(fd.ops.neg(fd.ops.exp(t)))
    for _ in range(2):
        fd.add_output(fd.ops.exp(t))


def _dead(fd: Recorder) -> Value:
    t = x(fd)
    fd.ops.sin(fd.ops.exp(t))
    return fd.ops.neg(t)


def _one_plus_tanh(fd: Recorder) -> Value:
    return fd.ops.add(1.0, fd.ops.tanh(x(fd)))


def _tanh_plus_one(fd: Recorder) -> Value:
    return fd.ops.add(fd.ops.tanh(x(fd, dtype=D.BFloat16)), 1)


def _short_sum(fd: Recorder) -> Value:
    total = fd.ops.sum(fd.ops.cast(x(fd, 1, 3, 8, dtype=D.BFloat16), D.Float), [0, 1])
    return fd.ops.pad(fd.ops.neg(total), [2, 0])


def _sum_between(fd: Recorder) -> Value:
    return fd.ops.exp(fd.ops.sum(x(fd, 1, 2, 3, 8), [0, 2]))


def _short_sum_keepdim(fd: Recorder) -> Value:
    return fd.ops.flip(fd.ops.sum(x(fd, 2, 8), [0], keepdim=True), [1])


def _merged_between_sums(fd: Recorder) -> Value:
    """Normalised over pairs of channels, then summed over all but channels."""
    t = x(fd, 8, 4, 2, 3)
    centred = fd.ops.sub(t, fd.ops.sum(t, [2, 3], keepdim=True))
    scaled = fd.ops.mul(fd.ops.reshape(centred, [8, 8, 3]), fd.ops.exp(x(fd, 1, 8, 1)))
    fd.add_output(scaled)
    return fd.ops.sum(scaled, [0, 2])


def _merged_and_split_again(fd: Recorder) -> Value:
    t = fd.ops.reshape(fd.ops.exp(x(fd, 8, 4, 2)), [8, 8])
    return fd.ops.sum(fd.ops.reshape(fd.ops.neg(t), [8, 4, 2]), [2])


def _merged_sum_keepdim(fd: Recorder) -> Value:
    t = fd.ops.reshape(fd.ops.exp(x(fd, 8, 4, 2)), [8, 8])
    return fd.ops.truediv(t, fd.ops.sum(t, [1], keepdim=True))


def _merged_where_it_must_be(fd: Recorder) -> Value:
    """A slice takes the merged axis."""
    t = fd.ops.neg(fd.ops.reshape(fd.ops.sum(x(fd, 8, 4, 2), [0], keepdim=True), [1, 8]))
    return fd.ops.slice(t, [0, 1], [1, 7])


def _merged_result_twice(fd: Recorder) -> None:
    """The second of two equal results is a copy, which has no need of the merged axes."""
    t = fd.ops.reshape(fd.ops.neg(x(fd, 8, 4, 2, 3)), [8, 8, 3])
    fd.add_output(t)
    fd.add_output(fd.ops.set(t))
    fd.add_output(fd.ops.sum(t, [0, 2]))


def _merged_beside_a_sum_of_its_sizes(fd: Recorder) -> Value:
    """An argument of the merged sizes is reduced over the same axes."""
    merged = fd.ops.reshape(fd.ops.exp(x(fd, 8, 4, 2, 3)), [8, 8, 3])
    t = fd.ops.cast(x(fd, 8, 8, 3, dtype=D.BFloat16), D.Float)
    fd.add_output(fd.ops.sum(t, [0, 2]))
    return fd.ops.sum(fd.ops.mul(merged, t), [0, 2])


def _stored_slices(fd: Recorder) -> Value:
    """The cache is returned as the argument."""
    cache = fd.define_tensor([2, 8, 4], True, donated=True)
    index = fd.define_tensor([1], True, dtype=D.Int)
    whole = fd.ops.index_copy(cache, index, fd.ops.neg(x(fd, 2, 1, 4)), 1)
    fd.add_output(whole, alias_input=cache)
    return whole


FIRES: tuple[tuple[str, Build], ...] = (
    ("localise", _on_devices),
    ("lay_out", _laid_out),
    ("lay_out", _laid_out_between),
    ("lay_out", _transposed_result),
    ("index_stores", _stored_slices),
    ("share_results", _reshaped_argument),
    ("fold_scalars", _folded_size),
    ("fold_scalars", _folded_shape),
    ("remove_empty", _pad_of_nothing),
    ("remove_empty", _cat_with_nothing),
    ("remove_trivial_reductions", _trivial),
    ("remove_trivial_reductions", _trivial_keepdim),
    ("remove_trivial_reductions", _trivial_result),
    ("remove_trivial_reductions", _trivial_no_axis),
    ("remove_round_trips", _up_and_down),
    ("remove_round_trips", _up_and_down_to_a_result),
    ("remove_round_trips", _same_cast),
    ("remove_round_trips", _set),
    ("widen_joins", _cat_of_rounded),
    ("widen_joins", _cat_with_rounded_product),
    ("widen_joins", _pad_of_a_rounded_slice),
    ("remove_exact_roundings", _padded_and_widened),
    ("remove_exact_roundings", _negated_and_widened),
    ("remove_exact_roundings", _rotated_in_float),
    ("remove_exact_roundings", _rounded_twice),
    ("remove_common", _common),
    ("remove_common", _common_results),
    ("remove_common", _common_with_results),
    ("join_one_plus_tanh", _one_plus_tanh),
    ("join_one_plus_tanh", _tanh_plus_one),
    ("unroll_short_sums", _short_sum),
    ("unroll_short_sums", _short_sum_keepdim),
    ("unroll_middle_sums", _sum_between),
    ("move_merging_reshapes", _merged_between_sums),
    ("move_merging_reshapes", _merged_and_split_again),
    ("move_merging_reshapes", _merged_sum_keepdim),
    ("move_merging_reshapes", _merged_where_it_must_be),
    ("move_merging_reshapes", _merged_result_twice),
    ("move_merging_reshapes", _merged_beside_a_sum_of_its_sizes),
    ("remove_dead", _dead),
)


def _id(value: str | Build) -> str:
    return value if isinstance(value, str) else value.__name__.strip("_")


@pytest.mark.parametrize(("row", "build"), FIRES, ids=_id)
def test_fires(row: str, build: Build, golden: Golden) -> None:
    before = defined(build)
    after = after_row(row, before)
    assert after != before
    assert [(o.stride_order, o.alias) for o in after.outputs] == [
        (o.stride_order, o.alias) for o in before.outputs
    ]
    golden(f"# {row}\n{before}\n\n{after}")


@pytest.mark.parametrize(("row", "build"), FIRES, ids=_id)
def test_twice_is_once(row: str, build: Build) -> None:
    after = after_row(row, defined(build))
    assert after_row(row, after) is after


# ---- what must not fire


def _symbolic_size(fd: Recorder) -> Value:
    t = x(fd, -1, 4)
    return fd.ops.mul(t, fd.ops.size(t, 0))


def _size_as_result(fd: Recorder) -> Value:
    return fd.ops.size(x(fd), 0)


def _given_scalar(fd: Recorder) -> Value:
    return fd.ops.mul(x(fd), fd.ops.mul(fd.define_scalar(dtype=D.Double), 2.0))


def _pad_of_something(fd: Recorder) -> Value:
    """Sizes that are not known, and a pad and a cat of what has elements."""
    t = fd.ops.pad(x(fd, 8, -1), [1, 3, 0, 0], 2.0)
    return fd.ops.exp(fd.ops.cat([t, x(fd, 8, 1)], 1))


def _cat_in_float(fd: Recorder) -> Value:
    return fd.ops.cat([x(fd), fd.ops.neg(x(fd))], 0)


def _cat_of_arguments(fd: Recorder) -> Value:
    return fd.ops.cat([x(fd, dtype=D.BFloat16), x(fd, dtype=D.BFloat16)], 0)


def _cat_with_rounded_sum(fd: Recorder) -> Value:
    """Another kernel may compute the sum."""
    total = fd.ops.cast(fd.ops.sum(x(fd, 8, 4, 2), [2]), D.BFloat16)
    return fd.ops.cat([x(fd, 8, 4, dtype=D.BFloat16), total], 0)


def _rounded_product(fd: Recorder) -> Value:
    """The product has more digits than 16 bits hold; the cast from another type does as well."""
    wide = fd.ops.mul(x(fd), 0.3)
    other = fd.ops.neg(fd.ops.cast(x(fd, dtype=D.Half), D.Float))
    both = [fd.ops.cast(fd.ops.cast(one, D.BFloat16), D.Float) for one in (wide, other)]
    return fd.ops.add(*both)


def _padded_with_a_third(fd: Recorder) -> Value:
    wide = fd.ops.pad(fd.ops.cast(x(fd, dtype=D.BFloat16), D.Float), [0, 2, 0, 0], 1 / 3)
    return fd.ops.exp(fd.ops.cast(fd.ops.cast(wide, D.BFloat16), D.Float))


def _size_two(fd: Recorder) -> Value:
    return fd.ops.sum(x(fd, 8, 2), [1])


def _one_and_more(fd: Recorder) -> Value:
    return fd.ops.sum(x(fd, 8, 1), [0, 1])


def _maybe_one(fd: Recorder) -> Value:
    return fd.ops.sum(x(fd, 8, -1), [1])


def _down_and_up(fd: Recorder) -> Value:
    """A cast that rounds may be meant."""
    return fd.ops.exp(fd.ops.cast(fd.ops.cast(x(fd), D.BFloat16), D.Float))


def _through_int(fd: Recorder) -> Value:
    """2.5 -> 2 -> 2.0 is no round trip."""
    return fd.ops.exp(fd.ops.cast(fd.ops.cast(x(fd), D.Int), D.Float))


def _int_through_float(fd: Recorder) -> Value:
    """2**60 + 1 does not come back from Float."""
    t = x(fd, dtype=D.Int)
    return fd.ops.neg(fd.ops.cast(fd.ops.cast(t, D.Float), D.Int))


def _another_type(fd: Recorder) -> Value:
    t = x(fd, dtype=D.Half)
    return fd.ops.permute(fd.ops.cast(fd.ops.cast(t, D.Float), D.BFloat16), [1, 0])


def _up_and_down_of_an_argument(fd: Recorder) -> Value:
    """A result never shares the memory of an argument."""
    t = fd.ops.reshape(x(fd, dtype=D.BFloat16), [32])
    return fd.ops.cast(fd.ops.cast(t, D.Float), D.BFloat16)


def _up_and_down_between_results(fd: Recorder) -> None:
    """Both are results, with memory of their own."""
    t = fd.ops.cast(fd.ops.neg(x(fd)), D.BFloat16)
    fd.add_output(t)
    fd.add_output(fd.ops.cast(fd.ops.cast(t, D.Float), D.BFloat16))


def _set_result(fd: Recorder) -> Value:
    return fd.ops.set(x(fd))


def _segment_set(fd: Recorder) -> Value:
    return fd.ops.exp(fd.ops.segment_set(x(fd)))


def _other_attributes(fd: Recorder) -> Value:
    t = x(fd)
    return fd.ops.add(fd.ops.sum(t, [0], True), fd.ops.sum(t, [1], True))


def _other_literals(fd: Recorder) -> Value:
    t = x(fd)
    return fd.ops.add(fd.ops.mul(t, 1.0), fd.ops.mul(t, True))


def _two_segment_sets(fd: Recorder) -> Value:
    t = x(fd)
    return fd.ops.add(fd.ops.segment_set(t), fd.ops.segment_set(t))


def _other_order(fd: Recorder) -> Value:
    t, u = x(fd), x(fd)
    return fd.ops.where(fd.ops.lt(t, u), fd.ops.sub(t, u), fd.ops.sub(u, t))


def _unused_input(fd: Recorder) -> Value:
    x(fd)
    fd.define_scalar(dtype=D.Int)
    return fd.ops.neg(x(fd))


def _size_of_dead(fd: Recorder) -> Value:
    """A value whose size alone is needed is needed."""
    t = fd.ops.exp(x(fd, -1, 4))
    return fd.ops.full([fd.ops.size(t, 0)], 1.0, D.Float)


def _two_plus_tanh(fd: Recorder) -> Value:
    return fd.ops.add(2.0, fd.ops.tanh(x(fd)))


def _tanh_used_twice(fd: Recorder) -> Value:
    t = fd.ops.tanh(x(fd))
    return fd.ops.mul(t, fd.ops.add(t, 1.0))


def _tanh_as_result(fd: Recorder) -> Value:
    t = fd.ops.tanh(x(fd))
    fd.add_output(t)
    return fd.ops.add(t, 1.0)


def _one_plus_exp(fd: Recorder) -> Value:
    return fd.ops.add(1.0, fd.ops.exp(x(fd)))


def _long_sum(fd: Recorder) -> Value:
    return fd.ops.flip(fd.ops.sum(x(fd, 9, 8), [0]), [0])


def _sum_in_place(fd: Recorder) -> Value:
    return fd.ops.exp(fd.ops.sum(x(fd, 3, 8), [0]))


def _sum_of_neighbours(fd: Recorder) -> Value:
    return fd.ops.flip(fd.ops.sum(x(fd, 8, 3), [1]), [0])


def _sum_over_two_axes(fd: Recorder) -> Value:
    return fd.ops.flip(fd.ops.sum(x(fd, 2, 2, 8), [0, 1]), [0])


def _sum_of_some(fd: Recorder) -> Value:
    return fd.ops.flip(fd.ops.sum(x(fd, -1, 8), [0]), [0])


def _short_maximum(fd: Recorder) -> Value:
    return fd.ops.flip(fd.ops.max(x(fd, 3, 8), [0]), [0])


def _sum_of_integers(fd: Recorder) -> Value:
    return fd.ops.flip(fd.ops.sum(x(fd, 3, 8, dtype=D.Int), [0]), [0])


def _merged_far_from_sums(fd: Recorder) -> Value:
    return fd.ops.exp(fd.ops.reshape(fd.ops.neg(x(fd, 8, 4, 2)), [8, 8]))


def _split_before_a_sum(fd: Recorder) -> Value:
    return fd.ops.sum(fd.ops.exp(fd.ops.reshape(fd.ops.neg(x(fd, 8, 8)), [8, 4, 2])), [2])


def _neither_split_nor_merged(fd: Recorder) -> Value:
    return fd.ops.exp(fd.ops.reshape(fd.ops.sum(x(fd, 6, 4, 2), [2]), [3, 8]))


def _merged_beside_another_sum(fd: Recorder) -> Value:
    """A row value of merged rows stays where it is made."""
    other = fd.ops.sum(fd.ops.exp(x(fd, 8, 8, 3)), [2], keepdim=True)
    return fd.ops.mul(fd.ops.reshape(fd.ops.exp(x(fd, 8, 4, 2, 3)), [8, 8, 3]), other)


def _merged_behind_a_boundary(fd: Recorder) -> Value:
    t = fd.ops.reshape(fd.ops.sum(x(fd, 8, 4, 2), [0], keepdim=True), [1, 8])
    return fd.ops.segment_set(t)


def _merged_input_as_result(fd: Recorder) -> Value:
    """A result is no view of an input."""
    t = x(fd, 8, 4, 2)
    fd.add_output(fd.ops.sum(t, [0]))
    return fd.ops.reshape(t, [8, 8])


def _stored_slices_of_a_read_argument(fd: Recorder) -> Value:
    cache = fd.define_tensor([2, 8, 4], True, donated=True)
    index = fd.define_tensor([1], True, dtype=D.Int)
    whole = fd.ops.index_copy(cache, index, fd.ops.neg(x(fd, 2, 1, 4)), 1)
    fd.add_output(whole, alias_input=cache)
    return fd.ops.exp(cache)


def _reshaped_argument_with_gaps(fd: Recorder) -> None:
    t = fd.define_tensor([8, 4], [False, True], strides=[8, 1])
    fd.add_output(fd.ops.reshape(t, [32]), shares=True)


def _merged_of_some(fd: Recorder) -> Value:
    t = fd.ops.sum(x(fd, -1, 4, 2), [0], keepdim=True)
    return fd.ops.exp(fd.ops.reshape(fd.ops.add(t, x(fd, -1, 4, 2)), [8, 8]))


STAYS: tuple[tuple[str, Build], ...] = (
    ("localise", _transposed_result),
    ("lay_out", _set_result),
    ("index_stores", _stored_slices_of_a_read_argument),
    ("share_results", _merged_input_as_result),
    ("share_results", _reshaped_argument_with_gaps),
    ("fold_scalars", _symbolic_size),
    ("fold_scalars", _size_as_result),
    ("fold_scalars", _given_scalar),
    ("remove_empty", _pad_of_something),
    ("remove_trivial_reductions", _size_two),
    ("remove_trivial_reductions", _one_and_more),
    ("remove_trivial_reductions", _maybe_one),
    ("remove_round_trips", _down_and_up),
    ("remove_round_trips", _through_int),
    ("remove_round_trips", _int_through_float),
    ("remove_round_trips", _another_type),
    ("remove_round_trips", _set_result),
    ("remove_round_trips", _up_and_down_of_an_argument),
    ("remove_round_trips", _up_and_down_between_results),
    ("remove_round_trips", _segment_set),
    ("widen_joins", _cat_in_float),
    ("widen_joins", _cat_of_arguments),
    ("widen_joins", _cat_with_rounded_sum),
    ("remove_exact_roundings", _rounded_product),
    ("remove_exact_roundings", _padded_with_a_third),
    ("remove_common", _other_attributes),
    ("remove_common", _other_literals),
    ("remove_common", _two_segment_sets),
    ("remove_common", _other_order),
    ("join_one_plus_tanh", _two_plus_tanh),
    ("join_one_plus_tanh", _tanh_used_twice),
    ("join_one_plus_tanh", _tanh_as_result),
    ("join_one_plus_tanh", _one_plus_exp),
    ("unroll_short_sums", _long_sum),
    ("unroll_short_sums", _sum_in_place),
    ("unroll_short_sums", _sum_of_neighbours),
    ("unroll_short_sums", _sum_over_two_axes),
    ("unroll_short_sums", _sum_of_some),
    ("unroll_short_sums", _short_maximum),
    ("unroll_short_sums", _sum_of_integers),
    ("unroll_short_sums", _sum_between),
    ("unroll_middle_sums", _short_sum),
    ("move_merging_reshapes", _merged_far_from_sums),
    ("move_merging_reshapes", _split_before_a_sum),
    ("move_merging_reshapes", _neither_split_nor_merged),
    ("move_merging_reshapes", _merged_beside_another_sum),
    ("move_merging_reshapes", _merged_behind_a_boundary),
    ("move_merging_reshapes", _merged_input_as_result),
    ("move_merging_reshapes", _merged_of_some),
    ("remove_dead", _unused_input),
    ("remove_dead", _size_of_dead),
)


def test_repeatable_short_sums_do_not_ask_who_reads_them() -> None:
    """Else the same sum had other bits where it is read in place."""
    between, first = defined(_sum_between), defined(_short_sum)
    with options(repeatable=True):
        after, as_it_was = (run_passes(one, compile_options()) for one in (between, first))
    assert [expr.op for expr in after.exprs].count("add") == 2
    assert "sum" in [expr.op for expr in as_it_was.exprs]


@pytest.mark.parametrize(("row", "build"), STAYS, ids=_id)
def test_does_not_fire(row: str, build: Build) -> None:
    before = defined(build)
    assert after_row(row, before) is before


# ---- specialise, and all passes


def _mean(fd: Recorder) -> Value:
    t = x(fd, -1, -1)
    return fd.ops.truediv(fd.ops.sum(t, [1]), fd.ops.size(t, 1))


def test_specialise(golden: Golden) -> None:
    """Sizes, contiguity, order and strides become the argument's."""
    before = defined(_mean)
    keys = (InputKey((4, 6), (1, 4)), InputKey((1, 5), (5, 1)), InputKey((3, 2), (0, 1)))
    texts = [str(specialise(before, (key,))) for key in keys]
    golden("\n\n".join([str(before), *texts]))


def test_specialise_shape_scalars() -> None:
    def build(fd: Recorder) -> Value:
        rows = fd.define_scalar(dtype=D.Int)
        return fd.ops.full([fd.ops.mul(rows, 2), rows], 1.0, D.Float)

    fusion = specialise(defined(build), (InputKey(value=3),))
    assert fusion.tensors[fusion.outputs[0].name].sizes == (6, 3)


def test_all_passes_twice_are_once() -> None:
    for _, build in (*FIRES, *STAYS):
        once = run_passes(defined(build), compile_options(), passes=FUSION_PASSES)
        assert run_passes(once, compile_options(), passes=FUSION_PASSES) == once


def test_every_pass_is_tested() -> None:
    names = {row.name for row in FUSION_PASSES if not row.for_target}
    assert {row for row, _ in FIRES} == {row for row, _ in STAYS} == names
