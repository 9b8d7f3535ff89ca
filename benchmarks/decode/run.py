# SPDX-License-Identifier: Apache-2.0
"""Products of few rows, and tokens of a model with a static cache, beside clone's rate.

The floor is the time in which clone, which reads and writes, moves as many bytes as the weights
have. A goal that is missed is printed and no failure; a wrong result is one.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

from benchmarks.decode import products, tokens
from benchmarks.options import add_compile, add_device, add_small, at_least_one
from benchmarks.report import Report

PARTS = ("products", "tokens")
WRONG = 1.5  # times torch's error


def add_options(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    add_small(parser)
    add_compile(parser, default=True)
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: both")
    models = tuple(dict.fromkeys(weight.model for weight in products.WEIGHTS))
    add("--models", nargs="+", choices=models, help="of the products; default: all")
    add("--rows", nargs="+", type=at_least_one, default=products.ROWS, help="of the products")
    add("--batch", nargs="+", type=at_least_one, default=(1, 4, 8), help="default: 1 4 8")
    add("--of", choices=tokens.MODELS, default="Llama-3.2-1B", help="sizes of the tokens' model")
    weights = (tokens.BF16, *tokens.NARROW)
    add("--weights", choices=weights, default=tokens.BF16, help="of the tokens' model (bf16)")
    add("--layers", type=at_least_one, help="of the model, if not its own")
    add("--places", type=at_least_one, default=512, help="of the cache (512)")
    add("--seconds", type=float, default=0.2, help="of running, for each product (0.2)")


def run(given: argparse.Namespace, report: Report) -> None:
    rate = products.clone_rate(given.device, given.seconds, given.small)
    report.figures["clone_bytes_per_us"] = rate
    report.lines.append(f"clone {rate / 1e6:.3f} TB/s")
    if "products" in given.parts:
        _products(given, report, rate)
    if "tokens" in given.parts:
        _tokens(given, report, rate)


def _products(given: argparse.Namespace, report: Report, rate: float) -> None:
    found: list[products.Measured] = []
    weights = products.SMALL if given.small else products.WEIGHTS
    for weight in (w for w in weights if given.models is None or w.model in given.models):
        for rows in given.rows:
            name = f"{weight.model} {weight.name}, rows {rows}"
            with report.section(name):
                one = products.measure(weight, rows, rate, given.seconds, given.device)
                found.append(one)
                report.figures["products"] = [each.content() for each in found]
                detail = f"{one.error:.2f} times torch's error"
                report.check(name, one.error <= WRONG, detail)
    report.lines += [products.text(found), ""]
    missed = [f"missed: {name}: {text}" for name, met, text in products.gaps(found) if not met]
    report.lines += missed


def _tokens(given: argparse.Namespace, report: Report, rate: float) -> None:
    sizes = replace(tokens.MODELS[given.of], sequence=given.places)
    sizes = replace(tokens.SMALL, experts=sizes.experts) if given.small else sizes
    sizes = replace(sizes, layers=given.layers or sizes.layers)
    report.figures["model"] = {**asdict(sizes), "weights": given.weights}
    found: list[tokens.Measured] = []
    broken: dict[str, str] = {}
    for batch in given.batch:
        with report.section(f"a token, batch {batch}"):
            context = tokens.Context(
                sizes, rate, 10 * given.seconds, given.device, given.compile, given.weights
            )
            measured, failures = tokens.measure(context, batch)
            found += measured
            broken |= {f"{name}, batch {batch}": why for name, why in failures.items()}
            report.figures["tokens"] = [each.content() for each in found]
            report.figures["broken"] = broken
    for name, passed, detail in tokens.checks(found):
        report.check(name, passed, detail)
    report.lines.append(tokens.text(found, broken))
