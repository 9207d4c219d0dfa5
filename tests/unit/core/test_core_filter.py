"""Conditions: their results, and which are refused, at which position and why.

The expected results are those of RocketMQ's own filter module, read in its sources.
"""

import pytest

from txmq.errors import InternalError, SubscriptionInvalid
from txmq.limits import FILTER_DEPTH_MAX, FILTER_OPERANDS_MAX, SUBSCRIPTION_CHARS_MAX
from txmq.protocol import properties
from txmq.protocol.bodies import SubscriptionData
from txmq_broker.config import FilterSettings
from txmq_broker.core.filter.condition import Condition
from txmq_broker.core.filter.filters import Filters, TagFilter
from txmq_broker.core.filter.parser import parse

FAILS = "fails"
PROPS = {
    "a": "5", "big": "3000000000", "half": "2.5", "word": "eu", "yes": "true", "no": "FALSE",
    "minus": "-7", "plus": "+7", "nan": "NaN", "inf": "Infinity", "zero": "0", "spaced": " 5 ",
    "quoted": "it's", "TAGS": "TagA", "_x": "1", "$y": "2",
}  # fmt: skip
TEXT = properties.render(PROPS)

# Absent properties are called m1, m2: NULL.
NUMBERS = {
    "a > 4": True, "a > 5": False, "a >= 5": True, "a >= 6": False, "a < 6": True, "a < 5": False,
    "a <= 5": True, "a <= 4": False, "a = 5": True, "a = 6": False, "a <> 5": False, "a <> 6": True,
    "4 < a": True, "6 < a": False, "5 = a": True, "5 <> a": False, "a = 5L": True, "a = 5l": True,
    "a = 5.0": True, "a = 5.": True, "a > .5": True, "a = 0.5E1": True, "a = 5e0": True,
    "a = 5E+0": True, "a = 50E-1": True, "half = 2.5": True, "half > 2.4": True, "half < 2.6": True,
    "half > 2": FAILS, "half = 2": FAILS, "2 < half": FAILS, "big = 3000000000": True,
    "big > 2999999999": True, "big > 5": FAILS, "big = 5": FAILS, "big > 5.0": True,
    "a < 3000000000": True, "a < 9223372036854775807": True, "word > 5": FAILS, "word = 5": FAILS,
    "word <> 5": FAILS, "word > 5.5": FAILS, "minus = -7": True, "minus < -6": True,
    "minus > -8.5": True, "minus = - 7": True, "minus = -(7)": True, "minus = - - -7": True,
    "a = -(-5)": True, "a = --5": True, "a = +5": True, "+a = ++5": True, "plus = 7": True,
    "spaced = 5": FAILS, "spaced = 5.0": True, "zero = 0": True, "zero >= 0": True,
    "nan > 1.5": True, "nan >= 1.5": True, "nan < 1.5": False, "nan <= 1.5": False,
    "nan = 1.5": False, "1.5 < nan": True, "1.5 > nan": False, "nan > inf": True, "nan > 5": FAILS,
    "inf > 1.7976931348623157E308": True, "5 = 5": True, "5 = '5'": True, "'5' = 5": True,
    "'5.0' = 5": FAILS, "5 = 'x'": FAILS, "'5.0' = 5.0": True, "5 = 5.0": True, "5.0 = 5": True,
    "5 > 4.5": True, "4 > 4.5": False, "9007199254740993 = 9007199254740992.0": True,
    "3000000000 > 5": True, "5 < 3000000000": True,
}  # fmt: skip
TEXTS = {
    "word = 'eu'": True, "word = 'us'": False, "word <> 'us'": True, "word <> 'eu'": False,
    "'eu' = word": True, "'us' = word": False, "'eu' = 'eu'": True, "quoted = 'it''s'": True,
    "word = ''": False, "word = 'EU'": False, "word = word": True, "word = a": False,
    "a = '5'": True, "a = '5.0'": False, "a > half": True, "half > a": False, "a >= a": True,
    "a > word": FAILS, "word > word": FAILS, "word in ('eu', 'us')": True, "word in ('us')": False,
    "word not in ('us')": True, "word not in ('eu','us')": False, "(word) in ('eu')": True,
    "a in ('5')": True, "word contains 'e'": True, "word contains 'x'": False,
    "word not contains 'x'": True, "word not contains 'e'": False, "word contains ''": False,
    "word not contains ''": False, "word startswith 'e'": True, "word startswith 'u'": False,
    "word not startswith 'u'": True, "word not startswith 'e'": False, "word startswith ''": False,
    "word endswith 'u'": True, "word endswith 'e'": False, "word not endswith 'e'": True,
    "word not endswith 'u'": False, "'eu' contains 'e'": True, "5 contains '5'": False,
    "5 not contains '6'": False, "TRUE contains 'T'": False,
    "word contains 'e' contains 'e'": False, "quoted contains ''''": True, "TAGS = 'TagA'": True,
    "tags = 'TagA'": None, "_x = 1 AND $y = 2": True,
}  # fmt: skip
TRUTHS = {
    "TRUE": True, "FALSE": False, "NULL": None, "true": True, "yes = TRUE": True,
    "yes = true": True, "yes = FALSE": False, "yes <> FALSE": True, "no = FALSE": True,
    "no = TRUE": False, "word = FALSE": True, "a = TRUE": False, "TRUE = yes": FAILS,
    "TRUE = m1": False, "TRUE = TRUE": True, "TRUE = FALSE": False, "TRUE <> FALSE": True,
    "5 = TRUE": False, "'true' = TRUE": True, "'x' = FALSE": True, "TRUE = -5": False,
    "(a = 5) = TRUE": True, "(a = 5) = (word = 'us')": False, "a = 5 = TRUE": True,
    "a = 5 = yes": FAILS, "yes = (a = 5)": True, "yes": False, "m1": None, "NOT yes": True,
    "NOT m1": None, "NOT a = 5": False, "NOT (a = 5)": False, "NOT (a = 6)": True,
    "NOT NOT (a = 5)": True, "NOT TRUE": False, "NOT NULL": None, "(TRUE)": True, "((a = 5))": True,
    "-a = 5": None, "a = -word": False, "-word > 5": None, "5 > -word": None, "-'x' = 5": None,
    "-TRUE = 5": None, "-(half = 2) = 5": FAILS,
}  # fmt: skip
NULLS = {
    "a IS NULL": False, "a IS NOT NULL": True, "m1 IS NULL": True, "m1 IS NOT NULL": False,
    "m1 is not null": False, "NULL IS NULL": True, "5 IS NULL": False, "(a = 5) IS NULL": False,
    "(m1 = 5) IS NULL": True, "a = 5 IS NULL": False, "m1 IS NULL IS NOT NULL": True,
    "m1 = 5": None, "m1 <> 5": None, "m1 > 5": None, "m1 > 5.5": None, "m1 = 'x'": None,
    "m1 <> 'x'": None, "m1 = TRUE": None, "5 = m1": False, "5 <> m1": True, "'x' = m1": False,
    "a = m1": False, "a <> m1": True, "m1 = a": None, "m1 = m2": True, "m1 <> m2": False,
    "5 > m1": None, "m1 > a": None, "m1 > m2": None, "a > m1": None, "m1 in ('x')": None,
    "m1 not in ('x')": None, "m1 contains 'x'": False, "m1 not contains 'x'": False,
    "m1 not startswith 'x'": False, "m1 not endswith 'x'": False, "m1 between 1 and 2": None,
    "m1 not between 1 and 2": None, "a between m1 and 2": False, "a between m1 and 9": None,
    "m1 > -(word = 5)": None,
}  # fmt: skip
LOGIC = {
    "TRUE AND TRUE": True, "TRUE AND FALSE": False, "TRUE AND NULL": None, "FALSE AND TRUE": False,
    "FALSE AND FALSE": False, "FALSE AND NULL": False, "NULL AND TRUE": None,
    "NULL AND FALSE": False, "NULL AND NULL": None, "TRUE OR TRUE": True, "TRUE OR FALSE": True,
    "TRUE OR NULL": True, "FALSE OR TRUE": True, "FALSE OR FALSE": False, "FALSE OR NULL": None,
    "NULL OR TRUE": True, "NULL OR FALSE": None, "NULL OR NULL": None,
    "NULL AND NULL AND FALSE": False, "NULL OR NULL OR TRUE": True, "TRUE OR TRUE AND FALSE": True,
    "(TRUE OR TRUE) AND FALSE": False, "a = 6 OR a = 5 AND word = 'eu'": True,
    "a = 5 AND word = 'us' OR half = 2.5": True, "word = 5 OR a = 5": FAILS,
    "a = 5 OR word = 5": True, "a = 6 AND word = 5": False, "m1 = 5 AND word = 5": FAILS,
    "NOT (word = 5)": FAILS, "yes AND TRUE": False, "m1 OR a = 5": True, "m1 AND a = 5": None,
}  # fmt: skip
RANGES = {
    "a between 0 and 6": True, "a between 5 and 5": True, "a BETWEEN 6 AND 9": False,
    "a between 0 and 4": False, "a not between 0 and 4": True, "a not between 0 and 6": False,
    "a not between 9 and 1": True, "a between -1 and -5": False, "minus between -9 and -5": True,
    "half between 2.0 and 3.0": True, "half between 2 and 3": FAILS, "a between 0.5 and 6.5": True,
    "a between 0 and 6.5": True, "a between 0 and 3000000000": True,
    "big between 5 and 3000000001": FAILS, "a between half and big": True,
    "a between big and half": False, "5 between 4 and 6": True, "a between word and 9": FAILS,
    "a between 6 and word": False, "nan between 1.5 and 2.5": False,
    "a between 0 and 6 and word = 'eu'": True, "a between 0 and 6 = TRUE": True,
}  # fmt: skip
SPELLINGS = {
    "a=5": True, "a>4AND a<6": True, "a=5and word='eu'": True, "\ta\n=\r\f5 ": True,
    "a = 5 -- and word = 'us'": True, "a = 5 -- comment\n AND word = 'us'": False,
    "a = 5 --\r AND word = 'us'": False, "a /* = 6 */ = 5": True, "a = /**/ 5": True,
    "/* one * two ** */ a = 5": True, "-- first\na = 5": True, "a = 5 /* ' */": True,
    "word = '/* no comment */'": False, "word = '-- none'": False, "a Is NoT nUlL": True,
    "word In ('eu')": True, "a BetWeen 0 aNd 9": True, "quoted = 'it''s' OR quoted = ''''": True,
    "word = '\n'": False,
}  # fmt: skip
TABLE = {**NUMBERS, **TEXTS, **TRUTHS, **NULLS, **LOGIC, **RANGES, **SPELLINGS}


def said(expression, text=TEXT):
    condition = Condition(expression)
    try:
        answer = condition._test(f"\x02{text}\x02")
    except ValueError:
        answer = FAILS
    assert condition.admits(text) is (answer is True)
    return answer


def test_conditions_have_the_same_results_as_in_rocketmq():
    assert {expression: said(expression) for expression in TABLE} == TABLE


def test_the_table_has_at_least_150_conditions():
    assert len(TABLE) >= 150


# What is refused: the position from 1, and a part of the reason

REFUSED = {
    "": (1, "expected a property, a number"),
    "   ": (4, "not the end"),
    "a >": (4, "not the end"),
    "a = ": (5, "not the end"),
    "a > 5 b": (7, 'AND, OR, a comparison or the end, not "b"'),
    "a > 5)": (6, 'not ")"'),
    "(a > 5": (7, "AND, OR, a comparison or ), not the end"),
    "a > 5 AND": (10, "not the end"),
    "AND a > 5": (1, 'not "AND"'),
    "a > 5 OR OR b": (10, 'not "OR"'),
    "a = = 5": (5, 'not "="'),
    "a == 5": (4, 'not "="'),
    "a != 5": (3, '"not equal" is <>'),
    "a & b": (3, "'&' is not allowed here"),
    "a = 5;": (6, "';' is not allowed here"),
    "a = 5 % 2": (7, "'%' is not allowed here"),
    "a + 1 > 5": (3, 'not "+"'),
    "a * 2 > 5": (3, "'*' is not allowed here"),
    "word like 'e%'": (6, 'not "like"'),
    "a.b = 5": (2, "'.' is not allowed here"),
    "größe = 5": (3, "'ö' is not allowed here"),
    'word = "eu"': (8, "single quotes"),
    "word = ‘eu’": (8, "single quotes"),
    "word = `eu`": (8, "single quotes"),
    "word = 'eu": (8, "a text begins here and does not end"),
    "word = 'it's'": (12, 'not "s"'),
    "a /* b": (3, "a comment begins here"),
    "a = 5 /*/": (7, "a comment begins here"),
    "a = 007": (5, "does not begin with 0"),
    "a = 0L": (6, 'not "L"'),
    "a = 12abc": (7, 'not "abc"'),
    "a > 5.5.5": (8, 'not ".5"'),
    "a > 9223372036854775808": (5, "at most 9223372036854775807"),
    "a > -9223372036854775808": (6, "at most 9223372036854775807"),
    "a > 99999999999999999999999": (5, "at most 9223372036854775807"),
    "a > 1E400": (5, "from 4.9E-324"),
    "a > 0.0": (5, "write 0 in place of 0.0"),
    "a > 1E-400": (5, "from 4.9E-324"),
    "a > 'x'": (5, "texts have no order"),
    "'x' > a": (1, "texts have no order"),
    "a > TRUE": (5, "truth values have no order"),
    "a > NULL": (5, "truth values have no order"),
    "NULL < a": (1, "truth values have no order"),
    "(a = 5) > 3": (1, "truth values have no order"),
    "a > 1 > 0": (1, "truth values have no order"),
    "a > (b = 5)": (5, "truth values have no order"),
    "NOT a > 5": (1, "write NOT (...)"),
    "a = 5 AND NOT b < 3": (11, "write NOT (...)"),
    "NOT word in ('eu')": (1, "the name of a property on the left of IN"),
    "a = NULL": (5, "write IS NULL"),
    "NULL = a": (1, "write IS NULL"),
    "a <> NULL": (6, "write IS NULL"),
    "TRUE = 5": (1, "a truth value cannot be compared"),
    "TRUE = 'x'": (1, "a truth value cannot be compared"),
    "FALSE <> 5.5": (1, "a truth value cannot be compared"),
    "a between 10 and 0": (11, "the lower bound is greater"),
    "a between 5 and 4.5": (11, "the lower bound is greater"),
    "a between 'a' and 'b'": (11, "texts have no order"),
    "a between NULL and 5": (11, "truth values have no order"),
    "a between 1 and NULL": (17, "truth values have no order"),
    "a between 1, 5": (12, "AND and the upper bound"),
    "a between 1 and": (16, "not the end"),
    "between 1 and 5": (1, 'not "between"'),
    "a and between 2 and 10": (7, 'not "between"'),
    "'x' between 1 and 5": (1, "texts have no order"),
    "a in (1, 2)": (7, 'a text in single quotes, not "1"'),
    "a in ()": (7, 'a text in single quotes, not ")"'),
    "a in ('x',)": (11, 'a text in single quotes, not ")"'),
    "a in ('x' 'y')": (11, 'expected "," or ")", not \'y\''),
    "a in ('x'": (10, 'expected "," or ")", not the end'),
    "a in 'x'": (6, "( and texts"),
    "5 in ('5')": (1, "the name of a property"),
    "'x' in ('x')": (1, "the name of a property"),
    "-a in ('5')": (1, "the name of a property"),
    "a contains b": (12, "a text in single quotes"),
    "a contains 5": (12, "a text in single quotes"),
    "a contains": (11, "not the end"),
    "a startswith ('x')": (14, "a text in single quotes"),
    "a not": (6, "expected BETWEEN, IN"),
    "a not 5": (7, "expected BETWEEN, IN"),
    "a not = 5": (7, "expected BETWEEN, IN"),
    "a is": (5, "NULL or NOT NULL"),
    "a is 5": (6, "NULL or NOT NULL"),
    "a is not": (9, "expected NULL, not the end"),
    "a is TRUE": (6, "NULL or NOT NULL"),
    "5": (1, "expected a condition"),
    "5.5": (1, "expected a condition"),
    "'x'": (1, "expected a condition"),
    "-a": (1, "expected a condition"),
    "a = 5 AND 5": (11, "expected a condition"),
    "'x' OR a": (1, "expected a condition"),
    "NOT 5": (5, "expected a condition"),
    "NOT -a": (5, "expected a condition"),
    "a = 5 AND ('x')": (11, "expected a condition"),
    "()": (2, 'not ")"'),
    "a = 5 -- x\n b": (13, 'not "b"'),
    "a = -- 5\n": (10, "not the end"),
    "minus = --7\n": (13, "not the end"),
    "\x00": (1, r"'\x00' is not allowed here"),
    "a = 💩": (5, "'💩' is not allowed here"),
}


def test_an_invalid_condition_is_refused_with_its_position_and_the_reason():
    for expression, (position, reason) in REFUSED.items():
        with pytest.raises(SubscriptionInvalid) as refused:
            pytest.fail(f"accepted: {Condition(expression)} from {expression!r}")

        assert reason in str(refused.value), expression
        assert refused.value.position == position, expression
        assert f"at position {position}:" in refused.value.remark, expression


def test_a_refusal_without_a_position_has_none():
    assert SubscriptionInvalid("Invalid MessageSelector.").position is None


def test_a_refusal_does_not_repeat_a_long_word_in_full():
    with pytest.raises(SubscriptionInvalid) as refused:
        Condition("a = 5 " + "b" * 10_000)

    assert len(refused.value.remark) < 200


# Properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x015", True),
        ("a\x015\x02", True),
        ("x\x01a\x02a\x015\x02b\x016\x02", True),
        ("a\x016\x02a\x015\x02", True),
        ("a\x015\x02a\x016\x02", False),
        ("a\x015\x02a\x01\x02", True),
        ("a\x01", None),
        ("a\x02", None),
        ("", None),
        ("ba\x015\x02", None),
        ("A\x015\x02", None),
        ("x\x01a\x015\x02", None),
    ],
)
def test_a_condition_finds_a_property_as_the_parser_does(text, expected):
    assert said("a = 5", text) is expected
    assert (properties.parse(text).get("a") == "5") is (expected is True)


@pytest.mark.parametrize(
    ("value", "is_whole", "is_long", "is_number"),
    [
        ("7", True, True, True),
        ("007", True, True, True),
        ("+7", True, True, True),
        ("-7", False, False, False),
        ("٧", True, True, FAILS),
        ("𝟕", FAILS, FAILS, FAILS),
        ("7_0", FAILS, FAILS, FAILS),
        (" 7", FAILS, FAILS, True),
        ("7\t", FAILS, FAILS, True),
        ("\xa07", FAILS, FAILS, FAILS),
        ("7.", FAILS, FAILS, True),
        ("7.0", FAILS, FAILS, True),
        ("70e-1", FAILS, FAILS, True),
        ("7d", FAILS, FAILS, True),
        ("7F", FAILS, FAILS, True),
        ("0x7p0", FAILS, FAILS, True),
        ("0x1.Cp2", FAILS, FAILS, True),
        ("0x7", FAILS, FAILS, FAILS),
        ("0x1p999999", FAILS, FAILS, False),
        ("-0x1p999999", FAILS, FAILS, False),
        ("nan", FAILS, FAILS, FAILS),
        ("inf", FAILS, FAILS, FAILS),
        ("-Infinity", FAILS, FAILS, False),
        ("infinity", FAILS, FAILS, FAILS),
        ("+", FAILS, FAILS, FAILS),
        ("-", FAILS, FAILS, FAILS),
        (".", FAILS, FAILS, FAILS),
        ("e5", FAILS, FAILS, FAILS),
        ("1e", FAILS, FAILS, FAILS),
        ("--7", FAILS, FAILS, FAILS),
        ("2147483647", False, False, False),
        ("2147483648", FAILS, False, False),
        ("-2147483648", False, False, False),
        ("-2147483649", FAILS, False, False),
        ("9223372036854775808", FAILS, FAILS, False),
        ("-9223372036854775808", FAILS, False, False),
        ("7" * 1_101, FAILS, FAILS, FAILS),
        (" " * 1_100 + "7", FAILS, FAILS, FAILS),
        ("0" * 1_000 + "7", True, True, True),
    ],
)
def test_texts_are_converted_to_numbers_as_in_java(value, is_whole, is_long, is_number):
    text = properties.render({"v": value})

    assert said("v = 7", text) is is_whole
    assert said("v between 7 and 7", text) is is_whole
    assert (said("v = 3000000000", text) is FAILS) is (is_long is FAILS)
    assert said("v = 7.0", text) is is_number


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [("0.0", "-0.0", True), ("-0.0", "0.0", False), ("0", "0.0", False), ("NaN", "NaN", False)],
)
def test_two_texts_are_compared_as_doubles_as_in_java(left, right, expected):
    assert said("a > b", properties.render({"a": left, "b": right})) is expected


@pytest.mark.parametrize("value", ["true", "TRUE", "tRuE"])
def test_the_text_true_counts_in_upper_and_lower_case(value):
    assert said("v = TRUE", properties.render({"v": value})) is True


# Bounds


@pytest.mark.parametrize(
    ("before", "behind"), [("(", ")"), ("NOT (", ")"), ("NOT ", ""), ("-(", ")"), ("+", "")]
)
def test_the_nesting_of_a_condition_is_limited(before, behind):
    parse(before * 20 + "a IS NULL" + behind * 20 + " IS NULL")

    with pytest.raises(SubscriptionInvalid, match=f"nested at most {FILTER_DEPTH_MAX} deep"):
        parse(before * 2_000 + "a" + behind * 2_000)


@pytest.mark.parametrize("more", [" = b", " IS NULL", " <> TRUE", " contains 'x'"])
def test_a_chain_of_comparisons_counts_as_nesting(more):
    Condition("a" + more * 20).admits("")

    with pytest.raises(SubscriptionInvalid, match="nested"):
        parse("a" + more * 1_000)


def test_a_condition_of_the_greatest_depth_is_evaluated():
    depth = FILTER_DEPTH_MAX - 2
    condition = Condition("NOT " * depth + "TRUE")

    assert condition.admits("") is (depth % 2 == 0)


def test_the_number_of_operands_of_a_condition_is_limited():
    half = FILTER_OPERANDS_MAX // 2
    text = " OR ".join(["a=5"] * half)

    assert Condition(text).operands == FILTER_OPERANDS_MAX
    assert Condition(text).admits(TEXT)
    with pytest.raises(SubscriptionInvalid, match="at most 1024 properties and constants"):
        parse(text + " OR b")


def test_the_length_of_a_condition_is_limited():
    filters().of(sql("a IN (" + ",".join(["'x'"] * 4_000) + ")"))
    padded = "a = 5".ljust(SUBSCRIPTION_CHARS_MAX)
    filters().of(sql(padded))

    with pytest.raises(SubscriptionInvalid, match="at most 16384 characters, not 16385"):
        filters().of(sql(padded + " "))


# Filters of subscriptions


def filters(*, sql=True, chars_max=100):
    return Filters(FilterSettings(sql=sql), chars_max)


def sql(text, kind="SQL92"):
    return SubscriptionData("T", text, expression_type=kind)


def test_a_condition_is_parsed_once():
    kept = filters()

    assert kept.of(sql("a > 5")) is kept.of(sql("a > 5"))
    assert kept.of(sql("a > 5")) is not kept.of(sql("a > 6"))


def test_an_invalid_condition_is_parsed_once():
    kept = filters()
    for _ in range(2):
        with pytest.raises(SubscriptionInvalid) as refused:
            kept.of(sql("a >"))
        assert refused.value.position == 4
    assert len(kept._kept) == 1


def test_the_least_recently_used_conditions_are_dropped():
    kept = filters(chars_max=10)
    first, second = kept.of(sql("a > 5")), kept.of(sql("a > 6"))
    assert kept.of(sql("a > 5")) is first
    kept.of(sql("a > 7"))

    assert kept.of(sql("a > 5")) is first
    assert kept.of(sql("a > 6")) is not second


def test_a_condition_larger_than_the_cache_is_still_kept():
    kept = filters(chars_max=1)

    assert kept.of(sql("a > 5")) is kept.of(sql("a > 5"))


def test_a_broker_without_conditions_says_how_to_allow_them():
    with pytest.raises(InternalError) as refused:
        filters(sql=False).of(sql("a > 5"))

    words = "The broker does not support consumer to filter message by SQL92"
    assert str(refused.value).startswith(words)
    assert "filter.sql" in str(refused.value)
    assert "enablePropertyFilter" in str(refused.value)


@pytest.mark.parametrize("kind", ["TAG", ""])
def test_tags_are_accepted_by_a_broker_without_conditions(kind):
    assert filters(sql=False).of(sql("*", kind)) is None
    assert isinstance(filters(sql=False).of(sql("A", kind)), TagFilter)


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [("A", "XPATH", "SQL92"), ("A" * 16_385, "TAG", "at most 16384 characters")],
    ids=["of an unknown type", "too long"],
)
def test_an_expression_of_an_unknown_type_or_too_many_tags_is_refused(text, kind, reason):
    with pytest.raises(SubscriptionInvalid, match=reason):
        filters().of(sql(text, kind))
