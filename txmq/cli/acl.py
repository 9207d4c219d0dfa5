"""``txmq acl``: checks and changes accounts, and tells what an account may do."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txmq.cli.commands import Commands, Listing, listed
from txmq.cli.common import (
    FAILED,
    WRONGLY_CALLED,
    Ask,
    Cluster,
    Yes,
    confirm,
    exit_on_errors,
    fail,
    flag,
    option,
)
from txmq.cli.output import note, say
from txmq.errors import Effect, TransportError, TxmqError
from txmq.ops.rows import ACCOUNT_COLUMNS, account_row
from txmq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from txmq.client import Admin
    from txmq_broker.access.accounts import AccessRules
    from txmq_broker.access.acl_editor import AclEditor

__all__ = ["app"]

app = Commands("The accounts of a broker or a name server.")

_SECRET_BYTES = 24

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A file as RocketMQ's plain_acl.yml, or a directory.")
]

Key = Annotated[str, typer.Argument(metavar="KEY", help="The access key of the account.")]
InFile = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="FILE", help="Change this file, or directory, instead of the brokers'."
    ),
]


@app.command("show")
@listed(
    ["account", "admin", "topics", "groups", "unsigned from", "tls subject"],
    empty="no accounts",
)
def show_accounts(file: File) -> Listing:
    """Check a file of accounts, and list the accounts without their secrets.

    The broker makes the same checks when it starts and when the file changes.
    """
    return Listing([account.described() for account in _rules(file).accounts.values()])


@app.command("list")
@listed(ACCOUNT_COLUMNS, empty="no accounts")
def list_accounts(
    *,
    broker: str | None = option("Only of this broker."),
    ask: Ask,
) -> Listing:
    """List the accounts of running brokers, without their secrets."""

    async def read(admin: Admin) -> list[dict[str, Any]]:
        known = [info.name for info in await admin.cluster()] if broker is None else [broker]
        return [
            account_row(name, account)
            for name in known
            for account in (await admin.accounts(name)).plain_access_configs
        ]

    return Listing(ask(read))


@app.command("test")
def check_account(
    file: File,
    *,
    account: str = option("The access key of the account.", default=..., metavar="KEY"),
    publish: str | None = option("May it send to this topic?", metavar="TOPIC"),
    subscribe: str | None = option("May it read this topic?", metavar="TOPIC"),
    group: str | None = option("May it consume as this group?", metavar="GROUP"),
    administer: bool = flag("May it do what operators do?", "--administer"),
) -> None:
    """Check whether an account may do something; the exit code is 1 if not.

    If several options are given, all of them must be allowed.
    """
    from txmq_broker.access.accounts import Permission
    from txmq_broker.access.requirements import Need, is_met

    needs = []
    if publish is not None:
        needs.append(Need("topic", publish, Permission.PUB))
    if subscribe is not None:
        needs.append(Need("topic", subscribe, Permission.SUB))
    if group is not None:
        needs.append(Need("group", group))
    if administer:
        needs.append(Need("admin"))
    if not needs:
        fail("name what to test: --publish, --subscribe, --group or --administer", WRONGLY_CALLED)
    found = _rules(file).accounts.get(account)
    if found is None:
        fail(f"{file} has no account with the accessKey {account}", WRONGLY_CALLED)
    refused = [need for need in needs if not is_met(need, found)]
    for need in needs:
        say(f"{'refused' if need in refused else 'allowed'}: {need}")
    if refused:
        raise typer.Exit(FAILED)


@app.command("add")
def put_account(
    key: Key,
    *,
    admin: bool = flag("It may do everything.", "--admin"),
    topic: list[str] | None = option(
        "PUB, SUB, PUB|SUB or DENY for a topic; may be repeated, and replaces all.",
        metavar="NAME=PERM",
    ),
    group: list[str] | None = option(
        "SUB or DENY for a consumer group; may be repeated, and replaces all.", metavar="NAME=PERM"
    ),
    other_topics: str | None = option("The permission for all other topics.", metavar="PERM"),
    other_groups: str | None = option("The permission for all other groups.", metavar="PERM"),
    unsigned_from: str | None = option(
        "From these addresses it needs no signature.", metavar="ADDRS"
    ),
    secret_from: str | None = option(
        "Read the secret key from a file, or from '-', standard input.", metavar="FILE"
    ),
    keep_secret: bool = flag("Change an existing account, not its secret.", "--keep-secret"),
    file: InFile = None,
    ask: Ask,
    cluster: Cluster = None,
) -> None:
    """Create or change an account at all brokers of a cluster.

    Prints a new random secret key, unless --secret-from or --keep-secret is given. The secret
    travels to the brokers in plain text: run this on loopback, or over TLS. Omitted options keep
    their values, except --admin.
    """
    if keep_secret and secret_from is not None:
        fail("--keep-secret and --secret-from exclude each other; leave out one", WRONGLY_CALLED)
    secret = None if keep_secret else _secret(secret_from)
    is_new = secret is not None and secret_from is None
    topics, groups = _permissions("--topic", topic), _permissions("--group", group)
    if file is not None:
        changes: dict[str, Any] = {
            "accessKey": key,
            "secretKey": secret,
            "whiteRemoteAddress": unsigned_from,
            "admin": admin,
            "defaultTopicPerm": other_topics,
            "defaultGroupPerm": other_groups,
            "topicPerms": None if topic is None else list(topic),
            "groupPerms": None if group is None else list(group),
        }
        given = {name: value for name, value in changes.items() if value is not None}
        _edit(file, lambda editor: editor.put_account(given))
    else:

        async def put(calls: Admin) -> None:
            try:
                await calls.put_account(
                    key,
                    secret,
                    admin=admin,
                    topics=topics,
                    groups=groups,
                    other_topics=other_topics,
                    other_groups=other_groups,
                    unsigned_from=unsigned_from,
                    cluster=cluster,
                )
            except TxmqError as error:
                is_lost = isinstance(error, TransportError) and error.effect is Effect.MAYBE
                if is_new and (is_lost or hasattr(error, "__notes__")):
                    # A broker may already have the secret, and no request reads it back.
                    note("the new secret, which --secret-from takes when you repeat the command:")
                    say(secret or "")
                raise

        ask(put, changes=True)
    note(f"account {key} is {'in force' if file is None else f'in {file}'}")
    if is_new:
        say(secret or "")


@app.command("remove")
def remove_account(
    key: Key,
    *,
    file: InFile = None,
    ask: Ask,
    cluster: Cluster = None,
    yes: Yes = False,
) -> None:
    """Remove an account at all brokers of a cluster: its clients are refused from then on."""
    confirm(f"Remove the account {key}? Its clients are refused from then on.", yes=yes)
    if file is not None:
        _edit(file, lambda editor: editor.remove_account(key))
    else:
        ask(lambda admin: admin.remove_account(key, cluster=cluster), changes=True)
    note(f"account {key} is removed")


@app.command("secret")
def print_secret() -> None:
    """Print a new random secret key, for an account in a file."""
    say(secrets.token_urlsafe(_SECRET_BYTES))


def _secret(source: str | None) -> str:
    """The secret. It is never an argument: process lists and shell histories would show it."""
    if source is None:
        return secrets.token_urlsafe(_SECRET_BYTES)
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{source} cannot be read: {error}", WRONGLY_CALLED)
    return text.strip()


def _permissions(option: str, texts: Sequence[str] | None) -> Mapping[str, str] | None:
    if texts is None:
        return None
    pairs = [text.partition("=") for text in texts]
    if not all(name and equals for name, equals, _ in pairs):
        fail(f"{option} takes NAME=PERM, as in Orders=PUB", WRONGLY_CALLED)
    return {name: permission for name, _, permission in pairs}


def _edit(file: Path, change: Callable[[AclEditor], None]) -> None:
    from txmq_broker.access.acl_editor import AclEditor
    from txmq_broker.access.acl_files import AclFiles

    with exit_on_errors():
        change(AclEditor(AclFiles(file), SystemClock()))


def _rules(file: Path) -> AccessRules:
    from txmq_broker.access.acl_files import AclFiles

    with exit_on_errors():
        return AclFiles(file).rules
