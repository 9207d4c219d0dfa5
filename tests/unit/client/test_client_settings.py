"""What settings refuse."""

import pytest

from txmq import Client, Producer, PullConsumer, PushConsumer, ScheduledPull, blocking
from txmq.client.allocation import Circle
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
        (ConsumerSettings, {"pull_batch": "x"}, "pull_batch is a whole number, not 'x'"),
        (ConsumerSettings, {"pull_batch": 1.5}, "pull_batch is a whole number, not 1.5"),
        (ConsumerSettings, {"suspend_s": None}, "suspend_s is a number, not None"),
        (ConsumerSettings, {"allocation": object()}, r"such as allocation\.Circle\(\), not <obj"),
        (ConsumerSettings, {"allocation": Circle}, r"such as allocation\.Circle\(\), not <class"),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(kind, given, says):
    with pytest.raises(ConfigError, match=says):
        kind(**given)


def test_a_start_by_time_may_say_which():
    assert ConsumerSettings(start=StartFrom.TIME, start_ms=5).start_ms == 5


# What newcomers get wrong

NAMES = "127.0.0.1:9876"
MEMBERS = [Producer, PushConsumer, PullConsumer, ScheduledPull]
FACES = [getattr(blocking, each.__name__) for each in MEMBERS]


@pytest.mark.parametrize("kind", [*MEMBERS, *FACES])
@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["a:1", "b:2"],
            "name servers, or a txmq.Client, are wanted, not ['a:1', 'b:2']; write 'a",
        ),
        (("a:1",), "name servers, or a txmq.Client, are wanted, not ('a:1',); write 'a:1'"),
        (None, "name servers, or a txmq.Client, are wanted, not None"),
        (b"a:1", "name servers, or a txmq.Client, are wanted, not b'a:1'"),
        ("", "no name server is given"),
    ],
)
def test_name_servers_are_one_text(kind, names, said):
    with pytest.raises(ConfigError) as wrong:
        kind("g", names)

    assert str(wrong.value).startswith(said)
    with pytest.raises(ConfigError):
        Client(names)
    with pytest.raises(ConfigError):
        blocking.Client(names)


@pytest.mark.parametrize("kind", [*MEMBERS, *FACES])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"is_traced": True}, "{own}, not {{'is_traced': True}}; write {own}(is_traced=True)"),
        ({}, "{own}, not {{}}; write {own}()"),
        (20, "{own}, not 20"),
        (ClientSettings, f"{{own}}, not {ClientSettings!r}"),
    ],
)
def test_settings_are_of_their_kind(kind, settings, said):
    own = "ProducerSettings" if kind.__name__ == "Producer" else "ConsumerSettings"
    with pytest.raises(ConfigError) as wrong:
        kind("g", NAMES, settings)

    assert str(wrong.value) == "settings are a " + said.format(own=own)


def test_settings_of_a_client_are_of_their_kind():
    with pytest.raises(ConfigError, match=r"; write ClientSettings\(instance='one'\)"):
        Client(NAMES, {"instance": "one"})


def test_a_client_is_shared_with_its_own_kind():
    with pytest.raises(
        ConfigError, match=r"a txmq\.Client, are wanted, not <txmq\.blocking\.Client"
    ):
        Producer("g", blocking.Client(NAMES))
    with pytest.raises(ConfigError, match=r"a txmq\.blocking\.Client is wanted here"):
        blocking.Producer("g", Client(NAMES))
