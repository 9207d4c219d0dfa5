"""The messages between a supervisor and the process of a broker."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from txmq.protocol.bodies import TopicConfigs
from txmq.protocol.headers import BrokerRegistration
from txmq_broker.config import BrokerSettings

__all__ = [
    "BEAT_S",
    "DECODE_NOTICE",
    "BrokerNotice",
    "BrokerProcessPlan",
    "BrokerReport",
    "HeartbeatNotice",
    "OpenedNotice",
    "RegistrationNotice",
    "UnregistrationNotice",
]

BEAT_S: Final = 1.0
"""The interval of the heartbeats that the process of a broker sends."""


class BrokerProcessPlan(msgspec.Struct, frozen=True):
    """The plan that a supervisor sends to the process of a broker."""

    settings: BrokerSettings
    accept_loss: str | None
    """Why the broker should start although a part of its log is missing."""
    has_names: bool
    """Whether the supervisor is the name server."""
    has_pages: bool
    """Whether the supervisor asks for metrics."""
    drain_s: float
    """How long the broker may drain before it is killed."""
    log_form: Literal["text", "json"]
    log_level: Literal["debug", "info", "warning", "error"]


class OpenedNotice(msgspec.Struct, tag="opened", frozen=True):
    """The broker has opened its port."""

    address: str


class RegistrationNotice(msgspec.Struct, tag="registration", frozen=True):
    """A part of the topics of a broker; the last part completes the registration."""

    broker: BrokerRegistration
    topics: TopicConfigs
    is_last: bool


class UnregistrationNotice(msgspec.Struct, tag="unregistration", frozen=True):
    """The broker takes no more requests."""


class HeartbeatNotice(msgspec.Struct, tag="heartbeat", frozen=True):
    """A heartbeat of the broker's process."""

    objection: str
    """Why a send would not be acknowledged now; empty if it would."""


BrokerNotice: TypeAlias = OpenedNotice | RegistrationNotice | UnregistrationNotice | HeartbeatNotice
"""What the process of a broker sends to its supervisor."""

DECODE_NOTICE: Final[msgspec.json.Decoder[BrokerNotice]] = msgspec.json.Decoder(BrokerNotice)


class BrokerReport(msgspec.Struct):
    """The pages of a broker for monitoring programs."""

    metrics: str
    info: dict[str, Any]
