"""Random draws are the same for one seed and cover every kind."""

from collections import Counter

import pytest

from examples.bank_transfer.orders import Drill
from examples.bank_transfer.tour.accidents import plan
from examples.bank_transfer.tour.orders import accounts, wishes
from examples.bank_transfer.tour.settings import TourSettings
from examples.bank_transfer.ways import Way
from txmq.errors import ConfigError

PROGRAMS = ("the broker", "ICBC", "CCB")
ALL = tuple(Way)


def test_one_seed_always_draws_the_same_orders():
    assert list(wishes("m", 500, 100, ALL, 7)) == list(wishes("m", 500, 100, ALL, 7))
    assert list(wishes("m", 500, 100, ALL, 7)) != list(wishes("m", 500, 100, ALL, 8))


def test_drawn_orders_cover_all_ways_drills_and_odd_accounts():
    wanted = list(wishes("m", 2_000, 100, ALL, 0))

    assert len({order.id for order in wanted}) == 2_000
    assert {order.way for order in wanted} == set(Way)
    assert {order.drill for order in wanted} == {Drill.NONE, Drill.TAGB, Drill.TAGC}
    assert {"CCB-NOBODY", "CCB-CLOSED", "CCB-EURO"} < {order.payee for order in wanted}
    assert "ICBC-NOBODY" in {order.payer for order in wanted}
    assert {order.times for order in wanted} == {1, 3}
    assert all(order.way is Way.HALF for order in wanted if order.drill)


def test_the_wanted_accounts_and_two_unusable_ones_at_ccb_are_opened():
    assert [account.number for account in accounts("ICBC", 3)] == ["ICBC-0", "ICBC-1", "ICBC-2"]
    assert [account.number for account in accounts("CCB", 1)] == ["CCB-0", "CCB-CLOSED", "CCB-EURO"]


@pytest.mark.parametrize("seed", range(20))
def test_each_program_is_killed_as_often_as_asked_before_the_end(seed):
    planned = plan(2_000, PROGRAMS, kills=5, copies=20, seed=seed)

    assert planned == plan(2_000, PROGRAMS, kills=5, copies=20, seed=seed)
    assert Counter(accident.name for accident in planned) == {**dict.fromkeys(PROGRAMS, 5), "": 20}
    assert [accident.after for accident in planned] == sorted(
        accident.after for accident in planned
    )
    assert planned[-1].after < 1_800


def test_accidents_can_be_planned_for_a_single_transfer():
    assert {accident.after for accident in plan(1, PROGRAMS, kills=2, copies=1, seed=0)} == {0}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"transfers": 0}, "transfers is at least 1"),
        ({"accounts": 3}, "accounts is at least 4"),
        ({"concurrent": 0}, "concurrent is at least 1"),
        ({"kills": -1}, "kills is at least 0"),
        ({"rate": -1.0}, "rate is at least 0 and finite, not -1.0"),
        ({"rate": float("nan")}, "rate is at least 0 and finite, not nan"),
        ({"rate": float("inf")}, "rate is at least 0 and finite, not inf"),
        ({"patience_s": float("nan")}, "patience_s is more than 0, not nan"),
        ({"ways": (Way.XA,)}, "XA needs PostgreSQL"),
    ],
)
def test_invalid_tour_settings_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        TourSettings(**settings)


def test_without_chosen_ways_all_that_the_databases_support_are_used():
    assert TourSettings().chosen_ways == (Way.HALF, Way.OUTBOX)
    assert TourSettings(postgres="postgresql://").chosen_ways == tuple(Way)
    assert TourSettings(ways=(Way.OUTBOX,)).chosen_ways == (Way.OUTBOX,)
