# SPDX-License-Identifier: Apache-2.0
"""The prelude: only what a kernel uses, in an order that never varies."""


import pytest
from helpers.without_torch import printed

from thunder_fuser.codegen.prelude import _fragments, identifiers, select
from thunder_fuser.codegen.prelude.libm import ARITY, declarations, vector_functions

USES_LITTLE = "i64 i = 0; st(T1, i, ld(T0, i));"
USES_MUCH = "reduce_x<Max, 64, 1>(convert<float>(ld(T0, 0)), Shared<float>(0, 2));"


@pytest.mark.parametrize("dialect", ["cpu", "cuda"])
def test_only_what_is_used(dialect: str) -> None:
    text = select(USES_LITTLE, dialect)
    assert "typedef long long i64" in text and " ld(" in text
    for absent in ("Vec", "Shared", "maximum", "bf16", "expf", "reduce_x", "#include"):
        assert absent not in text
    assert select("int x;", dialect) == ""


def test_needs_come_first() -> None:
    text = select(USES_MUCH, "cuda")
    positions = [text.index(word) for word in ("#define DEVICE", " Vec {", "struct Shared")]
    assert positions == sorted(positions)
    assert text.index("shfl_xor(T value") < text.index("T reduce_x(")
    assert text.count("#define DEVICE") == 1


def test_comments_and_longer_names_select_nothing() -> None:
    assert select("// maximum(a, b)\nint my_maximum;", "cpu") == ""


@pytest.mark.parametrize("dialect", ["cpu", "cuda"])
def test_the_files_are_consistent(dialect: str) -> None:
    fragments = _fragments(dialect)
    provided = [name for part in fragments.values() for name in part.provides]
    assert len(provided) == len(set(provided))
    for part in fragments.values():
        assert set(part.needs) <= fragments.keys(), part.name
        assert set(part.provides) <= identifiers(part.text), part.name
        assert "#include" not in part.text


def test_both_dialects_provide_the_same_scalars() -> None:
    of = {d: {n for p in _fragments(d).values() for n in p.provides} for d in ("cpu", "cuda")}
    blocks = {"Shared", "shfl_xor", "shfl_idx", "sync_threads", "reduce_x", "reduce_y", "scan_x"}
    clusters = {"open_gate", "gates_made", "gates_ready", "wait_gate", "put_to_peer"}
    clusters |= {"open_gates", "reduce_cluster", "power_of_two_below"}
    clusters |= {"open_rows", "put_rows", "to_word", "from_word"}
    memory, short = {"lde", "prefetch", "streamed"}, {"short_erf", "short_exp"}
    memory |= {"after_earlier_kernels", "next_kernel_may_start"}
    products = {"mma", "sum_of_products", "sync_warp"}
    assert of["cuda"] - of["cpu"] == blocks | clusters | memory | short | products
    assert of["cpu"] - of["cuda"] == {
        "philox_fill", "scan_row", "Stream", "total", "same_lanes"
    }  # fmt: skip


def test_math_is_declared_for_the_cpu_only() -> None:
    text = select("float y = expf(x) + silu(x) + tgammaf(x);", "cpu")
    assert "float expf(float) noexcept;" in text and "float tgammaf(float)" in text
    assert "sinf" not in text
    assert "expf(float)" not in select("float y = expf(x);", "cuda")


def test_simd_declarations_are_those_of_libmvec() -> None:
    assert vector_functions() <= ARITY.keys()
    text = declarations({"expf", "tgammaf"}, vectors=True)
    assert ("CALLED float lanes_expf" in text) == ("expf" in vector_functions())
    assert "VECTOR_MATH float tgammaf" not in text
    assert "VECTOR_MATH" not in declarations({"expf"}, vectors=False)


def test_the_text_is_the_same_in_every_process() -> None:
    program = (
        f"from thunder_fuser.codegen.prelude import select; print(select({USES_MUCH!r}, 'cpu'))"
    )
    assert len({printed(program, seed=seed) for seed in ("0", "1", "2")}) == 1
