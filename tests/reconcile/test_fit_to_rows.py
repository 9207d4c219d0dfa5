"""What a run sets by the size of a day."""

import pytest

from txmq.reconcile.spark import fit_to_rows

PARTITIONS = "spark.sql.shuffle.partitions"
COMPILED = "spark.sql.codegen.wholeStage"


@pytest.fixture
def settings(spark):
    """The session's settings, which are restored."""
    names = (PARTITIONS, COMPILED, "spark.sql.codegen.factoryMode")
    before = {name: spark.conf.get(name) for name in names}
    yield spark.conf
    for name, value in before.items():
        spark.conf.set(name, value)


def test_a_large_day_has_many_partitions_and_is_compiled(spark, settings):
    settings.set(PARTITIONS, "64")
    settings.set(COMPILED, "true")

    fit_to_rows(spark, 30_000_000)

    assert settings.get(PARTITIONS) == "30"
    assert settings.get(COMPILED) == "true"


def test_a_small_day_is_interpreted(spark, settings):
    settings.set(COMPILED, "true")

    fit_to_rows(spark, 100_000)

    assert settings.get(COMPILED) == "false"


def test_what_the_user_has_set_stays(spark, settings):
    settings.set(PARTITIONS, "7")

    fit_to_rows(spark, 10**9)

    assert settings.get(PARTITIONS) == "7"
