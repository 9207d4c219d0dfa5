from datetime import UTC, datetime

from txmq.client.identity import UniqueIds
from txmq.testing import SeededEntropy


class Wall:
    def __init__(self, *moment):
        self.at = datetime(*moment, tzinfo=UTC)

    def monotonic(self):
        raise AssertionError("ids are of the wall clock")

    def wall_ms(self):
        return round(self.at.timestamp() * 1000)


def fields(text):
    data = bytes.fromhex(text)
    cuts = [(0, 4), (4, 6), (6, 10), (10, 14), (14, 16)]
    return [int.from_bytes(data[start:end], "big") for start, end in cuts]


def test_an_id_has_the_length_and_case_of_stock_ids():
    found = UniqueIds(Wall(2024, 5, 1), SeededEntropy(1)).next()

    assert len(found) == 32
    assert found == found.upper()


def test_an_id_holds_the_milliseconds_since_the_month_began():
    found = UniqueIds(Wall(2024, 5, 3, 4, 5, 6, 789_000), SeededEntropy(1)).next()

    assert fields(found)[3] == ((2 * 24 + 4) * 3600 + 5 * 60 + 6) * 1000 + 789


def test_the_first_moment_of_a_month_is_zero():
    assert fields(UniqueIds(Wall(2024, 2, 1), SeededEntropy(1)).next())[3] == 0


def test_ids_created_at_one_moment_differ():
    ids = UniqueIds(Wall(2024, 5, 1), SeededEntropy(1))

    found = [ids.next() for _ in range(70_000)]

    assert len(set(found[: 1 << 16])) == 1 << 16
    assert [fields(unique_id)[4] for unique_id in found[:3]] == [0, 1, 2]


def test_the_time_and_the_counter_of_an_id_advance_independently():
    wall = Wall(2024, 5, 31, 23, 59, 59, 999_000)
    ids = UniqueIds(wall, SeededEntropy(1))

    last = [ids.next(), ids.next()]
    wall.at = datetime(2024, 6, 1, tzinfo=UTC)
    first = ids.next()
    wall.at = datetime(2024, 5, 31, 23, 59, 59, 999_000, tzinfo=UTC)  # The clock was set back.
    again = ids.next()

    late_ms = (31 * 86_400_000 - 1) & 0x7FFFFFFF  # The bits of it that an id has room for.
    moments = [fields(unique_id)[3:] for unique_id in (*last, first, again)]
    assert moments == [[late_ms, 0], [late_ms, 1], [0, 2], [late_ms, 3]]
    assert len({unique_id[:20] for unique_id in (*last, first, again)}) == 1


def test_ids_differ_between_clients_and_repeat_with_the_seed():
    first, second, again = (
        UniqueIds(Wall(2024, 5, 1), SeededEntropy(seed)).next() for seed in (1, 2, 1)
    )

    assert first[:20] != second[:20]
    assert first == again


def test_several_ids_are_those_that_single_calls_return():
    alone, together = (UniqueIds(Wall(2024, 5, 1), SeededEntropy(1)) for _ in range(2))
    counts = [3, 0, 2500, 1]

    expected = [[alone.next() for _ in range(count)] for count in counts]

    assert [together.several(count) for count in counts] == expected
