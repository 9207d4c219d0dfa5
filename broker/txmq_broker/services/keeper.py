"""The small tables on disk: topics, groups, offsets and floors, each in a checked JSON file.

Topics, groups and floors are saved in two copies before the broker confirms a change, so one
damaged file loses nothing. Offsets are saved every few seconds, and the previous file stays as
their predecessor. After a crash a group goes back to the saved offsets and receives some messages
twice, as with RocketMQ.

All four files exist after a directory's first start, so a missing file was deleted.

Encoding and writing 100,000 topics holds up all clients for 40 ms. So with many topics a change
writes only ``topics-changes.json``, which has every change since ``topics.json`` was written, and a
thread rewrites ``topics.json`` from time to time. The changes always take precedence, so it does
not matter whether ``topics.json`` has them too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec

from txmq.errors import DamagedFile, ForeignFile, RemoteProtocolError, UsageError
from txmq.protocol.bodies import (
    Body,
    ConsumerOffsets,
    DataVersion,
    GroupConfigs,
    TopicConfig,
    TopicConfigs,
)
from txmq.protocol.copies import CopiedTables, TopicChanges
from txmq.protocol.span import FOLDER as LOG_FOLDER
from txmq.runtime.disk import Disk
from txmq_broker.core.groups import Groups
from txmq_broker.core.offsets import Offsets
from txmq_broker.core.topics import Topics
from txmq_broker.services.table_saves import TableSaves, run_in_thread
from txmq_broker.store.checked_file import CheckedFile

__all__ = ["CopyState", "Floors", "Keeper", "Tables"]

log = logging.getLogger(__name__)

_FOLDER: Final = "config"

_WAY_OUT: Final = (
    "put the file back from a backup; to go on without what it held: "
    "txmq serve --accept-loss REASON"
)

PROMOTE_COMMAND: Final = "txmq cluster promote --data DIR --reason TEXT"
"""The command in error texts."""

_PRETTY_BYTES_MAX: Final = 256 * 1024
"""Tables up to this size have one row on a line, for people."""

_MANY_TOPICS: Final = 1_000
"""With more topics, changes have their own file."""

_CHANGES_MAX: Final = 1_000
"""With more changed topics, ``topics.json`` is rewritten."""

_ENCODED_AT_ONCE: Final = 2_000
"""Topics that a thread encodes before it lets others run: a quarter of a millisecond."""

B = TypeVar("B", bound=Body)


class SavedTopics(TopicConfigs):
    """The text of ``topics.json``."""

    has_changes: bool = False
    """Whether ``topics-changes.json`` belongs to it."""


class Floors(Body):
    """Offsets below which queues were emptied, by topic and queue."""

    floors: dict[str, dict[int, int]] = {}
    log_end: int = 0
    """The log's durable end when the floors were saved."""
    deleting: dict[str, dict[int, int]] = {}
    """The floors of a topic whose deletion had begun. They count if the topic does not exist."""


class CopyState(Body):
    """Whether a directory is a copy or a leader's, and in which epoch."""

    epoch: int = 0
    """The newest epoch that is known here."""
    is_copy: bool = False
    """Whether it is a copy of a leader's directory; without etcd, such a copy must be promoted
    before it leads."""
    is_complete: bool = True
    """Whether the copy once had everything that its leader had."""
    cut: tuple[int, int] | None = None
    """A cut of the log that has begun: where its last span begins and ends afterwards."""
    reason: str = ""
    """Why it was promoted."""
    promoted_ms: int = 0
    """When it was promoted, by the wall clock."""
    broker_id: int = 0
    """The id with which it last registered as a follower."""
    accounts: str = ""
    """The digest of the leader's accounts that it adopted last."""
    doubt: str = ""
    """Why it may have lost something. It must not lead before it has caught up."""
    damaged: list[tuple[int, int]] = []
    """The known damaged parts of its log: where each begins and ends. It has everything else, and
    should not lead before they are repaired."""


class Tables(NamedTuple):
    """The small tables that clients change."""

    topics: Topics
    groups: Groups
    offsets: Offsets


class Keeper:
    """Loads and saves the small tables.

    Attributes:
        owner: The identity of the directory, which every file carries; "" until it is known.
        is_new: True on the directory's first start; ``None`` until the files are read.
        accepts_loss: True if a table without an intact file begins empty.
        has_lost: True if a table began empty for that reason.
    """

    def __init__(self, disk: Disk) -> None:
        self.owner = ""
        self.is_new: bool | None = None
        self.accepts_loss = False
        self.has_lost = False
        self._disk = disk
        self._topics = CheckedFile(disk, f"{_FOLDER}/topics.json", is_doubled=True)
        self._topic_changes = CheckedFile(disk, f"{_FOLDER}/topics-changes.json", is_doubled=True)
        self._groups = CheckedFile(disk, f"{_FOLDER}/groups.json", is_doubled=True)
        self._offsets = CheckedFile(disk, f"{_FOLDER}/offsets.json")
        self._floors = CheckedFile(disk, f"{_FOLDER}/floors.json", is_doubled=True)
        self._copy_state = CheckedFile(disk, f"{_FOLDER}/copy.json", is_doubled=True)
        self.files = (self._topics, self._groups, self._offsets, self._floors)
        """The files that every directory has."""
        self.other_files = (self._topic_changes, self._copy_state)
        self._loaded: dict[CheckedFile, bytes] = {}
        self._adopted: dict[CheckedFile, Body] = {}
        self._adopted_topics: TopicConfigs | None = None
        self._changed: dict[str, TopicConfig | None] = {}
        """The content of ``topics-changes.json``; ``None`` for deleted topics."""
        self.has_changes = False
        """Whether ``topics.json`` is complete only with that file."""
        self._group_saves = TableSaves(self._groups, disk)
        self._offset_saves = TableSaves(self._offsets, disk)
        self._log_end = 0
        self.has_begun_deletion = False
        """Whether some of the saved floors may count only if their topic does not exist."""
        self.is_incomplete = False
        """True if :meth:`complete` failed and must be repeated."""

    # Loading

    def topics(self) -> TopicConfigs:
        """The saved topics."""
        saved = self._load(self._topics, SavedTopics)
        self.has_changes = saved.has_changes
        if not saved.has_changes:
            return saved
        changes = self._load(self._topic_changes, TopicChanges)
        if self._topic_changes not in self._loaded:
            return saved  # The file is lost, and the operator accepted the loss.
        if changes.data_version.counter < saved.data_version.counter:
            raise DamagedFile(
                self._topic_changes.path,
                f"it is older than {self._topics.path}; put both files back from one backup",
            )
        self._changed = {**changes.changed, **dict.fromkeys(changes.deleted)}
        return changes.applied_to(saved)

    def groups(self) -> GroupConfigs:
        """The saved groups."""
        return self._load(self._groups, GroupConfigs)

    def offsets(self) -> ConsumerOffsets:
        """The saved offsets."""
        return self._load(self._offsets, ConsumerOffsets)

    def floors(self) -> Floors:
        """The saved floors that count."""
        floors = self._load(self._floors, Floors)
        self._log_end = floors.log_end
        if not floors.deleting:
            return floors
        self.has_begun_deletion = True
        topics = self.topics().topic_config_table
        deleted = {name: rows for name, rows in floors.deleting.items() if name not in topics}
        return Floors({**floors.floors, **deleted}, floors.log_end)

    def copy_state(self) -> CopyState:
        """Whether this is a copy. A broker without copies has no such file and gets the default.

        Raises:
            DamagedFile: The file is damaged, and so is its predecessor.
        """
        data = self._copy_state.load(self.owner)
        return CopyState() if data is None else CopyState.read(data)

    def refuse_copy(self) -> None:
        """Refuse to lead without a coordinator if this is the directory of an unpromoted follower.

        Raises:
            UsageError: It is one.
            DamagedFile: The file with that state is damaged.
        """
        if self.copy_state().is_copy:
            raise UsageError(
                "this is the directory of a follower; to lead with it, stop its leader for good "
                f"and run: {PROMOTE_COMMAND}"
            )

    def _load(self, file: CheckedFile, kind: type[B]) -> B:
        if self.is_new is None:
            self.is_new = self._looks_new()
        try:
            data = self._data_of(file)
        except ForeignFile:
            raise
        except DamagedFile as error:
            if not self.accepts_loss:
                raise DamagedFile(file.path, f"{error.reason}; {_WAY_OUT}") from error
            log.error("going on without what is missing: %s", error)  # noqa: TRY400
            self.has_lost = True
            data = None
        if data is None:
            return kind()
        try:
            loaded = kind.read(data)
        except RemoteProtocolError as error:
            raise DamagedFile(
                file.path,
                f"it is whole, but this version cannot read it ({error}); start the version that "
                "wrote it, or put the file back from a backup",
            ) from error
        self._loaded[file] = data
        return loaded

    def _data_of(self, file: CheckedFile) -> bytes | None:
        data = file.load(self.owner)
        if data is None and not self.is_new:
            raise DamagedFile(
                file.path, f"it was deleted, and its predecessor {file.predecessor} as well"
            )
        return data

    def _looks_new(self) -> bool:
        # A first start writes the floors last, and accepts no message before.
        names = self._disk.names(_FOLDER)
        floors = [f"{_FOLDER}/{name}" for name in names]
        is_started = self._floors.path in floors or self._floors.predecessor in floors
        return not is_started and not self._disk.names(LOG_FOLDER)

    # Saving

    def complete(
        self, topics: Topics, groups: Groups, offsets: Offsets, floors: dict[str, dict[int, int]]
    ) -> None:
        """Write the files that are missing or damaged, or differ from memory.

        Raises:
            OSError: One of them could not be written; the others are written all the same.
        """
        refused: OSError | None = None
        saved = topics.saved()
        tables: list[tuple[CheckedFile, Body]] = [
            (self._groups, groups.saved()),
            (self._offsets, offsets.saved()),
            (self._topics, self._whole(saved)),
            (self._floors, Floors(floors, self._log_end)),
        ]
        if self.has_changes:
            # A start may have restored system topics that the file lists as deleted or changed.
            table = saved.topic_config_table
            self._changed = {name: table.get(name) for name in self._changed}
            tables.insert(0, (self._topic_changes, _changes(saved.data_version, self._changed)))
        for file, body in tables:
            text = _pretty(body)
            if file.is_complete and self._loaded.get(file) == text:
                continue
            try:
                file.save(self.owner, text)
            except OSError as error:
                refused = refused or error
                if self.is_new:
                    break  # The floors must be the last file of a new directory.
            else:
                self._loaded[file] = text
        self.is_incomplete = refused is not None
        if refused is not None:
            raise refused
        self._loaded.clear()
        self.has_begun_deletion = False
        groups.unsaved = offsets.unsaved = False
        self.is_new = False

    def save_topics(self, topics: Topics) -> None:
        """Save the topics that changed."""
        self._save_topics(topics.version, topics.unsaved(), topics.saved)

    def _save_topics(
        self,
        version: DataVersion,
        changed: Mapping[str, TopicConfig | None],
        whole: Callable[[], TopicConfigs],
    ) -> None:
        if self.has_changes:
            changed = {**self._changed, **changed}
            self._save(self._topic_changes, _changes(version, changed))
            self._changed = changed
            return
        topics = whole()
        if len(topics.topic_config_table) > _MANY_TOPICS:
            # This file counts only once topics.json says so.
            self._save(self._topic_changes, TopicChanges(version))
            self.has_changes = True
        try:
            self._save(self._topics, self._whole(topics))
        except OSError:
            self.has_changes = False
            raise

    def _whole(self, topics: TopicConfigs) -> SavedTopics:
        return SavedTopics(topics.data_version, topics.topic_config_table, self.has_changes)

    @property
    def has_many_changes(self) -> bool:
        """Whether it is time for :meth:`merge_changes`."""
        return len(self._changed) > _CHANGES_MAX

    async def merge_changes(self, topics: TopicConfigs) -> None:
        """Rewrite the file of all topics in a thread; topics may change during this time.

        Args:
            topics: All topics, as they were saved last.

        Raises:
            OSError: The write failed; the file of changes stays as it is.
        """
        whole = self._whole(topics)

        self._loaded.pop(self._topics, None)
        await run_in_thread(self._disk, lambda: self._topics.save(self.owner, _encoded(whole)))
        table = topics.topic_config_table
        self._changed = {
            name: config for name, config in self._changed.items() if table.get(name) != config
        }

    def save_groups(self, groups: Groups) -> None:
        """Save the groups if they have changed."""
        if groups.unsaved or self._group_saves.is_writing:
            self._loaded.pop(self._groups, None)
            self._group_saves.save(self.owner, _pretty(groups.saved()))
            groups.unsaved = False

    async def write_groups(self, groups: Groups) -> None:
        """Save the groups if they have changed, in parts and in a thread.

        Raises:
            OSError: The write failed.
        """
        if not groups.unsaved:
            return
        self._loaded.pop(self._groups, None)
        saved = groups.saved()
        empty = GroupConfigs(data_version=saved.data_version)
        rows = list(saved.subscription_group_table.items())
        groups.unsaved = False
        try:
            await self._group_saves.write(self.owner, empty, rows, _formatted)
        except BaseException:
            groups.unsaved = True
            raise

    def save_offsets(self, offsets: Offsets) -> None:
        """Save the offsets if they have changed."""
        if offsets.unsaved or self._offset_saves.is_writing:
            self._loaded.pop(self._offsets, None)
            self._offset_saves.save(self.owner, _pretty(offsets.saved()))
            offsets.unsaved = False

    async def write_offsets(self, offsets: Offsets) -> None:
        """Save the offsets if they have changed, in parts and in a thread, as this runs every
        second.

        Raises:
            OSError: The write failed.
        """
        if not offsets.unsaved:
            return
        self._loaded.pop(self._offsets, None)
        offsets.unsaved = False
        try:
            await self._offset_saves.write(
                self.owner, offsets.saved_without_rows(), offsets.rows(), _formatted
            )
        except BaseException:
            offsets.unsaved = True
            raise

    def adopt(self, tables: CopiedTables, log_end: int) -> None:
        """Save a leader's tables, if they differ from those that were adopted before.

        Args:
            tables: The tables.
            log_end: The end of the durable copy of the leader's log.

        Raises:
            OSError: The write failed.
        """
        if tables.topics is not None:
            self._adopt_topics(tables.topics)
        bodies: list[tuple[CheckedFile, Body | None]] = [
            (self._groups, tables.groups),
            (self._offsets, tables.offsets),
        ]
        for file, body in bodies:
            if body is not None and self._adopted.get(file) != body:
                self._save(file, body)
                self._adopted[file] = body
        # The floors must be the last file of a new directory.
        floors = None if tables.floors is None else Floors(tables.floors)
        if floors is not None and self._adopted.get(self._floors) != floors:
            self.save_floors(floors.floors, log_end)
            self._adopted[self._floors] = floors

    def _adopt_topics(self, topics: TopicConfigs) -> None:
        known = self._adopted_topics
        if known is None and self._looks_new():
            known = TopicConfigs()
        elif known is None:
            known = self.topics()
        before, table = known.topic_config_table, topics.topic_config_table
        changed: dict[str, TopicConfig | None] = {
            name: config
            for name, config in table.items()
            if (other := before.get(name)) is not config and other != config
        }
        changed |= dict.fromkeys(before.keys() - table.keys())
        if self.has_changes and topics.data_version.counter < known.data_version.counter:
            # A new leader may be behind the former one. The next start would refuse changes with an
            # older version than that of topics.json.
            self._save(self._topics, SavedTopics(topics.data_version, table))
            self._changed, self.has_changes = {}, False
        elif changed or known.data_version != topics.data_version:
            self._save_topics(topics.data_version, changed, lambda: topics)
        self._adopted_topics = topics

    def save_floors(self, floors: dict[str, dict[int, int]], log_end: int) -> None:
        """Save the floors, and return only when they are durable."""
        self._save(self._floors, Floors(floors, log_end))
        self._log_end = log_end
        self.has_begun_deletion = False

    def begin_deletion(
        self,
        floors: dict[str, dict[int, int]],
        log_end: int,
        topic: str,
        hidden: dict[int, int],
    ) -> None:
        """Save the floors, and the floors of a topic whose deletion begins.

        These count once the saved topics no longer have the topic. Save the floors again before the
        topic is created again.

        Args:
            floors: The floors of all topics.
            log_end: The log's durable end.
            topic: The topic that is deleted.
            hidden: Its floors, by queue.

        Raises:
            OSError: The write failed; the topic keeps its messages.
        """
        self.has_begun_deletion = True
        self._save(self._floors, Floors(floors, log_end, {topic: hidden}))
        self._log_end = log_end

    def save_copy_state(self, state: CopyState) -> None:
        """Save the state of this copy, in two files."""
        self._save(self._copy_state, state)

    def _save(self, file: CheckedFile, body: Body) -> None:
        self._loaded.pop(file, None)
        file.save(self.owner, _pretty(body))


def _changes(version: DataVersion, changed: Mapping[str, TopicConfig | None]) -> TopicChanges:
    body = TopicChanges(version)
    for name, config in changed.items():
        if config is None:
            body.deleted.append(name)
        else:
            body.changed[name] = config
    return body


def _encoded(topics: SavedTopics) -> bytes:
    """The text of a large table, encoded in parts."""
    left = iter(topics.topic_config_table.items())
    parts = [
        msgspec.json.encode(dict(islice(left, _ENCODED_AT_ONCE)))[1:-1]
        for _ in range(0, len(topics.topic_config_table), _ENCODED_AT_ONCE)
    ]
    head, _, tail = (
        SavedTopics(topics.data_version, {}, topics.has_changes).write().partition(b"{}")
    )
    return b"".join([head, b"{", b",".join(parts), b"}", tail])


def _pretty(body: Body) -> bytes:
    return _formatted(body.write())


def _formatted(text: bytes) -> bytes:
    # Nobody reads a large table line by line, and formatting would double the cost of a save.
    return text if len(text) > _PRETTY_BYTES_MAX else msgspec.json.format(text, indent=1)
