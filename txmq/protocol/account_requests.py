"""The fields and bodies of the requests about accounts, 50 to 54."""

from __future__ import annotations

from txmq.protocol.bodies import Body
from txmq.protocol.headers import Header

__all__ = [
    "AccountChange",
    "AccountName",
    "Accounts",
    "AccountsVersion",
    "AddressesChange",
    "PlainAccount",
]


class AccountChange(Header):
    """50: create or change an account; a field that is missing keeps its value."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    """Permissions of topics by name, separated by ``,``, as ``Orders=PUB``."""
    group_perms: str | None = None

    def __repr__(self) -> str:
        return f"AccountChange(access_key={self.access_key!r}, secret_key=***)"


class AccountName(Header):
    """51: remove an account."""

    access_key: str


class AddressesChange(Header):
    """53: replace the addresses that need no account."""

    global_white_addrs: str
    acl_file_full_path: str | None = None
    """The file; the first one if it is missing or empty."""


class AccountsVersion(Header):
    """The answer to 52: the versions of the files of accounts."""

    version: str
    """The version of the first file, as JSON."""
    all_acl_file_version: str
    """The versions of all files by path, as JSON."""
    broker_name: str
    broker_addr: str
    cluster_name: str


class PlainAccount(Body):
    """An account in the answer to 54, without its secret."""

    access_key: str
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class Accounts(Body):
    """The answer to 54."""

    global_white_addrs: list[str]
    plain_access_configs: list[PlainAccount]
