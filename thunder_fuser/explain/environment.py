# SPDX-License-Identifier: Apache-2.0
"""This machine -> the versions, the compilers, the device and the options in force."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from thunder_fuser.errors import ToolchainError
from thunder_fuser.explain.table import table
from thunder_fuser.options import OPTIONS, option
from thunder_fuser.runtime.cuda import nvrtc_version
from thunder_fuser.runtime.toolchain import find_compiler
from thunder_fuser.versions import __version__

_PACKAGES = ("lightning-thunder", "cuda-bindings", "cuda-core", "nvtx")


def environment() -> str:
    """What to put into a report of a problem."""
    rows = [
        ("thunder_fuser", __version__),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        *((name, package_version(name)) for name in _PACKAGES),
        ("NVRTC", _nvrtc()),
        ("compiler", _compiler()),
        ("device", _device()),
    ]
    return f"{table(('what', 'found'), rows)}\n\n{_options()}"


def package_version(package: str) -> str:
    """Its version, or that it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _nvrtc() -> str:
    try:
        major, minor = nvrtc_version()
    except ToolchainError as error:
        return str(error)
    return f"{major}.{minor}"


def _compiler() -> str:
    try:
        found = find_compiler()
    except ToolchainError as error:
        return str(error)
    return f"{found.version} ({found.path})"


def _device() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU, {torch.get_num_threads()} threads (no CUDA device)"


def _options() -> str:
    rows = [(name, repr(option(name)), row.env, row.help) for name, row in OPTIONS.items()]
    return table(("option", "value", "environment", "meaning"), rows)
