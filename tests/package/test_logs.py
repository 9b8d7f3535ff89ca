# SPDX-License-Identifier: Apache-2.0
"""The option log: what each topic says, where it goes, and that silence costs nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.forked import Job, fork_all

from thunder_fuser import FusionCache, FusionDefinition
from thunder_fuser.base.logs import LOGGER, log
from thunder_fuser.errors import OptionError
from thunder_fuser.explain.jitted import Jitted, jit
from thunder_fuser.host.call import recompiles as guards
from thunder_fuser.options import OPTIONS, option, options
from thunder_fuser.runtime import toolchain

TOPICS = OPTIONS["log"].choices[:-1]  # the last is `all`
HERE = Path(__file__).name


def function(x: Any, w: Any) -> Any:
    return torch.softmax(x * 2 + 1, -1) @ w


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> Any:
    """{topic: its messages so far}, in a process that holds nothing."""

    def found() -> dict[str, list[str]]:
        records = [r for r in caplog.records if r.name.startswith("thunder_fuser.")]
        return {
            str(topic): [r.getMessage() for r in records if r.name == f"thunder_fuser.{topic}"]
            for topic in TOPICS
        }

    toolchain.forget()
    with options(cache_dir=str(tmp_path / "store")), FusionCache():
        yield found
    toolchain.forget()


def called(**given: Any) -> Jitted:
    jitted = jit(function, strict=True, **given)
    jitted(torch.randn(4, 8, requires_grad=True), torch.randn(8, 8)).sum().backward()
    return jitted


@pytest.mark.parametrize("asked", ["all", ", ".join(map(str, TOPICS))])
def test_each_topic_tells_its_part(asked: str, told: Any) -> None:
    called(log=asked)
    found = told()
    forward, backward = found["fusions"]
    assert forward.startswith("thunderFusion0: forward; ops ") and "amax" in forward
    assert "inputs x float32[4, 8]; from " in forward and f"{HERE}:" in forward
    assert backward.startswith("thunderFusion1: backward; ops ")
    name, _, rest = found["kernels"][0].partition(": ")
    assert name == "fused_mul_add_softmax_f32_persistent"
    assert rest.startswith("persistent, reads 0.1 KiB, writes ") and ", compiled in " in rest
    cache = "\n".join(found["cache"])
    for words in ("definition 0: miss", f"{name}", "store: miss ", "store: kept "):
        assert words in cache
    whole, times = found["time"][0], "\n".join(found["time"])
    assert whole.startswith("trace: ") and " ms: claim " in whole
    assert "\nthunderFusion0: " in times and "\ndefinition 0, ahead: " in times
    assert all(f" {stage} " in times for stage in ("record", "look up", "lower", "compile", "plan"))
    assert found["recompiles"] == []


def test_a_kernel_is_found_again(told: Any) -> None:
    x = torch.randn(3, 5)
    kernels = []
    for _ in range(3):
        with options(log="kernels,cache"), FusionCache(), FusionDefinition() as fd:
            # A number that no other test has: it might have stored the kernel.
            fd.add_output(fd.ops.mul(fd.ops.exp(fd.from_pytorch(x)), 0.6180339887))
        with options(log="kernels,cache"):
            fd.execute([x], target="cpu")
        kernels.append(told()["kernels"][-1])
        if len(kernels) == 2:
            toolchain.forget()
    states = [text.rpartition(", ")[2].rpartition(" in ")[0] for text in kernels]
    assert states == ["compiled", "in use already", "found in the store"]
    assert any(text.startswith("store: hit ") for text in told()["cache"])


def test_evictions_are_told(told: Any) -> None:
    with options(log="cache"), FusionCache(max_fusions=1):
        for number in range(2):
            with FusionDefinition() as fd:
                fd.add_output(fd.ops.add(fd.from_pytorch(torch.ones(2)), float(number)))
    assert [text for text in told()["cache"] if "1 evicted" in text] == [
        "definition 1: miss, 1 evicted"
    ]


# ---- recompiles

BASE = torch.randn(200)
CHANGED = {
    "sizes": (BASE[:40].view(5, 8), "x: sizes (4, 8) -> (5, 8)"),
    "strides": (BASE[:32].view(8, 4).t(), "x: strides (8, 1) -> (1, 4)"),
    "alignment": (BASE[1:33].view(4, 8), "x: alignment 16 -> 4"),
    "pending": (torch._neg_view(BASE[:32].view(4, 8)), "x: pending nothing -> neg"),
}


@pytest.mark.parametrize("guard", CHANGED)
def test_the_guard_that_changed_is_named(told: Any, guard: str) -> None:
    value, words = CHANGED[guard]
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=False)
        fd.add_output(fd.ops.mul(fd.ops.exp(x), 2.5))
    run = fd.entry.prepare().callable()
    with options(log="recompiles"):
        run(BASE[:32].view(4, 8))
        assert told()["recompiles"] == []
        run(value)
        run(BASE[:32].view(4, 8))
    (text,) = told()["recompiles"]
    assert text.startswith("a definition, compiled again: argument ") and words[1:] in text


def test_the_nearest_call_is_compared(told: Any) -> None:
    jitted = jit(torch.exp, strict=True, log="recompiles")
    for value in (BASE[:32].view(4, 8), BASE[:32].view(8, 4).t(), BASE[1:33].view(4, 8)):
        jitted(value)
    assert told()["recompiles"] == [
        "thunderFusion0, compiled again: argument t_0: strides (8, 1) -> (1, 4)",
        "thunderFusion0, compiled again: argument t_0: alignment 16 -> 4",
    ]


def test_a_new_trace_of_thunder_is_told(told: Any) -> None:
    jitted = jit(function, strict=True, log="recompiles")
    w = torch.randn(8, 8)
    jitted(torch.randn(4, 8), w)
    jitted(torch.randn(4, 8).double(), w.double())
    jitted(torch.randn(6, 8), w)
    first, second = told()["recompiles"]
    assert first.startswith("function, traced again by Thunder: argument x: dtype ")
    assert second.endswith("argument x: sizes (4, 8) -> (6, 8)")


def test_a_call_without_strides_can_be_told() -> None:
    facts = guards.facts_of(torch.eye(2).to_sparse())
    assert facts["layout"] is torch.sparse_coo and "strides" not in facts
    assert "alignment" not in guards.facts_of(torch.ones(2, device="meta"))
    assert guards.changes({"n": guards.facts_of(3)}, {"n": guards.facts_of(4)}) == {
        "n": ["value 3 -> 4"]
    }


# ---- where it goes


def test_nothing_is_told_unasked(told: Any) -> None:
    called()
    assert not any(told().values())


def test_pythons_own_levels_work_too(told: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "thunder_fuser.kernels"):
        called()
    found = told()
    assert found["kernels"] and not any(found[topic] for topic in found if topic != "kernels")


def test_a_text_is_not_made_for_nobody() -> None:
    def never() -> str:
        raise AssertionError("a text for nobody")

    log("kernels", never)
    with options(log="kernels"), pytest.raises(AssertionError, match="for nobody"):
        log("kernels", never)
    assert LOGGER.handlers == []


PROGRAM = """
import sys, torch
from thunder_fuser import FusionDefinition
with FusionDefinition() as fd:
    fd.add_output(fd.ops.exp(fd.from_pytorch(torch.ones(3))))
fd.execute([torch.ones(3)])
if "configured" in sys.argv:
    import logging
    logging.basicConfig(stream=sys.stdout, format="MINE %(message)s")
    fd.execute([torch.ones(4)])
"""


def test_the_environment_variable_and_handlers_of_the_user(tmp_path: Path) -> None:
    script, out, err = (tmp_path / name for name in ("logged.py", "out", "err"))
    script.write_text(PROGRAM)
    environment = {"THUNDER_FUSER_LOG": "kernels"}
    job = Job([str(script), "configured"], str(out), str(err), environment)
    assert fork_all([job]) == [0], err.read_text()
    (first,) = err.read_text().splitlines()
    (second,) = out.read_text().splitlines()
    assert first.startswith("thunder_fuser.kernels: fused_exp_f32_pointwise: pointwise, reads ")
    assert second.startswith("MINE fused_exp_f32_pointwise: pointwise, reads ")


@pytest.mark.parametrize(
    ("text", "nearest"), [("kernel", "kernels"), ("time,recompile", "recompiles"), ("xyz", "")]
)
def test_a_wrong_topic_is_refused_with_the_nearest_one(text: str, nearest: str) -> None:
    topics = "fusions, kernels, cache, time, recompiles, graphs, all"
    words = f"option log: expected some of {topics}, got '"
    with pytest.raises(OptionError, match=words) as caught, options(log=text):
        pass
    assert str(caught.value).endswith(f"To fix it: write {nearest}." if nearest else f"'{text}'")


def test_topics_with_blanks_and_no_topic() -> None:
    for text in ("", "time , cache", "time,"):
        with options(log=text):
            assert option("log") == text
