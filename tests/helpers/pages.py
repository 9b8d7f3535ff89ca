# SPDX-License-Identifier: Apache-2.0
"""A page of the documentation -> what its code prints, run in a process of its own.

The blocks of a page run in order, as one script. A line above a block says what else it is:

    <!-- output -->        the text that the code block before it prints
    <!-- file: PATH -->    a file of the repository, which the script finds beside the others
    ```diff                a change of the repository, which the script finds made

A page that changes the repository runs on a copy of the package.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from helpers.forked import forked

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"(?P<head>(?:^<!-- (?P<mark>.*?) -->\n)?^```(?P<language>\w+)\n)(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
END = "\x1e"  # printed behind each block


def run_page(page: Path, folder: Path) -> str:
    """The page with the outputs that its code prints now. Fails if the code fails or warns."""
    text = page.read_text("utf-8")
    code = [m["text"] for m in BLOCK.finditer(text) if m["language"] == "python" and not m["mark"]]
    assert code, f"{page.name} has no code"
    script = folder / f"{page.stem}.py"
    script.write_text("".join(f"{one}print({END!r})\n" for one in code), "utf-8")
    outputs = run_script(script, _package(text, folder)).split(f"{END}\n")
    return _with_outputs(text, outputs)


def run_script(script: Path, root: Path = ROOT) -> str:
    """What a script prints, run in its folder with the package of `root`."""
    if root == ROOT:
        status, out, err = forked(script)
    else:
        ran = subprocess.run(
            [sys.executable, str(script)],
            cwd=script.parent, env={**os.environ, "PYTHONPATH": str(root)},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        status, out, err = ran.returncode, ran.stdout, ran.stderr
    assert status == 0, f"{out[-2000:]}\n{err[-4000:]}"
    assert "Warning" not in err, err
    return out


def _package(text: str, folder: Path) -> Path:
    """The root of the package that the page is about: this one, or a copy with its changes."""
    files = {m["mark"][6:]: m["text"] for m in BLOCK.finditer(text) if _is_file(m)}
    diffs = [m["text"] for m in BLOCK.finditer(text) if m["language"] == "diff"]
    if not files and not diffs:
        return ROOT
    copy = folder / "copy"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "thunder_fuser", copy / "thunder_fuser", ignore=ignored)
    for path, content in files.items():
        (copy / path).write_text(content, "utf-8")
    for diff in diffs:
        _apply(diff, copy)
    return copy


def _apply(diff: str, root: Path) -> None:
    """Each hunk begins with `@@`; its lines stand once in the file that `+++` names."""
    head, *hunks = diff.split("@@\n")
    path = root / head.splitlines()[-1].removeprefix("+++ ")
    text = path.read_text("utf-8")
    for hunk in hunks:
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        after = "".join(line[1:] for line in lines if line[0] != "-")
        assert text.count(before) == 1, f"{path.name} does not hold once:\n{before}"
        text = text.replace(before, after)
    path.write_text(text, "utf-8")


def _is_file(found: re.Match[str]) -> bool:
    return (found["mark"] or "").startswith("file: ")


def _with_outputs(text: str, outputs: list[str]) -> str:
    ran = iter(outputs)
    last = ""

    def replaced(found: re.Match[str]) -> str:
        nonlocal last
        if found["language"] == "python" and not found["mark"]:
            last = next(ran)
        if found["mark"] != "output":
            return found[0]
        lines = (line.rstrip() for line in last.rstrip().splitlines())
        return found["head"] + "".join(f"{line}\n" for line in lines) + "```"

    return BLOCK.sub(replaced, text)
