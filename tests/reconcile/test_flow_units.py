"""A flow's amounts are in minor units, or in major ones that become minor units exactly."""

from types import SimpleNamespace

import pytest

from txmq.reconcile.log.flows import facts_of
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
def test_major_units_become_minor_ones(amount, currency, told):
    assert read(amount, currency) == (told, None)


@pytest.mark.parametrize(
    "amount", ["12.345", "true", '"1,5"', "1e2", "null", '"9999999999999999999"']
)
def test_an_amount_that_is_not_whole_minor_units_is_a_problem(amount):
    found, problem = read(amount, '"CNY"')

    assert found is None
    assert "amount" in problem


def test_the_currency_of_all_messages_has_digits_too():
    assert read("1.5", "1", currency=Constant("BHD")) == (1500, None)
    assert read("15", '"BHD"', units="minor") == (15, None)
    assert read("1", "[1]")[0] == 100  # The problem is the currency.
