# SPDX-License-Identifier: Apache-2.0
"""Declares the C math functions that a text calls.

No header is included (`math.h` alone costs a third of a kernel's build); the compiler knows these
functions by their names. A function with SIMD versions in this machine's libmvec (4 ulp at most) is
replaced, so that it gives the same bits in loops of any number of lanes and outside of loops:

    expf(x)  ->  lanes_expf(x). A loop of 8 lanes calls its version _ZGVdN8v_lanes_expf. All
                 versions call libmvec's widest, of 16 lanes with AVX-512; see cpu/lanes.h
"""

import ctypes
from functools import cache

_NAMES = {
    1: "exp log log2 log10 log1p expm1 exp2 sin cos tan asin acos atan sinh cosh tanh asinh acosh"
    " atanh erf erfc lgamma tgamma sqrt cbrt floor ceil trunc rint fabs",
    2: "pow atan2 fmod fmin fmax hypot nextafter copysign",
}
ARITY = {
    name + suffix: arity
    for arity, names in _NAMES.items()
    for name in names.split()
    for suffix in ("", "f")
}

# Below this argument the result is 0. libmvec computes such lanes one by one: a softmax of scores
# under a mask, which are -infinity, took six times as long.
_ZERO_BELOW = {"exp": ["-746.0"], "expf": ["-104.0f"], "exp2": ["-1076.0"], "exp2f": ["-151.0f"]}

# Only gcc has these attributes, so clang calls the scalar functions.
_GUARD = "#ifndef __clang__\n{}#define {} lanes_{}\n#else\n{}#endif\n"
# Each version's letter in symbols, the bytes of its vectors, and when loops may call it. If gcc has
# AVX and AVX2 versions, it takes AVX2's.
_VERSIONS = (
    ("b", 16, "defined(__SSE2__)"),
    ("c", 32, "defined(__AVX__) && !defined(__AVX2__)"),
    ("d", 32, "defined(__AVX2__)"),
    ("e", 64, "defined(__AVX512F__)"),
)


@cache
def vector_functions() -> frozenset[str]:
    """The functions that this machine's libmvec has for every SIMD width (x86-64 only)."""
    try:
        libmvec = ctypes.CDLL("libmvec.so.1")
    except OSError:
        return frozenset()
    return frozenset(name for name in ARITY if hasattr(libmvec, _symbol(name)))


def _symbol(name: str) -> str:
    """The SSE version's symbol. If glibc has it, it has the AVX versions too.

    >>> _symbol("expf"), _symbol("pow")
    ('_ZGVbN4v_expf', '_ZGVbN2vv_pow')
    """
    return f"_ZGVbN{4 if _real(name) == 'float' else 2}{'v' * ARITY[name]}_{name}"


def declarations(names: set[str], *, vectors: bool) -> str:
    """One declaration for each function of `names` that is a C math function."""
    simd = vector_functions() if vectors else frozenset()
    return "".join(
        _same_in_all_lanes(name) if name in simd else _declaration(name)
        for name in sorted(names & ARITY.keys())
    )


def _declaration(name: str) -> str:
    return f'extern "C" {_real(name)} {name}({", ".join([_real(name)] * ARITY[name])}) noexcept;\n'


def _real(name: str) -> str:
    return "float" if name.endswith("f") and name[:-1] in ARITY else "double"


def _same_in_all_lanes(name: str) -> str:
    """Declares lanes_NAME for simd loops, and defines it for one lane and for each vector size."""
    real, suffix = _real(name), "v" * ARITY[name]
    size = 4 if real == "float" else 8
    counts = ", ".join(str(bytes // size) for bytes in (16, 32, 64))
    wide = ", ".join([f"widest_{real}"] * ARITY[name])
    library = f'asm(WIDEST_OF({counts}) "{suffix}_{name}")'
    lines = [
        f"CALLED {real} lanes_{name}({', '.join([real] * ARITY[name])}) noexcept;\n",
        f'extern "C" widest_{real} {name}_widest({wide}) {library};\n',
        _version(name, f"{name}_1", real, f"lanes_{name}"),
    ]
    for letter, bytes, where in _VERSIONS:
        symbol = f"_ZGV{letter}N{bytes // size}{suffix}_lanes_{name}"
        version = _version(name, f"{name}_{letter}", f"{real}{bytes}", symbol)
        lines.append(f"#if {where}\n{version}#endif\n")
    return _GUARD.format("".join(lines), name, name, _declaration(name))


def _version(name: str, version: str, lanes: str, symbol: str) -> str:
    """MADE float32 expf_d(float32 x) asm("_ZGVdN8v_lanes_expf"); and its definition."""
    arguments = ("x", "y")[: ARITY[name]]
    head = f"{lanes} {version}({', '.join(f'{lanes} {argument}' for argument in arguments)})"
    call = f"same_lanes({name}_widest, {', '.join((*arguments, *_ZERO_BELOW.get(name, ())))})"
    return f'MADE {head} asm("{symbol}");\n{head} {{ return {call}; }}\n'
