# SPDX-License-Identifier: Apache-2.0
"""A region that could not be compiled -> a warning, and a script that shows why without Thunder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder_fuser.dump import drop, temporary_folder
from thunder_fuser.errors import FallbackWarning, FuserError, ToolchainError
from thunder_fuser.executors.announce import warn_at
from thunder_fuser.failures import OF_SYSTEM, cause_of
from thunder_fuser.ir.record import Definition, Number, definition_text, number_text
from thunder_fuser.threads import first_time

# ----------------------------------------------------------------------------------- the warning


def warn_of_fallback(
    error: FuserError,
    definition: Definition,
    args: Sequence[Any],
    *,
    name: str,
    ops: int,
    where: str,
) -> None:
    """A FallbackWarning at a line of the user's, one for all regions that fail alike.

    definition: empty if the region has none. ops: how many torch runs for it. where: the line, as
    file:line.
    """
    if not first_time(("fallback", cause_of(error))):
        drop(error.folder)  # nobody is told of it
        return
    told = [
        f"{name} ({where}) runs its {ops} torch ops one by one, for it could not be compiled:"
        f" {error.sentence.rstrip('.')}.",
        *error.facts["lines"],
        "Regions that fail alike are not announced.",
    ]
    is_of_machine = isinstance(error, ToolchainError) or isinstance(error.__cause__, OF_SYSTEM)
    if definition and not is_of_machine:
        told.append(_again(name, error, definition, args))
    warn_at(where, "\n".join(told), FallbackWarning)


def _again(name: str, error: FuserError, definition: Definition, args: Sequence[Any]) -> str:
    """Writes the script beside the text of the stages, else into a folder of its own."""
    try:
        path = (error.folder or temporary_folder()) / f"{name}.py"
        path.write_text(repro_text(name, error.sentence, definition, args), encoding="utf-8")
    except OSError as full:
        return f"No script that shows it could be written ({full.strerror or full})."
    return f"To see it again, without Thunder: python {path}"


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
