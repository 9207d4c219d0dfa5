"""200, 201, 207, 225, 352, and 7724 of txmq: create, change, list and delete consumer groups, and
let a group skip damaged messages.
"""

from __future__ import annotations

import logging
from typing import Final

from txmq.errors import GroupNotFound, IllegalOperation, InternalError, InvalidParameter
from txmq.protocol.bodies import GroupConfig, GroupConfigList, GroupConfigs
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.headers import DeleteGroup, NamedGroup
from txmq.protocol.operations import SkipDamaged
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq_broker.core.fetch import FetchOutcome, fetch
from txmq_broker.parts import Parts, ReadParts
from txmq_broker.services.slices import LongAnswers, Steps, table_answer

__all__ = ["GroupHandlers", "GroupReads"]

log: Final = logging.getLogger(__name__)


class GroupReads:
    """Lists consumer groups and shows their settings."""

    def __init__(self, parts: ReadParts) -> None:
        self._groups = parts.groups
        self._long = LongAnswers(parts.clock)

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return {
            code: self._long.handler(code, self.all, lambda: len(self._groups)),
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.one,
        }

    def all(self, request: Command) -> Steps:
        """201: all groups' settings."""
        saved = self._groups.saved()
        empty = GroupConfigs(data_version=saved.data_version)
        table = dict(saved.subscription_group_table)
        return (yield from table_answer(request, empty, table.items()))

    def one(self, _: Connection, request: Command) -> bytes:
        """352: one group's settings."""
        name = request.read(NamedGroup).group
        if name is None:
            raise InternalError("the request names no group")
        found = self._groups.find(name)
        if found is None:
            raise GroupNotFound(f"subscription group [{name}] does not exist")
        return answer(request, body=found.write())


class GroupHandlers(GroupReads):
    """Administration of consumer groups. A change is saved before it is confirmed."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._topics = parts.topics
        self._store = parts.store
        self._offsets = parts.offsets
        self._statistics = parts.statistics
        self._clock = parts.clock
        self._groups_changed = parts.groups_changed

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return super().table() | {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.put_all,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.SKIP_DAMAGED: self.skip_damaged,
        }

    def put(self, _: Connection, request: Command) -> bytes:
        """200: create or change a group."""
        self._groups.put(GroupConfig.read(request.body), self._clock.wall_ms())
        self._groups_changed()
        return answer(request)

    def put_all(self, _: Connection, request: Command) -> bytes:
        """225: create or change several groups; if one is invalid, none is changed."""
        configs = GroupConfigList.read(request.body).group_config_list
        for config in configs:
            self._groups.check(config)
        for config in configs:
            self._groups.put(config, self._clock.wall_ms())
        self._groups_changed()
        return answer(request)

    def delete(self, _: Connection, request: Command) -> bytes:
        """207: delete a group, and its offsets if requested; a repetition is not an error."""
        header = request.read(DeleteGroup)
        self._groups.remove(header.group_name, self._clock.wall_ms())
        self._statistics.forget_group(header.group_name)
        if header.remove_offset or header.clean_offset:
            self._offsets.forget_group(header.group_name)
        self._groups_changed()
        return answer(request)

    def skip_damaged(self, _: Connection, request: Command) -> bytes:
        """7724: an operator lets a group skip damaged messages; the audit log keeps the reason."""
        header = request.read(SkipDamaged)
        name, first, last = header.consumer_group, header.offset, header.through
        if not header.operator.strip() or not header.reason.strip():
            raise InvalidParameter("operator and reason must not be empty")
        if self._groups.find(name) is None:
            raise GroupNotFound(f"the group {name} does not exist")
        topic = self._topics.get(header.topic)
        if not 0 <= header.queue_id < len(topic.queues):
            raise InvalidParameter(f"topic {topic.name} has no queue {header.queue_id}")
        queue = topic.queues[header.queue_id]
        where = f"{topic.name}/{queue.number}"
        if not queue.min_offset <= first <= last < queue.max_offset:
            raise InvalidParameter(
                f"{where} has the messages {queue.min_offset} to {queue.max_offset - 1}, "
                f"not all of {first} to {last}"
            )
        if fetch(self._store, queue, first, 1).outcome is not FetchOutcome.DAMAGED:
            raise IllegalOperation(
                f"message {first} of {where} is not damaged; to move a group past whole messages: "
                f"txmq group reset {name} {topic.name} --to TIME"
            )
        self._offsets.skip_damaged(name, topic.name, queue.number, first, last)
        self._groups_changed()
        log.warning(
            "group %s skips what is damaged in the messages %d to %d of %s, by %s: %s",
            *(name, first, last, where, header.operator, header.reason),
        )
        return answer(request)
