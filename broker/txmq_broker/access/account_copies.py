"""The accounts of a broker set: followers have the accounts of their leader.

The leader's files, secrets included, travel with the tables that followers copy. So a follower must
prove that it is an administrator to receive them, whatever its address is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from txmq.errors import ConfigError, NoPermission, ServiceUnavailable
from txmq.protocol.bodies import DataVersion
from txmq.protocol.command import Command
from txmq.remoting.connection import Connection
from txmq.runtime.clock import Clock
from txmq.security.signatures import ACCESS_KEY
from txmq.text import RepeatedLines
from txmq_broker.access.accounts import AccessRules
from txmq_broker.access.acl_files import SUFFIXES, AclFiles, parse, read_texts, replace_text
from txmq_broker.access.audit import AuditLog

__all__ = ["AccountsCopy", "AccountsSource"]

log = logging.getLogger(__name__)

_LOOKS: Final = 5
"""How many checks in a row must find changed files before they are restored. If the leader made the
change, it ships it earlier.
"""


class AccountsSource:
    """The accounts that a leader ships.

    Args:
        files: Its files; ``None`` if it has no accounts.
        audit: Records who receives them.
    """

    def __init__(self, files: AclFiles | None, audit: AuditLog) -> None:
        self._files = files
        self._audit = audit
        self._followers = RepeatedLines()

    @property
    def version(self) -> DataVersion:
        """Increases whenever the files are read again."""
        return DataVersion() if self._files is None else DataVersion(counter=self._files.reads)

    def texts(self) -> Mapping[str, str]:
        """The texts of the files; empty without accounts."""
        return {} if self._files is None else self._files.rules.texts

    def check(self, connection: Connection, request: Command) -> None:
        """Refuse a follower unless a signature or a certificate proves an administrator.

        Raises:
            NoPermission: The follower did not prove that; its address alone proves nothing.
            ServiceUnavailable: The accounts are about to be read again.
        """
        if self._files is None:
            return
        if self._files.are_changed:
            # A follower on this machine may share the files, and must not undo a change in them.
            raise ServiceUnavailable("the accounts have just changed; follow once they are read")
        rules, fields = self._files.rules, request.field_map()
        account = rules.accounts.get(fields.get(ACCESS_KEY, ""))
        is_proven = account is not None and account.key.has_signed(fields, request.body)
        if account is None and ACCESS_KEY not in fields and connection.subject is not None:
            account = rules.of_subject(connection.subject)
            is_proven = account is not None
        if account is None or not (is_proven and account.is_admin):
            raise NoPermission(
                "a follower receives the accounts with their secrets, so it has to sign as an "
                "administrator: set its TXMQ_ACCESS_KEY and TXMQ_SECRET_KEY"
            )
        # A follower that fails asks every second, so the audit records few of the repeats.
        if self._followers.note(f"{account.name} at {connection.host}") is not None:
            self._audit.note(connection, request)


class AccountsCopy:
    """The accounts of a follower, in its own files.

    Args:
        acl: The file or directory of accounts; empty for a follower without accounts.
        clock: Gives the time for the names of replaced files that are kept.
    """

    def __init__(self, acl: str, clock: Clock) -> None:
        self._path = Path(acl) if acl else None
        self._clock = clock
        self._turn = asyncio.Lock()
        self._wanted: Mapping[str, str] = {}
        self._is_alone = False
        self._looks = 0
        """The number of checks in a row that found the files changed."""

    async def take(self, texts: Mapping[str, str], before: str) -> str:
        """Put the leader's accounts in place of this follower's.

        Args:
            texts: The texts of the leader's files; empty if it has no accounts.
            before: The digest of the accounts that were taken last; empty if none were.

        Returns:
            The digest of the accounts that are now in force here.

        Raises:
            ConfigError: The leader has accounts and this follower has none, its files cannot be
                written, or this version cannot read the accounts.
        """
        path = self._path
        if not texts:
            if path is not None and not self._is_alone:
                self._is_alone = True
                log.warning("the leader has no accounts; this member keeps its own in %s", path)
            return before
        if path is None:
            raise ConfigError(
                "the leader has accounts, and without them this member may not lead; start it "
                "with --acl FILE, which it writes"
            )
        async with self._turn:
            await asyncio.to_thread(_check, texts, path)
            self._wanted = texts
            await asyncio.to_thread(self._replace, path, before)
        return _digest(texts)

    async def restore(self) -> None:
        """Restore the leader's accounts if the files here stay changed for some time.

        It waits because the leader may use the same files, and be about to ship the change.

        Raises:
            ConfigError: The files cannot be read or written.
        """
        if self._path is None or not self._wanted:
            return
        async with self._turn:
            self._looks = 0 if _present(self._path) == self._wanted else self._looks + 1
            if self._looks >= _LOOKS:
                await asyncio.to_thread(self._replace, self._path, _digest(self._wanted))

    def _replace(self, path: Path, before: str) -> None:
        self._looks = 0
        present = _present(path)
        if present == self._wanted:
            return
        old = {name: text for name, text in present.items() if self._wanted.get(name) != text}
        try:
            if old and _digest(present) != before:
                kept = [self._keep(path / name, text) for name, text in old.items()]
                log.warning(
                    "%s had other accounts than the leader; the leader's replace them, and the old "
                    "ones are kept in %s",
                    path,
                    ", ".join(map(str, kept)),
                )
            for name, text in self._wanted.items():
                if present.get(name) != text:
                    (path / name).parent.mkdir(parents=True, exist_ok=True)
                    replace_text(path / name, text)
            for name in present.keys() - self._wanted.keys():
                (path / name).unlink()
        except OSError as error:
            raise ConfigError(
                f"the leader's accounts cannot be written to {path}: {error.strerror}"
            ) from error
        log.info("the accounts in %s are the leader's", path)

    def _keep(self, path: Path, text: str) -> Path:
        kept = path.with_name(f"{path.name}.before-{self._clock.wall_ms()}")
        replace_text(kept, text)
        return kept


def _present(path: Path) -> dict[str, str]:
    return read_texts(path) if path.exists() else {}


def _check(texts: Mapping[str, str], path: Path) -> None:
    """Refuse accounts that this follower cannot use.

    Raises:
        ConfigError: One side has its accounts in a directory and the other in a file, or a name or
            a text is invalid.
    """
    if path.exists() and path.is_dir() != ("" not in texts):
        here, there = ("directory", "file") if path.is_dir() else ("file", "directory")
        raise ConfigError(f"--acl {path} is a {here}, and the leader has its accounts in a {there}")
    for name in texts:
        pure = PurePosixPath(name)
        if name and (pure.is_absolute() or ".." in pure.parts or pure.suffix not in SUFFIXES):
            raise ConfigError(
                f"the leader has accounts in {name!r}, which is not a valid file name"
            )
    AccessRules.of({name or path.name: parse(name or path.name, texts[name]) for name in texts})


def _digest(texts: Mapping[str, str]) -> str:
    return sha256(msgspec.json.encode(dict(sorted(texts.items())))).hexdigest()
