# SPDX-License-Identifier: Apache-2.0
"""How a collective is waited for: how long, and in which order its result lies."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from helpers.meshes import as_rank

from thunder_fuser.communication.transport.collectives import Posted, wait
from thunder_fuser.errors import PeerError


class Work:
    """A collective that was sent; it ends, or fails as torch does."""

    def __init__(self, error: str = "") -> None:
        self.error, self.waits = error, list[tuple[object, ...]]()

    def wait(self, *limit: object) -> None:
        self.waits.append(limit)
        if self.error:
            raise RuntimeError(self.error)


@pytest.mark.parametrize(
    ("device", "limit"),
    [("cpu", (timedelta(seconds=5),)), ("meta", ())],  # beside a CPU the group's own limit holds
    ids=str,
)
def test_how_long(device: str, limit: tuple[object, ...]) -> None:
    work, result = Work(), torch.ones(2, 3)
    sent = Posted("all_gather", work, lambda: result, torch.empty(2, 3, device=device))
    assert wait(sent, "T1", 5.0) is result and work.waits == [limit]


def test_in_which_order() -> None:
    result = torch.arange(6.0).view(2, 3)
    sent = Posted("all_gather", None, lambda: result, result)
    assert wait(sent, "T1", strides=(3, 1)) is result
    turned = wait(sent, "T1", strides=(1, 2))
    assert turned.stride() == (1, 2) and torch.equal(turned, result)


def test_a_peer_that_is_gone() -> None:
    sent = Posted("all_gather over [0, 1]", Work("Timed out\nstack"), torch.Tensor, torch.ones(1))
    with as_rank(1, 2), pytest.raises(PeerError) as error:
        wait(sent, "T1", 5.0)
    assert str(error.value).startswith(
        "rank 1: T1 = all_gather over [0, 1]: expected the other devices of the group within 5 s, "
        "got Timed out."
    )
