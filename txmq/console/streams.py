"""Streams of changes: a browser receives a new rendering of its page when something has changed.

One stream is a response that does not end (server-sent events). Streams of one account that show
the same page share its renderings, so that ten visitors cause no more requests to brokers than one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from markupsafe import Markup

from txmq.console.sessions import VisitorSession
from txmq.limits import CONSOLE_STREAMS_MAX, CONSOLE_STREAMS_OF_SESSION_MAX
from txmq.runtime.clock import Clock

__all__ = ["ALIVE_S", "REFRESH_S", "LiveView", "PageStreams"]

REFRESH_S: Final = 5.0
"""The pause between two renderings of a page."""

ALIVE_S: Final = 15.0
"""The longest silence of a stream; then it sends a sign of life."""

RETRY_MS: Final = 2_000
"""The pause before a browser connects again after a stream has ended."""

PROBLEM: Final = "problem-"
"""The prefix of the mark of a page that began with a problem, so that it lacks its forms."""
AWAY: Final = "away-"
"""The prefix of the mark of a problem that came later."""


class LiveView(NamedTuple):
    """The part of a page that refreshes itself."""

    html: Markup
    mark: str
    """A hash that changes with it."""
    is_problem: bool = False

    def mark_after(self, shown: str) -> str:
        """The mark to send to a browser that now shows ``shown``, which is empty for a new page."""
        if not self.is_problem:
            return self.mark
        return (PROBLEM if not shown or shown.startswith(PROBLEM) else AWAY) + self.mark


class _Rendering(NamedTuple):
    begun_s: float
    view: asyncio.Future[LiveView]


class _Stream:
    """One open stream; ``is_crowded`` asks it to end."""

    def __init__(self) -> None:
        self.is_crowded = False
        self.wake = asyncio.Event()


Renderer: TypeAlias = Callable[[VisitorSession, str], Awaitable[LiveView]]
"""Renders the page at an address for a session."""


class PageStreams:
    """All open streams of a console.

    Args:
        find: Returns the session with an id, or ``None`` if it has ended.
        render: Renders the page at an address.
        can_begin: Returns whether a visitor without a session can get one now.
        clock: The source of time.
        pauses: The pause between two renderings of a page, by path, where it is not
            ``REFRESH_S``.
    """

    def __init__(
        self,
        find: Callable[[str], VisitorSession | None],
        render: Renderer,
        can_begin: Callable[[], Awaitable[bool]],
        clock: Clock,
        pauses: Mapping[str, float] | None = None,
    ) -> None:
        self._find = find
        self._render = render
        self._can_begin = can_begin
        self._clock = clock
        self._pauses = pauses or {}
        self._by_session: dict[str, list[_Stream]] = {}
        self._shared: dict[tuple[object, ...], _Rendering] = {}
        self._private: set[str] = set()
        """The paths of pages whose changing part once had a form with a session's token."""
        self._public: set[str] = set()
        """The paths of pages whose renderings visitors share."""
        self._is_stopping = False
        self.sent = 0
        """The renderings sent."""
        self.refused = 0
        """The streams that were refused, or ended for newer ones."""

    def __len__(self) -> int:
        return sum(map(len, self._by_session.values()))

    def stop(self) -> None:
        """End all streams now, and refuse new ones."""
        self._is_stopping = True
        for streams in self._by_session.values():
            for stream in streams:
                stream.wake.set()
        for rendering in self._shared.values():
            rendering.view.cancel()

    def note(self, session: VisitorSession, address: str, view: LiveView) -> None:
        """Keep the rendering of a page that a browser has just opened, for its stream."""
        if not self._is_stopping:
            done: asyncio.Future[LiveView] = asyncio.get_running_loop().create_future()
            done.set_result(view)
            self._keep(session, address, done)
            self._note_token(session, address, view)

    async def events(self, session_id: str, address: str, shown: str) -> AsyncIterator[bytes]:
        """The events of one stream, until the browser leaves, the session ends, or :meth:`stop`.

        Args:
            session_id: The session of the browser.
            address: The page, with its query.
            shown: The mark of what the browser shows.
        """
        stream = self._enter(session_id)
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            async for event in self._changes(stream, session_id, address, shown):
                yield event
        finally:
            self._leave(session_id, stream)

    def refuse(self) -> bool:
        """Whether the console must refuse one more stream; counts the refusal."""
        if self._is_stopping or len(self) >= CONSOLE_STREAMS_MAX:
            self.refused += 1
            return True
        return False

    def _enter(self, session_id: str) -> _Stream:
        streams = self._by_session.setdefault(session_id, [])
        if len(streams) >= CONSOLE_STREAMS_OF_SESSION_MAX:
            # A browser has six connections to one host, and needs some for its next pages.
            oldest = streams.pop(0)
            oldest.is_crowded = True
            oldest.wake.set()
            self.refused += 1
        stream = _Stream()
        streams.append(stream)
        return stream

    def _leave(self, session_id: str, stream: _Stream) -> None:
        streams = self._by_session.get(session_id, [])
        with suppress(ValueError):
            streams.remove(stream)
        if not streams:
            self._by_session.pop(session_id, None)

    async def _changes(
        self, stream: _Stream, session_id: str, address: str, shown: str
    ) -> AsyncIterator[bytes]:
        last_event_s = self._clock.monotonic()
        while not self._is_stopping:
            if stream.is_crowded:
                yield _event("rest")
                return
            session = self._find(session_id)
            if session is None:
                # A browser that shows a problem loads its page again once a session can begin.
                if shown.startswith(PROBLEM) and not await self._can_begin():
                    await self._pause(stream, address)
                    continue
                yield _event("reload")
                return
            view = await self._view(stream, session, address)
            if view is None:
                continue  # The stream must end, or the console stops.
            if shown.startswith(PROBLEM) and not view.is_problem:
                yield _event("reload")  # A page that began as a problem lacks its forms.
                return
            now_s = self._clock.monotonic()
            mark = view.mark_after(shown)
            if mark != shown:
                shown, last_event_s = mark, now_s
                self.sent += 1
                yield _event("page", view.html, mark)
            elif now_s - last_event_s >= ALIVE_S:
                last_event_s = now_s
                yield _event("alive")
            await self._pause(stream, address)

    async def _pause(self, stream: _Stream, address: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._refresh_s(address)):
                await stream.wake.wait()

    def _refresh_s(self, address: str) -> float:
        return self._pauses.get(address.partition("?")[0], REFRESH_S)

    async def _view(
        self, stream: _Stream, session: VisitorSession, address: str
    ) -> LiveView | None:
        """A current rendering; ``None`` if the stream is woken first."""
        rendering = self._current(session, address)
        if rendering is None:
            task = asyncio.ensure_future(self._render(session, address))
            rendering = self._keep(session, address, task)
        woken = asyncio.ensure_future(stream.wake.wait())
        try:
            await asyncio.wait((rendering.view, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
        if not rendering.view.done() or rendering.view.cancelled():
            return None
        view = rendering.view.result()
        self._note_token(session, address, view)
        return view

    def _current(self, session: VisitorSession, address: str) -> _Rendering | None:
        found = self._shared.get(self._key(session, address))
        oldest_s = self._clock.monotonic() - self._refresh_s(address) / 2
        if found is None or found.begun_s <= oldest_s:
            return None
        return None if found.view.cancelled() else found

    def _keep(
        self, session: VisitorSession, address: str, view: asyncio.Future[LiveView]
    ) -> _Rendering:
        now_s = self._clock.monotonic()
        old = [
            key
            for key, other in self._shared.items()
            if other.view.done() and now_s - other.begun_s >= REFRESH_S / 2
        ]
        for key in old:
            del self._shared[key]
        rendering = self._shared[self._key(session, address)] = _Rendering(now_s, view)
        return rendering

    def _key(self, session: VisitorSession, address: str) -> tuple[object, ...]:
        # Until a page was rendered once, it counts as one with a form.
        shares = address.partition("?")[0] in self._public
        return (address, session.credentials, session.person, "" if shares else session.id)

    def _note_token(self, session: VisitorSession, address: str, view: LiveView) -> None:
        path = address.partition("?")[0]
        if session.token in view.html:
            self._private.add(path)
            self._public.discard(path)
        elif path not in self._private:
            self._public.add(path)


def _event(name: str, text: str = "", mark: str = "") -> bytes:
    lines = [f"event: {name}"]
    if mark:
        lines.append(f"id: {mark}")
    # A carriage return would end a line here; a character reference means the same.
    lines += [f"data: {line}" for line in str(text).replace("\r", "&#13;").split("\n")]
    return "\n".join([*lines, "", ""]).encode()
