"""50 to 54: the accounts, for tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from txmq.errors import ConfigError, UnknownRefusal
from txmq.protocol.bodies import DataVersion
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.operations import (
    AccountChange,
    AccountName,
    Accounts,
    AccountsVersion,
    AddressesChange,
    PlainAccount,
)
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq_broker.access.account_changes import AccountChanges
from txmq_broker.access.acl_editor import AclEditor
from txmq_broker.access.acl_files import AclFiles
from txmq_broker.parts import Parts

__all__ = ["AccountHandlers"]

_BETWEEN: Final = re.compile(r",(?![^{]*\})")
"""A comma between addresses, not one in the braces of ``10.0.0.{1,7}``."""

_FAILED: Final = 1
_NOT_CHANGED: Final = 209
_NOT_REMOVED: Final = 210
_ADDRESSES_NOT_CHANGED: Final = 211
"""RocketMQ's response codes; only its tools know the last three."""


class AccountHandlers:
    """Serves and changes the accounts in the broker's files."""

    def __init__(self, parts: Parts, files: AclFiles | None) -> None:
        self._identity = parts.identity
        self._changes = None if files is None else AccountChanges(files, parts.clock)

    def serve_again(self, handlers: Mapping[int, Handler]) -> None:
        """Serve changes with these handlers, which wrap those of :meth:`table`."""
        if self._changes is not None:
            own = self.table()
            self._changes.dispatch.serve({code: handlers[code] for code in own})

    def close(self) -> None:
        """Drop the waiting changes."""
        if self._changes is not None:
            self._changes.close()

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.put,
            RequestCode.DELETE_ACL_CONFIG: self.remove,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self.version,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.put_addresses,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self.show,
        }

    def put(self, _: Connection, request: Command) -> bytes:
        """50: create or change an account."""
        wanted = request.read(AccountChange)
        changes: dict[str, Any] = {
            "accessKey": wanted.access_key,
            "secretKey": wanted.secret_key or None,
            "whiteRemoteAddress": wanted.white_remote_address,
            "admin": wanted.admin,
            "defaultTopicPerm": wanted.default_topic_perm or None,
            "defaultGroupPerm": wanted.default_group_perm or None,
            "topicPerms": _listed(wanted.topic_perms),
            "groupPerms": _listed(wanted.group_perms),
        }
        given = {name: value for name, value in changes.items() if value is not None}
        return self._change(request, _NOT_CHANGED, lambda edit: edit.put_account(given))

    def remove(self, _: Connection, request: Command) -> bytes:
        """51: remove an account."""
        key = request.read(AccountName).access_key
        return self._change(request, _NOT_REMOVED, lambda edit: edit.remove_account(key))

    def version(self, _: Connection, request: Command) -> bytes:
        """52: the versions of the files."""
        with _refused_as(_FAILED):
            versions = self._accounts().files.rules.versions
        first = next(iter(versions.values()), DataVersion())
        found = AccountsVersion(
            msgspec.json.encode(first).decode(),
            msgspec.json.encode(versions).decode(),
            self._identity.name,
            self._identity.address,
            self._identity.cluster,
        )
        return answer(request, header=found)

    def put_addresses(self, _: Connection, request: Command) -> bytes:
        """53: replace the addresses that need no account."""
        wanted = request.read(AddressesChange)
        texts = [text.strip() for text in _BETWEEN.split(wanted.global_white_addrs)]
        addresses = [text for text in texts if text]
        file = wanted.acl_file_full_path or ""
        return self._change(
            request, _ADDRESSES_NOT_CHANGED, lambda edit: edit.put_addresses(addresses, file)
        )

    def show(self, _: Connection, request: Command) -> bytes:
        """54: the accounts without their secrets, which no request can read."""
        with _refused_as(_FAILED):
            rules = self._accounts().files.rules
        accounts = [
            PlainAccount(
                account.access_key,
                account.white_remote_address,
                account.admin,
                account.default_topic_perm,
                account.default_group_perm,
                account.topic_perms,
                account.group_perms,
            )
            for account in (known.settings for known in rules.accounts.values())
        ]
        return answer(request, body=Accounts(list(rules.trusted_texts), accounts).write())

    def _change(self, request: Command, refusal: int, change: Callable[[AclEditor], None]) -> bytes:
        with _refused_as(refusal):
            self._accounts().make(request, change)
        return answer(request)

    def _accounts(self) -> AccountChanges:
        if self._changes is None:
            raise ConfigError("this broker has no file of accounts; start it with --acl FILE")
        return self._changes


@contextmanager
def _refused_as(code: int) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise UnknownRefusal(str(error), response_code=code) from error


def _listed(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]
