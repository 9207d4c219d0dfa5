"""A change of a topic's settings that hides no message."""

from __future__ import annotations

from shlex import quote
from typing import Final, NamedTuple

from msgspec.structs import replace

from txmq.client import Admin, QueueStatus
from txmq.errors import IllegalOperation
from txmq.message import Queue
from txmq.protocol.bodies import TopicConfig
from txmq.text import quantity

__all__ = ["PlannedSettings", "TopicChange"]

NAMED_MAX: Final = 5
"""Queues and groups that one sentence names; it counts the others."""


class PlannedSettings(NamedTuple):
    """The settings of a topic at a broker, now and after a change."""

    before: TopicConfig
    after: TopicConfig


class TopicChange(NamedTuple):
    """The settings to change; those that are ``None`` stay."""

    topic: str
    queues: int | None
    perm: int | None
    order: bool | None
    broker: str | None
    may_shrink: bool

    @property
    def command(self) -> str:
        """The command that removes the queues, or goes on with it."""
        only = f" --broker {quote(self.broker)}" if self.broker is not None else ""
        return f"txmq topic update {quote(self.topic)} --queues {self.queues}{only} --shrink"

    async def make(self, admin: Admin) -> dict[str, TopicConfig]:
        """Make the change, or its first step; returns the settings in force now, by broker.

        Fewer queues take RocketMQ's two steps. The first lowers the number of queues to write. The
        second lowers the number of queues to read, once all groups have consumed the others.

        Raises:
            TopicNotFound: No broker has the topic, or the named broker does not.
            IllegalOperation: Messages would be hidden.
            TransportError: A broker does not answer; others may have made the change.
            BrokerRefused: A broker refuses; others may have made the change.
        """
        planned = await self.plan(admin)
        wanted = {at: change.after for at, change in planned.items()}
        await admin.update_topic(self.topic, wanted)
        return wanted

    async def plan(self, admin: Admin) -> dict[str, PlannedSettings]:
        """What :meth:`make` would change, by broker.

        Raises:
            TxmqError: As for :meth:`make`.
        """
        known = await admin.topic_config(self.topic, broker=self.broker)
        wanted = {at: self._change(config) for at, config in known.items()}
        if self.queues is not None:
            wanted = await self._set_queue_count(admin, wanted, self.queues)
        return {at: PlannedSettings(known[at], config) for at, config in wanted.items()}

    def _change(self, config: TopicConfig) -> TopicConfig:
        if self.perm is not None:
            config = replace(config, perm=int(self.perm))
        return config if self.order is None else replace(config, order=self.order)

    async def _set_queue_count(
        self, admin: Admin, configs: dict[str, TopicConfig], queues: int
    ) -> dict[str, TopicConfig]:
        shrinking = {
            at: config
            for at, config in configs.items()
            if max(config.read_queue_nums, config.write_queue_nums) > queues
        }
        if shrinking and not self.may_shrink:
            raise IllegalOperation(
                f"topic {self.topic!r} has more than {quantity(queues, 'queue')} at "
                f"{', '.join(shrinking)}. {await self._hidden(admin, shrinking)} "
                f"Shrink it in two safe steps with: {self.command}"
            )
        is_closing = any(config.write_queue_nums > queues for config in shrinking.values())
        if shrinking and not is_closing:
            await self._check_drained(admin, shrinking)
        return {
            at: replace(
                config,
                write_queue_nums=queues,
                read_queue_nums=config.read_queue_nums
                if is_closing and at in shrinking
                else queues,
            )
            for at, config in configs.items()
        }

    async def _check_drained(self, admin: Admin, configs: dict[str, TopicConfig]) -> None:
        left = await self._left(admin, configs)
        if left.lags:
            raise IllegalOperation(
                f"topic {self.topic!r} keeps its queues to read. {_sentence_of(left)} "
                f"When they are consumed, run again: {self.command}"
            )

    async def _hidden(self, admin: Admin, configs: dict[str, TopicConfig]) -> str:
        left = await self._left(admin, configs)
        if not left.stored:
            return "The others are empty."
        return f"The others would be hidden. {_sentence_of(left)}"

    async def _left(self, admin: Admin, configs: dict[str, TopicConfig]) -> _Remaining:
        assert self.queues is not None, "only a change of the number of queues comes here"
        stored = {
            found.queue: found
            for found in await admin.topic_status(self.topic)
            if found.queue.broker in configs
            and found.queue.number >= self.queues
            and found.max_offset > found.min_offset
        }
        lags: dict[str, int] = {}
        groups = await admin.topic_groups(self.topic) if stored else []
        for group in groups:
            lag = 0
            for queue, found in stored.items():
                offset = await admin.committed_offset(group, queue)
                lag += found.max_offset - max(offset or 0, found.min_offset)
            if lag > 0:
                lags[group] = lag
        if stored and not groups:
            lags[""] = sum(found.max_offset - found.min_offset for found in stored.values())
        return _Remaining(stored, lags)


class _Remaining(NamedTuple):
    """The messages in the queues to remove."""

    stored: dict[Queue, QueueStatus]
    lags: dict[str, int]
    """Messages not consumed yet, by group; under the name "" if no group consumes them."""


def _sentence_of(left: _Remaining) -> str:
    counts = {
        f"{queue.broker}:{queue.number}": found.max_offset - found.min_offset
        for queue, found in left.stored.items()
    }
    text = (
        f"{quantity(sum(counts.values()), 'message is', 'messages are')} "
        f"in {quantity(len(counts), 'queue')}: "
        f"{_few([f'{count} in {queue}' for queue, count in counts.items()])}."
    )
    if "" in left.lags:
        return f"{text} No group has consumed them."
    if left.lags:
        behind = [f"{count} by group {group!r}" for group, count in left.lags.items()]
        return f"{text} Not yet consumed: {_few(behind)}."
    return f"{text} All groups have consumed them."


def _few(texts: list[str]) -> str:
    more = [f"{len(texts) - NAMED_MAX} more"] if len(texts) > NAMED_MAX else []
    return ", ".join(texts[:NAMED_MAX] + more)
