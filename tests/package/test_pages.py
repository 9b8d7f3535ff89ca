# SPDX-License-Identifier: Apache-2.0
"""What the pages teach runs: their code, as written, the examples, and the commands they name."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import pytest
from helpers.forked import Job, fork_all
from helpers.pages import ROOT, run_page, run_script

from thunder_fuser.__main__ import main

PAGES = (
    "README.md",
    "docs/ten-minutes.md",
    "docs/which-door.md",
    "docs/limitations.md",
    "docs/passes.md",
    "docs/stride-orders.md",
    "docs/replaced-in-thunder.md",
    "docs/several-devices.md",
    "docs/reports.md",
    "docs/debugging.md",
    "docs/schedules.md",
    "docs/adding-an-operation.md",
    "docs/adding-a-scheduler.md",
)
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
# {an example: what it needs beside torch}
FRAMEWORKS = {
    ROOT / "examples" / "frameworks" / f"{name}.py": needed
    for name, needed in {
        "accelerate_loop": "accelerate", "averaged_model": "torch", "hf_generate": "transformers",
        "hf_trainer": "transformers", "lightning_fabric": "lightning",
        "lightning_trainer": "lightning", "litgpt_generate": "litgpt", "litgpt_pretrain": "litgpt",
    }.items()
}  # fmt: skip
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
EVERY_PAGE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("name", PAGES)
def test_page(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Without a warning, and with the outputs that it shows."""
    page = ROOT / name
    after = run_page(page, tmp_path)
    if request.config.getoption("--update-golden"):
        page.write_text(after, encoding="utf-8", newline="\n")
    else:
        assert after == page.read_text("utf-8")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda one: one.name)
def test_script(script: Path, tmp_path: Path) -> None:
    copy = tmp_path / script.name
    copy.write_text(script.read_text("utf-8"), "utf-8")
    assert run_script(copy).strip()


@pytest.mark.parametrize("script", FRAMEWORKS, ids=lambda one: one.name)
def test_script_of_a_framework(script: Path, tmp_path: Path) -> None:
    """In CI the package is there: `make setup` installs the extra `frameworks`."""
    if find_spec(FRAMEWORKS[script]) is None and "CI" not in os.environ:
        pytest.skip(f"{FRAMEWORKS[script]} is not installed: pip install '.[frameworks]'")
    test_script(script, tmp_path)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda one: one.name)
def test_notebook(notebook: Path, tmp_path: Path) -> None:
    """Its code cells run in order; it is committed without outputs."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    code = [one for one in cells if one["cell_type"] == "code"]
    assert code and all(one["outputs"] == [] for one in code)
    script = tmp_path / f"{notebook.stem}.py"
    script.write_text("\n".join("".join(one["source"]) for one in code), "utf-8")
    assert run_script(script).strip()


def test_there_are_six_scripts_two_notebooks_and_those_of_frameworks() -> None:
    assert (len(SCRIPTS), len(NOTEBOOKS)) == (6, 2)
    assert set((ROOT / "examples" / "frameworks").glob("*.py")) == set(FRAMEWORKS)
    page = (ROOT / "docs" / "frameworks.md").read_text("utf-8")
    assert [one.name for one in FRAMEWORKS if f"frameworks/{one.name})" not in page] == []


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda one: one.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in _anchors(path), f"{page.name}: {target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's titles, as GitHub and MyST make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in kept}


def test_the_readme_is_short_and_imports_the_fuser_first() -> None:
    """Thunder warns of an optional package when it is imported before the fuser."""
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) < 150
    assert "`docs/" not in text, "a page is a link, which clicks"
    assert text.index("from thunder_fuser import fuser") < text.index("import thunder\n")


def test_no_message_names_a_page() -> None:
    """The installed package has no docs/: what it prints stands alone."""
    named = {
        f"{path.relative_to(ROOT)}:{text.lineno}"
        for path in sorted((ROOT / "thunder_fuser").rglob("*.py"))
        for text in _messages(ast.parse(path.read_text("utf-8")))
        if "docs/" in text.value
    }
    assert named == set()


def _messages(module: ast.Module) -> Iterator[ast.Constant]:
    """The texts of a module that are not docstrings."""
    docstrings = {id(one.value) for one in ast.walk(module) if isinstance(one, ast.Expr)}
    for one in ast.walk(module):
        if (
            isinstance(one, ast.Constant)
            and isinstance(one.value, str)
            and id(one) not in docstrings
        ):
            yield one


COMMANDS = sorted(
    {
        command
        for page in EVERY_PAGE
        for command in re.findall(r"python -m thunder_fuser ([a-z]+)", page.read_text("utf-8"))
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_pages_name_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0 and command in capsys.readouterr().out


def test_figures_are_the_committed_ones() -> None:
    page = (ROOT / "docs/when-to-use.md").read_text("utf-8")
    steps = _figures("h200_train_step")["steps"]
    times = [steps[name]["ms"] for name in ("time", "torch.compile", "eager")]
    llama = _figures("h200_loss")["llama-16"]["steps"]
    trained = [llama[name] for name in ("memory", "torch.compile")]
    first = [steps[name]["first_call_s"] for name in ("time", "torch.compile")]
    blocks = _figures("h200_blocks")
    singles = [blocks["llama bf16"]["us"][name] for name in ("fuser", "eager", "compile")]
    plain = _faster("thunder_fuser.jit", "torch.compile")
    in_graphs = _faster("in graphs", "reduce-overhead")
    both = [ratio for ratios in in_graphs.values() for ratio in ratios]
    ranges = [(min(each), max(each)) for each in zip(*plain.values(), strict=True)]
    matrices = [_figures(f"h200_matrix_{one}") for one in ("bf16", "f32")]
    means = [one["geometric_means"]["compile"] for one in matrices]
    points = sum(one["points"] for one in means)
    mean = prod(one["times_faster"] ** (one["points"] / points) for one in means)
    wanted = [
        *(f"{one:.1f} ms" for one in (*times, *(us / 1000 for us in singles))),
        *(f"{step['peak'] / 2**20:.0f} MiB" for step in trained),
        *(f"{step['ms']:.0f} ms" for step in trained),
        *(f"{least:.2f} to {most:.2f} times" for least, most in ranges),
        f"In CUDA graphs they are {min(both):.2f} to {max(both):.2f} times",
        *(f"{one:.0f} s" for one in first),
        f"over {points} points of bf16 and float32, **{mean:.2f} times**",
    ]
    assert [one for one in wanted if one not in page] == []


def _faster(ours: str, other: str) -> dict[str, list[float]]:
    """{model: how many times as fast it is in training, and in inference}"""
    return {
        name: [
            found["steps"][other][key] / found["steps"][ours][key]
            for key in ("train_ms", "infer_ms")
        ]
        for name, found in _figures("h200_small_steps").items()
    }


def _figures(name: str) -> dict[str, Any]:
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return dict(json.loads(path.read_text("utf-8"))["figures"])


SITE = """
import sys
from sphinx.cmd.build import main
sys.exit(main(["-q", "-W", "--keep-going", *sys.argv[1:]]))
"""


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    script, said = tmp_path / "site.py", tmp_path / "said"
    script.write_text(SITE)
    job = Job([str(script), str(ROOT / "docs"), str(tmp_path / "site")], str(said), str(said))
    assert fork_all([job]) == [0], said.read_text()
    assert "FusionDefinition" in (tmp_path / "site" / "api.html").read_text("utf-8")
