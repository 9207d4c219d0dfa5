"""All commands joined into one."""

from typing import Annotated

import typer

import txmq
from txmq.cli import cluster, config, dlq, group, log, message, reconcile, schema, topic, tx, xa
from txmq.cli.names import names
from txmq.cli.output import say
from txmq.cli.relay import relay
from txmq.cli.resolve import resolve
from txmq.cli.serve import serve

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve)
app.command()(names)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(message.app, name="message")
app.add_typer(tx.app, name="tx")
app.command()(resolve)
app.add_typer(xa.app, name="xa")
app.command()(relay)
app.add_typer(dlq.app, name="dlq")
app.add_typer(log.app, name="log")
app.add_typer(reconcile.app, name="reconcile")
app.add_typer(cluster.app, name="cluster")
app.add_typer(schema.app, name="schema")
app.add_typer(config.app, name="config")


def _version(is_wanted: bool) -> None:
    if is_wanted:
        say(f"txmq {txmq.__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A message broker that speaks Apache RocketMQ's protocol, and commands for clusters."""
