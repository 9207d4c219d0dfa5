"""The open transactions in memory."""

import sys

import pytest

from txmq_broker.store.pending_transactions import (
    Changes,
    Half,
    PendingTransactions,
    transaction_key,
)
from txmq_broker.store.queue_store import ConsumeQueue

T, U = ConsumeQueue("T", 0), ConsumeQueue("U", 3)
MANY = 20_000


def half(number=0, **given):
    values = {
        "offset": number, "position": 100 * number, "size": 300, "tags_code": -7,
        "checksum": 0xFFFF_FFFF, "queue": T, "group": "g", "origin": "c",
        "is_delayed": False, "key_hashes": (1, 2**32 - 1),
    }  # fmt: skip
    return Half(**values | given)


def opened(*halves):
    pending = PendingTransactions()
    for key, half in enumerate(halves):
        pending.open(key, pending.pack(*half.parts))
    return pending


def close(pending, *keys):
    pending.close_all(keys, [pending.read(key)[0][5] for key in keys])


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"key_hashes": ()},
        {"key_hashes": tuple(range(65))},
        {"group": "", "origin": ""},
        {"tags_code": -(2**31), "checksum": 0, "size": 2**32 - 1},
        {"offset": 2**62, "position": 2**62},
        {"immunity_s": 2**32 - 1, "checks": 2**16 - 1, "is_parked": True},
        {"queue": U},
    ],
)
def test_an_open_transaction_is_returned_with_all_its_fields(given):
    wanted = half(5, **given)

    assert opened(wanted).find(0) == wanted


def test_a_transaction_that_was_never_opened_is_not_found():
    pending = opened(half())

    assert pending.find(1) is None
    assert 1 not in pending
    assert 0 in pending


def test_closing_transactions_frees_everything_they_held():
    pending = opened(*[half(number, group=f"g{number % 3}", queue=U) for number in range(9)])
    pending.park(4)

    close(pending, 0)
    close(pending, *range(1, 6))
    assert (len(pending), pending.parked, pending.count_of("g0")) == (3, 0, 1)
    close(pending, *range(6, 9))

    assert (len(pending), pending.parked, pending.pinned()) == (0, 0, None)
    assert list(pending) == list(pending.parked_keys()) == []
    assert not pending.owners
    assert not pending._owner_numbers
    assert not pending.owner_uses


def test_shared_owners_are_kept_once_until_their_last_transaction_closes():
    pending = opened(half(0), half(1), half(2, origin="other"))
    assert len(pending.owners) == 2

    close(pending, 0)

    assert pending.find(1) == half(1)
    assert pending.find(2) == half(2, origin="other")
    close(pending, 1)
    assert pending.find(2) == half(2, origin="other")
    assert len(pending.owners) == 1
    pending.open(9, pending.pack(*half(9).parts))
    assert pending.find(9) == half(9)
    assert pending.find(2) == half(2, origin="other")


def test_a_recreated_queue_is_not_the_old_queue():
    pending = opened(half(0), half(1, queue=ConsumeQueue("T", 0)))

    assert pending.find(0).queue is T
    assert pending.find(1).queue is not T


def test_open_transactions_are_counted_by_group():
    pending = opened(
        half(1), half(2, queue=U), half(3, origin="d"), half(4, group="h"), half(5, is_parked=True)
    )

    assert [pending.count_of(group) for group in ("g", "h", "nobody")] == [4, 1, 0]
    close(pending, 0)
    assert pending.count_of("g") == 3


def test_the_transactions_of_a_group_are_found_without_unpacking_any(monkeypatch):
    pending = opened(half(1), half(2, queue=U), half(3, group="h"), half(4, origin="d"))
    monkeypatch.setattr(pending, "unpack", None)

    assert list(pending.keys_of("g")) == [0, 1, 3]
    assert list(pending.keys_of("h")) == [2]
    assert list(pending.keys_of("nobody")) == []


def test_counting_checks_changes_nothing_else():
    pending = opened(half(0), half(1))

    pending.count_checks(0, 14)

    assert pending.find(0) == half(0, checks=14)
    assert pending.find(1) == half(1)
    pending.count_checks(0, 10**9)
    assert pending.find(0).checks == 0xFFFF
    pending.count_checks(0, 0)
    assert pending.find(0) == half(0)


def test_parked_transactions_are_listed_longest_parked_first_and_stay_open():
    pending = opened(half(0), half(1), half(2))
    pending.count_checks(2, 15)

    pending.park(2)
    pending.park(0)

    assert list(pending.parked_keys()) == [2, 0]
    assert list(pending) == [0, 1, 2]
    assert pending.parked == 2
    assert pending.find(2) == half(2, checks=15, is_parked=True)
    close(pending, 2)
    assert list(pending.parked_keys()) == [0]


def test_a_transaction_opened_as_parked_counts_as_parked():
    pending = opened(half(0), half(1, is_parked=True))

    assert list(pending.parked_keys()) == [1]


def test_transactions_are_listed_in_the_order_of_their_opening():
    pending = opened(half(0), half(1), half(2))
    close(pending, 0)
    pending.open(0, pending.pack(*half(3).parts))

    assert list(pending) == [1, 2, 0]


def test_the_log_is_kept_from_the_oldest_open_transaction():
    pending = opened(half(0, position=5), half(1, position=600), half(2, position=70_000))
    assert pending.pinned() == 5

    close(pending, 1)
    assert pending.pinned() == 5
    close(pending, 0)
    assert pending.pinned() == 70_000
    pending.park(2)
    assert pending.pinned() == 70_000, "what is parked is kept"
    close(pending, 2)
    assert pending.pinned() is None


def test_a_transaction_takes_little_memory():
    pending = opened(*[half(number) for number in range(MANY)])

    table = pending.table
    entries = sum(
        sys.getsizeof(data) + sys.getsizeof(transaction_key("x")) for data in table.values()
    )
    assert (sys.getsizeof(table) + entries) / MANY < 200


def test_transaction_keys_are_distinct_and_fit_in_eight_bytes():
    keys = {transaction_key(f"{number:032X}") for number in range(10_000)}

    assert len(keys) == 10_000
    assert min(keys) >= 0
    assert max(keys) < 2**60


# --- what a checkpoint is told ---


def test_a_range_lists_the_transactions_it_opened_and_left_open():
    pending = PendingTransactions()
    for position in (10, 20, 30, 40):
        pending.opened.append(position)
    pending.note_closed(25, 10)
    pending.note_closed(45, 30)

    assert pending.changes_before(10) == Changes([], [], [])
    assert pending.changes_before(25) == Changes([10, 20], [], [])
    assert pending.changes_before(26) == Changes([20], [], [])
    assert pending.changes_before(45) == Changes([20, 30, 40], [], [])
    assert pending.changes_before(99) == Changes([20, 40], [], [])


def test_a_range_lists_the_earlier_transactions_it_closed():
    pending = PendingTransactions()
    for position in (10, 20):
        pending.opened.append(position)
    pending.saved_before(30)
    pending.opened.append(35)
    for at, position in ((36, 20), (37, 35), (38, 10)):
        pending.note_closed(at, position)

    assert pending.changes_before(37) == Changes([35], [20], [])
    assert pending.changes_before(99) == Changes([], [20, 10], [])


def test_a_range_lists_the_transactions_it_parked():
    pending = PendingTransactions()
    pending.opened.append(10)
    pending.note_parked(15, 10)
    pending.note_closed(18, 10)

    assert pending.changes_before(15) == Changes([10], [], [])
    assert pending.changes_before(16) == Changes([10], [], [10])
    assert pending.changes_before(19) == Changes([], [], [10])


def test_saved_changes_are_not_listed_again():
    pending = PendingTransactions()
    for position in (10, 20, 30):
        pending.opened.append(position)
    for at, position in ((22, 10), (32, 20)):
        pending.note_closed(at, position)
        pending.note_parked(at + 1, position)

    pending.saved_before(25)

    assert pending.changes_before(99) == Changes([30], [20], [20])
    pending.saved_before(99)
    assert pending.changes_before(99) == Changes([], [], [])
