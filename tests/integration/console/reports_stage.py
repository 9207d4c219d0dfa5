"""A directory with the results of two days of reconciliation, for programs that read it."""

from datetime import timedelta

import msgspec
import pyarrow as pa

from tests.reconcile import runs
from tests.reconcile.dying_run import write_table
from txmq.reconcile.arrow import arrow_schema
from txmq.reconcile.explanations import BreakNote, Explanations
from txmq.reconcile.results import Results
from txmq.reconcile.tables import ITEMS

DAY = runs.DAY
BEFORE = runs.DAY - timedelta(days=1)
_DAY_MS = 86_400_000


def row_of(item):
    """A row of the table of items, made from an item of a report."""
    plain = {"string": "", "long": 0, "int": 0, "boolean": False}
    made = {
        column.name: None if column.is_optional else plain[column.type] for column in ITEMS.columns
    }
    known = {name: value for name, value in item.items() if name in made}
    group = "open" if item["class"] in {"explained", "in-flight"} else "break"
    more = {"group": group, "debit_bank": "icbc", "credit_bank": "ccb"}
    more |= {"history": f"{item['first_seen']} {item['class']} new"}
    return made | more | known | {"payer": "6222020200011112222"}


def write_reports(directory, text="a fee, T-1"):
    """Write a clean day with two signatures and a day with breaks; people's notes are the text."""
    results = Results(directory)
    clean = runs.clean(
        business_date=str(BEFORE), start_ms=runs.START_MS - _DAY_MS, end_ms=runs.END_MS - _DAY_MS,
        as_of_ms=runs.END_MS - _DAY_MS, contents={},
    )  # fmt: skip
    before = runs.run(clean, run_id="b" * 16, previous_run_id=None)
    results.publish(before, {"report.html": b"<script>document.title='owned'</script>"})
    results.sign("preparer", before, "Chen Hao", runs.END_MS, note=text)
    results.sign("reviewer", before, "Zhao Lei", runs.END_MS + 1)

    busy = runs.busy(evidence=3)
    first, *others = busy.items
    items = [first | {"reason": text, "explanation": None}, *others]
    table = pa.Table.from_pylist([row_of(item) for item in items], arrow_schema(ITEMS))
    content = write_table(results, "items", table, DAY, "c" * 16)
    busy = msgspec.structs.replace(busy, contents={"items": content}, why=(*busy.why, text))
    made = runs.run(
        busy, run_id="c" * 16, previous_run_id=before.run_id, previous_digest=before.result_digest
    )
    results.publish(made, {"summary.json": made.as_json()})
    note = BreakNote(first["break_id"], "Wang Min", runs.END_MS, owner="Li Na", comment=text)
    Explanations(directory).add([note])
    return first
