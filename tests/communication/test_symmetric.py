# SPDX-License-Identifier: Apache-2.0
"""Exchanges on CUDA without a device: what the driver is asked, on memory of this process."""

from __future__ import annotations

import ctypes
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from thunder_fuser.communication.transport import symmetric
from thunder_fuser.communication.transport.exchange import BufferLayout
from thunder_fuser.communication.transport.symmetric import SymmetricExchange
from thunder_fuser.options import options

FORM = BufferLayout("test", 3, 5, 4, torch.float32, 6)


class Event:
    def record(self, stream: object) -> None:
        pass

    def query(self) -> bool:
        return True


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[SymmetricExchange]:
    """Two ranks whose streams do everything at once; a wait for a flag that is down is an error."""
    stream = SimpleNamespace(cuda_stream=7, wait_event=lambda _: None)

    def write(_: int, address: int, value: int) -> None:
        ctypes.c_int32.from_address(address).value = value

    def wait(_: int, address: int, value: int) -> None:
        assert ctypes.c_int32.from_address(address).value >= value, "would wait for ever"

    monkeypatch.setattr(symmetric, "write_value", write)
    monkeypatch.setattr(symmetric, "wait_value", wait)
    monkeypatch.setattr(symmetric, "copy", lambda _, *pair_and_size: ctypes.memmove(*pair_and_size))
    monkeypatch.setattr(symmetric, "_copy_stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    at = 256
    memories = [torch.zeros(at + 8 * 4, dtype=torch.uint8) for _ in range(2)]
    return [
        SymmetricExchange(FORM, Handle(rank, memories), memories[rank], at) for rank in range(2)
    ]


class Handle:
    """Of torch's symmetric memory."""

    def __init__(self, rank: int, memories: list[torch.Tensor]) -> None:
        self.rank, self.world_size, self._memories = rank, len(memories), memories
        self.buffer_ptrs = [one.data_ptr() for one in memories]

    def get_buffer(
        self, rank: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        memory = self._memories[rank]
        return memory[: FORM.bytes].view(dtype).view(shape)


def test_put(ranks: list[SymmetricExchange]) -> None:
    source = torch.randn(5, 4)
    with ranks[0].call(), ranks[1].call():
        ranks[0].put(source, slice(1, 3), 1, 2, 4)
        ranks[1].await_flag(0, 4)
    expected = torch.zeros(3, 5, 4)
    expected[2, 1:3] = source[1:3]
    assert torch.equal(ranks[1].local, expected)
    assert torch.equal(ranks[0].peers[1], expected)
    assert not ranks[0].local.any()
    assert ranks[1].flags.tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    assert not ranks[0].flags.any()


def test_get(ranks: list[SymmetricExchange]) -> None:
    ranks[1].local.normal_()
    target = torch.zeros(5, 4)
    for turn in range(3):
        with ranks[0].call(), ranks[1].call():
            with pytest.raises(AssertionError, match="would wait for ever"):
                ranks[0].get(target, slice(0, 5), 1, 1, 0)
            ranks[1].raise_flag(0, 0)
            ranks[0].get(target, slice(2, 5), 1, 1, 0)()
        assert ranks[0].flags[0] == turn + 1
    assert torch.equal(target[2:], ranks[1].local[1, 2:])
    assert not target[:2].any()


def test_events_are_kept(ranks: list[SymmetricExchange]) -> None:
    target = torch.zeros(5, 4)
    kept = []
    for _ in range(2):
        with ranks[0].call(), ranks[1].call():
            ranks[1].raise_flag(0, 0)
            for _ in range(2):
                ranks[0].get(target, slice(0, 5), 1, 0, 0)
        kept.append(list(ranks[0]._arrivals))
    assert len(kept[0]) == 2
    assert kept[0] == kept[1]


def test_samples(ranks: list[SymmetricExchange]) -> None:
    """One for all calls until then; none where no call came since."""
    assert ranks[0].sample() is None
    with ranks[0].call():
        pass
    is_done = ranks[0].sample()
    assert is_done is not None
    assert is_done()
    assert ranks[0].sample() is None


def test_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's time-out, the option's seconds, or for ever."""
    group = SimpleNamespace(
        _get_backend=lambda _: SimpleNamespace(
            options=SimpleNamespace(_timeout=timedelta(minutes=3))
        )
    )
    cpu = torch.device("cpu")
    assert symmetric._timeout(group, cpu) == 180
    with options(peer_timeout=5):
        assert symmetric._timeout(group, cpu) == 5
    with options(peer_timeout=0):
        assert symmetric._timeout(group, cpu) == float("inf")
