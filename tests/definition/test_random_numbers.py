# SPDX-License-Identifier: Apache-2.0
"""Random ops: the published Philox, the same bits everywhere, and where hidden seeds come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.cases import TARGETS, rand
from helpers.kernel_texts import make_source
from helpers.random_numbers import numbers, uniform

from thunder_fuser.codegen.source import Dialect, Param
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import DefinitionError, DtypeError
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.options import options
from thunder_fuser.runtime import random
from thunder_fuser.runtime.cpu import compile_cpu
from thunder_fuser.runtime.eager.evaluate import evaluate
from thunder_fuser.runtime.emulator import compile_emulated
from thunder_fuser.runtime.torch_types import from_torch_dtype

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
targets = pytest.mark.parametrize("target", TARGETS)
dtypes = pytest.mark.parametrize("dtype", FLOATS)

# Random123's kat_vectors for philox4x32 of 10 rounds: counter, key, words.
PUBLISHED = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip
published = pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)


def parsed(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def wide(low: int, high: int) -> int:
    """Two words as the signed 64-bit integer that a kernel takes."""
    value = high << 32 | low
    return value - (1 << 64) if value >> 63 else value


# ---- Philox


@published
def test_philox_in_torch(counter: str, key: str, words: str) -> None:
    made = random.philox(
        tuple(torch.tensor(x) for x in parsed(counter)),  # type: ignore[arg-type]
        tuple(torch.tensor(x) for x in parsed(key)),  # type: ignore[arg-type]
    )
    assert [int(word) for word in made] == parsed(words)


@pytest.mark.parametrize("dialect", ["cpu", "cuda"])
@published
def test_philox_in_kernels(dialect: Dialect, counter: str, key: str, words: str) -> None:
    body = "const Words x = philox(seed, offset, group);\n" + "".join(
        f"st(out, {at}, static_cast<i64>(x.{word}));\n" for at, word in enumerate("abcd")
    )
    scalars = [Param(name, "i64", "scalar") for name in ("seed", "offset", "group")]
    source = make_source(
        "words", body, [*scalars, Param("out", "i64", "output")], dialect=dialect, block=(1, 1, 1)
    )
    out = torch.zeros(4, dtype=torch.int64)
    numbers = [wide(*parsed(key)), wide(*parsed(counter)[:2]), wide(*parsed(counter)[2:])]
    if dialect == "cpu":
        compile_cpu(source).function(*numbers, out.data_ptr(), 1)
    else:
        compile_emulated(source).launch([*numbers, out])
    assert out.tolist() == parsed(words)


# ---- the same bits everywhere


@targets
@dtypes
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (5, 7), (2, 3, 33), (64, 128), (1, 4097)])
def test_uniform_is_the_reference(target: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    (result,) = uniform(*shape, dtype=dtype).execute([], target=target)
    assert torch.equal(result, numbers(*shape, dtype=dtype))


@targets
@dtypes
def test_values_follow_the_logical_index_not_the_memory(target: str, dtype: torch.dtype) -> None:
    (result,) = uniform(6, 20, dtype=dtype, stride_order=[0, 1]).execute([], target=target)
    assert result.stride() == (1, 6)
    assert torch.equal(result, numbers(6, 20, dtype=dtype))


LAYOUTS: dict[str, torch.Tensor] = {
    "rows": rand(6, 40),
    "columns": rand(40, 6).t(),
    "sliced": rand(8, 50)[1:7, 3:43],
    "expanded": rand(6, 1).expand(6, 40),
    "odd": rand(241)[1:].view(6, 40),
    "NaN": torch.full((6, 40), float("nan")),
}


@targets
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_masks_beside_inputs_of_any_layout(target: str, dtype: torch.dtype, layout: str) -> None:
    x = LAYOUTS[layout].to(dtype)
    x = x if x.stride() == LAYOUTS[layout].stride() else x.as_strided(x.shape, x.stride())
    with FusionDefinition() as fd:
        kept = fd.ops.lt(fd.ops.rand_like(fd.from_pytorch(x), 3, 7), 0.5)
        fd.add_output(fd.ops.cast(fd.ops.where(kept, fd.from_pytorch(x), 0.0), x_type(x)))
    (result,) = fd.execute([x, x], target=target)
    expected = torch.where(numbers(6, 40, dtype=dtype) < 0.5, x, 0.0)
    assert torch.equal(result.nan_to_num(9.0), expected.nan_to_num(9.0))


def x_type(x: torch.Tensor) -> DataType:
    return from_torch_dtype(x.dtype)


def _counted(dims: list[int]) -> Callable[[FusionDefinition, Any], Any]:
    return lambda fd, below: fd.ops.sum(fd.ops.cast(below, DataType.Int), dims)


MOVED: dict[str, tuple[Callable[[FusionDefinition, Any], Any], Callable[[Any], torch.Tensor]]] = {
    "summed over rows": (_counted([0]), lambda t: t.long().sum(0)),
    "summed over columns": (_counted([1]), lambda t: t.long().sum(1)),
    "summed over all": (_counted([0, 1]), lambda t: t.long().sum()),
    "permuted": (lambda fd, t: fd.ops.permute(t, [1, 0]), lambda t: t.t()),
    "reshaped": (lambda fd, t: fd.ops.reshape(t, [10, 24]), lambda t: t.reshape(10, 24)),
    "sliced": (lambda fd, t: fd.ops.slice(t, [1, 3], [5, 17]), lambda t: t[1:5, 3:17]),
    "padded": (
        lambda fd, t: fd.ops.pad(t, [3, 1, 2, 0], True),
        lambda t: torch.nn.functional.pad(t, [3, 1, 2, 0], value=True),
    ),
    "twice": (
        lambda fd, t: fd.ops.cat([t, fd.ops.logical_not(t)], 1), lambda t: torch.cat([t, ~t], 1)
    ),
}  # fmt: skip


@targets
@pytest.mark.parametrize("move", MOVED)
def test_values_move_and_are_summed(target: str, move: str) -> None:
    ours, theirs = MOVED[move]
    with FusionDefinition() as fd:
        value = fd.ops.uniform(0.0, 1.0, [12, 20], DataType.Float, 3, 7)
        fd.add_output(ours(fd, fd.ops.lt(value, 0.5)))
    (result,) = fd.execute([], target=target)
    assert torch.equal(result, theirs(numbers(12, 20) < 0.5))


@targets
@pytest.mark.parametrize(("shape", "dims"), [((1030, 70), [0]), ((3, 30001), [1])])
def test_long_sums_in_two_steps(target: str, shape: tuple[int, int], dims: list[int]) -> None:
    with FusionDefinition() as fd:
        value = fd.ops.uniform(0.0, 1.0, list(shape), DataType.Float, 3, 7)
        fd.add_output(_counted(dims)(fd, fd.ops.lt(value, 0.5)))
    (result,) = fd.execute([], target=target)
    assert torch.equal(result, (numbers(*shape) < 0.5).long().sum(dims))


@targets
def test_a_mask_beside_a_softmax(target: str) -> None:
    """Two nests and a persistent buffer; the mask is recomputed where it is needed."""
    x = rand(6, 300)
    with FusionDefinition() as fd:
        a = fd.from_pytorch(x)
        powers = fd.ops.exp(fd.ops.sub(a, fd.ops.max(a, [1], keepdim=True)))
        kept = fd.ops.mul(powers, fd.ops.lt(fd.ops.rand_like(a, 3, 7), 0.5))
        fd.add_output(fd.ops.truediv(kept, fd.ops.sum(kept, [1], keepdim=True)))
    (result,) = fd.execute([x], target=target)
    kept = (x - x.amax(1, True)).exp() * (numbers(6, 300) < 0.5)
    torch.testing.assert_close(result, kept / kept.sum(1, True))


@targets
@pytest.mark.parametrize("columns", [1, 2, 4, 5, 4096, 20000])
def test_rows_that_begin_inside_a_group(target: str, columns: int) -> None:
    """Rows of 5 begin at every place of a group of four; 20000 are more than a lane array holds."""
    with FusionDefinition() as fd:
        value = fd.ops.uniform(0.0, 1.0, [3, columns], DataType.Float, 3, 7)
        fd.add_output(fd.ops.max(value, [1]))
        fd.add_output(value)
    top, result = fd.execute([], target=target)
    assert torch.equal(result, numbers(3, columns))
    assert torch.equal(top, result.amax(1))


@targets
def test_wide_positions(target: str) -> None:
    """Elements around 2**33 of a tensor that is never stored: the counter has 64 bits."""
    start = 2**33 - 3
    with FusionDefinition() as fd:
        value = fd.ops.uniform(0.0, 1.0, [2**33 + 9], DataType.Float, 3, 7)
        fd.add_output(fd.ops.slice(value, [start], [start + 9]))
    (result,) = fd.execute([], target=target)
    places = torch.arange(start, start + 9)
    high, low = places // 4 >> 32, places // 4 & 0xFFFFFFFF
    zero = torch.zeros(9, dtype=torch.int64)
    words = random.philox((zero + 7, zero, low, high), (zero + 3, zero))
    chosen = torch.stack(words).gather(0, (places % 4).unsqueeze(0)).squeeze(0)
    assert torch.equal(result, ((chosen >> 8).double() * 2.0**-24).float())


@targets
@pytest.mark.parametrize(
    "stream", [(0, 0), (-1, -1), (2**63 - 1, 5), (-(2**63), 2**62), (2**32 + 1, 2**33 + 7)]
)
def test_all_bits_of_seed_and_offset_count(target: str, stream: tuple[int, int]) -> None:
    expected = numbers(40, stream=stream)
    (literal,) = uniform(40, stream=stream).execute([], target=target)
    with FusionDefinition() as fd:
        given = [fd.define_scalar(dtype=DataType.Int) for _ in stream]
        fd.add_output(fd.ops.uniform(0.0, 1.0, [40], DataType.Float, *given))
    (scalar,) = fd.execute(list(stream), target=target)
    with FusionDefinition() as fd:
        held = [torch.tensor(x) for x in stream]
        given = [fd.define_tensor(shape=[], contiguity=[], dtype=DataType.Int) for _ in held]
        fd.add_output(fd.ops.uniform(0.0, 1.0, [40], DataType.Float, *given))
    (tensor,) = fd.execute(held, target=target)
    for result in (literal, scalar, tensor):
        assert torch.equal(result, expected)


@targets
@dtypes
@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (1.0, 2.0), (0.1, 0.3), (5, 5), (-3e4, 6e4)])
def test_uniform_in_a_range(target: str, dtype: torch.dtype, bounds: tuple[float, float]) -> None:
    """Bits as in torch; below the upper bound in every type, also where rounding would reach it."""
    with FusionDefinition() as fd:
        made = fd.ops.uniform(*bounds, [4096], from_torch_dtype(dtype), 3, 7)
        fd.add_output(made)
        given = [fd.define_scalar(dtype=DataType.Double) for _ in bounds]
        fd.add_output(fd.ops.uniform(*given, [4096], from_torch_dtype(dtype), 3, 7))
    low, high = bounds
    literal, scalar = fd.execute([float(low), float(high)], target=target)
    expected = random.uniform(
        *(torch.tensor(x, dtype=torch.float64) for x in bounds),
        (torch.tensor(3), torch.tensor(7)), (4096,), dtype,
    )  # fmt: skip
    assert torch.equal(literal, expected)
    assert torch.equal(scalar, expected)
    assert (expected.double() < max(high, low + 1e-9)).all()


@targets
@dtypes
def test_normal(target: str, dtype: torch.dtype) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.normal(1.5, 0.25, [33, 65], from_torch_dtype(dtype), 3, 7))
    (result,) = fd.execute([], target=target)
    (exact,) = evaluate(fd.fusion, [], torch.float64)
    facts = torch.finfo(dtype)
    error = (result.double() - exact).abs().max()
    assert result.dtype is dtype
    assert error < 8 * max(facts.eps, 2**-24 if dtype is not torch.float64 else 0)


def test_threads_do_not_matter() -> None:
    fd, before = uniform(300, 1000), torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results += fd.execute([])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


def test_other_schedules_do_not_matter() -> None:
    """Rows kept in registers, in shared memory, or read twice."""
    x = rand(4, 640)

    def run(registers: int) -> torch.Tensor:
        with FusionDefinition() as fd, options(max_registers_bytes=registers):
            a = fd.from_pytorch(x)
            noise = fd.ops.rand_like(a, 3, 7)
            total = fd.ops.max(fd.ops.mul(noise, 2.0), [1], keepdim=True)
            fd.add_output(fd.ops.sub(noise, total))
            return fd.execute([x], target="emulator")[0]

    assert torch.equal(run(0), run(128))
    noise = numbers(4, 640)
    assert torch.equal(run(0), noise - (noise * 2).amax(1, True))


# ---- are they random?


@dtypes
def test_uniform_is_uniform(dtype: torch.dtype) -> None:
    """Chi-square over 64 bins: 63 degrees of freedom, so beyond 120 one time in 10000."""
    (result,) = uniform(1 << 16, dtype=dtype).execute([])
    assert 0 <= result.min() and result.max() < 1
    counts = torch.histc(result.float(), 64, 0, 1)
    expected = (1 << 16) / 64
    assert ((counts - expected) ** 2 / expected).sum() < 120


@dtypes
def test_the_largest_number_stays_below_one(dtype: torch.dtype) -> None:
    """Among 2**22 numbers the top value of a 16-bit type is met, and of others nearly."""
    (result,) = uniform(1 << 22, dtype=dtype).execute([])
    assert result.max() < 1
    assert result.max() >= (1 - torch.finfo(dtype).eps / 2 if dtype.itemsize == 2 else 0.99999)
    assert result.min() >= 0


def test_uniform_has_the_resolution_of_its_type() -> None:
    """All 256 values of bfloat16, and no two equal words in a row of float64."""
    (short,) = uniform(1 << 16, dtype=torch.bfloat16).execute([])
    assert len(short.float().unique()) == 256
    (long,) = uniform(1 << 16, dtype=torch.float64).execute([])
    assert len(long.unique()) == 1 << 16


@dtypes
def test_normal_is_normal(dtype: torch.dtype) -> None:
    fd = FusionDefinition()
    fd.add_output(fd.ops.normal(0.0, 1.0, [1 << 16], from_torch_dtype(dtype), 3, 7))
    z = fd.execute([])[0].double()
    assert z.isfinite().all()
    assert abs(z.mean()) < 0.02 and abs(z.std() - 1) < 0.02
    # Four standard deviations of the sample moments.
    assert abs((z**3).mean()) < 0.06 and abs((z**4).mean() - 3) < 0.155
    # Neighbours share a pair of words.
    assert abs((z[::2] * z[1::2]).mean()) < 0.02


def test_streams_are_independent() -> None:
    first, second = (uniform(1 << 14, stream=(3, at)).execute([])[0] for at in (7, 8))
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.03


# ---- errors


def _bad(text: str, error: type[Exception], **given: Any) -> Any:
    arguments = {"lo": 0.0, "hi": 1.0, "shape": [4], "dtype": DataType.Float, **given}
    return pytest.param(arguments, error, text, id=text)


@pytest.mark.parametrize(("arguments", "error", "text"), [
    _bad("uniform: dtype: expected a float of 16 bits or more, got Int32", DtypeError,
         dtype=DataType.Int32),
    _bad("uniform: dtype: expected a float of 16 bits or more, got Float8_e5m2", DtypeError,
         dtype=DataType.Float8_e5m2),
    _bad("expected rng_seed and rng_offset, or neither, got one", DefinitionError, rng_seed=3),
    _bad("ops.uniform: rng_seed: expected an integer", DefinitionError, rng_seed=1.5, rng_offset=0),
    _bad("axis 0 of the result: expected a size >= 0, got -4", DefinitionError, shape=[-4]),
])  # fmt: skip
def test_what_a_random_op_refuses(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught, FusionDefinition() as fd:
        fd.add_output(fd.ops.uniform(**arguments))
    assert text in str(caught.value)


def test_a_vector_is_no_bound() -> None:
    refused = pytest.raises(DefinitionError, match="lo: expected a real number")
    with refused, FusionDefinition() as fd:
        bound = fd.define_tensor(shape=[4], contiguity=[True], dtype=DataType.Float)
        fd.add_output(fd.ops.uniform(bound, 1.0, [4], DataType.Float))


def test_a_drawn_scalar_is_no_size() -> None:
    with pytest.raises(DefinitionError, match="expected an integer"), FusionDefinition() as fd:
        seed = fd.define_scalar(drawn="seed")
        fd.add_output(fd.ops.full([seed], 0.0, DataType.Float))

    with pytest.raises(DefinitionError) as caught, FusionDefinition() as fd:
        fd.add_output(fd.ops.cast(fd.define_scalar(drawn="dice"), DataType.Float))
    assert 'drawn: expected "seed" or "offset"' in str(caught.value)
