"""The items of a day, read without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from txmq.errors import UsageError
from txmq.reconcile.classes import Class
from txmq.reconcile.file_systems import Directory
from txmq.reconcile.summary import Run
from txmq.reconcile.written_table import WrittenTable

__all__ = ["ItemFilter", "find_items", "items_of"]


class ItemFilter(Struct, frozen=True):
    """The items that a person asks for; an item must fit all of it."""

    class_: str | None = None
    status: str | None = None
    bank: str | None = None
    account: str | None = None
    """An account that pays or is paid, as it is in the books."""
    older_than: int | None = None
    """Only items that are more business days old."""
    ids: Sequence[str] = ()
    """Ids of breaks, or their beginnings; all if empty."""

    def takes(self, item: dict[str, Any]) -> bool:
        """True if an item fits, regardless of the ids."""
        accounts = f"{item['payer'] or ''} / {item['payee'] or ''}".split(" / ")
        banks = f"{item['debit_bank'] or ''} / {item['credit_bank'] or ''}".split(" / ")
        return (
            self.class_ in {None, item["class"]}
            and self.status in {None, item["status"]}
            and (self.bank is None or self.bank in banks)
            and (self.account is None or self.account in accounts)
            and (self.older_than is None or item["age_days"] > self.older_than)
        )


def items_of(
    directory: Directory, run: Run, wanted: ItemFilter | None = None, *, is_complete: bool = False
) -> list[dict[str, Any]]:
    """The items of a run that are not agreed: the oldest first, then the largest.

    Those in flight and explained ones are left out, unless ``is_complete``, or ``wanted`` names a
    class, a status or an id.

    Raises:
        ReconcileRefused: The items cannot be read.
        UsageError: No item matches an id, or several do.
    """
    wanted = wanted or ItemFilter()
    takes_all = is_complete or wanted.class_ or wanted.status or wanted.ids
    found = [
        item
        for piece in WrittenTable.of_run(directory, run.day, run.run_id, "items").pieces()
        for item in piece.to_pylist()
        if (takes_all or Class(item["class"]).group == "break") and wanted.takes(item)
    ]
    if wanted.ids:
        found = find_items(found, wanted.ids)
    return sorted(found, key=lambda item: (-item["age_days"], -item["amount"], item["break_id"]))


def find_items(
    items: list[dict[str, Any]], ids: Sequence[str], name: str = "break_id"
) -> list[dict[str, Any]]:
    """The items whose ids begin as given, each once.

    Raises:
        UsageError: No item matches, or several do.
    """
    found: dict[str, dict[str, Any]] = {}
    for id_ in ids:
        fit = [item for item in items if item[name].startswith(id_)]
        if len(fit) != 1 or not id_:
            noun, command = ("break", "breaks") if name == "break_id" else ("difference", "proofs")
            many = f"several {noun}s" if fit else f"no {noun}"
            raise UsageError(
                f"{id_!r} matches {many} of this day; see txmq reconcile {command} --all"
            )
        found[fit[0][name]] = fit[0]
    return list(found.values())
