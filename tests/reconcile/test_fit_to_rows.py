"""What a run sets by the size of a day."""

import pytest

from txmq.reconcile.spark import fit_to_rows

PARTITIONS = "spark.sql.shuffle.partitions"
COMPILED = "spark.sql.codegen.wholeStage"
FITTED = (PARTITIONS, COMPILED, "spark.sql.codegen.factoryMode")


@pytest.fixture
def at_start(spark, monkeypatch):
    """The settings with which the session began, as if they were those of a run."""
    conf = spark.sparkContext.getConf()
    found = {name: conf.get(name) for name in FITTED}
    monkeypatch.setattr("txmq.reconcile.spark._UNFITTED", found)
    before = {name: spark.conf.get(name) for name in FITTED}
    yield found
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.usefixtures("at_start")
def test_each_day_of_several_is_fitted(spark):
    fit_to_rows(spark, 100_000)
    assert spark.conf.get(COMPILED) == "false"

    fit_to_rows(spark, 30_000_000)
    assert spark.conf.get(PARTITIONS) == "30"
    assert spark.conf.get(COMPILED) == "true"


def test_what_the_user_has_set_stays(spark, at_start):
    at_start[PARTITIONS] = "another"
    before = spark.conf.get(PARTITIONS)

    fit_to_rows(spark, 10**9)

    assert spark.conf.get(PARTITIONS) == before
