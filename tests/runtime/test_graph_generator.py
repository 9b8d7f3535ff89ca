# SPDX-License-Identifier: Apache-2.0
"""Whether a capture takes torch's generator: not if it can do without, nor from other threads."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from thunder_fuser.errors import CaptureBusyError
from thunder_fuser.runtime.cuda_graphs import Generator, Recording, other_threads

RECORDING = Recording((), (), lambda: None, 0)


class Piece:
    """A function, and how it was captured, way by way."""

    def __init__(self, *, draws: bool) -> None:
        self.draws, self.ways = draws, ""
        self.run = lambda *_: ()
        self.generator = Generator()

    def capture(self) -> Recording:
        return self.generator.capture(self.run, self._without, self._with)

    def _without(self) -> Recording:
        self.ways += "-"
        if self.draws:
            raise RuntimeError("the generator is not in capture mode\nmore of torch's")
        return RECORDING

    def _with(self) -> Recording:
        self.ways += "+"
        return RECORDING


@contextmanager
def another(name: str) -> Iterator[None]:
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait, name=name)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def test_what_draws_nothing_leaves_the_generator() -> None:
    piece = Piece(draws=False)
    with another("loader"):
        assert piece.capture() is piece.capture() is RECORDING
    assert piece.ways == "--"


def test_what_draws_takes_it_while_nobody_else_could() -> None:
    piece = Piece(draws=True)
    with another("thunder_fuser background"):
        assert piece.capture() is piece.capture() is RECORDING
    assert piece.ways == "-++"  # what failed is not tried twice


def test_what_draws_waits_for_other_threads() -> None:
    piece = Piece(draws=True)
    with another("loader"):
        for _ in range(2):
            with pytest.raises(CaptureBusyError) as caught:
                piece.capture()
    assert "got loader (a capture without them: RuntimeError: the generator is not in" in str(
        caught.value
    )
    assert piece.capture() is RECORDING
    assert piece.ways == "-+"


def test_other_threads() -> None:
    assert other_threads() == []
    with another("loader"), another("thunder_fuser progress"):
        assert other_threads() == ["loader"]


def test_a_progress_bar_is_no_other_thread() -> None:
    """Its thread looks at a clock."""
    tqdm = pytest.importorskip("tqdm")
    with tqdm.tqdm(total=1, file=io.StringIO()) as bar:
        assert bar.monitor in threading.enumerate()
        assert other_threads() == []
