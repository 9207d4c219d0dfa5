"""Conditions compared with an independent evaluator, and arbitrary text in their place."""

import pytest
from hypothesis import assume, event, example, given
from hypothesis import strategies as st

from tests.property.naive_conditions import Failed, is_taken, judged, messages, trees, written
from txmq.errors import SubscriptionInvalid
from txmq.protocol import properties
from txmq_broker.core.filter.condition import Condition

VALUES = "a b TAGS 5 5.5 5L .5 5E3 0 007 0.0 1e999 99999999999999999999 'x' 'it''s' '' '"
SIGNS = '( ) , = <> > >= < <= + - -- /* */ ! ; é 💩 ‘ " . \x00'
WORDS = "and OR Not between IN true False NULL is contains STARTSWITH endswith"
PHRASES = [
    " ",
    "\n",
    "\t",
    "--x\n",
    "/* */",
    "a in ('x','y')",
    "a between 1 and 2",
    "a is not null",
]
PIECES = [*VALUES.split(), *SIGNS.split(), *WORDS.split(), *PHRASES]
SHAPES = ["lower", "upper", "title", "swapcase"]


def answer_of(condition, message):
    text = properties.render(message)
    try:
        answer = condition._test(f"\x02{text}\x02")
    except ValueError:
        answer = Failed
    assert condition.admits(text) is (answer is True)
    return answer


def expected_of(tree, message):
    try:
        value = judged(tree, message)
    except Failed:
        return Failed
    if tree[0] == "property":
        return None if value is None else False
    return None if value is None else value[1]


@given(trees, messages, st.data())
@example(("compare", ">", ("property", "a"), ("decimal", 5)), {"a": "5.0"}, None)
@example(("compare", "=", ("property", "a"), ("property", "b")), {}, None)
def test_every_condition_agrees_with_the_naive_evaluator(tree, message, data):
    def word(text):
        return text if data is None else getattr(text, data.draw(st.sampled_from(SHAPES)))()

    expression = written(tree, word)
    if not is_taken(tree):
        event("refused")
        with pytest.raises(SubscriptionInvalid) as refused:
            Condition(expression)
        check_place(refused.value, expression)
        return
    condition = Condition(expression)

    answer = answer_of(condition, message)
    event(f"says {answer}")
    assert answer is expected_of(tree, message), expression


@given(trees, messages)
def test_brackets_comments_and_blanks_do_not_change_a_condition(tree, message):
    assume(is_taken(tree))
    plain = written(tree, str.lower)

    for variant in (f"(({plain}))", f"\t{plain} ", f"/* ( */ {plain} -- )", f"-- x\n{plain}"):
        assert answer_of(Condition(variant), message) is answer_of(Condition(plain), message)


@given(trees, trees, messages)
def test_a_conjunction_admits_what_both_conditions_admit(left, right, message):
    assume(is_taken(left) and is_taken(right))
    one, other = written(left, str), written(right, str)

    both = Condition(f"{one} AND {other}").admits(properties.render(message))
    apart = [Condition(condition).admits(properties.render(message)) for condition in (one, other)]
    assert both is all(apart)


def check_place(refused, expression):
    assert 1 <= refused.position <= len(expression) + 1


def works(expression):
    """Whether the condition is accepted; a refusal must name the position of the error."""
    try:
        condition = Condition(expression)
    except SubscriptionInvalid as refused:
        check_place(refused, expression)
        return False
    assert condition.admits("a\x015\x02b\x01x\x02") in {True, False}
    return True


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_refused_with_its_position(expression):
    works(expression)


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from(["", " "]))
def test_random_tokens_are_a_condition_or_refused_with_their_position(pieces, between):
    event("works" if works(between.join(pieces)) else "refused")


@given(trees, st.data())
def test_a_condition_with_one_edit_is_valid_or_refused_with_its_position(tree, data):
    expression = written(tree, str)
    at = data.draw(st.integers(0, len(expression)))
    until = data.draw(st.integers(at, min(len(expression), at + 3)))
    put = data.draw(st.sampled_from(["", *PIECES]))
    broken = expression[:at] + put + expression[until:]

    event("works" if works(broken) else "refused")


@given(st.text(max_size=60), st.sampled_from(["a > 5", "a = 'x'", "a = 2.5", "a > b", "NOT a"]))
def test_a_condition_evaluates_any_property_text(text, expression):
    assert Condition(expression).admits(text) in {True, False}
