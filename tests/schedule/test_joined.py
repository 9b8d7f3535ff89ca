# SPDX-License-Identifier: Apache-2.0
"""Several products of one x in one launch, and the pointwise work behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import Golden
from helpers.cases import Runner, rand
from helpers.graphs import Graph
from helpers.kernels import kernel_text, scheduled
from helpers.watch import check_sources, compile_waiting
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import GivenScheduleError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.options import options
from thunder_fuser.segment import segmenter
from thunder_fuser.segment.plan import SegmentedFusion
from thunder_fuser.target import A100, H200

D = DataType
Values = Sequence[torch.Tensor]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def products(values: Values) -> Graph:
    """x @ w.t() for each w of [x, w, w, ...]."""
    with FusionDefinition() as fd:
        x, *weights = map(fd.from_pytorch, values)
        for weight in weights:
            fd.add_output(fd.ops.linear(x, weight))
    return fd, [*values]


def projected(rows: int, widths: Sequence[int] = (512, 256, 128), k: int = 512) -> Graph:
    return products([meta(rows, k), *(meta(width, k) for width in widths)])


def turned(ops: Any, x: Any, shape: list[int], cos: Any, sin: Any) -> Any:
    """The rotary embedding of x [1, rows, heads * size], as in a Llama."""
    x = ops.reshape(x, shape)
    half, rank = shape[-1] // 2, len(shape)
    low, high = (
        ops.slice(x, [0] * (rank - 1) + [at], [*shape[:-1], at + half]) for at in (0, half)
    )
    other = ops.cat([ops.neg(ops.cast(high, D.Float)), ops.cast(low, D.Float)], -1)
    cos, sin = (ops.broadcast_in_dim(one, shape, [rank - 1]) for one in (cos, sin))
    return ops.cast(ops.add(ops.mul(ops.cast(x, D.Float), cos), ops.mul(other, sin)), D.BFloat16)


def attention_inputs(values: Values, heads: tuple[int, int]) -> Graph:
    """Queries and keys, turned, and values of one x. values: x, weights of q, k and v, cos, sin."""
    (rows, _), size = values[0].shape, len(values[-1])
    with FusionDefinition() as fd:
        x, *weights, cos, sin = map(fd.from_pytorch, values)
        q, k, v = (fd.ops.linear(x, weight) for weight in weights)
        for one, count in zip((q, k), heads, strict=True):
            fd.add_output(turned(fd.ops, one, [rows, count, size], cos, sin))
        fd.add_output(v)
    return fd, [*values]


def of_llama(rows: int, make: Callable[..., torch.Tensor] = meta) -> Graph:
    weights = [make(width, 512, dtype=torch.bfloat16) for width in (512, 128, 128)]
    angles = [make(64, dtype=torch.float32) for _ in range(2)]
    return attention_inputs([make(rows, 512, dtype=torch.bfloat16), *weights, *angles], (8, 2))


def planned(graph: Graph, target: Any = "h200") -> SegmentedFusion:
    return graph[0].plan(graph[1], target=target)


def names(graph: Graph, target: Any = "h200") -> list[str]:
    return [one.scheduler.name for one in planned(graph, target).segments]


# ---- which


def two_inputs(*, chained: bool) -> Graph:
    """Two products of 256 columns: of different rows, or the second waits for the first."""
    values = [meta(1, 512), meta(1, 512), meta(256, 512), meta(384, 512)]
    with FusionDefinition() as fd:
        x, y, first, second = map(fd.from_pytorch, values)
        a = fd.ops.linear(x, first)
        if not chained:
            fd.add_output(fd.ops.linear(y, second))
        else:
            scale = fd.ops.sum(fd.ops.cast(a, D.Float), [1], keepdim=True)
            b = fd.ops.mul(fd.ops.cast(fd.ops.linear(x, second), D.Float), scale)
            fd.add_output(fd.ops.add(b, fd.ops.cast(fd.ops.slice(y, [0, 0], [1, 384]), D.Float)))
        fd.add_output(a)
    return fd, values


def test_queries_keys_and_values_are_one_kernel(golden: Golden) -> None:
    plan = planned(of_llama(1))
    assert [one.scheduler.name for one in plan.segments] == ["joined", "joined"]
    golden(str(plan))


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_fires(rows: int) -> None:
    for target in (H200, A100, "emulator"):
        assert names(projected(rows), target) == ["joined"]


def test_more_products_are_several_launches() -> None:
    assert names(projected(1, [128 + 8 * at for at in range(10)])) == ["joined", "joined"]


KEEPS: dict[str, Callable[[], Graph]] = {
    "another x": lambda: two_inputs(chained=False),
    "a path between them": lambda: two_inputs(chained=True),
    "one product": lambda: projected(1, [512]),
    "rows of a prefill": lambda: projected(9),
    "the summed axis is not the fastest": lambda: products(
        [meta(1, 512), meta(512, 256).t(), meta(512, 384).t()]
    ),
}


@pytest.mark.parametrize("name", KEEPS)
def test_keeps(name: str) -> None:
    assert "joined" not in names(KEEPS[name]())


def test_a_cpu_and_an_option_keep_it() -> None:
    assert "joined" not in names(projected(1), "cpu")
    with options(few_rows=0):
        assert "joined" not in names(projected(1))


def test_no_cycle_of_joined_kernels() -> None:
    """Of x and of y are two products each. With both pairs joined each launch would wait for the
    other."""
    values = [rand(1, 512, seed=at) for at in range(2)]
    values += [rand(width, 512, seed=at) for at, width in enumerate((256, 264, 384, 392))]
    with FusionDefinition() as fd:
        x, y, *weights = map(fd.from_pytorch, values)
        a, d = fd.ops.linear(x, weights[0]), fd.ops.linear(y, weights[1])
        b, c = fd.ops.linear(y, weights[2]), fd.ops.linear(x, weights[3])
        for waiting, other in ((b, a), (c, d)):
            fd.add_output(fd.ops.mul(waiting, fd.ops.sum(other, [1], keepdim=True)))
    assert names((fd, values)).count("joined") == 1
    wanted = [one.double() for one in values]
    sums = [(wanted[at] @ wanted[at + 2].t()).sum(1, keepdim=True) for at in range(2)]
    exact = [wanted[1] @ wanted[4].t() * sums[0], wanted[0] @ wanted[5].t() * sums[1]]
    for made, one in zip(fd.execute(values, target="emulator"), exact, strict=True):
        torch.testing.assert_close(made, one.float(), rtol=1e-4, atol=1e-2)


def test_joined_plans_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    found, join = [], segmenter.join

    def twice(acceptance: Any, candidates: Any) -> Any:
        once = join(acceptance, candidates)
        found.append((len(candidates), once, join(acceptance, once)))
        return once

    monkeypatch.setattr(segmenter, "join", twice)
    planned(of_llama(1))
    ((before, once, again),) = found
    assert before == 5 and len(once) == 2 and once == again


# ---- kernels


@pytest.mark.parametrize("rows", [1, 8])
def test_the_text_of_a_kernel(rows: int, golden: Golden) -> None:
    """The blocks are divided among the products; all sizes are arguments."""
    made, source = scheduled(projected(rows), H200)
    golden(str(made), ext="py")
    golden(kernel_text(source), ext="cu")


@pytest.mark.parametrize("rows", [1, 8])
def test_other_sizes_have_the_same_text(rows: int) -> None:
    """But for the line that lets the next kernel start, which depends on the number of blocks."""
    few, more, most = (
        scheduled(projected(rows, widths), H200)[1]
        for widths in ((512, 256, 128), (640, 256, 128), (1024, 256, 384))
    )
    assert few.text == more.text and few.grid != more.grid and few.sizes != more.sizes
    line = "  next_kernel_may_start();\n"
    assert few.text.replace(line, "") == most.text.replace(line, "") and more.grid != most.grid
    assert rows == 1 or few.text == most.text


def test_all_are_sums_where_one_is_not_aligned() -> None:
    assert scheduled(projected(4), H200)[0].pieces[0].params.scheduler == "products"
    made, _ = scheduled(projected(4), H200, alignment=2)
    assert {piece.params.scheduler for piece in made.pieces} == {"reduction"}
    assert len({piece.params.threads for piece in made.pieces}) == 1


def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, other: torch.Tensor) -> Graph:
    """silu(x @ gate.t()) * (x @ up.t()), and beside it x @ other.t()."""
    values = [x, gate, up, other]
    with FusionDefinition() as fd:
        rows, *weights = map(fd.from_pytorch, values)
        left, right, beside = (fd.ops.linear(rows, weight) for weight in weights)
        fd.add_output(fd.ops.cast(fd.ops.mul(fd.ops.silu(left), right), D.BFloat16))
        fd.add_output(beside)
    return fd, values


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("k", [896, 2048])
def test_a_piece_of_two_products_has_the_threads_of_the_others(rows: int, k: int) -> None:
    for wide, narrow in ((1024, 2048), (2048, 1024), (8192, 2048)):
        fd, values = gated(meta(rows, k), meta(wide, k), meta(wide, k), meta(narrow, k))
        (source,) = fd.sources(values, target="h200")
        assert "joined" in source.body


def test_a_piece_of_two_products_is_as_exact_as_torch() -> None:
    x, *weights = values = [rand(rows, 896, dtype=torch.bfloat16) for rows in (8, 136, 136, 144)]
    with options(emulate=True):
        found = gated(*values)[0].execute(values)
    left, right, beside = (F.linear(x.double(), weight.double()) for weight in weights)
    for made, exact in zip(found, (F.silu(left) * right, beside), strict=True):
        torch.testing.assert_close(made.double(), exact, rtol=2e-2, atol=2e-2 * exact.abs().max())


def test_kernels_compile() -> None:
    """For the architectures of an A100 and an H200. The last one has more products than an int."""
    large = products([meta(8, 4096), meta(128256, 4096), meta(600000, 4096)])
    wide = products([meta(2, 4096), meta(4096, 4096), meta(1024, 4096), meta(1024, 4096)])
    of_models = [make(rows) for make in (projected, of_llama) for rows in (1, 2, 4, 8)]
    for fd, values in (*of_models, wide, large):
        for target in ("h200", "a100"):
            check_sources([*fd.sources(values, target=target)], "this test")
    compile_waiting()


def test_no_schedule_is_given() -> None:
    fd, values = projected(1)
    made, _ = scheduled((fd, values), H200)
    with pytest.raises(GivenScheduleError, match="a kernel and one schedule, got joined"):
        fd.schedules(values, target="h200", schedules={0: str(made)})


# ---- results


def check(made: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    """The error against float64 is at most 1.5 times that of torch's product in float32. Torch may
    be lucky where neighbours in float32 lie further apart than the bound: of a row by itself."""
    exact, usual = x.double() @ weight.double().t(), x.float() @ weight.float().t()
    errors, allowed = ((one.double() - exact).abs() for one in (made, usual.to(made.dtype)))
    apart = torch.finfo(torch.float32).eps * exact.abs()
    bound = 1.5 * allowed.max() + apart.clamp(min=1e-6 * x.shape[-1] ** 0.5)
    assert (errors <= bound).all(), f"{errors.max():.3g}, {allowed.max():.3g}"


@st.composite
def drawn(draw: st.DrawFn) -> Values:
    """Two to four weights of odd sizes, some at odd addresses."""
    rows = draw(st.sampled_from([1, 2, 4, 8]))
    k = draw(st.sampled_from([512, 520, 1032] if rows > 2 else [100, 512, 777, 1032]))
    dtype = draw(st.sampled_from(DTYPES[: 2 if rows > 2 else 3]))
    least = max(-(-(1 << 16) // k), 128)
    values = [rand(rows, k, dtype=dtype)]
    for seed in range(draw(st.integers(2, 4))):
        n, offset = least + draw(st.integers(1, 70)), draw(st.sampled_from([0, 0, 0, 1, 8]))
        values.append(rand(n * k + offset, dtype=dtype, seed=seed)[offset:].view(n, k))
    return values


@settings(deadline=None, max_examples=12)
@given(values=drawn(), repeatable=st.booleans())
def test_as_exact_as_float64(values: Values, repeatable: bool) -> None:
    """Also if the threads of a block run the other way round; no result is left out."""
    with options(repeatable=repeatable):
        fd, _ = products(values)
        made = Runner("emulator").execute(fd, values)
        if not repeatable or len(values[0]) < 3:
            assert names((fd, [*values]), "emulator") == ["joined"]
    for one, weight in zip(made, values[1:], strict=True):
        assert one.dtype is weight.dtype
        check(one, values[0], weight)


@pytest.mark.parametrize("k", [520, 20000])
def test_repeatable_bits_do_not_depend_on_the_launch(k: int) -> None:
    """Long rows are summed by clusters, whose barriers are in the branches."""
    values = [rand(2, k), *(rand((1 << 16) // k + at, k, seed=at) for at in (9, 40))]
    with options(repeatable=True):
        assert names(products(values), "emulator") == ["joined"]
        together = products(values)[0].execute(values, target="emulator")
        for one, weight in zip(together, values[1:], strict=True):
            alone = [values[0], weight]
            assert torch.equal(one, products(alone)[0].execute(alone, target="emulator")[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_what_is_behind_a_product_stays_in_its_piece(rows: int, dtype: torch.dtype) -> None:
    """A bias, an activation, a residual, and gate and up of one result."""
    if rows == 8 and dtype is torch.float32:
        pytest.skip("torch computes it")
    k, widths = 512, (264, 136, 512, 200, 200)
    values = [rand(rows, k, dtype=dtype), rand(264, dtype=dtype), rand(rows, 512, dtype=dtype)]
    values += [rand(width, k, dtype=dtype, seed=at) for at, width in enumerate(widths)]
    with FusionDefinition() as fd:
        x, bias, residual, a, b, c, gate, up = map(fd.from_pytorch, values)
        kind = x.dtype()
        fd.add_output(fd.ops.linear(x, a, bias))
        fd.add_output(fd.ops.relu(fd.ops.linear(x, b)))
        fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.linear(x, c), residual), kind))
        hidden = fd.ops.mul(fd.ops.silu(fd.ops.linear(x, gate)), fd.ops.linear(x, up))
        fd.add_output(fd.ops.cast(hidden, kind))
    assert names((fd, values), "emulator") == ["joined"]
    x, bias, residual, a, b, c, gate, up = (value.double() for value in values)
    exact = [
        F.linear(x, a, bias), F.linear(x, b).relu(), F.linear(x, c) + residual,
        F.silu(F.linear(x, gate)) * F.linear(x, up),
    ]  # fmt: skip
    tolerance = 1e-4 if dtype is torch.float32 else 2e-2
    for made, one in zip(Runner("emulator").execute(fd, values), exact, strict=True):
        torch.testing.assert_close(made.double(), one, rtol=tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_rotary_embeddings_share_a_launch(rows: int) -> None:
    fd, values = of_llama(rows, rand)
    assert names((fd, values), "emulator") == ["joined", "joined"]
    made = Runner("emulator").execute(fd, values)
    x, *weights, cos, sin = values
    for at, (one, weight, heads) in enumerate(zip(made, weights, (8, 2, 2), strict=True)):
        exact = F.linear(x, weight)
        if at < 2:
            exact = exact.view(rows, heads, 64).float()
            other = torch.cat((-exact[..., 32:], exact[..., :32]), dim=-1)
            exact = (exact * cos + other * sin).bfloat16()
        torch.testing.assert_close(one, exact, rtol=4e-2, atol=0.3)
