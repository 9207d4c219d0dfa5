"""Options of a name server that can change while it runs, under RocketMQ's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from txmq.errors import InternalError, NoPermission
from txmq.protocol import java_properties
from txmq.protocol.headers import camel

__all__ = ["NameOptions", "OptionTable"]

_FORBIDDEN: Final = frozenset(
    {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}
)
"""Options that clients may not change, because they name files to read and write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameOptions:
    """The options and their defaults."""

    order_message_enable: bool = False
    """True if a route includes its topic's entry in the namespace of ordered topics."""

    return_order_topic_config_to_broker: bool = True
    """True if the answer to a registration includes that namespace."""

    enable_all_topic_list: bool = True
    """True if clients may list the names of all topics."""


_NAMES: Final = {camel(option.name): option.name for option in fields(NameOptions)}
_TRUTHS: Final = {"true": True, "false": False}


class OptionTable:
    """The current options, and read-only facts that are shown with them."""

    def __init__(
        self,
        options: NameOptions,
        save: Callable[[bytes], None],
        data: bytes | None = None,
    ) -> None:
        """Start from the given options, overridden by the saved ones.

        Raises:
            InternalError: A saved value is invalid.
            RemoteProtocolError: The saved data is not a properties text.
        """
        self._save = save
        self.current = options
        self.facts: dict[str, object] = {}
        if data is not None:
            self.current = replace(options, **_read(java_properties.loads(data)))

    def text(self) -> bytes:
        """Options and facts as a properties text."""
        return java_properties.dumps({**self._named(), **self.facts})

    def update(self, text: bytes) -> None:
        """Change options: all of them, or none after an error.

        Raises:
            NoPermission: Clients may not change one of them.
            InternalError: One of them is unknown, or its value is invalid.
            RemoteProtocolError: It is not a properties text.
        """
        wanted = java_properties.loads(text)
        for name in wanted:
            if name in _FORBIDDEN or name in self.facts:
                raise NoPermission(f"Can not update config in black list: {name}")
        changed = replace(self.current, **_read(wanted))
        self._save(java_properties.dumps(self._named(changed)))
        self.current = changed

    def _named(self, options: NameOptions | None = None) -> dict[str, object]:
        shown = options or self.current
        return {theirs: getattr(shown, ours) for theirs, ours in _NAMES.items()}


def _read(wanted: Mapping[str, str]) -> dict[str, bool]:
    values: dict[str, bool] = {}
    for name, value in wanted.items():
        if name not in _NAMES:
            # RocketMQ ignores it; then the client would believe in a change.
            raise InternalError(f"this name server has no option {name}")
        truth = _TRUTHS.get(value.strip().lower())
        if truth is None:
            raise InternalError(f"{name} must be true or false, not {value}")
        values[_NAMES[name]] = truth
    return values
