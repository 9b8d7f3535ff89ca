# SPDX-License-Identifier: Apache-2.0
"""Made-up reports, as Report.to_dict() gives them, of as many regions as wanted."""

from __future__ import annotations

from typing import Any

_DISTINCT = 100  # programs: in a deep model equal layers share theirs
_LINES = 60
_STATEMENT = "  out[i] = expf(in[i]) * w[i];\n"


def made_report(regions: int = 6, name: str = "model") -> dict[str, Any]:
    """Half of the regions are in the backward; one fell back, and one is of views."""
    fusions = [_region(at, at >= regions // 2) for at in range(regions)]
    fusions[1] |= {
        "state": "fell back", "reason": "g++ rejected pointwise_1", "kernels": [], "plan": "",
        "definition": "",
    }  # fmt: skip
    fusions[2] |= {"name": "fuserViews0", "state": "views", "kernels": [], "plan": ""}
    return {
        "name": name,
        "fusions": fusions,
        "unfused": [
            {
                "name": "matmul", "count": regions, "state": "not claimed",
                "reason": "torch has a kernel for it", "where": "model.py:12",
            },
            {"name": "reshape", "count": 2, "state": "views", "reason": "a view", "where": ""},
        ],
        "saved": [
            {"name": f"t{at}", "kind": "f32[2, 16]", "op": "exp", "why": "the cheapest cut",
             "bytes": 128}
            for at in range(regions)
        ],
        "recomputed": [
            {"fusion": fusions[-1]["name"], "values": ["t1", "t2"], "ops": ["exp", "mul"],
             "bytes": 2048}
        ],
        "timeline": [
            {"call": one["name"], "direction": one["direction"], "bytes": 1024 * (at + 1)}
            for at, one in enumerate(fusions)
        ],
        "no_timeline": "",
        "trace": "\n".join(
            f"[t{at}] = {one['name']}(t{at - 1}, weight)\n    # exp*3 mul"
            for at, one in enumerate(fusions)
        ),
        "stages": {"claim": 0.25, "compile": 1.5, "segment": 0.75},
    }  # fmt: skip


def _region(at: int, is_backward: bool) -> dict[str, Any]:
    program = at % _DISTINCT
    kernel = f"pointwise_{program}"
    return {
        "name": f"thunderFusion{at}",
        "direction": "backward" if is_backward else "forward",
        "state": "fused",
        "reason": "",
        "where": f"model.py:{at + 1}",
        "ops": [
            {"text": f"t{at}_{n} = {op}(t{at}_{n - 1})", "where": f"model.py:{at + 1}"}
            for n, op in enumerate(["exp", "mul", "exp", "sum"] * 5)
        ],
        "schedulers": ["pointwise"],
        "segments": [{"scheduler": "pointwise", "kernels": [kernel]}],
        "kernels": [
            {
                "name": kernel, "scheduler": "pointwise", "bytes_in": 4096, "bytes_out": 2048,
                "source": f"void {kernel}() {{\n{_STATEMENT * _LINES}}}\n",
                "estimated_us": 1.5, "measured_us": None if at % 2 else 2.25,
            }
        ],
        "bytes_in": 4096,
        "bytes_out": 2048,
        "schedules": [f's.parallelize("i{program}", "vectorize")\n'],
        "definition": f"# {program}\n" + "T2 = fd.ops.exp(T1)  # f32[i0, i1]\n" * _LINES,
        "plan": f"segment 0 pointwise: T0 -> T{program}\n" + "    T2 = fd.ops.exp(T1)\n" * _LINES,
    }  # fmt: skip
