# SPDX-License-Identifier: Apache-2.0
"""The emulator refuses a kernel that breaks a rule, and its twin one step away runs."""

import threading

import pytest
import torch
from helpers.kernel_texts import make_source

from thunder_fuser.codegen.source import KernelSource, Param
from thunder_fuser.errors import CompileError, EmulatorError
from thunder_fuser.runtime.emulator import compile_emulated

PARAMS = [Param("T0", "float", "input"), Param("T1", "float", "output")]
WINDOW = "Shared<float> s(0, 64);\n"
FILL_FIVE = "for (int k = 0; k < 4 + i / 32; ++k) a[k] = ld(T0, i);\nst(T1, i, a[i % 4]);"


def run(body: str, block: int = 64, n: int = 64, reverse: bool = False) -> None:
    body = "const i32 i = threadIdx.x;\n" + body
    source = make_source("bad", body, PARAMS, block=(block, 1, 1), grid=(2, 1, 1), smem_bytes=256)
    compile_emulated(source).launch([torch.zeros(n), torch.zeros(n)], reverse)


CASES = {
    "load past the end": (
        "ld(T0, i + 1);",
        "ld(T0, i);",
        r"Kernel bad, block \(0, 0, 0\), thread \(63, 0, 0\): T0: element 64 accessed, "
        r"but it has elements 0 to 63\n  line \d+: ld\(T0, i \+ 1\);",
    ),
    "store before the start": ("st(T1, i - 1, 0.0f);", "st(T1, i, 0.0f);", "T1: element -1 "),
    "store far away": ("st(T1, i64(1) << 61, 0.0f);", "st(T1, 63, 0.0f);", "T1: element 23058"),
    "load through an offset pointer": ("ld(T0 + 60, i64(4));", "ld(T0 + 60, 3);", "T0: element 64"),
    "vector past the end": ("ldv<4>(T0, 61);", "ldv<4>(T0, 60);", "T0: element 61 accessed"),
    "misaligned vector load": (
        "ldv<4>(T0, 2);",
        "ldv<2>(T0, 2);",
        "T0: vector access at element 2 is not aligned to 16 bytes",
    ),
    "misaligned vector store": (
        "stv<2>(T1, 1, Vec<float, 2>{});",
        "stv<2>(T1, 4, Vec<float, 2>{});",
        "T1: vector access at element 1 is not aligned to 8 bytes",
    ),
    "address of no parameter": (
        "ld((const float*)nullptr, 0);",
        "ld((const float*)T0, 0);",
        "no parameter",
    ),
    "shared out of bounds": (
        WINDOW + "s.put(i + 1, 0.0f);",
        WINDOW + "s.put(i, 0.0f);",
        "shared memory: element 64 accessed, but the window has 0 to 63",
    ),
    "shared window too large": (
        "Shared<float> s(16, 64);",
        "Shared<float> s(16, 60);",
        "a window ends at byte 272, but the launch has 256 bytes",
    ),
    "misaligned shared vector": (
        WINDOW + "if (i == 0) s.template putv<4>(1, Vec<float, 4>{});",
        WINDOW + "if (i == 0) s.template putv<4>(4, Vec<float, 4>{});",
        "shared memory: vector at element 1 is not aligned to 16 bytes",
    ),
    "unwritten shared": (
        WINDOW + "if (i != 9) s.put(i, 0.0f);\nsync_threads(); s.get(i);",
        WINDOW + "s.put(i, 0.0f);\nsync_threads(); s.get(i);",
        r"thread \(9, 0, 0\): shared memory: element 9 read, but no thread of the block wrote it",
    ),
    "written by the block before": (
        WINDOW + "if (blockIdx.x == 0) s.put(i, 0.0f);\nsync_threads(); s.get(i);",
        WINDOW + "if (blockIdx.x < 2) s.put(i, 0.0f);\nsync_threads(); s.get(i);",
        r"block \(1, 0, 0\).*no thread of the block wrote it",
    ),
    "race, read after write": (
        WINDOW + "s.put(i, 0.0f); s.get(i ^ 1);",
        WINDOW + "s.put(i, 0.0f); sync_threads(); s.get(i ^ 1);",
        "race on element|no thread of the block wrote it",
    ),
    "race, write after read": (
        WINDOW + "s.put(i, 0.0f); sync_threads(); s.get(i ^ 1); s.put(i, 1.0f);",
        WINDOW + "s.put(i, 0.0f); sync_threads(); s.get(i ^ 1); sync_threads(); s.put(i, 1.0f);",
        "race on element",
    ),
    "race, two writers": (
        WINDOW + "s.put(i / 2, 0.0f);",
        WINDOW + "if (i % 2) s.put(i / 2, 0.0f);",
        r"race on element \d+, which thread \(\d+, 0, 0\) accessed without a barrier between",
    ),
    "barrier in a branch": (
        "if (i < 32) sync_threads();",
        "if (i < 64) sync_threads();",
        r"the threads diverged: it is at .*, but thread \(\d+, 0, 0\) is at ",
    ),
    "two barriers": (
        "if (i < 32)\nsync_threads();\nelse\nsync_threads();",
        "if (i < 64)\nsync_threads();\nelse\nsync_threads();",
        r"at the barrier or shuffle of line \d+, but thread \(32, 0, 0\) is at the barrier or",
    ),
    "early exit before a barrier": (
        "if (i == 5) return;\nsync_threads();",
        "sync_threads();\nif (i == 5) return;",
        r"thread \(5, 0, 0\) is at the end of the kernel",
    ),
    "shuffle in a branch": (
        "if (i % 2) shfl_xor<float>(1.0f, 1, 32);",
        "if (i < 32) shfl_xor<float>(1.0f, 1, 32);",
        "the threads diverged",
    ),
    "local array out of bounds": (
        "float a[4] = {};\n" + FILL_FIVE,
        "float a[8] = {};\n" + FILL_FIVE,
        "local array: element 4",
    ),
    "division by zero": (
        "st(T1, 1 / (63 - i), 0.0f);",
        "st(T1, 1 / (64 - i), 0.0f);",
        "division by",
    ),
    "loop without end": (
        "while (ld(T0, 0) == 0.0f) {}",
        "if (ld(T0, 0) == 0.0f) {}",
        "without end",
    ),
    "barriers without end": (
        "while (ld(T0, 0) == 0.0f) sync_threads();",
        "if (ld(T0, 0) == 0.0f) sync_threads();",
        "without end",
    ),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("case", [name for name in CASES if name != "barriers without end"])
def test_a_broken_rule_is_named(case: str, reverse: bool) -> None:
    bad, good, message = CASES[case]
    run(good, reverse=reverse)
    if reverse:  # the first thread to break the rule is another one
        message = r"Kernel bad, block \(\d, 0, 0\), thread \(\d+, 0, 0\): "
    with pytest.raises(EmulatorError, match=message):
        run(bad, reverse=reverse)
    run(good, reverse=reverse)  # what came after an error is not disturbed by it


# ---- clusters of two blocks


def run_cluster(body: str, reverse: bool = False) -> None:
    head = "Shared<i32> s(0, 64);\nShared<i64> g(256, 1);\n"
    head += "const i32 i = threadIdx.x, other = 1 - i32(blockIdx.y) % 2;\n"
    where = {"block": (64, 1, 1), "grid": (2, 4, 1), "smem_bytes": 264, "cluster": 2}
    source = make_source("bad", head + body, PARAMS, **where)
    compile_emulated(source).launch([torch.zeros(64), torch.zeros(64)], reverse)


def put(peer: str = "other", at: str = "i") -> str:
    return f"put_to_peer(s, {peer}, {at}, 1, g, 0);\n"


def expect(bytes_: int = 256, first: str = "true") -> str:
    return f"if (i == 0) open_gate(g, 0, {bytes_}, {first});\n"


READY, WAIT, READ = "gates_ready();\n", "wait_gate(g, 0, 0);\n", "s.get(i);\n"
MADE = expect() + READY
CLUSTER_CASES = {
    "a peer that may not run yet": (
        expect() + put() + WAIT,
        MADE + put() + WAIT,
        r"block [01] of the cluster accessed before it is known that its gates are made",
    ),
    "no such peer": (
        MADE + put("2"),
        MADE + put(),
        "block 2 of the cluster accessed, but it has blocks 0 to 1",
    ),
    "past the end of a peer's window": (
        MADE + put(at="i + 1"),
        MADE + put(),
        "element 64 accessed, but the window has 0 to 63",
    ),
    "read before the gate": (
        MADE + put() + "sync_threads();" + READ,
        MADE + put() + WAIT + READ,
        "race on element|no thread of the block wrote it",
    ),
    "written while its block reads it": (
        "s.put(i, 0);" + MADE + "s.get(i ^ 1);" + put() + WAIT,
        "s.put(i, 0);" + MADE + "s.get(i ^ 1);" + READY + put() + WAIT,
        r"race on element \d+",
    ),
    "written by two blocks": (
        MADE + put() + "s.put(i, 2);",
        MADE + put() + WAIT + "s.put(i, 2);",
        r"race on element \d+, which thread \(\d+, 0, 0\) of block \(\d, [0-3], 0\) accessed",
    ),
    "sent again before the last has been read": (
        MADE + put() + WAIT + expect(first="false") + READ + put(),
        MADE + put() + WAIT + expect(first="false") + READ + READY + put(),
        r"race on element \d+",
    ),
    "a gate that never opens": (MADE + WAIT, MADE + put() + WAIT, "at a gate that never opens"),
    "a gate that expects too much": (
        expect(260) + READY + put() + WAIT,
        MADE + put() + WAIT,
        "at a gate that never opens",
    ),
    "a gate told twice": (
        expect() + expect(first="false"),
        expect(),
        "gate 32 gets a new byte count",
    ),
    "a gate that is not made": (expect(first="false"), expect(), "gate 32 gets a new byte count"),
    "a barrier of one block": (
        "if (blockIdx.y % 2) gates_ready();",
        "if (blockIdx.y < 4) gates_ready();",
        "the threads diverged",
    ),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("case", CLUSTER_CASES)
def test_a_broken_rule_of_clusters(case: str, reverse: bool) -> None:
    bad, good, message = CLUSTER_CASES[case]
    run_cluster(good, reverse)
    with pytest.raises(EmulatorError, match=message):
        run_cluster(bad, reverse)
    run_cluster(good, reverse)


def test_a_grid_that_clusters_do_not_divide() -> None:
    source = make_source("bad", "", PARAMS, grid=(1, 3, 1), cluster=2)
    with pytest.raises(EmulatorError, match="does not divide into clusters of 2"):
        compile_emulated(source)


def test_barriers_without_end() -> None:
    bad, good, message = CASES["barriers without end"]
    run(good)
    with pytest.raises(EmulatorError, match=message):
        run(bad, block=1)


def test_an_access_must_be_in_its_own_parameter() -> None:
    """T1 follows T0 in memory, so an overrun would go unseen if any known memory would do."""
    both = torch.zeros(128)
    source = make_source("overrun", "st(T1, 0, ld(T0, 64));", PARAMS)
    with pytest.raises(EmulatorError, match="T0: element 64"):
        compile_emulated(source).launch([both[:64], both[64:]])


def test_a_misaligned_argument() -> None:
    source = make_source("vectors", "if (threadIdx.x == 0) ldv<4>(T0, 0);", PARAMS)
    kernel = compile_emulated(source)
    kernel.launch([torch.zeros(8), torch.zeros(8)])
    with pytest.raises(EmulatorError, match="T0: vector access at element 0"):
        kernel.launch([torch.zeros(9)[1:], torch.zeros(8)])


def test_bounds_follow_strides_and_empty_tensors() -> None:
    kernel = compile_emulated(make_source("one", "st(T1, 8, ld(T0, 4));", PARAMS, block=(1, 1, 1)))
    kernel.launch([torch.zeros(5), torch.zeros(3, 4).t()[:1, :]])
    with pytest.raises(EmulatorError, match="T1: element 8 accessed, but it has elements 0 to 4"):
        kernel.launch([torch.zeros(5), torch.zeros(2, 4).t()[:1, :]])
    with pytest.raises(EmulatorError, match="T0: element 4"):
        kernel.launch([torch.zeros(0), torch.zeros(9)])


@pytest.mark.parametrize("access", ["T0[3]", "*T0", "*(T0 + 3)"])
def test_an_unchecked_access_is_refused(access: str) -> None:
    source = make_source("raw", f"st(T1, 0, {access});", PARAMS)
    with pytest.raises(EmulatorError, match="Kernel raw: it dereferences T0 itself"):
        compile_emulated(source)


def test_launches_that_no_gpu_takes() -> None:
    for changes, message in (
        ({"block": (2048, 1, 1)}, "not of 1 to 1024 threads"),
        ({"grid": (0, 1, 1)}, "has a size below 1"),
        ({"smem_bytes": 300_000}, "smem_bytes 300000 is not in 0 to 232448"),
        ({"dialect": "cpu"}, "it is of the cpu dialect"),
    ):
        with pytest.raises(EmulatorError, match=message):
            compile_emulated(make_source("k", "", [], **changes))


def test_wrong_arguments() -> None:
    kernel = compile_emulated(make_source("k", "", PARAMS))
    with pytest.raises(EmulatorError, match="expected 2 arguments, got 1"):
        kernel.launch([torch.zeros(1)])
    with pytest.raises(EmulatorError, match="parameter T1: expected a CPU tensor, got 3"):
        kernel.launch([torch.zeros(1), 3])


def test_a_frame_too_large_for_a_fiber_does_not_compile() -> None:
    body = "float a[200000]; for (int k = 0; k < 200000; ++k) a[k] = k; st(T1, 0, a[threadIdx.x]);"
    with pytest.raises(CompileError, match="frame size"):
        compile_emulated(make_source("large", body, PARAMS))


def test_threads_may_launch_at_the_same_time() -> None:
    body = "Shared<float> s(0, 64);\nconst i32 i = threadIdx.x;\n"
    body += "s.put(i, ld(T0, i)); sync_threads(); st(T1, i, s.get(63 - i));"
    source: KernelSource = make_source("flip", body, PARAMS, block=(64, 1, 1), smem_bytes=256)
    kernel = compile_emulated(source)
    inputs = [torch.randn(64) for _ in range(8)]
    outputs = [torch.empty(64) for _ in range(8)]
    workers = [
        threading.Thread(target=lambda x=x, y=y: [kernel.launch([x, y]) for _ in range(20)])
        for x, y in zip(inputs, outputs, strict=True)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(torch.equal(y, x.flip(0)) for x, y in zip(inputs, outputs, strict=True))
