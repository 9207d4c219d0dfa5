"""The settings of several brokers below one directory: their names, ports and directories."""

from __future__ import annotations

import shlex
from pathlib import Path
from string import ascii_lowercase
from typing import Final

from msgspec.structs import replace

from txmq.errors import ConfigError
from txmq.ops.directories import LOCK, brokers_below, is_broker_directory
from txmq.remoting.pool import split_address
from txmq_broker.config import BrokerSettings

__all__ = [
    "BROKERS_MAX",
    "NAMES_FOLDER",
    "PORT_STEP",
    "check_directory",
    "check_lone_directory",
    "settings_of_brokers",
]

BROKERS_MAX: Final = len(ascii_lowercase)
"""The names of the brokers end in one letter each."""

PORT_STEP: Final = 10
"""The distance between the ports of two brokers. RocketMQ's clients also use the port two below a
broker's, and its tools the port above it."""

NAMES_FOLDER: Final = "names"
"""The folder with the name server's texts and options."""

_FIRST: Final = f"-{ascii_lowercase[0]}"
_PORT_MAX: Final = 65_535


def settings_of_brokers(settings: BrokerSettings, count: int) -> list[BrokerSettings]:
    """The settings of each broker.

    Args:
        settings: The shared settings. The name and the addresses are the first broker's; the
            directory holds one directory for each broker.
        count: The number of brokers.

    Raises:
        ConfigError: Several brokers cannot share one of the settings.
    """
    if not 1 <= count <= BROKERS_MAX:
        raise ConfigError(f"--brokers takes a number from 1 to {BROKERS_MAX}, not {count}")
    copies = settings.replication
    if copies.coordinator or copies.role == "follower":
        raise ConfigError(
            "--brokers starts leaders without a coordinator; start each member of a broker set "
            "with its own txmq serve"
        )
    if copies.address:
        raise ConfigError(
            "replication.address belongs to one broker; with --brokers, followers reach each "
            "broker at the address that clients use"
        )
    stem = settings.name.removesuffix(_FIRST)
    if stem == settings.name or not stem:
        raise ConfigError(
            f"with --brokers the first broker's name ends in {_FIRST}, as broker{_FIRST}, and the "
            f"others count on; the name cannot be {settings.name!r}"
        )
    return [_settings_of(settings, stem, place) for place in range(count)]


def _settings_of(settings: BrokerSettings, stem: str, place: int) -> BrokerSettings:
    name = f"{stem}-{ascii_lowercase[place]}"
    return replace(
        settings,
        name=name,
        data=str(Path(settings.data).absolute() / name),
        listen=_shifted("listen", settings.listen, place),
        advertise=_shifted("advertise", settings.advertise, place) if settings.advertise else "",
    )


def _shifted(setting: str, address: str, place: int) -> str:
    """The address of the broker at a place. Port 0 stays, so the system chooses each port."""
    port = split_address(address)[1]
    if place == 0 or port == 0:
        return address
    shifted = port + PORT_STEP * place
    if shifted > _PORT_MAX:
        raise ConfigError(
            f"{setting} {address} leaves no room for {place + 1} brokers, whose ports are "
            f"{PORT_STEP} apart; choose a lower port"
        )
    return f"{address.rpartition(':')[0]}:{shifted}"


def check_directory(data: Path, brokers: list[BrokerSettings]) -> None:
    """Refuse a directory with messages that these brokers would not serve.

    Raises:
        ConfigError: It is the directory of a single broker, or holds other brokers.
    """
    first = brokers[0].name
    if is_broker_directory(data):
        moved = f"{data}-{first}"
        old, new, inside = (shlex.quote(text) for text in (str(data), moved, f"{data}/{first}"))
        raise ConfigError(
            f"{data} is the directory of one broker, and --brokers needs one for each below it. To "
            f"make it the first one's, stop its broker and run: mv {old} {new} && mkdir {old} && "
            f"mv {new} {inside}"
        )
    wanted = {broker.name for broker in brokers}
    unserved = [path for path in brokers_below(data) if path.name not in wanted]
    if unserved:
        names, last = ", ".join(path.name for path in unserved), unserved[-1]
        raise ConfigError(
            f"{data} also holds {names}, and --brokers {len(brokers)} would not serve the messages "
            f"there; start as many brokers as before, under the same names. To remove "
            f"{last.name}, run `txmq cluster drain {last.name}`, wait until its messages "
            f"are consumed, stop all, and move {last} elsewhere"
        )


def check_lone_directory(data: Path) -> None:
    """Refuse to start a single broker in the directory of several.

    Raises:
        ConfigError: It holds the directories of several brokers.
    """
    found = brokers_below(data)
    # Only a supervisor puts a lock next to the directories of its brokers.
    if not found or is_broker_directory(data) or not (data / LOCK).exists():
        return
    names = ", ".join(path.name for path in found)
    raise ConfigError(
        f"{data} holds several brokers: {names}. Start all with --brokers {len(found)}, or one "
        f"alone with --data {found[0]} --name {found[0].name}"
    )
