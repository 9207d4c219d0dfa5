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


def test_without_any_source_all_settings_have_their_defaults():
    assert load(Outer) == Outer()
    assert load(BrokerSettings) == BrokerSettings()


def test_a_toml_file_sets_values_of_every_type(tmp_path):
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


def test_a_toml_file_may_write_durations_and_sizes_as_numbers(tmp_path):
    path = toml(tmp_path, "inner = {pause = 1.5, room = 99}\nshare = 0.0000001\n")

    found = load(Outer, file=path)

    assert (found.inner.pause, found.inner.room, found.share) == (1.5, 99, 1e-7)


def test_environment_variables_set_values_of_every_type_as_text():
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


def test_variables_override_the_file_and_arguments_override_variables(tmp_path):
    path = toml(tmp_path, "count = 1\nname = 'file'\n[inner]\nroom = 100\n")
    environ = {"TXMQ_COUNT": "2", "TXMQ_INNER__ROOM": "200"}

    found = load(Outer, file=path, environ=environ, arguments=["count=3", "count=4"])

    assert (found.name, found.count, found.inner.room) == ("file", 4, 200)


def test_changing_one_setting_of_a_group_keeps_the_groups_own_defaults():
    assert load(Outer, arguments=["inner.mode=fast"]).inner == Inner(mode="fast", room=Size(2048))


def test_an_argument_value_may_contain_an_equals_sign():
    assert load(Outer, arguments=["name=a=b"]).name == "a=b"


def test_a_text_setting_may_be_empty():
    assert load(Outer, arguments=["name="]).name == ""


def test_variables_for_tests_and_reserved_variables_are_not_settings():
    environ = {"TXMQ_TEST_REDIS_URL": "x", "TXMQ_CONFIG": "y"}

    assert load(Outer, environ=environ, reserved=["TXMQ_CONFIG"]) == Outer()


def test_load_ignores_the_process_environment_unless_it_is_passed(monkeypatch):
    monkeypatch.setitem(os.environ, "TXMQ_NAME", "leaked")

    assert load(Outer).name == "n"


def test_an_empty_toml_table_is_accepted(tmp_path):
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
def test_an_invalid_argument_is_refused_with_a_clear_message(argument, text):
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
def test_valid_addresses_and_hours_are_accepted(arguments):
    load(BrokerSettings, arguments=arguments)


def test_an_error_in_a_variable_names_the_variable():
    with pytest.raises(ConfigError, match=r"in variable TXMQ_STORE__FLSH\)"):
        load(BrokerSettings, environ={"TXMQ_STORE__FLSH": "async"})


def test_an_error_in_a_file_names_the_file(tmp_path):
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
def test_a_file_value_of_the_wrong_type_is_refused(tmp_path, text, told):
    with pytest.raises(ConfigError) as caught:
        load(Outer, file=toml(tmp_path, text))

    assert told in str(caught.value)


def test_a_missing_settings_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot read settings from .*nowhere.toml: No such file"):
        load(Outer, file=tmp_path / "nowhere.toml")


def test_a_settings_file_that_is_not_utf8_is_refused(tmp_path):
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
    assert [setting.default for setting in describe(Required)] == [""]


# Units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20s", 20), ("500ms", 0.5), ("3h", 10800), ("2d", 172800), ("5m", 300), ("7", 7),
        ("1.5", 1.5), ("1h30m", 5400), ("1h 30m", 5400), (" 2 s ", 2), ("1.5H", 5400), ("0", 0),
    ],
)  # fmt: skip
def test_durations_are_parsed(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", " ", "s", "-1s", "1x", "1h30", "30 1h", "1,5s", "1e3", "nan", "1s!", "1.s"]
)
def test_invalid_durations_are_refused(text):
    with pytest.raises(ValueError, match="a duration such as"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64KiB", 65536), ("1GiB", 1 << 30), ("4MB", 4_000_000), ("1000", 1000), ("10B", 10),
        ("1.5KiB", 1536), ("2tib", 1 << 41), (" 8 kb ", 8000), ("9007199254740993", 2**53 + 1),
    ],
)  # fmt: skip
def test_sizes_are_parsed(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "1K", "0.3B", "1.0001KiB", "-1", "KiB", "1 Gi B", "1e3"])
def test_invalid_sizes_are_refused(text):
    with pytest.raises(ValueError, match="a size such as"):
        parse_size(text)


@given(st.integers(0, 2**60))
def test_a_printed_size_parses_to_the_same_value(size):
    assert parse_size(show(Size, size).strip('"')) == size


@given(st.integers(0, 10**12).map(lambda ms: ms / 1000))
def test_a_printed_duration_parses_to_the_same_value(seconds):
    assert parse_duration(show(Duration, seconds).strip('"')) == pytest.approx(seconds)


# The reference


def test_describe_gives_type_default_and_docstring_of_each_setting():
    found = {setting.key: setting for setting in describe(Outer)}

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


def test_every_broker_setting_has_a_description():
    undescribed = [setting.key for setting in describe(BrokerSettings) if not setting.text]

    assert undescribed == []


def test_a_file_of_all_described_defaults_loads_the_defaults(tmp_path):
    lines = [f"{setting.key} = {setting.default}" for setting in describe(BrokerSettings)]

    assert load(BrokerSettings, file=toml(tmp_path, "\n".join(lines))) == BrokerSettings()


def test_variables_with_all_described_defaults_load_the_defaults():
    environ = {
        variable(setting.key): setting.default.strip('"') for setting in describe(BrokerSettings)
    }

    assert load(BrokerSettings, environ=environ) == BrokerSettings()


# --- names from elsewhere ---


def transaction(tmp_path, text="", *arguments):
    file = tmp_path / "broker.toml"
    file.write_text(text)
    return load(BrokerSettings, file=file, arguments=arguments, aliases=NAMES).transaction


def test_transaction_settings_have_aliases_from_rocketmq(tmp_path):
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
def test_transaction_time_out_in_rocketmqs_spelling_counts_milliseconds(
    tmp_path, argument, seconds
):
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
def test_enable_property_filter_is_an_alias_of_filter_sql(tmp_path, text, arguments):
    file = tmp_path / "broker.toml"
    file.write_text(text)

    assert load(BrokerSettings, file=file, arguments=arguments, aliases=NAMES).filter.sql
    assert not BrokerSettings().filter.sql


def test_message_delay_level_is_an_alias_of_delay_levels(tmp_path):
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
def test_invalid_delay_levels_are_refused_by_name(levels, complaint):
    with pytest.raises(ConfigError, match=f"delay.levels {complaint}"):
        load(BrokerSettings, arguments=[f"delay.levels={levels}"])


def test_a_check_interval_of_60000_counts_as_milliseconds(tmp_path):
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
def test_impossible_transaction_check_settings_are_refused(tmp_path, argument):
    with pytest.raises(ConfigError):
        transaction(tmp_path, "", argument)


def test_an_argument_overrides_file_and_variable_under_either_name(tmp_path):
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


def test_a_file_that_sets_a_setting_under_both_names_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="twice"):
        transaction(tmp_path, "transactionTimeout = 20\n[transaction]\ntimeout = 30\n")


@pytest.mark.parametrize("text", ["6000.0", "6000"])
def test_transaction_time_out_may_have_a_decimal_point(tmp_path, text):
    assert transaction(tmp_path, f"transactionTimeOut = {text}\n").timeout == 6.0
    with pytest.raises(ConfigError):
        transaction(tmp_path, f"transactionTimeout = {text}\n")


def test_a_duration_of_400_digits_is_refused():
    with pytest.raises(ValueError, match="duration"):
        parse_duration("9" * 400)
