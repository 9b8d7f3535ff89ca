# SPDX-License-Identifier: Apache-2.0
"""The trie over op records: what shares a path, what must not, errors, threads."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Golden
from hypothesis import given
from hypothesis import strategies as st

from thunder_fuser.cache import executable
from thunder_fuser.cache.trie import FusionCache
from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import DefinitionError
from thunder_fuser.ir.dtypes import COMPUTED, DataType
from thunder_fuser.ir.frontend.language import Recorder
from thunder_fuser.ir.record import Definition, OpRecord
from thunder_fuser.options import options
from thunder_fuser.target import CPU

D = DataType
Build = Callable[[Recorder], Any]


def records(build: Build) -> Definition:
    fd = Recorder()
    result = build(fd)
    if result is not None:
        fd.add_output(result)
    return fd.definition


def t(fd: Recorder, **more: Any) -> Any:
    return fd.define_tensor(**{"shape": [-1, -1], "contiguity": True, **more})


def _basic(fd: Recorder) -> Any:
    return fd.ops.mul(t(fd), 2.0)


def test_the_same_definition_is_one_leaf() -> None:
    cache = FusionCache()
    first, second = (cache.look_up(records(_basic)) for _ in range(2))
    assert first is second
    assert (cache.num_fusions(), cache.hits, cache.misses) == (1, 1, 1)


def test_its_own_definition_is_handed_out_and_no_lookup_is_counted() -> None:
    cache = FusionCache()
    held, equal = records(_basic), records(_basic)
    longer = records(lambda fd: fd.ops.exp(_basic(fd)))
    cache.look_up(held)
    before = cache.stats()
    assert cache.interned(equal) is held is not equal
    assert cache.interned(longer) is longer and cache.interned(held[:1]) == held[:1]
    assert cache.stats() == before


def test_ir_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Definition] = []
    original = executable.define
    monkeypatch.setattr(executable, "define", lambda d: made.append(d) or original(d))
    cache = FusionCache()
    for _ in range(3):
        cache.look_up(records(_basic))
    assert len(made) == 1


def test_prefixes_are_shared(golden: Golden) -> None:
    cache = FusionCache()
    cache.look_up(records(lambda fd: fd.ops.exp(t(fd))))
    cache.look_up(records(lambda fd: fd.ops.exp(t(fd))))
    cache.look_up(records(lambda fd: fd.ops.sin(t(fd))))
    cache.look_up(records(lambda fd: fd.ops.neg(fd.ops.exp(t(fd)))))
    golden(str(cache) + "\n")


def test_a_definition_may_end_inside_another() -> None:
    """The longer one has more outputs."""

    def two(fd: Recorder) -> None:
        x = t(fd)
        fd.add_output(fd.ops.exp(x))
        fd.add_output(fd.ops.exp(x))

    cache = FusionCache()
    short = cache.look_up(records(lambda fd: fd.ops.exp(t(fd))))
    long = cache.look_up(records(two))
    assert short is not long
    assert cache.look_up(records(lambda fd: fd.ops.exp(t(fd)))) is short


def _aliased(fd: Recorder) -> None:
    x = t(fd)
    fd.add_output(fd.ops.exp(x), x)


def _ordered(order: list[int] | None) -> Build:
    return lambda fd: fd.add_output(fd.ops.exp(t(fd)), stride_order=order)


DIFFERENT: dict[str, tuple[Build, ...]] = {
    "dtype": tuple(lambda fd, d=d: fd.ops.exp(t(fd, dtype=d)) for d in COMPUTED if d.is_float),
    "shape": tuple(
        lambda fd, s=s: fd.ops.exp(t(fd, shape=s))
        for s in ([-1, -1], [4, -1], [-1, 4], [4, 4], [1, 4], [0, 4])
    ),
    "rank": tuple(lambda fd, s=s: fd.ops.exp(t(fd, shape=[-1] * s)) for s in range(4)),
    "contiguity": tuple(
        lambda fd, c=c: fd.ops.exp(t(fd, contiguity=c))
        for c in (True, False, [True, False], [None, True], [True, None])
    ),
    "stride_order": tuple(
        lambda fd, o=o: fd.ops.exp(t(fd, stride_order=o)) for o in ([1, 0], [0, 1])
    ),
    "is_cpu": tuple(lambda fd, c=c: fd.ops.exp(t(fd, shape=[], is_cpu=c)) for c in (False, True)),
    "scalar": tuple(
        lambda fd, d=d: fd.ops.mul(t(fd), fd.define_scalar(dtype=d))
        for d in (D.Double, D.Int, D.Bool)
    ),
    "literal": tuple(
        lambda fd, n=n: fd.ops.mul(t(fd), n)
        for n in (1, 1.0, True, 2, 0.0, -0.0, 0, False, math.nan, math.inf)
    ),
    "op": tuple(lambda fd, o=o: getattr(fd.ops, o)(t(fd)) for o in ("exp", "sin", "neg")),
    "operands": (
        lambda fd: fd.ops.sub(t(fd), t(fd)),
        lambda fd: fd.ops.sub(*reversed([t(fd), t(fd)])),
        lambda fd: fd.ops.sub(*[t(fd), t(fd)][:1] * 2),
    ),
    "dims": tuple(lambda fd, d=d: fd.ops.sum(t(fd), d) for d in ([0], [1], [0, 1], [])),
    "keepdim": tuple(lambda fd, k=k: fd.ops.sum(t(fd), [0], k) for k in (False, True)),
    "reduction dtype": tuple(
        lambda fd, d=d: fd.ops.sum(t(fd), [0], dtype=d) for d in (None, D.Float, D.Double)
    ),
    "cast": tuple(lambda fd, d=d: fd.ops.cast(t(fd), d) for d in D),
    "alias": (lambda fd: fd.ops.exp(t(fd)), _aliased),
    "output order": (_ordered(None), _ordered([1, 0]), _ordered([0, 1])),
    "pad value": tuple(
        lambda fd, v=v: fd.ops.pad(t(fd), [1, 1], v)
        for v in (0.0, -0.0, 1.0, 1, True, math.inf, math.nan)
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_every_field_is_part_of_the_key(name: str) -> None:
    cache = FusionCache()
    found = [cache.look_up(records(build)) for build in DIFFERENT[name]]
    assert len({id(entry) for entry in found}) == len(found) == cache.num_fusions()
    again = [cache.look_up(records(build)) for build in DIFFERENT[name]]
    assert found == again
    assert [entry.number for entry in found] == list(range(len(found)))


def test_attributes_of_another_kind_are_another_key() -> None:
    """1, 1.0 and True are equal in Python, and must not be here."""
    cache = FusionCache()
    values = (1, 1.0, True)
    found = [cache.look_up(records(lambda fd, v=v: fd.ops.pad(t(fd), [1, 1], v))) for v in values]
    shown = [str(entry.fusion.exprs[-1].attr("value")) for entry in found]
    assert shown == ["1", "1.0", "True"]


_NUMBERS = st.sampled_from([0, 1, 0.0, 1.0, -0.0, False, True, math.nan, math.inf])
_NESTED: st.SearchStrategy[Any] = st.recursive(
    _NUMBERS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5
)


def _twin(value: Any, draw: Callable[[Any], Any]) -> Any:
    """A value that Python takes for equal, of other types or bits in some places."""
    if isinstance(value, tuple):
        return tuple(_twin(one, draw) for one in value)
    if math.isnan(value):
        return float("nan")
    return draw(st.sampled_from([one for one in (0, 1, 0.0, 1.0, -0.0, False, True) if one == value]
                                or [value]))


def _bits(value: Any) -> Any:
    return list(map(_bits, value)) if isinstance(value, tuple) else repr(value)


@given(st.data(), _NESTED, st.sampled_from(["value", "dims", "keepdim", "other"]))
def test_attributes_are_one_key_only_by_type_and_bits(
    data: st.DataObject, value: Any, key: str
) -> None:
    """0.0 and -0.0, 1 and True, [0] and [0.0]: no two share an entry, a node or a set."""
    twin = _twin(value, data.draw)
    one, other = (
        OpRecord("sum", ("T0",), ("T1",), ((key, given),)) for given in (value, twin)
    )
    same = _bits(value) == _bits(twin)
    assert (one == other) is same and len({one, other}) == 2 - same
    cache = FusionCache()
    found = [cache._find((record,)) for record in (one, other)]
    assert (found[0] is found[1]) is same and cache.stats().nodes == 2 - same


@pytest.mark.parametrize(
    ("wrong", "fine"),
    [
        (lambda fd: fd.ops.permute(t(fd), [1.0, 0.0]), lambda fd: fd.ops.permute(t(fd), [1, 0])),
        (lambda fd: fd.ops.sum(t(fd), [0.0]), lambda fd: fd.ops.sum(t(fd), [0])),
        (lambda fd: fd.ops.sum(t(fd), [False]), lambda fd: fd.ops.sum(t(fd), [0])),
        (lambda fd: fd.ops.sum(t(fd), [0], 1), lambda fd: fd.ops.sum(t(fd), [0], True)),
    ],
)
def test_what_is_refused_and_what_is_not_do_not_meet(wrong: Build, fine: Build) -> None:
    """In either order."""
    cache = FusionCache()
    for _ in range(2):
        with pytest.raises(DefinitionError):
            cache.look_up(records(wrong))
        cache.look_up(records(fine))
    assert cache.num_fusions() == 1


def test_nan_is_itself() -> None:
    cache = FusionCache()
    for value in (math.nan, float("nan"), -math.nan):
        cache.look_up(records(lambda fd, v=value: fd.ops.mul(t(fd), v)))
    assert cache.num_fusions() == 1


def test_nan_in_an_attribute_is_itself() -> None:
    cache = FusionCache()
    for value in (math.nan, float("nan")):
        cache.look_up(records(lambda fd, v=value: fd.ops.pad(t(fd), [1, 1], v)))
    assert cache.num_fusions() == 1


def test_errors_are_remembered() -> None:
    """The same error, without defining anything again."""
    cache = FusionCache()
    bad = records(lambda fd: fd.ops.sum(t(fd), [5]))
    raised = []
    for _ in range(2):
        with pytest.raises(DefinitionError) as error:
            cache.look_up(bad)
        raised.append(error.value)
    assert str(raised[0]) == str(raised[1])
    assert (cache.num_fusions(), cache.misses) == (0, 1)


def test_an_error_leaves_its_neighbours_alone() -> None:
    cache = FusionCache()
    with pytest.raises(DefinitionError):
        cache.look_up(records(lambda fd: fd.ops.sum(t(fd), [5])))
    cache.look_up(records(lambda fd: fd.ops.sum(t(fd), [1])))
    assert cache.num_fusions() == 1


def test_reset_forgets_but_entries_go_on() -> None:
    x = torch.ones(3, 4)
    with FusionDefinition() as fd:
        _basic_of = fd.ops.mul(fd.from_pytorch(x), 2.0)
        fd.add_output(_basic_of)
    assert FusionCache.get().num_fusions() > 0
    FusionCache.reset()
    assert str(FusionCache.get()) == "0 fusions, 0 hits, 0 misses, 0 evictions"
    assert torch.equal(fd.execute([x], target="cpu")[0], x * 2)


def test_threads_make_one_leaf_and_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    original = executable.compile_fusion

    def counting(*args: Any) -> Any:
        compiled.append(threading.current_thread().name)
        return original(*args)

    monkeypatch.setattr(executable, "compile_fusion", counting)
    cache, x = FusionCache(), torch.arange(12.0).reshape(3, 4)
    barrier, results, found = threading.Barrier(8), [], []

    def work() -> None:
        barrier.wait()
        entry = cache.look_up(records(lambda fd: fd.ops.mul(t(fd), 3.25)))
        found.append(entry)
        results.append(entry.execute([x])[0])

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 8
    assert all(torch.equal(result, x * 3.25) for result in results)
    assert len({id(entry) for entry in found}) == cache.num_fusions() == len(compiled) == 1


def test_a_callable_compiles_under_the_options_it_was_asked_for_with() -> None:
    """Its key says so; the options in force at its first call are others here."""
    entry = FusionCache().look_up(records(lambda fd: fd.ops.sum(t(fd), [1])))
    with options(repeatable=True, max_registers_bytes=64):
        call = entry.prepare().callable(CPU)
    call(torch.ones(3, 4))
    (((_, _, _, under), program),) = entry.held_programs()
    assert under.repeatable and under.max_registers_bytes == 64
    assert all(segment.match.options == under for segment in program.segmented.segments)
