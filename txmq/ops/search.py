"""Finds everything in a cluster whose name, id or key matches a text.

Each kind is searched once, all kinds concurrently. A kind that cannot be searched becomes a note,
and does not affect the others.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from txmq.client import Admin
from txmq.client.observe.trace_records import SendRecord, decode
from txmq.client.routes import MASTER
from txmq.client.values import BrokerInfo
from txmq.errors import (
    BrokerRefused,
    NoPermission,
    NotFound,
    RequestNotSupported,
    TopicNotFound,
    TxmqError,
)
from txmq.message import ReceivedMessage
from txmq.ops.groups import is_of_system
from txmq.ops.queries import ASKED_TOGETHER_MAX, sentence_of
from txmq.ops.topics import own_topics
from txmq.protocol.topics import TRACES
from txmq.text import quantity

__all__ = [
    "HITS_MAX",
    "KINDS",
    "STEP_S",
    "STEP_TOPICS_MAX",
    "ClusterHits",
    "SearchHit",
    "TopicSearchStep",
    "search_cluster",
    "search_further",
    "search_topics",
]

HITS_MAX: Final = 20
"""The maximum number of hits of each kind."""
TRANSACTIONS_SEARCHED_MAX: Final = 500
"""The maximum number of open transactions of each broker whose keys are compared."""
KINDS: Final = ("topic", "group", "producer", "broker", "account", "transaction", "message")


class SearchHit(NamedTuple):
    """One match."""

    kind: str
    """One of :data:`KINDS`."""
    name: str
    about: str
    is_exact: bool
    fields: Mapping[str, str]
    """The names and ids that lead to it."""


class ClusterHits(NamedTuple):
    """The result of a search."""

    hits: list[SearchHit]
    """By kind, the exact ones first."""
    counts: Mapping[str, int]
    """The number of hits of each kind, including those beyond :data:`HITS_MAX`."""
    notes: list[str]
    """The parts that were not searched, and why."""
    searched: int = 0
    """The number of topics whose messages this step and the previous ones searched."""
    topics: int = 0
    """The number of all topics."""
    next: str = ""
    """The cursor for :func:`search_further`; empty if messages were searched in all topics."""

    @property
    def exact(self) -> list[SearchHit]:
        """The hits whose name, id or key is the text."""
        return [hit for hit in self.hits if hit.is_exact]

    def joined_with(self, later: ClusterHits) -> ClusterHits:
        """These hits and those of the next step."""
        known = {hit.fields.get("place") for hit in self.hits}
        fresh = [hit for hit in later.hits if hit.fields.get("place") not in known]
        return later._replace(
            hits=[*self.hits, *fresh],
            counts={
                kind: self.counts[kind] + sum(hit.kind == kind for hit in fresh) for kind in KINDS
            },
            notes=[*self.notes, *(note for note in later.notes if note not in self.notes)],
        )


async def search_cluster(admin: Admin, text: str, cluster: str | None = None) -> ClusterHits:
    """Find topics, groups, producers, brokers and accounts whose names contain a text, and
    transactions and messages whose id or key is the text.

    Messages without a trace are searched topic by topic. In a cluster with very many topics, this
    search stops after some of them, and :func:`search_further` continues it.

    Raises:
        TransportError: No name server answers.
    """
    brokers = await admin.cluster()
    names = own_topics(await admin.topics(), brokers)
    search = _ClusterSearch(admin, text, cluster)
    search.add_names("topic", names)
    search.add_names("broker", [broker.name for broker in brokers])
    await asyncio.gather(
        search.guarded("groups", search.add_groups),
        search.guarded("producers", search.add_producers),
        search.guarded("accounts", lambda: search.add_accounts(brokers)),
        search.guarded("transactions", search.add_transactions),
        search.guarded("messages by traces", search.add_traced),
        search.guarded("messages", lambda: search.add_messages(names, brokers, "")),
    )
    return search.result()


async def search_further(
    admin: Admin, text: str, after: str, cluster: str | None = None
) -> ClusterHits:
    """Search further topics for messages whose id or key is the text.

    Args:
        admin: Asks the brokers.
        text: The text.
        after: The cursor of the previous step.
        cluster: The cluster, if there are several.

    Raises:
        TransportError: No name server answers.
    """
    brokers = await admin.cluster()
    names = own_topics(await admin.topics(), brokers)
    search = _ClusterSearch(admin, text, cluster)
    await search.guarded("messages", lambda: search.add_messages(names, brokers, after))
    return search.result()


class _ClusterSearch:
    def __init__(self, admin: Admin, text: str, cluster: str | None) -> None:
        self._admin = admin
        self._text = text
        self._folded = text.casefold()
        self._cluster = cluster
        self._found: dict[str, list[SearchHit]] = {kind: [] for kind in KINDS}
        self._counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._messages: set[str] = set()
        self._notes: list[str] = []
        self._searched = self._topics = 0
        self._next = ""

    async def guarded(self, what: str, search: Callable[[], Awaitable[None]]) -> None:
        """Run one part; its failure becomes a note."""
        try:
            await search()
        except RequestNotSupported:
            self._notes.append(f"these brokers cannot list {what}")
        except TxmqError as error:
            self._notes.append(f"{what} were not searched: {sentence_of(error)}")

    def result(self) -> ClusterHits:
        """The hits, cut to :data:`HITS_MAX` of each kind."""
        hits = [hit for kind in KINDS for hit in self._found[kind][:HITS_MAX]]
        return ClusterHits(
            hits, self._counts, sorted(self._notes), self._searched, self._topics, self._next
        )

    # Names

    def add_names(self, kind: str, names: Iterable[str], about: str = "") -> None:
        """Add the names that contain the text: exact matches first, then by the text's position."""
        folded = self._folded
        places = ((name.casefold().find(folded), name) for name in names)
        fitting = [(name != self._text, at, name) for at, name in places if at >= 0]
        fitting.sort()
        self._counts[kind] += len(fitting)
        self._found[kind] += [
            SearchHit(kind, name, about, not is_other, {"name": name})
            for is_other, _, name in fitting[:HITS_MAX]
        ]

    async def add_groups(self) -> None:
        """Add consumer groups."""
        known = await self._admin.groups(cluster=self._cluster)
        self.add_names("group", [name for name in known if not is_of_system(name)])

    async def add_producers(self) -> None:
        """Add producer groups by name, and by the client ids and addresses of their producers."""
        known = await self._admin.producers(cluster=self._cluster)
        self.add_names("producer", known)
        for group, clients in known.items():
            for client in clients:
                fits = self._text in client.id or self._text == client.address
                if fits and self._folded not in group.casefold():
                    about = f"{client.id} at {client.address}"
                    hit = SearchHit(
                        "producer", group, about, is_exact=False, fields={"name": group}
                    )
                    self._add(hit)

    async def add_accounts(self, brokers: Sequence[BrokerInfo]) -> None:
        """Add the accounts of the first broker: all brokers of a cluster have the same ones."""
        names = [
            broker.name
            for broker in brokers
            if MASTER in broker.addresses and self._cluster in (None, broker.cluster)
        ]
        if not names:
            return
        try:
            found = await self._admin.accounts(names[0])
        except NoPermission:
            raise
        except BrokerRefused:
            return  # It has no accounts, or cannot list them.
        self.add_names("account", [account.access_key for account in found.plain_access_configs])

    # Transactions

    async def add_transactions(self) -> None:
        """Add the transaction with this id, and open ones with this key."""
        try:
            report, _ = await self._admin.transaction_report(self._text, cluster=self._cluster)
        except NotFound:
            pass
        else:
            self._add_transaction(
                report.transaction.id,
                report.transaction.queue.broker,
                f"{report.transaction.state}, of group {report.transaction.group}",
            )
        opened = await self._admin.transactions(
            limit=TRANSACTIONS_SEARCHED_MAX, cluster=self._cluster
        )
        for transaction in opened:
            if self._text in transaction.keys and self._text != transaction.id:
                about = f"{transaction.state}, of group {transaction.group}"
                self._add_transaction(transaction.id, transaction.queue.broker, about)
        if len(opened) >= TRANSACTIONS_SEARCHED_MAX:
            self._notes.append(
                f"of the open transactions only the oldest {TRANSACTIONS_SEARCHED_MAX} of each "
                "broker were searched by key"
            )

    def _add_transaction(self, name: str, broker: str, about: str) -> None:
        fields = {"id": name, "broker": broker}
        self._add(SearchHit("transaction", name, about, is_exact=True, fields=fields))

    # Messages

    async def add_traced(self) -> None:
        """Add messages whose producers left a trace with this id or key."""
        try:
            traces = await self._admin.query(TRACES, self._text, count=HITS_MAX)
        except TopicNotFound:
            return  # This cluster has no traces.
        for trace in traces:
            for record in decode(trace.body):
                if isinstance(record, SendRecord) and self._is_of(record):
                    await self._add_if_visible(record)

    def _is_of(self, record: SendRecord) -> bool:
        return self._text == record.id or self._text in record.keys.split()

    async def _add_if_visible(self, record: SendRecord) -> None:
        if len(self._found["message"]) < HITS_MAX:
            try:
                self._add_message(await self._admin.find(record.topic, record.id))
            except TxmqError:
                return  # It is a half message that was never committed, or was deleted.

    async def add_messages(
        self, topics: Sequence[str], brokers: Sequence[BrokerInfo], after: str
    ) -> None:
        """Add messages with this id or key: one step through the topics."""
        asked = [broker for broker in brokers if self._cluster in (None, broker.cluster)]
        self._topics, self._next = len(topics), after
        step = await search_topics(self._admin, topics, asked, self._text, HITS_MAX, after)
        self._searched, self._next = step.searched, step.next
        if step.note:
            self._notes.append(step.note)
        for message in step.messages:
            self._add_message(message)

    def _add_message(self, message: ReceivedMessage) -> None:
        if message.offset_id in self._messages:
            return
        self._messages.add(message.offset_id)
        about = f"in {message.topic}, keys {' '.join(message.keys) or 'none'}"
        fields = {"place": message.offset_id}
        self._add(SearchHit("message", message.id, about, is_exact=True, fields=fields))

    def _add(self, hit: SearchHit) -> None:
        self._counts[hit.kind] += 1
        if len(self._found[hit.kind]) < HITS_MAX:
            self._found[hit.kind].append(hit)


STEP_S: Final = 0.25
"""A step begins no further topics after this time; a page of the console takes one step."""
STEP_TOPICS_MAX: Final = 1_000
"""The maximum number of topics that one step searches."""


class TopicSearchStep(NamedTuple):
    """The result of one step."""

    messages: list[ReceivedMessage]
    searched: int
    """The number of topics that this step and the previous ones searched."""
    topics: int
    """The number of all topics."""
    next: str
    """The cursor of the next step: the last topic that was searched; empty if it was the last."""
    note: str = ""
    """The topics of this step that brokers refused to search, and why."""


async def search_topics(
    admin: Admin,
    topics: Sequence[str],
    brokers: Sequence[BrokerInfo],
    text: str,
    most: int,
    after: str = "",
) -> TopicSearchStep:
    """Search topics for messages with a key or an id: one step.

    Args:
        admin: Asks the brokers.
        topics: All topics.
        brokers: The brokers of the cluster.
        text: The key or the id.
        most: Stop when this many messages are found.
        after: The cursor of the previous step; empty for the first.

    Raises:
        TransportError: A broker does not answer.
    """
    names = sorted(topics)
    start = place = bisect_right(names, after) if after else 0
    end = min(len(names), start + STEP_TOPICS_MAX)
    time = asyncio.get_running_loop().time
    until = time() + STEP_S
    found: list[ReceivedMessage] = []
    refusals: list[BrokerRefused] = []

    async def look(topic: str) -> list[ReceivedMessage]:
        try:
            return await admin.search(topic, text, brokers)
        except BrokerRefused as error:
            refusals.append(error)
            return []

    while place < end and len(found) < most and (place == start or time() < until):
        together = names[place : min(end, place + ASKED_TOGETHER_MAX)]
        lists = await asyncio.gather(*map(look, together))
        found += [message for messages in lists for message in messages]
        place += len(together)
    note = ""
    if refusals:
        count = quantity(len(refusals), "topic")
        note = f"{count} could not be searched; the last refusal: {sentence_of(refusals[-1])}"
    return TopicSearchStep(
        found, place, len(names), names[place - 1] if place < len(names) else "", note
    )
