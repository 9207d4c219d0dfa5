"""Invented runs, for tests of reports and for pictures in the docs."""

import hashlib
from datetime import date, timedelta

import msgspec

from txmq.reconcile.classes import Class
from txmq.reconcile.report.words import mask
from txmq.reconcile.summary import Aged, Control, Past, Proof, Result, Run, SignOff, Stage, Total

DAY = date(2026, 11, 20)
START_MS = 1_795_104_000_000
END_MS = START_MS + 86_400_000
# For each bucket: business days, and calendar days.
AGES = {"0": (0, 0), "1": (1, 1), "2-3": (3, 3), "4-7": (5, 7), ">7": (9, 11)}

# Class, currency, how many in each bucket, what each is worth, and which sides have it.
BUSY = (
    (Class.DOUBLE_CREDIT, "CNY", (2, 0, 0, 0, 0), 3_180_000, "DCCO"),
    (Class.AMOUNT_MISMATCH, "CNY", (3, 1, 0, 0, 0), 45_050, "DCO"),
    (Class.AMOUNT_MISMATCH, "USD", (1, 0, 0, 0, 0), 120_000, "DCO"),
    (Class.CREDIT_WITHOUT_MESSAGE, "CNY", (1, 0, 0, 0, 0), 5_000_000, "C"),
    (Class.DEBIT_WITHOUT_MESSAGE, "CNY", (0, 2, 1, 0, 0), 860_000, "D"),
    (Class.PARKED, "CNY", (4, 2, 1, 1, 0), 230_000, "DO"),
    (Class.DEAD_LETTER, "CNY", (6, 3, 2, 1, 1), 91_500, "DO"),
    (Class.DEAD_LETTER, "USD", (1, 0, 0, 0, 0), 64_000, "DO"),
    (Class.DELIVERED_UNCREDITED, "CNY", (9, 1, 0, 0, 0), 127_300, "DO"),
    (Class.IN_FLIGHT, "CNY", (412, 0, 0, 0, 0), 96_210, "DO"),
    (Class.IN_FLIGHT, "USD", (37, 0, 0, 0, 0), 41_900, "DO"),
    (Class.EXPLAINED, "CNY", (0, 0, 0, 0, 1), 250_000, "DO"),
)
AGREED = (
    (Class.RETURNED, "CNY", 1_204, 88_400, "DRO"),
    (Class.ROLLED_BACK, "CNY", 9_871, 0, ""),
    (Class.MATCHED, "CNY", 941_530, 104_377, "DCO"),
    (Class.MATCHED, "USD", 46_906, 73_118, "DCO"),
)
WHY = (
    "184,227.00 CNY are at risk, and 100,000.00 are within limits",
    "a break is 9 business days old, and 7 are within limits",
    "a balance proof does not hold",
)
CLOSED = "the account is closed, and there is none to return to"
STATES = {
    Class.PARKED: ("parked", "undelivered", None, None),
    Class.DEAD_LETTER: ("committed", "dead", "producer", CLOSED),
    Class.DELIVERED_UNCREDITED: ("committed", "consumed", "check", None),
    Class.DOUBLE_CREDIT: ("committed", "consumed", "producer", None),
    Class.AMOUNT_MISMATCH: ("committed", "consumed", "producer", None),
    Class.IN_FLIGHT: ("prepared", "undelivered", None, None),
    Class.EXPLAINED: ("committed", "consumed", "operator", "the customer called"),
}


def digest(text):
    return hashlib.sha256(str(text).encode()).hexdigest()


def sums(worth, sides):
    """What was debited, returned, credited and ordered."""
    names = {"debited": "D", "returned": "R", "credited": "C", "ordered": "O"}
    return {name: worth * sides.count(side) for name, side in names.items()}


def total(name, currency, count, worth, sides):
    at_risk = 0 if name.group == "agreed" else count * worth
    moved = sums(count * worth, sides)
    return Total(name.value, name.group, currency, count, **moved, at_risk=at_risk)


def item(
    name=Class.DEAD_LETTER, at=0, currency="CNY", bucket="0", worth=91_500, sides="DO", **more
):
    state, delivery, decided_by, reason = STATES.get(name, (None, None, None, None))
    seen = digest(f"{name} {currency} {bucket} {at}")
    age_days, back = AGES[bucket]
    plain = {
        "break_id": seen[:12], "key": f"icbc/{int(seen[:9], 16)}", "class": name.value,
        "status": "new", "amount": worth, "currency": currency,
        "holder": "both" if "CC" in sides else "transit",
        "payer": mask(f"6222020200{int(seen[10:18], 16):010d}"),
        "payee": mask(f"6217000130{int(seen[20:28], 16):010d}"),
        "debit_bank": "icbc" if "D" in sides else None,
        "credit_bank": "ccb" if "C" in sides else None,
        **sums(worth, sides), "messages": sides.count("O"),
        "message_id": seen[:32].upper() if "O" in sides else None, "message_state": state,
        "delivery": delivery, "decided_by": decided_by, "reason": reason,
        "first_ms": END_MS - back * 86_400_000 - 7_000_000 * (at + 1),
        "first_seen": str(DAY - timedelta(days=back)), "age_days": age_days, "bucket": bucket,
        "is_late": False,
        **dict.fromkeys(("was", "explained_by", "explanation", "id_doubt", "suggestion")),
    }  # fmt: skip
    if name is Class.AMOUNT_MISMATCH:
        plain["credited"] = worth * 10
    if bucket != "0":
        plain["status"] = "open"
    if name is Class.EXPLAINED:
        plain |= {
            "status": "explained",
            "was": "delivered-uncredited",
            "explained_by": "Wang Min",
            "explanation": "credited by hand on 12 November, voucher 77120",
        }
    return plain | more


def proofs(*, broken=True):
    names = (
        ("roll-forward", "opening and entries are closing, for each account"),
        ("account-table", "the table of accounts says what the entries add up to"),
        ("clearing", "what clearing holds is what is under way"),
        ("double-entry", "the rows of each booking add up to zero"),
    )
    held = [
        Proof(name, bank, None, currency, worth, worth, True, about)
        for name, about in names
        for bank, currency, worth in (
            ("icbc", "CNY", 918_204_417_300),
            ("icbc", "USD", 51_120_004_190),
            ("ccb", "CNY", 733_910_226_015),
        )
    ]
    wrong = Proof(
        "account-table", "ccb", mask("62170001300077120045"), "CNY", 12_450_000, 17_450_000, False,
        "the table of accounts says another balance than the entries add up to", is_open=True,
    )  # fmt: skip
    return (wrong, *held) if broken else tuple(held)


def past(back, transfers, breaks, open_, cny, usd, verdict):
    agreed = transfers - breaks - open_
    day = DAY - timedelta(days=back)
    risk = {"CNY": cny, "USD": usd}
    return Past(str(day), transfers, agreed / transfers, breaks, open_, risk, verdict)


TREND = (
    past(9, 981_204, 9, 380, 2_140_000, 0, "within limits"),
    past(8, 1_002_377, 7, 401, 1_893_000, 0, "within limits"),
    past(7, 996_120, 12, 455, 3_420_500, 41_000, "within limits"),
    past(4, 1_104_118, 31, 612, 9_871_200, 41_000, "over limits"),
    past(3, 988_450, 18, 431, 4_450_000, 41_000, "within limits"),
    past(2, 990_012, 15, 398, 3_902_000, 0, "within limits"),
    past(1, 1_001_945, 21, 420, 5_116_300, 0, "within limits"),
)


def controls(currencies):
    nothing = dict.fromkeys(currencies, 0)
    opening = dict.fromkeys(currencies, 918204417300)
    return (
        Control("icbc", "entries", 1_993_402, nothing, 7720114630028511204, 88_120_001, 90_113_402),
        Control("icbc", "opening", 120_004, opening, 1044720931122004113),
        Control("ccb", "entries", 1_980_116, nothing, 330471900441270019, 61_004_112, 62_984_227),
        Control("log", "messages", 998_707, {}, 5210004331900127766),
        Control("log", "failures", 14, {}, 88120447193004410),
    )


def busy(*, evidence=4, **more):
    """A day with breaks of many classes, in two currencies."""
    totals = [total(name, cur, sum(ages), worth, sides) for name, cur, ages, worth, sides in BUSY]
    totals += [total(*value) for value in AGREED]
    aging = [
        Aged(name.value, bucket, cur, count, count * worth)
        for name, cur, ages, worth, _ in BUSY
        for bucket, count in zip(AGES, ages, strict=True)
        if count
    ]
    items = [
        item(name, at, cur, bucket, worth, sides)
        for name, cur, ages, worth, sides in BUSY
        for bucket, count in zip(reversed(AGES), reversed(ages), strict=True)
        for at in range(min(count, evidence))
    ]
    kept = [row for name in Class for row in [i for i in items if i["class"] == name][:evidence]]
    return result(
        verdict="over limits",
        why=WHY,
        totals=tuple(totals),
        aging=tuple(aging),
        items=tuple(kept),
        proofs=proofs(),
        broken_proofs=1,
        oldest_days=9,
        closed=17,
        decisions=decisions(),
        decided_by_hand=5,
        why_at=where(kept),
        carried=sum(sum(ages[1:]) for _, _, ages, _, _ in BUSY),
        **more,
    )


def where(items):
    """The places of the reasons: the greatest break in CNY, the oldest one, and the proof."""
    breaks = [row for row in items if Class(row["class"]).group == "break"]
    greatest = max((row for row in breaks if row["currency"] == "CNY"), key=lambda x: x["amount"])
    oldest = max(breaks, key=lambda row: row["age_days"])
    found = *(f"break-{row['break_id']}" for row in (greatest, oldest)), "proof-account-table-CNY"
    return tuple(found)


def decisions():
    """Two decisions of operators."""
    return tuple(
        {
            "key": f"icbc/T20261120-{value}",
            "message_id": digest(f"decided {value}")[:32].upper(),
            "state": state,
            "payer": mask("62220200011112222"),
            "payee": mask("62170001300077120045"),
            "amount": 8_800_00,
            "currency": "CNY",
            "decided_ms": END_MS - 3_600_000 * value,
            "reason": reason,
        }
        for value, state, reason in (
            (1, "committed", "li.na: the debit is in the books, ticket 4711"),
            (2, "rolled_back", "li.na: the customer called it off, ticket 4708"),
        )
    )


def clean(**more):
    """A day on which all is well."""
    totals = tuple(total(*value) for value in AGREED)
    return result(totals=totals, proofs=proofs(broken=False), **more)


def result(**more):
    plain = {
        "name": "icbc-ccb", "business_date": str(DAY), "rules_version": "12",
        "rules_digest": digest("rules"), "start_ms": START_MS, "end_ms": END_MS,
        "as_of_ms": END_MS, "is_final": True, "verdict": "clean", "why": (),
        "controls": controls(("CNY", "USD")), "totals": (), "aging": (), "proofs": (),
        "broken_proofs": 0, "items": (), "closed": 0, "decisions": (), "decided_by_hand": 0,
        "digits": {"CNY": 2, "USD": 2},
        "contents": {name: digest(name) for name in ("items", "matches", "balances", "proofs")},
    }  # fmt: skip
    return Result(**plain | more)


def run(result, **more):
    """A run with this result."""
    plain = {
        "run_id": digest("run")[:16],
        "extract_id": digest("extract")[:16],
        "result": result,
        "result_digest": result.digest,
        "trend": TREND,
        "stages": (
            Stage("extract", 21.4, 5_092_243),
            Stage("load", 3.9, 5_092_243),
            Stage("classify", 14.2, 1_000_018),
            Stage("prove", 6.1, 240_008),
            Stage("write", 4.4, 1_000_018),
        ),
        "began_ms": END_MS + 900_000,
        "ended_ms": END_MS + 950_000,
        "txmq_version": "0.9.0",
        "spark_version": "4.0.1",
        "previous_run_id": digest("before")[:16],
    }
    return Run(**plain | more)


def with_result(made, **changes):
    """The run with some of its result changed."""
    return msgspec.structs.replace(made, result=msgspec.structs.replace(made.result, **changes))


def signed(made, reviewer="Zhao Lei", **more):
    """The run with signatures."""
    plain = {
        "result_digest": made.result_digest,
        "preparer": "Chen Hao",
        "prepared_ms": END_MS + 30_000_000,
        "reviewer": reviewer,
        "reviewed_ms": END_MS + 34_000_000 if reviewer else 0,
    }
    return msgspec.structs.replace(made, sign_off=SignOff(**plain | more))


def with_texts(text):
    """A run with the same text in every place that others fill."""
    day = busy(evidence=1)
    fields = (
        "key", "payer", "payee", "message_id", "message_state", "delivery", "decided_by", "reason",
        "explained_by", "explanation", "was", "status", "holder", "break_id",
    )  # fmt: skip
    changed = msgspec.structs.replace(
        day,
        name=text,
        why=(text,),
        rules_version=text,
        controls=(Control(text, text, 1, {text: 1}),),
        proofs=(Proof(text, text, text, "CNY", 1, 2, False, text),),
        contents={text: text},
        items=tuple(item_ | dict.fromkeys(fields, text) for item_ in day.items),
        decisions=tuple(
            decision | dict.fromkeys(decision.keys() - {"amount", "decided_ms"}, text)
            for decision in day.decisions
        ),
    )
    made = run(changed, extract_id=text, run_id=text, previous_run_id=text, spark_version=text)
    note = {"preparer": text, "prepared_note": text, "reviewed_note": text}
    return signed(made, reviewer=text, **note)
