"""Transfer orders in messages, and the facts in their bodies; pure.

Every sender can write anything into a body, so nothing here trusts it: a message that is not a
valid order becomes a row with a problem, never an exception.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, TypeAlias

import msgspec

from txmq.config import did_you_mean
from txmq.errors import ReconcileRefused, RemoteProtocolError
from txmq.protocol import properties
from txmq.protocol.record import Record
from txmq.protocol.topics import RETRY
from txmq.reconcile.extract.file_rows import value_at
from txmq.reconcile.rules import Constant, Flow, Money

__all__ = ["TEXT_CHARS_MAX", "check_names", "facts_of"]

TEXT_CHARS_MAX: Final = 4_096
"""The maximum of characters of an id or an account: a body may have 4 MiB."""
_PROBLEM_CHARS_MAX: Final = 200
_LONG: Final = range(-(2**63), 2**63)
_DECODER: Final = msgspec.json.Decoder()
_EXACT_DECODER: Final = msgspec.json.Decoder(float_hook=Decimal)
_CURRENCY: Final = re.compile(r"[A-Z]{3}")
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that not every table can hold."""
_MAJOR: Final = re.compile(r"-?[0-9]{1,16}(\.[0-9]{1,9})?")


def check_names(
    flows: Sequence[Flow], where: str, topics: set[str], groups: set[str], remedy: str
) -> None:
    """Check that topics and groups exist in the log or the cluster; a retry topic proves its group.

    Raises:
        ReconcileRefused: A name does not exist. The message suggests the nearest one, and the
            remedy, with the kind of name for ``{}``.
    """
    groups = groups | {topic.removeprefix(RETRY) for topic in topics if topic.startswith(RETRY)}
    wanted = [("topic", flow.topic, topics) for flow in flows]
    wanted += [("group", flow.group, groups) for flow in flows if flow.group]
    for kind, name, known in wanted:
        if name not in known:
            hint, what_next = did_you_mean(name, known), remedy.format(kind)
            raise ReconcileRefused(f"the {where} has no {kind} {name!r}{hint}; {what_next}")


_Facts: TypeAlias = tuple[str | None, str | None, str | None, int | None, str | None, str | None]


def facts_of(record: Record, flow: Flow, money: Mapping[str, Money]) -> _Facts:
    """Key, payer, payee, amount and currency in a message, and the problem with them.

    Raises:
        ConfigError: The package that decompresses its body is not installed.
    """
    problems: list[str] = []
    payer = payee = currency = None
    amount: Any = None
    body = _body(record, flow, problems)
    if body is not None and flow.key:
        named = value_at(body, flow.key)
        key = _text(named, flow.key, problems) or _own_key(record, []) or _cut(named)
    else:
        key = _own_key(record, problems)
        if key is None and not problems:
            problems.append("it has no key")
    if body is not None:
        payer = _text(value_at(body, flow.payer), flow.payer, problems)
        payee = _text(value_at(body, flow.payee), flow.payee, problems)
        amount = value_at(body, flow.amount)
        if flow.units == "major":
            given = flow.currency
            code = given.value if isinstance(given, Constant) else value_at(body, given)
            amount = _minor_units(amount, money.get(str(code), Money()))
        if type(amount) is not int or amount not in _LONG:
            problems.append(_why(flow.amount, amount, "whole number of minor units"))
            amount = None
        if isinstance(flow.currency, Constant):
            currency = flow.currency.value
        else:
            currency = _text(value_at(body, flow.currency), flow.currency, problems)
            if currency is not None and _CURRENCY.fullmatch(currency) is None:
                problems.append(_why(flow.currency, currency, "currency such as CNY"))
                currency = None
    if key is not None:
        key = f"{flow.namespace}/{key}"
    return key, payer, payee, amount, currency, "; ".join(problems)[:_PROBLEM_CHARS_MAX] or None


def _body(record: Record, flow: Flow, problems: list[str]) -> dict[str, Any] | None:
    decoder = _DECODER if flow.units == "minor" else _EXACT_DECODER
    try:
        body = decoder.decode(record.plain_body())
        if isinstance(body, dict):
            return body
        why = "its body is not a JSON object"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = f"its body is not JSON: {error}"
    except RemoteProtocolError as error:
        why = str(error)
    problems.append(properties.one_line(why, _PROBLEM_CHARS_MAX))
    return None


def _minor_units(amount: Any, money: Money) -> Any:
    """The minor units of a number in major units; what is not one becomes text, or stays."""
    if not isinstance(amount, int | str | Decimal):
        return amount
    scaled = _MAJOR.fullmatch(str(amount)) and Decimal(amount).scaleb(money.digits)
    return int(scaled) if scaled is not None and scaled % 1 == 0 else str(amount)


def _own_key(record: Record, problems: list[str]) -> str | None:
    """The first of a message's keys; the others are for searches."""
    word, *_ = (properties.find(record.properties, properties.KEYS) or "").split(" ", 1)
    return (_text(word, "its key", problems) or _cut(word)) if word else None


def _text(found: Any, name: str, problems: list[str]) -> str | None:
    """A text as it is; a whole number counts as text."""
    if type(found) is int:
        found = str(found)
    if type(found) is str and found and _is_storable(found):
        if len(found) <= TEXT_CHARS_MAX:
            return found
        problems.append(f"{name} has {len(found):,} characters, more than {TEXT_CHARS_MAX:,}")
    else:
        problems.append(_why(name, found, "name or number"))
    return None


def _cut(key: Any) -> str | None:
    """The beginning of a text that is too long; its last character keeps it from matching."""
    is_text = type(key) is str and key and _is_storable(key)
    return f"{key[:TEXT_CHARS_MAX]}…" if is_text else None


def _is_storable(text: str) -> bool:
    return text.isprintable() or _UNFIT.search(text) is None


def _why(path: str, found: Any, wanted: str) -> str:
    if found is None or found == "":
        return f"it has no {path}"
    return f"{path} is not a {wanted} but {properties.one_line(repr(found), 40)}"
