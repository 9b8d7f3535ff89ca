# SPDX-License-Identifier: Apache-2.0
"""What a compiled function keeps alive: no more, region by region, than Thunder keeps of the same
ops. The interpreter's collector looks at all of it again and again; see docs/caches.md."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import thunder
import torch
from thunder.core.symbol import BoundSymbol

import thunder_fuser
from benchmarks.compile_time.layers import residual, step
from thunder_fuser.explain.jitted import claims_of, fusions_of, jit
from thunder_fuser.trace.proxies import makes, reads

MOST = 0  # objects a region, beyond Thunder's own; there were 102

SCRIPT = """
import gc, json, thunder_fuser, thunder
from thunder_fuser.explain.jitted import claims_of, jit
from benchmarks.compile_time.layers import residual, step

def jit_alone(function):
    return thunder.jit(function, executors=[])

def left(make, layers):
    function = make(residual)
    gc.collect()
    before = len(gc.get_objects())
    step(function, layers)
    step(make(residual), 1)  # the fuser keeps the newest function's cut
    gc.collect()
    return len(gc.get_objects()) - before, function

found = {}
for make in (jit, jit_alone):
    step(make(residual), 1)
    few, many = (left(make, layers) for layers in (2, 6))
    found[make.__name__] = many[0] - few[0]
    if make is jit:
        found["regions"] = len(claims_of(many[1]).regions) - len(claims_of(few[1]).regions)
print(json.dumps(found))
"""


def test_a_region_leaves_few_objects_behind() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["regions"] == 24
    assert (found["jit"] - found["jit_alone"]) / found["regions"] <= MOST, found


def test_equal_regions_share_what_is_equal() -> None:
    jitted = jit(residual, strict=True)
    step(jitted, 4)
    claims, fusions = claims_of(jitted), fusions_of(jitted)
    definitions = [one for fusion in fusions for one in fusion.definitions]
    assert len(definitions) > 2 * len({*map(id, definitions)}) == 2 * len({*definitions})
    assert len({*map(id, claims.unfused)}) == len({*claims.unfused}) < len(claims.unfused) / 2
    generated = [getattr(fusion.call, "general", fusion.call) for fusion in fusions]
    codes = {id(call.__code__) for call in generated}
    assert len(codes) < len(fusions) / 3
    assert not claims.outside
    regions = {id(fusion.region) for fusion in fusions}
    assert regions == {*map(id, claims.regions)}


# ------------------------------------------------------------------------- proxies without caches


def everything(bsyms: Any) -> Iterator[BoundSymbol]:
    for bsym in bsyms:
        yield bsym
        yield from everything(bsym.subsymbols)


def many_kinds(x: Any, table: dict[str, Any], rows: list[Any]) -> Any:
    """Arguments in lists, tuples and dictionaries, slices, keywords, numbers, several results."""
    a, b = torch.split(x[1:, ::2], [1, 2], dim=0)
    c = torch.cat([a, b, table["w"]], dim=0).sum(dim=(0,), keepdim=True).to(torch.float64)
    d = torch.full((3,), 2.0, dtype=torch.float64) + torch.stack(rows).mean() * x.shape[0]
    return {"c": c, "all": (d, [x.view(-1), torch.var_mean(x, dim=1)])}


def test_proxies_are_those_of_thunder_and_nothing_is_remembered() -> None:
    given = (torch.randn(4, 6), {"w": torch.randn(2, 3)}, [torch.randn(3), torch.randn(3)])
    jitted = thunder.jit(many_kinds, executors=[])
    jitted(*given)
    step(trained := thunder.jit(residual, executors=[]), 1)
    traces = [*thunder.last_traces(jitted), *thunder.last_traces(trained),
              *thunder.last_backward_traces(trained)]  # fmt: skip
    seen = 0
    for bsym in everything(bsym for trace in traces for bsym in trace.bound_symbols):
        bsym = bsym.from_bsym()
        before = {*vars(bsym)}
        found = reads(bsym), makes(bsym)
        assert {*vars(bsym)} == before
        expected = bsym.flat_proxy_args, bsym.flat_proxy_outs
        assert [[*map(id, one)] for one in found] == [[*map(id, one)] for one in expected]
        seen += 1
    assert seen > 100


def test_nothing_of_ours_asks_the_properties_that_remember() -> None:
    package = Path(thunder_fuser.__file__).parent
    asked = [path for path in package.rglob("*.py") if ".flat_" in path.read_text("utf-8")]
    assert not asked
