# SPDX-License-Identifier: Apache-2.0
"""`report(f).save(path)` of real functions: forward and backward, a fallback, a fuel limit."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.browser import chromium, opened
from helpers.meshes import as_rank
from thunder.torch import all_reduce
from torch.distributed._functional_collectives import all_to_all_single

from thunder_fuser.base.stages import timed
from thunder_fuser.demo.blocks import SMALL, make_block, make_input
from thunder_fuser.errors import FallbackWarning, InputError, ReportError
from thunder_fuser.explain import profile, report, timeline
from thunder_fuser.explain.jitted import jit


def shown(path: Path) -> Any:
    """The page as a reader finds it in a browser, all unfolded."""
    with chromium() as browser, opened(browser, path) as page:
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        page.wait_for_function("![...document.querySelectorAll('[data-text] > a')].length")
        return page.inner_text("main")


def test_a_block_forward_and_backward(tmp_path: Path) -> None:
    x, gradient = make_input(SMALL, torch.float32, "cpu")
    with timed():
        block = jit(make_block("llama", SMALL, torch.float32, "cpu"), strict=True)
        block(x).backward(gradient)
        found = profile(block, x).report
        text = shown(found.save(tmp_path / "report.html"))
    for one in found.fusions:
        assert one.name in text
    assert "9 fused, 13 views, 10 kernels" in text and "us measured" in text
    assert "not measured" not in text and "not estimated" not in text
    for kernel in (kernel for one in found.fusions for kernel in one.kernels):
        assert kernel.source.strip().splitlines()[-2] in text
    assert "s.parallelize(" in text and "def fusion(fd):" in text and "bytes at its edges" in text
    assert "torch has a kernel for it" in text and "attention_forward" in text
    assert "thunder_fuser/demo/blocks.py:80" in text and str(Path.cwd()) not in text
    assert "Saved for the backward" in text and "the cheapest cut" in text
    assert "Recomputed in the backward" in text
    assert "Live memory, without arguments: at most" in text
    assert "compile" in text.partition("Time of each stage")[2]


def test_a_folded_row_has_its_line_and_time(tmp_path: Path) -> None:
    function = jit(lambda x: torch.tanh(x) * 2, strict=True)
    function(torch.ones(8, 8))
    text = report(function).save(tmp_path / "report.html").read_text("utf-8")
    row = text.partition('<summary class="row">')[2].partition("</summary>")[0]
    assert "us estimated" in row and "test_report_pages.py:" in row


def test_names_of_a_function_and_its_file_stay_text(tmp_path: Path) -> None:
    script = "<script>document.title='attacked'<!--"
    scope: dict[str, Any] = {"torch": torch}
    exec(compile("def f(x, y): return torch.tanh(x * 2) @ y", f"/{script}.py", "exec"), scope)
    scope["f"].__name__ = script
    function = jit(scope["f"], strict=True)
    function(torch.randn(4, 4), torch.randn(4, 4))
    path = report(function).save(tmp_path / "report.html")
    with chromium() as browser, opened(browser, path) as page:
        assert page.title() == f"Fusions of {script}"
        assert page.inner_text("h2 >> nth=0") == script
        assert f"/{script}.py:1" in page.inner_text("td:has-text('.py:1')")
        assert page.locator("script").count() == 1


def test_a_fusion_that_fell_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    function = jit(lambda x: torch.tanh(x) * 3.25, cache="off")
    with pytest.warns(FallbackWarning):
        function(torch.randn(5, 7))
    text = shown(report(function).save(tmp_path / "report.html"))
    assert "1 fell back" in text and "fell back: " in text and "/bin/false" in text


def test_regions_without_fuel(tmp_path: Path) -> None:
    function = jit(lambda x, w: F.softmax((x * 2) @ w, -1), fuel=1)
    function(torch.randn(4, 8), torch.randn(8, 8))
    text = shown(report(function).save(tmp_path / "report.html"))
    assert "1 fused, 1 left out" in text and "the option fuel is 1" in text


@pytest.mark.parametrize("name", ["x.pdf", "x.json", "x.html.gz"])
def test_a_page_is_html(name: str, tmp_path: Path) -> None:
    function = jit(torch.sin, strict=True)
    function(torch.randn(6))
    with pytest.raises(ReportError, match=r"expected a name that ends in \.html, .*To fix it: "):
        report(function).save(tmp_path / name)
    for good in ("x.HTM", "x.html", "x"):
        assert "<html" in report(function).save(tmp_path / good).read_text("utf-8")


def test_a_backward_that_was_not_called(tmp_path: Path) -> None:
    function = jit(torch.sin, strict=True)
    function(torch.randn(6, requires_grad=True))
    text = report(function).save(tmp_path / "report.html").read_text("utf-8")
    assert "1 not called yet" in text


def test_the_live_memory_is_that_of_the_function_while_it_lives(tmp_path: Path) -> None:
    function = jit(lambda x: torch.exp(x) * 2, strict=True)
    function(torch.randn(6))
    found = report(function)
    assert found.page_entries()["timeline"] == timeline(function).to_dict()["calls"]
    assert found.timeline is None and "timeline" not in repr(found)
    del function
    gc.collect()
    assert found.page_entries()["timeline"] == []
    assert "Live memory" not in found.save(tmp_path / "report.html").read_text("utf-8")


def test_live_memory_that_cannot_be_known_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = jit(lambda x: torch.exp(x) * 2, strict=True)
    function(torch.randn(6))
    found = report(function)
    monkeypatch.setattr("torch.zeros", _no_memory)
    text = found.save(tmp_path / "report.html").read_text("utf-8")
    assert "Live memory is not known: OutOfMemoryError: out of memory" in text


def _no_memory(*args: Any, **kwargs: Any) -> Any:
    raise torch.OutOfMemoryError("out of memory")


def test_a_report_into_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    function = jit(torch.exp, strict=True)
    function(torch.randn(6))
    with pytest.raises(ReportError, match="a folder that exists"):
        report(function).save(tmp_path / "none" / "report.html")


@pytest.mark.parametrize("communicate", [
    lambda x, group: all_reduce(x, group=group),
    lambda x, group: all_to_all_single(x, None, None, group),
])  # fmt: skip
def test_collectives_are_not_run_again(communicate: Any, tmp_path: Path) -> None:
    with as_rank(0, 2):
        group = torch.distributed.group.WORLD
        function = jit(lambda x: communicate(torch.exp(x), group) * 2, strict=True)
        function(torch.randn(6))
        with pytest.raises(InputError, match="expected no collectives"):
            timeline(function)
        text = report(function).save(tmp_path / "report.html").read_text("utf-8")
    assert "Live memory is not known" in text and "no collectives" in text
