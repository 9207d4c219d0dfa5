"""What settings refuse."""

import pytest

from txmq.client.settings import ClientSettings, ConsumerSettings, ProducerSettings, StartFrom
from txmq.errors import ConfigError
from txmq.limits import FRAME_BYTES_MAX


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        (ClientSettings, {"heartbeat_s": 0.0}, "heartbeat_s is at least 0.01, not 0.0"),
        (ClientSettings, {"instance": "a@b"}, "hold no '@'"),
        (ProducerSettings, {"retries": -1}, "retries is at least 0, not -1"),
        (ProducerSettings, {"body_bytes_max": FRAME_BYTES_MAX}, "no frame holds more"),
        (ConsumerSettings, {"batch_max": 0}, "batch_max is at least 1, not 0"),
        (ConsumerSettings, {"attempts_max": 0}, "attempts_max is at least 1, not 0"),
        (ConsumerSettings, {"start": "first"}, "one of StartFrom's values, not 'first'"),
        (ConsumerSettings, {"start_ms": 5}, "it needs start=StartFrom.TIME"),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(kind, given, says):
    with pytest.raises(ConfigError, match=says):
        kind(**given)


def test_a_start_by_time_may_say_which():
    assert ConsumerSettings(start=StartFrom.TIME, start_ms=5).start_ms == 5
