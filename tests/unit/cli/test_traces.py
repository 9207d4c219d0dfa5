"""Trace records as commands and pages show them."""

import pytest

from txmq.client.observe.trace_records import HandlerStart
from txmq.ops.traces import trace_row


def started(at_ms):
    return HandlerStart(at_ms=at_ms, region="", group="g", request_id="R", id="A1")


@pytest.mark.parametrize("at_ms", [10**20, -(10**20), 10**300], ids=["late", "early", "huge"])
def test_a_timestamp_out_of_range_is_shown_as_a_number(at_ms):
    assert trace_row(started(at_ms))[1] == str(at_ms)
