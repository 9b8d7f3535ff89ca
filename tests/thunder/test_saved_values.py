# SPDX-License-Identifier: Apache-2.0
"""What a backward reads is guarded as autograd guards it: a table of functions, and of writes
between the forward and the backward. Eager torch is the oracle.

A gradient is either refused with torch's RuntimeError, or it is that of the values which the
forward had (eager torch's own, where it keeps copies of what it saves). Where eager gives it, ours
is refused in two cases only: an argument that recomputation reads was written, which no policy but
`none` promises to allow; or a result that is a view was, which autograd refuses for any Function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import pytest
import thunder
import torch
from helpers.recorder import CpuRecorder
from thunder.dynamo import thunderfx
from torch import Tensor, nn

import thunder_fuser
from thunder_fuser import fuser
from thunder_fuser.executors.cuda_graphs import transform as cuda_graphs
from thunder_fuser.executors.cuda_graphs.transform import CudaGraphs, pieces_in
from thunder_fuser.explain.jitted import final_traces

functional = nn.functional
with_fuser = partial(thunder.jit, executors=[fuser])


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a graph have one launch, so that each function below is replayed."""
    monkeypatch.setattr(cuda_graphs, "_LEAST", 1)


def in_graphs(jit: Any, function: Any) -> Any:
    return jit(function, transforms=[CudaGraphs(recorder=CpuRecorder())], fuser_cuda_graphs=True)


def replaying(jit: Any, function: Any) -> Any:
    """Its third call of a thread and those after it are replays, with arguments of this layout."""
    made = in_graphs(jit, function)

    def call(*args: Tensor) -> Any:
        for _ in range(2):
            made(*(one.detach().clone().requires_grad_() for one in args))
        return made(*args)

    call.__dict__["made"] = made
    return call


WAYS: dict[str, Callable[[Any], Any]] = {
    "thunder.jit": with_fuser,
    "thunder_fuser.jit": thunder_fuser.jit,
    "two Functions": partial(thunder_fuser.jit, thunderfx_disable_split_autograd=False),
    "keeps all": partial(thunder_fuser.jit, fuser_rematerialization="none"),
    "keeps little": partial(thunder_fuser.jit, fuser_rematerialization="memory"),
    "graphs": partial(replaying, with_fuser),
    "graphs, thunder_fuser.jit": partial(replaying, thunder_fuser.jit),
}


def of(make: Callable[..., Tensor], use: Callable[[Tensor], Any]) -> Callable[..., Any]:
    return lambda *args: use(make(*args))


TWO = [(4, 6), (6, 5)]
FUNCTIONS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "exp": (lambda x: x.exp(), [(4, 6)]),
    "sigmoid": (lambda x: x.sigmoid(), [(4, 6)]),
    "relu": (lambda x: x.relu(), [(4, 6)]),
    "softmax": (lambda x: x.softmax(-1), [(4, 6)]),
    "product": (lambda x, w: x * w, [(4, 6), (6,)]),
    "square": (lambda x: x * x, [(4, 6)]),
    "sum": (lambda x, b: x + b, [(4, 6), (6,)]),
    "linear": (lambda x, w, b: functional.linear(x, w, b).relu(), [(4, 6), (5, 6), (5,)]),
    "exp of a product": (lambda x, w: (x @ w).exp(), TWO),
    "a product, its sine": (of(lambda x, w: x @ w, lambda t: (t, t.sin())), TWO),
    "its sine, a view": (of(lambda x, w: x @ w, lambda t: (t, t.sin(), t.view(-1))), TWO),
    "a view, its sine": (of(lambda x, w: x @ w, lambda t: (t.view(-1), t.sin())), TWO),
    "its transpose": (of(lambda x, w: x @ w, lambda t: (t.t(), t.sin())), TWO),
    "exp, a view": (of(lambda x: x.exp(), lambda t: (t, t.view(-1))), [(4, 6)]),
    "rows of exp": (of(lambda x: x.exp(), lambda t: (t[:2], t[2:])), [(4, 6)]),
    "twice": (of(lambda x: x.tanh(), lambda t: (t, t)), [(4, 6)]),
    "norm": (lambda x, w, b: functional.layer_norm(x, (6,), w, b), [(4, 6), (6,), (6,)]),
    "rows": (lambda x: (x[1:] * x[:-1]).exp(), [(4, 6)]),
}


class Write(NamedTuple):
    """The tensor that is written between forward and backward: a result, an argument, or nothing;
    through: itself, a view of it, or what it is detached to."""

    result: int | None = None
    argument: int | None = None
    through: Callable[[Tensor], Tensor] = lambda tensor: tensor

    def __call__(self, args: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        if self.result is not None:
            self.through(results[self.result]).mul_(3)
        if self.argument is not None:
            with torch.no_grad():
                self.through(args[self.argument]).mul_(3)


def writes(args: int, results: int) -> Iterator[Write]:
    yield Write()
    for through in (lambda one: one, lambda one: one[..., 1:], lambda one: one.detach()):
        yield from (Write(result=at, through=through) for at in range(results))
        yield from (Write(argument=at, through=through) for at in range(args))


class Outcome(NamedTuple):
    """Gradients, and buffers after the backward; or else the error's text."""

    values: list[Tensor | None]
    error: str = ""

    @property
    def is_view(self) -> bool:
        return "is a view" in self.error

    def agrees(self, truth: Outcome) -> bool:
        pairs = zip(self.values, truth.values, strict=True)
        return all(
            a is b if a is None or b is None else torch.allclose(a, b, atol=1e-5, rtol=1e-4)
            for a, b in pairs
        )


def outcome(step: Callable[[], list[Tensor | None]]) -> Outcome:
    try:
        return Outcome(step())
    except RuntimeError as error:
        assert type(error) is RuntimeError
        assert "modified by an inplace operation" in str(error) or "is a view" in str(error)
        return Outcome([], str(error))


def of_the_forward() -> Any:
    """Autograd saves copies: gradients are those of the values that the forward had."""
    return torch.autograd.graph.saved_tensors_hooks(lambda one: one.clone(), lambda one: one)


def step(function: Any, given: Sequence[Tensor], write: Write) -> list[Tensor | None]:
    leaves = [one.clone().requires_grad_() for one in given]
    args = [one * 1 for one in leaves] if write.argument is not None else leaves
    results = function(*args)
    results = results if isinstance(results, tuple) else (results,)
    write(args, results)
    sum((one.sin() * (at + 1)).sum() for at, one in enumerate(results)).backward()  # type: ignore[union-attr]
    return [one.grad for one in leaves]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_write_is_found_or_does_not_matter(name: str, way: str) -> None:
    function, shapes = FUNCTIONS[name]
    torch.manual_seed(0)
    given = [torch.rand(shape) * 0.4 + 0.1 for shape in shapes]
    results = function(*given)
    ours = WAYS[way](function)
    for write in writes(len(given), len(results) if isinstance(results, tuple) else 1):
        eager, own = (outcome(partial(step, one, given, write)) for one in (function, ours))
        if own.error:
            recomputed = write.argument is not None and way != "keeps all"
            assert eager.error or recomputed or own.is_view, (write, own.error)
            continue
        with of_the_forward():
            truth = outcome(partial(step, function, given, write))
        assert own.agrees(truth), (write, own, truth)
    if "graphs" in way:
        pieces = pieces_in(final_traces(ours.made)[0].bound_symbols)
        assert any(piece.counts.replayed for piece in pieces)


# ----------------------------------------------------------------- buffers that a region writes


class Buffered(nn.Module):
    def __init__(self, body: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.body = body
        self.p = nn.Parameter(torch.linspace(0.1, 0.6, 6))
        self.register_buffer("buffer", torch.linspace(0.2, 1.2, 6))
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def read_then_written(module: Any, x: Tensor) -> Tensor:
    y = x * module.buffer
    module.buffer.add_(1)
    return y


def written_then_read(module: Any, x: Tensor) -> Tensor:
    module.buffer.add_(1)
    return x * module.buffer


def only_written(module: Any, x: Tensor) -> Tensor:
    module.buffer.copy_(x.detach().mean(0))
    return x * module.p


def moving_average(module: Any, x: Tensor) -> Tensor:
    module.buffer.mul_(0.9).add_(x.detach().mean(0) * 0.1)
    return (x / module.buffer).exp()


def written_twice(module: Any, x: Tensor) -> Tensor:
    y = (x * module.buffer).exp()
    module.buffer.mul_(2)
    z = (x * module.buffer).sin()
    module.buffer.add_(1)
    return y + z


BODIES: list[Callable[[Any, Tensor], Tensor]] = [
    read_then_written, written_then_read, only_written, moving_average, written_twice,
    lambda module, x: module.norm(x).relu(),
    lambda module, x: (x * module.p).tanh(),
]  # fmt: skip
Call = Callable[[Tensor], Tensor]


def twice_forward(call: Call, module: Any, x: Tensor) -> None:
    (call(x).sum() + call(x * 2).sum()).backward()


def in_the_other_order(call: Call, module: Any, x: Tensor) -> None:
    a, b = call(x).sum(), call(x).sum()
    b.backward(retain_graph=True)
    a.backward()


def read_by_eager_before(call: Call, module: Any, x: Tensor) -> None:
    before = (module.buffer[1:] * module.p[1:]).sum()
    (before + call(x).sum()).backward()


def buffer_written(call: Call, module: Any, x: Tensor) -> None:
    y = call(x)
    module.buffer[1:].mul_(2)
    y.sum().backward()


def statistics_written(call: Call, module: Any, x: Tensor) -> None:
    y = call(x)
    module.norm.running_mean.mul_(2)
    module.norm.running_var.mul_(2)
    y.sum().backward()


@torch.no_grad()
def _update(module: Any) -> None:
    for one in module.parameters():
        one.mul_(2)


def parameters_written(call: Call, module: Any, x: Tensor) -> None:
    y = call(x)
    _update(module)
    y.sum().backward()


def kept_graph(call: Call, module: Any, x: Tensor) -> None:
    y = call(x)
    for _ in range(2):
        y.sum().backward(retain_graph=True)


def written_between_two_backwards(call: Call, module: Any, x: Tensor) -> None:
    y = call(x)
    y.sum().backward(retain_graph=True)
    _update(module)
    y.sum().backward()


def without_gradients_between(call: Call, module: Any, x: Tensor) -> None:
    y = call(x)
    with torch.no_grad():
        call(x).mul_(2)
    y.sum().backward()


def accumulated(call: Call, module: Any, x: Tensor) -> None:
    for _ in range(3):
        call(x).sum().backward(retain_graph=True)


SCENES = [
    twice_forward, in_the_other_order, read_by_eager_before, buffer_written, statistics_written,
    parameters_written, kept_graph, written_between_two_backwards, without_gradients_between,
    accumulated,
]  # fmt: skip


def module_step(made: Any, module: Any, scene: Any) -> list[Tensor | None]:
    leaf = torch.linspace(0.1, 1, 24).view(4, 6).requires_grad_()
    for one in module.parameters():
        one.grad = None
    scene(made, module, leaf)
    grads = [one.grad for one in (leaf, *module.parameters())]
    return [*grads, *(one.clone() for one in module.buffers())]


MODULE_WAYS: dict[str, Callable[[Any], Any]] = {
    **{name: way for name, way in WAYS.items() if "graphs" not in name},
    "graphs": partial(in_graphs, with_fuser),
    "graphs, thunder_fuser.jit": partial(in_graphs, thunder_fuser.jit),
}


@pytest.mark.parametrize("way", MODULE_WAYS)
@pytest.mark.parametrize("body", BODIES)
def test_buffers_and_parameters(body: Any, way: str) -> None:
    eager_module, own_module = Buffered(body), Buffered(body)
    start = {name: one.clone() for name, one in own_module.state_dict().items()}
    own = MODULE_WAYS[way](own_module)
    for _ in range(2):  # a graph is captured at the second call
        own(torch.rand(4, 6, requires_grad=True)).sum().backward()

    def run(made: Any, module: Any, scene: Any) -> Outcome:
        module.load_state_dict(start)
        return outcome(partial(module_step, made, module, scene))

    for scene in SCENES:
        eager = run(eager_module, eager_module, scene)
        found = run(own, own_module, scene)
        assert not found.error or eager.error, (scene, found.error)
        with of_the_forward():
            truth = run(eager_module, eager_module, scene)
        assert found.error or found.agrees(truth), (scene, found, truth)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, nullcontext])
@pytest.mark.parametrize("jit", [with_fuser, thunder_fuser.jit])
def test_results_without_a_backward_can_be_written(jit: Any, mode: Any) -> None:
    x = torch.rand(4, 6)
    made = in_graphs(jit, of(lambda x: x.exp(), lambda t: (t, t.view(-1))))
    for _ in range(3):
        with mode():
            whole, view = made(x)
            view.mul_(2)
            torch.testing.assert_close(whole, 2 * x.exp())


def test_thunderfx() -> None:
    x = torch.rand(4, 6, requires_grad=True)
    y = thunderfx(lambda x: x.softmax(-1), executors=[fuser])(x)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_results_of_a_graph_that_share_memory_share_a_version() -> None:
    """As without graphs: else neither autograd nor anybody else sees a write to the other one."""
    x, w = torch.rand(4, 6), torch.rand(6, 5)
    function = of(lambda x, w: x @ w, lambda t: (t.view(-1), t, t.t()))
    made = in_graphs(with_fuser, function)
    first, whole, turned = [made(x, w) for _ in range(3)][-1]
    version = whole._version
    turned.add_(1)
    assert [one._version for one in (first, whole, turned)] == [version + 1] * 3
    assert first._base is whole
    assert turned._base is whole
    torch.testing.assert_close(turned, (x @ w + 1).t())


@pytest.mark.parametrize(
    "use",
    [lambda t: (t, t.conj()), lambda t: (t.conj(), t.conj().t()), lambda t: (t[:2], t[1:], t)],
)
def test_a_write_reaches_the_other_results_of_a_graph(use: Any) -> None:
    x, w = torch.randn(2, 4, 4, dtype=torch.complex64)
    function = of(lambda x, w: x @ w, use)
    made = in_graphs(with_fuser, function)
    found, expected = [made(x, w) for _ in range(3)][-1], function(x, w)
    for results in (found, expected):
        results[0].mul_(2)
    torch.testing.assert_close(found, expected)


def test_the_conjugate_of_real_numbers_keeps_nothing_for_the_backward() -> None:
    """Left to torch it kept its argument, and a write into the result was refused."""
    x = torch.rand(2, 3, requires_grad=True)
    for jit in (with_fuser, thunder_fuser.jit):
        y, z = jit(of(lambda x: x * 2, lambda y: (y, torch.conj(y))))(x)
        assert y is z
        y.relu_()
        assert torch.equal(torch.autograd.grad(z.sum(), x)[0], torch.full_like(x, 2))


def test_what_nobody_reads_asks_for_no_backward() -> None:
    """`type_as` reads its second argument until torch's executor has claimed it as `Tensor.to`."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        other = torch.sort(x @ w)[0].type_as(x)
        return torch.sort(torch.sort(x * 2)[0].type_as(other))[0]

    x, w = torch.rand(4, 8), torch.rand(8, 8, requires_grad=True)
    for jit in (with_fuser, thunder_fuser.jit):
        jitted = jit(function)
        with torch.inference_mode():
            assert torch.equal(jitted(x, w), function(x, w))
        assert not thunder.last_backward_traces(jitted)
