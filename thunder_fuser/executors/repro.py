# SPDX-License-Identifier: Apache-2.0
"""A region that could not be compiled -> a warning, and a script that shows why without Thunder."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from thunder_fuser.analysis.names import PREFIX
from thunder_fuser.errors import CompileError, FallbackWarning, FuserError, ToolchainError
from thunder_fuser.ir.record import Definition, Number, definition_text, number_text
from thunder_fuser.threads import first_time

# ----------------------------------------------------------------------------------- the warning


def warn_of_fallback(
    name: str, ops: int, error: FuserError, definition: Definition, args: Sequence[Any]
) -> None:
    """A FallbackWarning, one for all regions that fail alike.

    definition: empty if the region has none; ops: how many torch runs for it.
    """
    if not first_time(("fallback", _cause(error))):
        return
    reason = " ".join(str(error).split()).rstrip(".")
    has_script = bool(definition) and not isinstance(error, ToolchainError)
    again = _again(name, reason, definition, args) if has_script else ""
    warnings.warn(
        f"{name} runs its {ops} torch ops one by one, for it could not be compiled: {reason}."
        f" Regions that fail alike are not announced.{again}",
        FallbackWarning,
        stacklevel=3,
    )


def _cause(error: FuserError) -> str:
    """The same for kernels that fail alike: the compiler's first complaint, without its line."""
    text = re.sub(rf"\b{PREFIX}_\w+", "kernel", str(error))
    complaints = [line for line in text.splitlines() if " error" in line]
    if isinstance(error, CompileError) and complaints:
        return re.sub(r"\d+", "", complaints[0])
    return text


def _again(name: str, reason: str, definition: Definition, args: Sequence[Any]) -> str:
    """Writes the script into a temporary folder of its own, and says where.

    Only this user can read it: arguments' shapes may say more than their owner likes.
    """
    try:
        path = Path(tempfile.mkdtemp(prefix="thunder_fuser_")) / f"{name}.py"
        path.write_text(repro_text(name, reason, definition, args), encoding="utf-8")
    except OSError as error:
        return f" No script that shows it could be written ({error.strerror or error})."
    return f" To see it again, without Thunder: python {path}"


# ------------------------------------------------------------------------------------ the script

_SCRIPT = '''\
# {name}: {reason}
import torch

from thunder_fuser import DataType, FusionDefinition


{function}

def tensor(size, stride, dtype, device):
    """Random, and laid out as the argument was."""
    last = sum((n - 1) * s for n, s in zip(size, stride)) if all(size) else -1
    low, high = (0, 2) if dtype is torch.bool else (0, 9)
    values = torch.rand(last + 1, device=device) * (high - low) + low
    return values.to(dtype).as_strided(size, stride)


{group}torch.manual_seed(0)
inputs = [
{inputs}
]
with FusionDefinition() as fd:
    fusion(fd)
for output in fd.execute(inputs):
    print(output)
'''

# The tensors below are one device's parts.
_GROUP = """\
# run by torchrun, with as many processes as the mesh has devices
torch.distributed.init_process_group()
"""


def repro_text(
    name: str, reason: str, definition: Definition, args: Sequence[torch.Tensor | Number]
) -> str:
    """The script."""
    return _SCRIPT.format(
        name=name,
        reason=" ".join(reason.split()),
        function=definition_text(definition),
        group=_GROUP if any(r.op == "set_device_mesh" for r in definition) else "",
        inputs="\n".join(f"    {_argument(arg)}," for arg in args),
    )


def _argument(arg: torch.Tensor | Number) -> str:
    if not isinstance(arg, torch.Tensor):
        return number_text(arg)
    return f"tensor({tuple(arg.shape)}, {arg.stride()}, {arg.dtype}, {str(arg.device)!r})"
