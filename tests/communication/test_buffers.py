# SPDX-License-Identifier: Apache-2.0
"""Memory that lasts from call to call: what shares it, what does not, and what is freed."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder_fuser.communication.transport.buffers import BufferCache, BufferKey
from thunder_fuser.ir.strides import contiguous_strides


def key(*sizes: int, **changed: object) -> BufferKey:
    made = BufferKey("T3", sizes, tuple(contiguous_strides(sizes)), torch.float32, "cpu")
    return replace(made, **changed)  # type: ignore[arg-type]


class Plain(NamedTuple):
    """A buffer that is one tensor."""

    tensor: torch.Tensor

    @property
    def bytes(self) -> int:
        return self.tensor.nbytes

    def close(self) -> None:
        pass


def take(cache: BufferCache, of: BufferKey) -> torch.Tensor:
    return cache.get(
        of, lambda: Plain(torch.empty_strided(of.sizes, of.strides, dtype=of.dtype)), lambda: None
    ).tensor


class Held:
    """An entry that says when it is freed."""

    def __init__(self, name: str, size: int, log: list[str]) -> None:
        self.name, self.bytes, self._log = name, size, log

    def close(self) -> None:
        self._log.append(self.name)


def test_the_same_memory_again() -> None:
    cache = BufferCache()
    first = take(cache, key(4, 3))
    first.fill_(7)
    again = take(cache, key(4, 3))
    assert again.data_ptr() == first.data_ptr()
    assert (again == 7).all()
    assert str(cache) == "1 of 48 bytes; 1 hit, 1 miss, 0 evicted"


@pytest.mark.parametrize("changed", [
    {"statement": "T4"}, {"strides": (1, 4)}, {"dtype": torch.int32}, {"stream": 1},
    {"group": "0"}, {"sizes": (3, 4), "strides": (4, 1)},
], ids=lambda changed: next(iter(changed)))  # fmt: skip
def test_every_field_is_part_of_the_key(changed: dict[str, object]) -> None:
    cache = BufferCache()
    one, other = take(cache, key(4, 3)), take(cache, key(4, 3, **changed))
    assert one.data_ptr() != other.data_ptr()


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=2, max_size=12))
def test_after_a_change_of_shape_nothing_old_is_read(shapes: list[tuple[int, int]]) -> None:
    """nvFuser's cache maps a node to a tensor, whatever its sizes."""
    cache = BufferCache(most_bytes=64)
    for number, shape in enumerate(shapes):
        found = take(cache, key(*shape))
        assert found.shape == shape
        found.fill_(number + 1)
        assert (take(cache, key(*shape)) == number + 1).all()


def test_the_least_recently_used_of_a_group_go_in_pairs() -> None:
    cache, log = BufferCache(most_bytes=100), []

    def use(statement: str, group: str = "0") -> Held:
        of = key(1, statement=statement, group=group)
        return cache.get(
            of, lambda: Held(statement, 20, log), lambda: log.append(f"before {group}"), count=2
        )

    first = [use("a"), use("a"), use("a")]
    assert first[0] is first[2] is not first[1]
    use("b"), use("b")
    use("a")
    assert log == []
    use("c"), use("c")
    assert log == ["before 0", "b", "b"]
    use("x", "1"), use("x", "1"), use("y", "1"), use("y", "1")
    assert len(log) == 3  # another group has a bound of its own
    use("b"), use("b")
    assert log[3:] == ["before 0", "a", "a"]


def test_the_newest_stays_whatever_its_size() -> None:
    cache, log = BufferCache(most_bytes=10), []
    one = cache.get(key(1), lambda: Held("a", 50, log), lambda: None, count=2)
    other = cache.get(key(1), lambda: Held("a", 50, log), lambda: None, count=2)
    assert one is not other
    assert log == []


def test_released_groups_begin_anew() -> None:
    cache, log = BufferCache(), []
    for statement in ("a", "b"):
        of = key(1, statement=statement, group="0")
        cache.get(of, lambda: Held("x", 1, log), lambda: None, count=2)
    cache.get(key(1, group="1"), lambda: Held("y", 1, log), lambda: None)
    cache.release("0", lambda: log.append("before"))
    cache.release("0", lambda: log.append("before"))
    assert log == ["before", "x", "x"]
    assert [each.group for each, _ in cache.entries()] == ["1"]
    cache.release("1", lambda: log.append("before 1"))
    assert log[3:] == ["before 1", "y"]
    assert cache.entries() == []


def test_a_buffer_that_cannot_be_made_is_made_at_the_next_call() -> None:
    """No buffer is used twice in a row meanwhile."""
    cache, of = BufferCache(), key(1)

    def fail() -> Plain:
        raise ValueError

    first = cache.get(of, lambda: Plain(torch.empty(1)), lambda: None, count=2)
    with pytest.raises(ValueError):
        cache.get(of, fail, lambda: None, count=2)
    assert [one for _, one in cache.entries()] == [first]
    assert cache.get(of, lambda: Plain(torch.empty(1)), lambda: None, count=2) is not first
