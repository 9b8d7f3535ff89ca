# SPDX-License-Identifier: Apache-2.0
"""scaled_dot_product_attention through torch's own kernels, which never store the scores.

    t4 = scaled_dot_product_attention(q, k, v)     what the backward reads
->  Thunder:  matmul, softmax, matmul              q, k, v, probabilities[B, H, L, S]
    here:     t4, t5 = attention_forward(q, k, v)  q, k, v, t4, log(sum(exp(scores)))[B, H, L]

q: [B, H, L, E]; k, v: [B, H, S, E]; a mask: [L, S] or [B, H, L, S], or 1 in place of any of these.

    k = k.repeat_interleave(4, dim=1)              keys that several heads share are not copied
    scaled_dot_product_attention(q, k, v)
->  grouped_attention(q, k, v)                     k, v: [B, G, S, E], with H = 4 * G

Thunder has an executor for some of torch's CUDA kernels. The two operators here are for the others:
the CPU's, cuDNN's, which torch itself chooses on Hopper, and the flash kernel where heads share
keys. Thunder takes apart a call that no kernel takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import thunder.torch as ltorch
import torch
from thunder.core import dtypes, prims
from thunder.core.devices import DeviceType
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.trace import TraceCtx, get_tracectx
from thunder.core.transforms import put_grads, sum_to
from thunder.executors.sdpaex import sdpa_ex, sdpea_gradfwd
from thunder.executors.torchex import scaled_dot_product_attention as attention_of_torch
from thunder.extend import OperatorExecutor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention import SDPBackend

from thunder_fuser.functions.define import (
    Composite,
    Table,
    as_type,
    compute_type,
    refuses_floats,
    refuses_tensors,
    wide,
)
from thunder_fuser.functions.index_masks import CAUSAL, kind_of, producer
from thunder_fuser.runtime.eager.torch_calls import masked_attention, masked_gradients, rows
from thunder_fuser.source.jit_options import jit_option, may_differentiate
from thunder_fuser.trace.op import Reject

KERNELS = OperatorExecutor("thunder_fuser_attention")
_CUDA = sdpa_ex.implmap["torch.nn.functional.scaled_dot_product_attention"]
_aten = torch.ops.aten
# Rows of the query for each head of keys, and in all, where reductions are faster than torch's
# kernels (ADR 65). Of more keys, or more elements, two kernels are made instead of one.
FEW_QUERIES, FEW_ROWS, FEW_ROWS_OF_SHORT, SHORT, SHORT_ELEMENTS = 8, 128, 256, 512, 512 * 128
_LARGEST_MASK = 2**28  # elements; to ask torch about a mask, one of its size is allocated
Triple = tuple[Any, Any, Any]  # query, key, value, or the gradients of these


def _forward_types(qkv: Triple, *rest: Any, **numbers: Any) -> tuple[TensorProxy, TensorProxy]:
    query, last = qkv[0], () if "by_flash" in numbers or _on_cpu(qkv[0]) else (1,)
    log_sums = {"shape": (*query.shape[:3], *last), "dtype": compute_type(query)}
    return TensorProxy(like=query), TensorProxy(like=query, **log_sums)


def _forward(
    qkv: Triple, mask: torch.Tensor | None, *, is_causal: bool, scale: float | None,
    by_flash: bool = False,
) -> Any:  # fmt: skip
    if by_flash:
        return _aten._scaled_dot_product_flash_attention(
            *map(rows, qkv), 0.0, is_causal, scale=scale
        )[:2]
    if qkv[0].is_cuda:
        return _aten._scaled_dot_product_cudnn_attention(
            *map(rows, qkv), mask, True, 0.0, is_causal, scale=scale
        )[:2]
    return _aten._scaled_dot_product_flash_attention_for_cpu(
        *map(rows, qkv), 0.0, is_causal, attn_mask=mask, scale=scale
    )


def _backward(
    gradient: torch.Tensor, qkv: Triple, out: torch.Tensor, log_sums: torch.Tensor,
    mask: torch.Tensor | None, *, is_causal: bool, scale: float | None, by_flash: bool = False,
) -> Any:  # fmt: skip
    lengths = qkv[0].shape[2], qkv[1].shape[2]
    if by_flash:
        state = log_sums.new_empty((), dtype=torch.uint64)
        return _aten._scaled_dot_product_flash_attention_backward(
            *map(rows, (gradient, *qkv)), out, log_sums, None, None, *lengths, 0.0, is_causal,
            state, state, scale=scale,
        )  # fmt: skip
    if gradient.is_cuda:
        seed = log_sums.new_empty((), dtype=torch.long)
        return _aten._scaled_dot_product_cudnn_attention_backward(
            *map(rows, (gradient, *qkv)), out, log_sums, seed, seed, mask,
            None, None, *lengths, 0.0, is_causal, scale=scale,
        )  # fmt: skip
    return _aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *map(rows, (gradient, *qkv)), out, log_sums, 0.0, is_causal, attn_mask=mask, scale=scale
    )


attention_forward = KERNELS.register_operator(
    "attention_forward", meta=_forward_types, fn=_forward,
    tags=[OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD],
)  # fmt: skip
attention_backward = KERNELS.register_operator(
    "attention_backward", fn=_backward,
    meta=lambda gradient, qkv, *rest, **numbers: tuple(TensorProxy(like=x) for x in qkv),
)
# By torch's kernel for a GPU that adds a mask. Thunder's own function for it takes none of one
# batch for several, and writes the others for each head.
masked_forward = KERNELS.register_operator(
    "masked_attention_forward", fn=masked_attention, tags=attention_forward.tags,
    meta=lambda qkv, *rest, **numbers: sdpea_gradfwd.meta(*qkv, None),
)  # fmt: skip
masked_backward = KERNELS.register_operator(
    "masked_attention_backward", fn=masked_gradients,
    meta=lambda gradient, qkv, mask, kept, *, of_mask, **numbers: (
        *(TensorProxy(like=x) for x in qkv),
        TensorProxy(like=mask, shape=(*qkv[0].shape[:3], qkv[1].shape[2])) if of_mask else None,
    ),
)


@dataclass(frozen=True, slots=True)
class _Attention:
    """The parameters of scaled_dot_product_attention."""

    query: TensorProxy
    key: TensorProxy
    value: TensorProxy
    attn_mask: TensorProxy | None = None
    dropout_p: Any = 0.0
    is_causal: Any = False
    scale: Any = None

    @property
    def tensors(self) -> tuple[TensorProxy, TensorProxy, TensorProxy]:
        return self.query, self.key, self.value

    def of_thunder(self, function: Callable[..., Any]) -> Any:
        """The answer of a function of Thunder's executor for CUDA, which takes all parameters."""
        return function(
            *self.tensors, self.attn_mask, self.dropout_p, self.is_causal, scale=self.scale
        )

    def numbers(self) -> dict[str, Any]:
        """What the operators take beside tensors; by_flash where no other kernel fits."""
        numbers = {"is_causal": self.is_causal, "scale": self.scale}
        is_other = _on_cpu(self.query) or self.fits_cudnn()
        return numbers if is_other else {**numbers, "by_flash": True}

    def added(self) -> TensorProxy | None:
        """What torch's kernels add to the scores: the mask, converted if it is of bools."""
        is_bool = self.attn_mask is not None and not self.has_float_mask()
        return _converted(self.attn_mask, self.query.dtype) if is_bool else self.attn_mask

    def alone(self) -> Any:
        """The result without gradients, for which torch chooses among more kernels.

        Those of a GPU read a mask that broadcasts along the keys at misaligned addresses.
        """
        if self.has_few_queries():
            return self.of_few_queries()
        if not _on_cpu(self.query) and self.has_narrow_mask():
            return masked_forward(
                self.tensors, self.added(),
                dropout_p=self.dropout_p, is_causal=self.is_causal, scale=self.scale,
            )[0]  # fmt: skip
        return replace(self, attn_mask=self.added()).of_thunder(attention_of_torch)

    def gradient(self) -> Any:
        """The result, with the gradients registered."""
        added, numbers = self.added(), self.numbers()
        if "by_flash" in numbers and not self.has_groups():
            is_plain = self.attn_mask is None
            return self.of_thunder(_CUDA.grad_transform) if is_plain else self.masked_gradient()
        out, log_sums = attention_forward(self.tensors, added, **numbers)
        gradient = prims.get_grad(out)
        gradients = attention_backward(gradient, self.tensors, out, log_sums, added, **numbers)
        put_grads(self.tensors, gradients)
        if (mask := self.attn_mask) is not None and self.has_float_mask():
            # It is not known here if this gradient is needed; if not, it becomes dead code.
            of_mask = sum_to(self.of_scores(gradient, log_sums), tuple(mask._shape))
            prims.put_grad(mask, ltorch.to(of_mask, mask.dtype))
        return out

    def masked_gradient(self) -> Any:
        """As `gradient`, by torch's kernel for a GPU that adds a mask."""
        added, is_float = self.added(), self.has_float_mask()
        numbers = {"dropout_p": self.dropout_p, "is_causal": self.is_causal, "scale": self.scale}
        kept = masked_forward(self.tensors, added, **numbers)
        out, kept = kept[0], kept if self.dropout_p else kept[:2]
        gradients = masked_backward(
            prims.get_grad(out), self.tensors, added, kept, of_mask=is_float, **numbers
        )
        put_grads(self.tensors, gradients[:3])
        if (mask := self.attn_mask) is not None and is_float:
            prims.put_grad(mask, sum_to(gradients[3], tuple(mask._shape)))
        return out

    def of_scores(self, gradient: Any, log_sums: Any) -> Any:
        """[B, H, L, S], the gradient of the scores: p * (of_p - sum(p * of_p)), p the softmax.

        In a row without scores, where log_sums is -inf, p is 0.
        """
        scale = 1 / math.sqrt(self.query._shape[-1]) if self.scale is None else self.scale
        gradient, query, key, value, mask = map(wide, (gradient, *self.tensors, self.attn_mask))
        scores = ltorch.matmul(query, ltorch.transpose(key, -2, -1)) * scale
        below = ltorch.where(log_sums == -math.inf, math.inf, log_sums)
        p = ltorch.exp(scores + mask - ltorch.unsqueeze(below, -1))
        of_p = ltorch.matmul(gradient, ltorch.transpose(value, -2, -1))
        return p * (of_p - ltorch.sum(p * of_p, -1, keepdim=True))

    # ---- few queries

    def has_few_queries(self) -> bool:
        """True on a GPU for at most FEW_QUERIES rows of the query for each head of keys, and
        FEW_ROWS in all, or FEW_ROWS_OF_SHORT."""
        if self.refuses_ours() or self.is_causal or self.dropout_p or not self.key._shape[2]:
            return False
        (batch, heads, length), (_, groups, keys, width) = self.query._shape[:3], self.key._shape
        is_short = keys <= SHORT and keys * width <= SHORT_ELEMENTS
        few = FEW_ROWS_OF_SHORT if is_short else FEW_ROWS
        is_few = heads // groups * length <= FEW_QUERIES and batch * heads * length <= few
        if not is_few or not jit_option("few_rows"):
            return False
        return not _on_cpu(self.query) or bool(jit_option("emulate"))

    def of_few_queries(self) -> Any:
        """The result as reductions, which fuse: q.k over a row, softmax over the keys, p.v over
        these. Keys and values that heads share are not repeated in memory.

            q[B, G * r, L, E]  ->  q[B, G, r * L, E], scores[B, G, r * L, S]
        """
        batch, groups, _, width = self.key._shape
        (heads, length), rows = self.query._shape[1:3], (batch, groups, -1)
        scale = 1 / math.sqrt(width) if self.scale is None else self.scale
        query, key, value = map(wide, self.tensors)
        query = ltorch.unsqueeze(ltorch.reshape(query, (*rows, width)), 3)
        scores = ltorch.sum(query * ltorch.unsqueeze(key, 2), -1) * scale
        if (mask := self.attn_mask) is not None:
            mask = ltorch.reshape(mask, (1,) * (4 - mask.ndim) + tuple(mask._shape))
            if tuple(mask._shape[1:3]) != (1, 1):
                mask = ltorch.expand(mask, mask._shape[0], heads, length, mask._shape[3])
                mask = ltorch.reshape(mask, (mask._shape[0], groups, -1, mask._shape[3]))
            is_float = self.has_float_mask()
            scores = scores + wide(mask) if is_float else ltorch.where(mask, scores, -math.inf)
        # In a row without keys torch's result is 0.
        peak = ltorch.amax(scores, -1, keepdim=True)
        powers = ltorch.exp(scores - ltorch.where(peak == -math.inf, 0.0, peak))
        total = ltorch.sum(powers, -1, keepdim=True)
        out = ltorch.sum(ltorch.unsqueeze(powers, -1) * ltorch.unsqueeze(value, 2), 3)
        out = out / ltorch.where(total == 0, 1.0, total)  # behind the sum: once for each result
        return ltorch.reshape(as_type(out, self.query.dtype), (batch, heads, length, width))

    # ---- groups of heads

    def has_groups(self) -> bool:
        """True if heads of the query share keys and values."""
        return self.key._shape[1] < self.query._shape[1]

    def takes_groups(self) -> bool:
        """True for shared heads that a kernel here takes without repeating them."""
        if self.refuses_ours() or not self.has_groups():
            return False
        if self.has_few_queries() and not may_differentiate():
            return True
        if self.has_float_mask():
            return False
        return _on_cpu(self.query) or self.fits_cudnn() or self.fits_flash()

    def has_narrow_mask(self) -> bool:
        """True for a mask that broadcasts along the keys."""
        return self.attn_mask is not None and self.attn_mask._shape[-1:] != self.key._shape[2:3]

    def has_float_mask(self) -> bool:
        return self.attn_mask is not None and not dtypes.is_boolean_dtype(self.attn_mask.dtype)

    # ---- what is refused

    def refuses(self) -> Reject | None:
        """Why Thunder must take the call apart, and so write the matrix of scores to memory."""
        if _on_cpu(self.query):
            return self.refuses_ours()
        if not self.of_thunder(_CUDA.checker):
            return Reject("attention that no kernel of torch takes")
        return self.refuses_mask(range(5))

    def fits_cudnn(self) -> bool:
        """True for calls that torch gives to cuDNN on Hopper."""
        if self.refuses_ours() or self.has_float_mask():
            return False
        if self.query.dtype not in (dtypes.bfloat16, dtypes.float16):
            return False
        (length, width), keys = map(int, self.query._shape[2:]), int(self.key._shape[2])
        if width % 8 or width > 128:
            return False
        if (self.is_causal and length != keys) or torch.are_deterministic_algorithms_enabled():
            return False
        major, _ = torch.cuda.get_device_capability(self.query.device.device_str())
        if major != 9 or not torch.backends.cuda.cudnn_sdp_enabled():
            return False
        # Only some of cuDNN's kernels take odd lengths or masks: then torch is asked.
        is_plain = not (length % 64 or keys % 64) and self.attn_mask is None
        return is_plain or self.torch_takes_cudnn()

    def fits_flash(self) -> bool:
        """True for calls that the flash kernel takes."""
        length, keys = int(self.query._shape[2]), int(self.key._shape[2])
        if self.attn_mask is not None or self.query._shape[3] % 8:
            return False
        if not length * keys or (self.is_causal and length != keys):
            return False
        qkv = [_like(tensor, tensor.dtype).requires_grad_() for tensor in self.tensors]
        params = SDPAParams(*qkv, None, 0.0, self.is_causal, self.has_groups())
        return bool(can_use_flash_attention(params))

    def torch_takes_cudnn(self) -> bool:
        """True if torch itself chooses cuDNN for tensors of these sizes."""
        mask = self.attn_mask
        if mask is not None and (mask.numel > _LARGEST_MASK or self.has_narrow_mask()):
            return False
        qkv = [_like(tensor, tensor.dtype).requires_grad_() for tensor in self.tensors]
        added = None if mask is None else _like(mask, self.query.dtype)
        with torch.enable_grad():
            chosen = torch._fused_sdp_choice(
                *qkv, added, 0.0, self.is_causal, scale=self.scale, enable_gqa=self.has_groups()
            )
        return bool(chosen == SDPBackend.CUDNN_ATTENTION.value)

    def refuses_ours(self) -> Reject | None:
        """Why the two operators here do not take the call, as torch's CPU kernels would not."""
        numbers = isinstance(self.dropout_p, (int, float)), isinstance(self.is_causal, bool)
        if not all(numbers) or not isinstance(self.scale, (int, float, type(None))):
            return Reject("attention with a number that the program computes")
        if self.dropout_p:
            return Reject("attention with dropout, on the CPU")
        if refused := refuses_tensors("attention", *self.tensors, self.attn_mask):
            return refused
        if refused := refuses_floats("attention", *self.tensors):
            return refused
        if any(tensor.dtype != self.query.dtype for tensor in self.tensors):
            return Reject("attention of several types")
        query, key, value = (tuple(tensor._shape) for tensor in self.tensors)
        is_known = len(query) == len(key) == 4 and key == value and not query[1] % key[1]
        if not is_known or (query[0], query[3]) != (key[0], key[3]):
            return Reject("attention of shapes other than [B, H, L, E], [B, H, S, E] twice")
        return self.refuses_mask()

    def refuses_mask(self, ranks: Container[int] = (2, 4)) -> Reject | None:
        mask, scores = self.attn_mask, (*self.query._shape[:3], self.key._shape[2])
        if mask is None:
            return None
        if not dtypes.is_boolean_dtype(mask.dtype) and mask.dtype != self.query.dtype:
            return Reject("attention with a mask of another type")
        sizes = zip(mask._shape, scores[4 - mask.ndim :], strict=False)
        if mask.ndim not in ranks or any(size not in (1, most) for size, most in sizes):
            return Reject("attention with a mask of a shape other than [L, S] or [B, H, L, S]")
        return None


_CONVERTED: WeakKeyDictionary[TraceCtx, dict[tuple[str, dtypes.dtype], TensorProxy]]
_CONVERTED = WeakKeyDictionary()


def _converted(mask: TensorProxy, dtype: dtypes.dtype) -> TensorProxy:
    """0 where the mask is True, -infinity elsewhere.

    All layers of a model share one mask. A trace converts it once, and saves it once for the
    backward: Thunder does not look for equal ops, and torch would convert it in every kernel.
    """
    known, key = _CONVERTED.setdefault(get_tracectx(), {}), (mask.name, dtype)
    if key not in known:
        known[key] = as_type(ltorch.where(mask, 0.0, -math.inf), dtype)
    return known[key]


def _like(tensor: TensorProxy, dtype: dtypes.dtype) -> torch.Tensor:
    sizes, device = tuple(map(int, tensor._shape)), tensor.device.device_str()
    return torch.empty(sizes, dtype=dtypes.to_torch_dtype(dtype), device=device)


def _on_cpu(tensor: TensorProxy) -> bool:
    return bool(tensor.device.devicetype is DeviceType.CPU)


def _grouped(*args: Any, **kwargs: Any) -> Any:
    call = _Attention(*args, **kwargs)
    if call.has_few_queries():
        return call.of_few_queries()
    return attention_forward(call.tensors, call.added(), **call.numbers())[0]


# While Thunder traces, attention() below chooses Thunder's symbol or this one.
_GROUPED = "grouped_attention"
grouped_attention = Symbol(_GROUPED, _grouped, id=_GROUPED)


def attention(  # noqa: PLR0917 - torch's
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: Any = 0.0,
    is_causal: Any = False, *, scale: Any = None, enable_gqa: Any = False,
) -> Any:  # fmt: skip
    """query [B, H, L, E]; key, value [B, H, S, E], or fewer heads with enable_gqa.

    A mask equal to is_causal, or True everywhere, is not read. Keys and values that the program
    repeats for several heads are read unrepeated.
    """
    if isinstance(attn_mask, TensorProxy) and is_causal is False:
        kind = kind_of(attn_mask)
        if kind == CAUSAL and tuple(attn_mask._shape[-2:]) != (query._shape[-2], key._shape[-2]):
            kind = None
        attn_mask, is_causal = attn_mask if kind is None else None, kind == CAUSAL
    options = {"attn_mask": attn_mask, "dropout_p": dropout_p, "scale": scale}
    options["is_causal"] = is_causal
    unrepeated = (key, value) if enable_gqa is True else (_unrepeated(key), _unrepeated(value))
    if _Attention(query, *unrepeated, **options).takes_groups():
        return grouped_attention(query, *unrepeated, **options)
    if enable_gqa is True:  # [B, G, S, E] -> [B, H, S, E], as torch
        heads = query._shape[1]
        key, value = (
            ltorch.repeat_interleave(x, heads // x._shape[1], dim=1) for x in (key, value)
        )
    has_rows = may_differentiate() and attn_mask is not None and attn_mask.ndim
    if has_rows and _Attention(query, key, value, **options).refuses():
        return _taken_apart(query, key, value, **options)
    return ltorch.scaled_dot_product_attention(query, key, value, **options)


def _taken_apart(query: Any, key: Any, value: Any, *, attn_mask: Any, **options: Any) -> Any:
    """By Thunder's softmax, which is NaN in a row whose keys are all hidden. There torch has 0."""
    is_bool = dtypes.is_boolean_dtype(attn_mask.dtype)
    seen = ltorch.any_tensor(attn_mask if is_bool else attn_mask != -math.inf, -1, keepdim=True)
    options["attn_mask"] = ltorch.where(seen, attn_mask, True if is_bool else 0.0)
    return ltorch.where(seen, ltorch.scaled_dot_product_attention(query, key, value, **options), 0)


# ------------------------------------------------- keys and values that several heads share

# Primitives whose results have the elements of their operand.
_SAME = {PrimIDs.CLONE, PrimIDs.SHALLOW_COPY, PrimIDs.STRIDE_ORDER}


def _unrepeated(tensor: Any) -> Any:
    """The tensor k that the program repeated to this one; this one if it repeated none.

    k.repeat_interleave(r, dim=1)                  k: [B, G, S, E]  ->  [B, G * r, S, E]
    k[:, :, None].expand(B, G, r, S, E).reshape(B, G * r, S, E)       the same
    """
    maker = producer(tensor) if type(tensor) is TensorProxy and tensor.ndim == 4 else None
    while maker is not None and maker.sym.id in _SAME:
        maker = producer(maker.args[0])
    if maker is None or maker.sym.id is not PrimIDs.RESHAPE or maker.args[0].ndim != 5:
        return tensor
    # The tensor before it was expanded, and for each of its axes the axis of the expanded one.
    source, axes = maker.args[0], tuple(range(5))
    batch, groups, times, *row = source._shape
    while len(axes) == 5 and (maker := producer(source)) is not None:
        if maker.sym.id is not PrimIDs.BROADCAST_IN_DIM:
            break
        source, _, dims = maker.args
        axes = tuple(axes[at] for at in dims)
    is_repeat = tuple(tensor._shape) == (batch, groups * times, *row) and axes == (0, 1, 3, 4)
    return source if is_repeat and tuple(source._shape) == (batch, groups, *row) else tensor


# ------------------------------------------------------------------------------------- the table

ATTENTION: Table = {
    "torch.nn.functional.scaled_dot_product_attention": Composite(
        lambda *args, **kwargs: _Attention(*args, **kwargs).refuses(),
        lambda *args, **kwargs: _Attention(*args, **kwargs).alone(),
        lambda *args, **kwargs: _Attention(*args, **kwargs).gradient(),
        rewrite=attention,
    ),
    _GROUPED: Composite(
        lambda *args, **kwargs: None, _grouped,
        lambda *args, **kwargs: _Attention(*args, **kwargs).gradient(),
    ),
}
