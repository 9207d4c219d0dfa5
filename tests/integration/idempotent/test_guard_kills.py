"""Real processes, kill -9 wherever a consumer can die: every message comes five times to eight
consumers, and every key has one effect.

TXMQ_SOAK takes 10,000 keys, or as many as it says, and kills more often.
"""

import pytest

from tests.faults.guard_driver import POINTS
from tests.integration.idempotent.guard_stage import LEVELS, TIMES, overdriven
from tests.servers.serving import BrokerProcess
from tests.soak import SOAK, only_in_soak
from tests.soak import count as soak

FIRST_START_SECONDS = 300

pytestmark = [pytest.mark.slow] + ([] if SOAK else [pytest.mark.timeout(FIRST_START_SECONDS)])


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    running = BrokerProcess(tmp_path_factory.mktemp("guard-broker"), settings=(LEVELS,))
    running.start()
    yield running
    running.close()


@pytest.mark.fault("P15", "P16", "P17")
@pytest.mark.parametrize(
    ("guard", "kind", "keys"),
    [
        ("table", "sqlite", soak(50, 10_000)),
        ("version", "postgres-async", soak(50, 10_000)),
        ("redis before a table", "postgres", soak(50, 10_000)),
        *only_in_soak(
            ("table", "postgres-async", soak(150, 10_000)),
            ("table", "postgres", soak(100, 10_000)),
            ("token", "postgres", soak(60, 10_000)),
            ("redis before a table", "postgres-async", soak(100, 10_000)),
        ),
    ],
)
def test_every_key_has_one_effect_although_consumers_are_killed(
    request, broker, tmp_path, effects_in, guard, kind, keys
):
    effects = effects_in(kind)
    store = request.getfixturevalue("redis_server").url if "redis" in guard else ""
    is_async = kind.endswith("async")
    kills = soak(2, 20)

    group = overdriven(
        broker,
        tmp_path,
        effects,
        guard=guard,
        store=store,
        is_async=is_async,
        keys=keys,
        each=kills,
        handlers=1 if kind == "sqlite" else 4,
    )

    effects_by_key = effects.by_key()
    assert {key: count for key, count in effects_by_key.items() if count != 1} == {}
    assert len(effects_by_key) == effects.balance() == effects.rows_done() == keys
    words = group.words
    assert group.handled == {f"{key}/{copy}" for key in effects_by_key for copy in range(TIMES)}
    assert not words["failed"], group.tail()
    assert set(words["killed"]) == set(POINTS)
    assert words["killed"].total() > kills * len(POINTS) // 2
    count = {word: heard.total() for word, heard in words.items()}
    print(f"{guard} on {kind}, {keys} keys: {count}")


def test_a_guard_that_marks_before_the_work_is_caught_losing_effects(broker, tmp_path, effects_in):
    """The same kills, with a guard that is known to be wrong."""
    effects = effects_in("postgres")

    group = overdriven(
        broker, tmp_path, effects, guard="marked first", is_async=False, keys=40, each=3
    )

    assert group.words["killed"]
    assert 0 < len(effects.by_key()) < 40
