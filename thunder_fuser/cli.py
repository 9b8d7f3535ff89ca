# SPDX-License-Identifier: Apache-2.0
"""The command line: `python -m thunder_fuser <command>` -> an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from thunder_fuser.errors import FuserError
from thunder_fuser.explain.demo import DTYPES, Demo, demo
from thunder_fuser.explain.environment import environment


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. 0: it did what it should; 1: a check failed; 2: a wrong command line."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 0
    try:
        return int(given.run(parser, given))
    except FuserError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m thunder_fuser", description="A fusion compiler for Lightning Thunder."
    )
    commands = parser.add_subparsers(dest="command", title="commands", metavar="")
    _add_demo(commands)
    env = commands.add_parser("env", help="print versions, compilers, the device and the options")
    env.set_defaults(run=_run_env)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "run two transformer blocks through the fuser, forward and backward"
    parser = commands.add_parser("demo", help=text, description=f"{text.capitalize()}.")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: cuda if there is one, else cpu"
    )
    parser.add_argument("--dtype", choices=(*DTYPES, "both"), default="both")
    parser.add_argument(
        "--emulate", action="store_true", help="run the CUDA text on the CPU, in the emulator"
    )
    parser.add_argument("--small", action="store_true", help="small blocks (the emulator is slow)")
    parser.set_defaults(run=_run_demo)


def _run_demo(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    has_cuda = torch.cuda.is_available()
    if given.device == "cuda" and not has_cuda:
        parser.error("--device cuda: this machine has no CUDA device that torch can use")
    if given.emulate and given.device == "cuda":
        parser.error("--emulate runs on the CPU: leave out --device cuda")
    device = given.device or ("cuda" if has_cuda and not given.emulate else "cpu")
    dtypes = tuple(DTYPES) if given.dtype == "both" else (given.dtype,)
    return 0 if demo(Demo(torch.device(device), dtypes, given.emulate, given.small)) else 1


def _run_env(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    print(environment())
    return 0
