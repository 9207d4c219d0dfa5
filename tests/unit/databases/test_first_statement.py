"""Which statements can be sent with their BEGIN, and how libpq receives them."""

import pytest

from txmq.databases.postgres import FirstStatement, PsycopgForms
from txmq.transaction.resources import Fence


def test_a_claim_of_the_fence_can_be_sent_with_its_begin():
    claim = Fence().claims["postgresql"]
    given = {"of_xid": "x", "as_outcome": 1, "by_owner": "g", "known": "k", "born_ms": 5}
    words, values = PsycopgForms().of(claim, given)

    first = FirstStatement.of(words)

    assert b"%" not in first.words
    assert [f"${number}".encode() in first.words for number in range(1, 6)] == [True] * 5
    assert first.values(values) == [b"x", b"1", b"g", b"k", b"5"]


def test_a_value_used_twice_has_one_placeholder_number():
    first = FirstStatement.of("INSERT INTO t SELECT %(a)s::TEXT, %(b)s::INT, %(a)s::TEXT, 5 %% 2")

    assert first.words == b"INSERT INTO t SELECT $1::TEXT, $2::INT, $1::TEXT, 5 % 2"
    assert first.places == ("a", "b")


@pytest.mark.parametrize(
    "words",
    [
        "INSERT INTO t VALUES (%(a)s)",  # Its type depends on the value.
        "INSERT INTO t VALUES (%(a)s::TEXT) RETURNING id",
        "SELECT %(a)s::TEXT",
    ],
)
def test_other_statements_are_not_sent_with_their_begin(words):
    assert FirstStatement.of(words) is None


@pytest.mark.parametrize("value", [b"bytes", None, 1.5, True, "half\0a string"])
def test_a_value_that_libpq_cannot_take_as_text_is_left_to_psycopg(value):
    assert FirstStatement.of("INSERT INTO t VALUES (%(a)s::TEXT)").values({"a": value}) is None
