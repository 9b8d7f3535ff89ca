# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the bytes of a library is found before they are loaded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.stores import library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thunder_fuser.runtime import toolchain
from thunder_fuser.store.entry import problem_of

TEXT = 'extern "C" { int given = 7; int wanted() { return given; } int missing(); }\n'
SHARED = ("-shared", "-fPIC")


class Wholes(dict[str, bytes]):
    """Not shown where a test fails: they are long."""

    def __repr__(self) -> str:
        return "wholes"


def built(text: str = TEXT, flags: tuple[str, ...] = SHARED) -> bytes:
    return toolchain.library(toolchain.library_recipe("wanted", text, flags, {}), {}).code


@pytest.fixture(scope="module")
def wholes() -> Wholes:
    """Libraries of this machine's compiler, and the least one."""
    stripped = built(flags=(*SHARED, "-s", "-nostartfiles"))
    return Wholes(built=built(), stripped=stripped, least=library("wanted"))


@pytest.fixture(params=["built", "stripped", "least"])
def whole(request: pytest.FixtureRequest, wholes: Wholes) -> bytes:
    return wholes[request.param]


def test_whole_libraries_pass(whole: bytes) -> None:
    assert problem_of(whole, "wanted") == ""
    assert "without the function missing" in problem_of(whole, "missing")
    assert "without the function want" in problem_of(whole, "want")


def test_every_cut_is_found(whole: bytes) -> None:
    lengths = {*range(0, len(whole), 7), *range(len(whole) - 70, len(whole))}
    assert [length for length in lengths if not problem_of(whole[:length], "wanted")] == []
    # As by a copy that was interrupted: the end is there, but holds nothing.
    for length in lengths:
        rest = whole[length:]
        if rest.strip(b"\0") and length <= len(whole) // 2:
            assert problem_of(whole[:length] + bytes(len(rest)), "wanted")


def other_kinds(whole: bytes) -> Iterator[bytes]:
    yield whole[:4] + b"\1" + whole[5:]  # of 32 bits
    yield whole[:16] + b"\1" + whole[17:]  # an object file
    yield b"!<arch>\n" + whole
    yield b"#!/bin/sh\n"
    yield b""


def test_other_files_are_found(whole: bytes) -> None:
    assert all(problem_of(one, "wanted") for one in other_kinds(whole))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), kind=st.sampled_from(["built", "stripped", "least"]))
def test_any_bytes_have_an_answer(
    data: st.DataObject, kind: str, wholes: Wholes
) -> None:
    """Never an error, nor a loop that does not end."""
    bad = bytearray(wholes[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(bad), 300) - 1))
        bad[at] = data.draw(st.integers(0, 255))
    assert isinstance(problem_of(bytes(bad), "wanted"), str)
    assert problem_of(data.draw(st.binary(max_size=300)), "wanted")
