# SPDX-License-Identifier: Apache-2.0
"""A full cache evicts the longest unused definition, and nothing that somebody needs."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from thunder_fuser.cache import executable
from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import DefinitionError, OptionError
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.record import Definition, OpRecord
from thunder_fuser.options import options

OPS = ("exp", "neg", "sin", "relu")


def chain(*ops: str) -> Definition:
    """A tensor through some ops, one after the other; `bad` has no meaning."""
    fd = Recorder()
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    for op in ops:
        x = fd.ops.sum(x, [5]) if op == "bad" else getattr(fd.ops, op)(x)
    fd.add_output(x)
    return fd.definition


def held(cache: FusionCache) -> list[int]:
    """The ids in the tree, as it prints."""
    lines = str(cache).splitlines()
    return [int(line.split("fusion ")[1].split()[0]) for line in lines if "<- fusion" in line]


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_the_longest_unused_goes(capacity: int) -> None:
    cache = FusionCache(max_fusions=capacity)
    for op in OPS:
        cache.look_up(chain(op))
    assert held(cache) == list(range(4 - capacity, 4))
    assert cache.stats().evictions == 4 - capacity
    assert cache.num_fusions() == capacity
    assert cache.stats().nodes == 1 + 2 * capacity


def test_a_hit_is_a_use() -> None:
    cache = FusionCache(max_fusions=2)
    for op in ("exp", "neg", "exp", "sin"):
        cache.look_up(chain(op))
    assert held(cache) == [0, 2]


def test_a_shared_prefix_survives_its_sibling() -> None:
    cache = FusionCache(max_fusions=2)
    cache.look_up(chain("exp", "neg"))
    cache.look_up(chain("exp", "sin"))
    cache.look_up(chain("relu"))
    assert held(cache) == [1, 2]
    assert cache.stats().nodes == 1 + 3 + 2
    cache.look_up(chain("exp", "sin"))
    assert cache.stats().hits == 1


def test_a_leaf_on_the_path_to_another_is_not_pruned() -> None:
    def outputs(count: int) -> Definition:
        fd = Recorder()
        x = fd.define_tensor(shape=[-1], contiguity=True)
        for _ in range(count):
            fd.add_output(fd.ops.exp(x))
        return fd.definition

    cache = FusionCache(max_fusions=2)
    one, two, three = outputs(1), outputs(2), outputs(3)
    cache.look_up(one)
    cache.look_up(two)
    cache.look_up(three)  # the shortest goes: its records still lead to the others
    assert held(cache) == [1, 2] and cache.stats().nodes == len(three)
    cache.look_up(two)
    cache.look_up(one)  # the longest goes, with what only it needs
    assert cache.stats().nodes == len(two)


def test_ids_are_never_given_twice() -> None:
    cache = FusionCache(max_fusions=1)
    numbers = [cache.look_up(chain(op)).number for op in (*OPS, *OPS)]
    assert numbers == list(range(8))


def test_an_evicted_entry_that_is_held_comes_back_as_itself() -> None:
    cache = FusionCache(max_fusions=1)
    first = cache.look_up(chain("exp"))
    second = cache.look_up(chain("neg"))
    assert cache.look_up(chain("exp")) is first
    assert cache.look_up(chain("neg")) is second
    assert cache.stats().misses == 4


def test_eviction_frees_at_once() -> None:
    """By reference counts alone: no cycle waits for the collector, and so no kernel."""
    with FusionCache(max_fusions=1) as cache:
        gc.collect()
        gc.disable()
        try:
            x = torch.ones(3, 4)
            with FusionDefinition() as fd:
                fd.add_output(fd.ops.exp(fd.from_pytorch(x)))
            fd.execute([x])
            entry = weakref.ref(fd.entry)
            run = weakref.ref(fd.program([x]).run)
            del fd
            assert entry() is not None and run() is not None
            cache.look_up(chain("neg"))
            assert entry() is None and run() is None
        finally:
            gc.enable()


def test_a_callable_outlives_its_leaf() -> None:
    x = torch.randn(3, 4)
    with FusionCache(max_fusions=1) as cache:
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.neg(fd.from_pytorch(x)))
        call = fd.entry.prepare().callable()
        del fd
        cache.look_up(chain("sin"))
        assert torch.equal(call(x)[0], -x)  # compiled now
        y = torch.randn(5, 6)
        assert torch.equal(call(y)[0], -y)


def test_a_definition_that_fails_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = executable.define
    monkeypatch.setattr(executable, "define", lambda d: made.append(d) or original(d))
    cache = FusionCache(max_fusions=2)
    raised = []
    for _ in range(3):
        with pytest.raises(DefinitionError) as error:
            cache.look_up(chain("bad"))
        raised.append(error.value)
    assert len(made) == 1 and len({str(error) for error in raised}) == 1
    assert len({id(error) for error in raised}) == 3  # else each raise would add its frames
    assert raised[0].facts == raised[2].facts
    assert cache.stats().failed == 1 and cache.num_fusions() == 0
    assert str(cache).count("<- fusion 0 failed") == 1


def test_failed_definitions_are_evicted_too() -> None:
    cache = FusionCache(max_fusions=2)
    for ops in (("bad",), ("exp", "bad"), ("neg", "bad"), ("sin",)):
        try:
            cache.look_up(chain(*ops))
        except DefinitionError:
            continue
    assert cache.stats().evictions == 2
    assert (cache.stats().failed, cache.num_fusions()) == (1, 1)


def test_a_record_that_cannot_be_hashed_leaves_nothing() -> None:
    cache = FusionCache()
    odd = OpRecord("exp", ("T0",), ("T1",), (("dims", [1]),))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        cache.look_up((*chain("exp"), odd))
    assert cache.stats().nodes == 0


def test_a_leaf_in_use_is_pinned() -> None:
    cache = FusionCache(max_fusions=1)
    entry = cache.look_up(chain("exp"))
    entry.pin()
    for op in ("neg", "sin"):
        cache.look_up(chain(op))
    assert held(cache) == [0, 2]  # over capacity while its call lasts
    entry.unpin()
    cache.look_up(chain("relu"))
    assert held(cache) == [3]


def test_a_call_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eviction in the middle of a compilation, as another thread may cause it."""
    x = torch.randn(3, 4)
    with FusionCache(max_fusions=1) as cache:
        fd = FusionDefinition()
        fd.add_output(fd.ops.relu(fd.from_pytorch(x)))
        seen = []
        original = executable.Programs.program_for

        def interrupted(self: Any, *args: Any) -> Any:
            cache.look_up(chain("sin"))
            seen.append(held(cache))
            return original(self, *args)

        monkeypatch.setattr(executable.Programs, "program_for", interrupted)
        assert torch.equal(fd.execute([x])[0], x.relu())
        assert seen == [[0, 1]]
        cache.look_up(chain("exp"))
        assert held(cache) == [2]


def test_the_capacity_can_be_set() -> None:
    with FusionCache() as cache:
        assert cache.stats().capacity == 8192
        for op in OPS:
            cache.look_up(chain(op))
        assert FusionCache.get(max_fusions=2) is cache
        assert held(cache) == [2, 3] and cache.stats().nodes == 5
    for wrong in (0, -1, True, 2.0, "3"):
        with pytest.raises(OptionError, match="max_fusions: expected a number of at least 1"):
            FusionCache(max_fusions=wrong)  # type: ignore[arg-type]
    with options(max_fusions=7):
        assert FusionCache().stats().capacity == 7


def test_a_private_cache() -> None:
    outer = FusionCache.get()
    with FusionCache() as one:
        assert FusionCache.get() is one
        with FusionCache() as two:
            assert FusionCache.get() is two
            other: list[FusionCache] = []
            worker = threading.Thread(target=lambda: other.append(FusionCache.get()))
            worker.start()
            worker.join()
            assert other == [two]
        assert FusionCache.get() is one
    assert FusionCache.get() is outer


def test_programs_of_a_leaf_are_bounded() -> None:
    x = [torch.randn(n, 4) for n in (2, 3, 4, 5)]
    with FusionCache(), options(max_programs=2):
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.neg(fd.from_pytorch(x[0])))
        call = fd.entry.prepare().callable()
        for one in (*x, *x):
            assert torch.equal(call(one)[0], -one)
            assert len(fd.entry.held_programs()) <= 2
            assert len(call.runners) <= 2


def test_a_definition_of_many_ops() -> None:
    """Deeper than Python's recursion: nothing walks the tree by calling itself."""
    cache = FusionCache(max_fusions=1)
    deep = chain(*["neg"] * 3000)
    entry = cache.look_up(deep)
    assert len(str(cache).splitlines()) == 1 + len(deep) == 1 + len(cache.stats().visits)
    del entry
    cache.look_up(chain("exp"))
    assert cache.stats().nodes == 3


def test_a_copy_of_an_error_says_the_same() -> None:
    error = DefinitionError("T0", expected="rank 2", got="rank 3", do="pass a matrix")
    again = copy.copy(error)
    assert (str(again), again.thing, again.facts) == (str(error), error.thing, error.facts)


class Model(RuleBasedStateMachine):
    """The cache against a dictionary in the order of use."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = FusionCache(max_fusions=3)
        self.capacity, self.next = 3, 0
        self.model: OrderedDict[Definition, int] = OrderedDict()
        self.hits = self.misses = self.evictions = 0

    @rule(ops=st.lists(st.sampled_from(["exp", "neg", "bad"]), min_size=1, max_size=3))
    def look_up(self, ops: list[str]) -> None:
        definition = chain(*ops)
        if definition in self.model:
            self.hits += 1
            self.model.move_to_end(definition)
        else:
            self.misses += 1
            self.model[definition], self.next = self.next, self.next + 1
            self._shrink()
        if "bad" in ops:
            with pytest.raises(DefinitionError):
                self.cache.look_up(definition)
        else:
            assert self.cache.look_up(definition).number == self.model[definition]

    @rule(capacity=st.integers(1, 4))
    def set_capacity(self, capacity: int) -> None:
        self.capacity = capacity
        self.cache.set_capacity(capacity)
        self._shrink()

    def _shrink(self) -> None:
        while len(self.model) > self.capacity:
            self.model.popitem(last=False)
            self.evictions += 1

    @invariant()
    def agrees(self) -> None:
        stats = self.cache.stats()
        assert (stats.hits, stats.misses) == (self.hits, self.misses)
        assert stats.evictions == self.evictions
        assert sorted(held(self.cache)) == sorted(self.model.values())
        paths = {one[:n] for one in self.model for n in range(1, len(one) + 1)}
        assert stats.nodes == len(paths) == len(stats.visits)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
