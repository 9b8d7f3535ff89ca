# SPDX-License-Identifier: Apache-2.0
"""A small part of `python -m benchmarks decode`, on the CPU."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest
import torch

from benchmarks.decode import products, run, tokens
from benchmarks.report import Report


def small(**changes: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run.add_options(parser)
    given = parser.parse_args(["--small", "--no-compile", "--seconds", "0.001", "--device", "cpu"])
    given.device = torch.device("cpu")
    return argparse.Namespace(**{**vars(given), **changes})


def test_products_are_right_and_measured() -> None:
    report = Report({}, None)
    run.run(small(parts=["products"], rows=[1, 4, 9]), report)
    assert report.failed == []
    found = report.figures["products"]
    assert len(found) == 3 * len(products.SMALL)
    by_rows = {one["rows"]: set(one["us"]) for one in found}
    assert by_rows == {1: {"torch", "ours"}, 4: {"torch", "ours"}, 9: {"torch"}}
    assert all(one["floor"] > 0 and one["of_floor"]["torch"] > 0 for one in found)


@pytest.mark.parametrize(
    ("of", "weights"),
    [("Llama-3.2-1B", tokens.BF16), *(("Llama-3.2-1B", narrow) for narrow in tokens.NARROW),
     ("2 of 8 experts", tokens.BF16)],
)  # fmt: skip
def test_tokens_are_right_and_measured(of: str, weights: str) -> None:
    report = Report({}, None)
    run.run(small(parts=["tokens"], batch=[1, 2], layers=1, of=of, weights=weights), report)
    assert report.failed == [] and report.figures["broken"] == {}
    found = report.figures["tokens"]
    assert [(one["batch"], one["contender"]) for one in found] == [
        (batch, name) for batch in (1, 2) for name in ("eager", "ours")
    ]
    assert all(one["ms"] > 0 and one["error"] < 0.02 for one in found)


def test_a_turned_weight_is_a_matmul() -> None:
    weight = replace(products.SMALL[0], is_turned=True)
    one = products.measure(weight, 1, 1e5, 0.001, torch.device("cpu"))
    assert one.schedulers == ("expr_eval",) and one.error <= run.WRONG
    assert next(products.gaps([one]), None) is None


def test_a_wrong_token_fails() -> None:
    one = tokens.Measured(1, tokens.EAGER, 1.0, 0.5, 1e-2, 0.0)
    found = [one, replace(one, contender=tokens.OURS, error=1.0)]
    assert [passed for _, passed, _ in tokens.checks(found)] == [False]


def test_a_slow_product_misses_the_goal() -> None:
    weight = products.Weight("model", "down", 4096, 8192, 1)
    fast = products.Measured(weight, 1, {"torch": 9.0, "ours": 9.0}, 8.0, ("reduction",), 1.0)
    slow = replace(fast, us={"torch": 9.0, "ours": 18.0})
    assert [met for _, met, _ in products.gaps([fast, slow])] == [True, False]
    assert next(products.sums([fast])) == "model, rows 1: ours 0.009 ms, 0.89 of the floor"


def test_of_experts_only_the_chosen_ones_are_read() -> None:
    sizes = replace(tokens.SMALL, experts=8, layers=1)
    one, four = (tokens.make(sizes, batch, torch.device("cpu")) for batch in (1, 4))
    (net,) = (part for part in one.modules() if isinstance(part, tokens.Experts))
    experts = net.gate.nbytes + net.up.nbytes + net.down.nbytes
    every = sum(weight.nbytes for weight in one.parameters()) - one.tokens.weight.nbytes
    assert one.read_bytes == every - experts * 3 // 4 < four.read_bytes <= every
