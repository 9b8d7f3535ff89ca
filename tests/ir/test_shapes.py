# SPDX-License-Identifier: Apache-2.0
"""Shape rules: the axes each op gives, by name, and what each op refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers.definitions import assert_refused, defined, tensor

from thunder_fuser.errors import DefinitionError, StrideOrderError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.kinds import Value
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.record import OpRecord
from thunder_fuser.ir.rules.shapes import clip_slice, pad_widths
from thunder_fuser.ir.scalar import const, symbol

Build = Callable[[Recorder], Value]
D = DataType


def shown(build: Build) -> str:
    fusion = defined(build)
    view = fusion.tensors[fusion.outputs[0].name]
    return str(view).partition(": ")[2]


RESULTS: list[tuple[str, Build, str]] = [
    ("first axis that is no broadcast", lambda fd: fd.ops.add(tensor(fd, 4, 1), tensor(fd, 1, 8)),
     "f32[i0{4}, i3{8}]"),
    ("a known size wins", lambda fd: fd.ops.add(tensor(fd, -1), tensor(fd, 8)), "f32[i0{8}]"),
    ("reduction", lambda fd: fd.ops.sum(tensor(fd, 4, 5), [1]), "f32[i0{4}, r1{5}]"),
    ("keepdim", lambda fd: fd.ops.sum(tensor(fd, 4, 5), [-2], True), "f32[r0{4}, b2{1}, i1{5}]"),
    ("all axes", lambda fd: fd.ops.sum(tensor(fd, 4, 5)), "f32[r0{4}, r1{5}]"),
    ("one axis as a number", lambda fd: fd.ops.sum(tensor(fd, 4, 5), 1), "f32[i0{4}, r1{5}]"),
    ("broadcast", lambda fd: fd.ops.broadcast(tensor(fd, 4), [False, True]), "f32[i0{4}, b1{1}]"),
    ("broadcast_in_dim", lambda fd: fd.ops.broadcast_in_dim(tensor(fd, 4), [2, 4], [1]),
     "f32[i1{2}, i0{4}]"),
    ("broadcast_in_dim from 1", lambda fd: fd.ops.broadcast_in_dim(tensor(fd, 1), [3], [0]),
     "f32[i1{3}]"),
    ("expand", lambda fd: fd.ops.expand(tensor(fd, 1, 4), [3, -1]), "f32[i2{3}, i1{4}]"),
    ("squeeze", lambda fd: fd.ops.squeeze(tensor(fd, 4, 1), [1]), "f32[i0{4}]"),
    ("permute", lambda fd: fd.ops.permute(tensor(fd, 4, 5), [1, 0]), "f32[i1{5}, i0{4}]"),
    ("reshape keeps outer axes", lambda fd: fd.ops.reshape(tensor(fd, 4, 6), [4, 2, 3]),
     "f32[i0{4}, i2{2}, i3{3}]"),
    ("reshape keeps inner axes", lambda fd: fd.ops.reshape(tensor(fd, 2, 3, 5), [6, 5]),
     "f32[i3{6}, i2{5}]"),
    ("reshape with -1", lambda fd: fd.ops.reshape(tensor(fd, 4, 6), [-1, 8]), "f32[i2{3}, i3{8}]"),
    ("reshape of symbols", lambda fd: fd.ops.reshape(tensor(fd, -1, -1), [-1]),
     "f32[i2{i0 * i1}]"),
    ("slice", lambda fd: fd.ops.slice(tensor(fd, 8, 5), [2, 0], [6, 5]), "f32[i2{4}, i1{5}]"),
    ("a slice ends at the end", lambda fd: fd.ops.slice(tensor(fd, 8), [2], [99]), "f32[i1{6}]"),
    ("pad", lambda fd: fd.ops.pad(tensor(fd, 3, 4), [1, 2]), "f32[i0{3}, i2{7}]"),
    ("pad by less than nothing", lambda fd: fd.ops.pad(tensor(fd, 4), [-1, 0]), "f32[i1{3}]"),
    ("cat", lambda fd: fd.ops.cat([tensor(fd, 2, 4), tensor(fd, 3, 4)]), "f32[i4{5}, i1{4}]"),
    ("cat of two dtypes", lambda fd: fd.ops.cat([tensor(fd, 2), tensor(fd, 3, dtype=D.Half)]),
     "f32[i2{5}]"),
    ("iota", lambda fd: fd.ops.iota(5), "i64[i0{5}]"),
    ("full", lambda fd: fd.ops.full([2, 1], 0, D.Half), "f16[i0{2}, b1{1}]"),
    ("matmul", lambda fd: fd.ops.matmul(tensor(fd, 7, 4, 3), tensor(fd, 3, 5)),
     "f32[i5{7}, i6{4}, i7{5}]"),
    ("matmul of broadcast batches",
     lambda fd: fd.ops.matmul(tensor(fd, 1, 4, 3), tensor(fd, 7, 3, 5)),
     "f32[i6{7}, i7{4}, i8{5}]"),
    ("matmul of vectors", lambda fd: fd.ops.matmul(tensor(fd, 3), tensor(fd, 3)), "f32[]"),
    ("linear", lambda fd: fd.ops.linear(tensor(fd, 4, 3), tensor(fd, 5, 3), tensor(fd, 5)),
     "f32[i5{4}, i6{5}]"),
]


@pytest.mark.parametrize(("build", "text"), [r[1:] for r in RESULTS], ids=[r[0] for r in RESULTS])
def test_results(build: Build, text: str) -> None:
    assert shown(build) == text


REFUSALS: list[tuple[Build, str]] = [
    (lambda fd: fd.ops.sum(tensor(fd, -1, -1), [2]),
     "sum: axis 2: expected an axis from -2 to 1, got 2"),
    (lambda fd: fd.ops.sum(tensor(fd, -1, -1), [-3]),
     "sum: axis -3: expected an axis from -2 to 1, got -3"),
    (lambda fd: fd.ops.sum(tensor(fd, -1), [0.0]),
     "sum: dims: expected an axis or a list of axes, got list [0.0]"),
    (lambda fd: fd.ops.sum(tensor(fd, -1, -1), [0, -2]),
     "sum: axes: expected each axis once, got (0, -2)"),
    (lambda fd: fd.ops.sum(tensor(fd), [0]),
     "sum: axis 0: expected none, as the rank is 0, got 0"),
    (lambda fd: fd.ops.size(tensor(fd, 4), 1),
     "size: axis 1: expected an axis from -1 to 0, got 1"),
    (lambda fd: fd.ops.broadcast(tensor(fd, 4), [True]),
     "broadcast: is_broadcast_dim: expected 1 times False, got (True,)"),
    (lambda fd: fd.ops.broadcast_in_dim(tensor(fd, 4), [2, 4], [0, 1]),
     "broadcast_in_dim: broadcast_dims: expected 1 increasing axes of the result, got (0, 1)"),
    (lambda fd: fd.ops.broadcast_in_dim(tensor(fd, 4, 2), [2, 4], [1, 0]),
     "broadcast_in_dim: broadcast_dims: expected 2 increasing axes of the result, got (1, 0)"),
    (lambda fd: fd.ops.broadcast_in_dim(tensor(fd, 4), [2, 5], [1]),
     "broadcast_in_dim: axis i0: expected size 4 (or 1), got 5"),
    (lambda fd: fd.ops.broadcast_in_dim(tensor(fd, 4), [2, 4], [2]),
     "broadcast_in_dim: axis 2: expected an axis from -2 to 1, got 2"),
    (lambda fd: fd.ops.expand(tensor(fd, 4), [5]),
     "expand: axis i0: expected size 4 (or 1), got 5"),
    (lambda fd: fd.ops.expand(tensor(fd, 4), [5, 4]),
     "expand: shape: expected 1 entries, got [5, 4]"),
    (lambda fd: fd.ops.squeeze(tensor(fd, 4, 1), [0]),
     "squeeze: axis 0: expected size 1, got size 4"),
    (lambda fd: fd.ops.squeeze(tensor(fd, 1), None),
     "squeeze: dims: expected an axis or a list of axes, got NoneType None"),
    (lambda fd: fd.ops.permute(tensor(fd, 4, 1), [0]),
     "permute: dims: expected 2 axes, got (0,)"),
    (lambda fd: fd.ops.permute(tensor(fd, 4, 1), [0, 0]),
     "permute: axes: expected each axis once, got (0, 0)"),
    (lambda fd: fd.ops.permute(tensor(fd, 4), None),
     "permute: dims: expected an axis or a list of axes, got NoneType None"),
    (lambda fd: fd.ops.reshape(tensor(fd, 4, 6), [5, 5]),
     "reshape: expected 24 elements, got 25 from [5, 5]"),
    (lambda fd: fd.ops.reshape(tensor(fd, 4, 6), [-1, 5]),
     "reshape: expected 24 elements, got 20 from [4, 5]"),
    (lambda fd: fd.ops.reshape(tensor(fd, 4, 6), [-1, -1]),
     "reshape: expected at most one -1, got [-1, -1]"),
    (lambda fd: fd.ops.reshape(tensor(fd, 4, 0), [-1, 0]),
     "reshape: expected no -1 beside a size 0, got [-1, 0]"),
    (lambda fd: fd.ops.reshape(tensor(fd, 4, 6), [-2, -12]),
     "reshape: axis 0 of the result: expected a size >= 0, got -2"),
    (lambda fd: fd.ops.slice(tensor(fd, 4), [2], [1]),
     "slice: axis 0: expected 0 <= start <= end, got 2:1"),
    (lambda fd: fd.ops.slice(tensor(fd, 4), [-1], [4]),
     "slice: axis 0: expected 0 <= start <= end, got -1:4"),
    (lambda fd: fd.ops.slice(tensor(fd, 4), [0], [4], [0]),
     "slice: strides: expected numbers >= 1, got (0,)"),
    (lambda fd: fd.ops.slice(tensor(fd, 4), [0, 1], [4, 1]),
     "slice: start_indices: expected 1 entries, got [0, 1]"),
    (lambda fd: fd.ops.pad(tensor(fd, 4), [1]),
     "pad: pad_widths: expected an even number, at most 2, of integers, got (1,)"),
    (lambda fd: fd.ops.pad(tensor(fd, 4), [1, 1, 1, 1]),
     "pad: pad_widths: expected an even number, at most 2, of integers, got (1, 1, 1, 1)"),
    (lambda fd: fd.ops.pad(tensor(fd, 4), [-3, -3]),
     "pad: axis 0: expected at most its 4 elements removed, got 6"),
    (lambda fd: fd.ops.pad(tensor(fd, 4), [-5, 3]),
     "pad: axis 0: expected at most its 4 elements removed, got 5"),
    (lambda fd: fd.ops.pad(tensor(fd, 4), [1, 1], tensor(fd, 6)),
     "pad: value: expected a number or a scalar, got a tensor of sizes [6]"),
    (lambda fd: fd.ops.embedding_fwd(tensor(fd, 4, dtype=D.Int), tensor(fd, 4, 6), None,
                                     tensor(fd, 6)),
     "embedding_fwd: max_norm: expected a number or a scalar, got a tensor of sizes [6]"),
    (lambda fd: fd.ops.cat([tensor(fd, 4), tensor(fd, 4, 4)]),
     "cat: expected operands of equal rank, got [1, 2]"),
    (lambda fd: fd.ops.cat([tensor(fd, 4, 3), tensor(fd, 4, 4)]),
     "cat: axis 1: expected equal sizes, got 3, 4"),
    (lambda fd: fd.ops.cat([tensor(fd, 4, 3), tensor(fd, 4, 3)], 2),
     "cat: axis 2: expected an axis from -2 to 1, got 2"),
    (lambda fd: fd.ops.full([-1], 0, D.Float),
     "full: axis 0 of the result: expected a size >= 0, got -1"),
    (lambda fd: fd.ops.full(2, 0, D.Int),
     "full: shape: expected a list of integers and scalars, got int 2"),
    (lambda fd: fd.ops.full([2.5], 0, D.Int),
     "full: shape: expected a list of integers and scalars, got list [2.5]"),
    (lambda fd: fd.ops.full([tensor(fd, 2)], 0, D.Int),
     "size T0: expected an integer, or a scalar computed from sizes and arguments"),
    (lambda fd: fd.ops.iota(-2), "iota: axis 0 of the result: expected a size >= 0, got -2"),
    (lambda fd: fd.ops.matmul(tensor(fd, 4, 3), tensor(fd, 5, 4)),
     "matmul: summed axis: expected equal sizes, got 3, 5"),
    (lambda fd: fd.ops.matmul(tensor(fd), tensor(fd, 5)),
     "matmul: expected rank 1 or more, got ranks 0 and 1"),
    (lambda fd: fd.ops.linear(tensor(fd, 4, 3), tensor(fd, 5, 4)),
     "linear: summed axis: expected equal sizes, got 3, 4"),
    (lambda fd: fd.ops.linear(tensor(fd, 4, 3), tensor(fd, 5, 3), tensor(fd, 6)),
     "linear: bias: expected size 5, got size 6"),
    (lambda fd: fd.ops.linear(tensor(fd, 4, 3), tensor(fd, 2, 5, 3)),
     "linear: expected rank 1 or 2 for the weight, got ranks 2 and 3"),
    (lambda fd: fd.ops.stride_order(tensor(fd, 4, 5), [0]),
     "stride_order: stride_order: expected 2 entries, got [0]"),
]


@pytest.mark.parametrize(("build", "message"), REFUSALS)
def test_refusals(build: Build, message: str) -> None:
    assert_refused(build, DefinitionError, message)


def test_a_stride_order_op_that_is_no_permutation() -> None:
    assert_refused(
        lambda fd: fd.ops.stride_order(tensor(fd, 4, 5), [1, 1]),
        StrideOrderError,
        "stride_order [1, 1]: expected a permutation of 0..1, got [1, 1]. "
        "To fix it: give each logical axis its own position, 0 for the fastest.",
    )


@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("end", range(8))
def test_slices_are_clipped_as_python_clips_them(start: int, end: int) -> None:
    first, last = clip_slice(const(5), const(start), const(end))
    assert list(range(5))[start:end] == list(range(first.value, last.value))


def test_slices_of_symbols_are_left_alone() -> None:
    n = symbol("n", 0)
    assert clip_slice(n, const(1), const(9)) == (const(1), const(9))


def test_pad_widths_are_listed_from_the_last_axis_on() -> None:
    record = OpRecord("pad", ("T0",), ("T1",), (("pad_widths", (1, 2, 3, 4)),))
    assert pad_widths(record, 3) == ((0, 0), (3, 4), (1, 2))
