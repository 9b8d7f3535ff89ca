# SPDX-License-Identifier: Apache-2.0
"""What a compiler said of a kernel: its first complaint, in a message of a few lines."""

from __future__ import annotations

import pytest

from thunder_fuser.runtime.rejected import first_complaint, rejected

TEXT = "\n".join(f"line {number}" for number in range(1, 60))
# What compilers say -> the line that says what is wrong.
SAID = {
    "k.cpp: In function 'void f()':\nk.cpp:40:3: error: no 'x' here\n   40 | x": (
        "k.cpp:40:3: error: no 'x' here"
    ),
    "k.cu(40): warning: unused\nk.cu(40): error: no x\n1 error detected": "k.cu(40): error: no x",
    "k.cu(40): catastrophic error: no file": "k.cu(40): catastrophic error: no file",
    "/usr/bin/ld: k.o: undefined reference to `f'\ncollect2: error: ld returned 1 exit status": (
        "/usr/bin/ld: k.o: undefined reference to `f'"
    ),
    "warming up\nodd: fatal error: no licence": "odd: fatal error: no licence",
    "no licence": "no licence",
    "": "",
}


@pytest.mark.parametrize("log", SAID)
def test_the_line_that_says_what_is_wrong(log: str) -> None:
    assert first_complaint(log) == SAID[log]
    error = rejected("c++", log, TEXT, "k.cpp")
    title = "c++ refused a generated kernel"
    told = SAID[log].replace("k.cpp", "kernel")
    assert error.sentence == (f"{title}: {told}" if told else title)
    assert ("> 40 | line 40" in str(error)) == ("40" in told)


def test_a_message_is_short_and_the_log_is_whole() -> None:
    log = "\n".join(f"k.cpp:{number}:1: error: {'x' * 5000}" for number in range(1, 60))
    error = rejected("c++", log, TEXT.replace("line 2", "y" * 5000), "k.cpp")
    lines = str(error).splitlines()
    assert len(lines) < 10 and max(map(len, lines)) < 300
    assert error.log == log.replace("k.cpp", "kernel") + "\n"
