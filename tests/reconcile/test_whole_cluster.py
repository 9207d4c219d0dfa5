"""A Spark cluster gives the same result as one machine."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.reconcile import standalone
from tests.reconcile.whole_driver import PLAN, extracted, reconciled
from tests.servers.serving import CHECKOUT
from txmq.reconcile.classes import Class
from txmq.reconcile.results import Results
from txmq.reconcile.tables import TABLES

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def files(directory):
    """The names of all files of the tables."""
    places = sorted((directory / "results").glob("*/*/*/part-*"))
    assert len({place.parts[-4] for place in places}) == len(TABLES)
    return {str(place.relative_to(directory)) for place in places}


def test_a_cluster_gives_the_same_result_as_one_machine(spark, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    extract_id = extracted(spark, here, tmp_path / "day")
    shutil.copytree(here, there)

    alone = reconciled(spark, here, extract_id)
    with standalone.cluster(cores=1, memory="700m") as (url, _):
        subprocess.run(
            [sys.executable, "-m", "tests.reconcile.whole_driver", url, there],
            cwd=CHECKOUT,
            env={**os.environ, "SPARK_LOCAL_IP": standalone.HOST},
            check=True,
        )

    results = Results(there)
    together = results.current(PLAN.day)
    assert together.run_id == alone.run_id
    assert together.result.contents == alone.result.contents
    assert together.result == alone.result
    assert together.result_digest == alone.result_digest
    results.verify(together)
    assert files(there) == files(here) != set()
    found = {row["class"] for row in results.table("items", together.day, together.run_id).rows()}
    assert found > {Class.DOUBLE_CREDIT, Class.PARKED, Class.IN_FLIGHT}
    assert sum(total.transfers for total in alone.result.totals) == PLAN.transfers
