# SPDX-License-Identifier: Apache-2.0
# Made from ir/op_table.py by `pytest tests/ir/test_op_docs.py --update-golden`.
from collections.abc import Sequence
from typing import Any

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.frontend.kinds import Constant, Scalar, Value
from thunder_fuser.ir.frontend.values import Tensor
from thunder_fuser.ir.op_schema import Op

class OpMethods:
    def _call(self, row: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def abs(self, x: Value | Constant | float) -> Tensor:
        """The absolute value.

        Shape: that of the operands, which are broadcast as in torch.
        Type: that of x, of its parts if it is complex, Float for 16-bit floats.
        In torch: torch.abs(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for bools and floats
            below 16 bits.
        """
    def neg(self, x: Value | Constant | float) -> Tensor:
        """The negation.

        Shape: that of the operands, which are broadcast as in torch.
        Type: that of x, Float for 16-bit floats.
        In torch: torch.neg(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for bools and floats
            below 16 bits.
        """
    def relu(self, x: Value | Constant | float) -> Tensor:
        """x where it is positive, else 0; NaN stays.

        Shape: that of the operands, which are broadcast as in torch.
        Type: that of x, Float for 16-bit floats.
        In torch: torch.relu(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers,
            bools and floats below 16 bits.
        """
    def sign(self, x: Value | Constant | float) -> Tensor:
        """-1, 0 or 1, the sign of x.

        Shape: that of the operands, which are broadcast as in torch.
        Type: that of x, Float for 16-bit floats.
        In torch: torch.sign(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def ceil(self, x: Value | Constant | float) -> Tensor:
        """The least whole number that is not below x.

        Shape: that of the operands, which are broadcast as in torch.
        Type: that of x, Float for 16-bit floats.
        In torch: torch.ceil(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers,
            bools and floats below 16 bits.
        """
    def floor(self, x: Value | Constant | float) -> Tensor:
        """The greatest whole number that is not above x.

        Shape: that of the operands, which are broadcast as in torch.
        Type: that of x, Float for 16-bit floats.
        In torch: torch.floor(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers,
            bools and floats below 16 bits.
        """
    def trunc(self, x: Value | Constant | float) -> Tensor:
        """x without its fraction.

        Shape: that of the operands, which are broadcast as in torch.
        Type: that of x, Float for 16-bit floats.
        In torch: torch.trunc(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers,
            bools and floats below 16 bits.
        """
    def round(self, x: Value | Constant | float) -> Tensor:
        """The nearest whole number; of two, the even one.

        Shape: that of the operands, which are broadcast as in torch.
        Type: that of x, Float for 16-bit floats.
        In torch: torch.round(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers,
            bools and floats below 16 bits.
        """
    def exp(self, x: Value | Constant | float, short: bool | None = None) -> Tensor:
        """e to the power x. short=True allows a few wrong digits at the end, on a GPU.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.exp(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.
        short: True or False.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def exp2(self, x: Value | Constant | float) -> Tensor:
        """2 to the power x.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.exp2(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def expm1(self, x: Value | Constant | float) -> Tensor:
        """exp(x) - 1, exact near 0.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.expm1(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def log(self, x: Value | Constant | float) -> Tensor:
        """The natural logarithm.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.log(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def log2(self, x: Value | Constant | float) -> Tensor:
        """The logarithm to base 2.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.log2(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def log10(self, x: Value | Constant | float) -> Tensor:
        """The logarithm to base 10.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.log10(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def log1p(self, x: Value | Constant | float) -> Tensor:
        """log(1 + x), exact near 0.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.log1p(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def sin(self, x: Value | Constant | float) -> Tensor:
        """The sine.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.sin(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def cos(self, x: Value | Constant | float) -> Tensor:
        """The cosine.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.cos(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def tanh(self, x: Value | Constant | float, short: bool | None = None) -> Tensor:
        """The hyperbolic tangent. short=True allows a few wrong digits at the end, on a GPU.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.tanh(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.
        short: True or False.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def tan(self, x: Value | Constant | float) -> Tensor:
        """The tangent.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.tan(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def asin(self, x: Value | Constant | float) -> Tensor:
        """The inverse sine.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.asin(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def acos(self, x: Value | Constant | float) -> Tensor:
        """The inverse cosine.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.acos(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def atan(self, x: Value | Constant | float) -> Tensor:
        """The inverse tangent.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.atan(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def sinh(self, x: Value | Constant | float) -> Tensor:
        """The hyperbolic sine.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.sinh(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def cosh(self, x: Value | Constant | float) -> Tensor:
        """The hyperbolic cosine.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.cosh(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def asinh(self, x: Value | Constant | float) -> Tensor:
        """The inverse hyperbolic sine.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.asinh(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def acosh(self, x: Value | Constant | float) -> Tensor:
        """The inverse hyperbolic cosine.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.acosh(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def atanh(self, x: Value | Constant | float) -> Tensor:
        """The inverse hyperbolic tangent.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.atanh(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def erf(self, x: Value | Constant | float, short: bool | None = None) -> Tensor:
        """The error function. short=True allows a few wrong digits at the end, on a GPU.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.erf(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.
        short: True or False.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def erfc(self, x: Value | Constant | float) -> Tensor:
        """1 - erf(x), exact for large x.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.erfc(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def one_plus_tanh(self, x: Value | Constant | float) -> Tensor:
        """1 + tanh(x), exact for x far below 0.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: 1 + torch.tanh(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def erfinv(self, x: Value | Constant | float) -> Tensor:
        """The inverse of erf.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.erfinv(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def erfcinv(self, x: Value | Constant | float) -> Tensor:
        """The inverse of erfc.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def lgamma(self, x: Value | Constant | float) -> Tensor:
        """The logarithm of the absolute value of the gamma function.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.lgamma(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def digamma(self, x: Value | Constant | float) -> Tensor:
        """The derivative of lgamma.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.digamma(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def ndtri(self, x: Value | Constant | float) -> Tensor:
        """The inverse of the normal distribution function.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.special.ndtri(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def sqrt(self, x: Value | Constant | float) -> Tensor:
        """The square root.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.sqrt(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def rsqrt(self, x: Value | Constant | float) -> Tensor:
        """1 / sqrt(x).

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.rsqrt(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def reciprocal(self, x: Value | Constant | float, short: bool | None = None) -> Tensor:
        """1 / x. short=True allows a few wrong digits at the end, on a GPU.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.reciprocal(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.
        short: True or False.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def frac(self, x: Value | Constant | float) -> Tensor:
        """x - trunc(x).

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.frac(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def sigmoid(self, x: Value | Constant | float) -> Tensor:
        """1 / (1 + exp(-x)).

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.sigmoid(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def silu(self, x: Value | Constant | float) -> Tensor:
        """x * sigmoid(x).

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.nn.functional.silu(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def real(self, x: Value | Constant | float) -> Tensor:
        """The real part.

        Shape: that of the operands, which are broadcast as in torch.
        Type: that of x, of its parts if it is complex, Float for 16-bit floats.
        In torch: torch.real(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def imag(self, x: Value | Constant | float) -> Tensor:
        """The imaginary part.

        Shape: that of the operands, which are broadcast as in torch.
        Type: that of x, of its parts if it is complex, Float for 16-bit floats.
        In torch: torch.imag(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for real numbers and
            floats below 16 bits.
        """
    def complex(self, real: Value | Constant | float, imag: Value | Constant | float) -> Tensor:
        """A complex number from its parts.

        Shape: that of the operands, which are broadcast as in torch.
        Type: ComplexDouble if an operand is a Double, else ComplexFloat.
        In torch: torch.complex(real, imag).

        real, imag: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def isfinite(self, x: Value | Constant | float) -> Tensor:
        """True where x is neither infinite nor NaN.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool.
        In torch: torch.isfinite(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def isinf(self, x: Value | Constant | float) -> Tensor:
        """True where x is infinite.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool.
        In torch: torch.isinf(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def isnan(self, x: Value | Constant | float) -> Tensor:
        """True where x is NaN.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool.
        In torch: torch.isnan(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def isneginf(self, x: Value | Constant | float) -> Tensor:
        """True where x is negative infinity.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool.
        In torch: torch.isneginf(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def isposinf(self, x: Value | Constant | float) -> Tensor:
        """True where x is positive infinity.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool.
        In torch: torch.isposinf(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def signbit(self, x: Value | Constant | float) -> Tensor:
        """True where x has a minus sign, which -0.0 has too.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool.
        In torch: torch.signbit(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def isreal(self, x: Value | Constant | float) -> Tensor:
        """True where the imaginary part is 0.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool.
        In torch: torch.isreal(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def logical_not(self, x: Value | Constant | float) -> Tensor:
        """True where x is 0.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool; the operands are converted to it first.
        In torch: torch.logical_not(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def bitwise_not(self, x: Value | Constant | float) -> Tensor:
        """Every bit inverted.

        Shape: that of the operands, which are broadcast as in torch.
        Type: that of x.
        In torch: torch.bitwise_not(x).

        x: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats.
        """
    def add(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """lhs + rhs.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands, Float for 16-bit floats.
        In torch: torch.add(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def sub(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """lhs - rhs.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands, Float for 16-bit floats.
        In torch: torch.sub(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for bools and floats
            below 16 bits.
        """
    def mul(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """lhs * rhs.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands, Float for 16-bit floats.
        In torch: torch.mul(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def div(
        self,
        lhs: Value | Constant | float,
        rhs: Value | Constant | float,
        short: bool | None = None,
    ) -> Tensor:
        """lhs / rhs; of integers, rounded towards 0. short=True is less exact on a GPU.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands, Float for 16-bit floats.

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.
        short: True or False.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for bools and floats
            below 16 bits.
        """
    def truediv(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """lhs / rhs as a float.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.true_divide(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def fmod(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """The remainder of lhs / rhs with the sign of lhs, as in C.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands, Float for 16-bit floats.
        In torch: torch.fmod(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers,
            bools and floats below 16 bits.
        """
    def mod(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """The same as fmod.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands, Float for 16-bit floats.
        In torch: torch.fmod(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers,
            bools and floats below 16 bits.
        """
    def remainder(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """The remainder of lhs / rhs with the sign of rhs, as in Python.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands, Float for 16-bit floats.
        In torch: torch.remainder(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers,
            bools and floats below 16 bits.
        """
    def pow(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """lhs to the power rhs.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands, Float for 16-bit floats.
        In torch: torch.pow(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers,
            bools and floats below 16 bits.
        """
    def atan2(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """The angle of the point (rhs, lhs), from -pi to pi.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.atan2(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def nextafter(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """The next float after lhs towards rhs.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.nextafter(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def zeta(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """The Hurwitz zeta function: the sum over k >= 0 of (k + rhs) to the power -lhs.

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.special.zeta(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def minimum(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """The lesser of the two; NaN if either is.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands, Float for 16-bit floats.
        In torch: torch.minimum(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def maximum(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """The greater of the two; NaN if either is.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands, Float for 16-bit floats.
        In torch: torch.maximum(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def gcd(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """The greatest common divisor.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands.
        In torch: torch.gcd(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers,
            bools and floats.
        """
    def eq(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """lhs == rhs.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool; the operands are compared in their common type.
        In torch: torch.eq(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def ne(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """lhs != rhs.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool; the operands are compared in their common type.
        In torch: torch.ne(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def lt(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """lhs < rhs.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool; the operands are compared in their common type.
        In torch: torch.lt(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def le(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """lhs <= rhs.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool; the operands are compared in their common type.
        In torch: torch.le(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def gt(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """lhs > rhs.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool; the operands are compared in their common type.
        In torch: torch.gt(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def ge(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """lhs >= rhs.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool; the operands are compared in their common type.
        In torch: torch.ge(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def logical_and(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """True where neither is 0.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool; the operands are converted to it first.
        In torch: torch.logical_and(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def logical_or(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """True where either is not 0.

        Shape: that of the operands, which are broadcast as in torch.
        Type: Bool; the operands are converted to it first.
        In torch: torch.logical_or(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def bitwise_and(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """Bits that both have.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands.
        In torch: torch.bitwise_and(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats.
        """
    def bitwise_or(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """Bits that either has.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands.
        In torch: torch.bitwise_or(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats.
        """
    def bitwise_xor(self, lhs: Value | Constant | float, rhs: Value | Constant | float) -> Tensor:
        """Bits that exactly one of them has.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands.
        In torch: torch.bitwise_xor(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats.
        """
    def bitwise_left_shift(
        self,
        lhs: Value | Constant | float,
        rhs: Value | Constant | float,
    ) -> Tensor:
        """lhs * 2**rhs, in the bits of its type.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands.
        In torch: torch.bitwise_left_shift(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers,
            bools and floats.
        """
    def bitwise_right_shift(
        self,
        lhs: Value | Constant | float,
        rhs: Value | Constant | float,
    ) -> Tensor:
        """lhs shifted right by rhs bits; the sign stays.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands.
        In torch: torch.bitwise_right_shift(lhs, rhs).

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers,
            bools and floats.
        """
    def logical_right_shift(
        self,
        lhs: Value | Constant | float,
        rhs: Value | Constant | float,
    ) -> Tensor:
        """lhs shifted right by rhs bits; zeros come in from the left.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands.

        lhs, rhs: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers,
            bools and floats.
        """
    def where(
        self,
        condition: Value | Constant | float,
        a: Value | Constant | float,
        b: Value | Constant | float,
    ) -> Tensor:
        """a where the condition is true, else b.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of a and b.
        In torch: torch.where(condition, a, b).

        condition, a, b: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for a condition that
            is no Bool.
        """
    def lerp(
        self,
        start: Value | Constant | float,
        end: Value | Constant | float,
        weight: Value | Constant | float,
    ) -> Tensor:
        """start + weight * (end - start).

        Shape: that of the operands, which are broadcast as in torch.
        Type: as torch promotes; Float for integers, bools and 16-bit floats.
        In torch: torch.lerp(start, end, weight).

        start, end, weight: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def clamp(
        self,
        x: Value | Constant | float,
        min: Value | Constant | float,
        max: Value | Constant | float,
    ) -> Tensor:
        """x, but at least min and at most max.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands, Float for 16-bit floats.
        In torch: torch.clamp(x, min, max).

        x, min, max: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers,
            bools and floats below 16 bits.
        """
    def threshold(
        self,
        x: Value | Constant | float,
        threshold: Value | Constant | float,
        value: Value | Constant | float,
    ) -> Tensor:
        """x where it exceeds the threshold, else the value.

        Shape: that of the operands, which are broadcast as in torch.
        Type: the common type of the operands, Float for 16-bit floats.
        In torch: torch.where(x <= threshold, value, x).

        x, threshold, value: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def cast(self, arg: Value | Constant | float, dtype: DataType) -> Tensor:
        """arg in another type.

        Shape: that of the operands, which are broadcast as in torch.
        Type: dtype.
        In torch: arg.to(dtype).

        arg: a tensor, a scalar or a real number, an integer one of 64 bits.
        dtype: a DataType (Bool, UInt8, Int8, Int16, Int32, Int, Float8_e4m3fn, Float8_e5m2,
            Float8_e8m0fnu, Half, BFloat16, Float, Double, ComplexFloat, ComplexDouble).

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def set(self, arg: Value | Constant | float) -> Tensor:
        """A copy.

        Shape: that of arg.
        Type: that of arg.
        In torch: arg.clone().

        arg: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def segment_set(self, arg: Value) -> Tensor:
        """A copy in memory: its readers are in other kernels than its producer.

        Shape: that of arg.
        Type: that of arg.
        In torch: arg.clone().

        arg: a tensor.

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def stride_order(self, arg: Value, stride_order: Sequence[int]) -> Tensor:
        """The same elements, in memory with this stride order.

        Shape: that of arg.
        Type: that of arg.

        arg: a tensor.
        stride_order: a list of integers.

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def broadcast(self, arg: Value, is_broadcast_dim: Sequence[bool]) -> Tensor:
        """arg with a new axis of size 1 wherever the list has True.

        Shape: that of arg and the new axes.
        Type: that of arg.

        arg: a tensor.
        is_broadcast_dim: a list of True and False.

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def broadcast_in_dim(
        self,
        arg: Value,
        shape: Sequence[int | Value | Constant],
        broadcast_dims: Sequence[int],
    ) -> Tensor:
        """A tensor of this shape, in which the axes of arg are the axes broadcast_dims.

        Shape: the argument shape.
        Type: that of arg.

        arg: a tensor.
        shape: a list of integers and scalars.
        broadcast_dims: a list of integers.

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def expand(self, arg: Value, shape: Sequence[int | Value | Constant]) -> Tensor:
        """arg with axes of size 1 repeated to this shape; -1 keeps a size.

        Shape: the argument shape.
        Type: that of arg.
        In torch: arg.expand(shape).

        arg: a tensor.
        shape: a list of integers and scalars.

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def squeeze(self, arg: Value, dims: int | Sequence[int]) -> Tensor:
        """arg without these axes, which have size 1.

        Shape: that of arg without dims.
        Type: that of arg.
        In torch: arg.squeeze(dims).

        arg: a tensor.
        dims: an axis or a list of axes.

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def permute(self, arg: Value, dims: int | Sequence[int]) -> Tensor:
        """arg with its axes in this order.

        Shape: that of arg in the order of dims.
        Type: that of arg.
        In torch: arg.permute(dims).

        arg: a tensor.
        dims: an axis or a list of axes.

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def reshape(self, arg: Value, new_shape: Sequence[int | Value | Constant]) -> Tensor:
        """The elements in row-major order, in a new shape; one size may be -1.

        Shape: the argument new_shape.
        Type: that of arg.
        In torch: arg.reshape(new_shape).

        arg: a tensor.
        new_shape: a list of integers and scalars.

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def slice(
        self,
        arg: Value,
        start_indices: Sequence[int | Value | Constant],
        end_indices: Sequence[int | Value | Constant],
        strides: Sequence[int] | None = None,
    ) -> Tensor:
        """The elements from start to end, without the end, on each axis, in steps of strides.

        Shape: (end - start) / stride on each axis, rounded up.
        Type: that of arg.

        arg: a tensor.
        start_indices, end_indices: a list of integers and scalars.
        strides: a list of integers.

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def pad(
        self,
        arg: Value,
        pad_widths: Sequence[int | Value | Constant],
        value: float | Value | Constant | None = 0,
    ) -> Tensor:
        """arg with value added at the ends of axes; widths (before, after) start at the last axis.

        Shape: that of arg plus both widths.
        Type: that of arg.
        In torch: torch.nn.functional.pad(arg, pad_widths, value=value).

        arg: a tensor.
        pad_widths: a list of integers and scalars.
        value: a real number, an integer one of 64 bits, or a scalar.

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def cat(self, tensors: Sequence[Value], dim: int = 0) -> Tensor:
        """The tensors joined along an axis.

        Shape: that of the tensors, whose sizes along dim are added.
        Type: the common type of the tensors.
        In torch: torch.cat(tensors, dim).

        tensors: a list of tensors.
        dim: an axis.

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def flip(self, arg: Value, dims: int | Sequence[int]) -> Tensor:
        """arg with these axes reversed.

        Shape: that of arg.
        Type: that of arg.
        In torch: torch.flip(arg, dims).

        arg: a tensor.
        dims: an axis or a list of axes.

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def index_select(self, arg: Value, index: Value | Constant | float, dim: int) -> Tensor:
        """The slices of arg along dim that a vector of indices, or one index, names.

        Shape: that of arg, with the number of indices at dim.
        Type: that of arg.
        In torch: torch.index_select(arg, dim, index.long()).

        arg: a tensor.
        index: a tensor, a scalar or a real number, an integer one of 64 bits.
        dim: an axis.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for an index that is
            neither Int nor Int32.
        """
    def take_along_axis(self, arg: Value, index: Value, dim: int) -> Tensor:
        """The elements of arg that the index names along dim; other axes are broadcast.

        Shape: that of arg and index, broadcast, with the size of index at dim.
        Type: that of arg.
        In torch: torch.take_along_dim(arg, index.long(), dim).

        arg, index: a tensor.
        dim: an axis.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for an index that is
            neither Int nor Int32.
        """
    def gather(self, arg: Value, index: Value, dim: int) -> Tensor:
        """As take_along_axis, but the index may be shorter than arg and nothing is broadcast.

        Shape: that of index.
        Type: that of arg.
        In torch: torch.gather(arg, dim, index.long()).

        arg, index: a tensor.
        dim: an axis.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for an index that is
            neither Int nor Int32.
        """
    def embedding_fwd(
        self,
        input: Value,
        weight: Value,
        padding_idx: int | Value | Constant | None = None,
        max_norm: float | Value | None = None,
        norm_type: float | Value | Constant | None = 2.0,
        scale_grad_by_freq: bool | Value | Constant | None = False,
        sparse: bool | Value | Constant | None = False,
    ) -> Tensor:
        """The rows of weight that the integers of input name, scaled to max_norm if longer.

        Shape: that of input, then the last size of weight.
        Type: that of weight.
        In torch: torch.nn.functional.embedding(input, weight).

        input, weight: a tensor.
        padding_idx: an integer of 64 bits, or a scalar.
        max_norm, norm_type: a real number, an integer one of 64 bits, or a scalar.
        scale_grad_by_freq, sparse: True, False or a scalar.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for an index that is
            neither Int nor Int32.
        """
    def index_store(
        self,
        arg: Value,
        index: Value,
        dim: int,
        size: Value | Constant | float,
    ) -> Tensor:
        """arg, which as a result over an input replaces its slices at the indices along dim.

        Shape: that of arg.
        Type: that of arg.
        In torch: arg.clone().

        arg, index: a tensor.
        dim: an axis.
        size: a tensor, a scalar or a real number, an integer one of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for an index that is
            neither Int nor Int32.
        """
    def full(
        self,
        shape: Sequence[int | Value | Constant],
        fill_value: Value | Constant | float,
        dtype: DataType,
    ) -> Tensor:
        """A tensor of one number.

        Shape: the argument shape.
        Type: dtype.

        shape: a list of integers and scalars.
        fill_value: a tensor, a scalar or a real number, an integer one of 64 bits.
        dtype: a DataType (Bool, UInt8, Int8, Int16, Int32, Int, Float8_e4m3fn, Float8_e5m2,
            Float8_e8m0fnu, Half, BFloat16, Float, Double, ComplexFloat, ComplexDouble).

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def iota(
        self,
        length: int | Value | Constant,
        start: Value | Constant | float = 0,
        step: Value | Constant | float = 1,
        dtype: DataType | None = None,
    ) -> Tensor:
        """start, start + step, and so on, length numbers; Int by default.

        Shape: [length].
        Type: dtype, by default Int.

        length: an integer of 64 bits, or a scalar.
        start, step: a tensor, a scalar or a real number, an integer one of 64 bits.
        dtype: a DataType (Bool, UInt8, Int8, Int16, Int32, Int, Float8_e4m3fn, Float8_e5m2,
            Float8_e8m0fnu, Half, BFloat16, Float, Double, ComplexFloat, ComplexDouble).

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for the dtype Bool.
        """
    def uniform(
        self,
        lo: Value | Constant | float,
        hi: Value | Constant | float,
        shape: Sequence[int | Value | Constant],
        dtype: DataType | None = None,
        rng_seed: Value | Constant | float | None = None,
        rng_offset: Value | Constant | float | None = None,
    ) -> Tensor:
        """Uniform random numbers in [lo, hi), not torch's. Give both rng_* or neither.

        Shape: the argument shape.
        Type: dtype, by default Float.

        lo, hi, rng_seed, rng_offset: a tensor, a scalar or a real number, an integer one of 64
            bits.
        shape: a list of integers and scalars.
        dtype: a DataType (Bool, UInt8, Int8, Int16, Int32, Int, Float8_e4m3fn, Float8_e5m2,
            Float8_e8m0fnu, Half, BFloat16, Float, Double, ComplexFloat, ComplexDouble).

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for a dtype other
            than floats of 16 bits or more.
        """
    def normal(
        self,
        mean: Value | Constant | float,
        std: Value | Constant | float,
        shape: Sequence[int | Value | Constant],
        dtype: DataType | None = None,
        rng_seed: Value | Constant | float | None = None,
        rng_offset: Value | Constant | float | None = None,
    ) -> Tensor:
        """Normal random numbers, not torch's. Give both rng_* or neither.

        Shape: the argument shape.
        Type: dtype, by default Float.

        mean, std, rng_seed, rng_offset: a tensor, a scalar or a real number, an integer one of
            64 bits.
        shape: a list of integers and scalars.
        dtype: a DataType (Bool, UInt8, Int8, Int16, Int32, Int, Float8_e4m3fn, Float8_e5m2,
            Float8_e8m0fnu, Half, BFloat16, Float, Double, ComplexFloat, ComplexDouble).

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for a dtype other
            than floats of 16 bits or more.
        """
    def size(self, arg: Value, dim: int) -> Scalar:
        """The size of an axis, for arithmetic and shapes.

        Shape: none, because the result is a scalar.
        Type: Int.

        arg: a tensor.
        dim: an axis.

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def sum(
        self,
        arg: Value,
        dims: int | Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: DataType | None = None,
        chunk: int | None = None,
        short: bool | None = None,
    ) -> Tensor:
        """The sum over dims.

        Shape: that of arg without dims, which are all axes by default and have size 1 with
            keepdim; chunk=n gives a new first axis, of partial results over runs of n elements.
        Type: dtype, by default that of arg, Float for 16-bit floats, Int for integers and
            bools.
        In torch: torch.sum(arg, dims, keepdim, dtype=arg.dtype).

        arg: a tensor.
        dims: an axis or a list of axes.
        keepdim, short: True or False.
        dtype: a DataType (Bool, UInt8, Int8, Int16, Int32, Int, Float8_e4m3fn, Float8_e5m2,
            Float8_e8m0fnu, Half, BFloat16, Float, Double, ComplexFloat, ComplexDouble).
        chunk: an integer of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def prod(
        self,
        arg: Value,
        dims: int | Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: DataType | None = None,
        chunk: int | None = None,
    ) -> Tensor:
        """The product over dims.

        Shape: that of arg without dims, which are all axes by default and have size 1 with
            keepdim; chunk=n gives a new first axis, of partial results over runs of n elements.
        Type: dtype, by default that of arg, Float for 16-bit floats, Int for integers and
            bools.

        arg: a tensor.
        dims: an axis or a list of axes.
        keepdim: True or False.
        dtype: a DataType (Bool, UInt8, Int8, Int16, Int32, Int, Float8_e4m3fn, Float8_e5m2,
            Float8_e8m0fnu, Half, BFloat16, Float, Double, ComplexFloat, ComplexDouble).
        chunk: an integer of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def max(
        self,
        arg: Value,
        dims: int | Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: DataType | None = None,
        chunk: int | None = None,
    ) -> Tensor:
        """The greatest element over dims; NaN if there is one.

        Shape: that of arg without dims, which are all axes by default and have size 1 with
            keepdim; chunk=n gives a new first axis, of partial results over runs of n elements.
        Type: dtype, by default that of arg.
        In torch: torch.amax(arg, dims, keepdim).

        arg: a tensor.
        dims: an axis or a list of axes.
        keepdim: True or False.
        dtype: a DataType (Bool, UInt8, Int8, Int16, Int32, Int, Float8_e4m3fn, Float8_e5m2,
            Float8_e8m0fnu, Half, BFloat16, Float, Double, ComplexFloat, ComplexDouble).
        chunk: an integer of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def min(
        self,
        arg: Value,
        dims: int | Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: DataType | None = None,
        chunk: int | None = None,
    ) -> Tensor:
        """The least element over dims; NaN if there is one.

        Shape: that of arg without dims, which are all axes by default and have size 1 with
            keepdim; chunk=n gives a new first axis, of partial results over runs of n elements.
        Type: dtype, by default that of arg.
        In torch: torch.amin(arg, dims, keepdim).

        arg: a tensor.
        dims: an axis or a list of axes.
        keepdim: True or False.
        dtype: a DataType (Bool, UInt8, Int8, Int16, Int32, Int, Float8_e4m3fn, Float8_e5m2,
            Float8_e8m0fnu, Half, BFloat16, Float, Double, ComplexFloat, ComplexDouble).
        chunk: an integer of 64 bits.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def cumsum(self, arg: Value, dim: int) -> Tensor:
        """The sum of all elements up to each one, along dim.

        Shape: that of arg.
        Type: that of arg, Int for integers and bools.
        In torch: torch.cumsum(arg, dim, dtype=arg.dtype).

        arg: a tensor.
        dim: an axis.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def cumprod(self, arg: Value, dim: int) -> Tensor:
        """The product of all elements up to each one, along dim.

        Shape: that of arg.
        Type: that of arg, Int for integers and bools.
        In torch: torch.cumprod(arg, dim, dtype=arg.dtype).

        arg: a tensor.
        dim: an axis.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for floats below 16
            bits.
        """
    def cummax(self, arg: Value, dim: int) -> Tensor:
        """The greatest of all elements up to each one, along dim.

        Shape: that of arg.
        Type: that of arg.
        In torch: torch.cummax(arg, dim).values.

        arg: a tensor.
        dim: an axis.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def cummin(self, arg: Value, dim: int) -> Tensor:
        """The least of all elements up to each one, along dim.

        Shape: that of arg.
        Type: that of arg.
        In torch: torch.cummin(arg, dim).values.

        arg: a tensor.
        dim: an axis.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def matmul(self, a: Value, b: Value, streams: Sequence[int] | None = None) -> Tensor:
        """The matrix product; streams: an axis of the result, and its pieces, each on a stream.

        Shape: as of torch.matmul.
        Type: that of a.
        In torch: torch.matmul(a, b).

        a, b: a tensor.
        streams: an axis and a number of pieces.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for operands of
            several types.
        """
    def grouped_mm(self, mat1: Value, mat2: Value, offsets: Value) -> Tensor:
        """A product for each group of rows, columns or summed elements; offsets: where they end.

        Shape: [m, n], or [groups, m, n] if mat1 and mat2 are matrices.
        Type: that of mat1.

        mat1, mat2, offsets: a tensor.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for matrices of
            several types, and offsets that are neither Int nor Int32.
        """
    def sdpfa_fwd(
        self,
        query: Value,
        key: Value,
        value: Value,
        dropout_p: float | Value | Constant | None = None,
        is_causal: bool | Value | Constant | None = None,
        scale: float | Value | Constant | None = None,
        attn_mask: Value | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(attention of [*batch, H, L, E], its logsumexp, the seed and the offset of its dropout).
            attn_mask is added to the scores. The result lies in memory as query does.

        Shape: [*batch, H, L, the last size of value], [*batch, H, L], [2], [].
        Type: that of query, Float, Int, Int.

        query, key, value, attn_mask: a tensor.
        dropout_p, scale: a real number or a scalar.
        is_causal: True, False or a scalar.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for operands of
            several types, or of another one than Half, BFloat16 and Float.
        """
    def sdpfa_bwd(
        self,
        grad_output: Value,
        query: Value,
        key: Value,
        value: Value,
        output: Value,
        logsumexp: Value,
        dropout_p: float | Value | Constant | None,
        is_causal: bool | Value | Constant | None,
        philox_seed: Value,
        philox_offset: Value,
        scale: float | Value | Constant | None = None,
        attn_mask: Value | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of query, key and value, from arguments and results of sdpfa_fwd.

        Shape: those of query, key and value.
        Type: that of grad_output, that of grad_output, that of grad_output.

        grad_output, query, key, value, output, logsumexp, philox_seed, philox_offset,
            attn_mask: a tensor.
        dropout_p, scale: a real number or a scalar.
        is_causal: True, False or a scalar.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for operands of
            several types, or of another one than Half, BFloat16 and Float.
        """
    def linear(
        self,
        arg: Value,
        weight: Value,
        bias: Value | None = None,
        streams: Sequence[int] | None = None,
    ) -> Tensor:
        """arg @ weight.T + bias; streams: as of matmul.

        Shape: that of arg, with the first size of weight in place of the last one.
        Type: that of arg.
        In torch: torch.nn.functional.linear(arg, weight, bias).

        arg, weight, bias: a tensor.
        streams: an axis and a number of pieces.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for operands of
            several types.
        """
    def scatter(self, arg: Value, index: Value, src: Value | Constant | float, dim: int) -> Tensor:
        """A copy of arg with src, or one number, written where the index says along dim.

        Shape: that of arg.
        Type: that of arg.

        arg, index: a tensor.
        src: a tensor, a scalar or a real number, an integer one of 64 bits.
        dim: an axis.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for an index that is
            neither Int nor Int32, or src of another type than arg.
        """
    def scatter_add(self, arg: Value, index: Value, src: Value, dim: int) -> Tensor:
        """A copy of arg with src added where the index says along dim.

        Shape: that of arg.
        Type: that of arg.
        In torch: torch.scatter_add(arg, dim, index.long(), src).

        arg, index, src: a tensor.
        dim: an axis.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for an index that is
            neither Int nor Int32, or src of another type than arg.
        """
    def index_add(self, arg: Value, index: Value, src: Value, dim: int) -> Tensor:
        """A copy of arg with the slices of src added at the indices along dim.

        Shape: that of arg.
        Type: that of arg.
        In torch: torch.index_add(arg, dim, index, src).

        arg, index, src: a tensor.
        dim: an axis.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for an index that is
            neither Int nor Int32, or src of another type than arg.
        """
    def index_copy(self, arg: Value, index: Value, src: Value, dim: int) -> Tensor:
        """A copy of arg with the slices of src written at the indices along dim.

        Shape: that of arg.
        Type: that of arg.
        In torch: torch.index_copy(arg, dim, index.long(), src).

        arg, index, src: a tensor.
        dim: an axis.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for an index that is
            neither Int nor Int32, or src of another type than arg.
        """
    def index_put(self, arg: Value, index: Value, src: Value) -> Tensor:
        """A copy of arg after arg[index] = src.

        Shape: that of arg.
        Type: that of arg.
        In torch: torch.index_put(arg, (index,), src).

        arg, index, src: a tensor.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for an index that is
            neither Int nor Int32, or src of another type than arg.
        """
    def index_put_accumulate(self, arg: Value, index: Value, src: Value) -> Tensor:
        """As index_put, but src is added.

        Shape: that of arg.
        Type: that of arg.
        In torch: torch.index_put(arg, (index,), src, True).

        arg, index, src: a tensor.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for an index that is
            neither Int nor Int32, or src of another type than arg.
        """
    def embedding_backward(
        self,
        grad: Value,
        indices: Value,
        num_weights: int,
        padding_idx: int = -1,
        scale_grad_by_freq: bool = False,
    ) -> Tensor:
        """The gradient of an embedding's weight from that of its result.

        Shape: [num_weights, the last size of grad].
        Type: that of grad.
        In torch: torch.ops.aten.embedding_dense_backward(grad, indices, num_weights,
            padding_idx, scale_grad_by_freq).

        grad, indices: a tensor.
        num_weights, padding_idx: an integer of 64 bits.
        scale_grad_by_freq: True or False.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for a grad that is
            no float, or an index that is neither Int nor Int32.
        """
    def argsort(
        self,
        arg: Value,
        dim: int = -1,
        descending: bool = False,
        stable: bool = False,
    ) -> Tensor:
        """The indices that sort arg along dim.

        Shape: that of arg.
        Type: Int.
        In torch: torch.argsort(arg, dim=dim, descending=descending, stable=stable).

        arg: a tensor.
        dim: an axis.
        descending, stable: True or False.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def sort(
        self,
        arg: Value,
        dim: int = -1,
        descending: bool = False,
        stable: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """(elements of arg in order along dim, their indices).

        Shape: that of arg.
        Type: that of arg, Int.
        In torch: torch.sort(arg, dim=dim, descending=descending, stable=stable).

        arg: a tensor.
        dim: an axis.
        descending, stable: True or False.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers
            and floats below 16 bits.
        """
    def topk(
        self,
        arg: Value,
        k: int | Value | Constant,
        dim: int = -1,
        largest: bool = True,
        sorted: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """(the k greatest elements along dim, or the least, their indices).

        Shape: that of arg, with k at dim.
        Type: that of arg, Int.
        In torch: torch.topk(arg, k, dim, largest, sorted).

        arg: a tensor.
        k: an integer of 64 bits, or a scalar.
        dim: an axis.
        largest, sorted: True or False.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for complex numbers,
            bools and floats below 16 bits.
        """
    def redistribute(self, arg: Value, placements: Sequence[Any]) -> Tensor:
        """arg in other placements on its mesh: Shard(axis), Replicate() or Partial(sum).

        Shape: that of arg.
        Type: that of arg.

        arg: a tensor.
        placements: a list of Shard(axis), Replicate() and Partial(sum).

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def all_gather(self, arg: Value, dim: int, mesh: Any, on: str) -> Tensor:
        """The tensors of a group of devices, joined along dim.

        Shape: that of arg, with dim as many times longer as there are devices.
        Type: that of arg.

        arg: a tensor.
        dim: an axis.
        mesh: a mesh of devices, or lists of ranks.
        on: "mesh_x", "mesh_y" or "mesh_z".

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def reduce_scatter(
        self,
        arg: Value,
        dim: int,
        mesh: Any,
        on: str,
        reduce: str = 'sum',
    ) -> Tensor:
        """This device's part, along dim, of the reduction of a group's tensors.

        Shape: that of arg, with dim divided by the number of devices.
        Type: that of arg.

        arg: a tensor.
        dim: an axis.
        mesh: a mesh of devices, or lists of ranks.
        on: "mesh_x", "mesh_y" or "mesh_z".
        reduce: one of sum, avg, product, min, max.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for the dtype Bool
            and 8-bit floats.
        """
    def all_reduce(self, arg: Value, mesh: Any, on: str, reduce: str = 'sum') -> Tensor:
        """The reduction of the tensors of a group of devices, element by element.

        Shape: that of arg.
        Type: that of arg.

        arg: a tensor.
        mesh: a mesh of devices, or lists of ranks.
        on: "mesh_x", "mesh_y" or "mesh_z".
        reduce: one of sum, avg, product, min, max.

        Raises DefinitionError if arguments or sizes do not fit, DtypeError for the dtype Bool
            and 8-bit floats.
        """
    def all_to_all(self, arg: Value, split_dim: int, cat_dim: int, mesh: Any, on: str) -> Tensor:
        """The parts along split_dim that all devices have for this one, joined along cat_dim.

        Shape: that of arg, split_dim divided by the number of devices and cat_dim multiplied.
        Type: that of arg.

        arg: a tensor.
        split_dim, cat_dim: an axis.
        mesh: a mesh of devices, or lists of ranks.
        on: "mesh_x", "mesh_y" or "mesh_z".

        Raises DefinitionError if arguments or sizes do not fit.
        """
    def broadcast_from(self, arg: Value, root: int, mesh: Any, on: str) -> Tensor:
        """The tensor of the device with this coordinate along a dimension of the mesh.

        Shape: that of arg.
        Type: that of arg.

        arg: a tensor.
        root: a coordinate in the mesh.
        mesh: a mesh of devices, or lists of ranks.
        on: "mesh_x", "mesh_y" or "mesh_z".

        Raises DefinitionError if arguments or sizes do not fit.
        """
