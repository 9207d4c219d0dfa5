"""A run as JSON, for programs. Pure."""

from __future__ import annotations

import msgspec

from txmq.errors import ReconcileRefused
from txmq.reconcile.report import facts
from txmq.reconcile.summary import Run

__all__ = ["as_json", "read_json"]


def as_json(run: Run) -> bytes:
    """A run as JSON: the same bytes for the same run, with names in the order of the alphabet.

    The object has the fields of :class:`txmq.reconcile.summary.Run`, which are documented there,
    and one more::

        figures
            match_rate      the share of agreed transfers, from 0 to 1
            transfers       how many there are
            breaks          how many of these are breaks
            open            how many are in flight or explained
            at_risk         what breaks are worth: {"CNY": 120000}
            in_flight       {"transfers": 3, "amounts": {"CNY": 4500}}
            oldest_days     the age of the oldest break in business days; null without breaks
            oldest_is_exact whether it is known to the day, or is the least that it can be
            signature       unsigned, prepared, signed or invalidated

    Every amount is a whole number of minor units; ``result.digits`` says how many of its figures
    stand behind the point. Hash totals have up to 19 figures: read them with a parser that knows
    whole numbers, as Python's does and JavaScript's does not. Moments end in ``_ms`` and are
    milliseconds since 1970 in UTC.
    """
    plain = msgspec.to_builtins(run)
    plain["figures"] = _figures(run)
    text = msgspec.json.encode(plain, order="sorted")
    return msgspec.json.format(text, indent=1) + b"\n"


def read_json(text: bytes) -> Run:
    """The run that :func:`as_json` wrote.

    Raises:
        ReconcileRefused: The text is no summary of a run.
    """
    try:
        return msgspec.json.decode(text, type=Run)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReconcileRefused(f"this is no summary of a run: {error}") from error


def _figures(run: Run) -> dict[str, object]:
    result = run.result
    oldest = facts.oldest(result)
    count, amounts = facts.in_flight(result)
    return {
        "match_rate": result.match_rate,
        "transfers": result.transfers,
        "breaks": result.breaks,
        "open": facts.days(run)[-1].open,
        "at_risk": result.at_risk,
        "in_flight": {"transfers": count, "amounts": amounts},
        "oldest_days": None if oldest is None else oldest.days,
        "oldest_is_exact": oldest is None or oldest.is_exact,
        "signature": facts.signature(run),
    }
