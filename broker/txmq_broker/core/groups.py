"""The settings of consumer groups. :mod:`clients` has their connected members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from txmq.errors import GroupNotFound, InternalError, NoPermission, ServiceUnavailable
from txmq.limits import (
    GROUPS_MAX,
    MADE_GROUPS_MAX,
    MADE_PER_SECOND_MAX,
    MADE_TOGETHER_MAX,
)
from txmq.protocol.bodies import DataVersion, GroupConfig, GroupConfigs
from txmq_broker.config import TopicDefaults
from txmq_broker.core.admission import RateLimit
from txmq_broker.core.clients import check_consumer_group
from txmq_broker.core.topics import QUEUES_MAX

__all__ = ["Groups"]

SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"
BUILT_IN: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)


class Groups:
    """All consumer groups of this broker."""

    def __init__(self, defaults: TopicDefaults) -> None:
        self.defaults = defaults
        self._groups: dict[str, GroupConfig] = {}
        self.version = DataVersion()
        self.unsaved = False
        self._creations = RateLimit(MADE_PER_SECOND_MAX, MADE_TOGETHER_MAX)
        self.refused = 0
        """How often a client could not create a group because of a limit."""

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[GroupConfig]:
        return iter(self._groups.values())

    def load(self, saved: GroupConfigs) -> None:
        """Load the saved groups and add the built-in ones."""
        self.version = saved.data_version
        self._groups = dict(saved.subscription_group_table)
        for name in BUILT_IN:
            self._groups.setdefault(name, GroupConfig(name))

    def figures(self) -> dict[str, int]:
        """What the broker keeps for clients, and what it refused them since the start."""
        return {
            "groups": len(self._groups),
            "groups_refused": self.refused,
        }

    def saved(self) -> GroupConfigs:
        """All groups in the form that is saved."""
        return GroupConfigs(data_version=self.version, subscription_group_table=self._groups)

    def find(self, name: str) -> GroupConfig | None:
        """A group's settings, or ``None``."""
        return self._groups.get(name)

    def get(self, name: str, now_ms: int) -> GroupConfig:
        """A group's settings; creates the group if that is allowed.

        Raises:
            GroupNotFound: The group does not exist and may not be created by use.
            NoPermission: The limit of groups that clients create is reached.
            ServiceUnavailable: Clients create groups too fast.
        """
        found = self._groups.get(name)
        if found is not None:
            return found
        if not self.defaults.auto_create_groups and not name.startswith(SYSTEM_PREFIX):
            raise GroupNotFound(f"subscription group [{name}] does not exist, apply first please!")
        check_consumer_group(name)
        try:
            self._admit(name, now_ms)
        except (NoPermission, ServiceUnavailable):
            self.refused += 1
            raise
        return self.put(GroupConfig(name), now_ms)

    def _admit(self, name: str, now_ms: int) -> None:
        if len(self._groups) >= MADE_GROUPS_MAX:
            raise NoPermission(
                f"this broker has {len(self._groups)} groups, and clients create none beyond "
                f"{MADE_GROUPS_MAX}; {name} was not created; delete groups, or create this one "
                "as an operator"
            )
        if not self._creations.take(1, now_ms / 1000):
            raise ServiceUnavailable(
                f"clients create more than {MADE_PER_SECOND_MAX} groups a second; {name} was "
                "not created; try again later, or create it as an operator"
            )

    def check(self, config: GroupConfig) -> None:
        """Refuse invalid settings.

        Raises:
            InternalError: The name is illegal, or there are too many retry queues.
        """
        check_consumer_group(config.group_name)
        if config.retry_queue_nums > QUEUES_MAX:
            raise InternalError(f"a group has at most {QUEUES_MAX} retry queues")

    def put(self, config: GroupConfig, now_ms: int) -> GroupConfig:
        """Create or change a group.

        Raises:
            InternalError: The settings are invalid.
            NoPermission: The limit of groups is reached.
        """
        self.check(config)
        if config.group_name not in self._groups and len(self._groups) >= GROUPS_MAX:
            self.refused += 1
            raise NoPermission(
                f"this broker has {len(self._groups)} groups, and {GROUPS_MAX} is the limit; "
                f"{config.group_name} was not created; delete other groups first"
            )
        self._groups[config.group_name] = config
        self._changed(now_ms)
        return config

    def remove(self, name: str, now_ms: int) -> bool:
        """Delete a group; returns whether it existed."""
        if self._groups.pop(name, None) is None:
            return False
        self._changed(now_ms)
        return True

    def _changed(self, now_ms: int) -> None:
        self.version = DataVersion(timestamp=now_ms, counter=self.version.counter + 1)
        self.unsaved = True
