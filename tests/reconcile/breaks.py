"""Rules, transfers and results that tests of a day's end start from."""

import hashlib

import pyarrow as pa

from txmq.reconcile import rules as written
from txmq.reconcile.arrow import arrow_schema
from txmq.reconcile.classes import Class
from txmq.reconcile.explanations import Explanation
from txmq.reconcile.items import BreakLife
from txmq.reconcile.summary import FIGURES, Result, Run, Total
from txmq.reconcile.tables import ITEMS
from txmq.reconcile.transfer import TransferRows


def rules(**changes):
    """Rules of ICBC alone, without any ledger."""
    columns = written.EntryColumns(
        table="journal", key="key", account="account", amount="amount", booked="at",
        currency="currency", kind="kind", namespace="icbc",
    )  # fmt: skip
    bank = written.Bank(name="icbc", database="sqlite:///icbc.db", entries=columns)
    log = written.LogRules(directory="data")
    return written.Rules(name="icbc-ccb", directory="recon", bank=(bank,), log=log, **changes)


def break_id(key):
    return hashlib.sha256(f"icbc-ccb\0{key}".encode()).hexdigest()[:16]


def transfer(key, class_):
    """The facts of a transfer; for the same class they are the same on every day."""
    number = int(hashlib.sha256(key.encode()).hexdigest()[:4], 16)
    last = number + list(Class).index(class_)
    return {
        "key": key, "class": class_, "group": Class(class_).group,
        "amount": number, "currency": "CNY", "holder": "transit",
        "debit_bank": "icbc", "credit_bank": None, "payer": "alice", "payee": "bob",
        "debits": 1, "debited": number, "returns": 0, "returned": 0, "credits": 0, "credited": 0,
        "messages": 1, "ordered": number, "message_id": f"M{number}", "message_state": "committed",
        "delivery": None, "decided_by": None, "reason": None, "is_late": False,
        "first_ms": number, "last_ms": last,
    }  # fmt: skip


def explained(key, class_, more=None):
    """Ann's explanation of a transfer of this class; ``more`` changes its facts."""
    known = transfer(key, class_) | (more or {})
    figures = {name: known[name] for name in FIGURES}
    return Explanation(break_id(key), class_, "ann", "a fee", 1, figures=figures)


def run(day, run_id="a" * 16, *, parked=0, matched=10, is_final=True, version="1"):
    """A run of a day; ``parked`` is the number of its breaks."""
    totals = (
        Total("parked", "break", "CNY", parked, 0, 0, 0, 0, 100 * parked),
        Total("matched", "agreed", "CNY", matched, 0, 0, 0, 0, 0),
    )
    result = Result(
        name="icbc-ccb", business_date=day.isoformat(), rules_version=version,
        rules_digest="d", start_ms=1, end_ms=2, as_of_ms=2, is_final=is_final,
        verdict="within limits" if parked else "clean", why=(), controls=(), totals=totals,
        aging=(), proofs=(), broken_proofs=0, items=(), closed=0, decisions=(),
        decided_by_hand=0, digits={"CNY": 2}, contents={},
    )  # fmt: skip
    return Run(
        run_id=run_id, extract_id="e", result=result, result_digest=result.digest, trend=(),
        stages=(), began_ms=1, ended_ms=2, txmq_version="0", spark_version="4",
    )  # fmt: skip


def items(classes, day):
    """The items of a first day, as a table."""
    life = BreakLife(rules(), day, {})
    rows = [
        life.item(transfer(key, class_), TransferRows(key))
        for key, class_ in sorted(classes.items())
    ]
    return pa.Table.from_pylist([row for row in rows if row], arrow_schema(ITEMS))


def table(schema, rows):
    """Tuples as a table."""
    named = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return pa.Table.from_pylist(named, arrow_schema(schema))
