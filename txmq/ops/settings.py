"""The rows of ``txmq broker config get``, and of the console's page about settings."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from txmq.client import Admin
from txmq.errors import RequestNotSupported
from txmq.settings.description import describe

__all__ = ["SOURCES", "setting_rows", "setting_texts"]

SOURCES: Final = {
    "default": "default",
    "start": "set at the start",
    "change": "changed since the start",
    "": "",
}
"""What the sources of :func:`setting_rows` mean."""


async def setting_rows(admin: Admin, broker: str) -> list[dict[str, Any]]:
    """The settings of a broker by name.

    Brokers of Apache RocketMQ name neither defaults nor sources; these fields are then ``None``
    or empty.

    Raises:
        ConfigError: The broker is unknown.
        TransportError: A name server or the broker does not answer.
        BrokerRefused: The broker refuses.
    """
    try:
        settings = await admin.broker_settings(broker)
    except RequestNotSupported:
        found = await admin.broker_config(broker)
        unknown = {"key": "", "default": None, "source": "", "can_change": None}
        return [
            {"broker": broker, "setting": name, "value": value, **unknown}
            for name, value in sorted(found.items())
        ]
    return [
        {
            "broker": broker,
            "setting": entry.name,
            "value": entry.value,
            "key": entry.key,
            "default": entry.default,
            "source": entry.source,
            "can_change": entry.can_change,
        }
        for entry in sorted(settings, key=lambda entry: entry.name)
    ]


@cache
def setting_texts() -> dict[str, str]:
    """What each setting of a txmq broker does, by its key; empty without the broker's package."""
    try:
        from txmq_broker.config import BrokerSettings
    except ImportError:
        return {}
    return {
        setting.key: " ".join(setting.text.replace("``", "").split())
        for setting in describe(BrokerSettings)
    }
