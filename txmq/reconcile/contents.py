"""The hash of a table's rows, which is the same on Spark's executors and without Spark."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txmq.reconcile.tables import TableSchema

__all__ = ["ContentHash", "word_of"]

Words: TypeAlias = npt.NDArray[np.uint64]

_WORD: Final = 8
"""The bytes of a word."""
_STEP: Final = 0x9E3779B97F4A7C15
_START: Final = np.uint64(_STEP)
_NONE: Final = np.uint64(0xD1B54A32D192ED03)
"""The hash of NULL."""
_ROWS_AT_ONCE: Final = 1 << 14
"""Small enough to stay in the processor's cache."""
_WORDS_AT_ONCE: Final = 1 << 20
"""The most words of texts in memory, with each text padded to the longest."""


class ContentHash:
    """The hash of rows, texts included, in any order."""

    def __init__(self, table: TableSchema) -> None:
        self._names = sorted(table.names)
        self._sums: list[tuple[int, int]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with the table's columns and types."""
        # Older versions may have written fewer columns.
        names = [name for name in self._names if name in batch.schema.names]
        for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
            some = batch.slice(first, _ROWS_AT_ONCE)
            rows = np.full(some.num_rows, _START)
            for name in names:
                # Mix again, so that a value counts differently in each column.
                rows = _mix(rows ^ _hash_array(some.column(name)))
            self._sums.append((some.num_rows, int(rows.sum())))

    @property
    def sums(self) -> tuple[int, int]:
        """The number of rows so far, and the sum of their hashes modulo 2**64."""
        count, total = (sum(pair[at] for pair in self._sums) for at in (0, 1))
        return count, total % (1 << 64)

    @property
    def word(self) -> str:
        """The hash of the rows so far."""
        return word_of(*self.sums)


def word_of(count: int, total: int) -> str:
    """The hash of some rows, by their number and the sum of their hashes."""
    return f"{count}-{total % (1 << 64):016x}"


def _hash_array(column: pa.Array) -> Words:
    if pa.types.is_string(column.type):
        found = _hash_texts(column.fill_null(""))
    else:
        found = _mix(column.cast(pa.int64()).fill_null(0).to_numpy().view(np.uint64))
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = _NONE
    return found


def _hash_texts(texts: pa.Array) -> Words:
    """Hash texts word by word, all of them at once; the padding of shorter ones is ignored."""
    lengths = pc.binary_length(texts).to_numpy()
    words = -(-int(lengths.max()) // _WORD)
    if len(texts) > 1 and len(texts) * words > _WORDS_AT_ONCE:
        half = len(texts) // 2
        return np.concatenate([_hash_texts(texts[:half]), _hash_texts(texts[half:])])
    padded = pc.ascii_rpad(texts, words * _WORD, padding="\0").buffers()[-1]
    table = np.frombuffer(padded, "<u8", len(texts) * words).reshape(len(texts), words)
    found = lengths.astype(np.uint64)
    for place in range(words):
        word = _mix(table[:, place] ^ np.uint64((place + 1) * _STEP % (1 << 64)))
        found += np.where(lengths > place * _WORD, word, np.uint64(0))
    return _mix(found)


def _mix(words: Words) -> Words:
    """Spread each bit of a word over all of its bits; different words stay different."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Words = words ^ (words >> np.uint64(31))
    return mixed
