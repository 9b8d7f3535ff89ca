# SPDX-License-Identifier: Apache-2.0
"""Tables: each missing value is made once at a time, and what is bounded stays so."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor

import pytest

from thunder_fuser.base.threads import Bounded, SingleFlight

LONG = 60.0  # seconds until a thread counts as stuck
SHORT = 0.3  # seconds in which a thread that should wait would show that it does not


def test_a_failure_is_not_remembered() -> None:
    table: SingleFlight[int] = SingleFlight({})
    with pytest.raises(ZeroDivisionError):
        table.get("key", lambda: 1 // 0)
    assert table.get("key", lambda: 5) == table.get("key", lambda: 6) == 5


class Forgetful(dict[Hashable, int]):
    """Forgets at once, as a weak table may. asked: released when somebody looked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Semaphore(0)

    def get(self, key: Hashable, default: int | None = None) -> int | None:  # type: ignore[override]
        self.asked.release()
        return default

    def __setitem__(self, key: Hashable, value: int) -> None:
        pass


def test_two_never_make_one_value_at_the_same_time() -> None:
    """Also where the first one's value is forgotten while a second waits and a third comes."""
    values = Forgetful()
    table: SingleFlight[int] = SingleFlight(values)
    first_makes, go_on, second_makes, third_makes = (threading.Event() for _ in range(4))

    def first() -> int:
        first_makes.set()
        assert go_on.wait(LONG)
        return 1

    def second() -> int:
        second_makes.set()
        assert not third_makes.wait(SHORT)
        return 2

    def third() -> int:
        third_makes.set()
        return 3

    with ThreadPoolExecutor(max_workers=3) as pool:
        made = [pool.submit(table.get, "key", first)]
        assert first_makes.wait(LONG)
        made.append(pool.submit(table.get, "key", second))
        for _ in range(3):  # the first looked twice
            assert values.asked.acquire(timeout=LONG)
        go_on.set()
        assert second_makes.wait(LONG)
        made.append(pool.submit(table.get, "key", third))
        assert [one.result(LONG) for one in made] == [1, 2, 3]
    assert not table._turns


def test_different_keys_at_the_same_time() -> None:
    table: SingleFlight[int] = SingleFlight({})
    both = threading.Barrier(2)

    def make(key: int) -> int:
        both.wait(LONG)
        return key

    with ThreadPoolExecutor(max_workers=2) as pool:
        assert list(pool.map(lambda key: table.get(key, lambda: make(key)), (1, 2))) == [1, 2]
    assert table.values == {1: 1, 2: 2} and not table._turns


def test_a_bounded_table_drops_the_oldest() -> None:
    table: Bounded[int] = Bounded(3)
    assert [table.keep(at, at * 10) for at in range(5)] == [0, 10, 20, 30, 40]
    assert [table.get(at) for at in range(5)] == [None, None, 20, 30, 40] and len(table) == 3
    assert table.keep(4, 99) == 40


def test_threads_that_keep_agree() -> None:
    table: Bounded[object] = Bounded(8)

    def work(turn: int) -> bool:
        for at in range(2000):
            table.keep((turn + at) % 16, object())
        return len(table) <= 8

    with ThreadPoolExecutor(max_workers=8) as pool:
        assert all(pool.map(work, range(8)))
        (kept,) = {id(one) for one in pool.map(lambda _: table.keep("new", object()), range(8))}
        assert id(table.get("new")) == kept
