"""The address patterns of RocketMQ's white lists. Pure.

``*`` is every address; ``10.0.0.*`` and ``10.0.5-9.*`` are ranges; ``10.0.0.{1,7}`` and
``10.0.0.1,10.0.0.7`` are lists. IPv6 addresses take the same forms. txmq adds networks such as
``10.0.0.0/8``.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import Final, NamedTuple

from txmq.errors import ConfigError

__all__ = ["NO_ADDRESSES", "AddressPattern"]

_PARTS_V4: Final = 4
_PARTS_V6: Final = 8


class _IpVersion(NamedTuple):
    """How a version of IP writes an address."""

    separator: str
    parts: int
    base: int
    most: int


_V4: Final = _IpVersion(".", _PARTS_V4, 10, 255)
_V6: Final = _IpVersion(":", _PARTS_V6, 16, 0xFFFF)


class AddressPattern(NamedTuple):
    """A pattern: alternatives, each with a range for every number of the address."""

    text: str
    alternatives: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def parse(cls, text: str, setting: str = "") -> AddressPattern:
        """Read a pattern; an empty one matches nothing.

        Args:
            text: The pattern.
            setting: The name of the setting, for errors.

        Raises:
            ConfigError: The text is not a pattern.
        """
        try:
            return cls._parse(text.strip())
        except ConfigError as error:
            raise ConfigError(f"{setting}: {error}" if setting else str(error)) from error

    @classmethod
    def _parse(cls, text: str) -> AddressPattern:
        if text in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
            every = tuple(((0, form.most),) * form.parts for form in (_V4, _V6))
            return cls(text, every)
        found = tuple(_ranges(text, one) for one in _alternatives(text)) if text else ()
        return cls(text, found)

    def matches(self, host: str) -> bool:
        """Whether it covers a host."""
        try:
            numbers = _numbers(host)
        except ValueError:
            return False  # Not an IP address, as on a simulated network.
        return any(
            len(ranges) == len(numbers)
            and all(low <= number <= high for number, (low, high) in zip(numbers, ranges))  # noqa: B905
            for ranges in self.alternatives
        )


NO_ADDRESSES: Final = AddressPattern("", ())
"""Matches nothing."""


def _numbers(host: str) -> list[int]:
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return [int(part, 16) for part in address.exploded.split(":")]
        address = address.ipv4_mapped
    return list(address.packed)


def _alternatives(text: str) -> list[str]:
    head, brace, tail = text.partition("{")
    if not brace:
        return [one.strip() for one in text.split(",")]
    if not tail.endswith("}") or not head.endswith((".", ":")):
        raise ConfigError(f"address {text!r}: braces are for the last part, as in 10.0.0.{{1,7}}")
    return [head + one.strip() for one in tail[:-1].split(",")]


def _ranges(text: str, one: str) -> tuple[tuple[int, int], ...]:
    if "/" in one:
        return _network(text, one)
    with suppress(ValueError):
        return tuple((number, number) for number in _numbers(one))
    form = _V6 if ":" in one else _V4
    parts = one.split(form.separator)
    try:
        if len(parts) == form.parts:
            return tuple(_range(part, form) for part in parts)
    except ValueError:
        pass
    raise _refusal(text)


def _range(part: str, form: _IpVersion) -> tuple[int, int]:
    if part == "*":
        return 0, form.most
    first, dash, last = part.partition("-")
    low = int(first, form.base)
    high = int(last, form.base) if dash else low
    if not 0 <= low <= high <= form.most:
        raise ValueError(part)
    return low, high


def _network(text: str, one: str) -> tuple[tuple[int, int], ...]:
    try:
        network = ipaddress.ip_network(one)
    except ValueError:
        raise _refusal(text) from None
    first, last = _numbers(str(network[0])), _numbers(str(network[-1]))
    return tuple(zip(first, last, strict=True))


def _refusal(text: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is not an address pattern; write 10.0.0.7, 10.0.0.*, 10.0.5-9.*, "
        "10.0.0.{1,7} or 10.0.0.0/8"
    )
