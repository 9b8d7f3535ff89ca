# SPDX-License-Identifier: Apache-2.0
"""Every message that a user may read is a golden text, so that changed words show in review.

    raise OptionError("option dump", expected="a folder", got=f"{path} (below {above})")
    ->  options.py  OptionError   option dump: expected a folder, got {path} (below {above})

Errors, warnings and refusals are read from the source. What is computed stands in braces.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from tests.package.test_words import files

MESSAGE = ("Reject", "warn_at", "unknown_name")
OF_FUSER_ERROR = ("expected", "got", "where", "do")
INTERNAL = {"AssertionError", "NotImplementedError", "StopIteration", "AttributeError", "KeyError"}


def called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def is_message(call: ast.Call) -> bool:
    """True for what makes an error, a warning or a refusal with words."""
    name = called(call)
    is_error = name.endswith("Error") and name not in INTERNAL and name[:1].isupper()
    return (is_error or name in MESSAGE) and bool(call.args or call.keywords)


def words(node: ast.expr, known: dict[str, ast.expr], depth: int = 3) -> str:
    """The text of an expression; {expression} for what is computed.

    A name that holds a text stands for that text.
    """
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(words(part, known, depth) for part in parts)
        case ast.FormattedValue(value=value):
            return words(value, known, depth)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return words(left, known, depth) + words(right, known, depth)
        case ast.IfExp(body=first, orelse=second):
            return f"{words(first, known, depth)} | {words(second, known, depth)}"
        case ast.Name(id=name) if depth and name in known:
            return words(known[name], known, depth - 1)
    return f"{{{ast.unparse(node)}}}"


def texts_in(tree: ast.AST) -> dict[str, ast.expr]:
    """{name: the text that is assigned to it}, for names that are assigned once."""
    held: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            held.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else []
            for target, value in zip(node.targets[0].elts, values, strict=False):
                if isinstance(target, ast.Name):
                    held.setdefault(target.id, []).append(value)
    return {name: values[0] for name, values in held.items() if len(values) == 1}


def sentence(call: ast.Call, known: dict[str, ast.expr]) -> str:
    """The message as FuserError puts it together."""
    named = {each.arg: words(each.value, known) for each in call.keywords if each.arg}
    of_warning = called(call) == "warn_at"  # (line, text, class)
    arguments = [call.args[1]] if of_warning else call.args
    text = ", ".join(words(argument, known) for argument in arguments)
    facts = [f"{name} {named[name]}" for name in ("expected", "got") if name in named]
    text += ": " * bool(facts and text) + ", ".join(facts)
    text += f" (at {named.get('where')})" * ("where" in named)
    text += f". To fix it: {named.get('do')}." * ("do" in named)
    others = [f"{name}={value}" for name, value in named.items() if name not in OF_FUSER_ERROR]
    return " ".join(" ".join([text, *others]).split())


def messages() -> Iterator[str]:
    """file  kind  message, in the order of the source."""
    for path, module in files():
        of_module = texts_in(ast.Module(body=[
            node for node in module.body if isinstance(node, ast.Assign)
        ], type_ignores=[]))  # fmt: skip
        yield from _below(module, path.as_posix(), of_module)


def _below(node: ast.AST, path: str, known: dict[str, ast.expr]) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        known = {**known, **texts_in(node)}
    if isinstance(node, ast.Call) and is_message(node):
        text = sentence(node, known)
        if any(map(str.isalpha, text)) and text != "{*args}":
            kind = ast.unparse(node.args[2]) if called(node) == "warn_at" else called(node)
            yield f"{path}  {kind}\n    {text}"
    for child in ast.iter_child_nodes(node):
        yield from _below(child, path, known)


def test_messages(golden: Callable[..., None]) -> None:
    golden("\n".join(dict.fromkeys(messages())) + "\n")


def test_what_a_message_is() -> None:
    tree = ast.parse(
        "def f(path):\n"
        "    got = f'{path}, which is no folder'\n"
        "    raise OptionError('option dump', expected='a folder', got=got, do='make ' + 'it')\n"
        "    raise KeyError(path)\n"
        "    return Reject('not floats' if path else f'{path} is complex')\n"
    )
    assert [*_below(tree, "a.py", {})] == [
        "a.py  OptionError\n    option dump: expected a folder, got {path}, which is no folder."
        " To fix it: make it.",
        "a.py  Reject\n    not floats | {path} is complex",
    ]
