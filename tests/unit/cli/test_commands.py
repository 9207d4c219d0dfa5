"""A function becomes a command: groups of options, and answers for people and programs."""

from typing import Annotated, NamedTuple

import pytest
import typer
from typer.testing import CliRunner

from txmq.cli.commands import Answer, Commands
from txmq.cli.common import flag, option
from txmq.cli.output import say


class Place(NamedTuple):
    broker: Annotated[str, typer.Option(help="The broker.")] = "broker-a"
    queue: int = option("The queue.", default=0)


ELSEWHERE = Place(broker="broker-b", queue=3)
app = Commands("Commands of this test.")


@app.command()
def show(name: str, *, place: Place, loud: bool = flag("Shout.", "--loud")) -> Answer:
    text = f"{name} in {place.broker}:{place.queue}"
    return Answer({"name": name, **place._asdict()}, text.upper() if loud else text)


@app.command()
def move(*, place: Place = ELSEWHERE) -> Answer:
    return Answer(
        place, lambda: [say(f"{name} {value}") for name, value in place._asdict().items()]
    )


@app.command()
def fail(*, json: Annotated[bool, typer.Option("--json")] = False) -> Answer:
    return Answer({"program": json}, "it failed", 1)


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        (["show", "a"], 0, "a in broker-a:0\n"),
        (["show", "a", "--broker", "b", "--queue", "7", "--loud"], 0, "A IN B:7\n"),
        (
            ["show", "a", "--queue", "7", "--json"],
            0,
            '{"name":"a","broker":"broker-a","queue":7}\n',
        ),
        (["move"], 0, "broker broker-b\nqueue 3\n"),
        (["move", "--queue", "1"], 0, "broker broker-b\nqueue 1\n"),
        (["fail"], 1, "it failed\n"),
        (["fail", "--json"], 1, '{"program":true}\n'),
    ],
)
def test_a_command_prints_the_result_of_its_function(words, code, printed):
    done = CliRunner().invoke(app, words)

    assert (done.exit_code, done.stdout) == (code, printed)


def test_an_option_from_an_option_group_is_validated():
    done = CliRunner().invoke(app, ["show", "a", "--queue", "seven"])

    assert done.exit_code == 2
    assert "--queue" in done.stderr
