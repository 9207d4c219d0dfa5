import os
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from txmq.errors import ConfigError
from txmq.settings.description import describe
from txmq.settings.loading import load, variable
from txmq.settings.units import Duration, Size, parse_duration, parse_size
from txmq.settings.values import Settings, show
from txmq_broker.config import BrokerSettings
from txmq_broker.core.rocketmq_settings import NAMES


class Inner(Settings, kw_only=True):
    """Settings of a part."""

    mode: Literal["fast", "safe"] = "safe"
    """How it works."""

    pause: Duration = Duration(0.5)
    """How long it waits, with a
    second line."""

    room: Size = Size(1024)

    def _check(self):
        if self.room < 10:
            raise ConfigError("inner.room must be at least 10")


class Outer(Struct, frozen=True, kw_only=True):
    """Settings."""

    name: str = "n"
    """Its name."""

    count: int = 3
    share: float = 0.25
    on: bool = False
    hosts: tuple[str, ...] = ()
    """Other hosts."""
    inner: Inner = Inner(room=2048)


def toml(tmp_path, text):
    path = tmp_path / "txmq.toml"
    path.write_text(text, encoding="utf-8")
    return path


# Sources


def test_without_sources_the_defaults_stand():
    assert load(Outer) == Outer()
    assert load(BrokerSettings) == BrokerSettings()


def test_a_file_gives_values_in_types_of_its_own(tmp_path):
    path = toml(
        tmp_path,
        'name = "m"\ncount = 4\nshare = 1\non = true\nhosts = ["a", "b"]\n'
        '[inner]\nmode = "fast"\npause = "2s"\nroom = "1KiB"\n',
    )

    assert load(Outer, file=path) == Outer(
        name="m",
        count=4,
        share=1.0,
        on=True,
        hosts=("a", "b"),
        inner=Inner(mode="fast", pause=Duration(2.0), room=Size(1024)),
    )


def test_a_file_may_give_numbers_for_durations_and_sizes(tmp_path):
    path = toml(tmp_path, "inner = {pause = 1.5, room = 99}\nshare = 0.0000001\n")

    found = load(Outer, file=path)

    assert (found.inner.pause, found.inner.room, found.share) == (1.5, 99, 1e-7)


def test_variables_give_texts():
    environ = {
        "TXMQ_NAME": "m",
        "TXMQ_COUNT": "-4",
        "TXMQ_ON": "Yes",
        "TXMQ_HOSTS": "a, b,",
        "TXMQ_INNER__MODE": "fast",
        "PATH": "/bin",
        "TXMQ": "no setting",
    }

    found = load(Outer, environ=environ)

    assert (found.name, found.count, found.on) == ("m", -4, True)
    assert (found.hosts, found.inner.mode) == (("a", "b"), "fast")


def test_each_source_stands_over_the_one_before(tmp_path):
    path = toml(tmp_path, "count = 1\nname = 'file'\n[inner]\nroom = 100\n")
    environ = {"TXMQ_COUNT": "2", "TXMQ_INNER__ROOM": "200"}

    found = load(Outer, file=path, environ=environ, arguments=["count=3", "count=4"])

    assert (found.name, found.count, found.inner.room) == ("file", 4, 200)


def test_changing_one_setting_of_a_group_keeps_the_groups_own_defaults():
    assert load(Outer, arguments=["inner.mode=fast"]).inner == Inner(mode="fast", room=Size(2048))


def test_a_value_may_hold_the_sign_that_ends_the_key():
    assert load(Outer, arguments=["name=a=b"]).name == "a=b"


def test_a_value_may_be_empty_where_it_is_text():
    assert load(Outer, arguments=["name="]).name == ""


def test_variables_for_tests_and_reserved_ones_are_no_settings():
    environ = {"TXMQ_TEST_REDIS_URL": "x", "TXMQ_CONFIG": "y"}

    assert load(Outer, environ=environ, reserved=["TXMQ_CONFIG"]) == Outer()


def test_the_environment_is_not_read_unasked(monkeypatch):
    monkeypatch.setitem(os.environ, "TXMQ_NAME", "leaked")

    assert load(Outer).name == "n"


def test_an_empty_group_in_a_file_is_no_mistake(tmp_path):
    assert load(Outer, file=toml(tmp_path, "[inner]\n")) == Outer()


# Mistakes


FLSH, FLUSH, QUICK = "store.flsh=async", "flush=async", "store.flush=quick"


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        (FLSH, f"unknown setting store.flsh; did you mean store.flush? (in argument {FLSH})"),
        (FLUSH, f"unknown setting flush; did you mean store.flush? (in argument {FLUSH})"),
        ("stor.flush=async", "did you mean store.flush?"),
        ("nmae=x", "did you mean name?"),
        ("zzzzzz=1", "unknown setting zzzzzz (in argument zzzzzz=1)"),
        ("store=1", "store is a group of settings; set one of them, such as store.c"),
        ("name", "'name' is not a setting; write key=value"),
        (QUICK, f'cannot be \'quick\' (in argument {QUICK}); it takes "sync" or "async"'),
        ("hold_max=soon", "it takes a duration such as 20s"),
        ("hold_max=-5s", "it takes a duration"),
        ("store.segment_size=1XB", "it takes a size of at least 16MiB"),
        ("connections_max=many", "it takes a whole number"),
        ("connections_max=1.5", "it takes a whole number"),
        ("retention.delete_above=half", "it takes a number"),
        ("retention.delete_above=nan", "it takes a number"),
        ("topics.auto_create=perhaps", "it takes true or false"),
        (
            "store.segment_size=1KiB",
            "store.segment_size cannot be '1KiB'",
        ),
        ("listen=127.0.0.1:99999", "listen cannot be '127.0.0.1:99999'; it takes host:port, the"),
        ("listen=[::]:10911", "set advertise to the address clients shall use, for instance --set"),
        ("names_listen=9876", "names_listen cannot be '9876'; it takes host:port"),
        ("names=a:1;b", "names cannot be 'b'; it takes host:port"),
        ("names=;", "names cannot be ';'"),
        ("advertise=192.0.2.1:0", "advertise cannot be '192.0.2.1:0'; it takes host:port, the"),
        ("advertise=broker.example:1", "records hold numeric addresses, no names; set advertise"),
        ("advertise=0.0.0.0:1", "it is every address of this machine; set advertise"),
        ("retention.delete_at=99", "retention.delete_at cannot be '99'; it takes hours from 0 to"),
        ("retention.delete_at=04;", "retention.delete_at cannot be '04;'"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(argument, text):
    with pytest.raises(ConfigError) as caught:
        load(BrokerSettings, arguments=[argument])

    assert text in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "arguments",
    [
        ["listen=127.0.0.1:0", "names_listen=127.0.0.1:0"],
        ["listen=0.0.0.0:10911", "advertise=192.0.2.1:10911"],
        ["listen=[::1]:10911", "advertise=[2001:db8::1]:1"],
        ["names=names-1:9876; names-2:9876;"],
        ["retention.delete_at=0;04; 23"],
    ],
)
def test_addresses_and_hours_that_can_be_are_taken(arguments):
    load(BrokerSettings, arguments=arguments)


def test_a_mistake_in_a_variable_names_the_variable():
    with pytest.raises(ConfigError, match=r"in variable TXMQ_STORE__FLSH\)"):
        load(BrokerSettings, environ={"TXMQ_STORE__FLSH": "async"})


def test_a_mistake_in_a_file_names_the_file(tmp_path):
    path = toml(tmp_path, "[store]\nflsh = 'async'\n")

    with pytest.raises(ConfigError) as caught:
        load(BrokerSettings, file=path)

    assert str(caught.value) == (
        f"unknown setting store.flsh; did you mean store.flush? (in {path})"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name = 5", "name cannot be 5"),
        ("count = true", "count cannot be True"),
        ("count = 1.5", "it takes a whole number"),
        ("on = 1", "it takes true or false"),
        ("hosts = 5", "it takes a list"),
        ("hosts = [1]", "it takes a text in quotes"),
        ("share = inf", "it takes a number"),
        ("name = {a = 1}", "name cannot be {'a': 1}"),
        ("inner = 5", "inner is a group of settings"),
        ("[other]\nx = 1", "unknown setting other.x"),
        ("[other]", "unknown setting other"),
        ("[inner]\npause = -1", "it takes a duration"),
        ("[inner]\nroom = true", "it takes a size"),
        ("[inner]\npause = 2024-01-01", "it takes a duration"),
        ("name = ", "is not a TOML file"),
    ],
)
def test_a_file_of_the_wrong_types_is_refused(tmp_path, text, told):
    with pytest.raises(ConfigError) as caught:
        load(Outer, file=toml(tmp_path, text))

    assert told in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ConfigError, match="cannot read settings from .*nowhere.toml: No such file"):
        load(Outer, file=tmp_path / "nowhere.toml")


def test_a_file_that_is_no_text_is_told(tmp_path):
    path = tmp_path / "t.toml"
    path.write_bytes(b"name = '\xff'")

    with pytest.raises(ConfigError, match="t.toml, line 1, is not UTF-8"):
        load(Outer, file=path)


class Group(Struct, frozen=True, kw_only=True):
    token: str


class Required(Struct, frozen=True, kw_only=True):
    group: Group


def test_a_setting_without_a_default_must_be_given():
    with pytest.raises(ConfigError, match="group.token has no default.*TXMQ_GROUP__TOKEN"):
        load(Required)
    assert load(Required, arguments=["group.token=t"]) == Required(group=Group(token="t"))
    assert [each.default for each in describe(Required)] == [""]


# Units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20s", 20), ("500ms", 0.5), ("3h", 10800), ("2d", 172800), ("5m", 300), ("7", 7),
        ("1.5", 1.5), ("1h30m", 5400), ("1h 30m", 5400), (" 2 s ", 2), ("1.5H", 5400), ("0", 0),
    ],
)  # fmt: skip
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", " ", "s", "-1s", "1x", "1h30", "30 1h", "1,5s", "1e3", "nan", "1s!", "1.s"]
)
def test_no_durations(text):
    with pytest.raises(ValueError, match="a duration such as"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64KiB", 65536), ("1GiB", 1 << 30), ("4MB", 4_000_000), ("1000", 1000), ("10B", 10),
        ("1.5KiB", 1536), ("2tib", 1 << 41), (" 8 kb ", 8000), ("9007199254740993", 2**53 + 1),
    ],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "1K", "0.3B", "1.0001KiB", "-1", "KiB", "1 Gi B", "1e3"])
def test_no_sizes(text):
    with pytest.raises(ValueError, match="a size such as"):
        parse_size(text)


@given(st.integers(0, 2**60))
def test_a_shown_size_reads_back(size):
    assert parse_size(show(Size, size).strip('"')) == size


@given(st.integers(0, 10**12).map(lambda ms: ms / 1000))
def test_a_shown_duration_reads_back(seconds):
    assert parse_duration(show(Duration, seconds).strip('"')) == pytest.approx(seconds)


# The reference


def test_every_setting_is_described_by_the_text_under_it():
    found = {each.key: each for each in describe(Outer)}

    assert list(found) == [
        "name", "count", "share", "on", "hosts", "inner.mode", "inner.pause", "inner.room"
    ]  # fmt: skip
    assert found["name"] == ("name", "text", '"n"', "Its name.")
    assert found["count"] == ("count", "whole number", "3", "")
    assert found["on"] == ("on", "true or false", "false", "")
    assert found["hosts"] == ("hosts", "list of text", "[]", "Other hosts.")
    assert found["inner.mode"] == ("inner.mode", '"fast" or "safe"', '"safe"', "How it works.")
    assert found["inner.pause"].default == '"500ms"'
    assert found["inner.pause"].text == "How long it waits, with a\nsecond line."
    assert found["inner.room"].default == '"2KiB"'  # The group's own default, not its class's.


def test_all_settings_of_the_broker_are_described():
    undescribed = [each.key for each in describe(BrokerSettings) if not each.text]

    assert undescribed == []


def test_described_defaults_are_the_defaults(tmp_path):
    lines = [f"{each.key} = {each.default}" for each in describe(BrokerSettings)]

    assert load(BrokerSettings, file=toml(tmp_path, "\n".join(lines))) == BrokerSettings()


def test_described_variables_set_what_they_say():
    environ = {variable(each.key): each.default.strip('"') for each in describe(BrokerSettings)}

    assert load(BrokerSettings, environ=environ) == BrokerSettings()


# --- names from elsewhere ---


def transaction(tmp_path, text="", *arguments):
    file = tmp_path / "broker.toml"
    file.write_text(text)
    return load(BrokerSettings, file=file, arguments=arguments, aliases=NAMES).transaction


def test_transactions_can_be_set_by_the_names_that_rocketmqs_users_know(tmp_path):
    found = transaction(
        tmp_path,
        "transactionTimeout = 20\ntransactionCheckMax = 5\ntransactionCheckInterval = 10\n",
    )

    assert (found.timeout, found.check_max, found.check_interval) == (20.0, 5, 10.0)


@pytest.mark.parametrize(
    ("argument", "seconds"),
    [
        ("transactionTimeOut=6000", 6.0),
        ("transactionTimeOut=6s", 6.0),
        ("transactionTimeout=20", 20.0),
        ("transactionTimeout=1500ms", 1.5),
        ("transaction.timeout=20s", 20.0),
    ],
)
def test_rocketmqs_own_spelling_counts_milliseconds(tmp_path, argument, seconds):
    assert transaction(tmp_path, "", argument).timeout == seconds


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("enablePropertyFilter = true\n", ()),
        ("", ("enablePropertyFilter=true",)),
        ("[filter]\nsql = true\n", ()),
        ("", ("filter.sql=true",)),
    ],
)
def test_conditions_can_be_allowed_by_rocketmqs_name(tmp_path, text, arguments):
    file = tmp_path / "broker.toml"
    file.write_text(text)

    assert load(BrokerSettings, file=file, arguments=arguments, aliases=NAMES).filter.sql
    assert not BrokerSettings().filter.sql


def test_delay_levels_may_have_rocketmqs_name(tmp_path):
    file = tmp_path / "broker.toml"
    file.write_text('messageDelayLevel = "1s 1m 1d"\n')

    assert load(BrokerSettings, file=file, aliases=NAMES).delay.levels_ms() == (
        1000,
        60_000,
        86_400_000,
    )


@pytest.mark.parametrize(
    ("levels", "complaint"),
    [
        ("1s x 2s", "cannot hold 'x'; write a duration such as"),
        ("", "has from 1 to 64 levels"),
        ("1s " * 65, "has from 1 to 64 levels"),
        ("1s 0s", "are durations above 0"),
    ],
)
def test_delay_levels_that_are_none_are_named(levels, complaint):
    with pytest.raises(ConfigError, match=f"delay.levels {complaint}"):
        load(BrokerSettings, arguments=[f"delay.levels={levels}"])


def test_the_interval_of_checks_is_in_milliseconds_as_rocketmq_counts(tmp_path):
    assert transaction(tmp_path, "transactionCheckInterval = 60000\n").check_interval == 60.0
    with pytest.raises(ConfigError, match="transactionTimeout cannot be 60000 .*60s or 6000"):
        transaction(tmp_path, "transactionTimeout = 60000\n")


@pytest.mark.parametrize(
    "argument",
    [
        "transaction.timeout=-1s",
        "transaction.check_interval=0s",
        "transaction.check_max=0",
        "transaction.check_max=60001",
        "transaction.pending_max=-1",
        "retention.refuse_halves_above=0",
    ],
)
def test_transactions_are_not_checked_in_ways_that_cannot_work(tmp_path, argument):
    with pytest.raises(ConfigError):
        transaction(tmp_path, "", argument)


def test_an_argument_counts_over_everything_whatever_name_it_uses(tmp_path):
    file = tmp_path / "broker.toml"
    file.write_text("transactionTimeout = 20\n")
    environ = {"TXMQ_TRANSACTION__TIMEOUT": "30"}

    def timeout(*arguments):
        given = {"file": file, "environ": environ, "arguments": arguments, "aliases": NAMES}
        return load(BrokerSettings, **given).transaction.timeout

    assert timeout() == 30.0
    assert timeout("transactionTimeout=9") == 9.0
    assert timeout("transactionTimeout=9", "transaction.timeout=4") == 4.0
    assert timeout("transaction.timeout=4", "transactionTimeout=9") == 9.0


def test_a_file_says_a_setting_by_one_of_its_names(tmp_path):
    with pytest.raises(ConfigError, match="twice"):
        transaction(tmp_path, "transactionTimeout = 20\n[transaction]\ntimeout = 30\n")


@pytest.mark.parametrize("text", ["6000.0", "6000"])
def test_milliseconds_may_have_a_point(tmp_path, text):
    assert transaction(tmp_path, f"transactionTimeOut = {text}\n").timeout == 6.0
    with pytest.raises(ConfigError):
        transaction(tmp_path, f"transactionTimeout = {text}\n")


def test_no_duration_is_endless():
    with pytest.raises(ValueError, match="duration"):
        parse_duration("9" * 400)
