# SPDX-License-Identifier: Apache-2.0
"""The option cuda_graphs on a CUDA device: results to the bit, random numbers, streams, memory."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from helpers.graph_scenarios import SCENARIOS, Block, Scenario, equal, step
from thunder.extend import OperatorExecutor

import thunder_fuser
from thunder_fuser import fuser
from thunder_fuser.demo.accuracy import results
from thunder_fuser.demo.blocks import BLOCKS, SMALL, make_block, make_input
from thunder_fuser.errors import GraphWarning
from thunder_fuser.executors.cuda_graphs.graph import LEAST_HANDED
from thunder_fuser.executors.cuda_graphs.transform import cuda_graphs_of, pieces_in
from thunder_fuser.explain.jitted import final_traces, jit

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
]

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _no_warning() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", GraphWarning)
        yield


def in_graphs(function: Any, **given: Any) -> Any:
    return jit(function, strict=True, cuda_graphs=True, **given)


def replays(jitted: Any) -> int:
    """Of the traces that ran last."""
    pieces = [one for trace in final_traces(jitted) for one in pieces_in(trace.bound_symbols)]
    return sum(piece.counts.replayed for piece in pieces)


@pytest.mark.parametrize("handed", ["copies", "all_handed"])
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_as_without_graphs(
    scenario: Scenario, handed: str, request: pytest.FixtureRequest
) -> None:
    if handed == "all_handed":
        request.getfixturevalue(handed)
    made = []

    def pair(function: Any, **given: Any) -> tuple[Any, Any]:
        made.append(in_graphs(function, **given))
        return made[-1], jit(function, strict=True)

    scenario(pair, CUDA)
    assert any(replays(one) for one in made if thunder.compile_stats(one).calls)


@pytest.mark.usefixtures("all_handed")
@pytest.mark.parametrize("name", ["training", "dropout", "several_forwards", "threads"])
def test_with_the_short_way(name: str) -> None:
    """The same of thunder_fuser.jit."""
    made = []

    def pair(function: Any, **given: Any) -> tuple[Any, Any]:
        made.append(thunder_fuser.jit(function, fuser_cuda_graphs=True))
        return made[-1], thunder_fuser.jit(function)

    SCENARIOS[name](pair, CUDA)
    assert all(map(replays, made))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_train(name: str, dtype: torch.dtype) -> None:
    block = make_block(name, SMALL, dtype, "cuda")
    found, expected = in_graphs(block), jit(block, strict=True)
    for _ in range(4):
        x, gradient = make_input(SMALL, dtype, CUDA)
        sample = torch.randn_like(x), torch.randn_like(gradient)
        wanted = results(expected, block, *sample)
        got = results(found, block, *sample).items()
        assert not [key for key, one in got if not torch.equal(one, wanted[key])]
        del got  # else the gradients get memory of their own
    assert replays(found) >= 4  # forward and backward


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_attention_with_dropout(dropout: float) -> None:
    """torch's own random numbers in a graph, behind and before those of regions."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q = F.dropout(q * 1.5, 0.1)
        return F.dropout(F.scaled_dot_product_attention(q, k, v, dropout_p=dropout), 0.1) * 2

    found, expected = in_graphs(attend), jit(attend, strict=True)
    for seed in range(4):
        qkv = [torch.randn(2, 4, 64, 32, device=CUDA, dtype=torch.bfloat16) for _ in range(3)]
        both = []
        for function in (found, expected):
            own = [one.clone().requires_grad_() for one in qkv]
            torch.manual_seed(seed)
            out = function(*own)
            gradients = torch.autograd.grad(out.float().square().sum(), own)
            both.append([out.detach(), *gradients, torch.rand(4, device=CUDA)])
        equal([both[0][0], both[0][-1]], [both[1][0], both[1][-1]])
        for one, other in zip(both[0][1:-1], both[1][1:-1], strict=True):
            # torch's backward may add with atomics.
            torch.testing.assert_close(one, other, atol=2e-2, rtol=2e-2)
    assert replays(found)


@pytest.mark.usefixtures("all_handed")
def test_streams() -> None:
    """Replays on several streams, without waiting for each other on the host."""
    block = Block().to(CUDA)
    found, expected = in_graphs(block), jit(block, strict=True)
    streams = [torch.cuda.Stream() for _ in range(3)]
    data = [torch.randn(512, 16, device=CUDA) for _ in range(24)]
    wanted = [step(expected, x, block) for x in data]
    torch.cuda.synchronize()
    got: list[list[torch.Tensor]] = []
    for at, x in enumerate(data):
        with torch.cuda.stream(streams[at % 3]):
            got.append(step(found, x, block))
    torch.cuda.synchronize()
    for one, other in zip(got, wanted, strict=True):
        equal(one, other)
    # What is kept takes a second and a third graph, and the gradients memory of their own.
    assert replays(found) >= 2 * len(data) - 11


def test_inside_of_another_capture() -> None:
    """Under a capture of the user's the calls are captured there."""
    block = Block().to(CUDA).eval()
    found = in_graphs(block)
    x = torch.randn(4, 16, device=CUDA)
    with torch.no_grad():
        for _ in range(3):
            found(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = found(x)
        for _ in range(3):
            x.normal_()
            graph.replay()
            assert torch.equal(result, found(x))


def test_what_cannot_be_captured_runs_with_one_warning() -> None:
    """And leaves torch's generator and memory as they were."""
    host = OperatorExecutor("reads_on_the_host")
    summed = host.register_operator(
        "scaled_by_sum", like=lambda x: x * 1.0, fn=lambda x: x * x.sum().item()
    )

    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (summed(x @ w) @ w).relu() + 1

    found = thunder.jit(
        scaled, executors=[host, fuser], fuser_strict=True, fuser_cuda_graphs=True
    )
    other = in_graphs(lambda x: F.dropout(x @ x, 0.5) @ x)
    x = torch.randn(16, 16, device=CUDA)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(4):
            wanted = ((x @ x) * (x @ x).sum() @ x).relu() + 1
            torch.testing.assert_close(found(x, x), wanted, atol=1e-2, rtol=1e-4)
    (warning,) = (one for one in told if issubclass(one.category, GraphWarning))
    assert "scaled_by_sum" in str(warning.message)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    for _ in range(3):
        torch.manual_seed(0)
        one, rest = other(x), torch.rand(8, device=CUDA)
        torch.manual_seed(0)
        equal([other(x), torch.rand(8, device=CUDA)], [one, rest])
    assert replays(other)


def test_settings_of_torch() -> None:
    """A graph is of the precision of products at its capture; another precision is another."""
    x = torch.randn(256, 256, device=CUDA)

    def product(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).sin() @ x

    found, expected = in_graphs(product), jit(product, strict=True)
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "highest", "high"):
            torch.set_float32_matmul_precision(precision)
            for _ in range(3):
                equal([found(x)], [expected(x)])
    finally:
        torch.set_float32_matmul_precision(before)


def test_memory_and_graphs_are_bounded() -> None:
    """2,000 calls over 200 shapes, some of which come back soon enough to be captured."""
    block = Block().to(CUDA).eval()
    found = in_graphs(block, max_cuda_graphs=8)
    used = []
    with torch.no_grad():
        for turn in range(5):
            for rows in range(1, 201):
                x = torch.randn(rows, 16, device=CUDA)
                for _ in range(2):
                    y = found(x)
            torch.cuda.synchronize()
            del x, y
            gc.collect()
            used.append(torch.cuda.memory_allocated())
            assert turn == 0 or used[-1] <= used[0] + (8 << 20), used
    owner = cuda_graphs_of(found)
    assert owner and all(len(graphs.kept) <= 8 for graphs in owner.graphs.values())


def test_large_results_lie_in_the_graph() -> None:
    """No gradient of a weight is copied."""
    layers = [torch.nn.Linear(1024, 1024, bias=False, device=CUDA) for _ in range(4)]
    model = torch.nn.Sequential(layers[0], torch.nn.GELU(), layers[1], torch.nn.GELU(), *layers[2:])
    found, expected = in_graphs(model), jit(model, strict=True)
    x = torch.randn(64, 1024, device=CUDA)
    places = []
    for _ in range(6):
        both = []
        for function in (found, expected):
            model.zero_grad()
            function(x).square().sum().backward()
            both.append([p.grad for p in model.parameters()])
        equal(*both)
        places.append([p.data_ptr() for p in both[0] if p.nbytes >= LEAST_HANDED])
        del both
    assert places[-1] == places[-2] and len(places[-1]) == 4


def test_a_backward_lies_in_the_memory_of_its_forward() -> None:
    """The forward saves 192 MiB, and there are 192 MiB of gradients."""
    layers = [torch.nn.Linear(2048, 2048, bias=False, device=CUDA) for _ in range(12)]
    model = torch.nn.Sequential(*(each for one in layers for each in (one, torch.nn.Tanh())))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    found, expected = in_graphs(loss), jit(loss, strict=True)

    def gradients(function: Any, x: torch.Tensor) -> list[torch.Tensor]:
        model.zero_grad()
        function(x).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        return grads

    for _ in range(4):
        gradients(found, torch.randn(2048, 2048, device=CUDA))
    (forward,) = pieces_in(final_traces(found)[0].bound_symbols)
    (graph,) = forward.counts.graphs
    spans = graph._pool.spans()
    assert sum(end - start for start, end in spans) < 320 << 20
    for _ in range(3):
        x = torch.randn(2048, 2048, device=CUDA)
        both = [gradients(one, x) for one in (found, expected)]
        equal(*both)
        assert all(any(a <= p.data_ptr() < b for a, b in spans) for p in both[0])
        del both
    kept = gradients(found, x)
    before = [one.clone() for one in kept]
    for _ in range(4):
        equal(gradients(found, x), before)
    equal(kept, before)


def test_functions_in_turn_share_a_pool() -> None:
    """Graphs of one function overwrite the memory of another's: results do not change."""
    blocks = [Block(0.2 * at).to(CUDA) for at in range(3)]
    pairs = [(in_graphs(one), jit(one, strict=True), one) for one in blocks]
    for seed in range(4):
        x = torch.randn(64, 16, device=CUDA)
        got = [(step(a, x, own, seed), step(b, x, own, seed)) for a, b, own in pairs]
        for one, other in got:
            equal(one, other)


def test_a_function_that_is_gone_frees_its_graphs() -> None:
    x = torch.randn(1 << 10, 1 << 10, device=CUDA)
    before = None
    for _ in range(4):
        found = in_graphs(lambda x: (x @ x).sin() @ x)
        for _ in range(3):
            found(x)
        del found
        gc.collect()
        torch.cuda.synchronize()
        now = torch.cuda.memory_allocated()
        before = now if before is None else before
        assert now <= before + (1 << 20)


def test_a_write_to_one_of_two_results_in_one_memory_is_found() -> None:
    """As without graphs: the copies of a replay are views of one tensor."""
    x, w = (torch.rand(16, 16, device=CUDA, requires_grad=True) for _ in range(2))

    def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x @ w).exp() @ w
        return y, y.view(-1)

    jitted = in_graphs(both)
    for _ in range(3):
        whole, view = jitted(x, w)
    assert replays(jitted)
    assert view._base is whole
    whole.mul_(2)
    with pytest.raises(RuntimeError, match="is a view"):
        (whole.sum() + view.sum()).backward()
