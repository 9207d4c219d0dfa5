"""Finding by key: every place, newest first, from memory and from runs that were saved."""

import zlib

import pytest

from txmq.limits import KEYS_PER_MESSAGE_MAX
from txmq.protocol import properties
from txmq.testing import MemoryDisk
from txmq_broker.store.queue_store import (
    ENTRY_BYTES,
    KeyIndex,
    KeyRun,
    SealedBytes,
    key_hash,
    keys_in,
    topic_seed,
)

FOREVER = (0, 1 << 60)


def saved(keys, upto, first_ms=0, last_ms=0, segment=0):
    """Save the growing run up to a position, as a checkpoint does."""
    count, data = keys.before(upto)
    file = MemoryDisk().open("index", create=True)
    file.write(0, data)
    sealed = SealedBytes(file, "index", 0, 0, len(data), zlib.crc32(data))
    assert len(data) == count * ENTRY_BYTES
    keys.saved(KeyRun(first_ms, last_ms, segment, sealed, 0, count))


def grown():
    return KeyIndex()


def note(keys, found):
    keys.extend([hashed for hashed, _ in found], [position for _, position in found])


@pytest.mark.parametrize(
    ("entries", "hashed", "found"),
    [
        ([(7, 1000), (8, 1100), (7, 1200)], 7, [1200, 1000]),
        ([(7, 1000), (8, 1100)], 9, []),
        ([(7, 1000), (7, 1100), (7, 1100)], 7, [1100, 1000]),
        (
            [(0x01010101, 1000), (0x01010101, 1100), (0x00010101, 1200), (0x01010101, 1300)],
            0x01010101,
            [1300, 1100, 1000],
        ),
    ],
    ids=["newest first", "none", "a key named twice", "a hash of repeated bytes"],
)
def test_positions_of_a_hash_come_newest_first_and_each_once(entries, hashed, found):
    keys = grown()
    note(keys, entries)

    assert list(keys.positions(hashed, *FOREVER)) == found
    saved(keys, 5000)
    assert list(keys.positions(hashed, *FOREVER)) == found


@pytest.mark.parametrize("upto", [1000, 1001, 1100, 1101, 1201, 1301, 5000])
def test_saving_moves_positions_from_memory_to_a_file_and_loses_none(upto):
    keys = grown()
    found = [(7, 1000), (7, 1100), (0, 1100), (0xFFFFFFFF, 1200), (7, 1300), (0xFFFFFFFF, 1300)]
    note(keys, found)

    saved(keys, upto)
    note(keys, [(7, 5000), (0, 5000)])

    assert list(keys.positions(7, *FOREVER)) == [5000, 1300, 1100, 1000]
    assert list(keys.positions(0, *FOREVER)) == [5000, 1100]
    assert list(keys.positions(0xFFFFFFFF, *FOREVER)) == [1300, 1200]


def test_many_runs_answer_from_the_newest_to_the_oldest():
    keys = grown()
    for number in range(50):
        note(keys, [(number % 5, number * 10), (77, number * 10)])
        if number % 7 == 6:
            saved(keys, number * 10 + 1)

    assert list(keys.positions(77, *FOREVER)) == [number * 10 for number in reversed(range(50))]
    assert list(keys.positions(3, *FOREVER)) == [n * 10 for n in reversed(range(50)) if n % 5 == 3]


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [(0, 99, []), (0, 100, [10]), (150, 150, [10]), (200, 200, [20, 10]), (201, 299, [20]),
     (300, 300, [20]), (301, 999, []), (0, 999, [20, 10])],
)  # fmt: skip
def test_runs_outside_the_time_range_are_passed_over(begin, end, expected):
    keys = grown()
    note(keys, [(1, 10)])
    saved(keys, 15, 100, 200)
    note(keys, [(1, 20)])
    saved(keys, 25, 200, 300)

    assert list(keys.positions(1, begin, end)) == expected


def test_the_runs_of_deleted_segments_are_forgotten():
    keys = grown()
    note(keys, [(1, 10)])
    saved(keys, 50, segment=0)
    note(keys, [(1, 60)])
    saved(keys, 100, segment=50)

    keys.drop_before_segment(50)

    assert list(keys.positions(1, *FOREVER)) == [60]


def test_a_hash_whose_bytes_span_two_entries_is_not_found():
    keys = grown()
    note(keys, [(0x01020304, 1000), (0x05060708, 1100)])

    assert list(keys.positions(0x03040506, *FOREVER)) == []
    assert list(keys.positions(0x07080102, *FOREVER)) == []
    saved(keys, 5000)
    assert list(keys.positions(0x03040506, *FOREVER)) == []
    assert list(keys.positions(0x05060708, *FOREVER)) == [1100]


def test_a_key_hashes_differently_in_every_topic():
    assert key_hash(topic_seed("A"), "k") != key_hash(topic_seed("B"), "k")


def test_a_message_is_found_by_its_unique_key_and_by_each_of_its_keys():
    text = properties.render({"KEYS": "a b", "UNIQ_KEY": "u", "TAGS": "t"})

    assert keys_in(text) == ["u", "a", "b"]
    assert keys_in("") == []


def test_a_message_has_a_limited_number_of_keys():
    text = properties.render({"KEYS": " ".join(str(number) for number in range(1000))})

    assert len(keys_in(text)) == KEYS_PER_MESSAGE_MAX
