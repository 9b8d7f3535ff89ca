# SPDX-License-Identifier: Apache-2.0
"""Writes the script that runs a definition on tensors like given ones, without Thunder."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thunder_fuser.ir.record import Definition, Number, definition_text, number_text

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

# The tensors of the script are one device's parts.
_GROUP = """\
# run by torchrun, with as many processes as the mesh has devices
torch.distributed.init_process_group()
"""


def repro_text(
    name: str, reason: str, definition: Definition, args: Sequence[torch.Tensor | Number]
) -> str:
    """The text of the script. reason: why it was written, for its first line."""
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
