# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks <part>`: runs it, prints its table last; 1 if a check of it failed."""

from __future__ import annotations

import argparse
import sys

import torch

from benchmarks import (
    blocks,
    cache_stress,
    functions,
    fuzz,
    planning,
    sanitize,
    sizes,
    train_step,
    warm_path,
)
from benchmarks.sections import Sections
from thunder_fuser.explain.bench.facts import facts

PARTS = {
    "blocks": blocks,
    "cache_stress": cache_stress,
    "functions": functions,
    "fuzz": fuzz,
    "warm_path": warm_path,
    "sizes": sizes,
    "planning": planning,
    "sanitize": sanitize,
    "train_step": train_step,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, module in PARTS.items():
        summary = str(module.__doc__).splitlines()[0]
        part = parts.add_parser(name, help=summary, description=summary)
        part.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
        part.add_argument("--json", help="the file the figures go to")
        module.add_options(part)
    given = parser.parse_args()
    given.device = torch.device(given.device)
    checks = Sections(facts(given.device), given.json)
    PARTS[given.part].run(given, checks)
    return checks.finish()


if __name__ == "__main__":
    sys.exit(main())
