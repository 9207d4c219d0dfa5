"""The tables of a leader, which followers copy along with its log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from txmq.protocol.bodies import DataVersion, GroupConfigs, TopicConfigs
from txmq.protocol.command import Command
from txmq.protocol.copies import CopiedTables
from txmq.remoting.connection import Connection
from txmq_broker.core.groups import Groups
from txmq_broker.core.offsets import Offsets
from txmq_broker.core.topics import Topics
from txmq_broker.replication.acknowledgements import TableVersions
from txmq_broker.services.slices import rows_in_parts, table_in_parts

__all__ = ["LeaderTables", "ShippedAccounts"]


class ShippedAccounts(Protocol):
    """The accounts of a leader."""

    @property
    def version(self) -> DataVersion:
        """Increases with every change."""
        ...

    def texts(self) -> Mapping[str, str]:
        """The texts of the files."""
        ...

    def check(self, connection: Connection, request: Command, /) -> None:
        """Refuse a follower that may not receive the accounts.

        Raises:
            NoPermission: It may not receive them.
        """
        ...


class LeaderTables:
    """The topics, groups, offsets, floors and accounts of a leader.

    Args:
        floors: Returns the offsets below which queues were emptied, by topic and queue.
    """

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        floors: Callable[[], dict[str, dict[int, int]]],
        accounts: ShippedAccounts,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._floors = floors
        self.accounts = accounts
        self.topic_changes = topics.changes_since
        """Returns the topic changes after a version; ``None`` if they are unknown."""

    def versions(self) -> TableVersions:
        """The versions of the topics, the groups and the accounts."""
        return self._topics.version, self._groups.version, self.accounts.version

    def saved(self) -> CopiedTables:
        """All tables except the accounts."""
        return CopiedTables(
            self._topics.saved(), self._groups.saved(), self._offsets.saved(), self._floors()
        )

    def saved_parts(self) -> Iterator[bytes]:
        """The bytes of :meth:`saved`, in parts; groups may commit offsets between two parts."""
        topics, groups = self._topics.saved(), self._groups.saved()
        group_rows = list(groups.subscription_group_table.items())
        yield b'{"topics":'
        empty = TopicConfigs(topics.data_version)
        yield from table_in_parts(empty, topics.topic_config_table.items())
        yield b',"groups":'
        yield from table_in_parts(GroupConfigs(groups.data_version), group_rows)
        yield b',"offsets":'
        yield from table_in_parts(self._offsets.saved_without_rows(), self._offsets.rows())
        yield b',"floors":'
        yield from rows_in_parts(list(self._floors().items()))
        yield b"}"
