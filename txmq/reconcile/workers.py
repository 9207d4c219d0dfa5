"""Who computes a day: the threads of this process if it is small, else Spark's workers.

Both read files themselves, by Arrow; Spark spreads the work, sends what workers owe each other,
and repeats what a lost worker had done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from pyspark.sql import SparkSession

__all__ = ["SparkWorkers", "Threads", "Workers"]

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Workers(Protocol):
    """Computes in parallel; its functions and values can be pickled."""

    def each(self, task: Callable[[_In], _Out], inputs: Sequence[_In]) -> list[_Out]:
        """The results of a task for each input, in order."""

    def by_place(
        self,
        split: Callable[[_In], Iterable[tuple[int, Any]]],
        inputs: Sequence[_In],
        join: Callable[[int, list[Any]], _Out],
        places: int,
    ) -> list[_Out]:
        """Split each input into values with a place, and join all values of each place.

        The values of a place come in any order.
        """


class Threads:
    """The threads of this process, one for each core."""

    def each(self, task: Callable[[_In], _Out], inputs: Sequence[_In]) -> list[_Out]:
        """See :meth:`Workers.each`."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(task, inputs))

    def by_place(
        self,
        split: Callable[[_In], Iterable[tuple[int, Any]]],
        inputs: Sequence[_In],
        join: Callable[[int, list[Any]], _Out],
        places: int,
    ) -> list[_Out]:
        """See :meth:`Workers.by_place`."""
        values: list[list[Any]] = [[] for _ in range(places)]
        for parts in self.each(lambda one: list(split(one)), inputs):
            for place, value in parts:
                values[place].append(value)
        return self.each(lambda place: join(place, values[place]), range(places))


class SparkWorkers:
    """The Python workers of a Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    def each(self, task: Callable[[_In], _Out], inputs: Sequence[_In]) -> list[_Out]:
        """See :meth:`Workers.each`."""
        if not inputs:
            return []
        return self._context.parallelize(inputs, len(inputs)).map(task).collect()

    def by_place(
        self,
        split: Callable[[_In], Iterable[tuple[int, Any]]],
        inputs: Sequence[_In],
        join: Callable[[int, list[Any]], _Out],
        places: int,
    ) -> list[_Out]:
        """See :meth:`Workers.by_place`."""

        def joined(place: int, values: Iterable[tuple[int, Any]]) -> list[_Out]:
            return [join(place, [value for _, value in values])]

        parts = self._context.parallelize(inputs, max(len(inputs), 1)).flatMap(split)
        spread = parts.partitionBy(places, int)
        return spread.mapPartitionsWithIndex(joined).collect()
