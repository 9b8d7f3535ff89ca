# SPDX-License-Identifier: Apache-2.0
"""The caches under load.

Random definitions, threads, deep models, a long walk, other processes. Every result is compared
with torch. Kernels go to a store of its own, which is removed.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.report import Report
from thunder_fuser import FusionCache, FusionDefinition
from thunder_fuser.demo.blocks import SMALL, GPTBlock, make_input
from thunder_fuser.explain.jitted import jit
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.record import Definition
from thunder_fuser.options import options
from thunder_fuser.runtime import binaries, toolchain
from thunder_fuser.store.store import current_store

UNARY = ("neg", "sin", "cos", "tanh", "relu", "sigmoid", "exp", "abs")
SHAPES = ((3, 8), (5, 4), (16,))
MOST_OPS = 3
JOIN_SECONDS = 120  # a thread that has not ended by then is stuck


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--definitions", type=int, default=20_000, help="random ones, through 64 leaves")
    add("--seconds", type=float, default=60, help="how long 8 threads create, hit and evict")
    add("--layers", type=int, default=32, help="of the model that is compared with two layers")


def run(given: argparse.Namespace, report: Report) -> None:
    with report.section("threads"), private_store():
        busy = threads_for(given.seconds, count=8, capacity=16)
        report.figures["threads"] = vars(busy)
        report.lines.append(str(busy))
        report.check("one compilation a key", busy.compiled == busy.kernels, str(busy))
    with report.section("layers"):
        kernels = {count: kernels_of_layers(count) for count in (2, given.layers)}
        report.figures["kernels_by_layers"] = kernels
        report.lines += [f"{count} GPT-2-like layers: {n} kernels" for count, n in kernels.items()]
        report.check("layers", len(set(kernels.values())) == 1, str(kernels))
    with report.section("processes"):
        first, second = report.figures["processes"] = [vars(one) for one in demos(2)]
        report.lines += [f"the demo in a process of its own: {one}" for one in (first, second)]
        report.check("nothing is compiled twice", second["compiled"] == 0, str(second))
        faster = first["seconds"] >= 5 * second["seconds"]
        report.check("the second process is 5 times faster", faster, f"{first}, {second}")
    with report.section("walk"):
        cost = report.figures["walk_us_an_op"] = walk_cost()
        report.lines.append(f"a hit in the trie: {cost:.2f} us an op of a definition of 100")
        report.check("walk", cost < 1, f"{cost:.2f} us an op")
    with report.section("definitions"), private_store():
        found = many_definitions(given.definitions, capacity=64)
        report.figures["definitions"] = vars(found)
        report.lines.append(str(found))
        report.check("nodes", found.most_nodes <= found.bound, f"{found.most_nodes} nodes")
        report.check("memory", found.is_flat, f"{found.kib} KiB")


@contextmanager
def private_store() -> Iterator[None]:
    """A cache and a store that begin empty, and nothing loaded."""
    toolchain.forget()
    with tempfile.TemporaryDirectory() as folder, options(cache_dir=folder + "/store"):
        yield


# ---- definitions


@dataclass
class Definitions:
    """kib: Python's memory after each tenth. bound: the records of so many longest definitions."""

    count: int
    capacity: int
    evictions: int
    hits: int
    most_nodes: int
    bound: int
    compiled: int
    seconds: float
    kib: list[float]

    @property
    def is_flat(self) -> bool:
        """Whether no tenth stands above the first three, but for two hundredths and 16 KiB.

        The leaves held at one time are some longer and some shorter than those at another.
        """
        return max(self.kib[3:]) <= 1.02 * max(self.kib[:3]) + 16

    def __str__(self) -> str:
        return (
            f"{self.count} definitions through {self.capacity} leaves: {self.evictions} evictions,"
            f" {self.hits} hits, at most {self.most_nodes} nodes, {self.compiled} kernels compiled,"
            f" {self.seconds:.0f} s, KiB after each tenth"
            f" {' '.join(f'{one:.0f}' for one in self.kib)}, results right"
        )


def many_definitions(count: int, capacity: int, seed: int = 0) -> Definitions:
    """Random definitions, run once each: results, nodes and memory are looked at as they go."""
    rng = random.Random(seed)
    start, compiled = time.perf_counter(), binaries.binaries().compiled
    kib, most_nodes = [], 0
    with FusionCache(max_fusions=capacity) as cache:
        tracemalloc.start()
        try:
            for number in range(count):
                one_definition(rng)
                most_nodes = max(most_nodes, cache.stats().nodes)
                if (number + 1) % max(count // 10, 1) == 0:
                    gc.collect()
                    kib.append(tracemalloc.get_traced_memory()[0] / 1024)
        finally:
            tracemalloc.stop()
        stats = cache.stats()
    return Definitions(
        count, capacity, stats.evictions, stats.hits, most_nodes, capacity * (MOST_OPS * 2 + 2),
        binaries.binaries().compiled - compiled, time.perf_counter() - start, kib,
    )  # fmt: skip


def one_definition(rng: random.Random) -> None:
    """Some ops, each in a kernel of its own, so that few kernels serve all definitions."""
    x = torch.rand(rng.choice(SHAPES))
    ops = rng.choices(UNARY, k=rng.randint(1, MOST_OPS))
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        for op in ops:
            t = fd.ops.segment_set(getattr(fd.ops, op)(t))
        fd.add_output(t)
    check(fd.execute([x], target="cpu")[0], x, ops)


def check(result: torch.Tensor, x: torch.Tensor, ops: Sequence[str]) -> None:
    """Raises AssertionError unless a result is torch's."""
    for op in ops:
        x = getattr(torch, op)(x)
    torch.testing.assert_close(result, x, rtol=1e-4, atol=1e-5)


# ---- threads


@dataclass
class Threads:
    """kernels: files in the store, which had none; compiled: runs of the compiler."""

    threads: int
    seconds: float
    calls: int
    hits: int
    misses: int
    evictions: int
    compiled: int
    kernels: int

    def __str__(self) -> str:
        return (
            f"{self.threads} threads for {self.seconds:.0f} s: {self.calls} calls,"
            f" {self.hits} hits, {self.misses} misses, {self.evictions} evictions,"
            f" {self.compiled} compilations of {self.kernels} kernels, results right"
        )


def threads_for(seconds: float, count: int, capacity: int) -> Threads:
    """Threads that create, hit and evict at the same time. RuntimeError if one stands still."""
    end, calls, errors = time.monotonic() + seconds, [0] * count, list[BaseException]()
    compiled = binaries.binaries().compiled

    def work(number: int) -> None:
        rng = random.Random(number)
        try:
            while time.monotonic() < end and not errors:
                one_definition(rng)
                calls[number] += 1
        except BaseException as error:
            errors.append(error)

    with FusionCache(max_fusions=capacity) as cache:
        workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(seconds + JOIN_SECONDS)
        if any(worker.is_alive() for worker in workers):
            raise RuntimeError("a thread stands still")
        if errors:
            raise errors[0]
        stats = cache.stats()
    store = current_store()
    kernels = len(store.stored_files()) if store else 0
    return Threads(
        count, seconds, sum(calls), stats.hits, stats.misses, stats.evictions,
        binaries.binaries().compiled - compiled, kernels,
    )  # fmt: skip


# ---- layers


def kernels_of_layers(count: int) -> int:
    """What a GPT-2-like model of so many layers compiles, forward and backward, from nothing."""
    torch.manual_seed(0)
    gc.collect()
    x, _ = make_input(SMALL, torch.float32, "cpu")
    with private_store(), FusionCache():
        before = binaries.binaries().compiled
        model = jit(nn.Sequential(*(GPTBlock(SMALL) for _ in range(count))), strict=True)
        model(x).sum().backward()
        return binaries.binaries().compiled - before


# ---- processes


@dataclass
class Demo:
    """seconds: in compilers and in the store, all threads added up."""

    compiled: int
    from_store: int
    seconds: float


def demos(count: int) -> list[Demo]:
    """Runs the demo in processes, one after the other, with a store that begins empty."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "THUNDER_FUSER_CACHE_DIR": folder + "/store"}
        return [_demo(environment) for _ in range(count)]


def _demo(environment: Mapping[str, str]) -> Demo:
    command = [sys.executable, "-W", "ignore", "-m", "thunder_fuser", "demo"]
    printed = subprocess.check_output(command, env=environment, text=True)
    line = r"Kernels: (\d+) compiled, (\d+) found in the store, ([\d.]+) s"
    found = re.search(line, printed)
    assert found, printed
    return Demo(int(found[1]), int(found[2]), float(found[3]))


# ---- the walk


def walk_cost(ops: int = 100, rounds: int = 50) -> float:
    """Microseconds an op to find a definition that was recorded anew; the best of the rounds."""
    cache = FusionCache()
    cache.look_up(recorded(ops))
    costs = []
    for _ in range(rounds):
        definition = recorded(ops)
        start = time.perf_counter()
        cache.look_up(definition)
        costs.append((time.perf_counter() - start) / len(definition))
    return min(costs) * 1e6


def recorded(ops: int) -> Definition:
    """Sums and products in turn."""
    fd = Recorder()
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    y = fd.define_tensor(shape=[-1, -1], contiguity=True)
    for at in range(ops):
        x = fd.ops.add(x, y) if at % 3 else fd.ops.mul(x, 2.0)
    fd.add_output(x)
    return fd.definition
