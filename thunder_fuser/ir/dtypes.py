# SPDX-License-Identifier: Apache-2.0
"""The element types of tensors and scalars, and their promotion.

`DataType` has nvFuser's names (`DataType.Float`); `short` is the name in printed types (`f32`).
"""

from __future__ import annotations

import math
import struct
from enum import Enum
from functools import reduce

from thunder_fuser.errors import DtypeError


class DataType(Enum):
    """An element type: (short name, bytes, kind, rank in promotion)."""

    Bool = ("bool", 1, "bool", 0)
    UInt8 = ("u8", 1, "int", 1)
    Int8 = ("i8", 1, "int", 2)
    Int16 = ("i16", 2, "int", 3)
    Int32 = ("i32", 4, "int", 4)
    Int = ("i64", 8, "int", 5)
    Float8_e4m3fn = ("e4m3", 1, "float", 6)
    Float8_e5m2 = ("e5m2", 1, "float", 7)
    Float8_e8m0fnu = ("e8m0", 1, "float", 8)
    Half = ("f16", 2, "float", 9)
    BFloat16 = ("bf16", 2, "float", 10)
    Float = ("f32", 4, "float", 11)
    Double = ("f64", 8, "float", 12)
    ComplexFloat = ("c64", 8, "complex", 13)
    ComplexDouble = ("c128", 16, "complex", 14)

    Null: None  # no type, which is None: the op chooses

    def __init__(self, short: str, size: int, kind: str, rank: int) -> None:
        self.short, self.bytes, self.rank = short, size, rank
        self.is_int, self.is_float = kind == "int", kind == "float"
        self.is_complex = kind == "complex"
        self.is_half = self.is_float and size == 2  # stored, never computed in
        self.is_float8 = self.is_float and size == 1  # only moved and cast: has no arithmetic
        self.is_narrow = self.is_half or self.is_float8  # kernels convert these to Float

    @property
    def real(self) -> DataType:
        """The type of a complex type's parts; itself for any other type."""
        parts = {DataType.ComplexFloat: DataType.Float, DataType.ComplexDouble: DataType.Double}
        return parts.get(self, self)

    @property
    def complex(self) -> DataType:
        """The complex type whose parts hold this type."""
        wide = self in (DataType.Double, DataType.ComplexDouble)
        return DataType.ComplexDouble if wide else DataType.ComplexFloat

    @property
    def compute(self) -> DataType:
        """The type of arithmetic: `Float` for narrow floats, else itself."""
        return DataType.Float if self.is_narrow else self

    @property
    def accumulate(self) -> DataType:
        """The type of sums: `Float` for 16-bit floats, `Int` for integers and bools."""
        return DataType.Int if self.is_int or self is DataType.Bool else self.compute

    @property
    def random_share(self) -> int:
        """The random numbers of this type that one Philox call of four words gives."""
        return 2 if self is DataType.Double else 4

    def __str__(self) -> str:
        return f"DataType.{self.name}"

    __repr__ = __str__


DataType.Null = None

# The real types that ops compute with; shorter floats are only moved and cast.
COMPUTED = tuple(d for d in DataType if not d.is_float8 and not d.is_complex)


def category(dtype: DataType) -> int:
    """0 for bool, 1 for integers, 2 for floats, 3 for complex: the highest one wins a promotion."""
    return 3 if dtype.is_complex else 2 if dtype.is_float else int(dtype.is_int)


def promote(*dtypes: DataType) -> DataType:
    """The common type of tensors, as in torch.promote_types; DtypeError beside an 8-bit float.

    >>> promote(DataType.Half, DataType.BFloat16), promote(DataType.Int8, DataType.UInt8)
    (DataType.Float, DataType.Int16)
    """
    if not dtypes:
        raise DtypeError("promote", expected="at least one dtype", got="none")
    return reduce(_promote_two, dtypes)


def _promote_two(a: DataType, b: DataType) -> DataType:
    pair = {a, b}
    if len(pair) > 1 and (a.is_float8 or b.is_float8):
        expected, do = "equal dtypes beside an 8-bit float", "cast to DataType.Float first"
        raise DtypeError("promote", expected=expected, got=f"{a.name}, {b.name}", do=do)
    if a.is_complex or b.is_complex:
        wide = not pair.isdisjoint({DataType.Double, DataType.ComplexDouble})
        return DataType.ComplexDouble if wide else DataType.ComplexFloat
    if pair == {DataType.Half, DataType.BFloat16}:
        return DataType.Float
    if pair == {DataType.Int8, DataType.UInt8}:
        return DataType.Int16
    return a if a.rank >= b.rank else b


def integer_range(dtype: DataType) -> tuple[int, int]:
    """The least and the largest integer of an integer type."""
    bits = 8 * dtype.bytes
    least = 0 if dtype is DataType.UInt8 else -(2 ** (bits - 1))
    return least, least + 2**bits - 1


def fits(value: float, dtype: DataType) -> bool:
    """Whether a type holds a real number, after rounding or cutting off the fraction.

    As in torch, UInt8 also takes -255 to -1, modulo 256.

    >>> fits(300, DataType.Int8), fits(-1, DataType.UInt8), fits(float("nan"), DataType.Int)
    (False, True, False)
    """
    if not dtype.is_int:
        return isinstance(value, float) or fits(value, DataType.Int)
    if isinstance(value, float):
        return math.isfinite(value) and fits(int(value), dtype)
    least, most = integer_range(dtype)
    least = -most if dtype is DataType.UInt8 else least
    return least <= value <= most


def wrapped(value: int, dtype: DataType) -> int:
    """An integer wrapped around to the range of an integer type.

    >>> wrapped(300, DataType.Int8)
    44
    """
    least, most = integer_range(dtype)
    return (value - least) % (most - least + 1) + least


def held(value: bool | int | float, dtype: DataType) -> bool | int | float:
    """A number as a real type of at least 16 bits holds it: rounded, cut off, wrapped around.

    >>> held(0.1, DataType.Half), held(2.5, DataType.Int32), held(1e39, DataType.Float)
    (0.0999755859375, 2, inf)
    """
    if dtype is DataType.Bool:
        return bool(value)
    if dtype.is_int:
        return wrapped(int(value), dtype)
    return _rounded(float(value), dtype)


def _rounded(value: float, dtype: DataType) -> float:
    """BFloat16 has the high half of a Float, and rounds it as torch does: to nearest, to even."""
    if dtype is DataType.Double or not math.isfinite(value):
        return value
    letter = "e" if dtype is DataType.Half else "f"
    try:
        packed = struct.pack(f"<{letter}", value)
    except OverflowError:
        return math.copysign(math.inf, value)
    if dtype is DataType.BFloat16:
        bits = int.from_bytes(packed, "little")
        packed = (bits + 0x7FFF + (bits >> 16 & 1) >> 16 << 16).to_bytes(4, "little")
    return float(struct.unpack(f"<{letter}", packed)[0])


def of_number(value: bool | int | float) -> DataType:
    """The type of a Python number: Bool, Int or Double."""
    if isinstance(value, bool):
        return DataType.Bool
    return DataType.Int if isinstance(value, int) else DataType.Double
