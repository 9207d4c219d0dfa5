"""Streams of changes: shared renderings, limits, and ends. Time is virtual."""

import asyncio
from collections import Counter

import pytest
from markupsafe import Markup

from txmq.console import streams
from txmq.console.sessions import VisitorSession
from txmq.console.streams import ALIVE_S, REFRESH_S, LiveView, PageStreams
from txmq.testing import simulate


def session(name, credentials="operator"):
    return VisitorSession(
        id=name,
        token=f"token-of-{name}",
        credentials=credentials,
        person="operator",
        opened_s=0.0,
        used_s=0.0,
    )


class Stage:
    """Sessions, and a page that a test changes."""

    def __init__(self, clock):
        self.sessions = {name: session(name) for name in "ab"}
        self.view = LiveView(Markup("one"), "m1")
        self.html = {}
        self.rendered = []
        self.can_begin = True
        self.hold = None
        self.clock = clock
        self.streams = PageStreams(self.sessions.get, self.render, self.may_begin, clock)

    async def render(self, visitor, address):
        self.rendered.append((visitor.id, address))
        if self.hold is not None:
            await self.hold.wait()
        return self.view._replace(html=self.html.get(visitor.id, self.view.html))

    async def may_begin(self):
        return self.can_begin


def in_world(scenario):
    def test():
        async def run(world):
            await scenario(Stage(world.machine("console").clock))

        simulate(run, 3, timeout=3600.0)

    test.__doc__ = scenario.__doc__
    return test


async def next_event(events):
    """The next event, without the line about connecting again."""
    while True:
        text = (await anext(events)).decode()
        if not text.startswith("retry"):
            return text


@in_world
async def test_a_stream_sends_changes_and_keep_alives_only(stage):
    events = stage.streams.events("a", "/", "m1")
    began = asyncio.get_running_loop().time()
    assert await next_event(events) == "event: alive\ndata: \n\n"
    assert ALIVE_S <= asyncio.get_running_loop().time() - began < ALIVE_S + 2 * REFRESH_S

    stage.view = LiveView(Markup("two\nlines\r"), "m2")
    assert await next_event(events) == ("event: page\nid: m2\ndata: two\ndata: lines&#13;\n\n")
    await events.aclose()
    assert len(stage.streams) == 0


@in_world
async def test_a_page_with_a_short_refresh_time_is_rendered_more_often(stage):
    stage.streams = PageStreams(
        stage.sessions.get, stage.render, stage.may_begin, stage.clock, {"/tail": 1.0}
    )
    began = asyncio.get_running_loop().time()
    for address in ("/tail?topic=Orders", "/"):
        events = stage.streams.events("a", address, "m1")
        await next_event(events)
        await events.aclose()
    assert asyncio.get_running_loop().time() - began >= 2 * ALIVE_S
    counts = Counter(address for _, address in stage.rendered)
    assert counts["/tail?topic=Orders"] >= 4 * counts["/"]


@in_world
async def test_sessions_of_one_account_share_renderings(stage):
    views = [stage.streams.events(name, "/", "") for name in "abab"]
    await next_event(views[0])
    stage.rendered.clear()
    stage.view = LiveView(Markup("two"), "m2")
    for _ in range(3):
        await asyncio.gather(*map(next_event, views))
    # The first change comes at once, then two keep-alives.
    assert 0 < len(stage.rendered) <= 2 * ALIVE_S / REFRESH_S + 2

    stage.sessions["b"].credentials = "teller"
    stage.view = LiveView(Markup("three"), "m3")
    stage.rendered.clear()
    await next_event(views[0])
    await next_event(views[1])
    assert {name for name, _ in stage.rendered} == {"a", "b"}


@in_world
async def test_a_rendering_with_a_sessions_token_is_never_shared(stage):
    stage.html = {name: Markup(f"token-of-{name}") for name in "ab"}
    for _ in range(2):
        for name in "ab":
            events = stage.streams.events(name, "/", "")
            assert f"token-of-{name}" in await next_event(events)
            await events.aclose()


@in_world
async def test_one_stream_too_many_ends_the_oldest_of_the_session(stage):
    opened = []
    for _ in range(streams.CONSOLE_STREAMS_OF_SESSION_MAX + 1):
        opened.append(stage.streams.events("a", "/", ""))
        await next_event(opened[-1])
    other = stage.streams.events("b", "/", "")
    await next_event(other)
    assert await next_event(opened[0]) == "event: rest\ndata: \n\n"
    with pytest.raises(StopAsyncIteration):
        await anext(opened[0])
    assert await next_event(opened[1]) == "event: alive\ndata: \n\n"
    assert len(stage.streams) == streams.CONSOLE_STREAMS_OF_SESSION_MAX + 1


@in_world
async def test_a_stop_ends_all_streams_at_once_even_those_waiting_for_brokers(stage):
    quiet = stage.streams.events("a", "/", "m1")
    waiting = asyncio.ensure_future(next_event(quiet))
    await asyncio.sleep(0.1)
    stage.hold = asyncio.Event()
    stuck = asyncio.ensure_future(next_event(stage.streams.events("b", "/slow", "m1")))
    await asyncio.sleep(0.1)

    began = asyncio.get_running_loop().time()
    stage.streams.stop()
    for stream in (waiting, stuck):
        with pytest.raises(StopAsyncIteration):
            await stream
    assert asyncio.get_running_loop().time() == began
    assert stage.streams.refuse()


@in_world
async def test_the_pages_of_an_ended_session_are_reloaded(stage):
    events = stage.streams.events("a", "/", "m1")
    waiting = asyncio.ensure_future(next_event(events))
    await asyncio.sleep(0.1)
    del stage.sessions["a"]
    assert await waiting == "event: reload\ndata: \n\n"


@in_world
async def test_a_page_first_shown_as_an_error_is_reloaded_once_brokers_answer(stage):
    """It has no forms. A visitor without a session waits until brokers answer."""
    del stage.sessions["a"]
    stage.can_begin = False
    waiting = asyncio.ensure_future(next_event(stage.streams.events("a", "/", "problem-m0")))
    await asyncio.sleep(60)
    assert not waiting.done()
    stage.can_begin = True
    assert await waiting == "event: reload\ndata: \n\n"
    assert await next_event(stage.streams.events("b", "/", "problem-m0")) == (
        "event: reload\ndata: \n\n"
    )

    away = LiveView(Markup("away"), "m9", is_problem=True)
    assert (away.mark_after(""), away.mark_after("m1")) == ("problem-m9", "away-m9")
    assert away.mark_after("problem-m0") == "problem-m9"
