"""The accounts of RocketMQ's ``plain_acl.yml``, and what each of them may do. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import IntFlag
from typing import Annotated, Any, Final, Self

import msgspec
from msgspec import Struct

from txmq.errors import ConfigError
from txmq.protocol.bodies import DataVersion
from txmq.security.signatures import KEY_CHARS_MIN, SigningKey
from txmq.security.tls import PeerSubject
from txmq_broker.access.addresses import AddressPattern

__all__ = ["AccessRules", "Account", "AccountSettings", "AclFile", "Permission"]


class Permission(IntFlag):
    """The permissions for a topic or a consumer group."""

    NONE = 0
    PUB = 1
    SUB = 2


_PERMISSIONS: Final[dict[str, Permission]] = {
    "DENY": Permission.NONE,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
    "ANY": Permission.PUB | Permission.SUB,
}

_TEXTS: Final = {permission: text for text, permission in reversed(_PERMISSIONS.items())}

_Text = Annotated[str, msgspec.Meta(min_length=KEY_CHARS_MIN)]


class AccountSettings(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """An account as written in the file."""

    access_key: _Text
    secret_key: _Text | None = None
    tls_subject: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    """txmq's own key: requests without a signature act as this account if they come from a client
    whose certificate has this subject, or this common name."""
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None

    def __repr__(self) -> str:
        return f"AccountSettings(access_key={self.access_key!r}, secret_key=***)"


class AclFile(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A whole file."""

    global_white_remote_addresses: list[str] | None = None
    accounts: list[AccountSettings] | None = None
    data_version: Any = None
    """RocketMQ's tools count changes here, in a list of one version."""

    @property
    def version(self) -> DataVersion:
        """The version in the file; zeros if it has none."""
        found = self.data_version
        if isinstance(found, list) and found:
            with suppress(msgspec.ValidationError):
                return msgspec.convert(found[0], DataVersion)
        return DataVersion()


class Account:
    """An account. Its defaults apply where it has no explicit permission; unless set, they deny."""

    __slots__ = ("_groups", "_of_group", "_of_topic", "_topics", "addresses", "is_admin", "key",
                 "name", "publishes", "settings", "tls_subject")  # fmt: skip

    def __init__(self, settings: AccountSettings) -> None:
        self.settings = settings
        self.name = settings.access_key
        # Without a secret, no request can be signed as this account.
        secret = settings.secret_key or secrets.token_hex()
        try:
            self.key = SigningKey(secret.encode())
        except UnicodeEncodeError:
            raise ConfigError("secretKey is not Unicode text") from None
        self.tls_subject = settings.tls_subject or ""
        self.publishes: set[str] = set()
        """The topics that it has been allowed to publish to: a cache."""
        self.is_admin = settings.admin
        self.addresses = AddressPattern.parse(settings.white_remote_address or "")
        """Requests from these addresses need no signature, only the name of the account."""
        self._of_topic = _permission("defaultTopicPerm", settings.default_topic_perm or "DENY")
        self._of_group = _permission("defaultGroupPerm", settings.default_group_perm or "DENY")
        self._topics = dict(_pairs("topicPerms", settings.topic_perms))
        self._groups = dict(_pairs("groupPerms", settings.group_perms))

    def __repr__(self) -> str:
        return f"Account({self.name!r})"

    def described(self) -> dict[str, str | bool]:
        """Its permissions, as operators see them."""
        return {
            "account": self.name,
            "admin": self.is_admin,
            "topics": self._listed(self._topics, self._of_topic),
            "groups": self._listed(self._groups, self._of_group),
            "unsigned_from": self.addresses.text,
            "tls_subject": self.tls_subject,
        }

    def _listed(self, permissions: Mapping[str, Permission], default: Permission) -> str:
        if self._is_unlimited:
            return "all"
        pairs = [*permissions.items(), ("others", default)]
        return ", ".join(f"{name}={_TEXTS[permission]}" for name, permission in pairs)

    @property
    def _is_unlimited(self) -> bool:
        # As in RocketMQ: an administrator with explicit permissions has only these.
        return self.is_admin and not self._topics and not self._groups

    def may_use_topic(self, topic: str, permission: Permission) -> bool:
        """Whether it may publish to a topic, or subscribe to it."""
        owned = self._topics.get(topic, self._of_topic)
        return self._is_unlimited or bool(owned & permission)

    def may_use_group(self, group: str) -> bool:
        """Whether it may consume as a group."""
        owned = self._groups.get(group, self._of_group)
        return self._is_unlimited or bool(owned & Permission.SUB)


class AccessRules:
    """All accounts, and the addresses that need none."""

    __slots__ = ("_of_subject", "_trusted", "accounts", "without_addresses")

    def __init__(
        self, accounts: Iterable[Account] = (), trusted: Iterable[AddressPattern] = ()
    ) -> None:
        self.accounts = {account.name: account for account in accounts}
        self._of_subject = {
            account.tls_subject: account
            for account in self.accounts.values()
            if account.tls_subject
        }
        self._trusted = tuple(trusted)
        self.without_addresses = (
            {}
            if self._trusted
            else {
                name: account
                for name, account in self.accounts.items()
                if not account.addresses.alternatives
            }
        )
        """The accounts whose requests can be checked without regard to their address."""

    @classmethod
    def of(cls, files: Mapping[str, AclFile]) -> Self:
        """The rules of one or several files, by name.

        Raises:
            ConfigError: A value is invalid, or two accounts share an access key or a subject.
        """
        accounts: dict[str, Account] = {}
        subjects: dict[str, str] = {}
        trusted: list[AddressPattern] = []
        for name, file in files.items():
            setting = f"{name}: globalWhiteRemoteAddresses"
            addresses = file.global_white_remote_addresses or ()
            trusted += (AddressPattern.parse(text, setting) for text in addresses)
            for settings in file.accounts or ():
                key = settings.access_key
                if key in accounts:
                    raise ConfigError(f"{name}: there are two accounts with accessKey {key}")
                try:
                    accounts[key] = Account(settings)
                except ConfigError as error:
                    raise ConfigError(f"{name}: account {key}: {error}") from error
                _check_proof(name, settings, subjects)
        return cls(accounts.values(), trusted)

    @property
    def trusted_texts(self) -> tuple[str, ...]:
        """The addresses whose requests need no account, as written in the files."""
        return tuple(pattern.text for pattern in self._trusted)

    def of_subject(self, subject: PeerSubject) -> Account | None:
        """The account that names a certificate's subject, or else its common name."""
        return self._of_subject.get(subject.text) or self._of_subject.get(subject.common_name)

    def is_trusted(self, host: str) -> bool:
        """Whether requests from a host need no account."""
        return any(pattern.matches(host) for pattern in self._trusted)


def _check_proof(file: str, settings: AccountSettings, subjects: dict[str, str]) -> None:
    key, subject = settings.access_key, settings.tls_subject
    if settings.secret_key is None and subject is None:
        raise ConfigError(f"{file}: account {key} needs a secretKey, a tlsSubject, or both")
    if subject is None:
        return
    if subject in subjects:
        raise ConfigError(
            f"{file}: the accounts {subjects[subject]} and {key} have the same tlsSubject {subject}"
        )
    subjects[subject] = key


def _permission(key: str, text: str) -> Permission:
    found = _PERMISSIONS.get(text.replace(" ", ""))
    if found is None:
        raise ConfigError(f"{key} cannot be {text!r}; it takes {', '.join(_PERMISSIONS)}")
    return found


def _pairs(key: str, texts: Iterable[str] | None) -> Iterable[tuple[str, Permission]]:
    for text in texts or ():
        name, equals, permission = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{key} cannot hold {text!r}; write name=PUB|SUB")
        yield name.strip(), _permission(key, permission)
