# SPDX-License-Identifier: Apache-2.0
"""The dumps in docs/ are what the code prints: compared, or rewritten with --update-golden.

A dump is a fenced block under a line `<!-- dump: name -->`. Examples in docstrings are run.
"""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import thunder
import thunder.torch as ltorch
import torch
from helpers.eviction_example import transcript
from helpers.graphs import softmax, turned
from helpers.meshes import as_rank

import benchmarks
import thunder_fuser
from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.compiler import emit, plan_segments, schedule
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.executors.pipeline import TRACE_PASSES, read_trace
from thunder_fuser.executors.record.record import layout_of, record_region
from thunder_fuser.executors.regions.claim import claim
from thunder_fuser.executors.regions.plan import NO_MEMORY
from thunder_fuser.functions import TABLES
from thunder_fuser.functions.define import Composite
from thunder_fuser.host.call.dispatch import call_text, input_keys
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.record import definition_text
from thunder_fuser.lower.kernel import statements_text
from thunder_fuser.lower.lower import lower
from thunder_fuser.options import compile_options
from thunder_fuser.presegment import run_passes
from thunder_fuser.presegment.specialise import specialise
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.sharding.localise import FUSION_PASSES
from thunder_fuser.target import CPU, H200, Target
from thunder_fuser.trace.prepared import run_passes as run_trace_passes

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"(<!-- dump: (\S+) -->\n```\w*\n)(.*?)(^```$)", re.DOTALL | re.MULTILINE)
PAGES = ("pipeline", "domains", "several-devices", "schedulers", "caches", "functions")
D = DataType


# ---- the example of pipeline.md


def recorded() -> FusionDefinition:
    fd = FusionDefinition()
    x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=D.BFloat16)
    bias = fd.define_tensor(shape=[-1], contiguity=True, dtype=D.BFloat16)
    y = fd.ops.relu(fd.ops.add(x, bias))
    fd.add_output(fd.ops.cast(y, D.BFloat16))
    fd.add_output(fd.ops.truediv(fd.ops.sum(y, [1]), fd.ops.size(x, 1)))
    return fd


def arguments() -> list[torch.Tensor]:
    return [torch.ones(s, dtype=torch.bfloat16) for s in ((256, 1024), (1024,))]


@cache
def prepared() -> tuple[FusionDefinition, Any]:
    """The definition, and its fusion after all passes."""
    fd = recorded()
    keys = input_keys(fd.fusion, tuple(arguments()))
    return fd, run_passes(specialise(fd.fusion, keys), compile_options())


def scheduled(
    graph: FusionDefinition, inputs: list[torch.Tensor], target: Target
) -> ScheduledFusion:
    keys = input_keys(graph.fusion, tuple(inputs))
    (segment,) = plan_segments(graph.fusion, keys, target, compile_options()).segments
    alignment = {name: key.alignment for name, key in zip(graph.fusion.inputs, keys, strict=True)}
    made = schedule(segment, alignment)
    assert made is not None
    return made


def emitted(made: ScheduledFusion, target: Target) -> KernelSource:
    source = emit(made)
    assert source is not None
    return source


def kernel_only(source: KernelSource) -> str:
    """The kernel without the device functions pasted in front of it."""
    lines = source.text.splitlines(keepends=True)
    heads = ('extern "C" void', 'extern "C" __global__')
    first = next(at for at, line in enumerate(lines) if line.startswith(heads))
    return "".join(lines[first - 1 :])


def dispatch_text() -> str:
    """The text of the generated call."""
    return call_text([("T0", "tensor"), ("T1", "tensor")], checked=True)


def trie_text() -> str:
    store = FusionCache()
    store.look_up(recorded().records)
    store.look_up(recorded().records)
    return str(store) + "\n"


def softmax_schedule() -> ScheduledFusion:
    graph, _ = softmax(4096, 8192, dtype=D.BFloat16)
    return scheduled(graph, [torch.empty(4096, 8192, dtype=torch.bfloat16, device="meta")], H200)


def long_schedule() -> ScheduledFusion:
    graph, inputs = softmax(4096, 65536, dtype=D.BFloat16)
    return scheduled(graph, inputs, H200)
def lookup_schedule() -> ScheduledFusion:
    """Words looked up in an embedding, times a number."""
    words = torch.empty(4, 1024, dtype=torch.int64, device="meta")
    weight = torch.empty(50304, 768, dtype=torch.bfloat16, device="meta")
    fd = FusionDefinition()
    found = fd.ops.embedding_fwd(fd.from_pytorch(words), fd.from_pytorch(weight))
    fd.add_output(fd.ops.cast(fd.ops.mul(found, 27.7), D.BFloat16))
    return scheduled(fd, [words, weight], H200)


def softmax_axes() -> str:
    made = softmax_schedule()
    lines = [f"{axis}  (class of the axes {_members(made, axis.name)})" for axis in made.axes]
    return "\n".join(lines) + "\n"


def _members(made: ScheduledFusion, name: str) -> str:
    part, found = made.part, []
    for tensor in (*part.inputs, *part.producer):
        for axis in part.tensors[tensor].domain.logical:
            if not axis.is_broadcast and part.domain_map.axis(axis) == name:
                found.append(f"{tensor}.{axis.name}")
    return ", ".join(found)


def softmax_fusion() -> str:
    graph, _ = softmax(4096, 8192, dtype=D.BFloat16)
    inputs = [torch.empty(4096, 8192, dtype=torch.bfloat16, device="meta")]
    return str(graph.plan(inputs, target="h200"))


def column_order() -> str:
    """A tensor in column order with padding, and its sum over rows, asked for in column order."""
    x = torch.empty_strided((4, 6, 3), (1, 4, 32))
    fd = FusionDefinition()
    t = fd.from_pytorch(x)
    fd.add_output(fd.ops.neg(t), stride_order=[0, 2, 1])
    fd.add_output(fd.ops.sum(t, [1], keepdim=True))
    lines = [str(specialise(fd.fusion, input_keys(fd.fusion, (x,))))]
    for name, view in fd.fusion.tensors.items():
        domain = view.domain
        axes = [domain.no_reductions[at].name for at in domain.allocation]
        lines.append(f"{name}  logical    [{', '.join(a.name for a in domain.logical)}]")
        lines.append(f"    allocation [{', '.join(axes)}]  contiguity {list(domain.contiguity)}")
    return "\n".join(lines) + "\n"


def reordered() -> tuple[FusionDefinition, list[torch.Tensor]]:
    """Twice a tensor that lies inner before outer, in the same layout."""
    fd = FusionDefinition()
    x = fd.define_tensor([-1], True)
    y = fd.ops.mul(x, 2.0)
    fd.add_output(y)
    for tensor in (x, y):
        tensor.outer_split(0, 2)
        tensor.merge(1, 0)
        tensor.set_allocation_domain(tensor.get_loop_domain())
    return fd, [torch.tensor([0.0, 3, 1, 4, 2, 5])]


def on_devices() -> tuple[FusionDefinition, list[torch.Tensor]]:
    """Two devices with half of the rows each, and a counter over all rows."""
    fd = FusionDefinition()
    x = fd.define_tensor([-1, -1], True)
    rows = fd.ops.iota(fd.ops.size(x, 0), dtype=D.Float)
    fd.add_output(fd.ops.mul(x, fd.ops.broadcast(rows, [False, True])))
    x.set_device_mesh([0, 1])
    x.outer_split(0, 2)
    x.axis(0).parallelize("mesh_x")
    return fd, [torch.ones(4, 6)]


def communicating() -> str:
    """A sum over two devices, of which each wants a half; its host program on rank 0."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], True) for _ in range(2))
        total = fd.ops.sum(fd.ops.exp(x), [0])
        fd.add_output(fd.ops.redistribute(total, ["Shard(0)"]))
        fd.add_output(fd.ops.sum(y, [1]))
        for tensor in (x, y):
            tensor.set_device_mesh([0, 1])
            tensor.outer_split(0, 2).axis(0).parallelize("mesh_x")
    with as_rank(0, 2):
        program = fd.program([torch.ones(4, 6), torch.ones(4, 6)])
    return f"{program.segmented}\n{program}"


def before_and_after(made: tuple[FusionDefinition, list[torch.Tensor]]) -> str:
    fd, inputs = made
    known = specialise(fd.fusion, input_keys(fd.fusion, tuple(inputs)))
    return f"{fd.fusion}\n\n{run_passes(known, compile_options(), passes=FUSION_PASSES)}"


def functions_text() -> str:
    """The torch functions that are defined here, by file; * marks a gradient of its own."""
    lines = []
    for file, table in TABLES.items():
        names = [
            name.removeprefix("torch.").removeprefix("nn.functional.")
            + "*" * isinstance(one, Composite)
            for name, one in sorted(table.items())
        ]
        text = f"{file}: {', '.join(names)}"
        lines.append(textwrap.fill(text, 120, subsequent_indent="    ", break_long_words=False))
    return "\n".join(lines) + "\n"


DUMPS: dict[str, Callable[[], str]] = {
    "functions": functions_text,
    "definition": lambda: definition_text(recorded().records),
    "trie": trie_text,
    "fusion": lambda: str(recorded().fusion),
    "specialised": lambda: str(prepared()[1]),
    "segmented": lambda: str(prepared()[0].plan(arguments(), target="h200")),
    "scheduled": lambda: str(scheduled(recorded(), arguments(), H200)),
    "kernel": lambda: statements_text(
        lower(scheduled(recorded(), arguments(), H200), "a_kernel").body
    ),
    "cuda": lambda: kernel_only(emitted(scheduled(recorded(), arguments(), H200), H200)),
    "cpu": lambda: kernel_only(emitted(scheduled(recorded(), arguments(), CPU), CPU)),
    "program": lambda: recorded().program(arguments(), target="cpu").text,
    "dispatch": dispatch_text,
    "evictions": transcript,
    "layout": column_order,
    "inner_outer": lambda: before_and_after(reordered()),
    "inner_outer_kernel": lambda: kernel_only(emitted(scheduled(*reordered(), CPU), CPU)),
    "on_devices": lambda: before_and_after(on_devices()),
    "communication": communicating,
    "softmax_segment": softmax_fusion,
    "softmax_axes": softmax_axes,
    "softmax_schedule": lambda: str(softmax_schedule()),
    "softmax_cuda": lambda: kernel_only(emitted(softmax_schedule(), H200)),
    "cluster_schedule": lambda: str(long_schedule()),
    "cluster_cuda": lambda: kernel_only(emitted(long_schedule(), H200)),
    "lookup_cuda": lambda: kernel_only(emitted(lookup_schedule(), H200)),
    "transpose_schedule": lambda: str(scheduled(*turned(8192, 4096, dtype=D.BFloat16), H200)),
    "transpose_cuda": lambda: kernel_only(
        emitted(scheduled(*turned(8192, 4096, dtype=D.BFloat16), H200), H200)
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_dumps(name: str, request: pytest.FixtureRequest) -> None:
    path = DOCS / f"{name}.md"
    before = path.read_text(encoding="utf-8")
    after = BLOCK.sub(lambda m: m.group(1) + DUMPS[m.group(2)]() + m.group(4), before)
    if request.config.getoption("--update-golden"):
        path.write_text(after, encoding="utf-8", newline="\n")
    else:
        assert after == before, f"docs/{name}.md: run pytest with --update-golden and read the diff"


def test_every_dump_is_shown_once() -> None:
    texts = [(DOCS / f"{name}.md").read_text() for name in PAGES]
    shown = [match.group(2) for text in texts for match in BLOCK.finditer(text)]
    assert sorted(shown) == sorted(DUMPS)


def test_tests_that_docs_name_exist() -> None:
    tests = "".join(path.read_text() for path in (DOCS.parent / "tests").rglob("test_*.py"))
    page = (DOCS / "caches.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)(?:\[.*?\])?`", page))
    assert named and [name for name in named if f"def {name}(" not in tests] == []


def test_examples_in_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every module but `__main__`, which runs the program."""
    # Else doctest looks up, for each module, whether any source file of the process has changed.
    monkeypatch.setattr("linecache.checkcache", lambda filename=None: None)
    found = [
        one.name
        for package in (thunder_fuser, benchmarks)
        for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    names = [name for name in found if not name.endswith("__main__")]
    results = {name: doctest.testmod(importlib.import_module(name)) for name in names}
    assert sum(one.attempted for one in results.values()) > 30
    assert [name for name, one in results.items() if one.failed] == []


TOUR = {
    one.__name__: one
    for one in (
        torch, thunder, read_trace, compile_options, claim, layout_of, record_region,
        FusionCache, plan_segments, input_keys, schedule, emit,
    )
} | {
    "CPU": CPU, "TRACE_PASSES": TRACE_PASSES, "NO_MEMORY": NO_MEMORY, "ltorch": ltorch,
    "run_passes": run_trace_passes,
}  # fmt: skip


def test_the_tour_runs() -> None:
    """Twelve lines, of which the last has the result of torch; every value prints."""
    (lines,) = re.findall(r"```python\n(.*?)```", (DOCS / "tour.md").read_text("utf-8"), re.DOTALL)
    assert len(lines.splitlines()) == 12
    scope: dict[str, Any] = {**TOUR}
    exec(lines, scope)
    expected = torch.nn.functional.gelu(scope["x"].float()) * scope["w"].float()
    torch.testing.assert_close(scope["result"].float(), expected, rtol=0.02, atol=1e-3)
    assert "T0 = fd.define_tensor" in str(scope["entry"].fusion)
    assert "pointwise" in str(scope["plan"])
    assert scope["source"].name == "fused_gelu_mul_bf16_pointwise"
