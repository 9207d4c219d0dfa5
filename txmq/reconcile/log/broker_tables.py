"""The tables that a broker saves beside its log, and the names that its flows need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from txmq.config import did_you_mean
from txmq.errors import ReconcileRefused, RemoteProtocolError
from txmq.protocol.bodies import Body, ConsumerOffsets, GroupConfigs, TopicConfigs
from txmq.protocol.checked_body import unpack
from txmq.protocol.topics import RETRY
from txmq.reconcile.log.log_rows import GroupOffset
from txmq.reconcile.rules import Flow

__all__ = ["BrokerTables", "check_known", "check_names", "read_tables"]

_Body = TypeVar("_Body", bound=Body)


class BrokerTables(NamedTuple):
    """The tables of a broker, as it last saved them."""

    offsets: list[GroupOffset]
    topics: frozenset[str] | None
    """``None`` if the directory, perhaps a copy, does not have them; also of groups."""
    groups: frozenset[str] | None


def read_tables(broker: Path) -> BrokerTables:
    """The tables in a broker's directory.

    Raises:
        ReconcileRefused: A file cannot be read.
    """
    folder = broker / "config"
    saved = _read(folder / "offsets.json", ConsumerOffsets) or ConsumerOffsets()
    topics = _read(folder / "topics.json", TopicConfigs)
    groups = _read(folder / "groups.json", GroupConfigs)
    offsets = []
    for name, queues in saved.offset_table.items():
        topic, _, group = name.partition("@")
        offsets += [GroupOffset(group, topic, queue, offset) for queue, offset in queues.items()]
    return BrokerTables(
        sorted(offsets),
        None if topics is None else frozenset(topics.topic_config_table),
        None if groups is None else frozenset(groups.subscription_group_table),
    )


def _read(path: Path, kind: type[_Body]) -> _Body | None:
    try:
        return kind.read(unpack(path.name, path.read_bytes()).text)
    except FileNotFoundError:
        return None
    except (OSError, RemoteProtocolError) as error:
        raise ReconcileRefused(f"{path} cannot be read: {error}") from error


def check_names(flows: Iterable[Flow], brokers: Sequence[BrokerTables]) -> None:
    """Check that at least one broker knows the topic and the group of each flow.

    Raises:
        ReconcileRefused: A name is unknown; the message suggests the nearest one.
    """
    flows, topics, groups = list(flows), set[str](), set[str]()
    for broker in brokers:
        if broker.topics is None or broker.groups is None:
            return
        topics |= broker.topics
        groups |= broker.groups | {offset.group for offset in broker.offsets}
    groups |= {topic.removeprefix(RETRY) for topic in topics if topic.startswith(RETRY)}
    remedy = "correct it in log.flow, or create it"
    check_known("log", "topic", [flow.topic for flow in flows], topics, remedy)
    check_known("log", "group", [flow.group for flow in flows if flow.group], groups, remedy)


def check_known(
    where: str, what: str, wanted: Iterable[str], known: Iterable[str], remedy: str
) -> None:
    """Check that names exist.

    Args:
        where: The place that should have them.
        what: The kind of name.
        wanted: The names.
        known: All names there.
        remedy: What to do otherwise.

    Raises:
        ReconcileRefused: A name does not exist.
    """
    known = set(known)
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ReconcileRefused(f"the {where} has no {what} {name!r}{hint}; {remedy}")
