# SPDX-License-Identifier: Apache-2.0
"""Schedules that are given: what prints is taken, what is wrong is refused, nothing is wrong."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from helpers.graphs import Graph, biased, layer_norm, scanned, softmax, summed, transposed, turned
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser import FusionCache, FusionDefinition
from thunder_fuser.errors import GivenScheduleError, ScheduleError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.options import options
from thunder_fuser.schedule.loop_index import loop_index
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.schedule.written.schedule import Schedule, read

D = DataType
GRAPHS: dict[str, Graph] = {
    "pointwise": biased(4096, 1024, dtype=D.BFloat16),
    "pointwise_odd": biased(33, 77),
    "pointwise_rows": biased(64, 4095, dtype=D.BFloat16),
    "reduction_inner": summed(4096, 1024, dims=[1], dtype=D.BFloat16),
    "reduction_outer": summed(512, 32768, dims=[0], dtype=D.BFloat16),
    "reduction_partial": summed(4096, 1024, dims=[0], dtype=D.BFloat16),
    "reduction_all": summed(64, 128, dims=[0, 1]),
    "transposed": transposed(96, 64),
    "transpose": turned(8192, 4096, dtype=D.BFloat16),
    "transpose_two_columns": turned(1000000, 2),
    "softmax": softmax(4096, 8192, dtype=D.BFloat16),
    "softmax_odd": softmax(4096, 4095, dtype=D.BFloat16),
    "softmax_long": softmax(64, 40000),
    "softmax_longest": softmax(16, 262144),
    "scan_rows": scanned(64, 8192, dim=1),
    "scan_columns": scanned(512, 65536, dim=0, op="cummax"),
    "layer_norm": layer_norm(4096, 1024, dtype=D.BFloat16),
}
TARGETS = ("h200", "a100", "cpu")


# ---- what prints can be given


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GRAPHS)
def test_round_trip(name: str, target: str) -> None:
    """The scheduler's own schedule is what its text makes."""
    fd, inputs = GRAPHS[name]
    scheduled = fd.schedules(inputs, target=target)
    texts = {number: str(own) for number, own in enumerate(scheduled)}
    assert fd.schedules(inputs, target=target, schedules=texts) == scheduled


def _norm_backward() -> tuple[FusionDefinition, list[torch.Tensor]]:
    """dx and dweight of an RMS norm: inner_outer."""
    fd = FusionDefinition()
    x, dy = (fd.define_tensor([-1, -1], [True, True], D.BFloat16) for _ in range(2))
    weight = fd.define_tensor([-1], [True], D.BFloat16)
    scaled = fd.ops.mul(fd.ops.mul(dy, weight), x)
    along = fd.ops.sum(scaled, [1], keepdim=True)
    fd.add_output(fd.ops.cast(fd.ops.mul(x, along), D.BFloat16))
    fd.add_output(fd.ops.cast(fd.ops.sum(fd.ops.mul(dy, x), [0]), D.BFloat16))
    rows = torch.empty(8192, 2048, dtype=torch.bfloat16, device="meta")
    return fd, [rows, rows, torch.empty(2048, dtype=torch.bfloat16, device="meta")]


def _groups() -> Graph:
    """x less the sum of its group: nested."""
    fd = FusionDefinition()
    x = fd.define_tensor([-1, -1, -1], [True, True, True])
    total = fd.ops.sum(fd.ops.sum(fd.ops.exp(x), [2]), [1])
    wide = fd.ops.broadcast_in_dim(total, [64, 8, 1024], [0])
    fd.add_output(fd.ops.sub(fd.ops.exp(x), wide))
    return fd, [torch.empty(64, 8, 1024, device="meta")]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("name", "graph"), [("inner_outer", _norm_backward), ("nested", _groups)]
)
def test_round_trip_of_runs_and_groups(
    name: str, graph: Callable[[], Graph], target: str
) -> None:
    fd, inputs = graph()
    found = fd.schedules(inputs, target=target)
    assert name in {one.params.scheduler for one in found if one}
    texts = {number: str(one) for number, one in enumerate(found)}
    assert fd.schedules(inputs, target=target, schedules=texts) == found


@pytest.mark.parametrize("name", ["scan_rows", "transpose"])
def test_kernels_that_are_no_loops_alone(name: str) -> None:
    """They take their own loops, with another number of blocks."""
    fd, inputs = GRAPHS[name]
    (own,) = fd.schedules(inputs, target="h200")
    head, *lines = str(own).splitlines()
    text = "\n".join([head, "    s.blocks(2)", *lines])
    (changed,) = fd.schedules(inputs, target="h200", schedules={0: text})
    assert own is not None and changed is not None
    assert changed == replace(own, params=replace(own.params, blocks=2))
    with pytest.raises(GivenScheduleError, match=r"expected the loops and caches of \w+, as they"):
        fd.schedules(inputs, target="h200", schedules={0: "def schedule(s):\n    pass"})


# ---- a function, on the CPU and the emulator


def tiled(s: Schedule) -> None:
    """[i0, i1] -> blocks of 4 rows with 32 threads of a row, 2 elements each."""
    s.split("i0", 4)
    s.parallelize("i0.o", "blockIdx.x")
    s.parallelize("i0.i", "threadIdx.y")
    s.split("i1", 2)
    s.split("i1.o", 32)
    s.parallelize("i1.o.i", "threadIdx.x")
    s.vectorize("i1.i")


def two_passes(s: Schedule) -> None:
    """A softmax whose exp is kept and whose input is read twice."""
    tiled(s)
    s.cache("T3")
    s.cache("T0")
    s.inline("T0")


def _softmax(x: torch.Tensor) -> FusionDefinition:
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        powers = fd.ops.exp(fd.ops.sub(a, fd.ops.max(a, [-1], keepdim=True)))
        fd.add_output(fd.ops.truediv(powers, fd.ops.sum(powers, [-1], keepdim=True)))
    return fd


def test_a_function() -> None:
    x = torch.randn(10, 150)
    fd = _softmax(x)
    (result,) = fd.execute([x], target="emulator", schedules={0: two_passes})
    torch.testing.assert_close(result, x.softmax(-1))
    (made,) = fd.schedules([x], target="emulator", schedules={"persistent": two_passes})
    assert made is not None
    assert [one.point.name for one in made.persistent] == ["T3"]
    assert made.params.threads == (32, 4)


def test_fd_schedule() -> None:
    """It holds for all later calls, of every form of the segment's name."""
    x = torch.randn(10, 150)
    fd = _softmax(x)
    own = fd.sources([x], target="emulator")
    for segment in (0, "0", "segment 0", "segment 0 persistent", "persistent"):
        fd.schedule(segment, two_passes)
        assert "threads=32x4" in fd.sources([x], target="emulator")[0].text
        (result,) = fd.execute([x], target="emulator")
        torch.testing.assert_close(result, x.softmax(-1))
        fd.schedule(segment, None)
    assert fd.sources([x], target="emulator") == own


def test_part_of_the_key() -> None:
    """Two schedules are two programs, and equal texts one."""
    x = torch.randn(10, 150)
    fd = _softmax(x)
    (own,) = fd.schedules([x], target="emulator")
    with FusionCache():
        fd = _softmax(x)
        for schedules in (None, {0: str(own)}, {0: str(own)}, {0: two_passes}, {0: two_passes}):
            fd.execute([x], target="emulator", schedules=schedules)
        assert len(fd.entry.held_programs()) == 3


def test_on_a_cpu() -> None:
    def by_columns(s: Schedule) -> None:
        s.split("i1", 50)
        s.reorder(["i1.o", "i0", "i1.i"])
        s.parallelize("i1.o", "blockIdx.x")
        s.vectorize("i1.i")

    x, y = torch.randn(33, 130), torch.randn(130)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.mul(fd.from_pytorch(x), fd.from_pytorch(y)))
    (result,) = fd.execute([x, y], schedules={0: by_columns})
    assert torch.equal(result, x * y)
    assert "i1.o" not in fd.sources([x, y])[0].text


# ---- what is wrong is refused, with the axis and the rule

TEXT = "def schedule(s):\n    "
BAD: dict[str, tuple[str, str]] = {
    "no text": ("x = 1", "expected def schedule or move(s), got x = 1"),
    "no Python": ("def schedule(s)", "expected def schedule(s): with calls of s"),
    "no method": (TEXT + "s.fuse(1)", "expected one of s.split, s.merge"),
    "code": (TEXT + "s.split(open('x'), 2)", "expected plain arguments: names and numbers"),
    "missing axis": (TEXT + 's.split("i7", 2)', "axis i7: expected one of i0, i1"),
    "factor": (TEXT + 's.split("i1", 0)', "split of i1: expected a factor >= 1, got 0"),
    "idle steps": (
        TEXT + 's.split("i1", 9223372036854775808)',
        "split of i1: expected at most 1144576 steps, got 92233720368547758080",
    ),
    "idle steps of splits": (
        TEXT + 's.split("i0", 1024)\n    s.split("i0.o", 1024)\n    s.split("i0.o.o", 1024)',
        "split of i0.o: expected at most 1144576 steps",
    ),
    "no number": (TEXT + 's.split("i1", "8")', "split of i1: expected a whole factor"),
    "arguments": (TEXT + 's.split("i1")', "s.split: expected its arguments"),
    "kinds": (TEXT + 's.merge("i0", "i1")', "expected two kept axes or two reduced ones"),
    "no neighbours": (TEXT + 's.merge("i1", "i1")', "expected adjacent axes"),
    "parallel": (TEXT + 's.parallelize("i1", "threadIdx.z")', "expected one of serial, unroll"),
    "no words": (TEXT + 's.parallelize("i1", ["serial"])', "expected one of serial, unroll"),
    "no key": (TEXT + 's.split({[]: 1}, 2)', "schedule: got TypeError: unhashable type"),
    "depth": (TEXT + f's.split("i0", {"-" * 50000}1)', "schedule: "),
    "cache": (TEXT + 's.cache("T9")', "expected a value that several passes over a row need"),
    "memory": (TEXT + 's.cache("T0", "tensor")', "expected one of registers, shared"),
    "serial rows": (
        TEXT + 's.parallelize("i1", "threadIdx.x")',
        "axis i0: expected a kept axis walked by blockIdx.x, threadIdx.y (inner on CUDA), got ser",
    ),
    "blocks on a row": (
        TEXT + 's.parallelize("i0", "threadIdx.y")\n    s.parallelize("i1", "blockIdx.x")',
        "axis i1: expected a reduced axis walked by",
    ),
    "twice": (
        TEXT + 's.split("i1", 2)\n    s.parallelize("i1.o", "threadIdx.x")\n'
        '    s.parallelize("i1.i", "threadIdx.x")',
        "axis i1.i: expected one axis at threadIdx.x, got i1.o too",
    ),
    "unrolled row": (
        TEXT + 's.parallelize("i1", "unroll")\n    s.parallelize("i0", "blockIdx.x")',
        "axis i1: expected a reduced axis",
    ),
    "no threads": (TEXT + 's.parallelize("i0", "blockIdx.x")', "threadIdx.x: expected an axis"),
    "lane outside": (
        TEXT + 's.parallelize("i0", "blockIdx.x")\n    s.split("i1", 2)\n    s.split("i1.o", 5)\n'
        '    s.split("i1.o.i", 5)\n    s.parallelize("i1.o.i.i", "threadIdx.x")\n'
        '    s.reorder(["i0", "i1.i", "i1.o.o", "i1.o.i.o", "i1.o.i.i"])\n'
        '    s.parallelize("i1.i", "vectorize")',
        "axis i1.i: expected vectorize at the innermost loop, got i1.o.o",
    ),
    "vectors": (
        TEXT + 's.parallelize("i0", "blockIdx.x")\n    s.split("i1", 4)\n'
        '    s.split("i1.o", 32)\n    s.parallelize("i1.o.i", "threadIdx.x")\n'
        '    s.parallelize("i1.i", "vectorize")',
        "axis i1: expected an extent that 4 divides, as i1.i is vectorized, got 150",
    ),
    "width": (
        TEXT + 's.parallelize("i0", "blockIdx.x")\n    s.split("i1", 5)\n'
        '    s.split("i1.o", 32)\n    s.parallelize("i1.o.i", "threadIdx.x")\n'
        '    s.parallelize("i1.i", "vectorize")',
        "axis i1.i: expected vectors of 1, 2, 4, 8, 16 elements, got 5",
    ),
    "too many threads": (
        TEXT + 's.split("i0", 64)\n    s.parallelize("i0.o", "blockIdx.x")\n'
        '    s.parallelize("i0.i", "threadIdx.y")\n    s.split("i1", 32)\n'
        '    s.parallelize("i1.i", "threadIdx.x")',
        "expected at most 1024 threads, got 2048",
    ),
    "half a warp": (
        TEXT + 's.parallelize("i0", "blockIdx.x")\n    s.split("i1", 24)\n'
        '    s.parallelize("i1.i", "threadIdx.x")',
        "threadIdx.x: expected whole warps",
    ),
    "cluster": (
        TEXT + 's.parallelize("i0", "blockIdx.x")\n    s.split("i1", 64)\n'
        '    s.split("i1.i", 32)\n    s.parallelize("i1.o", "cluster")\n'
        '    s.parallelize("i1.i.i", "threadIdx.x")',
        "expected at most 16 blocks",
    ),
    "shift": (TEXT + 's.split("i1", 8, shift="i0")', "shift of i1: expected None, got 'i0'"),
    "blocks": (
        TEXT + 's.parallelize("i0", "blockIdx.x")\n    s.split("i1", 32)\n'
        '    s.parallelize("i1.i", "threadIdx.x")\n    s.blocks(99)',
        "blocks: expected at most 32, got 99",
    ),
    "no tile": (
        'def move(s):\n    s.split("i1", 8)',
        "def move(s): expected none, as the segment has no tile, got 1 transforms",
    ),
    "move": ("def move(s):\n    s.cache('T0')", "it belongs to def schedule(s)"),
}


@pytest.mark.parametrize("name", [n for n in BAD if n != "cluster"])
def test_refused(name: str) -> None:
    text, words = BAD[name]
    fd, x = _softmax(torch.randn(10, 150)), torch.randn(10, 150)
    with pytest.raises(GivenScheduleError) as caught:
        fd.execute([x], target="emulator", schedules={0: text})
    assert words in str(caught.value)


def test_refused_cluster() -> None:
    text, words = BAD["cluster"]
    x = torch.empty(10, 64 * 32, device="meta")
    with pytest.raises(ScheduleError) as caught:
        _softmax(x).schedules([x], target="h200", schedules={0: text})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("schedules", "words"),
    [
        ({3: two_passes}, "expected one of segment 0 persistent, got 3"),
        ({"scan": two_passes}, "got 'scan'"),
        ({0: two_passes, "persistent": two_passes}, "expected one for segment 0, got two"),
        ({0: 7}, "schedule of segment 0: expected a text or a function, got int 7"),
        ([two_passes], "schedules: expected {segment: a text or a function}, got list"),
    ],
)
def test_segments_there_are_not(
    schedules: dict[int | str, Callable[..., None]], words: str
) -> None:
    x = torch.randn(10, 150)
    with pytest.raises(ScheduleError) as caught:
        _softmax(x).execute([x], target="emulator", schedules=schedules)
    assert words in str(caught.value)


def test_a_segment_has_a_number_or_a_name() -> None:
    fd = _softmax(torch.randn(10, 150))
    with pytest.raises(GivenScheduleError, match=r"fd\.schedule: expected the number or the name"):
        fd.schedule([0], two_passes)  # type: ignore[arg-type]
    with pytest.raises(GivenScheduleError, match="expected a text or a function, got int 7"):
        fd.schedule(0, 7)  # type: ignore[arg-type]


def test_a_function_that_fails() -> None:
    x = torch.randn(10, 150)
    with pytest.raises(GivenScheduleError, match="got AttributeError") as caught:
        _softmax(x).execute([x], target="emulator", schedules={0: lambda s: s.fuse()})
    assert isinstance(caught.value.__cause__, AttributeError)


def test_a_torch_call_has_none() -> None:
    x = torch.randn(4, 4)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.matmul(fd.from_pytorch(x), fd.from_pytorch(x)))
    assert fd.schedules([x, x]) == (None,)
    with pytest.raises(ScheduleError, match="a kernel and one schedule, got expr_eval"):
        fd.execute([x, x], schedules={0: two_passes})


def test_a_settled_sum_keeps_its_loops() -> None:
    """Under the option `repeatable`; rows side by side may differ."""
    x = torch.empty(4096, 1024, device="meta")
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.from_pytorch(x), [1]))
    with options(repeatable=True):
        (own,) = fd.schedules([x], target="h200")
        text = str(own)
        fd.schedules([x], target="h200", schedules={0: text.replace('"i0", 2', '"i0", 4')})
        with pytest.raises(ScheduleError, match="option repeatable"):
            other = text.replace('s.split("i1.o", 64)', 's.split("i1.o", 32)')
            fd.schedules([x], target="h200", schedules={0: other})
    assert 's.split("i1.o", 64)' in text


def test_too_much_shared_memory() -> None:
    x = torch.empty(64, 65536, device="meta")
    fd = _softmax(x)
    (own,) = fd.schedules([x], target="a100")
    text = str(own)
    assert own is not None
    lines = [line for line in text.splitlines() if "cache" not in line]
    lines.insert(1, '    s.cache("T0", "shared")')
    with pytest.raises(ScheduleError, match="bytes of shared memory"):
        fd.schedule(0, "\n".join(lines))
        fd.sources([x], target="a100")


def test_a_shift_is_of_odd_rows_alone() -> None:
    """The schedule of 33 rows of 33 has one; four rows, of one element each in memory, have none:
    a step past the last one would read a fifth."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([-1, -1], [False, False])))
    odd, even = torch.randn(33, 33), torch.randn(4, 1).expand(4, 256)
    (own,) = fd.schedules([odd], target="emulator")
    assert "shift=" in str(own)
    (result,) = fd.execute([odd], target="emulator", schedules={0: str(own)})
    torch.testing.assert_close(result, odd.exp())
    with pytest.raises(GivenScheduleError, match=r"shift of i0\*i1: expected None, got '0'"):
        fd.execute([even], target="emulator", schedules={0: str(own)})


def test_too_much_of_a_stack() -> None:
    """Sums of columns side by side are an array of a CPU's thread."""
    x = torch.randn(3, 700_000)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.from_pytorch(x), [0]))
    (own,) = fd.schedules([x])
    narrow, wide = (str(own).replace("256", count) for count in ("300000", "600000"))
    (result,) = fd.execute([x], schedules={0: narrow})
    torch.testing.assert_close(result, x.sum(0))
    with pytest.raises(ScheduleError, match=r"at most 4194304 bytes of a stack, got 4800000"):
        fd.execute([x], schedules={0: wide})


# ---- refused or right


def test_nothing_is_read_twice() -> None:
    """A text is a list of calls: no part of it runs."""
    assert [step.method for step in read(TEXT + 's.split("i1", 8)')] == ["split"]


PARALLEL = ["blockIdx.x", "threadIdx.x", "threadIdx.y", "vectorize", "unroll", "serial"]


@st.composite
def written(draw: st.DrawFn) -> Callable[[Schedule], None]:
    """A function that makes up to eight random transforms, then binds axes at random."""
    choices = draw(st.lists(st.tuples(*[st.integers(0, 10**6)] * 3), min_size=4, max_size=12))
    bound = draw(st.lists(st.sampled_from(PARALLEL), min_size=12, max_size=12))

    def write(s: Schedule) -> None:
        for kind, which, factor in choices[:-2]:
            names = [axis.name for axis in s.axes]
            at = which % len(names)
            if kind % 4 == 0 and at + 1 < len(names) and s.axes[at].kind is s.axes[at + 1].kind:
                s.merge(names[at], names[at + 1])
            elif kind % 4 == 1:
                s.reorder([*names[at:], *names[:at]])
            elif len(names) < 6:
                s.split(names[at], (1, 2, 3, 4, 8, 32)[factor % 6])
        for axis, parallel in zip(s.axes, bound, strict=False):
            s.parallelize(axis.name, parallel)

    return write


def _visited(made: ScheduledFusion) -> list[tuple[int, ...]]:
    loops, found = loop_index(made.axes, made.transforms), []
    for values in itertools.product(*(range(axis.extent.value) for axis in made.loop)):
        at = {str(loops.loops[a.name]): v for a, v in zip(made.loop, values, strict=True)}
        for guard in loops.guards:
            value = guard.value.substitute(at).value
            at[str(guard.variable)] = value if value < guard.extent.value else None
            if at[str(guard.variable)] is None:
                break
        else:
            found.append(tuple(loops.index[a.name].substitute(at).value for a in made.axes))
    return found


CASES = {
    "pointwise": lambda x: torch.relu(x + x[0]),
    "sum of rows": lambda x: x.sum(1),
    "sum of columns": lambda x: x.sum(0),
    "softmax": lambda x: x.softmax(-1),
}


def _defined(name: str, x: torch.Tensor) -> tuple[FusionDefinition, list[torch.Tensor]]:
    if name == "softmax":
        return _softmax(x), [x]
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        if name == "pointwise":
            b = fd.from_pytorch(x[0])
            fd.add_output(fd.ops.relu(fd.ops.add(a, b)))
            return fd, [x, x[0]]
        fd.add_output(fd.ops.sum(a, [1 if name == "sum of rows" else 0]))
    return fd, [x]


@pytest.mark.parametrize("target", ["emulator", "cpu"])
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25, deadline=None)
@given(write=written())
def test_refused_or_right(name: str, target: str, write: Callable[[Schedule], None]) -> None:
    """A random schedule is refused, or visits every element once and gives the right values."""
    x = torch.randint(-4, 5, (5, 24)).float()
    fd, inputs = _defined(name, x)
    try:
        (made,) = fd.schedules(inputs, target=target, schedules={0: write})
    except ScheduleError:
        return
    assert made is not None
    every = itertools.product(*(range(axis.extent.value) for axis in made.axes))
    assert sorted(_visited(made)) == sorted(every)
    assert fd.schedules(inputs, target=target, schedules={0: str(made)}) == (made,)
    try:
        fd.sources(inputs, target=target)
    except ScheduleError:
        return
    (result,) = fd.execute(inputs, target=target, schedules={0: str(made)})
    torch.testing.assert_close(result, CASES[name](x))


NUMBERS = ("0", "1", "2", "3", "8", "32", "1000", "-1", str(2**63))


@st.composite
def edits(draw: st.DrawFn) -> Callable[[str], str]:
    """Up to three lines of a text are left out, repeated, moved, or get other numbers and words."""
    chosen = draw(st.lists(st.tuples(*[st.integers(0, 10**6)] * 3), min_size=1, max_size=3))

    def edit(text: str) -> str:
        head, *lines = text.splitlines()
        for kind, which, other in chosen:
            if not lines:
                break
            at, to = which % len(lines), other % len(lines)
            number, word = NUMBERS[other % len(NUMBERS)], PARALLEL[other % len(PARALLEL)]
            if kind % 5 == 0:
                del lines[at]
            elif kind % 5 == 1:
                lines.insert(to, lines[at])
            elif kind % 5 == 2:
                lines[at], lines[to] = lines[to], lines[at]
            elif kind % 5 == 3:
                lines[at] = re.sub(r"\b\d+\b", number, lines[at])
            else:
                lines[at] = re.sub(r'"(block|thread|vector|serial|unroll)[^"]*"', f'"{word}"',
                                   lines[at])  # fmt: skip
        return "\n".join([head, *lines])

    return edit


@pytest.mark.parametrize("target", ["emulator", "cpu"])
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=15, deadline=None)
@given(edit=edits())
def test_an_edited_text_is_refused_or_right(
    name: str, target: str, edit: Callable[[str], str]
) -> None:
    x = torch.randint(-4, 5, (5, 264)).float()
    fd, inputs = _defined(name, x)
    (own,) = fd.schedules(inputs, target=target)
    text = edit(str(own))
    try:
        (result,) = fd.execute(inputs, target=target, schedules={0: text})
    except ScheduleError as error:
        assert str(error)
        return
    torch.testing.assert_close(result, CASES[name](x))
