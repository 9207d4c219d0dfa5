"""Orders and advices: bytes to values and back, and invalid ones are refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.bank_transfer.money import DIGITS
from examples.bank_transfer.orders import (
    AMOUNT_MAX,
    Advice,
    Order,
    Outcome,
    Reason,
    Refused,
    read_advice,
    read_order,
    see_order,
)
from txmq.errors import RollBack

GOOD = Order("t-1", "A-1", "B-1", 10_000_00)
BODY = '{{"id":"t","payer":"A","payee":"B","amount":{}}}'
DEPTH = 100_000
ODD = ["", " ", "\x00", "a\x00", "a b", "ä", "１", "a\n", "-a", "a/b", "a'--", "\ud800", "A" * 65]
SENSELESS = {Reason.BAD_ORDER, Reason.BAD_ADVICE, Reason.BAD_AMOUNT, Reason.OVER_LIMIT}

orders = st.builds(
    Order,
    id=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", fullmatch=True),
    payer=st.from_regex(r"[A-Z0-9][A-Z0-9-]{0,33}", fullmatch=True),
    payee=st.from_regex(r"[A-Z0-9][A-Z0-9-]{0,33}", fullmatch=True),
    amount=st.integers(1, AMOUNT_MAX),
    currency=st.sampled_from(sorted(DIGITS)),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.text(), scalars, max_size=2)
fields = st.sampled_from(["id", "payer", "payee", "amount", "currency", "more"])


@given(orders)
def test_a_valid_order_survives_encoding(order):
    see_order(order)

    assert read_order(msgspec.json.encode(order)) == order


@given(st.builds(Advice, orders.map(lambda order: order.id), st.sampled_from(Outcome), st.text()))
def test_an_advice_survives_encoding(advice):
    assert read_advice(msgspec.json.encode(advice)) == advice


@pytest.mark.parametrize("read", [read_order, read_advice])
@given(body=st.binary())
def test_random_bytes_are_refused(read, body):
    with pytest.raises(Refused):
        read(body)


@pytest.mark.parametrize("read", [read_order, read_advice])
@given(given=st.dictionaries(fields, values))
def test_fields_of_any_type_are_accepted_or_refused_with_a_reason(read, given):
    said = None
    try:
        found = read(msgspec.json.encode(given))
        if isinstance(found, Order):
            see_order(found)
    except Refused as error:
        said = error.reason

    assert said is None or said in SENSELESS


@pytest.mark.parametrize(
    "amount",
    [
        *(
            "1.0",
            "1.5",
            "1e2",
            "1e400",
            "NaN",
            "Infinity",
            "true",
            "null",
            '"5"',
            "[5]",
            "01",
            "+1",
        ),
        "9" * 5_000,
    ],
)
def test_an_amount_that_is_not_a_whole_number_is_refused(amount):
    with pytest.raises(Refused) as refused:
        read_order(BODY.format(amount).encode())

    assert refused.value.reason is Reason.BAD_ORDER


@pytest.mark.parametrize(
    ("amount", "reason"),
    [
        (0, Reason.BAD_AMOUNT),
        (-1, Reason.BAD_AMOUNT),
        (-(2**63) - 1, Reason.BAD_AMOUNT),
        (-(10**4_000), Reason.BAD_AMOUNT),
        (AMOUNT_MAX + 1, Reason.OVER_LIMIT),
        (2**63, Reason.OVER_LIMIT),
        (10**4_000, Reason.OVER_LIMIT),
    ],
)
def test_an_amount_out_of_range_is_refused(amount, reason):
    order = read_order(BODY.format(amount).encode())

    with pytest.raises(Refused) as refused:
        see_order(order)

    assert refused.value.reason is reason


@pytest.mark.parametrize("amount", [1, AMOUNT_MAX])
def test_the_smallest_and_the_largest_amount_can_be_sent(amount):
    order = read_order(BODY.format(amount).encode())

    see_order(order)

    assert order.amount == amount


@pytest.mark.parametrize(
    ("currency", "words"), [("CNY", "5,000,000.00 CNY"), ("JPY", "500,000,000 JPY")]
)
def test_a_refusal_names_the_limit_as_a_formatted_amount(currency, words):
    with pytest.raises(Refused, match=words):
        see_order(Order("t", "A", "B", AMOUNT_MAX + 1, currency))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xef\xbb\xbf{}",
        b'{"id":"t","payer":"A","payee":"B","amount":1} 2',
        b'{"id":"\\ud800","payer":"A","payee":"B","amount":1}',
        b'{"id":"\xff","payer":"A","payee":"B","amount":1}',
        b'{"id":"t","payer":"A","payee":"B","amount":1,"currency":null}',
        b"[" * DEPTH,
        b'{"more":' * DEPTH,
        b'{"more":' + b"[" * DEPTH + b"]" * DEPTH + b"}",
    ],
    ids=range(12),
)
@pytest.mark.parametrize("read", [read_order, read_advice])
def test_an_empty_or_incomplete_body_is_refused(read, body):
    with pytest.raises(Refused):
        read(body)


def test_fields_added_by_a_later_version_are_ignored():
    more = msgspec.json.encode({**msgspec.to_builtins(GOOD), "purpose": "rent"})

    assert read_order(more) == GOOD


@pytest.mark.parametrize("name", ["id", "payer", "payee", "currency"])
@pytest.mark.parametrize("odd", ODD)
def test_an_invalid_id_account_or_currency_is_refused(name, odd):
    with pytest.raises(Refused):
        see_order(Order(**{**msgspec.to_builtins(GOOD), name: odd}))


@pytest.mark.parametrize("of", ["", " ", "\x00", "a" * 65, "../x", "ä"])
def test_an_advice_with_an_invalid_transfer_id_is_refused(of):
    with pytest.raises(Refused) as refused:
        read_advice(msgspec.json.encode(Advice(of, Outcome.CREDITED)))

    assert refused.value.reason is Reason.BAD_ADVICE


def test_a_refusal_is_a_rollback_with_a_reason():
    error = Refused(Reason.UNKNOWN_ACCOUNT, "A-9")

    assert isinstance(error, RollBack)
    assert str(error) == "there is no such account: A-9"
    assert str(Refused(Reason.DRILL)) == "the drill says so"
