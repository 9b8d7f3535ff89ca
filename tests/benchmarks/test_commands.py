# SPDX-License-Identifier: Apache-2.0
"""The command line of the benchmarks: each has its help, its line in the list and in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import COMMANDS, main

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def test_the_docs_list_every_command() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main([name, "--help"])
    assert raised.value.code == 0
    assert str(COMMANDS[name].__doc__).splitlines()[0] in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["warm_path", "--device", "cuda"])
    assert raised.value.code == 2
    assert "no CUDA device" in capsys.readouterr().err
