# SPDX-License-Identifier: Apache-2.0
"""On a GPU, a matrix product of 16-bit floats applies the activation that only products read.

    h = linear(x, w, bias)
    u = gelu(h, approximate="tanh")     ->  u = linear_gelu(x, w, bias)
    y = linear(u, w2)                       y = linear(u, w2)

A kernel of u alone reads what the product has just written. On an H200 such a product takes 4 to
21 % less time with its gelu, and 7 to 29 % with its relu; one of float32 gains nothing by a gelu
(docs/adr/0066). The activation is computed of the float32 sum, before that is rounded. It stays in
a region if a region reads it, or if anything else reads h, as a backward does. cuBLAS has no exact
gelu and no silu.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from thunder.core.devices import DeviceType
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

from thunder_fuser.options import option
from thunder_fuser.trace.op import Op
from thunder_fuser.trace.prepared import Prepared
from thunder_fuser.trace.proxies import SIXTEEN_BITS, TORCH_KERNELS


def fuse_activations(prepared: Prepared) -> Prepared:
    """Makes a product and the relu or tanh gelu of its result one call, where no region reads
    either."""
    fused = dict(_fused(prepared))
    gone = {at for at, _ in fused.values()}
    return prepared.with_ops(
        fused[at][1] if at in fused else op
        for at, op in enumerate(prepared.ops) if at not in gone
    ) if fused else prepared  # fmt: skip


def _fused(prepared: Prepared) -> Iterator[tuple[int, tuple[int, Op]]]:
    """(the place of a product, (the place of its activation, the one op for both))

    That op stands where the product did: what it reads may be written behind.
    """
    ops, readers = prepared.ops, prepared.flow.readers
    for at, product in enumerate(ops):
        places = readers.get(product.made_names[0], []) if _has_bias(product) else []
        if len(places) != 1 or (symbol := _symbol(ops[places[0]])) is None:
            continue
        (result,) = ops[places[0]].makes
        if not any(ops[reader].is_fusible for reader in readers.get(result.name, ())):
            bsym = product.bsym.from_bsym(sym=symbol, output=result, subsymbols=())
            yield at, (places[0], prepared.rules.known(bsym, product.refusal))


def _has_bias(op: Op) -> bool:
    """True for torch's product of 16-bit floats with a bias, on a GPU or in the emulator of one."""
    return op.bsym.sym.id == "linear" and len(op.reads) == 3 and all(
        type(proxy) is TensorProxy and proxy.dtype in SIXTEEN_BITS
        and (proxy.device.devicetype is DeviceType.CUDA or bool(option("emulate")))
        for proxy in op.reads
    )


def _symbol(op: Op) -> Symbol | None:
    """What a product with this activation is called; None if cuBLAS has no such product."""
    if not op.is_fusible or op.writes:
        return None
    if op.bsym.sym.id == "torch.nn.functional.gelu":
        return _LINEAR_GELU if op.bsym.kwargs.get("approximate") == "tanh" else None
    return _LINEAR_RELU if op.bsym.sym.id == "torch.relu" else None


def _operator(name: str, use_gelu: bool) -> Symbol:
    def run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        # Of no columns, torch's call gives the bias alone, and on a CPU it has the exact gelu.
        if not (x.is_cuda and x.numel()):
            y = F.linear(x, weight, bias)
            return F.gelu(y, approximate="tanh") if use_gelu else F.relu(y)
        rows = x.reshape(-1, x.shape[-1])
        y = torch._addmm_activation(bias, rows, weight.t(), use_gelu=use_gelu)
        return y.view(*x.shape[:-1], weight.shape[0])

    def meta(x: TensorProxy, weight: TensorProxy, bias: TensorProxy) -> TensorProxy:
        return TensorProxy(like=x, shape=(*x.shape[:-1], weight.shape[0]))

    return TORCH_KERNELS.register_operator(name, meta=meta, fn=run, tags=[OpTags.MATMUL_OP])


_LINEAR_GELU, _LINEAR_RELU = _operator("linear_gelu", True), _operator("linear_relu", False)
