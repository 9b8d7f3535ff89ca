# SPDX-License-Identifier: Apache-2.0
"""What is captured, when, and how results go out: on the CPU, with a recorder in place of CUDA."""

from __future__ import annotations

import gc
import re
import warnings
import weakref
from typing import Any

import pytest
import thunder
import torch
from helpers.graph_scenarios import SCENARIOS, Cached, Scenario
from helpers.recorder import CpuRecorder
from hypothesis import given
from hypothesis import strategies as st
from thunder.core.prims import PrimIDs
from thunder.transforms.cudagraph import CUDAGraphTransform
from torch import nn

import thunder_fuser
from thunder_fuser import fuser
from thunder_fuser.errors import GraphWarning, OptionError
from thunder_fuser.executors.cuda_graphs import transform
from thunder_fuser.executors.cuda_graphs.graph import Graph, compact
from thunder_fuser.executors.cuda_graphs.transform import (
    CudaGraphs,
    _apart,
    on_host,
    piece_of,
    pieces_in,
)
from thunder_fuser.explain import report
from thunder_fuser.explain.jitted import final_traces, jit
from thunder_fuser.explain.reports import captured_in
from thunder_fuser.runtime.cuda_graphs import memory_like
from thunder_fuser.trace.proxies import makes

CPU = torch.device("cpu")


def in_graphs(function: Any, recorder: CpuRecorder, **given: Any) -> Any:
    """Jitted with the fuser, its calls on the CPU replayed by a recorder."""
    keywords = {f"fuser_{name}": value for name, value in given.items()}
    return thunder.jit(
        function, executors=[fuser], transforms=[CudaGraphs(recorder=recorder)],
        fuser_strict=True, fuser_cuda_graphs=True, **keywords,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["training", "dropout", "several_forwards"])
def test_with_the_short_way(name: str) -> None:
    """The same of thunder_fuser.jit, which connects to autograd in its own way."""
    recorder = CpuRecorder()

    def pair(function: Any, **given: Any) -> tuple[Any, Any]:
        graphs = CudaGraphs(recorder=recorder)
        found = thunder_fuser.jit(function, transforms=[graphs], fuser_cuda_graphs=True)
        return found, thunder_fuser.jit(function)

    SCENARIOS[name](pair, CPU)
    assert any(one.replays for one in recorder.recordings if one.keeps)


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).sin() @ w


def matrices(rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 4), torch.randn(4, 4)


def replays(recorder: CpuRecorder) -> list[int]:
    return [one.replays for one in recorder.recordings]


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_as_without_graphs(scenario: Scenario) -> None:
    recorder = CpuRecorder()
    scenario(lambda f, **given: (in_graphs(f, recorder, **given), jit(f, strict=True)), CPU)
    assert any(one.replays for one in recorder.recordings)


@pytest.mark.usefixtures("all_handed")
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_as_without_graphs_where_no_result_is_copied(scenario: Scenario) -> None:
    recorder = CpuRecorder()
    scenario(lambda f, **given: (in_graphs(f, recorder, **given), jit(f, strict=True)), CPU)
    assert any(one.replays for one in recorder.recordings)


# ------------------------------------------------------------------------------ when it captures


def test_the_second_call_captures() -> None:
    recorder = CpuRecorder()
    found = in_graphs(product, recorder)
    for wanted in ([], [1], [2], [3]):
        found(*matrices())
        assert replays(recorder) == wanted
    (piece,) = pieces_in(final_traces(found)[0].bound_symbols)
    assert (piece.counts.plain, piece.counts.captured, piece.counts.replayed) == (1, 1, 3)


def test_the_least_recently_replayed_is_evicted() -> None:
    recorder = CpuRecorder()
    found = in_graphs(product, recorder, max_cuda_graphs=2)
    for rows in (2, 2, 3, 3, 2, 4, 4, 2):  # 4 evicts 3
        found(*matrices(rows))
    assert replays(recorder) == [3, 1, 1]
    found(*matrices(3))  # it was forgotten, and is called for the first time again
    assert replays(recorder) == [3, 1, 1]
    found(*matrices(3))
    assert replays(recorder) == [3, 1, 1, 1]


def test_more_shapes_in_turn_than_graphs_capture_none() -> None:
    recorder = CpuRecorder()
    found = in_graphs(product, recorder, max_cuda_graphs=3)
    for rows in (2, 3, 4, 5) * 4:
        found(*matrices(rows))
    assert recorder.recordings == []


def test_a_parameter_that_moves_is_another_graph() -> None:
    recorder = CpuRecorder()
    linear = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    found, x = in_graphs(linear, recorder), torch.randn(2, 4)
    with torch.no_grad():
        for wanted in ([], [1], [2]):
            found(x)
            assert replays(recorder) == wanted
        linear[0].weight.add_(1)
        assert torch.equal(found(x), jit(linear)(x))
        assert replays(recorder) == [3]
        linear[0].weight.data = linear[0].weight.data.clone()
        for wanted in ([3], [3, 1]):
            assert torch.equal(found(x), jit(linear)(x))
            assert replays(recorder) == wanted


def test_settings_of_torch_are_part_of_the_key() -> None:
    recorder = CpuRecorder()
    found = in_graphs(product, recorder)
    for recorder.value, wanted in (("a", []), ("a", [1]), ("b", [1]), ("b", [1, 1]), ("a", [2, 1])):
        found(*matrices())
        assert replays(recorder) == wanted


def test_inside_of_a_capture_the_calls_run() -> None:
    recorder = CpuRecorder()
    found = in_graphs(product, recorder)
    for _ in range(2):
        found(*matrices())
    recorder.capturing = True
    found(*matrices())
    assert replays(recorder) == [1]


# ----------------------------------------------------------- what a forward saves for its backward


def trained(found: Any, **given: Any) -> torch.Tensor:
    x, w = matrices()
    w.requires_grad_()
    found(x, w).sum().backward(**given)
    assert w.grad is not None
    return w.grad


def test_what_only_the_backward_reads_stays_in_the_graph() -> None:
    recorder = CpuRecorder()
    found = in_graphs(product, recorder)
    for wanted in ([], [1], [2, 1], [3, 2], [4, 3]):
        trained(found)
        assert replays(recorder) == wanted
    assert [one.keeps for one in recorder.recordings] == [True, True]
    (piece,) = pieces_in(final_traces(found)[0].bound_symbols)
    forward, _ = piece.graphs.kept.values()
    assert forward.places and not forward.is_in_use()


def test_a_graph_whose_results_are_saved_is_not_replayed() -> None:
    """Three forwards are pending at most, so there are three graphs of it."""
    recorder = CpuRecorder()
    found, expected = in_graphs(product, recorder), jit(product)
    for _ in range(8):
        inputs = [(torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)) for _ in range(3)]
        both = []
        for function in (found, expected):
            results = [function(x, w) for x, w in inputs]
            grads = [
                torch.autograd.grad(one.sum(), w)[0]
                for one, (_, w) in zip(results, inputs, strict=True)
            ]
            both.append(grads)
        assert all(map(torch.equal, *both))
        del both, grads, results  # else the gradients get memory of their own
    assert len(graphs_in(found)) == len(graphs_in(found, backward=True)) == 3
    before = sum(replays(recorder))
    for x, w in inputs:
        found(x, w)  # nobody has kept anything, so one of them is enough
    assert sum(replays(recorder)) == before + 3
    assert len(recorder.recordings) == 6


def test_retain_graph_keeps_it() -> None:
    recorder = CpuRecorder()
    found = in_graphs(product, recorder)
    for _ in range(4):
        trained(found)
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    total = found(x, w).sum()
    (first,) = torch.autograd.grad(total, w, retain_graph=True)
    for _ in range(4):
        trained(found)
    (second,) = torch.autograd.grad(total, w)
    assert torch.equal(first, second)


def test_saved_tensors_that_a_hook_keeps_are_not_overwritten() -> None:
    recorder = CpuRecorder()
    found = in_graphs(product, recorder)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def pack(one: torch.Tensor) -> torch.Tensor:
        kept.append((one, one.clone()))
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        for _ in range(6):
            trained(found)
    assert all(torch.equal(one, copy) for one, copy in kept)


# ------------------------------------------------------------------------- what callers get


def graphs_in(jitted: Any, backward: bool = False) -> tuple[Graph, ...]:
    """The graphs that are kept of the only piece of a pass."""
    (piece,) = pieces_in(final_traces(jitted)[backward].bound_symbols)
    return (*sorted(piece.counts.graphs, key=id),)


def test_a_small_result_is_copied() -> None:
    recorder = CpuRecorder()
    found = in_graphs(product, recorder)
    kept = [found(*matrices()) for _ in range(6)]
    assert len({one.data_ptr() for one in kept}) == 6
    assert [(one.replays, one.keeps) for one in recorder.recordings] == [(5, False)]


def test_a_large_result_is_not_copied() -> None:
    recorder = CpuRecorder()
    found = in_graphs(product, recorder)
    places = [found(*matrices(1 << 12)).data_ptr() for _ in range(6)]
    assert len({*places[1:]}) == 1
    assert [(one.replays, one.keeps) for one in recorder.recordings] == [(5, True)]


def test_calls_are_told_what_is_kept() -> None:
    """Around the calls whose results somebody holds after a replay, and what these may view."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w).sin() @ w  # the last product alone is no view, and not saved
        return (y.t() @ x).reshape(-1)

    found = in_graphs(function, CpuRecorder())
    x, w = torch.randn(128, 128), torch.randn(128, 128)
    found(x, w)
    (call,) = (b for b in final_traces(found)[0].bound_symbols if piece_of(b))
    names = [bsym.sym.name for bsym in call.subsymbols]
    told = [*_apart(call.subsymbols, {makes(call)[0].name})]
    kept = [bsym.args[0] for bsym in told if bsym.sym.name == "keep"]
    inside = names[-2:]  # the product, and the reshape of it
    assert kept == [True, False] and names[-2] == "matmul"
    assert [bsym.sym.name for bsym in told] == [*names[:-2], "keep", *inside, "keep"]
    assert [*_apart(call.subsymbols, set())] == list(call.subsymbols)


@pytest.mark.usefixtures("all_handed")
def test_results_that_are_kept_are_copied_by_a_third_graph() -> None:
    recorder = CpuRecorder()
    found, expected = in_graphs(product, recorder), jit(product)
    inputs = [matrices() for _ in range(12)]
    kept = [found(*one) for one in inputs]
    assert all(torch.equal(one, expected(*x)) for one, x in zip(kept, inputs, strict=True))
    # A new graph's first call runs one by one.
    assert [(one.replays, one.keeps) for one in recorder.recordings] == [
        (1, True), (1, True), (7, False)
    ]  # fmt: skip
    (row,) = captured_in(found)
    assert (row.graphs, row.copying, row.bytes) == (3, 1, 3 << 20)
    del kept
    for _ in range(3):
        found(*inputs[0])
    assert replays(recorder) == [4, 1, 7]  # nobody holds the first one's results now


@pytest.mark.usefixtures("all_handed")
def test_gradients_that_stay_are_not_overwritten_and_copy_nothing() -> None:
    """The first lies where the forward writes: from then on gradients have memory of their own."""
    recorder = CpuRecorder()
    found = in_graphs(product, recorder)
    w = torch.randn(4, 4, requires_grad=True)
    own = w.detach().clone().requires_grad_()
    for at in range(12):
        x = torch.randn(4, 4)
        found(x, w).sum().backward()
        product(x, own).sum().backward()
        torch.testing.assert_close(w.grad, own.grad)
        if at == 3:
            w.grad = own.grad = None  # the next one stays in the graph's memory
    (forward,), (backward,) = graphs_in(found), graphs_in(found, backward=True)
    assert (forward.handed, backward.handed) == ((2,), (0,))
    assert takes(recorder) == [0, 2, 0, 2]
    assert [len(one.pool.users) for one in recorder.recordings if one.pool] == [2, 2, 1, 1]


# ------------------------------------------------------------------ what a backward's graph takes


def takes(recorder: CpuRecorder) -> list[int]:
    return [len(one.freed) for one in recorder.recordings]


def test_a_backward_takes_what_its_forward_saved() -> None:
    recorder = CpuRecorder()
    found = in_graphs(product, recorder)
    for _ in range(5):
        trained(found)
    assert takes(recorder) == [0, 2]


def test_a_backward_that_runs_again_takes_nothing() -> None:
    recorder = CpuRecorder()
    found, expected = in_graphs(product, recorder), jit(product)
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    for _ in range(6):
        total = found(x, w).sum()
        (wanted,) = torch.autograd.grad(expected(x, w).sum(), w)
        for again in (True, True, False):
            is_equal = torch.equal(torch.autograd.grad(total, w, retain_graph=again)[0], wanted)
            assert is_equal
    # Two backwards before the forward was captured; the forward; those that keep, and the last one.
    assert takes(recorder) == [0, 0, 0, 2]


def trained_as_expected(function: Any, *sizes: int) -> tuple[CpuRecorder, Any]:
    """The gradients of all arguments but the first, of new square matrices at each call."""
    recorder = CpuRecorder()
    found = in_graphs(function, recorder, rematerialization="none")
    expected = jit(function, rematerialization="none")
    for _ in range(6):
        x, *weights = (torch.randn(size, size) for size in sizes)
        for one in weights:
            one.requires_grad_()
        sums = [call(x, *weights).sum() for call in (found, expected)]
        gradients = [torch.autograd.grad(one, weights) for one in sums]
        assert all(map(torch.equal, *gradients))
        del sums, gradients
    return recorder, found


def test_of_several_pieces_of_a_backward_one_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward's memory is lent once, and a value stays where a later piece reads it."""
    monkeypatch.setattr(transform, "_LEAST", 1)
    monkeypatch.setitem(transform._ON_HOST, PrimIDs.MATMUL, "this test says so")

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x * w).sin()
        return ((y @ w) * y).cos()

    recorder, found = trained_as_expected(function, 4, 4)
    assert len(pieces_in(final_traces(found)[1].bound_symbols)) > 1
    takers = [id(one.pool) for one in recorder.recordings if one.freed]
    assert takers and len(takers) == len({*takers})


def test_a_value_of_which_another_piece_saves_a_view_is_not_taken() -> None:
    """Its memory would be free after the last reader of the one, and before that of the other."""

    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = x @ w
        b = ((x @ w) @ (x @ w)) @ (y @ w)  # saves most, so the first piece lends
        number = (x[0, 0] * 0 + 2).item()
        q = y.reshape(2, 8) @ v
        return q.sum() + (q * q).sum() + (b @ w).sum() * number

    recorder, _ = trained_as_expected(function, 4, 4, 8)
    assert sum(takes(recorder))


@pytest.mark.parametrize("is_outside", [False, True])
def test_a_value_with_a_view_outside_of_the_piece_is_not_taken(
    is_outside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the view may come later."""
    monkeypatch.setattr(transform, "_LEAST", 1)
    if is_outside:
        monkeypatch.setitem(transform._ON_HOST, PrimIDs.TRANSPOSE, "this test says so")

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        return y.sin() + y @ w

    _, found = trained_as_expected(function, 4, 4)
    pieces = pieces_in(final_traces(found)[1].bound_symbols)
    assert any(each.is_saved for piece in pieces for each in piece.inputs)
    freed = [each.name for piece in pieces for each in piece.inputs if each.is_freed]
    assert bool(freed) is not is_outside


@pytest.mark.usefixtures("all_handed")
def test_a_forward_that_saves_more_than_it_hands_out_copies_instead_of_a_second_graph() -> None:
    """A name of a loop holds the last result while the next forward runs."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = (x @ w).sin()
        return x[:1] @ w

    recorder = CpuRecorder()
    found, expected = in_graphs(function, recorder), jit(function)
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    for _ in range(12):
        result, wanted = found(x, w), expected(x, w)
        gradients = [torch.autograd.grad(one.sum(), w)[0] for one in (result, wanted)]
        assert torch.equal(*gradients) and torch.equal(result, wanted)
        del gradients
    (forward,), (backward,) = graphs_in(found), graphs_in(found, backward=True)
    assert (forward.handed, backward.handed) == ((), (0,))
    owner = pieces_in(final_traces(found)[0].bound_symbols)[0].graphs
    assert len(owner.kept) == 2  # the first forward's, and its backward's, are gone


# --------------------------------------------------------------------------------- what it leaves


def the_warning(jitted: Any, expected: Any) -> warnings.WarningMessage:
    """The only warning of graphs in four calls, whose results are those expected."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            args = matrices()
            assert torch.equal(jitted(*args), expected(*args))
    (warning,) = (each for each in caught if issubclass(each.category, GraphWarning))
    return warning


def test_what_cannot_be_captured_runs_with_one_warning() -> None:
    recorder = CpuRecorder(fails="not while a stream is captured")
    found, expected = in_graphs(product, recorder), jit(product)
    one = the_warning(found, expected)
    assert "cudaGraph0 (matmul*2 thunderFusion0)" in str(one.message)
    assert "not while a stream is captured" in str(one.message)
    assert one.filename == __file__


def test_what_cannot_be_captured_now_is_captured_later() -> None:
    recorder = CpuRecorder(busy=2)
    found, expected = in_graphs(product, recorder), jit(product)
    one = the_warning(found, expected)
    assert "the generator is needed elsewhere" in str(one.message)
    (row,) = captured_in(found)
    assert (row.state, row.graphs, row.reason) == (
        "not captured yet", 0, "CaptureBusyError: the generator is needed elsewhere"
    )  # fmt: skip
    for _ in range(4):
        args = matrices()
        assert torch.equal(found(*args), expected(*args))
    (row,) = captured_in(found)
    assert (row.state, row.graphs, row.reason) == ("replayed", 1, "")


def test_a_number_that_the_host_reads_cuts() -> None:
    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w).sin() @ w
        return (y * y.sum().item()) @ w + 1

    recorder = CpuRecorder()
    found = in_graphs(scaled, recorder)
    for _ in range(4):
        found(*matrices())
    trace = final_traces(found)[0]
    assert [one.name for one in pieces_in(trace.bound_symbols)] == ["cudaGraph0", "cudaGraph1"]
    assert [(one.name, one.reason) for one in on_host(trace, "cpu")] == [
        ("item", "it reads a number from the device")
    ]
    assert replays(recorder) == [3]  # the second piece gets another number at each call


def test_the_report_says_what_is_captured() -> None:
    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w).sin() @ w
        return (y * y.sum().item()) @ w + 1

    found = in_graphs(scaled, CpuRecorder())
    for _ in range(3):
        found(*matrices())
    text = str(report(found))
    for line in (
        r"CUDA graph +pass +state +calls +graphs +MiB +replays +why",
        r"cudaGraph0 +forward +replayed +\d +1 +1.0 +2\n",
        r"cudaGraph1 +forward +not captured yet +3 +0 +0.0 +0 +the second call with the same",
        r"item +forward +in no graph +1 +it reads a number from the device",
    ):
        assert re.search(line, text), text
    assert report(jit_and_call(scaled)).graphs == ()


def jit_and_call(function: Any) -> Any:
    found = jit(function)
    found(*matrices())
    return found


def test_a_draw_stays_outside_and_gives_tensors() -> None:
    def dropped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x @ w, 0.5) @ w

    found = in_graphs(dropped, CpuRecorder())
    found(*matrices())
    trace = final_traces(found)[0]
    assert [(one.name, one.reason) for one in on_host(trace, "cpu")] == [
        ("draw_random_state", "it draws from torch's generator")
    ]
    (draw,) = (one for one in trace.bound_symbols if one.sym.name == "draw_random_state")
    assert [tuple(one.shape) for one in draw.output] == [(), ()]


def test_one_call_alone_is_no_piece() -> None:
    found = in_graphs(lambda x: x.sin() + 1, CpuRecorder())
    found(torch.randn(4))
    (trace,) = final_traces(found)
    assert pieces_in(trace.bound_symbols) == []
    assert [one.reason for one in on_host(trace, "cpu")] == ["fewer than 2 launches in a row"]


def test_views_alone_are_no_piece() -> None:
    found = in_graphs(lambda x: x.t().unsqueeze(0)[0, 1:], CpuRecorder())
    found(torch.randn(4, 4))
    (trace,) = final_traces(found)
    assert pieces_in(trace.bound_symbols) == []
    assert on_host(trace, "cpu") == ()


def test_on_the_cpu_the_option_changes_nothing() -> None:
    args = matrices()
    found = jit(product, cuda_graphs=True)
    assert torch.equal(found(*args), jit(product)(*args))
    (trace,) = final_traces(found)
    assert pieces_in(trace.bound_symbols) == []


def test_one_list_of_transforms_for_two_functions() -> None:
    """The transform of one is not the other's."""
    transforms: list[Any] = []
    first, second = (
        thunder.jit(product, executors=[fuser], transforms=transforms, fuser_cuda_graphs=on)
        for on in (True, False)
    )
    args = matrices()
    assert torch.equal(first(*args), second(*args))
    assert [type(one) for one in transforms] == [CudaGraphs]
    names = [trace.get_provenance().pss for one in (first, second) for trace in final_traces(one)]
    assert "CUDA graphs" not in names[1]


def test_not_beside_the_transform_of_thunder() -> None:
    found = thunder.jit(
        product, executors=[fuser], transforms=[CUDAGraphTransform()], fuser_cuda_graphs=True
    )
    with pytest.raises(OptionError, match="no CUDAGraphTransform among the transforms, got one"):
        found(*matrices())


def test_a_function_that_is_gone_leaves_nothing() -> None:
    found = in_graphs(product, CpuRecorder())
    for _ in range(3):
        found(*matrices())
    (piece,) = pieces_in(final_traces(found)[0].bound_symbols)
    gone = weakref.ref(piece.graphs)
    del found, piece
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("name", ["batch norm", "cache"])
def test_what_writes_buffers_is_in_the_graph(name: str) -> None:
    """Also in a region that writes several times: its writes are those of the buffers."""
    if name == "cache":
        module, args = Cached().requires_grad_(False), (torch.randn(2, 1, 16), torch.tensor([3]))
    else:
        layers = (each for _ in range(2) for each in (nn.Linear(16, 16), nn.BatchNorm1d(16)))
        module, args = nn.Sequential(*layers), (torch.randn(8, 16),)
    found = in_graphs(module, CpuRecorder())
    found(*args)
    trace, *_ = final_traces(found)
    assert on_host(trace, "cpu") == () and len(pieces_in(trace.bound_symbols)) == 1


# ----------------------------------------------------------------------------- memory of arguments


@given(st.data())
def test_memory_like(data: st.DataObject) -> None:
    """The sizes, strides and alignment of any argument, and all of its values."""
    rank = data.draw(st.integers(0, 3))
    size = [data.draw(st.integers(0, 4)) for _ in range(rank)]
    stride = [data.draw(st.integers(0, 5)) for _ in range(rank)]
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int8]))
    place = data.draw(st.integers(0, 9))
    arg = torch.arange(100).to(dtype).as_strided(size, stride, place)
    memory = memory_like(arg)
    compact(memory).copy_(compact(arg))
    assert torch.equal(memory, arg)
    assert memory.stride() == arg.stride()
    assert not arg.numel() or (memory.data_ptr() - arg.data_ptr()) % 16 == 0
