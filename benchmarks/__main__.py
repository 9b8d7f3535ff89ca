# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks <command>` -> an exit code: 1 if a check failed, 2 for a wrong command."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

import torch

from benchmarks import (
    blocks,
    cache_stress,
    functions,
    fuzz,
    loss,
    prices,
    sanitize,
    sizes,
    train_step,
    warm_path,
)
from benchmarks.compile_time import run as compile_time
from benchmarks.decode import run as decode
from benchmarks.facts import facts
from benchmarks.first_step import run as first_step
from benchmarks.kernels import run as kernels
from benchmarks.overlap import run as overlap
from benchmarks.plans import run as plans
from benchmarks.report import Report
from benchmarks.saved_memory import run as saved_memory
from benchmarks.whole_models import run as whole_models
from thunder_fuser.errors import FuserError

COMMANDS = {
    "models": whole_models,
    "kernels": kernels,
    "blocks": blocks,
    "functions": functions,
    "train_step": train_step,
    "memory": saved_memory,
    "loss": loss,
    "compile": compile_time,
    "first_step": first_step,
    "sizes": sizes,
    "decode": decode,
    "warm_path": warm_path,
    "plan": plans,
    "prices": prices,
    "cache_stress": cache_stress,
    "overlap": overlap,
    "sanitize": sanitize,
    "fuzz": fuzz,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command, which prints its tables last."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this machine has no CUDA device that torch can use")
    given.device = torch.device(given.device)
    report = Report({"command": shlex.join(arguments), **facts(given.device)}, given.json)
    try:
        COMMANDS[given.command].run(given, report)
    except FuserError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return report.finish()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="What measures or stresses thunder_fuser."
    )
    parser.set_defaults(device="cpu")
    commands = parser.add_subparsers(dest="command", required=True, title="commands", metavar="")
    for name, module in COMMANDS.items():
        text = str(module.__doc__)
        one = commands.add_parser(
            name, help=text.splitlines()[0], description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.add_argument("--json", metavar="FILE", help="where the figures go")
        module.add_options(one)
    return parser


if __name__ == "__main__":
    sys.exit(main())
