"""Who computes a day: the threads of this process if it is small, else Spark's workers.

Both read files themselves, by Arrow. Spark spreads the work, sends what one worker has for another,
and repeats what was lost with a worker.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from pyspark.sql import SparkSession

__all__ = ["Workers", "uncollected"]

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Workers:
    """Computes in parallel. With a Spark session, tasks and values are pickled."""

    def __init__(self, spark: SparkSession | None = None) -> None:
        self._context = None if spark is None else spark.sparkContext

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
        if self._context is not None and inputs:

            def joined(place: int, values: Iterable[tuple[int, Any]]) -> list[_Out]:
                return [join(place, [value for _, value in values])]

            parts = self._context.parallelize(inputs, len(inputs)).flatMap(split)
            return parts.partitionBy(places, int).mapPartitionsWithIndex(joined).collect()
        at: list[list[Any]] = [[] for _ in range(places)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for parts_of_one in pool.map(lambda one: list(split(one)), inputs):
                for place, value in parts_of_one:
                    at[place].append(value)
            return list(pool.map(join, range(places), at))


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python's collector of cycles from many rows, which have none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
