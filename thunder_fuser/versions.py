# SPDX-License-Identifier: Apache-2.0
"""Our version, and a check of torch's, since Thunder's import fails with a worse message."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from thunder_fuser.errors import UnsupportedVersionError

__version__ = "0.1.0"  # the build reads this line and imports nothing
FIRST, FIRST_BAD = (2, 11), (2, 13)


def check_versions() -> None:
    """UnsupportedVersionError unless torch is 2.11 or 2.12."""
    try:
        installed = version("torch")
    except PackageNotFoundError as error:
        raise UnsupportedVersionError("torch", expected="2.11 or 2.12", got="none") from error
    if not FIRST <= parse(installed) < FIRST_BAD:
        raise UnsupportedVersionError(
            "torch",
            expected="2.11 or 2.12, which Lightning Thunder 0.2.6 imports with",
            got=installed,
            do="pip install 'torch>=2.11,<2.13'",
        )


def parse(text: str) -> tuple[int, int]:
    """(major, minor) of a version.

    >>> parse("2.11.0+cu130")
    (2, 11)
    """
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
