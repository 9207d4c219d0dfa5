"""The tutorial's second and third sittings: orders with accidents, and the night after them."""

import threading
import time

import pytest
from typer.testing import CliRunner

from tests.docs.tutorial import PAGES, Reader
from tests.servers import spark_session
from txmq.cli.root import app

ROUND_S = 300
"""Both sittings take less, and must be of one date."""
DAY_S = 24 * 60 * 60

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def reader(postgres, tmp_path_factory):
    while DAY_S - time.time() % DAY_S < ROUND_S:
        threading.Event().wait(1)
    made = set()

    def create(words):
        postgres.order(f"CREATE DATABASE {words[1]}")
        made.add(words[1])
        return 0, ""

    def drop(words):
        postgres.order(postgres.dropping.format(words[1]))
        made.remove(words[1])
        return 0, ""

    url = postgres.url
    variables = {"PGHOST": url.host, "PGPORT": str(url.port), "PGUSER": url.username}
    if url.password:
        variables["PGPASSWORD"] = url.password
    commands = {"createdb": create, "dropdb": drop}
    try:
        with Reader(tmp_path_factory.mktemp("tutorial"), variables, commands) as found:
            found.type("mkdir sitting-1 && cd sitting-1")  # Where the first sitting ends.
            yield found
    finally:
        for name in list(made):
            drop(["dropdb", name])


@pytest.fixture(scope="module")
def differences(reader):
    """What is wrong with the page of the second sitting."""
    return reader.follow(PAGES / "second-sitting.md")


def test_the_second_sitting_does_what_it_says(differences):
    assert differences == []


def test_the_third_sitting_does_what_it_says(reader, differences, spark, monkeypatch):
    def reconcile(words):
        done = CliRunner().invoke(app, words[1:], env={"TXMQ_RECONCILE_CONFIG": "recon.toml"})
        return done.exit_code, done.output

    assert differences == []
    spark_session.lend(monkeypatch, spark)
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "COLUMNS"):
        if name in reader.variables:
            monkeypatch.setenv(name, reader.variables[name])
            monkeypatch.setitem(spark.sparkContext.environment, name, reader.variables[name])
    reader.stand_ins["txmq reconcile"] = reconcile

    assert reader.follow(PAGES / "third-sitting.md") == []
