"""Loads a client's credentials from environment variables or a private file."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from txmq.errors import ConfigError
from txmq.security.signatures import Credentials

__all__ = ["CREDENTIALS_VARIABLES", "check_private", "load_credentials", "read_credentials"]

_ACCESS_KEY: Final = "TXMQ_ACCESS_KEY"
_SECRET_KEY: Final = "TXMQ_SECRET_KEY"  # noqa: S105  # a name, no secret
_FILE: Final = "TXMQ_CREDENTIALS"
CREDENTIALS_VARIABLES: Final = (_ACCESS_KEY, _SECRET_KEY, _FILE)


def load_credentials(environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """The credentials that the environment names, or ``None``.

    ``TXMQ_ACCESS_KEY`` and ``TXMQ_SECRET_KEY`` hold the keys; ``TXMQ_CREDENTIALS`` names a file
    for :func:`read_credentials`.

    Raises:
        ConfigError: One of the two keys is missing or too short, or the file is unusable.
    """
    access, secret = environ.get(_ACCESS_KEY), environ.get(_SECRET_KEY)
    if access and secret:
        return Credentials(access_key=access, secret_key=secret)
    if access or secret:
        there, missing = (_ACCESS_KEY, _SECRET_KEY) if access else (_SECRET_KEY, _ACCESS_KEY)
        raise ConfigError(f"{there} is set and {missing} is not; set both or neither")
    path = environ.get(_FILE)
    return read_credentials(Path(path)) if path else None


def read_credentials(path: Path) -> Credentials:
    """The credentials in a TOML file with ``access_key`` and ``secret_key``.

    Raises:
        ConfigError: The file cannot be read, other users may read it, or a key is missing or too
            short.
    """
    check_private(path)
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError:
        # The error's own text may show a part of a secret.
        raise ConfigError(f"{path} is not TOML; {_HOW_TO_WRITE}") from None
    try:
        return msgspec.convert(values, Credentials)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}; {_HOW_TO_WRITE}") from error


_HOW_TO_WRITE: Final = 'write access_key = "..." and secret_key = "..."'


def check_private(path: Path) -> None:
    """Refuse a file with secrets that other users may read, as ssh does.

    Raises:
        ConfigError: The file does not exist, or others may read it.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path} has secrets, and other users may read it; run: chmod 600 {path}")
