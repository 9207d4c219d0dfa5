"""The filters of subscriptions: tags, or conditions, which are compiled and cached."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple, TypeAlias

from txmq.errors import InternalError, SubscriptionInvalid
from txmq.limits import FILTERS_CHARS_MAX, SUBSCRIPTION_CHARS_MAX
from txmq.protocol import java
from txmq.protocol.bodies import SubscriptionData
from txmq_broker.config import FilterSettings
from txmq_broker.core.filter.condition import Condition
from txmq_broker.core.filter.tokens import invalid_filter

__all__ = ["Filter", "Filters", "TagFilter", "tag_filter"]

_LOW: Final = 0xFFFFFFFF


class TagFilter(NamedTuple):
    """The wanted tags: their hashes for a first check, the words for the final one."""

    hashes: frozenset[int]
    words: frozenset[str]


def tag_filter(expression: str) -> TagFilter | None:
    """The filter of an expression such as ``A || B``, or ``None`` if it wants all messages."""
    text = expression.strip()
    if text in ("", "*"):
        return None
    words = frozenset(word for part in text.split("||") if (word := part.strip()))
    if not words or "*" in words:
        return None
    return TagFilter(frozenset(java.string_hash(word) & _LOW for word in words), words)


Filter: TypeAlias = TagFilter | Condition

NO_SQL: Final = "The broker does not support consumer to filter message by SQL92"
"""RocketMQ's text."""

_HOW_TO: Final = "set filter.sql = true (RocketMQ's enablePropertyFilter) in the broker's settings"


class Filters:
    """A least-recently-used cache of compiled conditions, and of the errors of invalid ones."""

    def __init__(self, settings: FilterSettings, chars_max: int = FILTERS_CHARS_MAX) -> None:
        self.settings = settings
        self._chars_max = chars_max
        self._chars = 0
        self._kept: OrderedDict[str, Condition | str] = OrderedDict()

    def figures(self) -> dict[str, int]:
        """What the broker keeps for clients."""
        return {
            "filters_compiled": len(self._kept),
            "filter_characters_compiled": self._chars,
        }

    def of(self, wanted: SubscriptionData) -> Filter | None:
        """The filter of a subscription, or ``None`` if it wants all messages.

        Raises:
            SubscriptionInvalid: The expression does not parse, or is too long.
            InternalError: It is an SQL92 condition, and this broker's settings disable them.
        """
        size = len(wanted.sub_string)
        if size > SUBSCRIPTION_CHARS_MAX:
            why = f"a filter has at most {SUBSCRIPTION_CHARS_MAX} characters, not {size}"
            raise invalid_filter(SUBSCRIPTION_CHARS_MAX, why)
        if wanted.expression_type in ("", "TAG"):
            return tag_filter(wanted.sub_string)
        if wanted.expression_type != "SQL92":
            raise SubscriptionInvalid("a filter's type must be TAG or SQL92")
        if not self.settings.sql:
            raise InternalError(f"{NO_SQL}; {_HOW_TO}")
        return self._condition(wanted.sub_string)

    def _condition(self, expression: str) -> Condition:
        kept = self._kept.get(expression)
        if kept is None:
            kept = self._kept[expression] = _read(expression)
            self._chars += len(expression)
            while self._chars > self._chars_max and len(self._kept) > 1:
                self._chars -= len(self._kept.popitem(last=False)[0])
        else:
            self._kept.move_to_end(expression)
        if isinstance(kept, str):
            raise SubscriptionInvalid(kept)
        return kept


def _read(expression: str) -> Condition | str:
    try:
        return Condition(expression)
    except SubscriptionInvalid as refused:
        # The error is cached: consumers repeat the pull every second, for each of their queues.
        return refused.remark
