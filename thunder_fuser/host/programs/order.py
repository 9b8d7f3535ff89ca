# SPDX-License-Identifier: Apache-2.0
"""Steps of nodes -> nodes with waits and frees in between; and the rules of a sound program.

    [T3_sent = all_gather(T2)], [T4 = ..., kernel_1(T1, T4)], [T5 = ..., kernel_2(T3, T5)]
->  T3_sent = all_gather(T2)
    del T2
    T4 = ..., kernel_1(T1, T4)
    T3 = wait(T3_sent, 'T3')             before the first step that reads it
    del T3_sent
    T5 = ..., kernel_2(T3, T5)
    del T3                               behind the last step that reads it
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from thunder_fuser.errors import VerifyError
from thunder_fuser.host.programs.nodes import Collective, Free, HostNode, Return, View, Wait


def ordered(
    steps: Sequence[Sequence[HostNode]], kept: Collection[str], *, is_early: bool
) -> Iterator[HostNode]:
    """The nodes of all steps, with waits and frees.

    A collective is awaited before the first step that reads what it brings, or that writes into the
    memory it sends; directly behind its own step unless `is_early`. kept: values that are not
    freed.
    """
    reads = [dict.fromkeys(name for node in step for name in node.reads) for step in steps]
    last = {name: number for number, names in enumerate(reads) for name in names}
    under_way: dict[str, Collective] = {}
    for number, step in enumerate(steps):
        overwritten = {node.of for node in step if isinstance(node, View)}
        yield from _awaited(under_way, {
            name for name, post in under_way.items()
            if name in reads[number] or post.operand in overwritten
        })  # fmt: skip
        yield from step
        under_way |= {node.wait.name: node for node in step if isinstance(node, Collective)}
        if not is_early:
            yield from _awaited(under_way, set(under_way))
        dead = [name for name in reads[number] if last[name] == number and name not in kept]
        if dead:
            yield Free(tuple(dead))
    yield from _awaited(under_way, set(under_way))


def _awaited(under_way: dict[str, Collective], names: Collection[str]) -> Iterator[HostNode]:
    """The waits for these names, in the order of their collectives; removes them."""
    for name in [name for name in under_way if name in names]:
        wait = under_way.pop(name).wait
        yield wait
        yield Free((wait.sent,))


def verify(arguments: Sequence[str], nodes: Sequence[HostNode]) -> None:
    """VerifyError names the first node that breaks a rule.

    A node needs only values that exist and are not freed. Each collective has one wait; until then
    nobody reads what it brings, or writes into the memory that it sends. Only the last node
    returns.
    """
    memory = {name: name for name in arguments}  # {value that is alive: whose memory it has}
    sent: dict[str, tuple[Collective, str]] = {}  # with whose memory is sent
    for node in nodes:
        for name in (*node.reads, *node.writes, *node.frees):
            if name not in memory:
                raise broken(node, f"{name} to be alive", "it is not made, or freed before")
        if isinstance(node, Wait):
            if sent.pop(node.sent, None) is None:
                raise broken(node, "one collective before it, awaited once", "none")
        elif early := [name for name in node.reads if name in sent]:
            raise broken(node, f"a wait for {early[0]} first", "a read of what has not arrived")
        for post, operand in sent.values():
            if operand in [memory[name] for name in node.writes]:
                raise broken(node, f"a wait for {post.sent} first", "a write of what it sends")
        memory |= {n: memory[node.of] if isinstance(node, View) else n for n in node.makes}
        if isinstance(node, Collective):
            sent[node.sent] = node, memory[node.operand]
        for name in node.frees:
            del memory[name]
    if sent:
        name, (post, _) = next(iter(sent.items()))
        raise broken(post, f"a wait for {name}", "none")
    _check_return(nodes)


def _check_return(nodes: Sequence[HostNode]) -> None:
    ends = [isinstance(node, Return) for node in nodes]
    if ends.count(True) != 1 or not ends[-1]:
        got = f"{ends.count(True)} of {len(nodes)} nodes"
        raise VerifyError("host program", expected="one return, as the last node", got=got)


def broken(node: HostNode, expected: str, got: str) -> VerifyError:
    """The error for a node that breaks a rule."""
    return VerifyError(f"host program: {node}", expected=expected, got=got)
