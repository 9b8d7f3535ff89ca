# SPDX-License-Identifier: Apache-2.0
"""The command line: `python -m thunder_fuser <command>` -> an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thunder_fuser.errors import FuserError, OptionError
from thunder_fuser.versions import __version__

if TYPE_CHECKING:
    import torch

    from thunder_fuser.demo import demo
    from thunder_fuser.explain import machine, script
else:

    class _Late:
        """A module that is imported at its first use, since torch and Thunder take seconds."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._name), name)

    torch = _Late("torch")
    demo = _Late("thunder_fuser.demo.demo")
    machine = _Late("thunder_fuser.explain.machine")
    script = _Late("thunder_fuser.explain.script")

DTYPES = ("f32", "bf16")  # the demo's; here so that it is not imported for them


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns 0 for success, 1 if a check failed, 2 for a wrong command line."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 0
    try:
        text, is_good = parsed.run(parsed)
        if text:
            print(text)
    except FuserError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename or parsed.command}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0 if is_good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m thunder_fuser", description="A fusion compiler for Lightning Thunder."
    )
    parser.add_argument("--version", action="version", version=f"thunder_fuser {__version__}")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    _add_demo(commands)
    _add_cache(commands)
    _add_report(commands)
    env = commands.add_parser("env", help="print versions, compilers, the device and the options")
    env.set_defaults(run=lambda args: _environment())
    return parser


def _environment() -> tuple[str, bool]:
    """What `env` prints; the executor knows what it left alone in Thunder."""
    with suppress(OptionError):  # which `env` names too
        import_module("thunder_fuser.executors.fuser")
    return machine.environment()


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "run two transformer blocks through the fuser, forward and backward"
    parser = commands.add_parser("demo", help=text, description=f"{text.capitalize()}.")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: cuda if there is one, else cpu"
    )
    parser.add_argument("--dtype", choices=(*DTYPES, "both"), default="both")
    parser.add_argument(
        "--emulate", action="store_true", help="run the CUDA source on the CPU, in the emulator"
    )
    parser.add_argument("--small", action="store_true", help="small blocks (the emulator is slow)")
    parser.set_defaults(run=partial(_run_demo, parser))


def _run_demo(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> tuple[str, bool]:
    """Runs the demo on the requested device, by default the best one. Exits if it is missing."""
    has_cuda = torch.cuda.is_available()
    if parsed.device == "cuda" and not has_cuda:
        parser.error("--device cuda: this machine has no CUDA device that torch can use")
    if parsed.device == "cuda" and parsed.emulate:
        parser.error("--emulate runs on the CPU: leave out --device cuda")
    best = "cuda" if has_cuda and not parsed.emulate else "cpu"
    dtypes = DTYPES if parsed.dtype == "both" else (parsed.dtype,)
    device = torch.device(parsed.device or best)
    return "", demo.demo(demo.Demo(device, dtypes, parsed.emulate, parsed.small))


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "run a script and write a page on every function that it jits with the fuser"
    parser = commands.add_parser(
        "report", help=text, description=f"{text.capitalize()}.",
        usage="%(prog)s [-h] [-o FILE] SCRIPT [ARGUMENT ...] [-o FILE]",
    )  # fmt: skip
    parser.add_argument(
        "-o", dest="page", metavar="FILE", help="the page; default: a new report.html"
    )
    parser.add_argument("script", type=Path, help="it runs as `python SCRIPT` does")
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        help="the script's own; -o FILE at their end is not, unless it stands before SCRIPT too",
    )
    parser.set_defaults(run=_run_report)


def _run_report(parsed: argparse.Namespace) -> tuple[str, bool]:
    arguments, page = parsed.arguments, parsed.page
    if page is None and arguments[-2:-1] == ["-o"]:
        arguments, page = arguments[:-2], arguments[-1]
    return script.report_on_script(parsed.script, arguments, Path(page) if page else None)


def _add_cache(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "show, export, import or remove compiled kernels on disk"
    parser = commands.add_parser("cache", help=text, description=f"{text.capitalize()}.")
    parts = parser.add_subparsers(title="commands", metavar="COMMAND")
    parser.set_defaults(run=lambda args: parser.error(f"a command is missing: {_listed(parts)}"))

    def part(name: str, help: str, run: Callable[[argparse.Namespace], str]) -> Any:
        sub = parts.add_parser(name, help=help, description=f"{help.capitalize()}.")
        sub.set_defaults(run=lambda args: (run(args), True))
        return sub

    libraries = "also CPU libraries, which are code that runs in your process"
    part("info", "show the folder and its size", lambda _: machine.info())
    sub = part("list", "a line for each entry", lambda args: machine.listing(args.pattern))
    sub.add_argument("pattern", nargs="?", default="", help="only entries with these characters")
    sub = part("verify", "read every entry; 1 if one is damaged", lambda _: "")
    sub.add_argument("--remove", action="store_true", help="remove what is damaged")
    sub.set_defaults(run=lambda args: machine.verify(remove=args.remove))
    sub = part("prune", "evict least recently used", lambda args: machine.prune(args.megabytes))
    sub.add_argument("megabytes", type=_count, help="what may stay")
    part("clear", "remove every entry", lambda _: machine.clear())
    sub = part("explain", "in which fields an entry differs from the nearest other one",
               lambda args: machine.explain(args.key))  # fmt: skip
    sub.add_argument("key", nargs="?", default="", help="what its key begins with; default: newest")
    for name, help, run in (
        ("export", "write the entries into a new file", lambda: machine.export_to),
        ("import", "add the entries of a file", lambda: machine.import_from),
    ):
        sub = part(name, help, partial(_carry, run))
        sub.add_argument("file", type=Path)
        sub.add_argument("--libraries", action="store_true", help=libraries)


def _listed(parts: Any) -> str:
    """The names of commands, as "info, list or clear"."""
    *names, last = parts.choices
    return f"{', '.join(names)} or {last}"


def _carry(run: Callable[[], Callable[..., str]], parsed: argparse.Namespace) -> str:
    return run()(parsed.file, libraries=parsed.libraries)


def _count(text: str) -> int:
    """A number that is not negative."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"a whole number was expected, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
