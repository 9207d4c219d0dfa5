"""``txmq cluster drain`` and ``undrain``: whether producers may send to a broker."""

from typing import Annotated

import typer

from txmq.cli.common import NAMES_DEFAULT, AsJson, Names, Yes, ask, confirm
from txmq.cli.output import print_result
from txmq.text import quantity

__all__ = ["drain", "undrain"]

Broker = Annotated[str, typer.Argument(help="The broker.")]


def drain(broker: Broker, *, names: Names = NAMES_DEFAULT, json: AsJson = False) -> None:
    """Make producers send to other brokers, before this one is stopped; consumers still read it.

    All name servers withdraw the write permission of its topics. Producers follow within 30 s by
    default. The broker stays as it is: when it registers a change of any of its topics, all of them
    are writable again, so change and create none until it is stopped.
    """
    changed = ask(names, lambda admin: admin.forbid_writing(broker), changes=True)
    _print(broker, changed, "for reading only", json=json, is_writable=False)


def undrain(
    broker: Broker, *, yes: Yes = False, names: Names = NAMES_DEFAULT, json: AsJson = False
) -> None:
    """Let producers send to a broker again that was drained.

    Name servers do not remember what they withdrew. They now permit reads and writes of all its
    topics, also of topics that had another permission before, until the broker registers a change
    of its topics.
    """
    confirm(f"permit reads and writes of all topics of broker {broker}?", yes=yes)
    changed = ask(names, lambda admin: admin.allow_writing(broker), changes=True)
    _print(broker, changed, "for reading and writing", json=json, is_writable=True)


def _print(
    broker: str, changed: dict[str, int], words: str, *, json: bool, is_writable: bool
) -> None:
    topics = max(changed.values(), default=0)
    text = f"{quantity(topics, 'topic')} of broker {broker}: {words}, at {', '.join(changed)}"
    value = {"broker": broker, "writable": is_writable, "topics": changed}
    print_result(value, text, json=json)
