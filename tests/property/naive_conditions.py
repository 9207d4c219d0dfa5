"""Random conditions, and an evaluator that follows RocketMQ's classes line by line.

It shares nothing with the broker's own: trees are nested tuples, made here, written out as text by
one function and judged by another. Every value is a pair of its Java class and itself.
"""

import math
import re

from hypothesis import strategies as st

NAMES = ["a", "b", "c", "TAGS", "_d", "$e", "Between1", "nulls"]
SEARCHES = ["CONTAINS", "STARTSWITH", "ENDSWITH"]


class Failed(Exception):
    """Java would have thrown."""


# Trees

texts = st.text("ab'5. -", max_size=4)
whole = st.one_of(st.integers(0, 9), st.sampled_from([2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1]))
floating = st.sampled_from(["0.5", "5.", ".5", "5E0", "7.25", "3e9", "9007199254740992.0", "5.0"])
numbers = st.tuples(st.just("decimal"), whole) | st.tuples(st.just("floating"), floating)
known = numbers | st.tuples(st.just("text"), texts) | st.tuples(st.just("truth"), st.booleans())
truths = st.tuples(st.just("truth"), st.sampled_from([True, False, None]))
constants = known | truths
names = st.tuples(st.just("property"), st.sampled_from(NAMES))


def grown(inner):
    """Any tree that the grammar allows; many of them are refused."""
    signs = st.sampled_from(["<", "<=", ">", ">=", "=", "<>"])
    return st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), inner, inner),
        st.tuples(st.just("not"), inner),
        st.tuples(st.just("minus"), inner),
        st.tuples(st.just("compare"), signs, inner, inner),
        st.tuples(st.just("null"), inner, st.booleans()),
        st.tuples(st.just("between"), names | constants, inner, inner, st.booleans()),
        st.tuples(st.just("in"), names, st.lists(texts, min_size=1, max_size=6), st.booleans()),
        st.tuples(st.sampled_from(SEARCHES), names | inner, texts, st.booleans()),
    )


def sensible(inner):
    """A tree that is nearly always accepted."""
    orders = st.sampled_from(["<", "<=", ">", ">="])
    equals = st.sampled_from(["=", "<>"])
    return st.one_of(
        st.tuples(st.just("compare"), orders, names, names | numbers),
        st.tuples(st.just("compare"), orders, names | numbers, names),
        st.tuples(st.just("compare"), equals, names, names | known),
        st.tuples(st.sampled_from(["and", "or"]), inner, inner),
        st.tuples(st.just("not"), inner),
        st.tuples(st.just("null"), names | inner, st.booleans()),
        st.tuples(st.just("between"), names, names | numbers, names, st.booleans()),
        st.tuples(st.just("in"), names, st.lists(texts, min_size=1, max_size=6), st.booleans()),
        st.tuples(st.sampled_from(SEARCHES), names, texts, st.booleans()),
    )


trees = st.one_of(
    st.recursive(names | constants, grown, max_leaves=6),
    st.recursive(names | truths, sensible, max_leaves=12),
)
values = st.one_of(
    st.sampled_from(["5", "-5", "+5", "05", "5.0", "7.25", "5 ", " 5", "5d", "true", "TRUE"]),
    st.sampled_from(["false", "NaN", "Infinity", "-Infinity", "-0.0", "0.0", "0", "1e400"]),
    st.sampled_from(["2147483648", "9007199254740993", "9223372036854775808", "0x1p2", "٥"]),
    texts.filter(bool),
)
messages = st.dictionaries(st.sampled_from(NAMES), values)


# Writing


def written(tree, draw_word):
    """A tree as text; every part in brackets, so that it is read as it was made."""
    kind, *parts = tree
    if kind in {"decimal", "floating", "property"}:
        return str(parts[0])
    if kind == "text":
        return quoted(parts[0])
    if kind == "truth":
        return draw_word({True: "TRUE", False: "FALSE", None: "NULL"}[parts[0]])
    if kind in {"and", "or"}:
        return f"({written(parts[0], draw_word)} {draw_word(kind)} {written(parts[1], draw_word)})"
    if kind == "not":
        return f"{draw_word('not')} ({written(parts[0], draw_word)})"
    if kind == "minus":
        return f"- {written(parts[0], draw_word)}"
    if kind == "compare":
        return f"({written(parts[1], draw_word)}{parts[0]}{written(parts[2], draw_word)})"
    deny = f"{draw_word('not')} " if parts[-1] else ""
    left = written(parts[0], draw_word)
    if kind == "null":
        return f"({left} {draw_word('is')} {deny}{draw_word('null')})"
    if kind == "between":
        low, high = written(parts[1], draw_word), written(parts[2], draw_word)
        return f"({left} {deny}{draw_word('between')} {low} {draw_word('and')} {high})"
    if kind == "in":
        items = ",".join(quoted(value) for value in parts[1])
        return f"({left} {deny}{draw_word('in')} ({items}))"
    return f"({left} {deny}{draw_word(kind)} {quoted(parts[1])})"


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


# What is refused


def is_taken(tree):
    """Whether RocketMQ's parser accepts it as a whole expression."""
    return is_allowed(tree) and is_boolean(tree)


def is_boolean(tree):
    return tree[0] not in {"decimal", "floating", "text", "minus"}


def is_logical(tree):
    """An instance of BooleanExpression; a property only becomes one where one is due."""
    return is_boolean(tree) and tree[0] != "property"


def is_constant(tree):
    return tree[0] in {"decimal", "floating", "text", "truth"}


def is_ordered(tree):
    return tree[0] in {"decimal", "floating", "property", "minus"}


def is_allowed(tree):
    kind, *parts = tree
    if is_constant(tree) or kind == "property":
        return True
    inner = [part for part in parts if isinstance(part, tuple)]
    if not all(is_allowed(part) for part in inner):
        return False
    if kind in {"and", "or", "not"}:
        return all(is_boolean(part) for part in inner)
    if kind == "between":
        low, high = inner[1:]
        if not all(is_ordered(part) for part in inner):
            return False
        if is_constant(low) and is_constant(high) and not parts[-1]:
            return java_compare(constant(high), constant(low)) >= 0
    if kind == "compare":
        left, right = inner
        if parts[0] in {"=", "<>"}:
            if ("truth", None) in (left, right):
                return False
            return not (left[0] == "truth" and right[0] in {"decimal", "floating", "text"})
        return is_ordered(left) and is_ordered(right)
    return True


# Judging


def constant(tree):
    kind, value = tree
    if kind == "decimal":
        return ("Integer" if value < 2**31 else "Long", value)
    if kind == "floating":
        return ("Double", float(value))
    if kind == "text":
        return ("String", value)
    return None if value is None else ("Boolean", value)


def judged(tree, message):
    """What Java's ``evaluate`` returns: ``None``, or a pair of class and value."""
    kind, *parts = tree
    if is_constant(tree):
        return constant(tree)
    if kind == "property":
        return ("String", message[parts[0]]) if parts[0] in message else None
    if kind in {"and", "or"}:
        return logical(kind == "or", parts, message)
    if kind == "not":
        inner = condition(parts[0], message)
        return None if inner is None else ("Boolean", not inner[1])
    if kind == "minus":
        inner = judged(parts[0], message)
        if inner is None or inner[0] not in {"Integer", "Long", "Double"}:
            return None
        return (inner[0], -inner[1])
    if kind == "compare":
        sign, left, right = parts
        if sign == "=":
            return equals(judged(left, message), judged(right, message))
        if sign == "<>":
            same = equals(judged(left, message), judged(right, message))
            return None if same is None else ("Boolean", not same[1])
        return ordering(sign, left, right, message)
    return special(kind, parts, message)


def special(kind, parts, message):
    denied = parts[-1]
    if kind == "null":
        same = equals(judged(parts[0], message), None)
        return ("Boolean", same[1] is not denied)
    if kind == "between":
        of, low, high, _ = parts
        if denied:
            return logical(True, [("compare", "<", of, low), ("compare", ">", of, high)], message)
        return logical(False, [("compare", ">=", of, low), ("compare", "<=", of, high)], message)
    if kind == "in":
        value = judged(parts[0], message)
        return None if value is None else ("Boolean", (value[1] in parts[1]) is not denied)
    if not parts[1]:
        return ("Boolean", False)
    value = judged(parts[0], message)
    if value is None or value[0] != "String":
        return ("Boolean", False)
    found = {
        "CONTAINS": parts[1] in value[1],
        "STARTSWITH": value[1][: len(parts[1])] == parts[1],
        "ENDSWITH": value[1][-len(parts[1]) :] == parts[1],
    }[kind]
    return ("Boolean", found is not denied)


def condition(tree, message):
    value = judged(tree, message)
    if tree[0] == "property":
        return None if value is None else ("Boolean", value == ("Boolean", True))
    return value


def logical(decisive, parts, message):
    left = condition(parts[0], message)
    if left == ("Boolean", decisive):
        return left
    right = condition(parts[1], message)
    if right == ("Boolean", decisive):
        return right
    return None if left is None or right is None else ("Boolean", not decisive)


def equals(left, right):
    if left is None and right is None:
        return ("Boolean", True)
    if left is None:
        return None
    if right is None:
        return ("Boolean", False)
    return ("Boolean", left[0] == right[0] == "String" and left == right or same(left, right))


def same(left, right):
    return java_compare(left, right) == 0


def ordering(sign, left_tree, right_tree, message):
    left = judged(left_tree, message)
    if left is None:
        return None
    right = judged(right_tree, message)
    if right is None:
        return None
    if left[0] == right[0] == "String":
        left, right = ("Double", java_double(left[1])), ("Double", java_double(right[1]))
    answer = java_compare(left, right)
    truth = {"<": answer < 0, "<=": answer <= 0, ">": answer > 0, ">=": answer >= 0}[sign]
    return ("Boolean", truth)


def java_compare(left, right):
    if left[0] != right[0]:
        wider = [kind for kind in ("Integer", "Long", "Double") if kind in (left[0], right[0])]
        if left[0] == "Boolean":
            if right[0] == "String":
                raise Failed
            return -1
        if right[0] == "Boolean":
            if left[0] != "String":
                return -1
            left = ("Boolean", left[1].lower() == "true")
        elif left[0] == "String":
            left = (right[0], java_number(right[0], left[1]))
        elif right[0] == "String":
            right = (left[0], java_number(left[0], right[1]))
        elif wider[-1] == "Double":
            left, right = ("Double", float(left[1])), ("Double", float(right[1]))
    if left[0] == right[0] == "Double":
        return java_compare_doubles(left[1], right[1])
    return -1 if left[1] < right[1] else int(left[1] > right[1])


def java_compare_doubles(left, right):
    def place(value):
        if math.isnan(value):
            return (2, 0.0, 0)
        return (0, value, math.copysign(1, value))

    first, second = place(left), place(right)
    return -1 if first < second else int(first > second)


def java_number(kind, text):
    if kind == "Double":
        return java_double(text)
    if not re.fullmatch(r"[+-]?[0-9٥]+", text):
        raise Failed
    number, bits = int(text), 31 if kind == "Integer" else 63
    if not -(2**bits) <= number < 2**bits:
        raise Failed
    return number


def java_double(text):
    text = text.strip("".join(chr(code) for code in range(33)))
    special = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf, "0x1p2": 4.0}
    if text in special:
        return special[text]
    match = re.fullmatch(
        r"([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?)[df]?", text, re.IGNORECASE
    )
    if match is None:
        raise Failed
    return float(match[1])
