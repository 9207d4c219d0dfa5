"""The file of accounts and its patterns of addresses."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.errors import ConfigError
from txmq_broker.access.accounts import AccessRules, Account, AccountSettings, AclFile, Permission
from txmq_broker.access.addresses import AddressPattern

PUB, SUB = Permission.PUB, Permission.SUB


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("*", ["10.0.0.1", "::1"], []),
        ("*.*.*.*", ["10.0.0.1"], []),
        ("", [], ["10.0.0.1"]),
        ("10.0.0.7", ["10.0.0.7", "::ffff:10.0.0.7"], ["10.0.0.8"]),
        ("10.0.0.*", ["10.0.0.0", "10.0.0.255"], ["10.0.1.0"]),
        ("10.0.5-9.*", ["10.0.5.1", "10.0.9.255"], ["10.0.4.1", "10.0.10.1"]),
        ("10.0.0.{1,7}", ["10.0.0.1", "10.0.0.7"], ["10.0.0.2"]),
        ("10.0.0.1,10.0.0.7", ["10.0.0.1", "10.0.0.7"], ["10.0.0.17"]),
        ("10.0.0.0/8", ["10.255.0.1"], ["11.0.0.1"]),
        ("2001:db8:0:0:0:0:0:1-f", ["2001:db8::f"], ["2001:db8::10", "10.0.0.1"]),
        ("2001:db8::1", ["2001:db8:0::1"], ["2001:db8::2"]),
        ("fe80::/64", ["fe80::1", "fe80::1%eth0"], ["fe80:0:0:1::1"]),
    ],
)
def test_an_address_pattern_matches_exactly_its_addresses(text, inside, outside):
    pattern = AddressPattern.parse(text)
    assert [host for host in (*inside, *outside) if pattern.matches(host)] == inside
    assert not pattern.matches("a-simulated-host")


@given(st.ip_addresses())
def test_every_single_address_is_a_pattern_that_matches_itself(address):
    text = str(address)
    assert AddressPattern.parse(text).matches(text)
    assert AddressPattern.parse(address.exploded).matches(text)


@pytest.mark.parametrize(
    "text", ["10.0.0", "10.0.0.256", "10.0.0.9-5", "host", "10.{1,2}.0.1", "10.0.0.{1", "1.2.3.4/9"]
)
def test_an_invalid_address_pattern_is_refused_with_examples(text):
    with pytest.raises(ConfigError, match=r"10\.0\.0\."):
        AddressPattern.parse(text)


def account(**settings):
    return Account(AccountSettings("some-key", "some-secret", **settings))


def test_permissions_for_a_name_override_the_defaults():
    shop = account(default_topic_perm="SUB", topic_perms=["Orders=PUB|SUB", "Wages = DENY"])
    assert shop.may_use_topic("Orders", PUB)
    assert shop.may_use_topic("Other", SUB)
    assert not shop.may_use_topic("Other", PUB)
    assert not shop.may_use_topic("Wages", SUB)
    assert not shop.may_use_group("any")


def test_an_administrator_with_explicit_permissions_has_only_these():
    assert account(admin=True).may_use_topic("Orders", PUB)
    limited = account(admin=True, topic_perms=["Orders=SUB"])
    assert limited.is_admin
    assert not limited.may_use_topic("Orders", PUB)
    assert not limited.may_use_topic("Other", SUB)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topicPerms": ["Orders"]}, "topicPerms cannot hold 'Orders'; write name=PUB|SUB"),
        ({"defaultGroupPerm": "ALL"}, "defaultGroupPerm cannot be 'ALL'; it takes DENY, PUB"),
        ({"whiteRemoteAddress": "10.0"}, "'10.0' is not an address pattern"),
    ],
)
def test_an_invalid_value_is_reported_with_its_account(change, message):
    values = {"accounts": [{"accessKey": "some-key", "secretKey": "some-secret", **change}]}
    with pytest.raises(ConfigError) as refused:
        AccessRules.of({"a.yml": msgspec.convert(values, AclFile)})
    assert str(refused.value).startswith("a.yml: account some-key: ")
    assert message in str(refused.value)
    assert "some-secret" not in str(refused.value)


def test_one_access_key_in_two_files_is_refused():
    file = AclFile(accounts=[AccountSettings("some-key", "some-secret")])
    with pytest.raises(ConfigError, match="b.yml: there are two accounts with accessKey some-key"):
        AccessRules.of({"a.yml": file, "b.yml": file})


def test_the_repr_of_an_account_does_not_show_its_secret():
    settings = AccountSettings("some-key", "some-secret")
    assert "some-secret" not in f"{settings!r} {Account(settings)!r} {AclFile(accounts=[settings])}"
