# SPDX-License-Identifier: Apache-2.0
"""The system compiler: found or missed in one sentence, each text built once, nothing left."""

import ctypes
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from helpers.kernel_texts import make_source

from thunder_fuser.codegen.prelude.libm import vector_functions
from thunder_fuser.codegen.source import Param
from thunder_fuser.errors import CompileError, ToolchainError
from thunder_fuser.runtime import toolchain
from thunder_fuser.runtime.cpu import FLAGS, compile_cpu
from thunder_fuser.runtime.toolchain import Library, find_compiler, load_library
from thunder_fuser.store.entry import Binary

SHARED = ("-shared", "-fPIC")


def test_the_compiler_is_described() -> None:
    compiler = find_compiler()
    assert Path(compiler.path).is_absolute() and compiler.version
    assert find_compiler() is compiler


def test_no_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ToolchainError) as caught:
        find_compiler()
    assert str(caught.value) == (
        "No C++ compiler was found; install g++ or clang++, or set CXX to one."
    )


def test_cxx_names_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    path = find_compiler().path
    monkeypatch.setenv("CXX", f"{path} -DNOTHING")
    assert find_compiler().command == (path, "-DNOTHING")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolchainError, match="CXX names the C\\+\\+ compiler 'no-such-compiler'"):
        find_compiler()


def test_many_threads_build_once(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.find_compiler()  # asks it for its version, once a process
    runs = []
    run = toolchain._run
    monkeypatch.setattr(toolchain, "_run", lambda *args: runs.append(args) or run(*args))
    text = 'extern "C" int built_once() { return 7; }'
    found: list[Library] = []
    workers = [
        threading.Thread(target=lambda: found.append(load_library("built_once", text, SHARED)))
        for _ in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1 and len(runs) == 1
    assert found[0].function("built_once", (), ctypes.c_int)() == 7


def test_a_compile_error_shows_the_lines() -> None:
    text = "int first;\nint second = missing;\nint third;\n"
    with pytest.raises(CompileError) as caught:
        load_library("broken", text, SHARED)
    message = str(caught.value)
    assert "kernel:2:" in message and "missing" in message
    assert ">  2 | int second = missing;" in message and "   3 | int third;" in message
    assert "thunder_fuser-" not in message


def mapped(name: str) -> bool:
    """Whether a library of this name is in the process."""
    return f"/{name}.so" in Path("/proc/self/maps").read_text()


def test_a_library_leaves_no_file_and_goes_with_its_last_function() -> None:
    library = load_library("passing", 'extern "C" int passing() { return 3; }', SHARED)
    function = library.function("passing", (), ctypes.c_int)
    (line,) = {x for x in Path("/proc/self/maps").read_text().splitlines() if "/passing.so" in x
               and " r-xp " in x}
    assert line.endswith(" (deleted)") and not Path(line.split()[-2]).parent.exists()
    del library
    assert mapped("passing") and function() == 3
    del function
    assert not mapped("passing")
    again = load_library("passing", 'extern "C" int passing() { return 3; }', SHARED)
    assert again.function("passing", (), ctypes.c_int)() == 3 and mapped("passing")


def test_unloaded_kernels_leave_openmp_alone() -> None:
    """Threads of a region that has ended hold no code of a library that is gone."""
    for _ in range(3):
        doubled("float", torch.float32)
        doubled("double", torch.float64)
        assert not mapped("twice")


def test_bytes_that_are_no_library_of_this_machine() -> None:
    built = toolchain.library(toolchain.library_recipe("odd", "int odd;", SHARED)).code
    other = built[:18] + bytes([built[18] ^ 1]) + built[19:]
    for wrong in (b"", b"\x7fELF", built[:19], b"MZ" + built[2:], other):
        with pytest.raises(ToolchainError, match="library odd: expected one for this machine"):
            toolchain._load(Binary("odd", wrong))


def doubled(ctype: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    params = [
        Param("T0", ctype, "input"),
        Param("T1", ctype, "output"),
        Param("n", "i64", "scalar"),
    ]
    body = "#pragma omp parallel for simd num_threads(threads)\n"
    body += "for (i64 i = 0; i < n; ++i) st(T1, i, ld(T0, i) + ld(T0, i));"
    kernel = compile_cpu(make_source("twice", body, params, dialect="cpu"))
    x = torch.full((1000,), 3e-40 if dtype == torch.float32 else 1e-310, dtype=dtype)
    y = torch.empty_like(x)
    kernel.function(x.data_ptr(), y.data_ptr(), x.numel(), 2)
    return x, y


@pytest.mark.parametrize(("ctype", "dtype"), [("float", torch.float32), ("double", torch.float64)])
def test_subnormals_survive_a_loaded_library(ctype: str, dtype: torch.dtype) -> None:
    x, y = doubled(ctype, dtype)
    assert bool((y > 0).all())
    assert torch.equal(y, x + x) and bool((x * 1 > 0).all())
    assert 5e-324 * 2 > 0.0


def test_kernels_share_the_openmp_of_torch() -> None:
    doubled("float", torch.float32)
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc on this system")
    loaded = {line.split()[-1] for line in maps.read_text().splitlines() if "libgomp" in line}
    assert len(loaded) == 1


def test_a_cpu_kernel_takes_every_scalar() -> None:
    values = {"double": 0.5, "float": 0.25, "i64": 1 << 40, "i32": -7, "i16": -3, "u8": 200}
    params = [Param("T0", "double", "output")]
    params += [Param(f"s_{ctype}", ctype, "scalar") for ctype in values]
    total = " + ".join(f"double(s_{ctype})" for ctype in values)
    kernel = compile_cpu(make_source("total", f"st(T0, 0, {total});", params, dialect="cpu"))
    y = torch.zeros(1, dtype=torch.float64)
    kernel.function(y.data_ptr(), *values.values(), 1)
    assert y.item() == sum(values.values())


def test_kernels_find_what_the_compiler_calls_by_itself() -> None:
    """A division of 128 bits (libgcc), memset (libc), a root (libm), threads (OpenMP)."""
    params = [Param("T0", "double", "output"), Param("n", "i64", "scalar")]
    body = "__builtin_memset(T0, 0, n * sizeof *T0);\n"
    body += "const auto wide = static_cast<unsigned __int128>(n) << 100;\n"
    body += "#pragma omp parallel for num_threads(threads)\n"
    body += "for (i64 i = 1; i < n; ++i) st(T0, i, __builtin_cbrt(double(wide / u64(i) >> 100)));"
    kernel = compile_cpu(make_source("helped", body, params, dialect="cpu"))
    y = torch.full((100,), torch.nan, dtype=torch.float64)
    kernel.function(y.data_ptr(), y.numel(), 2)
    expected = [0.0, *((100 // i) ** (1 / 3) for i in range(1, 100))]
    torch.testing.assert_close(y, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 255, 256, 257, 700])
@pytest.mark.parametrize("op", ["Sum", "Max"])
def test_a_row_is_added_in_the_order_of_its_description(op: str, length: int) -> None:
    """Dealt in turn to 16 lanes, these by halves; in parts of any length."""
    params = [Param("T0", "double", "input"), Param("T1", "double", "output")]
    params += [Param(name, "i64", "scalar") for name in ("n", "part")]
    first = "0.0" if op == "Sum" else "-__builtin_huge_val()"
    body = f"""Stream<{op}, double, double> row({first});
for (i64 at = 0; at < n; at += part)
  for (i64 b = at, last = at + part < n ? at + part : n, e; b < last; b = e) {{
    e = row.end(b, last);
    for (i64 i = b; i < e; ++i) row.from(b)[i] = ld(T0, i);
    row.took(e - b);
  }}
st(T1, 0, total(row));"""
    kernel = compile_cpu(make_source("dealt", body, params, dialect="cpu"))
    x, y = torch.randn(length, dtype=torch.float64), torch.empty(1, dtype=torch.float64)
    start, apply = (0.0, torch.add) if op == "Sum" else (-torch.inf, torch.maximum)
    lanes = torch.full((16,), start, dtype=torch.float64)
    for turn in x.split(16):
        lanes[: len(turn)] = apply(lanes[: len(turn)], turn)
    for half in (8, 4, 2, 1):
        lanes = apply(lanes[:half], lanes[half : 2 * half])
    for part in (1, 7, 64, 1000):
        kernel.function(x.data_ptr(), y.data_ptr(), length, part, 1)
        assert y.item() == lanes.item()


def test_silu_and_16_bit_conversions_become_simd() -> None:
    """The compiler says which loops it vectorised; a helper that stops it would cost 10x."""
    params = [Param("T0", "bf16", "input"), Param("T1", "bf16", "output")]
    params.append(Param("n", "i64", "scalar"))
    body = "#pragma omp simd\n"
    body += "for (i64 i = 0; i < n; ++i) "
    body += "st(T1, i, convert<bf16>(silu(convert<float>(ld(T0, i)))));"
    source = make_source("silu", body, params, dialect="cpu")
    compiler = find_compiler()
    if compiler.is_clang or "expf" not in vector_functions():
        pytest.skip("this machine has no SIMD math library that the compiler uses")
    kept = [flag for flag in FLAGS if flag not in ("-fPIC", "-shared")]
    result = subprocess.run(
        [compiler.path, *kept, "-fopt-info-vec", "-xc++", "-S", "-o", "/dev/null", "-"],
        input=source.text,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "loop vectorized" in result.stderr
