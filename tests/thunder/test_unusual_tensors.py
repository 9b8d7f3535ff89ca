# SPDX-License-Identifier: Apache-2.0
"""Tensors whose memory does not hold their values, on the first call and on the warm path.

Pending negations and conjugations are resolved; classes with rules of their own and tensors
without memory get what plain Thunder gives, from torch. And tensors [0], which cat leaves out.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from thunder.core.proxies import TensorProxy
from thunder.dynamo import ThunderCompiler
from thunder.extend import OperatorExecutor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import thunder_fuser
from thunder_fuser import FusionDefinition, fuser
from thunder_fuser.errors import InputError
from thunder_fuser.options import options

SHAPE = (4, 6)
BITS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "negated": torch._neg_view,
    "conjugated": torch.conj,
    "both": lambda x: torch._neg_view(torch.conj(x)),
    "transposed": lambda x: torch._neg_view(torch.conj(x)).t(),
    "expanded": lambda x: torch._neg_view(torch.conj(x[:1])).expand(SHAPE),
    "empty": lambda x: torch._neg_view(torch.conj(x[:0])),
}
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex64]


def jit(function: Callable[..., Any], **given: Any) -> Callable[..., Any]:
    return thunder.jit(function, executors=[fuser], **given)


def values(dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(0, 9, SHAPE, generator=generator)
    return (whole + 1j * whole.flip(0)).to(dtype) if dtype.is_complex else whole.to(dtype)


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits(dtype: torch.dtype, target: str) -> None:
    """One jitted function is called with every pair of bits, so each call but one is warm."""

    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a * 3 + b, b * a

    jitted = jit(function, fuser_strict=True, fuser_emulate=target == "emulator")
    a, b = values(dtype, 1), values(dtype, 2)
    for first, second in itertools.product(BITS.values(), repeat=2):
        x, y = first(a), second(b)
        if x.shape == y.shape:
            torch.testing.assert_close(jitted(x, y), function(x, y), rtol=0, atol=0)


def test_bits_between_regions() -> None:
    """What torch makes between two regions has bits that no argument has."""

    def imaginary(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x * 2.0 + 1.0).conj().imag.exp() * 2.0

    def conjugated(z: torch.Tensor) -> torch.Tensor:
        return torch.conj(z).imag * 2 + 1

    x, z = torch.linspace(-1, 1, 8), torch.full((2,), 1 + 1j)
    torch.testing.assert_close(jit(imaginary)(x), imaginary(x))
    torch.testing.assert_close(jit(conjugated)(z), conjugated(z))


def test_bits_of_gradients() -> None:
    """The gradient that autograd gives to the backward may have pending bits too."""
    x, g = torch.randn(SHAPE), torch.randn(SHAPE)
    run = jit(lambda a: torch.tanh(a) * a)
    for gradient in (g, torch._neg_view(g)):
        mine, other = (x.clone().requires_grad_() for _ in range(2))
        run(mine).backward(gradient)
        (torch.tanh(other) * other).backward(gradient)
        torch.testing.assert_close(mine.grad, other.grad)


def test_views_of_negated_arguments_share_their_memory() -> None:
    run = jit(lambda a: a.reshape(2, 12).t())
    for x in (torch.ones(SHAPE), torch._neg_view(torch.ones(SHAPE))):
        view = run(x)
        x.add_(4)
        torch.testing.assert_close(view, x.reshape(2, 12).t())


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_definitions_resolve_bits_and_write_them_back(target: str) -> None:
    with FusionDefinition() as fd:
        x, z = (fd.from_pytorch(torch.ones(SHAPE, dtype=d)) for d in (torch.float32, torch.cfloat))
        fd.add_output(fd.ops.mul(z, x))
        fd.add_output(fd.ops.add(x, 1.0), alias_input=x)
    real, pairs = values(torch.float32, 1), values(torch.cfloat, 2)
    with options(emulate=target == "emulator"):
        for first, second in itertools.product(("none", "negated"), ("none", "conjugated")):
            a, z = BITS[first](real.clone()), BITS[second](pairs)
            expected, after = z * a, a + 1
            torch.testing.assert_close(fd.execute([a, z]), [expected])
            torch.testing.assert_close(a, after)


# ---- classes with rules of their own, and no memory


class Named(torch.Tensor):
    """A class with memory, whose results torch makes of the same class."""


class Unwrapped(torch.Tensor):
    """A class without memory, whose results are plain tensors."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Unwrapped:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [a.inner if isinstance(a, cls) else a for a in args]
        return func(*plain, **(kwargs or {}))


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(SHAPE)


CLASSES: dict[str, Callable[[], torch.Tensor]] = {
    "TwoTensor": lambda: TwoTensor(torch.ones(SHAPE), torch.full(SHAPE, 2.0)),
    "FakeTensor": fake,
    "MaskedTensor": lambda: torch.masked.as_masked_tensor(
        torch.ones(SHAPE), torch.ones(SHAPE, dtype=torch.bool)
    ),
    "Unwrapped": lambda: Unwrapped(torch.ones(SHAPE)),
    "Named": lambda: torch.ones(SHAPE).as_subclass(Named),
    "Parameter": lambda: torch.nn.Parameter(torch.ones(SHAPE), requires_grad=False),
    "meta": lambda: torch.ones(SHAPE, device="meta"),
}


def shown(value: torch.Tensor) -> tuple[Any, ...]:
    parts = (value.a, value.b) if isinstance(value, TwoTensor) else (value,)
    known = not value.is_meta and not isinstance(value, FakeTensor)
    return type(value), value.shape, str(parts) if known else ""


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("name", CLASSES)
def test_classes(name: str, warm: bool) -> None:
    """The value and class that plain Thunder gives, also after a call with a plain tensor."""

    def function(a: torch.Tensor) -> torch.Tensor:
        return a * 2 + 1

    run, plain = jit(function), thunder.jit(function, executors=[])
    if warm:
        run(torch.ones(SHAPE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        argument = CLASSES[name]()
        assert shown(run(argument)) == shown(plain(argument))
    torch.testing.assert_close(run(torch.ones(SHAPE)), torch.full(SHAPE, 3.0))


def test_a_class_falls_back_aloud() -> None:
    """One warning that names the class; an error under strict."""
    argument = CLASSES["TwoTensor"]()
    with pytest.warns(UserWarning, match="a TwoTensor, a class that overrides torch's functions"):
        jit(lambda a: a * 2 + 1)(argument)
    with pytest.raises(InputError, match=r"argument 0 of .*: expected a plain strided tensor"):
        jit(lambda a: a * 2 + 1, fuser_strict=True)(argument)


MAKES: dict[str, Callable[..., torch.Tensor]] = {
    "zero": lambda x: torch._efficientzerotensor(tuple(x.shape)),
    "functional": lambda x: torch._to_functional_tensor(torch.zeros(x.shape)),
    "wrapper": lambda x: TwoTensor(torch.zeros(x.shape), torch.zeros(x.shape)),
}


@pytest.mark.filterwarnings("ignore:thunderFusion")
@pytest.mark.parametrize("kind", MAKES)
def test_no_memory_between_regions(kind: str) -> None:
    """What an op of another executor returns to the next region."""
    others = OperatorExecutor(f"makes_{kind}")
    make = others.register_operator(
        f"make_{kind}", meta=lambda x: TensorProxy(like=x), fn=MAKES[kind]
    )
    run = thunder.jit(lambda a: make(a * 2 + 1) * 3 + 4, executors=[others, fuser])
    for _ in range(2):
        result = run(torch.ones(SHAPE))
        if kind == "functional":
            result = torch._from_functional_tensor(result)
        result = result.a if isinstance(result, TwoTensor) else result
        torch.testing.assert_close(result, torch.full(SHAPE, 4.0))


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_freed_storage(warm: bool) -> None:
    """Torch itself would read address 0, so there is nothing to fall back to."""
    run = jit(lambda a: a * 2 + 1)
    if warm:
        run(torch.ones(SHAPE))
    freed = torch.ones(SHAPE)
    freed.untyped_storage().resize_(0)
    with pytest.raises(InputError, match="expected a tensor with memory"):
        run(freed)
    torch.testing.assert_close(run(torch.ones(SHAPE)), torch.full(SHAPE, 3.0))


def test_under_vmap() -> None:
    """A tensor inside a transform of torch.func has no address. Thunder refuses such arguments."""
    with FusionDefinition() as fd:
        x = fd.from_pytorch(torch.ones(SHAPE))
        fd.add_output(fd.ops.mul(x, 2.0))
    for _ in range(2):
        with pytest.raises(InputError, match=r"a tensor inside a transform of torch\.func"):
            torch.func.vmap(lambda one: fd.execute([one])[0])(torch.ones(3, *SHAPE))
        torch.testing.assert_close(fd.execute([torch.ones(SHAPE)]), [torch.full(SHAPE, 2.0)])


# ---- modes of torch, which are about calls and not about tensors


class _Seen(TorchDispatchMode):
    """Sees each operator that torch runs, and changes nothing."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **kwargs or {})


def halves(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Regions, and views that no region has."""
    left, right = (torch.tanh(x) @ w).chunk(2, -1)
    return left.reshape(2, 2, -1).transpose(0, 1) @ w[:3, :3], torch.exp(right) * 2.0 - 1.0


MODES: dict[str, Callable[[], Any]] = {
    "device": lambda: torch.device("meta"),
    "flops": lambda: FlopCounterMode(display=False),
    "seen": _Seen,
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("jit", [thunder.jit, thunder_fuser.jit], ids=["thunder", "own"])
def test_modes(mode: Callable[[], Any], jit: Callable[..., Any]) -> None:
    """torch.set_default_device is a mode too, of every call of a program."""
    x, w = torch.linspace(-1, 1, 24).view(4, 6), torch.linspace(-1, 2, 36).view(6, 6)
    expected, jitted = halves(x, w), jit(halves, executors=[fuser], fuser_strict=True)
    for _ in range(2):
        with mode():
            found = jitted(x, w)
        torch.testing.assert_close(found, expected)


def test_definitions_under_a_default_device() -> None:
    """Whatever is the device of new tensors."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([-1])))
    x = torch.linspace(-1, 1, 8)
    with torch.device("meta"):
        (found,) = fd.execute([x])
    torch.testing.assert_close(found, x.exp())


X = torch.linspace(-1, 1, 12).view(3, 4)
EMPTY: dict[str, Callable[[], tuple[torch.Tensor, ...]]] = {
    "first": lambda: (torch.ones(0), X),
    "last": lambda: (X, torch.ones(0)),
    "of a wider type": lambda: (torch.ones(0, dtype=torch.float64), X),
    "twice": lambda: (torch.ones(0), X, torch.ones(0)),
    "beside its own rank": lambda: (torch.ones(0), X[0]),
}


@pytest.mark.parametrize("operands", EMPTY.values(), ids=EMPTY)
def test_cat_leaves_out_tensors_without_axes_of_the_others(
    operands: Callable[[], tuple[torch.Tensor, ...]],
) -> None:
    """As torch, for the sake of old programs. A cache of transformers begins with such a tensor."""

    def joined(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.cat(tensors, -1) * 2

    jitted = thunder_fuser.jit(joined, fuser_strict=True)
    tensors = [x.clone().requires_grad_() for x in operands()]
    result, expected = jitted(*tensors), joined(*tensors)
    torch.testing.assert_close(result, expected)
    most = max(tensors, key=torch.numel)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), most) for y in (result, expected)))
    filled = [torch.ones(3, 1) if x.ndim == 1 and X.ndim == most.ndim else x for x in tensors]
    torch.testing.assert_close(jitted(*filled), joined(*filled))  # another call than the first


def test_cat_still_refuses_other_ranks() -> None:
    with pytest.raises(RuntimeError, match="different dimension"):
        thunder_fuser.jit(lambda x, y: torch.cat([x, y], -1))(torch.ones(1), X)


def test_thunderfx_does_not_split_a_graph_at_such_a_cat() -> None:
    """A part that it gives to Inductor takes it ten seconds."""
    compiler = ThunderCompiler(executors=[fuser])
    result = torch.compile(lambda x: torch.cat([torch.tensor([]), x], -2) * 2, backend=compiler)(X)
    torch.testing.assert_close(result, X * 2)
    (graph,) = compiler.subgraph_infos
    assert not graph.split_reasons


def test_thunderfx_does_not_split_a_graph_at_a_sum_of_sizes() -> None:
    """Three sizes, as of a cache that grows."""
    compiler = ThunderCompiler(executors=[fuser])

    def padded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y]) * torch.ones(torch.sym_sum((x.shape[0], y.shape[0], 1)))[1:]

    compiled = torch.compile(padded, backend=compiler, dynamic=True)
    for size in (3, 4):
        x, y = torch.linspace(0, 1, size), torch.linspace(1, 2, size + 1)
        torch.testing.assert_close(compiled(x, y), padded(x, y))
    (graph,) = compiler.subgraph_infos
    assert "sym_sum" in str(graph.original_graph_module.graph) and not graph.split_reasons
