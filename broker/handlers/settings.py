"""25, 26: the settings by RocketMQ's names for them; few can be changed while the broker runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec

from broker.config import BrokerSettings
from broker.identity import Identity
from txmq.config import Duration
from txmq.errors import ConfigError, InternalError, NoPermission
from txmq.protocol import java_properties
from txmq.protocol.bodies import DataVersion
from txmq.protocol.codes import Perm, RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.headers import BrokerConfigAnswer
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq.remoting.pool import split_address
from txmq.runtime.clock import Clock

__all__ = ["SettingHandlers"]

log = logging.getLogger(__name__)

_HOUR_S: Final = 3600


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it is true or false")
    return text.lower() == "true"


def _hours_of_day(text: str) -> str:
    if any(not 0 <= int(hour) <= 23 for hour in text.split(";")):
        raise ValueError("it is a list of hours from 0 to 23, separated by ;")
    return text


def _hours(text: str) -> Duration:
    if int(text) <= 0:
        raise ValueError("it is a number of hours")
    return Duration(float(int(text) * _HOUR_S))


def _milliseconds(text: str) -> Duration:
    if int(text) <= 0:
        raise ValueError("it is a number of milliseconds")
    return Duration(int(text) / 1000)


def _percent(text: str) -> float:
    return int(text) / 100


class Changeable(NamedTuple):
    """A setting that can be changed: where it is kept, and how its text is read."""

    group: str
    field: str
    read: Callable[[str], object]


_CHANGEABLE: Final[Mapping[str, Changeable]] = {
    "transactionTimeOut": Changeable("transaction", "timeout", _milliseconds),
    "transactionCheckInterval": Changeable("transaction", "check_interval", _milliseconds),
    "transactionCheckMax": Changeable("transaction", "check_max", int),
    "autoCreateTopicEnable": Changeable("topics", "auto_create", _truth),
    "autoCreateSubscriptionGroup": Changeable("topics", "auto_create_groups", _truth),
    "enablePropertyFilter": Changeable("filter", "sql", _truth),
    "deleteWhen": Changeable("retention", "delete_at", _hours_of_day),
    "fileReservedTime": Changeable("retention", "keep", _hours),
    "diskMaxUsedSpaceRatio": Changeable("retention", "delete_above", _percent),
    "diskSpaceCleanForciblyRatio": Changeable("retention", "force_above", _percent),
    "diskSpaceWarningLevelRatio": Changeable("retention", "refuse_above", _percent),
}


class SettingHandlers:
    """Shows the settings and takes changes, which last until the broker stops."""

    def __init__(
        self,
        identity: Identity,
        names: str,
        settings: BrokerSettings,
        clock: Clock,
        changed: Callable[[BrokerSettings], None],
    ) -> None:
        self._identity = identity
        self._names = names
        self._settings = settings
        self._clock = clock
        self._changed = changed
        self._version = DataVersion(timestamp=clock.wall_ms())

    def table(self) -> dict[int, Handler]:
        """Which request goes where."""
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.change,
            RequestCode.GET_BROKER_CONFIG: self.show,
        }

    def show(self, connection: Connection, request: Command) -> bytes:
        """26: every setting that has a name in RocketMQ."""
        del connection
        version = msgspec.json.encode(self._version).decode()
        body = java_properties.dumps(self._all())
        return answer(request, 0, BrokerConfigAnswer(version), body=body)

    def change(self, connection: Connection, request: Command) -> bytes:
        """25: change settings, all that are given or none."""
        known = {name: _text(value) for name, value in self._all().items()}
        wanted = {
            name: text.strip()
            for name, text in java_properties.loads(request.body).items()
            if known.get(name) != text.strip()
        }
        fixed = sorted(wanted.keys() - _CHANGEABLE.keys())
        if fixed:
            raise NoPermission(
                f"{', '.join(fixed)} cannot be changed while this broker runs; "
                f"these can: {', '.join(_CHANGEABLE)}"
            )
        if wanted:
            settings = _changed(self._settings, wanted)
            self._changed(settings)
            self._settings = settings
            self._version = DataVersion(self._clock.wall_ms(), self._version.counter + 1)
            log.warning("%s changed %s until the next start", connection.address, wanted)
        return answer(request)

    def _all(self) -> dict[str, object]:
        settings, store, topics = self._settings, self._settings.store, self._settings.topics
        retention, transaction = settings.retention, settings.transaction
        host, port = split_address(self._identity.address)
        return {
            "brokerName": settings.name,
            "brokerClusterName": settings.cluster,
            "brokerId": 0,
            "brokerRole": "ASYNC_MASTER",
            "brokerIP1": host,
            "listenPort": port,
            "namesrvAddr": self._names,
            "brokerPermission": int(Perm.READ | Perm.WRITE),
            "autoCreateTopicEnable": topics.auto_create,
            "autoCreateSubscriptionGroup": topics.auto_create_groups,
            "defaultTopicQueueNums": topics.queues,
            "maxMessageSize": int(topics.message_size_max),
            "clusterTopicEnable": True,
            "brokerTopicEnable": True,
            "traceTopicEnable": False,
            "storePathRootDir": settings.data,
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
            "rejectTransactionMessage": False,
            "longPollingEnable": True,
            "enablePropertyFilter": settings.filter.sql,
            "slaveReadEnable": False,
            "storeReplyMessageEnable": False,
            "regionId": "DefaultRegion",
            "traceOn": True,
        }


def _changed(settings: BrokerSettings, wanted: Mapping[str, str]) -> BrokerSettings:
    changes: dict[str, dict[str, Any]] = {}
    for name, text in wanted.items():
        group, field, read = _CHANGEABLE[name]
        try:
            changes.setdefault(group, {})[field] = read(text)
        except ValueError as problem:
            raise InternalError(f"{name} cannot be {text!r}: {problem}") from problem
    groups: dict[str, Any] = {}
    try:
        for group, values in changes.items():
            # Together, as some have to fit each other.
            groups[group] = replace(getattr(settings, group), **values)
    except ConfigError as problem:
        raise InternalError(str(problem)) from problem
    return replace(settings, **groups)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
