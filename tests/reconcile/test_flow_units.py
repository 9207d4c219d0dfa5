"""The facts in an order: amounts become minor units exactly, and ids stay as they are."""

import json
from types import SimpleNamespace

import pytest

from txmq.reconcile.log.collapse import TEXT_CHARS_MAX, facts_of
from txmq.reconcile.rules import Constant, Flow, Money

MONEY = {"CNY": Money(), "JPY": Money(digits=0), "BHD": Money(digits=3)}


def read(amount, code, units="major", **more):
    body = f'{{"payer": "a", "payee": "b", "amount": {amount}, "currency": {code}}}'.encode()
    flow = Flow("Transfers", "icbc", units=units, **more)
    record = SimpleNamespace(plain_body=lambda: body, properties="KEYS\x011\x02")
    _, _, _, found, _, problem = facts_of(record, flow, MONEY)
    return found, problem


@pytest.mark.parametrize(
    ("amount", "currency", "told"),
    [
        ("12.34", '"CNY"', 1234),
        ('"12.30"', '"CNY"', 1230),
        ("-7", '"CNY"', -700),
        ("500", '"JPY"', 500),
        ("0.001", '"BHD"', 1),
        ("90071992547409.93", '"CNY"', 9007199254740993),
    ],
)
def test_major_units_become_minor_units(amount, currency, told):
    assert read(amount, currency) == (told, None)


@pytest.mark.parametrize(
    "amount", ["12.345", "true", '"1,5"', "1e2", "null", '"9999999999999999999"']
)
def test_an_amount_that_is_not_whole_minor_units_is_a_problem(amount):
    found, problem = read(amount, '"CNY"')

    assert found is None
    assert "amount" in problem


def test_a_constant_currency_has_its_own_digits():
    assert read("1.5", "1", currency=Constant("BHD")) == (1500, None)
    assert read("15", '"BHD"', units="minor") == (15, None)
    assert read("1", "[1]")[0] == 100  # The problem is the currency.


def read_ids(id_, keys="", payer="a", **more):
    """The key and the payer of an order, and the problem; ``keys`` are those of its message."""
    order = {"id": id_, "payer": payer, "payee": "b", "amount": 1, "currency": "CNY"}
    body = json.dumps(order).encode()
    record = SimpleNamespace(plain_body=lambda: body, properties=f"KEYS\x01{keys}\x02")
    key, payer, _, _, _, problem = facts_of(record, Flow("Transfers", "icbc", **more), MONEY)
    return key, payer, problem


@pytest.mark.parametrize(
    "id_", ["x" * 256, "x" * TEXT_CHARS_MAX, "T-1\u3000", "T\u200b1", "T\u00a01"]
)
def test_ids_and_accounts_are_kept_unchanged(id_):
    """The books keep them unchanged; changing one here would turn one transfer into two breaks."""
    assert read_ids(id_, key="id", payer=id_) == (f"icbc/{id_}", id_, None)
    assert read_ids("", id_) == (f"icbc/{id_}", "a", None)


@pytest.mark.parametrize(
    ("id_", "shown", "why"),
    [
        ("x" * 4_097, f"icbc/{'x' * 4_096}…", "has 4,097 characters, more than 4,096"),
        ("T\x001", None, r"is not a name or number but 'T\x001'"),
        ("T\ud8001", None, r"is not a name or number but 'T\ud8001'"),
    ],
)
def test_an_id_that_cannot_be_kept_is_reported_with_the_reason(id_, shown, why):
    assert read_ids("", id_) == (shown, "a", f"its key {why}")
    if "\ud800" not in id_:  # That body is not JSON.
        assert read_ids(id_, key="id", payer=id_) == (shown, None, f"id {why}; payer {why}")
