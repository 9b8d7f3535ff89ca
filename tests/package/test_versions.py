# SPDX-License-Identifier: Apache-2.0
"""A torch that Thunder cannot take is named in one sentence."""

from __future__ import annotations

import pytest

from thunder_fuser import versions
from thunder_fuser.errors import UnsupportedVersionError


@pytest.mark.parametrize("installed", ["2.10.1", "2.13.0+cu130", "3.0"])
def test_refused(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(versions, "version", lambda name: installed)
    with pytest.raises(UnsupportedVersionError) as error:
        versions.check_versions()
    assert str(error.value) == (
        "torch: expected 2.11 or 2.12, which Lightning Thunder 0.2.6 imports with, "
        f"got {installed}. To fix it: pip install 'torch>=2.11,<2.13'."
    )


@pytest.mark.parametrize("installed", ["2.11.0", "2.12.1+cpu"])
def test_taken(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(versions, "version", lambda name: installed)
    versions.check_versions()
