"""What Spark brings to the driver of a day's tables: sums, and the rows that a report shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from txmq.errors import ReconcileRefused
from txmq.reconcile.differences import EXPLAINING, EXPLAINING_CLASSES, IS_OF_TRANSFER
from txmq.reconcile.extract.manifest import Manifest
from txmq.reconcile.frames import exact_sum
from txmq.reconcile.tables import ENTRIES
from txmq.reconcile.verdict import Findings

__all__ = ["check_all_was_read", "findings_in"]

_GROUPS: Final = ("class", "currency", "bucket", "age_days", "first_seen")


def findings_in(tables: Mapping[str, DataFrame], most: int) -> Findings:
    """Add up the tables of a day, and find the rows to show: up to a number in each class."""
    items, by_hand = tables["items"], tables["by_hand"]
    proofs = tables["proofs"].toArrow()
    groups = items.groupBy(*_GROUPS).agg(
        F.count("*").alias("count"), exact_sum(F.col("amount")).alias("amount")
    )
    oldest = Window.partitionBy("class").orderBy(F.desc("age_days"), F.desc("amount"), "key")
    first = items.withColumn("place", F.row_number().over(oldest)).where(F.col("place") <= most)
    latest = by_hand.orderBy(F.desc_nulls_last("decided_ms"), "position").limit(most)
    return Findings(
        totals=_rows(tables["totals"]),
        proofs=proofs,
        explaining=_explaining(items, proofs),
        groups=_rows(groups),
        items=_rows(first.drop("place")),
        decisions=_rows(latest),
        closed=tables["closed"].count(),
        decided_by_hand=by_hand.count(),
    )


def _explaining(items: DataFrame, proofs: pa.Table) -> list[dict[str, Any]]:
    failed = proofs.filter(IS_OF_TRANSFER)["account"]
    if not failed.length():
        return []
    keys = items.sparkSession.createDataFrame(pa.table({"key": failed}))
    some = items.where(F.col("class").isin(*(one.value for one in EXPLAINING_CLASSES)))
    return _rows(some.join(keys, "key", "left_semi").select(*EXPLAINING))


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def check_all_was_read(balances: DataFrame, manifest: Manifest) -> None:
    """Check that the accounts' bookings equal the extract, to the row and to the cent.

    Raises:
        ReconcileRefused: They do not: the workers did not read the whole extract.
    """
    sums = balances.groupBy("bank", "currency").agg(
        F.sum("rows").alias("rows"), exact_sum(F.col("moved")).alias("moved")
    )
    found: dict[tuple[str, str], Row] = {
        (row["bank"], row["currency"]): row for row in sums.collect()
    }
    for control in (one for one in manifest.controls if one.table == ENTRIES.name):
        bank = control.source
        rows = sum(row["rows"] for (name, _), row in found.items() if name == bank)
        amounts = {
            name: int(found[bank, name]["moved"]) if (bank, name) in found else 0
            for name in control.amounts
        }
        now = msgspec.structs.replace(control, rows=rows, amounts=amounts)
        if (differs := control.difference(now)) is not None:
            raise ReconcileRefused(f"the workers did not read the whole extract: {differs}")
