# SPDX-License-Identifier: Apache-2.0
"""An op -> a Reject if a region would give its result another dtype than torch does.

    t = floor_divide(f16[] a, a)      torch: f16; a region, as the trace says: f32
    u = add(u8[5] x, i64[] z)         torch: u8; a region: i16
    v = mul(u, 2)                     torch: u8, of the u that comes at the call

Thunder promotes a 0-dim tensor like a number, and it has other types than torch for sums of bools
and for integers with float numbers. Its torch executor calls torch's own functions, whose results
have torch's types; a region would make those of the trace. So torch is asked wherever both may
differ, in the order of the trace: the readers of a value with another type must know that type.

To ask torch, the function is called on meta tensors, which have a shape and a type but no elements:

    torch.floor_divide(f16[] a, a)         ->  f16
    torch.mean(b8[2] m, 0, dtype=uint8)    ->  Reject
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from thunder.core.devices import Device
from thunder.core.dtypes import dtype as thunder_dtype
from thunder.core.dtypes import to_torch_dtype as torch_dtype_of
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.pytree import tree_map
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.executors.torchex import ex as torch_executor
from thunder.torch import _torch_to_thunder_function_map

from thunder_fuser.executors.record.record import types_of_results
from thunder_fuser.executors.support.check import leaves_of
from thunder_fuser.executors.support.dtypes import EXACT, FLOAT8, INTS, data_type, is_known_number
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.torch_types import from_torch_dtype, to_torch_dtype
from thunder_fuser.trace.op import Reject
from thunder_fuser.trace.proxies import makes, reads

Support = Callable[[BoundSymbol], "Reject | None"]
# The types of the results; why torch refuses the call; None if it is unknown.
Answer = tuple[DataType, ...] | Reject | None
DTypesByName = Mapping[str, DataType | None]

_UNKNOWN = (AttributeError, KeyError, NotImplementedError, TypeError)
_REFUSED = (RuntimeError, ValueError, OverflowError, IndexError)
_OTHER = Reject("its result has another dtype in torch than in Thunder")
_READS = Reject("it reads a value that has another dtype in torch than in Thunder")


def where_types_agree(bsyms: Sequence[BoundSymbol], support: Support) -> Support:
    """`support` for these bound symbols or their parts, with a Reject if torch's types differ."""
    walk = _Walk(support)
    for bsym in bsyms:
        walk.add(bsym)

    def asked(bsym: BoundSymbol) -> Reject | None:
        refused = (walk.refused.get(proxy.name) for proxy in makes(bsym))
        return next(filter(None, refused), None) or support(bsym)

    return asked


class _Walk:
    """The real types of the values that do not have the trace's type.

    types: by name, None if unknown. foreign: the names whose type a region would not make. spread:
    the names of what is made of 0-dim tensors, which keeps Thunder's weak type.
    """

    def __init__(self, support: Support) -> None:
        self.support = support
        self.types: dict[str, DataType | None] = {}
        self.foreign: set[str] = set()
        self.spread: set[str] = set()
        self.refused: dict[str, Reject] = {}

    def add(self, bsym: BoundSymbol) -> None:
        """Notes the types of its results."""
        results = _results(bsym)
        read = [proxy for proxy in reads(bsym) if isinstance(proxy, TensorProxy)]
        if read and all(not tensor.ndim or tensor.name in self.spread for tensor in read):
            self.spread.update(result.name for result in results)
        has_other = any(t.name in self.types or t.name in self.spread for t in read)
        if not results or not (has_other or may_differ(read)):
            return
        theirs = types_in_torch(bsym.sym, bsym.args, bsym.kwargs, self.types)
        ours = self._ours(bsym, results)
        if isinstance(theirs, Reject):
            self._refuse(results, theirs)
        elif theirs is not None and len(theirs) == len(results):
            if ours is not None and (ours != theirs or self._compares_otherwise(bsym, theirs)):
                self._refuse(results, _OTHER)
            self._note(results, theirs, foreign=ours != theirs)
        elif any(tensor.name in self.foreign for tensor in read):
            self._refuse(results, _READS)
            self._note(results, [None] * len(results), foreign=True)
        elif ours is not None:
            self._note(results, ours, foreign=False)

    def _ours(
        self, bsym: BoundSymbol, results: Sequence[Proxy]
    ) -> tuple[DataType, ...] | None:
        """The types that a region would make; None if no region takes the op."""
        unknown = any(self.types.get(proxy.name, True) is None for proxy in reads(bsym))
        if unknown or self.support(bsym) is not None:
            return None
        return types_of_results([*leaves_of(bsym)], reads(bsym), results, self.types)

    def _compares_otherwise(self, bsym: BoundSymbol, theirs: Sequence[DataType]) -> bool:
        """True for lt(u8[3] x, i64[] n): Thunder compares as i16, torch as u8; both make bools."""
        if set(theirs) != {DataType.Bool}:
            return False
        casts = (leaf for leaf in leaves_of(bsym) if leaf.sym.id is PrimIDs.CONVERT_ELEMENT_TYPE)
        kinds = {data_type(cast.args[1]) for cast in casts} & INTS
        try:
            first, second = (as_meta(arg, self.types) for arg in bsym.args)
            in_torch = from_torch_dtype(torch.result_type(first, second))
        except (*_UNKNOWN, *_REFUSED):
            return bool(kinds)
        return bool(kinds - {in_torch})

    def _refuse(self, results: Sequence[Proxy], why: Reject) -> None:
        self.refused.update((result.name, why) for result in results)

    def _note(
        self, results: Sequence[TensorProxy], types: Sequence[DataType | None], foreign: bool
    ) -> None:
        other = {
            result.name: dtype for result, dtype in zip(results, types, strict=True)
            if data_type(result.dtype) is not dtype
        }  # fmt: skip
        self.types.update(other)
        self.foreign.update(other if foreign else ())


def _results(bsym: BoundSymbol) -> list[TensorProxy]:
    """The tensors that it makes, without operands that it returns."""
    operands = {proxy.name for proxy in reads(bsym)}
    results = [proxy for proxy in makes(bsym) if proxy.name not in operands]
    return results if all(isinstance(result, TensorProxy) for result in results) else []


# ---------------------------------------------------------------------------------- torch's answer


def may_differ(tensors: Sequence[TensorProxy]) -> bool:
    """True if torch must be asked: for operands that are integers, bools, 8-bit floats or 0-dim.

    Results of integers and a Python float are not such operands: they are weak and give way to
    float16, and Thunder's own tests require that; see thunder_patches/fixes/promotion.py.
    """
    return any(not tensor.ndim or data_type(tensor.dtype) in EXACT | FLOAT8 for tensor in tensors)


def types_in_torch(symbol: Symbol, args: Any, kwargs: Any, types: DTypesByName) -> Answer:
    """The types in torch: of a composite's function, or of one that the torch executor claimed.

    types: the real types of tensors that do not have the trace's.
    """
    if symbol.executor is None:
        function = function_named(symbol.id)
    else:
        claimed = symbol.executor is torch_executor
        function = getattr(symbol.module, symbol.name, None) if claimed else None
    if function is None:
        return None
    try:
        args, kwargs = tree_map(functools.partial(as_meta, types=types), (args, kwargs))
        for arg in args:  # only the meta device accepts a cat of bools and float8
            listed = isinstance(arg, (list, tuple)) and len(arg) > 1
            if listed and all(isinstance(item, torch.Tensor) for item in arg):
                functools.reduce(torch.promote_types, [item.dtype for item in arg])
        result = function(*args, **{k: v for k, v in kwargs.items() if v is not None})
        results = result if isinstance(result, (tuple, list)) else (result,)
        return tuple(from_torch_dtype(tensor.dtype) for tensor in results)
    except _UNKNOWN:
        return None
    except _REFUSED as error:
        return Reject(f"torch refuses it: {str(error).splitlines()[0]}")


@functools.cache
def function_named(id: Any) -> Callable[..., Any] | None:
    """Torch's function for Thunder's id; most ids are its name: torch.nn.functional.threshold."""
    function: Any = torch
    for name in str(id).removeprefix("torch.").split("."):
        function = getattr(function, name, None)
    return function if callable(function) else _functions_by_id().get(id)


@functools.cache
def _functions_by_id() -> dict[Any, Callable[..., Any]]:
    """{Thunder's id: torch's function, one of several if it has aliases}, from Thunder's list."""
    known = _torch_to_thunder_function_map.items()
    return {symbol.id: function for function, symbol in known if isinstance(symbol, Symbol)}


def as_meta(value: Any, types: DTypesByName) -> Any:
    if isinstance(value, TensorProxy):
        dtype = types[value.name] if value.name in types else data_type(value.dtype)
        if dtype is None:
            raise TypeError(f"the type of {value.name} is unknown")
        return torch.empty(tuple(value._shape), dtype=to_torch_dtype(dtype), device="meta")
    if isinstance(value, NumberProxy):
        return value.value if is_known_number(value) else value.python_type(1)
    if isinstance(value, Proxy):
        raise TypeError(f"{value.name} is no tensor and no number")
    if isinstance(value, (Device, torch.device)):
        return torch.device("meta")
    return torch_dtype_of(value) if isinstance(value, thunder_dtype) else value
