"""Finding by key: every place, newest first, from memory and from runs that were saved."""

import zlib

import pytest

from broker.store import key_index
from broker.store.key_index import ENTRY_BYTES, KeyIndex, KeyRun, key_hash, keys_in, topic_seed
from broker.store.sealed import Sealed
from tests.unit.store.shelf import Shelf
from txmq.limits import KEYS_PER_MESSAGE_MAX
from txmq.protocol import properties
from txmq.testing import MemoryDisk

FOREVER = (0, 1 << 60)


def saved(keys, upto, first_ms=0, last_ms=0, segment=0):
    """Save the growing run up to a position, as a checkpoint does."""
    data = keys.sorted_before(upto)
    file = MemoryDisk().open("index", create=True)
    file.write(0, data)
    sealed = Sealed(file, "index", 0, 0, len(data), zlib.crc32(data))
    count = len(data) // ENTRY_BYTES
    keys.saved(KeyRun(keys._base, first_ms, last_ms, segment, sealed, 0, count), upto)


def grown(base=1000):
    keys = KeyIndex()
    keys.begin(base)
    return keys


def test_places_of_a_hash_come_newest_first():
    keys = grown()
    keys.extend([(7, 1000), (8, 1100), (7, 1200)])

    assert list(keys.positions(7, *FOREVER)) == [1200, 1000]
    assert list(keys.positions(9, *FOREVER)) == []


@pytest.mark.parametrize("upto", [1000, 1001, 1100, 1101, 1201, 1301, 5000])
def test_saving_moves_places_from_memory_to_a_file_and_loses_none(upto):
    keys = grown()
    found = [(7, 1000), (7, 1100), (0, 1100), (0xFFFFFFFF, 1200), (7, 1300), (0xFFFFFFFF, 1300)]
    keys.extend(found)

    saved(keys, upto)
    keys.extend([(7, 5000), (0, 5000)])

    assert list(keys.positions(7, *FOREVER)) == [5000, 1300, 1100, 1000]
    assert list(keys.positions(0, *FOREVER)) == [5000, 1100]
    assert list(keys.positions(0xFFFFFFFF, *FOREVER)) == [1300, 1200]


def test_a_message_that_names_a_key_twice_is_found_once():
    keys = grown()
    keys.extend([(7, 1000), (7, 1100), (7, 1100)])

    assert list(keys.positions(7, *FOREVER)) == [1100, 1000]
    saved(keys, 5000)
    assert list(keys.positions(7, *FOREVER)) == [1100, 1000]


def test_many_runs_answer_from_the_newest_to_the_oldest():
    keys = grown(0)
    for number in range(50):
        keys.extend([(number % 5, number * 10), (77, number * 10)])
        if number % 7 == 6:
            saved(keys, number * 10 + 1)

    assert list(keys.positions(77, *FOREVER)) == [number * 10 for number in reversed(range(50))]
    assert list(keys.positions(3, *FOREVER)) == [n * 10 for n in reversed(range(50)) if n % 5 == 3]


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [(0, 99, []), (0, 100, [10]), (150, 150, [10]), (200, 200, [20, 10]), (201, 299, [20]),
     (300, 300, [20]), (301, 999, []), (0, 999, [20, 10])],
)  # fmt: skip
def test_runs_of_another_time_are_passed_over(begin, end, expected):
    keys = grown(0)
    keys.extend([(1, 10)])
    saved(keys, 15, 100, 200)
    keys.extend([(1, 20)])
    saved(keys, 25, 200, 300)

    assert list(keys.positions(1, begin, end)) == expected


def test_the_runs_of_deleted_segments_are_forgotten():
    keys = grown(0)
    keys.extend([(1, 10)])
    saved(keys, 50, segment=0)
    keys.extend([(1, 60)])
    saved(keys, 100, segment=50)

    keys.drop_before_segment(50)

    assert list(keys.positions(1, *FOREVER)) == [60]


def test_the_growing_run_reaches_as_far_as_a_distance_of_32_bits():
    keys = grown(1000)
    last = keys.reach - 1

    keys.extend([(0xFFFFFFFF, last), (0, last)])

    assert list(keys.positions(0xFFFFFFFF, *FOREVER)) == [last]
    assert list(keys.positions(0, *FOREVER)) == [last]
    assert keys.reach == 1000 + 2**32


def test_keys_beyond_the_reach_cannot_be_searched_and_lead_nobody_astray(monkeypatch):
    monkeypatch.setattr(key_index, "_REACH", 500)
    shelf = Shelf()
    shelf.add(*[b"%d" % number for number in range(9)], keys="K")

    found = shelf.found_by_key("K")

    assert found == [b"%d" % number for number in reversed(range(len(found)))]
    assert 0 < len(found) < 9
    shelf.checkpoint()
    shelf.add(b"again", keys="K")
    assert shelf.found_by_key("K") == [b"again", *found]
    shelf.restart()
    assert shelf.found_by_key("K") == [b"again", *found]


def test_keys_beyond_the_reach_are_left_out_when_the_log_is_scanned_too(monkeypatch):
    shelf = Shelf()
    shelf.add(*[b"%d" % number for number in range(9)], keys="K")
    assert len(shelf.found_by_key("K")) == 9
    monkeypatch.setattr(key_index, "_REACH", 500)

    shelf.restart()

    assert 0 < len(shelf.found_by_key("K")) < 9


def test_a_key_hashes_differently_in_every_topic():
    assert key_hash(topic_seed("A"), "k") != key_hash(topic_seed("B"), "k")


def test_a_message_is_found_by_its_unique_key_and_by_each_of_its_keys():
    text = properties.render({"KEYS": "a b", "UNIQ_KEY": "u", "TAGS": "t"})

    assert keys_in(text) == ["u", "a", "b"]
    assert keys_in("") == []


def test_a_message_has_a_limited_number_of_keys():
    text = properties.render({"KEYS": " ".join(str(number) for number in range(1000))})

    assert len(keys_in(text)) == KEYS_PER_MESSAGE_MAX
