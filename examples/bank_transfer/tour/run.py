"""The tour from its beginning to its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from rich.console import Console

from examples.bank_transfer.books import State
from examples.bank_transfer.tour.accidents import Accidents, plan
from examples.bank_transfer.tour.audit import Auditor
from examples.bank_transfer.tour.customers import Customers
from examples.bank_transfer.tour.orders import story, wishes
from examples.bank_transfer.tour.reconciliation import reconcile
from examples.bank_transfer.tour.record import Record
from examples.bank_transfer.tour.report import report, verdict
from examples.bank_transfer.tour.settings import TourSettings
from examples.bank_transfer.tour.view import View
from examples.bank_transfer.tour.world import World, opened

__all__ = ["first", "stay", "take"]

LOOK_S: Final = 0.05
"""Between two audits; the auditor works a fifth of the time at most."""


async def take(settings: TourSettings, console: Console) -> int:
    """Take it; the exit code is 0 only if no money was made or lost, every transfer ended, and the
    ledgers agree where they can be reconciled.

    Raises:
        NotStarted: A program, or a server that is needed, is not there.
    """
    record = Record()
    view = asyncio.create_task(View(record, console).show())
    try:
        async with opened(settings) as world:
            await visit(settings, world, record)
            await world.stop()
            await end(view)
            report(record, console)
            agree = None
            if settings.is_reconciled:
                keeps_report = settings.directory is None
                agree = await reconcile(world, record.seconds, console, keeps_report=keeps_report)
            verdict(record, console, ledgers_agree=agree)
    except BaseExceptionGroup as error:
        raise first(error) from error  # The other errors follow from the first.
    finally:
        await end(view)
    return 1 if record.mistakes or agree is False else 0


async def end(view: asyncio.Task[None]) -> None:
    """End the view."""
    view.cancel()
    with suppress(asyncio.CancelledError):
        await view


def first(error: BaseException) -> BaseException:
    """The first error of nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def stay(settings: TourSettings, console: Console) -> None:
    """Run the broker and both banks, so that users can look at their pages, until cancelled.

    Raises:
        NotStarted: A program, or a server that is needed, is not there.
    """
    async with opened(settings) as world:
        console.print(f"customers of ICBC  {world.icbc_url}/", highlight=False)
        console.print(f"tellers of ICBC    {world.icbc_url}/teller", highlight=False)
        console.print(f"tellers of CCB     {world.ccb_url}/teller", highlight=False)
        console.print(f"the name server    {world.names}", highlight=False)
        await asyncio.Event().wait()


async def visit(settings: TourSettings, world: World, record: Record) -> None:
    """The part of the tour while all programs run."""
    auditor = Auditor(world.icbc_database, world.ccb_database)
    customers = Customers(
        world.icbc_url, record, concurrent=settings.concurrent, rate=settings.rate
    )
    try:
        async with asyncio.TaskGroup() as beside, customers:
            looking = beside.create_task(keep_looking(auditor, record))
            await tell_stories(world.mark, customers, record)
            await crowd(settings, world, customers, record)
            record.phase = "what is under way comes to its end"
            await everything_ended(settings.patience_s, record)
            looking.cancel()
        record.look(await asyncio.to_thread(auditor.look))
        for mistake in await asyncio.to_thread(auditor.match, record.heard):
            record.mistake(mistake)
    finally:
        auditor.close()


async def keep_looking(auditor: Auditor, record: Record) -> None:
    """Audit both banks' books again and again, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        began_s = loop.time()
        record.look(await asyncio.to_thread(auditor.look))
        took_s = loop.time() - began_s
        await asyncio.sleep(max(LOOK_S, took_s * 4))


async def tell_stories(mark: str, customers: Customers, record: Record) -> None:
    """Customer A sends 10,000 to customer B: it commits, it rolls back, it is checked."""
    record.phase = "customer A sends 10,000 to customer B"
    stories = story(mark)
    record.wanted += len(stories)
    for wish in stories:
        state = await customers.ask(wish)
        record.tell(f"{wish.drill.name}: the transfer is {state}")
    for wish in stories:
        record.stories[wish.drill.name] = await customers.all_steps(wish.id)


async def crowd(settings: TourSettings, world: World, customers: Customers, record: Record) -> None:
    """Many customers order transfers, while accidents happen."""
    record.phase = "many customers, and accidents"
    record.wanted += settings.transfers
    each_bank = settings.accounts // 2
    wanted = wishes(world.mark, settings.transfers, each_bank, settings.chosen_ways, settings.seed)
    programs = [program.name for program in world.programs]
    planned = plan(settings.transfers, programs, settings.kills, settings.copies, settings.seed)
    accidents = Accidents(world.programs, world.names, record, world.mark, settings.seed)
    async with asyncio.TaskGroup() as group:
        group.create_task(customers.ask_all(wanted))
        group.create_task(accidents.happen(planned))


async def everything_ended(patience_s: float, record: Record) -> None:
    """Wait until no transfer is in flight; give up if nothing changes for a while."""
    first, seen, moved_s = record.looks + 1, None, record.seconds
    while True:
        sheet = record.sheet
        if sheet is not None and record.looks > first:
            if not sheet.icbc.count(State.SENT) and not any(sheet.in_flight.values()):
                record.ended_s = record.seconds
                return
            if (now := (sheet.icbc.moved, sheet.ccb.moved)) != seen:
                seen, moved_s = now, record.seconds
        if record.seconds - moved_s > patience_s:
            left = 0 if sheet is None else sheet.icbc.count(State.SENT)
            stuck = f"{left} transfer is" if left == 1 else f"{left} transfers are"
            record.mistake(f"nothing moves any more, and {stuck} at no end")
            return
        await asyncio.sleep(LOOK_S)
