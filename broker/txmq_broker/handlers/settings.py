"""25, 26, and 7723 of txmq: the settings under RocketMQ's names; some can change at runtime."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from txmq.errors import ConfigError, InternalError, NoPermission
from txmq.protocol import java
from txmq.protocol.bodies import DataVersion
from txmq.protocol.codes import Perm, RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.headers import BrokerConfigAnswer
from txmq.protocol.operations import SettingEntry, SettingsView
from txmq.protocol.topics import TRACES
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq.remoting.pool import split_address
from txmq.security.tls import load_tls
from txmq.settings.loading import Alias, OneValue, Unused, kinds_of, rebuild
from txmq.settings.values import convert
from txmq_broker.config import BrokerSettings
from txmq_broker.core.rocketmq_settings import NAMES, milliseconds, percent
from txmq_broker.parts import Parts

__all__ = ["SettingHandlers"]

log = logging.getLogger(__name__)

_HOUR_S: Final = 3600

NAME_CHARS_SHOWN: Final = 100
"""How many characters of an unknown name a refusal shows."""


def _alias(name: str) -> Alias:
    meaning = NAMES[name]
    assert isinstance(meaning, Alias)
    return meaning


_CHANGEABLE: Final[Mapping[str, Alias]] = {
    **{
        name: _alias(name)
        for name in (
            "autoCreateTopicEnable",
            "autoCreateSubscriptionGroup",
            "enablePropertyFilter",
            "deleteWhen",
            "fileReservedTime",
            "diskSpaceCleanForciblyRatio",
            "diskSpaceWarningLevelRatio",
            "longPollingEnable",
            "shortPollingTimeMills",
            "timerMaxDelaySec",
            "transactionCheckMax",
        )
    },
    # Tools write RocketMQ's format: no units, and no rounding.
    "transactionTimeOut": Alias("transaction.timeout", milliseconds),
    "transactionCheckInterval": Alias("transaction.check_interval", milliseconds),
    "diskMaxUsedSpaceRatio": Alias("retention.delete_above", percent),
}


_OF_MACHINE: Final = frozenset(("brokerIP1", "listenPort", "namesrvAddr", "useTLS"))
"""Settings whose values the broker determines when it starts."""


class SettingHandlers:
    """Serves the settings and applies changes, which last until the broker stops."""

    def __init__(self, parts: Parts) -> None:
        self._identity = parts.identity
        self._names = parts.names
        self._started_with = self._settings = parts.settings
        self._clock = parts.clock
        self._changed = parts.settings_changed
        self._uses_tls = bool(parts.settings.names) and load_tls() is not None
        """Whether connections to name servers elsewhere use TLS."""
        self._version = DataVersion(timestamp=parts.clock.wall_ms())

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.change,
            RequestCode.GET_BROKER_CONFIG: self.show,
            RequestCode.SHOW_SETTINGS: self.show_sources,
        }

    def show(self, _: Connection, request: Command) -> bytes:
        """26: all settings that have a name in RocketMQ."""
        version = msgspec.json.encode(self._version).decode()
        body = java.dumps(self._all())
        return answer(request, 0, BrokerConfigAnswer(version), body=body)

    def show_sources(self, _: Connection, request: Command) -> bytes:
        """7723: the settings that 26 shows, with their defaults and the sources of their values."""
        values, started = self._all(), self._all(self._started_with)
        defaults = self._all(BrokerSettings())
        entries: list[SettingEntry] = []
        for name, value in values.items():
            source = "start" if value == started[name] else "change"
            if source == "start" and value == defaults[name] and name not in _OF_MACHINE:
                source = "default"
            meaning = _CHANGEABLE.get(name) or NAMES.get(name)
            key = meaning.key if isinstance(meaning, Alias) else ""
            entries.append(
                SettingEntry(
                    name=name,
                    value=_text(value),
                    key=key,
                    default=None if name in _OF_MACHINE else _text(defaults[name]),
                    source=source,
                    can_change=name in _CHANGEABLE,
                )
            )
        return answer(request, body=SettingsView(entries).write())

    def change(self, connection: Connection, request: Command) -> bytes:
        """25: change settings; if one is refused, none is changed."""
        known = {name: _text(value) for name, value in self._all().items()}
        wanted = {
            name: text.strip()
            for name, text in java.loads(request.body).items()
            if known.get(name) != text.strip()
        }
        refusals = [
            refusal
            for name, text in sorted(wanted.items())
            if name not in _CHANGEABLE and (refusal := _refusal(name, text))
        ]
        if refusals:
            raise NoPermission(
                f"nothing was changed: {'; '.join(refusals)}. "
                f"These can be changed: {', '.join(sorted(_CHANGEABLE))}"
            )
        if wanted:
            settings = _changed(self._settings, wanted)
            self._changed(settings)
            self._settings = settings
            self._version = DataVersion(self._clock.wall_ms(), self._version.counter + 1)
            log.warning("%s changed %s until the next start", connection.address, wanted)
        return answer(request)

    def _all(self, given: BrokerSettings | None = None) -> dict[str, object]:
        settings = given or self._settings
        store, topics = settings.store, settings.topics
        retention, transaction = settings.retention, settings.transaction
        host, port = split_address(self._identity.address)
        return {
            "brokerName": settings.name,
            "brokerClusterName": settings.cluster,
            "brokerId": 0,
            "brokerRole": "SYNC_MASTER" if settings.replication.is_sync else "ASYNC_MASTER",
            "brokerIP1": host,
            "listenPort": port,
            "namesrvAddr": self._names(),
            "brokerPermission": int(Perm.READ | Perm.WRITE),
            "autoCreateTopicEnable": topics.auto_create,
            "autoCreateSubscriptionGroup": topics.auto_create_groups,
            "defaultTopicQueueNums": topics.queues,
            "maxMessageSize": int(topics.message_size_max),
            "clusterTopicEnable": True,
            "brokerTopicEnable": True,
            "traceTopicEnable": topics.traces,
            "msgTraceTopicName": TRACES,
            "aclEnable": bool(settings.acl),
            "storePathRootDir": settings.data,
            "storePathCommitLog": f"{settings.data}/log",
            "flushDiskType": "SYNC_FLUSH" if store.flush == "sync" else "ASYNC_FLUSH",
            "flushIntervalCommitLog": int(store.flush_interval * 1000),
            "mappedFileSizeCommitLog": int(store.segment_size),
            "deleteWhen": retention.delete_at,
            "fileReservedTime": int(retention.keep // _HOUR_S),
            "diskMaxUsedSpaceRatio": round(retention.delete_above * 100),
            "diskSpaceCleanForciblyRatio": round(retention.force_above * 100),
            "diskSpaceWarningLevelRatio": round(retention.refuse_above * 100),
            "transactionTimeOut": int(transaction.timeout * 1000),
            "transactionCheckInterval": int(transaction.check_interval * 1000),
            "transactionCheckMax": transaction.check_max,
            "rejectTransactionMessage": transaction.pending_max == 0,
            "messageDelayLevel": settings.delay.levels,
            "timerMaxDelaySec": int(settings.delay.longest),
            "longPollingEnable": settings.long_polling,
            "shortPollingTimeMills": int(settings.short_polling * 1000),
            "enablePropertyFilter": settings.filter.sql,
            "slaveReadEnable": settings.replication.reads,
            "filterServerNums": 0,
            "useTLS": self._uses_tls,
            "storeReplyMessageEnable": False,
            "regionId": "DefaultRegion",
            "traceOn": True,
        }


def _refusal(name: str, text: str) -> str | None:
    meaning = NAMES.get(name)
    if isinstance(meaning, OneValue):
        if text.lower() == meaning.value.lower():
            return None
        return f"{name} accepts only {meaning.value or 'an empty value'}: {meaning.why}"
    if isinstance(meaning, Unused):
        return f"{name} has no meaning here: {meaning.why}"
    if meaning is None:
        return f"{name[:NAME_CHARS_SHOWN]!r} is unknown"
    return f"{name} cannot be changed while this broker runs"


def _changed(settings: BrokerSettings, wanted: Mapping[str, str]) -> BrokerSettings:
    kinds = kinds_of(BrokerSettings)
    values: dict[str, object] = {}
    for name, text in wanted.items():
        if name not in _CHANGEABLE:
            continue
        key, reads, _ = _CHANGEABLE[name]
        try:
            values[key] = convert(kinds[key], reads(text))
        except ValueError as error:
            raise InternalError(f"{name} cannot be {text!r}; it takes {error}") from error
    try:
        # All at once, because some values depend on each other.
        return rebuild(settings, values)
    except ConfigError as error:
        raise InternalError(str(error)) from error


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
