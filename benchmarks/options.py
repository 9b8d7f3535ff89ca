# SPDX-License-Identifier: Apache-2.0
"""Command-line options that several benchmarks have."""

from __future__ import annotations

import argparse

import torch


def add_device(parser: argparse.ArgumentParser) -> None:
    """`--device`; a benchmark without it runs on the CPU."""
    help = "default: cuda if there is one, else cpu"
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=usual, choices=("cpu", "cuda"), help=help)


def add_small(parser: argparse.ArgumentParser) -> None:
    """`--small`"""
    parser.add_argument("--small", action="store_true", help="tiny sizes: does it run?")


def add_compile(parser: argparse.ArgumentParser, *, default: bool) -> None:
    """`--compile` and `--no-compile`"""
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=default,
        help="torch.compile too",
    )


def add_layers(parser: argparse.ArgumentParser, default: tuple[int, ...]) -> None:
    """`--layers 1,4`: the depths of a model."""
    shown = ",".join(map(str, default))
    parser.add_argument(
        "--layers", type=_depths, default=default, metavar="N,...", help=f"default: {shown}"
    )


def at_least_one(text: str) -> int:
    """'4' -> 4; ArgumentTypeError for 0 and for what is no number."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"a count of 1 or more, got {text!r}")
    return int(text)


def _depths(text: str) -> tuple[int, ...]:
    """'4,8' -> (4, 8)"""
    return tuple(map(at_least_one, text.split(",")))
