# SPDX-License-Identifier: Apache-2.0
"""Matrix products of few rows as sums: which ones, their kernels, and their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import Golden
from helpers.cases import rand
from helpers.graphs import Graph, after_passes
from helpers.pairs import pairs
from helpers.rows import after_row
from helpers.watch import check_sources, compile_waiting
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.options import compile_options, options
from thunder_fuser.target import CPU, H200, Target

D = DataType
Values = Sequence[torch.Tensor]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def graph(values: Values, op: str = "linear") -> Graph:
    """One product of tensors."""
    with FusionDefinition() as fd:
        fd.add_output(getattr(fd.ops, op)(*map(fd.from_pytorch, values)))
    return fd, list(values)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def converted(rows: int, which: str) -> Graph:
    """A product with an operand that is float32 in memory, as under autocast."""
    values = [
        meta(*shape, dtype=torch.float32 if name == which else torch.bfloat16)
        for name, shape in (("rows", (rows, 512)), ("weight", (256, 512)))
    ]
    with FusionDefinition() as fd:
        x, weight = (fd.ops.cast(fd.from_pytorch(value), D.BFloat16) for value in values)
        fd.add_output(fd.ops.linear(x, weight))
    return fd, values


FIRES: dict[str, Callable[[], Graph]] = {
    "a row": lambda: graph([meta(1, 512), meta(256, 512)]),
    "two rows": lambda: graph([meta(2, 1, 512), meta(256, 512)]),
    "a vector": lambda: graph([meta(512), meta(256, 512), meta(256)]),
    "float32": lambda: graph([meta(512, dtype=torch.float32), meta(256, 512, dtype=torch.float32)]),
    "a transposed matrix": lambda: graph([meta(1, 512), meta(256, 512).t()], "matmul"),
    "a matrix and a vector": lambda: graph([meta(256, 512), meta(512)], "matmul"),
    "a matrix of one row": lambda: graph([meta(1, 1 << 16), meta(1, 1 << 16)]),
    "a sum of one": lambda: graph([meta(1, 1), meta(1 << 16, 1)]),
    "three rows": lambda: graph([meta(3, 1, 512), meta(256, 512)]),
    "eight rows": lambda: graph([meta(2, 4, 512, dtype=torch.float16),
                                 meta(256, 512, dtype=torch.float16)]),
    "part of a weight": lambda: graph([meta(8, 512), meta(512, 1024)[:256, 512:], meta(256)]),
}
KEEPS: dict[str, Callable[[], Graph]] = {
    "three rows of float32": lambda: graph([meta(3, 512, dtype=torch.float32),
                                            meta(256, 512, dtype=torch.float32)]),
    "three rows of odd length": lambda: graph([meta(3, 514), meta(256, 514)]),
    "few columns for three rows": lambda: graph([meta(3, 1024), meta(120, 1024)]),
    "long columns for three rows": lambda: graph([meta(3, 1 << 15), meta(128, 1 << 15)]),
    "nine rows": lambda: graph([meta(9, 512), meta(256, 512)]),
    "three rows and a converted weight": lambda: converted(3, "weight"),
    "no rows": lambda: graph([meta(0, 512), meta(256, 512)]),
    "a small matrix": lambda: graph([meta(1, 256), meta(255, 256)]),
    "a row-major second operand": lambda: graph([meta(1, 512), meta(512, 256)], "matmul"),
    "a transposed weight": lambda: graph([meta(1, 512), meta(512, 256).t()]),
    "a weight with gaps": lambda: graph([meta(1, 512), meta(256, 1024)[:, ::2]]),
    "a batch": lambda: graph([meta(2, 1, 512), meta(2, 512, 256)], "matmul"),
    "float64": lambda: graph([meta(1, 512, dtype=torch.float64),
                              meta(256, 512, dtype=torch.float64)]),
    "a bias of one element": lambda: graph([meta(1, 512), meta(256, 512), meta(1)]),
    "two vectors": lambda: graph([meta(1 << 16), meta(1 << 16)], "matmul"),
}  # fmt: skip


def rewritten(made: Graph, target: Target = H200) -> list[str]:
    """The ops after the row."""
    after = after_row("few_rows", after_passes(made), target, compile_options())
    return [expr.op for expr in after.exprs]


@pytest.mark.parametrize("name", FIRES)
def test_fires(name: str) -> None:
    ops = rewritten(FIRES[name]())
    assert "sum" in ops and not {"linear", "matmul"}.intersection(ops)


@pytest.mark.parametrize("name", KEEPS)
def test_keeps(name: str) -> None:
    assert "sum" not in rewritten(KEEPS[name]())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_cpu_takes_one_row_of_16_bits(dtype: torch.dtype) -> None:
    """Whatever the size of the matrix."""

    def of(rows: int, dtype: torch.dtype) -> Graph:
        return graph([meta(rows, 96, dtype=dtype), meta(40, 96, dtype=dtype)])

    assert "sum" in rewritten(of(1, dtype), CPU)
    assert rewritten(of(2, dtype), CPU) == rewritten(of(1, torch.float32), CPU) == ["linear"]
    for kept in ({"few_rows": 0}, {"repeatable": True}):
        with options(**kept):
            assert rewritten(of(1, dtype), CPU) == ["linear"]


def test_an_option_keeps_it() -> None:
    made = FIRES["a row"]()
    with options(few_rows=0):
        assert rewritten(made) == ["linear"]
    made = FIRES["three rows"]()
    for kept in ({"few_rows": 2}, {"repeatable": True}):
        with options(**kept):
            assert "sum" not in rewritten(made)


def test_computed_rows_are_stored_before_they_are_reshaped() -> None:
    """A boundary behind the reshape would be a kernel that copies."""
    values = [meta(1, 8, 64, 512), meta(256, 512)]
    with FusionDefinition() as fd:
        x, weight = map(fd.from_pytorch, values)
        total = fd.ops.cast(fd.ops.sum(fd.ops.cast(x, D.Float), [3]), D.BFloat16)
        fd.add_output(fd.ops.linear(fd.ops.reshape(total, [1, 512]), weight))
    ops = rewritten((fd, values))
    assert ops.index("segment_set") < ops.index("reshape")


@pytest.mark.parametrize(("rows", "stored"), [(2, False), (3, True)])
def test_tensor_cores_read_rows_of_16_bits(rows: int, stored: bool) -> None:
    assert ("segment_set" in rewritten(converted(rows, "rows"))) == stored


# ---- rows with a scale

Shape = tuple[int, ...]
Norm = Callable[[FusionDefinition, Any, Any, Shape], Any]  # (x: [..., k], weight: [k]) -> y


def scale_of(fd: FusionDefinition, x: Any) -> Any:
    """1 / the root of the mean of a row's squares; one number a row."""
    total = fd.ops.sum(fd.ops.mul(x, x), [-1], keepdim=True)
    return fd.ops.rsqrt(fd.ops.add(fd.ops.mul(total, 1 / 512), 1e-5))


def rounded(fd: FusionDefinition, x: Any, weight: Any, shape: Shape) -> Any:
    """As in Hugging Face's models: rounded before the weight."""
    x = fd.ops.cast(x, D.Float)
    x = fd.ops.cast(fd.ops.mul(x, scale_of(fd, x)), D.BFloat16)
    return fd.ops.cast(fd.ops.mul(weight, x), D.BFloat16)


def spread(fd: FusionDefinition, x: Any, weight: Any, shape: Shape) -> Any:
    """As Thunder writes it; 1 + weight, as in Gemma."""
    x, last = fd.ops.cast(x, D.Float), len(shape) - 1
    total = fd.ops.sum(fd.ops.mul(x, x), [last])
    total = fd.ops.broadcast_in_dim(total, [*shape[:-1], 1], [*range(last)])
    scale = fd.ops.rsqrt(fd.ops.add(fd.ops.truediv(total, 512.0), 1e-6))
    scale = fd.ops.broadcast_in_dim(scale, shape, [*range(last + 1)])
    wide = fd.ops.add(1.0, fd.ops.cast(weight, D.Float))
    wide = fd.ops.broadcast_in_dim(wide, shape, [last])
    return fd.ops.cast(fd.ops.mul(wide, fd.ops.mul(x, scale)), D.BFloat16)


def no_weight(fd: FusionDefinition, x: Any, weight: Any, shape: Shape) -> Any:
    return fd.ops.cast(fd.ops.mul(scale_of(fd, x), x), D.BFloat16)


def doubled(fd: FusionDefinition, x: Any, weight: Any, shape: Shape) -> Any:
    return fd.ops.cast(fd.ops.mul(2.0, no_weight(fd, x, weight, shape)), D.BFloat16)


def reshaped(fd: FusionDefinition, x: Any, weight: Any, shape: Shape) -> Any:
    """Its input and its result."""
    y = no_weight(fd, fd.ops.reshape(x, [1, *shape]), weight, shape)
    return fd.ops.reshape(y, [1, shape[-1]])


def layer_norm(fd: FusionDefinition, x: Any, weight: Any, shape: Shape) -> Any:
    """Its mean is subtracted, which is no factor."""
    total = fd.ops.sum(x, [-1], keepdim=True)
    x = fd.ops.sub(x, fd.ops.mul(total, 1 / 512))
    return fd.ops.cast(fd.ops.mul(fd.ops.mul(x, scale_of(fd, x)), weight), D.BFloat16)


def expensive(fd: FusionDefinition, x: Any, weight: Any, shape: Shape) -> Any:
    """A factor that each block would compute again."""
    return fd.ops.cast(fd.ops.mul(no_weight(fd, x, weight, shape), fd.ops.tanh(weight)), D.BFloat16)


def of_expensive(fd: FusionDefinition, x: Any, weight: Any, shape: Shape) -> Any:
    return fd.ops.cast(fd.ops.mul(x, scale_of(fd, fd.ops.exp(x))), D.BFloat16)


def padded(fd: FusionDefinition, x: Any, weight: Any, shape: Shape) -> Any:
    """The scale of the first column, and 0 of the others: no number a row."""
    scale = fd.ops.pad(scale_of(fd, x), [0, 511])
    return fd.ops.cast(fd.ops.mul(x, scale), D.BFloat16)


def over_rows(fd: FusionDefinition, x: Any, weight: Any, shape: Shape) -> Any:
    """One number for all rows of each column."""
    total = fd.ops.rsqrt(fd.ops.sum(fd.ops.mul(x, x), [0], keepdim=True))
    return fd.ops.cast(fd.ops.mul(x, total), D.BFloat16)


def normed(norm: Norm, *shape: int, products: int = 1) -> Graph:
    """Products of one normed x."""
    values = [meta(*shape), meta(512), *(meta(256, 512) for _ in range(products))]
    with FusionDefinition() as fd:
        x, weight, *matrices = map(fd.from_pytorch, values)
        y = norm(fd, x, weight, shape)
        for matrix in matrices:
            fd.add_output(fd.ops.linear(y, matrix))
    return fd, values


SCALED: dict[str, Callable[[], Graph]] = {
    "rounded": lambda: normed(rounded, 1, 512),
    "spread": lambda: normed(spread, 1, 1, 512),
    "no weight": lambda: normed(no_weight, 1, 1, 512),
    "a vector": lambda: normed(rounded, 512),
    "reshaped": lambda: normed(reshaped, 1, 1, 512),
    "a number": lambda: normed(doubled, 1, 512),
    "three products": lambda: normed(spread, 1, 512, products=3),
}
UNSCALED: dict[str, Callable[[], Graph]] = {
    "two rows": lambda: normed(rounded, 2, 512),
    "a layer norm": lambda: normed(layer_norm, 1, 512),
    "an expensive factor": lambda: normed(expensive, 1, 512),
    "squares of an expensive value": lambda: normed(of_expensive, 1, 512),
    "a padded scale": lambda: normed(padded, 1, 512),
    "a sum over rows": lambda: normed(over_rows, 1, 512),
}


def kernels(made: Graph) -> list[str]:
    """The schedulers of the kernels on an H200."""
    fd, values = made
    plan = fd.plan([value.to("meta") for value in values], target="h200")
    return [segment.scheduler.name for segment in plan.segments]


@pytest.mark.parametrize("name", SCALED)
def test_a_norm_is_computed_where_its_products_are(name: str) -> None:
    names = kernels(SCALED[name]())
    assert "persistent" not in names and len(names) == 1


def test_rows_times_a_number() -> None:
    values = [rand(1, 512, dtype=torch.bfloat16), rand(256, 512, dtype=torch.bfloat16, seed=1)]
    with FusionDefinition() as fd:
        x, matrix = map(fd.from_pytorch, values)
        fd.add_output(fd.ops.linear(fd.ops.cast(fd.ops.mul(x, 2.0), D.BFloat16), matrix))
    (result,) = fd.execute(values, target="emulator")
    torch.testing.assert_close(result, F.linear(2 * values[0], values[1]), rtol=2e-2, atol=2e-2)


def test_a_norm_of_rows_that_are_joined_is_stored() -> None:
    """Each half has a scale of its own."""
    values = [rand(2, 512, dtype=torch.bfloat16), rand(512, dtype=torch.bfloat16, seed=1)]
    values.append(rand(256, 1024, dtype=torch.bfloat16, seed=2))
    with FusionDefinition() as fd:
        x, weight, matrix = map(fd.from_pytorch, values)
        y = fd.ops.reshape(rounded(fd, x, weight, (2, 512)), [1, 1024])
        fd.add_output(fd.ops.linear(y, matrix))
    assert "segment_set" in rewritten((fd, values))


@pytest.mark.parametrize("name", UNSCALED)
def test_other_rows_are_stored_first(name: str) -> None:
    assert "segment_set" in rewritten(UNSCALED[name]())


def test_a_norm_that_is_read_elsewhere_is_stored() -> None:
    """By the user, or by an op that is no product."""
    for reads in (lambda fd, y: y, lambda fd, y: fd.ops.mul(y, 2.0)):
        values = [meta(1, 512), meta(512), meta(256, 512)]
        with FusionDefinition() as fd:
            x, weight, matrix = map(fd.from_pytorch, values)
            y = rounded(fd, x, weight, (1, 512))
            fd.add_output(fd.ops.linear(y, matrix))
            fd.add_output(reads(fd, y))
        assert "segment_set" in rewritten((fd, values))


def other_products(name: str) -> Graph:
    """Norms beside which a kernel of another kind stays, so that nothing would be saved."""
    values = [meta(1, 512), meta(512), meta(256, 512), meta(1, 512)]
    if name == "of a permuted argument":
        values[0] = meta(512, 2).t()
    if name == "of rows that a reshape makes":
        values[0] = meta(1, 8, 64)
    with FusionDefinition() as fd:
        x, weight, matrix, z = map(fd.from_pytorch, values)
        if name == "of a sum":
            x = fd.ops.cast(fd.ops.add(x, z), D.BFloat16)
        if name == "of rows that a reshape makes":
            x = fd.ops.reshape(x, [1, 512])
        wide = fd.ops.cast(x, D.Float)
        unit = fd.ops.mul(wide, scale_of(fd, wide))
        if name == "whose unit is a result":
            fd.add_output(unit)
        if name == "with three weights":
            unit = fd.ops.mul(fd.ops.mul(unit, z), z)
        y = fd.ops.cast(fd.ops.mul(unit, weight), D.BFloat16)
        fd.add_output(fd.ops.linear(y, matrix))
        if name == "with two weights":
            second = fd.ops.cast(fd.ops.mul(unit, z), D.BFloat16)
            fd.add_output(fd.ops.mul(second, 2.0))
    return fd, values


@pytest.mark.parametrize("name", [
    "of a permuted argument", "of rows that a reshape makes", "of a sum", "whose unit is a result",
    "with two weights", "with three weights",
])  # fmt: skip
def test_a_norm_is_a_kernel(name: str) -> None:
    """Where its sum would be a kernel of its own, or a kernel would store its input or a part."""
    ops = rewritten(other_products(name))
    assert ops.count("sum") == 2 and "segment_set" in ops
    assert ops.index("rsqrt") < ops.index("segment_set")


def test_a_norm_is_a_kernel_on_a_cpu_and_under_repeatable() -> None:
    assert "segment_set" in rewritten(normed(rounded, 1, 512), CPU)
    with options(repeatable=True):
        assert "segment_set" in rewritten(normed(rounded, 1, 512))


def test_what_a_norm_reads_is_stored_once() -> None:
    """x + linear(z) is a kernel of its own, whose result two products and their norms read."""
    values = [meta(1, 512), meta(1, 512), meta(512, 512), meta(512), meta(256, 512), meta(256, 512)]
    with FusionDefinition() as fd:
        x, z, project, weight, *matrices = map(fd.from_pytorch, values)
        y = rounded(fd, fd.ops.add(x, fd.ops.linear(z, project)), weight, (1, 512))
        for matrix in matrices:
            fd.add_output(fd.ops.linear(y, matrix))
    assert kernels((fd, values)) == ["reduction", "reduction"]
    ops = rewritten((fd, values))
    assert ops.count("segment_set") == 1 and ops.index("segment_set") < ops.index("rsqrt")


@settings(deadline=None, max_examples=25)
@given(
    rows=st.sampled_from([(1,), (1, 1), ()]), seed=st.integers(0, 9),
    k=st.sampled_from([64, 512, 896, 1001]), dtype=st.sampled_from(DTYPES[:2]),
)  # fmt: skip
def test_norms_are_as_exact_as_torch(
    rows: tuple[int, ...], k: int, dtype: torch.dtype, seed: int
) -> None:
    """And the same bits if the threads of a block run the other way round."""
    n = -(-(1 << 16) // k)
    values = [rand(*rows, k, dtype=dtype, seed=seed), rand(k, dtype=dtype, seed=seed + 1)]
    values += [rand(n, k, dtype=dtype, seed=seed + 2), rand(n, dtype=dtype, seed=seed + 3)]
    with FusionDefinition() as fd:
        x, weight, matrix, bias = map(fd.from_pytorch, values)
        wide = fd.ops.cast(x, D.Float)
        total = fd.ops.sum(fd.ops.mul(wide, wide), [-1], keepdim=True)
        scale = fd.ops.rsqrt(fd.ops.add(fd.ops.mul(total, 1 / k), 1e-5))
        y = fd.ops.mul(fd.ops.mul(wide, scale), fd.ops.cast(weight, D.Float))
        y = fd.ops.cast(y, D.Half if dtype is torch.float16 else D.BFloat16)
        fd.add_output(fd.ops.linear(y, matrix, bias))
    assert len(kernels((fd, values))) == 1
    (made,) = fd.execute(values, target="emulator")
    with options(emulate_reversed=True):
        (again,) = fd.execute(values, target="emulator")

    def eager(x: torch.Tensor, weight: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return F.linear(F.rms_norm(x, (k,), weight, 1e-5), *more)

    exact, usual = eager(*(value.double() for value in values)), eager(*values)
    assert made.dtype is dtype and made.shape == usual.shape and torch.equal(made, again)
    assert error(made, exact) <= 1.2 * error(usual, exact) + 1e-6 * k**0.5


def test_special_values_of_a_norm() -> None:
    """A row of zeros is 0, one with NaN or an infinity is NaN; huge and tiny ones are not."""
    weight = torch.ones(512, dtype=torch.bfloat16)
    matrix = rand(256, 512, dtype=torch.bfloat16, seed=3)
    fd, _ = normed(rounded, 1, 512)
    for value in (0.0, torch.nan, torch.inf, 1e15, 1e-15):
        x = torch.full((1, 512), value, dtype=torch.bfloat16)
        (made,) = fd.execute([x, weight, matrix], target="emulator")
        exact = F.linear(F.rms_norm(x.double(), (512,), weight.double(), 1e-5), matrix.double())
        torch.testing.assert_close(made.double(), exact, rtol=1e-2, atol=1e-2, equal_nan=True)


# ---- kernels


def block(rows: int, dtype: torch.dtype = torch.bfloat16, *, width: int = 2048) -> Graph:
    """x + down(silu(gate(norm(x))) * up(norm(x))), as in a Llama."""
    values = [meta(rows, 1, width), meta(width), *(meta(8192, width) for _ in range(2))]
    values.append(meta(width, 8192))
    fd = FusionDefinition()
    x, scale, gate, up, down = map(fd.from_pytorch, values)
    wide = fd.ops.cast(x, D.Float)
    mean = fd.ops.mul(fd.ops.sum(fd.ops.mul(wide, wide), [2], keepdim=True), 1 / width)
    unit = fd.ops.mul(wide, fd.ops.rsqrt(fd.ops.add(mean, 1e-5)))
    y = fd.ops.cast(fd.ops.mul(unit, fd.ops.cast(scale, D.Float)), D.BFloat16)
    hidden = fd.ops.mul(fd.ops.silu(fd.ops.linear(y, gate)), fd.ops.linear(y, up))
    y = fd.ops.linear(fd.ops.cast(hidden, D.BFloat16), down)
    fd.add_output(fd.ops.cast(fd.ops.add(x, y), D.BFloat16))
    return fd, values


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_a_gated_block_has_few_kernels(rows: int, golden: Golden) -> None:
    """Gate, up, silu and their product; down and the residual. Of several rows the norm too."""
    fd, values = block(rows)
    plan = fd.plan(values, target="h200")
    names = {
        1: ["reduction"] * 2,
        2: ["persistent", "reduction", "reduction"],
        8: ["persistent", "products", "products"],
    }
    assert [one.scheduler.name for one in plan.segments] == names[rows]
    golden(str(plan))


def body(fd: FusionDefinition, values: Values) -> str:
    (source,) = fd.sources(values, target="h200")
    return source.text[source.text.rindex("\n// ", 0, source.text.index('extern "C"')) :]


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_the_text_of_a_kernel(rows: int, golden: Golden) -> None:
    """Vectors of both operands; with two rows, neighbouring warps read one row of the matrix."""
    golden(body(*graph([meta(rows, 2048), meta(8192, 2048)])), ext="cu")


def test_kernels_compile() -> None:
    """For the architectures of an A100 and an H200. The last one has more products than an int."""
    large = partial(graph, [meta(8, 4096), meta(128256, 4096)])
    for made in (*FIRES.values(), *(partial(block, rows) for rows in (1, 2, 8)), large):
        fd, values = made()
        check_sources([*fd.sources(values, target="h200")], "this test")
    compile_waiting()


# ---- results


def error(made: torch.Tensor, exact: torch.Tensor) -> float:
    return float((made.double() - exact).abs().max())


@st.composite
def products(draw: st.DrawFn) -> tuple[str, Values]:
    """linear or matmul: odd sizes, weights at odd addresses, each type."""
    k, dtype = draw(st.sampled_from([1, 7, 64, 100, 896, 7777])), draw(st.sampled_from(DTYPES))
    return _drawn(draw, draw(st.integers(1, 2)), k, dtype)


@st.composite
def products_of_tensor_cores(draw: st.DrawFn) -> tuple[str, Values]:
    """The same of three rows and more. At an odd address a plain sum takes the rows."""
    k, dtype = draw(st.sampled_from([8, 72, 896, 1032, 2056])), draw(st.sampled_from(DTYPES[:2]))
    return _drawn(draw, draw(st.integers(3, 8)), k, dtype)


def _drawn(draw: st.DrawFn, rows: int, k: int, dtype: torch.dtype) -> tuple[str, Values]:
    n, seed, offset = -(-(1 << 16) // k), draw(st.integers(0, 9)), draw(st.sampled_from([0, 1, 4]))
    n = n if rows < 3 else max(n, 130)
    weight = rand(n * k + offset, dtype=dtype, seed=seed)[offset:].view(n, k)
    x = rand(rows, k, dtype=dtype, seed=seed + 1)
    if draw(st.booleans()):
        return "matmul", [x, weight.t()]
    bias = [rand(n, dtype=dtype, seed=seed + 2)] * draw(st.integers(0, 1))
    return "linear", [x, weight, *bias]


@settings(deadline=None, max_examples=25)
@given(drawn=products() | products_of_tensor_cores())
def test_as_exact_as_torch(drawn: tuple[str, Values]) -> None:
    """And the same bits if the threads of a block run the other way round."""
    op, values = drawn
    fd, _ = graph(values, op)
    assert "sum" in rewritten((fd, values))
    (made,) = fd.execute(values, target="emulator")
    with options(emulate_reversed=True):
        (again,) = fd.execute(values, target="emulator")
    product = F.linear if op == "linear" else torch.matmul
    exact = product(*(value.double() for value in values))
    usual = product(*(value.float() for value in values)).to(made.dtype)
    assert made.dtype is values[0].dtype and torch.equal(made, again)
    assert error(made, exact) <= 1.5 * error(usual, exact) + 1e-6 * values[0].shape[-1] ** 0.5


@settings(deadline=None, max_examples=15)
@given(
    n=st.integers(1, 70), k=st.sampled_from([1, 7, 64, 100, 896, 16384]), seed=st.integers(0, 9),
    dtype=st.sampled_from(DTYPES[:2]), biased=st.booleans(),
)  # fmt: skip
def test_as_exact_as_torch_on_a_cpu(
    n: int, k: int, seed: int, dtype: torch.dtype, biased: bool
) -> None:
    """A weight at an odd address."""
    weight = rand(n * k + 1, dtype=dtype, seed=seed)[1:].view(n, k)
    values = [rand(1, k, dtype=dtype, seed=seed + 1), weight]
    values += [rand(n, dtype=dtype, seed=seed + 2)] * biased
    (made,) = graph(values)[0].execute(values, target="cpu")
    exact, usual = F.linear(*(v.double() for v in values)), F.linear(*(v.float() for v in values))
    assert made.dtype is dtype
    assert error(made, exact) <= 1.5 * error(usual.to(dtype), exact) + 1e-6 * k**0.5


def test_special_values_on_a_cpu() -> None:
    x, weight = rand(1, 512, dtype=torch.bfloat16), rand(128, 512, dtype=torch.bfloat16)
    weight[3, 5], weight[4, 6], weight[7, 0] = torch.inf, torch.nan, -torch.inf
    x[0, 0] = 0.0
    (made,) = graph([x, weight])[0].execute([x, weight], target="cpu")
    expected = (x.float() @ weight.float().t()).bfloat16()
    torch.testing.assert_close(made, expected, equal_nan=True)


def test_special_values() -> None:
    """NaN and infinities go where torch's go; zero times infinity is NaN."""
    x, weight = rand(2, 512), rand(128, 512)
    weight[3, 5], weight[4, 6], weight[7, 0] = torch.inf, torch.nan, -torch.inf
    x[0, 0] = 0.0
    fd, values = graph([x, weight])
    (made,) = fd.execute(values, target="emulator")
    torch.testing.assert_close(made, x @ weight.t(), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("k", [512, 1032])
def test_special_values_of_tensor_cores(k: int) -> None:
    """No value of a neighbour, of another row or of what lies behind the end reaches a result."""
    x, weight = rand(5, k, dtype=torch.bfloat16), rand(200, k, dtype=torch.bfloat16)
    weight[3, 5], weight[4, 6], weight[-1, -1] = torch.inf, torch.nan, -torch.inf
    x[0, 0], x[2, 5], x[4, -1] = 0.0, 0.0, torch.nan
    fd, values = graph([x, weight])
    (made,) = fd.execute(values, target="emulator")
    torch.testing.assert_close(made, x @ weight.t(), rtol=2e-2, atol=2e-2, equal_nan=True)


SOURCES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x,
    "the last of each sequence": lambda x: x[:, -1:],
    "every second": lambda x: x[:, ::2],
    "of two axes": lambda x: x[:2, :2],
    "turned": lambda x: x.transpose(0, 1)[:2, :2],
    "one for all": lambda x: x[:1, :1].expand(4, 1, -1),
    "at an odd address": lambda x: x[:, :1, 1:505],
}


@pytest.mark.parametrize("name", SOURCES)
def test_rows_from_anywhere_in_memory(name: str) -> None:
    """Whatever views they are: by tensor cores, by a plain sum, or by torch."""
    x = SOURCES[name](rand(4, 3, 512, dtype=torch.bfloat16))
    weight = rand(256, x.shape[-1], dtype=torch.bfloat16)
    fd, values = graph([x, weight])
    (made,) = fd.execute(values, target="emulator")
    torch.testing.assert_close(made, F.linear(x, weight), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("apart", [2**27, 2**28], ids=["by 32 bits", "by more"])
def test_rows_of_a_matrix_that_are_far_apart(apart: int) -> None:
    """Tensor cores find the eighth row by 32 bits; if it is further away, it is a plain sum."""
    far = torch.empty_strided((256, 512), (apart, 1), dtype=torch.bfloat16, device="meta")
    fd, values = graph([meta(8, 512), far])
    (source,) = fd.sources(values, target="h200")
    assert ("sum_of_products<" in source.body) == (apart < 2**28)


def test_tensor_cores_do_not_round_products() -> None:
    """A product that is rounded to 16 bits before it is added is a plain sum."""
    x, weight = meta(4, 512), meta(256, 512)
    with FusionDefinition() as fd:
        a, w = map(fd.from_pytorch, (x, weight))
        a = fd.ops.broadcast(a, [False, True, False])
        product = fd.ops.mul(a, fd.ops.broadcast(w, [True, False, False]))
        rounded = fd.ops.cast(product, D.BFloat16)
        fd.add_output(fd.ops.sum(fd.ops.cast(rounded, D.Float), [2]))
    (segment,) = fd.plan([x, weight], target="h200").segments
    assert segment.scheduler.name == "reduction"


# ---- matrices of 8 bits

NARROW = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)
Scale = Callable[[FusionDefinition, Any, Any], Any]  # (matrix: bf16[n, k], scale) -> matrix
FORMS: dict[str, tuple[tuple[int, ...], Scale]] = {
    "a row": ((256, 1), lambda fd, w, scale: fd.ops.mul(w, scale)),
    "a row, spread": (
        (256, 1), lambda fd, w, s: fd.ops.mul(fd.ops.broadcast_in_dim(s, [256, 512], [0, 1]), w)
    ),
    "the matrix": ((1, 1), lambda fd, w, scale: fd.ops.mul(scale, w)),
    "a group": (
        (256, 8, 1),
        lambda fd, w, s: fd.ops.reshape(
            fd.ops.mul(fd.ops.reshape(w, [256, 8, 64]), s), [256, 512]
        ),
    ),
}  # fmt: skip


def quantised(rows: int, dtype: torch.dtype, form: str, *, offset: int = 0) -> Graph:
    """linear(x, matrix * scale) of a matrix of 8 bits."""
    shape, scaled = FORMS[form]
    flat = (20 * rand(256 * 512 + offset, seed=2)).to(torch.int16).to(dtype)
    values = [rand(rows, 512, dtype=torch.bfloat16), flat[offset:].view(256, 512)]
    values.append(rand(*shape, dtype=torch.bfloat16, seed=3))
    with FusionDefinition() as fd:
        x, weight, scale = map(fd.from_pytorch, values)
        matrix = fd.ops.cast(scaled(fd, fd.ops.cast(weight, D.BFloat16), scale), D.BFloat16)
        fd.add_output(fd.ops.linear(x, matrix))
    return fd, values


def product_of(values: Values) -> torch.Tensor:
    """In float64."""
    x, weight, scale = (value.double() for value in values)
    groups = weight.view(*scale.shape[:-1], -1) if scale.numel() > 1 else weight
    return x @ (groups * scale).view_as(weight).t()


@pytest.mark.parametrize(
    ("form", "dtype", "rows"), pairs([*FORMS], [*NARROW], [1, 2, 3, 8]), ids=str
)
def test_a_matrix_of_8_bits_is_dequantised_in_the_kernel(
    form: str, dtype: torch.dtype, rows: int
) -> None:
    """One kernel, which reads it as it is; tensor cores take no scale a group."""
    made = fd, values = quantised(rows, dtype, form)
    if rows > 2 and form == "a group":
        assert "expr_eval" in kernels(made)
        return
    assert kernels(made) == ["products" if rows > 2 else "reduction"]
    (result,) = fd.execute(values, target="emulator")
    exact = product_of(values)
    assert error(result, exact) <= 0.005 * float(exact.abs().max())


def test_groups_are_read_in_vectors() -> None:
    text = body(*quantised(1, torch.int8, "a group"))
    assert "Vec<i8, 16>" in text and "products" not in text


@pytest.mark.parametrize("rows", [1, 8])
def test_a_matrix_of_8_bits_at_an_odd_address(rows: int) -> None:
    fd, values = quantised(rows, torch.int8, "a row", offset=1)
    (result,) = fd.execute(values, target="emulator")
    exact = product_of(values)
    assert error(result, exact) <= 0.005 * float(exact.abs().max())


@pytest.mark.parametrize("rows", [1, 4])
def test_a_scale_of_columns_stays_with_the_matrix(rows: int) -> None:
    """Also of a square one, where it has as many numbers as one of rows."""
    values = [rand(rows, 512, dtype=torch.bfloat16), rand(512, 512).mul(20).to(torch.int8)]
    values.append(rand(1, 512, dtype=torch.bfloat16, seed=3))
    with FusionDefinition() as fd:
        x, weight, scale = map(fd.from_pytorch, values)
        matrix = fd.ops.mul(fd.ops.cast(weight, D.BFloat16), scale)
        fd.add_output(fd.ops.linear(x, fd.ops.cast(matrix, D.BFloat16)))
    (result,) = fd.execute(values, target="emulator")
    exact = values[0].double() @ (values[1].double() * values[2].double()).t()
    assert error(result, exact) <= 0.005 * float(exact.abs().max())


@pytest.mark.parametrize("rows", [1, 5])
def test_special_values_of_8_bits(rows: int) -> None:
    """NaN of a float of 8 bits reaches the results of its row, and no others."""
    fd, values = quantised(rows, torch.float8_e5m2, "a row")
    values[1].view(torch.uint8)[3, 5], values[1].view(torch.uint8)[9, 511] = 0x7F, 0x7C
    (result,) = fd.execute(values, target="emulator")
    exact = product_of(values)
    assert exact.isfinite().all(0).sum() == 254
    torch.testing.assert_close(result.double(), exact, rtol=2e-2, atol=1.0, equal_nan=True)


Matrix = Callable[[FusionDefinition, Any, Any], Any]  # (w: [256, 512], s: bf16[256, 1]) -> matrix
ROUNDED: dict[str, tuple[torch.dtype, Matrix]] = {
    "to int8": (
        torch.bfloat16, lambda fd, w, s: fd.ops.cast(fd.ops.mul(w, s), D.Int8)
    ),
    "to float8": (
        torch.bfloat16, lambda fd, w, s: fd.ops.cast(fd.ops.mul(w, s), D.Float8_e4m3fn)
    ),
    "a scale to integers": (
        torch.int8,
        lambda fd, w, s: fd.ops.mul(
            fd.ops.cast(w, D.BFloat16),
            fd.ops.cast(fd.ops.broadcast_in_dim(s, [256, 512], [0, 1]), D.Int),
        ),
    ),
    "integers that wrap": (
        torch.int8, lambda fd, w, s: fd.ops.mul(w, fd.ops.cast(s, D.Int8))
    ),
}  # fmt: skip


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", ROUNDED)
def test_casts_that_change_values_stay(name: str, rows: int) -> None:
    """As of programs that imitate quantisation: what a CPU computes of one product is right."""
    dtype, matrix_of = ROUNDED[name]
    wide, scale = (20 * rand(256, 512, seed=2)).clamp(-60, 60), 3 * rand(256, 1, seed=3)
    values = [rand(rows, 512, dtype=torch.bfloat16), wide.to(dtype)]
    values.append(scale.clamp(-4, 4).bfloat16())  # up to 240: float8 holds it, int8 does not
    with FusionDefinition() as fd:
        x, w, s = map(fd.from_pytorch, values)
        matrix = fd.ops.cast(matrix_of(fd, w, s), D.BFloat16)
        fd.add_output(fd.ops.linear(x, matrix))
    with FusionDefinition() as alone:
        w, s = map(alone.from_pytorch, values[1:])
        alone.add_output(alone.ops.cast(matrix_of(alone, w, s), D.Float))
    (result,) = fd.execute(values, target="emulator")
    (exact,) = alone.execute(values[1:], target="cpu")
    exact = F.linear(values[0].double(), exact.bfloat16().double())
    assert error(result, exact) <= 0.005 * float(exact.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_other_scaled_matrices_are_torchs_from_three_rows_on(dtype: torch.dtype) -> None:
    values = [meta(4, 512), meta(256, 512, dtype=dtype), meta(256, 1)]
    with FusionDefinition() as fd:
        x, w, s = map(fd.from_pytorch, values)
        fd.add_output(fd.ops.linear(x, fd.ops.cast(fd.ops.mul(w, s), D.BFloat16)))
    assert "sum" not in rewritten((fd, values))


def test_kernels_of_8_bits_compile() -> None:
    for dtype in NARROW:
        for rows in (1, 2, 8):
            fd, values = quantised(rows, dtype, "a row")
            check_sources([*fd.sources(values, target="h200")], "this test")
    compile_waiting()


def test_a_float_matrix_of_8_bits_is_dequantised_in_the_kernel() -> None:
    """Of float32 rows, by a plain sum."""
    values = [rand(1, 512), torch.randint(-128, 128, (128, 512), dtype=torch.int8), rand(128, 1)]
    with FusionDefinition() as fd:
        x, weight, scale = map(fd.from_pytorch, values)
        fd.add_output(fd.ops.linear(x, fd.ops.mul(fd.ops.cast(weight, D.Float), scale)))
    (segment,) = fd.plan([value.to("meta") for value in values], target="h200").segments
    assert segment.scheduler.name == "reduction"
    (made,) = fd.execute(values, target="emulator")
    wanted = values[0] @ (values[1].float() * values[2]).t()
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-2)
