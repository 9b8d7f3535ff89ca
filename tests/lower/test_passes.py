# SPDX-License-Identifier: Apache-2.0
"""Each pass over a kernel does what its file says, and leaves a legal kernel."""

from __future__ import annotations

from itertools import pairwise

import pytest
from helpers.graphs import Graph, softmax, turned
from helpers.kernels import scheduled

from thunder_fuser.ir.domain import ParallelType
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.record import Literal
from thunder_fuser.ir.scalar import const, symbol
from thunder_fuser.ir.size_symbols import sized
from thunder_fuser.lower.context import Context
from thunder_fuser.lower.kernel import (
    ALL,
    Accumulate,
    Address,
    Array,
    Call,
    For,
    If,
    Kernel,
    Lane,
    Let,
    Parameter,
    Set,
    Statement,
    Stream,
    Variable,
    statements_in,
)
from thunder_fuser.lower.kernel_passes.passes import (
    CPU_PASSES,
    GPU_PASSES,
    collect_accumulators,
    declare_scratch,
    unroll,
)
from thunder_fuser.lower.kernel_passes.verify import verify_kernel
from thunder_fuser.lower.lower import kernel_of
from thunder_fuser.lower.size_arguments import with_free_sizes
from thunder_fuser.target import CPU, H200, Target

F, D = DataType.Float, DataType.Double
ZERO = Literal.of(0.0)
SUM = Variable("sum", F, ZERO)


def kernel(*body: Statement, smem_bytes: int = 0) -> Kernel:
    parameters = (Parameter("T0", F, "input"),)
    return Kernel("k", parameters, body, (8, 1), (128, 2), smem_bytes, False, 256)


def reduce_x(name: str, dtype: DataType = F) -> Set:
    return Set(name, Call("reduce_x", (name,), ("sum", 128, 2), dtype), dtype)


def loop(*body: Statement, extent: int = 4, parallel: ParallelType = ParallelType.SERIAL) -> For:
    return For("i", const(extent), parallel, body)


# ---- scratch


def test_reductions_of_one_type_and_axis_share_scratch() -> None:
    made = declare_scratch(kernel(SUM, reduce_x("sum"), loop(reduce_x("sum")), smem_bytes=20))
    assert made.body[0] == Array("scratch_f32", F, 8, shared_offset=32)
    assert made.smem_bytes == 32 + 8 * 4
    calls = [s.value for s in statements_in(made.body) if isinstance(s, Set)]
    assert [c.arguments for c in calls if isinstance(c, Call)] == [("sum", "scratch_f32")] * 2
    assert verify_kernel(made)


def test_other_types_and_axes_have_their_own() -> None:
    along_y = Call("reduce_y", (Address("sum"),), ("sum", 128, 2, 1), F)
    wide = Variable("wide", D, ZERO)
    made = declare_scratch(kernel(SUM, wide, reduce_x("sum"), along_y, reduce_x("wide", D)))
    arrays = [s for s in made.body if isinstance(s, Array)]
    assert {(a.name, a.count) for a in arrays} == {
        ("scratch_f32", 8),
        ("scratch_f32_1", 256),
        ("scratch_f64", 8),
    }
    taken = sorted((a.shared_offset or 0, a.count * a.dtype.bytes) for a in arrays)
    assert all(at + size <= after for (at, size), (after, _) in pairwise(taken))
    assert made.smem_bytes == sum(taken[-1])


# ---- unrolling


@pytest.mark.parametrize(
    ("made", "turns"),
    [
        (loop(SUM, extent=8), ALL),
        (loop(SUM, extent=9), 4),
        (loop(SUM, extent=sized("n1", 8)), 4),
        (loop(SUM, extent=64, parallel=ParallelType.UNROLL), ALL),
        (loop(SUM, extent=64, parallel=ParallelType.VECTORIZE), ALL),
        (loop(reduce_x("sum"), extent=8), 1),
        (loop(If(symbol("n", 0, 9).lt(3), (reduce_x("sum"),)), extent=8), 1),
    ],
    ids=["short", "long", "of a size", "unrolled", "lanes", "reduces", "reduces in an if"],
)
def test_turns_that_are_written_as_one(made: For, turns: int) -> None:
    (found,) = unroll(kernel(made)).body
    assert isinstance(found, For) and found.unroll == turns


# ---- accumulators


def simd(*body: Statement) -> For:
    return loop(*body, parallel=ParallelType.VECTORIZE)


def test_a_simd_loop_lists_what_it_reduces_into() -> None:
    most = Variable("most", D, Literal.of(1.0))
    rows = Array("rows", F, 4)
    work = simd(
        Accumulate("sum", "sum", ZERO, F, F),
        If(symbol("i", 0, 3).lt(2), (Accumulate("most", "max", ZERO, F, D),)),
        Accumulate(Lane("rows", symbol("i", 0, 3)), "sum", ZERO, F, F),
    )
    found = collect_accumulators(kernel(SUM, most, rows, work)).body[-1]
    assert isinstance(found, For)
    assert found.accumulators == (("sum", SUM), ("max", most))


def test_what_a_loop_declares_is_its_own() -> None:
    found = collect_accumulators(kernel(simd(SUM, Accumulate("sum", "sum", ZERO, F, F)))).body[-1]
    assert isinstance(found, For) and found.accumulators == ()


def test_a_simd_loop_lists_the_streams_it_fills() -> None:
    stream = Stream("T1_s", "sum", F, D, ZERO)
    fill = simd(Set(Lane("T1_s_v", symbol("i", 0, 3)), ZERO, F))
    total = Let("T1", D, Call("total", ("T1_s",)))
    made = verify_kernel(collect_accumulators(kernel(stream, fill, total)))
    found = made.body[1]
    assert isinstance(found, For) and found.streams == ("T1_s",)


# ---- all of them

GRAPHS: dict[str, Graph] = {
    "softmax": softmax(64, 4096, dtype=DataType.BFloat16),
    "odd": softmax(8, 1031, dtype=DataType.BFloat16),
    "long": softmax(64, 65536, dtype=DataType.BFloat16),
    "turned": turned(96, 160, dtype=DataType.BFloat16),
}


@pytest.mark.parametrize("target", [CPU, H200], ids=["cpu", "h200"])
@pytest.mark.parametrize("name", GRAPHS)
def test_every_pass_leaves_a_legal_kernel(name: str, target: Target) -> None:
    made = kernel_of(Context(with_free_sizes(scheduled(GRAPHS[name], target)[0])), "k")
    for one in CPU_PASSES if target.is_cpu else GPU_PASSES:
        made = verify_kernel(one(made), after=one.__name__)
        assert one is declare_scratch or one(made) == made
