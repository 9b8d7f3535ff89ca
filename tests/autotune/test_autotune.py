# SPDX-License-Identifier: Apache-2.0
"""Autotuning on the CPU target. A clock that the tests set decides: none of them measures time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import thunder
import torch
from helpers.forked import Job, fork_all

from thunder_fuser import FusionCache, FusionDefinition, fuser
from thunder_fuser.autotune import tune
from thunder_fuser.autotune.choice import KIND, Tuning, recipe_of, stored
from thunder_fuser.autotune.trial import Bench, Trial, arguments_of
from thunder_fuser.codegen.source import KernelSource
from thunder_fuser.compiler import emit
from thunder_fuser.errors import OptionError, ScheduleError
from thunder_fuser.explain import report
from thunder_fuser.explain.machine import info
from thunder_fuser.explain.programs import kernels
from thunder_fuser.options import option, options
from thunder_fuser.runtime.binaries import binaries, forget
from thunder_fuser.schedule.scheduled import ScheduledFusion
from thunder_fuser.store.store import Store, current_store

Clock = Callable[[ScheduledFusion], float]


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path) -> Iterator[None]:
    """A store, a cache and a memory of choices of this test alone; time for the whole space."""
    tune.forget()
    with FusionCache(), options(autotune=60.0, cache="rw", cache_dir=str(tmp_path / "store")):
        yield
    tune.forget()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Clock], list[str]]:
    """Sets what a call of each schedule takes; returns the list of what is timed."""
    timed: list[str] = []

    def set_to(seconds: Clock) -> list[str]:
        def rounds(
            self: Bench, trials: Sequence[Trial], least: int, most: int, until: float
        ) -> None:
            for one in trials:
                timed.append(str(one.scheduled.params))
                one.times.extend([seconds(one.scheduled)] * least)

        monkeypatch.setattr(Bench, "rounds", rounds)
        return timed

    return set_to


def summed(x: torch.Tensor) -> FusionDefinition:
    """Columns: how many a thread adds at once is open on a CPU."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.from_pytorch(x), [0]))
    return fd


def narrow(scheduled: ScheduledFusion) -> float:
    """Few columns at once are fast."""
    return float(scheduled.params.vectorize)


X = torch.randint(-4, 5, (40, 300)).float()


def chosen(x: torch.Tensor = X) -> Tuning | None:
    """What is chosen for the sum of columns; its values are right."""
    fd = summed(x)
    (result,) = fd.execute([x])
    assert torch.equal(result, x.sum(0))
    (found,) = fd.program([x]).choices
    return found  # type: ignore[no-any-return]


# ---- what is chosen


def test_the_fastest_is_chosen(clock: Callable[[Clock], list[str]]) -> None:
    clock(narrow)
    found = chosen()
    assert found is not None
    assert (found.params, found.gain) == ("reduction(vectorize=16, threads=1x1, unroll=1)", 16.0)
    assert found.tried > 4 and not found.wrong
    (source,) = summed(X).program([X]).sources
    assert "fused_sum" in source.text
    assert 's.split("i1", 16)' in found.schedule


def test_the_search_goes_on_around_the_best(clock: Callable[[Clock], list[str]]) -> None:
    """8192 columns are five doublings from the scheduler's 256: too far to be a neighbour."""
    clock(lambda one: 1.0 / one.params.vectorize)
    found = chosen(torch.ones(3, 10000))
    assert found is not None and found.params.startswith("reduction(vectorize=8192,")


@pytest.mark.parametrize("factor", [1.0, 0.99])
def test_a_tie_is_the_schedulers(clock: Callable[[Clock], list[str]], factor: float) -> None:
    own = 256
    clock(lambda one: 1.0 if one.params.vectorize == own else factor)
    found = chosen()
    assert found is not None and (found.schedule, found.gain) == ("", 1.0)


def test_noise_is_no_gain() -> None:
    """A lower median that loses many rounds is not chosen."""
    own = Trial(None, None, (), [1.0, 2.0, 1.0, 2.0, 1.0])  # type: ignore[arg-type]
    other = Trial(None, None, (), [1.5, 0.9, 1.5, 0.9, 0.9])  # type: ignore[arg-type]
    assert other.median < own.median and not tune._is_clear(other, own)
    assert tune._is_clear(replace(own, times=[0.5] * 5), own)


def test_what_the_clock_cannot_tell_is_no_gain() -> None:
    """A tenth of 4 us is less than events on a GPU are apart; a tenth of 40 us is not."""
    short, long = (Trial(None, None, (), [us * 1e-6] * 5) for us in (4, 40))  # type: ignore[arg-type]
    assert not tune._is_clear(replace(short, times=[3.6e-6] * 5), short)
    assert tune._is_clear(replace(long, times=[36e-6] * 5), long)


def test_a_wrong_candidate_is_discarded(
    clock: Callable[[Clock], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported, and never chosen however fast it is."""
    clock(narrow)
    made = tune.Search._compiled

    def broken(self: tune.Search, scheduled: ScheduledFusion) -> object:
        trial = made(self, scheduled)
        if scheduled.params.vectorize == 16 and isinstance(trial, Trial):
            launcher = replace(trial.launcher, run=lambda *arguments: None)
            return replace(trial, launcher=launcher)
        return trial

    monkeypatch.setattr(tune.Search, "_compiled", broken)
    found = chosen()
    assert found is not None
    assert found.wrong == ("reduction(vectorize=16, threads=1x1, unroll=1)",)
    assert "vectorize=32," in found.params and "1 wrong" in str(found)


@pytest.mark.parametrize(
    "error", [ScheduleError("too much shared memory"), OSError(28, "No space left"), KeyError("T0")]
)
def test_a_candidate_without_a_kernel_is_left_out(
    clock: Callable[[Clock], list[str]], error: Exception
) -> None:
    """Whatever fails: the others are tried, and the scheduler's own is there."""
    clock(narrow)

    def emitted(scheduled: ScheduledFusion) -> KernelSource | None:
        if scheduled.params.vectorize == 16:
            raise error
        return emit(scheduled)

    (scheduled,) = summed(X).schedules([X])
    assert scheduled is not None
    found = tune.Tuner(emitted, torch.device("cpu"), 60.0).choice(scheduled)
    assert found is not None and "vectorize=32," in found.params


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["softmax", "transposed", "looked up", "in place", "scanned"])
def test_values(name: str, dtype: torch.dtype) -> None:
    """With the clock of the machine: whatever is chosen is right."""
    x = torch.randn(33, 520).to(dtype)
    function = FUNCTIONS[name]
    jitted = thunder.jit(function, executors=[fuser], fuser_autotune=0.1)
    expected = function(x.clone())
    torch.testing.assert_close(jitted(x.clone()), expected)
    assert all(kernel.tuned for kernel in kernels(jitted))


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "transposed": lambda x: x.t() * 2 + 1,
    "looked up": lambda x: x[torch.arange(7)] * 2,
    "in place": lambda x: x.mul_(2).add_(1),
    "scanned": lambda x: x.cumsum(0) * 2,
}


# ---- the arguments that are made up


def test_rounds_begin_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one after a wait may be slower, which is not its schedule's fault."""
    (own,), begun = summed(X).schedules([X]), list[str]()
    trials = [Trial(named, None, ()) for named in "abc"]  # type: ignore[arg-type]
    monkeypatch.setattr(Bench, "_call", lambda self, trial: None)
    monkeypatch.setattr(
        Bench, "_cpu_round", lambda self, calls: begun.append(calls[0][0].scheduled)
    )
    Bench(own.part, torch.device("cpu")).rounds(trials, 6, 6, until=0.0)
    assert sorted(begun[:3]) == ["a", "b", "c"] and begun[:3] == begun[3:]


def test_packed_floats_are_bytes() -> None:
    """torch fills and draws none of them."""
    x = torch.randint(0, 256, (24, 16), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.permute(fd.from_pytorch(x), [1, 0]), stride_order=[0, 1])
    (result,) = fd.execute([x])
    assert torch.equal(result.view(torch.uint8), x.view(torch.uint8).T)
    assert fd.program([x]).choices[0] is not None


def test_arguments_fit_the_part() -> None:
    table, index = torch.randn(5, 8), torch.randint(0, 5, (9,))
    with FusionDefinition() as fd:
        a, b = fd.from_pytorch(table), fd.from_pytorch(index)
        fd.add_output(fd.ops.index_select(a, b, 0))
    (segment,) = fd.plan([table, index]).segments
    made = arguments_of(segment.part, torch.device("cpu"))
    numbers = next(v for v in made.values if v.dtype == torch.int64)
    assert 0 <= int(numbers.min()) and int(numbers.max()) < 5
    made.restore()
    assert made.results[0].isnan().all()


# ---- where choices are kept


def test_a_second_search_finds_it(clock: Callable[[Clock], list[str]]) -> None:
    """In memory; after a restart, in the store, with the kernel: nothing is compiled."""
    timed = clock(narrow)
    first = chosen()
    count = len(timed)
    with FusionCache():
        assert chosen() == first
    tune.forget()
    forget()
    before = binaries().compiled
    with FusionCache():
        again = chosen()
    assert again == replace(first, from_store=True)  # type: ignore[type-var]
    assert len(timed) == count and binaries().compiled == before


def test_a_longer_search_is_made_again(clock: Callable[[Clock], list[str]]) -> None:
    """A choice after less than half of the time is not used; a shorter search finds it."""
    timed = clock(narrow)
    for seconds, searched in ((60.0, True), (200.0, True), (200.0, False), (60.0, False)):
        tune.forget()
        before = len(timed)
        with FusionCache(), options(autotune=seconds):
            chosen()
        assert (len(timed) > before) == searched


def test_no_time_for_a_candidate(clock: Callable[[Clock], list[str]]) -> None:
    """The scheduler's own is the choice."""
    clock(narrow)
    with options(autotune=1e-6):
        found = chosen()
    assert found is not None and (found.tried, found.schedule) == (1, "")


def test_candidates_are_not_kept(clock: Callable[[Clock], list[str]]) -> None:
    clock(narrow)
    chosen()
    store = current_store()
    assert store is not None
    names = [one.entry.fields["kind"] for one in store.entries() if one.entry]
    of_kernel = [n for n in names if n == KIND]
    assert len(of_kernel) == 1 and names.count("library") <= 2  # the kernel's, and native calls'
    assert "1 autotuned schedule" in info()


SCRIPT = """
import torch, sys
from thunder_fuser import FusionDefinition
from thunder_fuser.autotune import trial
from thunder_fuser.options import options
torch.set_num_threads(1)
x = torch.arange(12000.0).reshape(40, 300)
with FusionDefinition() as fd:
    fd.add_output(fd.ops.sum(fd.from_pytorch(x), [0]))
with options(autotune=0.2, cache_dir=sys.argv[1]):
    (result,) = fd.execute([x])
    assert torch.equal(result, x.sum(0))
    (choice,) = fd.program([x]).choices
print(choice.from_store, choice.params)
"""


def test_processes_share_a_choice(tmp_path: Path) -> None:
    """Two at once: one searches, the other waits for it."""
    script, outputs = tmp_path / "search.py", [tmp_path / "one", tmp_path / "other"]
    script.write_text(SCRIPT, "utf-8")
    command = [str(script), str(tmp_path / "shared")]
    assert fork_all([Job(command, str(out), str(out), seconds=100) for out in outputs]) == [0, 0]
    told = sorted(out.read_text("utf-8").split(maxsplit=1) for out in outputs)
    assert [words[0] for words in told] == ["False", "True"]
    assert told[0][1] == told[1][1]


def test_threads_share_a_search(clock: Callable[[Clock], list[str]], tmp_path: Path) -> None:
    """Four that ask at once cause one search, as long as that of one that asks alone."""
    timed = clock(narrow)
    (own,) = summed(X).schedules([X])
    assert own is not None
    tuner, found = tune.Tuner(emit, torch.device("cpu"), 60.0), list[Tuning | None]()
    threads = [threading.Thread(target=lambda: found.append(tuner.choice(own))) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 4 and found[0] is not None and len(set(found)) == 1
    count = len(timed)
    tune.forget()
    with options(cache_dir=str(tmp_path / "other")):
        tuner.choice(own)
    assert len(timed) == 2 * count


def test_a_damaged_choice_is_made_again(clock: Callable[[Clock], list[str]]) -> None:
    clock(narrow)
    first = chosen()
    _replace_choice(lambda content: content[:-1])
    tune.forget()
    with pytest.warns(UserWarning), FusionCache():
        assert replace(chosen(), spent=0.0) == replace(first, spent=0.0)  # type: ignore[type-var]


@pytest.mark.parametrize(
    "wrong",
    [{"schedule": 7}, {"params": None}, {"seconds": "1"}, {"asked": None}, {"tried": []}, {"a": 1}],
    ids=str,
)
def test_a_choice_of_other_types_is_made_again(
    clock: Callable[[Clock], list[str]], wrong: dict[str, object]
) -> None:
    """The entry is whole, and says what no search writes."""
    timed = clock(narrow)
    first, store = chosen(), current_store()
    assert isinstance(first, Tuning) and isinstance(store, Store)
    (scheduled,) = summed(X).schedules([X])
    assert scheduled is not None
    source = emit(scheduled)
    assert source is not None
    recipe = recipe_of(scheduled, source)
    assert stored(store, recipe, 60.0) == replace(first, from_store=True)
    store.put(recipe, json.dumps({**asdict(first), **wrong}).encode())
    assert stored(store, recipe, 60.0) is None
    tune.forget()
    count = len(timed)
    with FusionCache():
        assert chosen() == replace(first, spent=chosen().spent)  # type: ignore[union-attr]
    assert len(timed) == 2 * count


def test_a_choice_that_is_no_longer_legal(
    clock: Callable[[Clock], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler's own is used."""
    clock(narrow)
    bad = Tuning("def schedule(s):\n    s.fuse()", "", 1.0, 2.0, 1, (), 0.0, 1.0)
    monkeypatch.setattr(tune.Tuner, "choice", lambda self, own: bad)
    fd = summed(X)
    assert torch.equal(fd.execute([X])[0], X.sum(0))


def _replace_choice(change: Callable[[bytes], bytes]) -> None:
    store = current_store()
    assert isinstance(store, Store)
    for one in store.entries():
        if one.entry and one.entry.fields["kind"] == KIND:
            path = store.root / one.file.name
            path.write_bytes(change(path.read_bytes()))


# ---- where there is none


def test_not_tuned(clock: Callable[[Clock], list[str]]) -> None:
    timed = clock(narrow)
    fd = summed(X)
    with options(autotune="off"):
        fd.execute([X])
        assert fd.program([X]).choices == (None,)
    fd.execute([X], target="emulator")
    with options(autotune_total=0.0):
        assert chosen(X[:, :50]) is None
    with options(assert_cache_hit=False):
        own = str(fd.schedules([X])[0])
        fd.execute([X], schedules={0: own})
    assert not timed


def test_assert_cache_hit_forbids_a_search(clock: Callable[[Clock], list[str]]) -> None:
    timed = clock(narrow)
    with options(autotune="off"):
        chosen()
    with options(assert_cache_hit=True):
        assert chosen() is None
    assert not timed


# ---- Thunder


def test_report_shows_it(clock: Callable[[Clock], list[str]]) -> None:
    clock(narrow)
    jitted = thunder.jit(lambda x: (x * 2).sum(0), executors=[fuser], fuser_autotune=60.0)
    jitted(X)
    text = str(report(jitted))
    assert "autotuned" in text and "us instead of" in text
    (kernel,) = kernels(jitted)
    assert kernel.tuned.startswith("reduction(vectorize=16,")
    (fusion,) = report(jitted).to_dict()["fusions"]
    assert fusion["kernels"][0]["tuned"] == kernel.tuned
    assert 's.split("i1", 16)' in fusion["schedules"][0]


@pytest.mark.parametrize(
    ("given", "value"),
    [(0.5, 0.5), (1, 1.0), ("off", 0.0), ("on", 0.5), (True, 0.5), (False, 0.0), ("0.25", 0.25)],
)
def test_the_option(given: object, value: float) -> None:
    with options(autotune=given):  # type: ignore[arg-type]
        assert option("autotune") == value


@pytest.mark.parametrize("given", [-1, "fast", float("nan"), None, [1]])
def test_a_wrong_option(given: object) -> None:
    with pytest.raises(OptionError, match="option autotune"), options(autotune=given):  # type: ignore[arg-type]
        pass


def test_a_wrong_option_is_told_at_jit() -> None:
    jitted = thunder.jit(lambda x: x + 1, executors=[fuser], fuser_autotune="fast")
    with pytest.raises(OptionError, match="option autotune"):
        jitted(X)
