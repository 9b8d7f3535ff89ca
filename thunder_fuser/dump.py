# SPDX-License-Identifier: Apache-2.0
"""The texts of one compilation -> files in the folder that the option `dump` names.

DUMP/fusion_0/0_fusion.py, 1_specialised.py, 2_segments.txt, 3_schedule_0.py, 4_kernel_0.cu, ...
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from thunder_fuser.errors import OptionError


def write(root: Path, texts: Mapping[str, str]) -> Path:
    """Writes each text under its name, in a new folder fusion_N of `root`."""
    try:
        folder = _new_folder(root)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(
            "option dump", expected="a folder that can be written", got=f"{root} ({error.strerror})"
        ) from error
    return folder


def _new_folder(root: Path) -> Path:
    """Creates the first missing fusion_N. Another process may take a number first."""
    number = 0
    while True:
        folder = root / f"fusion_{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder
