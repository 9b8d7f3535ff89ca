# SPDX-License-Identifier: Apache-2.0
"""A Region that cannot be compiled -> a function of torch ops, and a script that shows why.

The function has the region's arguments and results. The script makes the call that failed without
Thunder.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import prims
from thunder.core.codeutils import SigInfo
from thunder.core.prims import PrimIDs
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.passes import transform_for_execution
from thunder.executors.torchex import ex as torch_executor

from thunder_fuser.errors import CompileError, FallbackWarning, FuserError, ToolchainError
from thunder_fuser.executors.regions import Region
from thunder_fuser.ir.record import Definition, Number, definition_text, number_text
from thunder_fuser.single_flight import first_time
from thunder_fuser.trace.proxies import makes

# ---------------------------------------------------------------------------------- the function


def torch_function(region: Region, name: str) -> Callable[..., Any]:
    """The region's primitives, each run by Thunder's torch executor."""
    trace = TraceCtx(None)
    trace.args, trace.kwargs = list(region.inputs), {}
    leaves = list(map(_with_torch_impl, region.leaves))
    trace.names = {proxy.name for proxy in region.inputs}
    with tracectx(trace):
        for proxy in region.inputs:
            prims.unpack_trivial(proxy, name=proxy.name)
    trace.names.update(proxy.name for leaf in leaves for proxy in makes(leaf))
    trace.bound_symbols += [*leaves, prims.python_return.bind(list(region.outputs), output=None)]
    trace._siginfo = SigInfo(name)
    trace._siginfo.args = [(proxy.name, None) for proxy in region.inputs]
    return transform_for_execution(trace, (torch_executor,)).python_callable()  # type: ignore[no-any-return]


def _with_torch_impl(leaf: BoundSymbol) -> BoundSymbol:
    """prims.lerp is the one primitive of the table that torch runs only as its composite."""
    if leaf.sym.id is not PrimIDs.LERP:
        return leaf
    return ltorch.lerp.bind(*leaf.args, output=leaf.output, subsymbols=(leaf,))


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
    complaints = [line for line in str(error).splitlines() if " error" in line]
    if isinstance(error, CompileError) and complaints:
        return re.sub(r"\d+", "", complaints[0])
    return str(error)


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
