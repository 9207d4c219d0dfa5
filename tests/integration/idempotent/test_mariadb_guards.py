"""What MariaDB alone does to a guard's transaction."""

import pytest

from tests.integration.idempotent.shop_stage import effect
from tests.integration.idempotent.test_guard_contract import plain
from tests.integration.resources.resource_stage import ON_MARIADB, said
from tests.running import in_loop, run_by
from txmq.errors import OutcomeUnknown


@pytest.mark.parametrize("kind", ON_MARIADB[:1])
@pytest.mark.parametrize("guard", ["table", "version"])
@run_by(in_loop)
async def test_an_implicit_commit_is_noticed(shop_of, guard, kind):
    shop = shop_of(guard, kind)
    async with shop.stage() as stage:

        async def makes_a_table(session, name):
            await stage.effect(session, name)
            await said(session, "CREATE OR REPLACE TABLE made_meanwhile (id INTEGER)")
            await said(session, effect("late"))

        with pytest.raises(OutcomeUnknown, match="ended inside"):
            await stage.call(stage.behind(makes_a_table), "a")
        await stage.call(stage.behind(plain(stage)), "a")
    assert shop.effects == ["a"]
