"""Values that settings refuse."""

import math

import pytest
from msgspec.structs import replace

from txmq import Client, Producer, PullConsumer, PushConsumer, ScheduledPull, blocking
from txmq.client.allocation import Circle
from txmq.client.settings import ClientSettings, ConsumerSettings, ProducerSettings, StartFrom
from txmq.errors import ConfigError
from txmq.limits import FRAME_BYTES_MAX


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        (ClientSettings, {"heartbeat": 0.0}, "cannot be 0.0; it takes a duration of at least 10ms"),
        (ClientSettings, {"heartbeat": "1 year"}, "heartbeat cannot be '1 year'; it takes a dura"),
        (ClientSettings, {"instance": "a@b"}, "hold no '@'"),
        (ClientSettings, {"tls": "on"}, "tls cannot be 'on'; it takes a ClientTls, or None"),
        (ClientSettings, {"credentials": {"secret_key": "s"}}, "cannot be a dict; it takes a Cred"),
        (ProducerSettings, {"retries": -1}, "-1; it takes a whole number of at least 0"),
        (ProducerSettings, {"retries": True}, "retries cannot be True"),
        (ProducerSettings, {"body_size_max": FRAME_BYTES_MAX}, "a size from 1 to 16320KiB"),
        (ProducerSettings, {"linger_size": 1.5}, "linger_size cannot be 1.5; it takes a size of"),
        (ProducerSettings, {"compression": "rar"}, "compression cannot be 'rar'; it takes \"zlib"),
        (ProducerSettings, {"is_traced": 1}, "is_traced cannot be 1; it takes true or false"),
        (ConsumerSettings, {"batch_max": 0}, "cannot be 0; it takes a whole number of at least 1"),
        (ConsumerSettings, {"attempts_max": 0}, "a whole number of at least 1, or None"),
        (ConsumerSettings, {"start": "first"}, "start cannot be 'first'; it takes StartFrom.LAST"),
        (ConsumerSettings, {"start_ms": 5}, "it needs start=StartFrom.TIME"),
        (ConsumerSettings, {"pull_batch": "x"}, "cannot be 'x'; it takes a whole number"),
        (ConsumerSettings, {"pull_batch": 1.5}, "pull_batch cannot be 1.5"),
        (ConsumerSettings, {"suspend": None}, "suspend cannot be None; it takes a duration"),
        (ConsumerSettings, {"suspend": math.nan}, "suspend cannot be nan"),
        (ConsumerSettings, {"allocation": object()}, r"such as allocation\.Circle\(\), not <obj"),
        (ConsumerSettings, {"allocation": Circle}, r"such as allocation\.Circle\(\), not <class"),
    ],
)
def test_invalid_settings_are_refused_with_the_reason(kind, given, says):
    with pytest.raises(ConfigError, match=says):
        kind(**given)


def test_durations_and_sizes_can_be_strings():
    settings = ProducerSettings(timeout="1m 30s", linger=1, linger_size="1.5KiB")

    assert (settings.timeout, settings.linger, settings.linger_size) == (90.0, 1.0, 1536)
    assert isinstance(settings.linger, float)
    assert settings == ProducerSettings(timeout=90, linger="1", linger_size=1536)
    assert ConsumerSettings(topic_cached_size_max="1MiB").topic_cached_size_max == 1 << 20


def test_replaced_settings_are_checked_and_settings_are_immutable():
    settings = replace(ConsumerSettings(stop_timeout="5s"), hold_max="500ms")

    assert (settings.stop_timeout, settings.hold_max) == (5.0, 0.5)
    with pytest.raises(ConfigError, match="hold_max cannot be 'long'"):
        replace(settings, hold_max="long")
    with pytest.raises(AttributeError):
        settings.hold_max = 1.0


def test_start_ms_is_allowed_with_a_start_by_time():
    assert ConsumerSettings(start=StartFrom.TIME, start_ms=5).start_ms == 5


# Common mistakes

NAMES = "127.0.0.1:9876"
MEMBERS = [Producer, PushConsumer, PullConsumer, ScheduledPull]
FACES = [getattr(blocking, member.__name__) for member in MEMBERS]


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
def test_name_servers_that_are_not_one_string_are_refused_with_advice(kind, names, said):
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
def test_settings_of_the_wrong_type_are_refused_with_advice(kind, settings, said):
    own = "ProducerSettings" if kind.__name__ == "Producer" else "ConsumerSettings"
    with pytest.raises(ConfigError) as wrong:
        kind("g", NAMES, settings)

    assert str(wrong.value) == "settings are a " + said.format(own=own)


def test_client_settings_of_the_wrong_type_are_refused_with_advice():
    with pytest.raises(ConfigError, match=r"; write ClientSettings\(instance='one'\)"):
        Client(NAMES, {"instance": "one"})


def test_blocking_and_async_clients_cannot_be_mixed():
    with pytest.raises(
        ConfigError, match=r"a txmq\.Client, are wanted, not <txmq\.blocking\.Client"
    ):
        Producer("g", blocking.Client(NAMES))
    with pytest.raises(ConfigError, match=r"a txmq\.blocking\.Client is wanted here"):
        blocking.Producer("g", Client(NAMES))
