"""This version reads, signs and continues the results of every released version."""

import pytest

from tests.reconcile.whole_stage import THURSDAY, WEDNESDAY
from txmq.reconcile.results import open_results


def test_a_result_of_a_released_version_can_be_read_and_signed(left):
    with open_results(left.night.rules.directory) as results:
        found = results.current(WEDNESDAY)
        assert found.result_digest == left.facts["result_digest"]
        results.verify(found)
        results.sign("preparer", found, "Li", now_ms=found.ended_ms + 1)
        signed = results.sign("reviewer", found, "Wu", now_ms=found.ended_ms + 2)

    assert (signed.preparer, signed.reviewer) == ("Li", "Wu")


@pytest.mark.timeout(300)
def test_a_reconciliation_continues_the_result_of_a_released_version(left, spark):
    done = left.night.run(spark, THURSDAY)

    assert done.previous_digest == left.facts["result_digest"]
    (closed,) = left.night.rows(done, "closed").values()
    assert (closed["key"], closed["status"]) == ("icbc/night", "closed")
    assert left.night.rows(done)["lost"]["status"] == "new"
