"""What a name server can be told while it runs, under upstream's names."""

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
"""Names that nobody may change from afar: they say which files are read and written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameOptions:
    """The options and their defaults."""

    order_message_enable: bool = False
    """Whether a route tells what is kept for its topic in the namespace of ordered topics."""

    return_order_topic_config_to_broker: bool = True
    """Whether a broker that registers is told everything in that namespace."""

    enable_all_topic_list: bool = True
    """Whether anybody may ask for the names of all topics."""


_NAMES: Final = {camel(option.name): option.name for option in fields(NameOptions)}
_TRUTHS: Final = {"true": True, "false": False}


class OptionTable:
    """The options in force, next to facts that are shown with them but cannot be changed."""

    def __init__(
        self,
        options: NameOptions,
        save: Callable[[bytes], None],
        data: bytes | None = None,
    ) -> None:
        """Start from the options given, changed by those that were saved.

        Raises:
            InternalError: What was saved has a value no option can have.
            RemoteProtocolError: What was saved is no properties text.
        """
        self._save = save
        self.current = options
        self.facts: dict[str, object] = {}
        if data is not None:
            self.current = replace(options, **_read(java_properties.loads(data)))

    def text(self) -> bytes:
        """All of it as properties text."""
        return java_properties.dumps({**self._named(), **self.facts})

    def update(self, text: bytes) -> None:
        """Change options, all of those named or none.

        Raises:
            NoPermission: One of them cannot be changed from afar.
            InternalError: One of them is unknown, or its value is none it can have.
            RemoteProtocolError: It is no properties text.
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
            # Upstream ignores it; whoever asked would believe that it was changed.
            raise InternalError(f"this name server has no option {name}")
        truth = _TRUTHS.get(value.strip().lower())
        if truth is None:
            raise InternalError(f"{name} is true or false, not {value}")
        values[_NAMES[name]] = truth
    return values
