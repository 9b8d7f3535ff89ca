# SPDX-License-Identifier: Apache-2.0
"""thunder.jit with the fuser: results, gradients, names in traces, options, fuel and fallback."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from helpers.cases import rand
from helpers.forked import forked
from thunder.core import prims
from thunder.core.trace import TraceCtx
from thunder.extend import FUEL_LEVEL

from thunder_fuser import options
from thunder_fuser.errors import CompileError, DefinitionError, LaunchError, OptionError
from thunder_fuser.executors.fuser import ThunderFuser, compile_region
from thunder_fuser.executors.run.region_callable import callable_of

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(params=["evaluated", "compiled"])
def fuser(request: pytest.FixtureRequest) -> ThunderFuser:
    """The same tests with the oracle and with kernels."""
    backend = request.getfixturevalue("evaluate_region")
    return ThunderFuser("tested", backend if request.param == "evaluated" else compile_region)


def rms_norm(x: Any, w: Any) -> Any:
    return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5).to(x.dtype) * w


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, w: F.softmax(x * w, -1),
    "layer_norm": lambda x, w: F.layer_norm(x, (8,), w, w),
    "rms_norm": rms_norm,
    "gelu": lambda x, w: F.gelu(x) * w,
    "gelu_tanh": lambda x, w: F.gelu(x, approximate="tanh") * w,
    "silu": lambda x, w: F.silu(x) * w,
    "rotary": lambda x, w: x * w + torch.cat((-x[..., 4:], x[..., :4]), -1),
    "mixed": lambda x, w: (x.float() * w).sum(0).to(x.dtype) + x.mean((0, 1), keepdim=True),
    "chain": lambda x, w: torch.tanh(x).t().reshape(6, -1).exp().sum(1, keepdim=True) * w,
}


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.double() - exact).square().mean().sqrt())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_and_gradients(fuser: ThunderFuser, name: str, dtype: torch.dtype) -> None:
    """No worse than eager, against double."""
    torch.manual_seed(0)
    function = FUNCTIONS[name]
    values = [torch.randn(6, 8).to(dtype), torch.randn(8).to(dtype)]
    jitted = thunder.jit(function, executors=[fuser], fuser_strict=True)
    exact = with_gradients(function, [v.double() for v in values])
    eager = with_gradients(function, values)
    fused = with_gradients(jitted, values)
    assert {region.is_backward for region in fuser.last_claims.regions} == {False, True}
    for got, usual, right in zip(fused, eager, exact, strict=True):
        assert got.dtype is usual.dtype
        floor = 2 * torch.finfo(dtype).eps * float(right.abs().max())
        assert error(got, right) <= max(1.2 * error(usual, right), floor)


def with_gradients(function: Callable[..., Any], values: Sequence[Any]) -> list[torch.Tensor]:
    args = [v.clone().requires_grad_() for v in values]
    result = function(*args)
    torch.manual_seed(1)
    seed = torch.randn(result.shape).to(result.dtype)
    return [result.detach(), *torch.autograd.grad(result, args, seed)]


LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t().contiguous().t(),
    "expanded": lambda t: t[:1].expand(4, 6),
    "step": lambda t: t.repeat(1, 2)[:, ::2],
    "size one": lambda t: t[:1],
    "empty": lambda t: t[:0],
    "channels last": lambda t: t.reshape(1, 4, 3, 2).contiguous(memory_format=torch.channels_last),
    "0-dim": lambda t: t[0, 0],
}
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(fuser: ThunderFuser, layout: str, dtype: torch.dtype) -> None:
    x = LAYOUTS[layout]((torch.rand(4, 6) * 5).to(dtype))

    def function(a: Any) -> Any:
        return torch.where(a > 2, a, a + a)

    jitted = thunder.jit(function, executors=[fuser])
    torch.testing.assert_close(jitted(x), function(x), rtol=0, atol=0)
    assert fuser.last_claims.regions


def test_a_new_layout_is_a_new_definition_of_the_same_trace(fuser: ThunderFuser) -> None:
    jitted = thunder.jit(torch.exp, executors=[fuser])
    x = torch.randn(4, 4)
    for arg in (x, x.t(), x, x.t()):
        torch.testing.assert_close(jitted(arg), arg.exp())
    assert thunder.cache_misses(jitted) == 1
    first, second = region_callables(fuser)[0].definitions
    assert first[0] != second[0] and first[1] == second[1]
    assert second[2].attr("stride_order") == (0, 1)  # the result lies as the argument does


def test_the_trace_shows_regions_with_their_ops(fuser: ThunderFuser) -> None:
    jitted = thunder.jit(lambda x: F.softmax(x, -1) * 2, executors=[fuser])
    jitted(torch.randn(3, 4))
    text = str(thunder.last_traces(jitted)[-1])
    assert "[t" in text and "] = thunderFusion0(x)" in text
    assert "prims.amax" in text and "prims.exp" in text
    assert [b.sym.name for b in fuser.last_fused_trace.bound_symbols if b.sym.is_fusion] == [
        "thunderFusion0"
    ]


def test_thunder_may_fuse_a_region_again(fuser: ThunderFuser) -> None:
    """Another fusion executor after ours makes Thunder rewrite our regions."""
    from thunder.executors.passes import update_fusion_call_ctx

    x = torch.randn(3, 4)
    thunder.jit(lambda x: F.softmax(x, -1), executors=[fuser])(x)
    again = update_fusion_call_ctx(fuser.last_fused_trace)
    (one,), (other,) = (
        [b for b in trace.bound_symbols if b.sym.is_fusion]
        for trace in (fuser.last_fused_trace, again)
    )
    assert str(one) == str(other)
    (result,) = other._call_ctx["thunderFusion0"](x)
    torch.testing.assert_close(result, F.softmax(x, -1))


def test_each_region_is_bound_by_fuse(fuser: ThunderFuser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools that count or change fusions wrap it, as Thunder's own do."""
    numbers, bind = [], fuser.fuse

    def fuse(region: Any, number: int, **about: Any) -> Any:
        numbers.append(number)
        return bind(region, number, **about)

    monkeypatch.setattr(fuser, "fuse", fuse)
    jitted = thunder.jit(lambda x: (x.exp() @ x).exp(), executors=[fuser])
    jitted(torch.randn(4, 4))
    assert numbers == [0, 1]


def test_a_0_dim_tensor_has_no_axis(fuser: ThunderFuser) -> None:
    x = torch.tensor(2.0)
    jitted = thunder.jit(lambda a: F.softmax(a, 0) + a, executors=[fuser])
    torch.testing.assert_close(jitted(x), x + 1)


def test_logsumexp_of_bytes(fuser: ThunderFuser) -> None:
    x = torch.tensor([1, 2, 250], dtype=torch.uint8)
    jitted = thunder.jit(lambda a: torch.logsumexp(a, 0), executors=[fuser])
    torch.testing.assert_close(jitted(x), torch.tensor(250.0))


def test_in_place(fuser: ThunderFuser) -> None:
    def function(x: Any) -> Any:
        x.add_(1)
        y = x * x
        y.mul_(3)
        return y.sum() + x

    x, same = torch.zeros(3, 4), torch.zeros(3, 4)
    torch.testing.assert_close(
        thunder.jit(function, executors=[fuser])(x), function(same)
    )
    torch.testing.assert_close(x, same)


def test_an_unchanged_argument_is_returned_as_it_is(fuser: ThunderFuser) -> None:
    x = torch.randn(3)
    same, more = thunder.jit(lambda a: (a.float(), a + 1), executors=[fuser])(x)
    assert same is x
    torch.testing.assert_close(more, x + 1)


def test_numbers_made_at_run_time(fuser: ThunderFuser) -> None:
    x = torch.randn(3)
    jitted = thunder.jit(lambda a: a * a.sum().item() + 1, executors=[fuser])
    torch.testing.assert_close(jitted(x), x * x.sum().item() + 1)


def test_fuel(fuser: ThunderFuser) -> None:
    def function(x: Any, w: Any) -> Any:
        return torch.exp(F.linear(torch.tanh(x), w))

    args = (torch.randn(3, 4), torch.randn(4, 4))
    expected = function(*args)

    def regions(**keywords: Any) -> int:
        jitted = thunder.jit(function, executors=[fuser], **keywords)
        torch.testing.assert_close(jitted(*args), expected)
        return len(region_callables(fuser))

    fuser.set_fuel(1)
    assert [regions(), regions()] == [1, 0]
    fuser.set_fuel(FUEL_LEVEL.UNLIMITED)
    assert [regions(), regions(fuser_fuel=1), regions(fuser_fuel=0)] == [2, 1, 0]
    with options(fuel=1):
        assert regions() == 1
    with pytest.raises(OptionError, match="fuel: expected a number >= 0"):
        fuser.set_fuel(-2)


def test_views_need_no_fuel(fuser: ThunderFuser) -> None:
    """A number of fuel is a number of fusions; views are left out only behind the last of them."""

    def function(x: Any, w: Any) -> Any:
        y = torch.tanh(F.linear(x[1:].unsqueeze(0).expand(2, 3, 4), w)) * 2
        return torch.exp(F.linear(F.linear(y, w).transpose(0, 1)[1:], w)) * 2

    args = (rand(4, 4), rand(4, 4, seed=1))  # exp of some numbers would not be near
    expected = function(*args)

    def calls(**keywords: Any) -> list[str]:
        jitted = thunder.jit(function, executors=[fuser], **keywords)
        torch.testing.assert_close(jitted(*args), expected, rtol=1e-5, atol=1e-5)
        found = thunder.last_traces(jitted)[-1].bound_symbols
        return [one.sym.name for one in found if one.sym.executor is fuser]

    whole = ["fuserViews0", "thunderFusion0", "fuserViews1", "thunderFusion1"]
    for fuel, left in ((0, 0), (1, 2), (2, 4), (3, 4), (-1, 4)):
        assert calls(fuser_fuel=fuel) == whole[:left]
    fuser.set_fuel(3)
    assert [calls(), calls(), calls()] == [whole, whole[:2], []]


def test_options_of_jit(fuser: ThunderFuser) -> None:
    x = torch.randn(3)
    with pytest.raises(OptionError, match=r"expected one of fuser_strict.*got fuser_strickt"):
        thunder.jit(torch.exp, executors=[fuser], fuser_strickt=True)(x)
    with pytest.raises(OptionError, match="option strict: expected the type bool, got 3"):
        thunder.jit(torch.exp, executors=[fuser], fuser_strict=3)(x)
    jitted = thunder.jit(torch.exp, executors=[fuser], fuser_name_prefix="nvFusion")
    jitted(x)
    assert "nvFusion0(" in str(thunder.last_traces(jitted)[-1])


# ---- what happens where a region cannot be compiled


def failing(with_error: Exception) -> ThunderFuser:
    def compile_region(*args: Any) -> Any:
        raise with_error.with_traceback(None)

    return ThunderFuser("failing", compile_region)


REFUSED = CompileError("kernel 0", expected="a compiler", got="none")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_fallback_runs_torch_ops_with_one_warning(name: str) -> None:
    values = [torch.randn(6, 8), torch.randn(8)]
    jitted = thunder.jit(FUNCTIONS[name], executors=[failing(REFUSED)])
    with pytest.warns(UserWarning, match="thunderFusion.*kernel 0: expected a compiler"):
        got = with_gradients(jitted, values)
    for g, e in zip(got, with_gradients(FUNCTIONS[name], values), strict=True):
        torch.testing.assert_close(g, e)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "thunderFusion")
        with_gradients(jitted, values)


def test_fallback_of_lerp() -> None:
    a, b = torch.randn(3), torch.randn(3)
    with pytest.warns(UserWarning):
        got = thunder.jit(torch.lerp, executors=[failing(REFUSED)])(a, b, 0.25)
    torch.testing.assert_close(got, torch.lerp(a, b, 0.25))


def test_strict_raises() -> None:
    with pytest.raises(CompileError):
        thunder.jit(torch.exp, executors=[failing(REFUSED)], fuser_strict=True)(torch.randn(3))
    with options(strict=True), pytest.raises(CompileError):
        thunder.jit(torch.exp, executors=[failing(REFUSED)])(torch.randn(3))


def test_a_failed_launch_always_raises() -> None:
    with pytest.raises(LaunchError):
        thunder.jit(torch.exp, executors=[failing(LaunchError("kernel 0"))])(torch.randn(3))


def test_the_warning_names_a_repro_file() -> None:
    with pytest.warns(UserWarning) as caught:
        thunder.jit(torch.exp, executors=[failing(REFUSED)])(torch.randn(3))
    (warning,) = [str(w.message) for w in caught if "thunderFusion" in str(w.message)]
    path = Path(warning.rsplit(" ", 1)[-1])
    text = path.read_text()
    assert "fd.ops.exp(T0)" in text and "tensor((3,), (1,), torch.float32, 'cpu')" in text
    assert path.parent.stat().st_mode & 0o077 == 0
    status, out, err = forked(path)
    assert status == 0, err
    assert out.startswith("tensor([")


@pytest.mark.parametrize(
    "function",
    [
        lambda m: m + 1,
        lambda m: (m * 1000 - 3).float(),
        lambda m: (torch.where(m, m + 200, -(m + 300)), (m * 200).sum(), m.to(torch.int8) * 100),
        lambda m: (m + 200).reshape(-1) * 2,
    ],
)
@pytest.mark.parametrize("rank", [2, 9])
def test_bool_and_a_number_is_int64(
    fuser: ThunderFuser, function: Callable[..., Any], rank: int
) -> None:
    """Thunder says int8. At rank 9, torch makes the sums, and regions read them."""
    mask = torch.tensor([True, False, True]).reshape([1] * (rank - 1) + [3])
    got = thunder.jit(function, executors=[fuser], fuser_strict=True)(mask)
    torch.testing.assert_close(got, function(mask))


def test_a_gradient_that_was_not_summed_is_refused(fuser: ThunderFuser) -> None:
    """A primitive multiplies by a 0-dim tensor without a broadcast, so its gradient has no sum."""
    jitted = thunder.jit(lambda x: prims.mul(x, x.sum()), executors=[fuser])
    with pytest.raises(DefinitionError, match=r"not summed.*keepdim=True"):
        jitted(torch.randn(2, 3, requires_grad=True))



def test_claims_are_kept_while_the_function_lives(fuser: ThunderFuser) -> None:
    one, other = (thunder.jit(f, executors=[fuser]) for f in (torch.exp, torch.sinh))
    for jitted in (one, other):
        jitted(torch.randn(3))
    assert fuser.claims_of(thunder.last_traces(other)[0]) is fuser.last_claims
    claims = fuser.claims_of(thunder.last_traces(one)[0])
    assert claims is not None
    assert [leaf.sym.name for leaf in claims.regions[0].leaves] == ["exp"]
    data = weakref.ref(thunder.compile_data(one))
    first = weakref.ref(thunder.last_traces(one)[0])
    del one, jitted, claims
    gc.collect()
    assert data() is None and first() is None


def region_callables(fuser: ThunderFuser) -> list[Any]:
    trace = fuser.last_fused_trace
    assert isinstance(trace, TraceCtx)
    return [callable_of(bsym) for bsym in trace.bound_symbols if bsym.sym.is_fusion]
