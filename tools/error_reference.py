"""Writes docs/reference/errors.md: each error with its cause, its effect and what to do.

python -m tools.error_reference > docs/reference/errors.md

The cause is the class's docstring, effect and retry are its attributes, and tools/error_advice.toml
says what to do.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path

from tools.plain_text import paragraph
from txmq import errors
from txmq.errors import BrokerRefused, Effect, StoreError, TransportError, TxmqError

ADVICE = Path(__file__).with_name("error_advice.toml")
HEAD = """\
# Errors

<!-- Written by `make docs` from txmq/errors.py and tools/error_advice.toml; change those. -->

Each error of txmq, with its cause, its effect and what to do about it.
All of them are classes of `txmq.errors` below `TxmqError`.
Each class states two facts that programs can use: `retryable` and `effect`.

| `effect` | the failed operation |
|---|---|
| `Effect.NONE` | has changed nothing |
| `Effect.MAYBE` | may have taken effect: repeat it only if a second effect does no harm |
| `Effect.APPLIED` | has taken effect: do not repeat it |

## Response codes

A broker's answer carries a response code. Code 0 is success; each other code is one class:

| code | RocketMQ's name | error |
|---|---|---|
"""
EFFECTS = {
    Effect.NONE: "none; nothing was changed",
    Effect.MAYBE: "in doubt; the operation may have taken effect",
    Effect.APPLIED: "applied; the operation has taken effect",
}
TITLES = {
    BrokerRefused: "Refusals of a broker or a name server",
    StoreError: "The log of a broker",
    TransportError: "Connections",
    TxmqError: "Calls, transactions, guards and reconciliation",
}


def page() -> str:
    """The whole page."""
    advice = tomllib.loads(ADVICE.read_text(encoding="utf-8"))
    refusals = sorted(below(BrokerRefused), key=lambda error: error.code)
    rows = [
        f"| {error.code} | `{advice[error.__name__]['wire']}` | {link(error)} |\n"
        for error in refusals
        if error.code >= 0
    ]
    parts = [HEAD, *rows]
    for base in (TxmqError, TransportError, BrokerRefused, StoreError):
        parts.append(f"\n## {TITLES[base]}\n")
        parts += [section(error, advice[error.__name__]) for error in family(base)]
    return "".join(parts)


def link(error: type[TxmqError]) -> str:
    """A link to the section of an error."""
    return f"[`{error.__name__}`](#{error.__name__.lower()})"


def family(base: type[TxmqError]) -> Iterator[type[TxmqError]]:
    """A class and the classes below it, without those that have a part of their own."""
    yield base
    for error in below(base):
        if error not in TITLES:
            yield from family(error)


def section(error: type[TxmqError], advice: dict[str, str]) -> str:
    """What a reader of one error needs."""
    lines = [f"\n### {error.__name__}\n", f"{paragraph(error)}\n"]
    if below(error):
        lines.append(f"It is the base of {', '.join(map(link, below(error)))}.\n")
        lines.append(f"- **What to do**: {advice['do']}")
        return "\n".join(lines) + "\n"
    if issubclass(error, BrokerRefused) and error.code >= 0:
        lines.append(f"- **Response code**: {error.code}, `{advice['wire']}`")
    retry = "may succeed later" if error.retryable else "fails again until something changes"
    lines.append(f"- **Effect**: {EFFECTS[error.effect]}")
    lines.append(f"- **The same call**: {retry}")
    lines.append(f"- **What to do**: {advice['do']}")
    return "\n".join(lines) + "\n"


def below(error: type[TxmqError]) -> list[type[TxmqError]]:
    """The classes of ``txmq.errors`` directly below another one."""
    return [found for found in error.__subclasses__() if found.__module__ == errors.__name__]


if __name__ == "__main__":
    print(page(), end="")
