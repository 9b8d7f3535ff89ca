# SPDX-License-Identifier: Apache-2.0
"""Kernels written by hand, in the way the code printers write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from thunder_fuser.codegen.prelude import select
from thunder_fuser.codegen.source import Dialect, KernelSource, Param
from thunder_fuser.runtime.cpu import compile_cpu
from thunder_fuser.runtime.emulator import compile_emulated

DTYPES = {
    "double": torch.float64,
    "float": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
THREADS = 64


def make_source(
    name: str,
    body: str,
    params: Sequence[Param],
    *,
    dialect: Dialect = "cuda",
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    smem_bytes: int = 0,
    cluster: int = 1,
) -> KernelSource:
    """A kernel from its body, with the prelude that it needs in front."""
    cuda = dialect == "cuda"
    head = 'extern "C" __global__ void' if cuda else 'extern "C" void'
    head += f" __cluster_dims__(1, {cluster}, 1)" if cluster > 1 else ""
    declared = [_declare(param) for param in params] + ["int threads"] * (not cuda)
    text = f"{head} {name}({', '.join(declared)}) {{\n{body}\n}}\n"
    whole = select(text, dialect) + text
    return KernelSource(name, dialect, whole, tuple(params), grid, block, smem_bytes, cluster)


def _declare(param: Param) -> str:
    if param.kind == "scalar":
        return f"{param.ctype} {param.name}"
    const = "const " if param.kind == "input" else ""
    return f"{const}{param.ctype}* __restrict__ {param.name}"


def run_expressions(
    dialect: Dialect,
    inputs: Mapping[str, tuple[str, torch.Tensor]],
    outputs: Mapping[str, tuple[str, str]],
) -> dict[str, torch.Tensor]:
    """Evaluates `name -> (ctype, expression)` at each position of flat inputs `name -> (ctype, t)`.

    An expression names an input for its value.
    """
    source = expression_source(dialect, inputs, outputs)
    n = next(iter(inputs.values()))[1].numel()
    tensors = [tensor.contiguous() for _, tensor in inputs.values()]
    results = {name: torch.empty(n, dtype=DTYPES[ctype]) for name, (ctype, _) in outputs.items()}
    if dialect == "cuda":
        compile_emulated(source).launch([*tensors, *results.values(), n])
    else:
        addresses = [tensor.data_ptr() for tensor in (*tensors, *results.values())]
        compile_cpu(source).function(*addresses, n, 1)
    return results


def expression_source(
    dialect: Dialect,
    inputs: Mapping[str, tuple[str, torch.Tensor]],
    outputs: Mapping[str, tuple[str, str]],
) -> KernelSource:
    """The kernel that `run_expressions` runs."""
    n = next(iter(inputs.values()))[1].numel()
    loads = "".join(f"const {t} {name} = ld(in_{name}, i); " for name, (t, _) in inputs.items())
    stores = "".join(
        f"st(out_{name}, i, static_cast<{t}>({expression}));\n"
        if t not in ("f16", "bf16")
        else f"st(out_{name}, i, {expression});\n"
        for name, (t, expression) in outputs.items()
    )
    params = [Param(f"in_{name}", t, "input") for name, (t, _) in inputs.items()]
    params += [Param(f"out_{name}", t, "output") for name, (t, _) in outputs.items()]
    params.append(Param("n", "i64", "scalar"))
    if dialect == "cuda":
        index = f"const i64 i = i64(blockIdx.x) * {THREADS} + threadIdx.x;\nif (i < n) {{\n"
        body = index + loads + "\n" + stores + "}"
    else:
        body = "for (i64 i = 0; i < n; ++i) {\n" + loads + "\n" + stores + "}"
    grid = (-(-n // THREADS), 1, 1)
    return make_source("k", body, params, dialect=dialect, grid=grid, block=(THREADS, 1, 1))


def vector_add() -> KernelSource:
    """T2 = T0 + T1 on 1000 floats: 4-wide vectors, and a tail of single ones."""
    body = """\
  const i64 first = (i64(blockIdx.x) * 64 + threadIdx.x) * 4;
  if (first + 4 <= n) {
    const Vec<float, 4> a = ldv<4>(T0, first), b = ldv<4>(T1, first);
    Vec<float, 4> c;
    for (int k = 0; k < 4; ++k) c.v[k] = a.v[k] + b.v[k];
    stv<4>(T2, first, c);
  } else {
    for (i64 i = first; i < n; ++i) st(T2, i, ld(T0, i) + ld(T1, i));
  }"""
    params = [Param("T0", "float", "input"), Param("T1", "float", "input")]
    params += [Param("T2", "float", "output"), Param("n", "i64", "scalar")]
    return make_source("vector_add", body, params, grid=(4, 1, 1), block=(64, 1, 1))


def softmax(rows: int, threads: int) -> KernelSource:
    """Softmax over the last axis of bf16 [rows, cols], one block a row, 8 columns a thread."""
    columns = f"for (i64 k = 0, c = threadIdx.x; k < 8; ++k, c += {threads}) if (c < cols)"
    body = f"""\
  Shared<float> scratch(0, {max(threads // 32, 1)});
  const i64 row = i64(blockIdx.x) * cols;
  float T2[8];
  float peak = -3.4e38f, total = 0.0f;
  {columns} {{ T2[k] = convert<float>(ld(T0, row + c)); peak = maximum(peak, T2[k]); }}
  peak = reduce_x<Max, {threads}, 1>(peak, scratch);
  {columns} {{ T2[k] = expf(T2[k] - peak); total += T2[k]; }}
  total = reduce_x<Sum, {threads}, 1>(total, scratch);
  {columns} st(T1, row + c, convert<bf16>(T2[k] / total));"""
    params = [Param("T0", "bf16", "input"), Param("T1", "bf16", "output")]
    params.append(Param("cols", "i64", "scalar"))
    block = (threads, 1, 1)
    return make_source("softmax", body, params, grid=(rows, 1, 1), block=block, smem_bytes=128)


def column_sum(cols: int, tall: int) -> KernelSource:
    """The sum over the first axis of double [rows, cols], blocks of 32 columns by `tall` rows."""
    body = f"""\
  Shared<double> scratch(0, {32 * tall});
  const i64 column = i64(blockIdx.x) * 32 + threadIdx.x;
  double total = 0.0;
  if (column < cols)
    for (i64 row = threadIdx.y; row < rows; row += {tall}) total += ld(T0, row * cols + column);
  reduce_y<Sum, 32, {tall}, 1>(&total, scratch);
  if (column < cols && threadIdx.y == 0) st(T1, column, total);"""
    params = [Param("T0", "double", "input"), Param("T1", "double", "output")]
    params += [Param("rows", "i64", "scalar"), Param("cols", "i64", "scalar")]
    block, smem = (32, tall, 1), 32 * tall * 8
    grid = (-(-cols // 32), 1, 1)
    return make_source("column_sum", body, params, grid=grid, block=block, smem_bytes=smem)


def half_io(ctype: str) -> KernelSource:
    """T1 = 2 * T0 through shared memory in 16-byte vectors of a 16-bit type."""
    body = f"""\
  Shared<{ctype}> tile(0, 256);
  const i32 first = threadIdx.x * 8;
  tile.template putv<8>(first, ldv<8>(T0, first));
  sync_threads();
  Vec<{ctype}, 8> out = tile.template getv<8>(248 - first);
  for (int k = 0; k < 8; ++k)
    out.v[k] = convert<{ctype}>(2.0f * convert<float>(tile.get(first + k)));
  stv<8>(T1, first, out);"""
    params = [Param("T0", ctype, "input"), Param("T1", ctype, "output")]
    return make_source(f"half_io_{ctype}", body, params, smem_bytes=512)
