# SPDX-License-Identifier: Apache-2.0
"""Some of Thunder's rules for operands differ from torch's; with this executor, torch's hold.

    t = lgamma(u8[3] x)          Thunder: a weak f32       torch, and here: f32
    u = div(t, bf16[3] b)        Thunder: bf16             torch, and here: f32

A weak type gives way to the type of the other operand. Thunder gives it to all floats computed from
integers alone: by functions that turn integers into floats, and by arithmetic of integers with a
Python float, as x + 3.0. The second stays as it is: Thunder's own tests require it.

    s = sum(f32[3] x)
    y = mul(x, s)                Thunder: dx = dy * s + dy * x          here: + sum(dy * x)

Thunder treats a 0-dim CPU tensor as a number, which needs no broadcast; so its gradient is never
summed. Here it is broadcast, as on a GPU. With a tensor on a GPU it remains a number.

    v = floor_divide(bf16[] b, 2)        Thunder: f32          torch, and here: bf16

Thunder makes the zeros of the result from numbers, whose type is float32.

    v = add(b8[3] m, 2)                  Thunder: i8           torch, and here: i64

    w = arange(0)                        Thunder: i64[]        torch, and here: i64[0]

Without its axis, an empty range would be broadcast to sizes that it does not have, as the row
numbers in tril(x[0, 2]). The ranges of torch.diagonal stay as they are: Thunder's own tests expect
that they go wrong.

    z = cat([f32[0] e, f32[2, 3] x], 1)  Thunder: an error     torch, and here: cat([x], 1)

torch passes over such an e for the sake of old programs; transformers begins each cache with one.

    r = f32[9, 2] x [-20:]               Thunder: an error     torch, and here: x[-9:]

    m &= n                               Thunder: an error     torch, and here: m.bitwise_and_(n)

    f32[4] x[1:2] = bf16[1] v            Thunder: dv is f32, an error; here, as in torch: bf16

    n = item(t); add(x, y, alpha=n)      Thunder: add(x, y)    torch, and here: add(x, mul(y, n))

    if n > 0: ...                        Thunder: is false     here: ThunderLimitError

    under autocast to bf16: scaled_dot_product_attention(q, k, v, f32[4, 4] mask)

Thunder casts q, k and v, and refuses the sum of two types; torch casts the mask too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import thunder.torch as ltorch
from thunder import clang
from thunder.core import dtypes, prims, utils
from thunder.core.devices import DeviceType
from thunder.core.interpreter import get_interpreterruntimectx, make_opaque
from thunder.core.langctxs import resolve_method
from thunder.core.proxies import NumberProxy, TensorProxy, numberproxy
from thunder.core.utils import ELEMENTWISE_TYPE_PROMOTION_KIND
from thunder.transforms import autocast

from thunder_fuser.base.warn import line_of_the_call
from thunder_fuser.errors import ThunderLimitError
from thunder_fuser.thunder_patches.patch import Hooks

WRITES = {
    "__iand__": "bitwise_and_", "__ior__": "bitwise_or_", "__ixor__": "bitwise_xor_",
    "__ilshift__": "bitwise_left_shift_", "__irshift__": "bitwise_right_shift_",
    "__ifloordiv__": "floor_divide_", "__imod__": "remainder_",
}  # fmt: skip


def write_by_operators(_: Hooks) -> None:
    """From now on, these operators are torch's methods, as `+=` is."""
    for operator, n in WRITES.items():  # the interpreter calls them, and does not read them
        setattr(TensorProxy, operator, make_opaque(lambda x, y, n=n: resolve_method(n, x, y)(x, y)))


def decide_by_no_unknown_number(_: Hooks) -> None:
    """From now on, asking whether a number that the trace computes is true raises an error.

    Thunder says no, also of comparisons. So it left out the factor that `add` and `sub` take: they
    multiply by it now. thunderfx leaves other functions that raise this error to torch.
    """
    of_thunder, convert = NumberProxy.__bool__, prims.convert_element_type.meta
    make_static = NumberProxy.make_static_constrained

    def is_true(number: NumberProxy) -> bool:
        _ask_for_value(number)
        return of_thunder(number)

    def constrain(number: NumberProxy) -> None:
        _ask_for_value(number)
        make_static(number)

    @wraps(convert)
    def converted(a: Any, /, dtype: Any) -> Any:
        if dtype is bool and isinstance(a, NumberProxy) and a.value is None:
            return numberproxy(bool, None, constraint=a.constraint)
        return convert(a, dtype)

    NumberProxy.__bool__, NumberProxy.make_static_constrained = is_true, constrain
    object.__setattr__(prims.convert_element_type, "meta", converted)
    for symbol in (ltorch.add, ltorch.sub):
        object.__setattr__(symbol, "meta", _scaled(symbol.meta))


def _ask_for_value(number: NumberProxy) -> None:
    if number.value is None:
        try:
            file, at = get_interpreterruntimectx().get_current_user_source_location()
        except LookupError:  # nothing is interpreted: Thunder tries an operation
            file, at = None, None
        raise ThunderLimitError(
            "Thunder cannot trace this program", expected="conditions on known numbers",
            got="one on a number that the program computes, as .item() does",
            where=f"{file}:{at.lineno}" if file and at else line_of_the_call(),
            do="write torch.where, or call thunder.dynamo.thunderfx instead of jit",
        )  # fmt: skip


def _scaled(of_thunder: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(of_thunder)
    def meta(a: Any, b: Any, /, *, alpha: Any = 1) -> Any:
        if isinstance(alpha, NumberProxy) and alpha.value is None:
            b, alpha = ltorch.mul(b, alpha), 1
        return of_thunder(a, b, alpha=alpha)

    return meta


def cast_masks(_: Hooks) -> None:
    """From now on, autocast casts the mask of attention too."""
    name = "torch.nn.functional.scaled_dot_product_attention"
    of_thunder = autocast.autocast_impls[name]

    def rule(*args: Any, dtype: Any, **kwargs: Any) -> Any:
        args, kwargs = autocast.maybe_downcast_to(dtype, (args, kwargs))
        return of_thunder(*args, dtype=dtype, **kwargs)

    autocast.autocast_impls[name] = rule


def promote_as_torch(hooks: Hooks) -> None:
    """From now on, operands have torch's types in functions jitted with such an executor."""
    of_thunder = utils.elementwise_type_promotion

    def promotion(
        *args: Any, type_promotion_kind: ELEMENTWISE_TYPE_PROMOTION_KIND
    ) -> tuple[Any, Any]:
        """(the type to compute in, the type of the result); `float` is the weak one."""
        types = of_thunder(*args, type_promotion_kind=type_promotion_kind)
        of_bools = {tensor.dtype for tensor in _tensors(args)} == {dtypes.bool8}
        if of_bools and dtypes.int8_ in types and hooks.compilation() is not None:
            first, second = (dtypes.int64 if kind is dtypes.int8_ else kind for kind in types)
            return first, second
        to_float = type_promotion_kind is ELEMENTWISE_TYPE_PROMOTION_KIND.INT_TO_FLOAT
        if not to_float or types != (float, float) or hooks.compilation() is None:
            return types
        return (dtypes.float32, dtypes.float32) if _tensors(args) else types

    utils.elementwise_type_promotion = promotion


def broadcast_scalars(hooks: Hooks) -> None:
    """From now on, a 0-dim tensor on a CPU is broadcast there, so its gradient is summed."""
    of_thunder = clang.maybe_broadcast

    def broadcast(*args: Any, treat_cpu_scalar_tensors_as_numbers: bool = True) -> tuple[Any, ...]:
        """The operands in one shape."""
        is_ours = hooks.compilation() is not None
        on_cpu = all(tensor.device.devicetype is DeviceType.CPU for tensor in _tensors(args))
        as_numbers = treat_cpu_scalar_tensors_as_numbers and not (on_cpu and is_ours)
        return tuple(of_thunder(*args, treat_cpu_scalar_tensors_as_numbers=as_numbers))

    clang.maybe_broadcast = broadcast


def keep_types_of_quotients(hooks: Hooks) -> None:
    """From now on, floor_divide keeps the type of its operands there."""
    of_thunder = clang._floor_divide_float

    def floor_divide(a: Any, b: Any) -> Any:
        result = of_thunder(a, b)
        if not _tensors((result,)) or hooks.compilation() is None:
            return result
        kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        dtype = utils.elementwise_type_promotion(a, b, type_promotion_kind=kind)[1]
        return clang.maybe_convert_to_dtype(result, dtype)

    clang._floor_divide_float = floor_divide


def keep_empty_axes(hooks: Hooks) -> None:
    """From now on, an empty range has its axis there, and one of floats a type of its own."""
    of_thunder = clang.arange

    def arange(**numbers: Any) -> Any:
        result = of_thunder(**numbers)
        of_torch = "dtype" in numbers  # torch.arange passes one, or None; clang.diagonal does not
        if not of_torch or hooks.compilation() is None:
            return result
        if not result.ndim:
            return clang.full((0,), 0, device=result.device, dtype=result.dtype)
        is_weak = result.true_dtype.is_weak
        return prims.convert_element_type(result, result.dtype) if is_weak else result

    clang.arange = arange


def skip_empty_operands(hooks: Hooks) -> None:
    """From now on, cat leaves out tensors [0] beside others of more axes; Thunder alone raises.

    For all executors, as thunderfx tries each operation without any before it splits a graph.
    """
    of_thunder = clang.cat

    def cat(tensors: Any, dim: int) -> Any:
        empty = [x for x in tensors if x.ndim == 1 and x.numel == 0]
        if not empty or all(x.ndim == 1 for x in tensors):
            return of_thunder(tensors, dim)
        kind = ELEMENTWISE_TYPE_PROMOTION_KIND.PRESERVE
        dtype = utils.elementwise_type_promotion(*tensors, type_promotion_kind=kind)[1]
        for x in empty:
            prims.shallow_copy(x)  # shapes are guarded of arguments that something reads
        others = [x for x in tensors if x.ndim != 1 or x.numel]
        return of_thunder([clang.maybe_convert_to_dtype(x, dtype) for x in others], dim)

    clang.cat = cat


def begin_at_the_first_row(_: Hooks) -> None:
    """From now on, slices from or to before the first row begin or end there; Thunder raises."""
    of_thunder = clang._basic_indexing

    def indexing(a: Any, /, key: list[Any]) -> Any:
        sizes = iter(a.shape)  # None takes no axis
        return of_thunder(a, [each if each is None else _within(each, next(sizes)) for each in key])

    clang._basic_indexing = indexing


def convert_before_writes(_: Hooks) -> None:
    """From now on, `x[i] = v` converts floats v to the type of x, so that dv has the type of v."""
    of_thunder = clang.copy_with_setitem

    def copy(a: Any, key: Any, value: Any) -> Any:
        by_tensors = _tensors(key if isinstance(key, tuple) else (key,))  # torch refuses them
        if not by_tensors and _tensors((value,)) and dtypes.is_float_dtype(value.dtype):
            value = clang.maybe_convert_to_dtype(value, a.dtype)
        return of_thunder(a, key, value)

    clang.copy_with_setitem = copy


def _within(each: Any, size: int) -> Any:
    """x[-20:] of 9 rows  ->  x[-9:]"""
    if not isinstance(each, slice):
        return each
    start, stop = (max(at, -size) if type(at) is int else at for at in (each.start, each.stop))
    return slice(start, stop, each.step)


def _tensors(args: tuple[Any, ...]) -> list[TensorProxy]:
    return [arg for arg in args if isinstance(arg, TensorProxy)]
