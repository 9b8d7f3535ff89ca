# SPDX-License-Identifier: Apache-2.0
"""Matrix products of few rows, which presegment/few_rows.py turns into sums.

    y = linear(x: bf16[1, 2048], w: bf16[8192, 2048])     a region's
    y = linear(x: bf16[64, 2048], w)                      torch's
    y = linear(x: bf16[1, 2048], w), with a gradient      torch's
"""

from __future__ import annotations

from collections.abc import Callable

from thunder.core.devices import DeviceType
from thunder.core.prims import PrimIDs
from thunder.core.proxies import ProxyTag, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import get_tracectx

from thunder_fuser.executors.support.dtypes import STORED, data_type
from thunder_fuser.executors.support.rows import Row, op
from thunder_fuser.options import option
from thunder_fuser.presegment.few_rows import HALVES, SUMMED, is_of_few_rows
from thunder_fuser.trace.op import Reject
from thunder_fuser.trace.proxies import makes, parts

OF_TORCH = Reject("torch has a kernel for it")
_IDS = (PrimIDs.LINEAR, PrimIDs.MATMUL)


def _checked(name: str) -> Callable[..., Reject | None]:
    def check(a: TensorProxy, b: TensorProxy, bias: TensorProxy | None = None) -> Reject | None:
        dtypes = {data_type(each.dtype) for each in (a, b, bias) if each is not None}
        on_cpu = a.device.devicetype is DeviceType.CPU and not option("emulate")
        few, is_half = int(option("few_rows")), dtypes <= HALVES  # type: ignore[call-overload]
        sizes = a._shape, b._shape
        fits = is_of_few_rows(name, *sizes, few, is_half=is_half, on_cpu=on_cpu)
        return None if dtypes <= SUMMED and fits else OF_TORCH

    return check


PRODUCTS = tuple(
    Row(id, op(id.name.lower()), STORED, _checked(id.name.lower())) for id in _IDS
)  # fmt: skip


def has_product(bsym: BoundSymbol) -> bool:
    """True for a product, and for a composite with one."""
    return any(part.sym.id in _IDS for part in parts(bsym))


def is_differentiated(bsym: BoundSymbol) -> bool:
    """True if the gradient of a bound symbol of the current trace may be asked for."""
    is_cut = all(ProxyTag.DETACHED_AUTOGRAD_GRAPH in proxy.tags for proxy in makes(bsym))
    args = get_tracectx().args or ()
    return not is_cut and any(isinstance(a, TensorProxy) and a.requires_grad for a in args)
