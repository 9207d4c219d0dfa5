"""A run as JSON, for programs. Pure."""

from __future__ import annotations

import msgspec

from txmq.reconcile.summary import Run

__all__ = ["as_json"]


def as_json(run: Run) -> bytes:
    """A run as JSON: the same bytes for the same run, with sorted names.

    The object has the fields of :class:`txmq.reconcile.summary.Run`, which are documented there,
    and one more::

        figures
            match_rate      the share of agreed transfers, from 0 to 1
            transfers       their number
            breaks          the number of breaks
            open            the number in flight or explained
            at_risk         the amounts of breaks: {"CNY": 120000}
            in_flight       {"transfers": 3, "amounts": {"CNY": 4500}}
            signature       unsigned, prepared, signed or invalidated

    Every amount is a whole number of minor units; ``result.digits`` has the digits after the
    point. Hash totals have up to 19 digits: read them with a parser that keeps whole numbers, such
    as Python's, but not JavaScript's. Moments end in ``_ms`` and are
    milliseconds since 1970 in UTC.
    """
    result, flying = run.result, run.result.in_flight
    figures = {
        "match_rate": result.match_rate,
        "transfers": result.transfers,
        "breaks": result.breaks,
        "open": result.past.open,
        "at_risk": result.at_risk,
        "in_flight": {
            "transfers": sum(total.transfers for total in flying),
            "amounts": {total.currency: total.at_risk for total in flying},
        },
        "signature": run.signature,
    }
    text = msgspec.json.encode(msgspec.to_builtins(run) | {"figures": figures}, order="sorted")
    return msgspec.json.format(text, indent=1) + b"\n"
