# SPDX-License-Identifier: Apache-2.0
"""Whether a function's ops ran in regions or in torch."""

from __future__ import annotations

from typing import Any

from thunder_fuser.explain.jitted import final_traces, fusions_of


def where_it_ran(jitted: Any, *, region: str, torch: str) -> set[str]:
    """Of "region" and "torch" those where ops with these parts of a name are."""
    bsyms = [bsym for trace in final_traces(jitted) for bsym in trace.bound_symbols]
    inside = [leaf.sym.name for fusion in fusions_of(jitted) for leaf in fusion.region.leaves]
    in_region = {"region"} if any(region in name for name in inside) else set()
    return in_region | {"torch" for bsym in bsyms if torch in bsym.sym.name}
