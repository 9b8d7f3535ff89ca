# SPDX-License-Identifier: Apache-2.0
"""Short ways to write definitions in tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from thunder_fuser.errors import FuserError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.kinds import Value
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.fusion import Fusion
from thunder_fuser.ir.rules.build import define

Build = Callable[[Recorder], Value | None]


def tensor(fd: Recorder, *shape: int, dtype: DataType = DataType.Float) -> Value:
    return fd.define_tensor(list(shape), True, dtype)


def defined(build: Build) -> Fusion:
    """The fusion of a builder; what it returns is the output."""
    fd = Recorder()
    result = build(fd)
    if result is not None:
        fd.add_output(result)
    return define(fd.definition)


def assert_refused(build: Build, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        defined(build)
    assert type(raised.value) is error
    assert told(raised.value) == message


def told(error: BaseException) -> str:
    """The message, less where it happened."""
    if not isinstance(error, FuserError):
        return str(error)
    return str(type(error)(error.thing, **{**error.facts, "where": ""}))
