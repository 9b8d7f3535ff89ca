# SPDX-License-Identifier: Apache-2.0
"""A device -> where and with what a figure was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import thunder_fuser
from thunder_fuser.explain.machine import package_version

_PACKAGES = ("torch", "triton", "lightning-thunder", "cuda-bindings", "numpy")
_QUERY = "driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw"


def facts(device: torch.device) -> dict[str, Any]:
    """Date, commit, versions, the device and, of a GPU, its clocks, temperature and power."""
    found = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "device": device_name(device),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        **{package: package_version(package) for package in _PACKAGES},
    }
    if device.type == "cuda":
        query = f"--query-gpu={_QUERY}"
        found["nvidia-smi"] = _output("nvidia-smi", query, "--format=csv,noheader")
    return found


def commit() -> str:
    """The commit of the code that runs, with + if files differ; GIT_COMMIT where there is no git.

    An installed package may lie inside another project's repository: that one's commit is not ours.
    """
    given = os.environ.get("GIT_COMMIT")
    root = Path(thunder_fuser.__file__).resolve().parent.parent
    if given or _git(root, "rev-parse", "--show-toplevel") != str(root):
        return given or "unknown"
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return _git(root, "rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


def device_name(device: torch.device) -> str:
    """The accelerator's name, or the processor's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


def _git(root: Path, *arguments: str) -> str:
    return _output("git", "-C", str(root), *arguments)


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
