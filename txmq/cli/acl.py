"""``txmq acl``: checks a file of accounts, and answers what an account may do."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txmq.cli.common import FAILED, WRONGLY_CALLED, AsJson, fail
from txmq.cli.output import print_rows, say
from txmq.errors import ConfigError

if TYPE_CHECKING:
    from txmq_broker.access.accounts import AccessRules

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="The accounts of a broker or a name server.")

_SECRET_BYTES = 24

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A file as RocketMQ's plain_acl.yml, or a directory.")
]


@app.command("show")
def show_accounts(file: File, *, as_json: AsJson = False) -> None:
    """Check a file of accounts, and list them without their secrets.

    The broker reads a file the same way when it starts and when the file changes.
    """
    rows = [account.described() for account in _rules(file).accounts.values()]
    columns = ["account", "admin", "topics", "groups", "unsigned from", "tls subject"]
    print_rows(rows, columns, [row.values() for row in rows], json=as_json)


@app.command("test")
def check_account(
    file: File,
    *,
    account: Annotated[str, typer.Option(metavar="KEY", help="The access key of the account.")],
    publish: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="May it send to this topic?")
    ] = None,
    subscribe: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="May it read this topic?")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="May it consume as this group?")
    ] = None,
    administer: Annotated[
        bool, typer.Option("--administer", help="May it do what operators do?")
    ] = False,
) -> None:
    """Answer whether an account may do something; the exit code is 1 if not.

    With several questions, all must be allowed.
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


@app.command("secret")
def print_secret() -> None:
    """Print a new random secret key, for an account in a file."""
    say(secrets.token_urlsafe(_SECRET_BYTES))


def _rules(file: Path) -> AccessRules:
    from txmq_broker.access.acl_files import AclFiles

    try:
        return AclFiles(file).rules
    except ConfigError as error:
        fail(str(error), WRONGLY_CALLED)
