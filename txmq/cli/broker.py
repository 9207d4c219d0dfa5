"""``txmq broker``: the state and the settings of running brokers."""

from shlex import quote
from typing import Annotated, Any

import typer

from txmq.cli.commands import Answer, Commands, Listing, Watching, listed
from txmq.cli.common import WRONGLY_CALLED, AsJson, Ask, Cluster, argument, fail, flag
from txmq.cli.output import as_json, note, table
from txmq.client import Admin
from txmq.errors import ConfigError, NoPermission, TxmqError
from txmq.ops.brokers import readable_figures
from txmq.ops.known_names import nearest
from txmq.ops.rows import SOURCES, ListColumn, setting_rows

__all__ = ["app"]

app = Commands("Show brokers that run, and change their settings.")
settings = Commands("Read and change settings of brokers that run.")
app.add_typer(settings, name="config")

AtBroker = Annotated[str | None, typer.Option("--broker", help="Only this broker.")]


@app.command()
def status(
    *,
    at: AtBroker = None,
    everything: bool = flag("All figures, under the names that the broker uses.", "--all"),
    watching: Watching,
    ask: Ask,
    json: AsJson = False,
) -> None:
    """Show the state of brokers: rates, log, disk, open transactions, delayed messages."""

    def show(found: list[dict[str, Any]]) -> None:
        if json:
            as_json(found)
            return
        answering = [row for row in found if "problem" not in row]
        if answering:
            _print_figures(answering, everything=everything)
        for row in found:
            if "problem" in row:
                note(f"txmq: without broker {row['broker']}: {row['problem']}")

    watching.show(lambda: ask(lambda admin: _figures(admin, at)), show)


async def _figures(admin: Admin, at: str | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in await _chosen(admin, at):
        row: dict[str, Any] = {"broker": name}
        try:
            row["figures"] = await admin.broker_stats(name)
        except TxmqError as error:
            if at is not None:
                raise
            row["problem"] = str(error).strip()
        rows.append(row)
    return rows


async def _chosen(admin: Admin, at: str | None) -> list[str]:
    known = [info.name for info in await admin.cluster()]
    if at is None:
        return known
    if at not in known:
        raise ConfigError(f"broker {at!r} is unknown to the name server{nearest(at, known)}")
    return [at]


def _print_figures(rows: list[dict[str, Any]], *, everything: bool) -> None:
    columns = [row["figures"] if everything else readable_figures(row["figures"]) for row in rows]
    labels = dict.fromkeys(label for column in columns for label in column)
    table(
        ["figure", *(row["broker"] for row in rows)],
        [[label, *(column.get(label, "") for column in columns)] for label in labels],
    )


@settings.command("get")
@listed(
    [
        *("broker", "setting", "value", "default"),
        ListColumn("source", show=lambda source: SOURCES.get(source, source)),
    ],
    empty="no settings",
)
def get(
    setting: list[str] | None = argument("The settings, under RocketMQ's names.", default=None),
    *,
    everything: bool = flag("All settings.", "--all"),
    at: AtBroker = None,
    ask: Ask,
) -> Listing:
    """Show the settings in force, which may differ from the broker's file."""
    if bool(setting) is everything:
        fail("name the settings to show, or write --all", WRONGLY_CALLED)

    async def read(admin: Admin) -> list[dict[str, Any]]:
        chosen = await _chosen(admin, at)
        return [row for name in chosen for row in await setting_rows(admin, name)]

    found = ask(read)
    known = sorted({row["setting"] for row in found})
    for name in setting or ():
        if found and name not in known:
            fail(
                f"no broker has a setting {name!r}{nearest(name, known)}; "
                "list all of them with: txmq broker config get --all"
            )
    return Listing([row for row in found if everything or row["setting"] in (setting or ())])


@settings.command("set")
def set_(
    setting: Annotated[str, typer.Argument(help="The setting, under RocketMQ's name.")],
    value: Annotated[str, typer.Argument(help="The new value.")],
    *,
    at: AtBroker = None,
    cluster: Cluster = None,
    ask: Ask,
) -> Answer:
    """Change a setting of running brokers; a txmq broker keeps the change until it stops.

    Settings that need a restart are refused. RocketMQ's brokers also write the new value to their
    file.
    """

    async def change(admin: Admin) -> list[str]:
        try:
            return await admin.change_broker_config({setting: value}, broker=at, cluster=cluster)
        except NoPermission as error:
            error.add_note(
                "show all settings with: txmq broker config get --all; change the others in the "
                "broker's file, and restart it"
            )
            raise

    changed = ask(change, changes=True)
    text = f"{setting} is {quote(value)} at {', '.join(changed)}"
    return Answer({"setting": setting, "value": value, "brokers": changed}, text)
