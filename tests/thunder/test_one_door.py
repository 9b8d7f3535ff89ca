# SPDX-License-Identifier: Apache-2.0
"""thunder_patches is the one door to Thunder: its table, what it refuses, and what runs without."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.forked import python
from thunder.__about__ import __version__ as VERSION

from thunder_fuser import versions
from thunder_fuser.thunder_patches.door import left_alone
from thunder_fuser.thunder_patches.patch import DIGESTS, known_digests
from thunder_fuser.thunder_patches.table import PATCHES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "thunder_fuser"
THUNDERS = ("thunder", "torch")
UNKNOWN = "99.0"  # the version of helpers/other_thunder.py
SHARD = (  # regions, writes in place, and Thunder's passes that edit what we return
    "tests/thunder/test_regions.py", "tests/thunder/test_in_place.py",
    "tests/thunder/test_beside_executors.py::test_it_trains_as_in_eager_torch[residual net-first]",
)  # fmt: skip
SESSION = f"""
import os, pytest
os.chdir({str(ROOT)!r})
raise SystemExit(pytest.main(["-q", "-p", "no:cacheprovider", *{SHARD}]))
"""


# ----------------------------------------------------------------------------------- the door


def names_of_thunder(tree: ast.AST) -> set[str]:
    """The names of a file that are modules, classes or functions of Thunder or torch."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [(one.asname or one.name.partition(".")[0], one.name) for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [(one.asname or one.name, str(node.module)) for one in node.names]
        else:
            continue
        names |= {name for name, module in modules if module.partition(".")[0] in THUNDERS}
    return names


def root_of(node: ast.AST) -> str:
    """a of a.b[c].d"""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def changed_by(node: ast.AST) -> list[ast.expr]:
    """What a statement or a call stores into, beside plain names."""
    if isinstance(node, (ast.Assign, ast.Delete)):
        stored = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        stored = [node.target]
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("setattr", "__setattr__")):
        return node.args[:1]
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "register_general_jit_lookaside":
        return [node.func]
    else:
        return []
    parts = [each.elts if isinstance(each, ast.Tuple) else [each] for each in stored]
    flat = [one for part in parts for one in part]
    return [one for one in flat if isinstance(one, (ast.Attribute, ast.Subscript))]


def stores_into_thunder(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    names = names_of_thunder(tree)
    for node in ast.walk(tree):
        for one in changed_by(node):
            if root_of(one) in names:
                yield f"{one.lineno}: {ast.unparse(node)}"


def test_nothing_outside_of_the_door_stores_into_thunder_or_torch() -> None:
    stores = {
        f"{path.relative_to(PACKAGE)}:{store}"
        for path in PACKAGE.rglob("*.py") if "thunder_patches" not in path.parts
        for store in stores_into_thunder(path.read_text("utf-8"))
    }
    assert stores == set()


@pytest.mark.parametrize(
    "line",
    [
        "thunder.jit = f", "clang.arange, x = f()", "Symbol.meta += 1", "del Symbol.meta",
        "_map[f] = g", "setattr(Symbol, name, f)", "object.__setattr__(ltorch.add, 'meta', f)",
        "register_general_jit_lookaside(f)", "torch.nn.Module.__call__ = f",
    ],
)
def test_the_walk_sees(line: str) -> None:
    head = (
        "import thunder, torch.nn\nimport thunder.torch as ltorch\nfrom thunder import clang\n"
        "from thunder.core.symbol import Symbol\n"
        "from thunder.core.jit_ext import register_general_jit_lookaside, _map\n"
    )
    assert [*stores_into_thunder(head + line)] == [f"6: {line}"]
    assert not [*stores_into_thunder(head + "def f(trace):\n    trace.args = ()\n")]


# ---------------------------------------------------------------------------------- the table


def test_each_row_says_what_and_why() -> None:
    assert len({patch.name for patch in PATCHES}) == len(PATCHES) > 25
    for patch in PATCHES:
        assert patch.why and patch.replaces and patch.kind in ("fix", "speed-up", "note")
    assert left_alone() == {}  # with the Thunder of this suite


COMPUTE = """
import json
from thunder_fuser.thunder_patches.patch import digest_of, there
from thunder_fuser.thunder_patches.table import PATCHES
places = {place for patch in PATCHES for place in patch.places if " +" not in place}
print(json.dumps({place: digest_of(there(place)) for place in sorted(places)}))
"""


def test_digests_are_those_of_the_installed_thunder(pytestconfig: pytest.Config) -> None:
    """--update-golden adds the version to the file, or writes its digests anew."""
    digests = json.loads(python(COMPUTE))
    if pytestconfig.getoption("--update-golden"):
        every = {**json.loads(DIGESTS.read_text("utf-8")), VERSION: digests}
        DIGESTS.write_text(json.dumps(every, indent=1) + "\n", "utf-8")
    assert known_digests(VERSION) == digests
    assert known_digests(UNKNOWN) == {}


def test_the_range_of_thunder_that_pyproject_states() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert f'"lightning-thunder>={versions.THUNDER},<' in text
    assert known_digests(versions.THUNDER) and VERSION == versions.THUNDER


# ----------------------------------------------------------------------------- another package


IMPORT = "import {} from thunder_fuser import fuser\n"
WRAPS = """
import functools, thunder_fuser, thunder, thunder.clang as clang
def wrapped(of_thunder):
    @functools.wraps(of_thunder)
    def call(*args, **kwargs):
        seen.append(of_thunder.__name__)
        return of_thunder(*args, **kwargs)
    return call
seen = []
thunder.thunder_general_jit = wrapped(thunder.thunder_general_jit)
clang.arange = wrapped(clang.arange)
"""
FUSER = """
from thunder_fuser import fuser
from thunder_fuser.thunder_patches.door import left_alone
"""
CALLS = """
import torch
x = torch.ones(3)
jitted = thunder.jit(lambda x, m=None: x if m is None else x * m, executors=[fuser])
print(jitted(x, 0 * x).tolist(), jitted(x, None).tolist(), jitted(x, 0 * x).tolist())
print(thunder.jit(lambda: torch.arange(2), executors=[fuser])().tolist(), sorted(set(seen)))
print(sorted(left_alone()))
"""


def test_a_package_that_replaced_the_functions_before_keeps_its_own() -> None:
    *said, results, seen, left = python(WRAPS + FUSER + CALLS).splitlines()
    assert results == "[0.0, 0.0, 0.0] [1.0, 1.0, 1.0] [1.0, 1.0, 1.0]"  # Thunder's own error
    assert seen == "[0, 1] ['arange', 'thunder_general_jit']"
    replaced = [
        "compare_arguments", "explain_limits", "guard_reads", "join_tied_parameters",
        "keep_empty_axes",
    ]  # fmt: skip
    assert left == str(replaced)
    assert "compare_arguments: __main__ replaced thunder:thunder_general_jit" in " ".join(said)


def test_a_package_that_replaces_them_later_calls_ours() -> None:
    *said, results, seen, left = python(FUSER + WRAPS + CALLS).splitlines()
    assert said == [] and left == "[]"
    assert results == "[0.0, 0.0, 0.0] [1.0, 1.0, 1.0] [0.0, 0.0, 0.0]"
    assert seen == "[0, 1] ['arange', 'general_jit']"


# ------------------------------------------------------------------------- without replacements


ENV = "from thunder_fuser.__main__ import main; main(['env'])"
OTHER = "import helpers.other_thunder\n"


def test_env_and_the_log_say_what_was_left_alone() -> None:
    text = " ".join(python(OTHER + ENV).split())
    assert f"runs, without all replacements: Thunder {UNKNOWN} was not tested" in text
    assert f"Thunder's own way no all replacements: Thunder {UNKNOWN}" in text
    text = python(ENV, THUNDER_FUSER_THUNDER_SPEEDUPS="0")
    speedups = [patch.name for patch in PATCHES if patch.kind == "speed-up"]
    rows = [line.split() for line in text.splitlines() if "Thunder's own way" in line]
    assert [row[4].strip(":") for row in rows] == speedups
    assert "Thunder's own way" not in python(ENV)


@pytest.mark.parametrize("way", ["an unknown version", "without speed-ups", "without fixes"])
def test_a_shard_of_the_suite(way: str) -> None:
    """Results are equal, as those tests say, and nothing crashes."""
    switches = {
        "an unknown version": {"PYTEST_PLUGINS": "helpers.other_thunder"},
        "without speed-ups": {"THUNDER_FUSER_THUNDER_SPEEDUPS": "0"},
        "without fixes": {"THUNDER_FUSER_THUNDER_FIXES": "0"},
    }
    python(SESSION, **switches[way])
