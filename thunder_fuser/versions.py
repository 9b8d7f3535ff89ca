# SPDX-License-Identifier: Apache-2.0
"""Our version, and a check of torch's and Thunder's, whose imports fail with worse messages."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from thunder_fuser.errors import UnsupportedVersionError

__version__ = "0.1.0"  # the build reads this line and imports nothing
FIRST, FIRST_BAD = (2, 11), (2, 16)
THUNDER = "0.2.6"  # the one that was tested; in a later one nothing is replaced


def check_versions() -> None:
    """UnsupportedVersionError unless torch is 2.11 to 2.15, and Thunder 0.2.6 or later."""
    try:
        installed = version("torch")
    except PackageNotFoundError as error:
        raise UnsupportedVersionError("torch", expected="2.11 to 2.15", got="none") from error
    if not FIRST <= parse(installed) < FIRST_BAD:
        raise UnsupportedVersionError(
            "torch",
            expected="2.11 to 2.15, with which this version was tested",
            got=installed,
            do="pip install 'torch>=2.11,<2.16'",
        )
    _check_thunder()


def _check_thunder() -> None:
    try:
        installed = version("lightning-thunder")
    except PackageNotFoundError:  # a copy of its source
        return
    if parse(installed) < parse(THUNDER):
        raise UnsupportedVersionError(
            "lightning-thunder", expected=f"{THUNDER} or later", got=installed,
            do=f"pip install 'lightning-thunder=={THUNDER}'",
        )  # fmt: skip


def parse(text: str) -> tuple[int, ...]:
    """The numbers of a version.

    >>> parse("2.11.0+cu130"), parse("0.2.7.dev1")
    ((2, 11, 0), (0, 2, 7))
    """
    release, _, _ = text.partition("+")
    return tuple(int(part) for part in release.split(".") if part.isdigit())
