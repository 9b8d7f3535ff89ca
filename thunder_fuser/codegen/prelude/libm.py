# SPDX-License-Identifier: Apache-2.0
"""Names of C math functions in a text -> the declarations it needs to call them.

No header is included (`math.h` alone costs a third of a kernel's build); the compiler knows these
functions by their names. Those with a SIMD version in this machine's libmvec are declared so, and
then a loop under `omp simd` calls that version (4 ulp at most).
"""

import ctypes
import platform
from functools import cache

# fmt: off
UNARY = (
    "exp", "log", "log2", "log10", "log1p", "expm1", "exp2",
    "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "erfc", "lgamma", "tgamma", "sqrt", "cbrt", "floor", "ceil", "trunc", "rint", "fabs",
)
BINARY = ("pow", "atan2", "fmod", "fmin", "fmax", "hypot", "nextafter", "copysign")
# fmt: on
ARITY = {name + suffix: 1 for name in UNARY for suffix in ("", "f")} | {
    name + suffix: 2 for name in BINARY for suffix in ("", "f")
}

# clang does not know the attribute: there the scalar functions are called.
SIMD_MACRO = """\
#ifdef __clang__
#define VECTOR_MATH
#else
#define VECTOR_MATH __attribute__((simd("notinbranch"), const, nothrow))
#endif
"""


@cache
def vector_functions() -> frozenset[str]:
    """The functions that this machine's libmvec has for every SIMD width (x86-64 only)."""
    if platform.machine() != "x86_64":
        return frozenset()
    try:
        libmvec = ctypes.CDLL("libmvec.so.1")
    except OSError:
        return frozenset()
    return frozenset(name for name in ARITY if hasattr(libmvec, _symbol(name)))


def _symbol(name: str) -> str:
    """The SSE version's symbol; glibc adds the AVX ones in the same release.

    >>> _symbol("expf"), _symbol("pow")
    ('_ZGVbN4v_expf', '_ZGVbN2vv_pow')
    """
    lanes = 4 if name.endswith("f") and name[:-1] in UNARY + BINARY else 2
    return f"_ZGVbN{lanes}{'v' * ARITY[name]}_{name}"


def declarations(names: set[str], *, vectors: bool) -> str:
    """One declaration for each function of `names` that is a C math function."""
    used = sorted(names & ARITY.keys())
    simd = vector_functions() if vectors else frozenset()
    macro = SIMD_MACRO if any(name in simd for name in used) else ""
    return macro + "".join(_declaration(name, name in simd) for name in used)


def _declaration(name: str, simd: bool) -> str:
    real = "float" if name.endswith("f") and name[:-1] in UNARY + BINARY else "double"
    arguments = ", ".join([real] * ARITY[name])
    return f'extern "C" {"VECTOR_MATH " * simd}{real} {name}({arguments}) noexcept;\n'
