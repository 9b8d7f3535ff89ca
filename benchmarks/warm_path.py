# SPDX-License-Identifier: Apache-2.0
"""The cost of a warm call: Python's time for a small one-kernel region, beside torch.add's.

    python benchmarks/warm_path.py [--device cpu|cuda] [--compile]
"""

from __future__ import annotations

import argparse
import sys

import thunder
import torch
from cases import CASES, make_definition
from harness import device_name, host_time

from thunder_fuser import fuser

SHAPE = (32, 32)


def host_costs(device: torch.device, with_compile: bool = False) -> dict[str, float]:
    """Microseconds a call: torch.add, the region's own function, and functions around a region."""
    a, b = (torch.randn(SHAPE, device=device) for _ in range(2))
    region = make_definition(CASES["add"], [a, b]).entry.callable()
    # A product is fused with the sum: Thunder leaves a region of one op to torch.
    jitted = thunder.jit(lambda x, y: x * y + y, executors=[fuser], fuser_strict=True)
    calls = {"torch.add": torch.add, "region": region, "thunder.jit": jitted}
    if with_compile:
        calls["torch.compile"] = torch.compile(lambda x, y: x * y + y, dynamic=False)
    for call in calls.values():
        for _ in range(20):
            call(a, b)
    return {name: host_time(lambda f=f: f(a, b), device) for name, f in calls.items()}


def table(costs: dict[str, float]) -> str:
    """One line a contender."""
    base = costs["torch.add"]
    return "\n".join(
        f"{name:14} {cost:8.2f} us a call {cost / base:6.2f} x torch.add"
        for name, cost in costs.items()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    given = parser.parse_args()
    device = torch.device(given.device)
    print(f"warm call, f32 {list(SHAPE)}, {device_name(device)}")
    print(table(host_costs(device, given.compile)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
