"""The parts of an application: finds those that targets name, opens and closes them in order."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from txmq.cli.output import note_lines
from txmq.client.client import Client
from txmq.client.cluster_client import ClusterClient
from txmq.client.consume.pull_consumer import PullConsumer
from txmq.client.consume.push_consumer import PushConsumer
from txmq.client.consume.scheduled_pull import ScheduledPull
from txmq.client.lifecycle import Lifecycle
from txmq.errors import ConfigError
from txmq.ops.known_names import nearest
from txmq.runtime.facade import OpenableFacade
from txmq.runtime.signatures import signature_of
from txmq.text import quantity
from txmq.transaction.manager import TransactionManager
from txmq.transaction.producer import TransactionProducer

if TYPE_CHECKING:
    from txmq.outbox.relay import Relay

__all__ = ["OpenParts", "WorkerPart", "import_modules", "load_parts", "relay_of"]

log = logging.getLogger(__name__)

R = TypeVar("R")

CLOSE_S: Final = 4.0
"""How long producers, relays and clients may take to close beyond the drain; the supervisor kills
the process a second later."""


class WorkerPart:
    """An object of the asyncio API that a worker runs.

    Args:
        found: The object.
        name: Its name in the application.
    """

    def __init__(self, found: Lifecycle, name: str) -> None:
        self.object: Lifecycle = found
        self.name = name
        self.may_be_open = False
        """A context manager of the application may have opened it."""

    async def open(self) -> None:
        """Open it."""
        await self.object.start()

    async def close(self) -> None:
        """Close it."""
        await self.object.stop()

    async def in_loop(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the loop that the object belongs to.

        Raises:
            Exception: Any error of the coroutine.
        """
        return await work

    async def start_handlers(self) -> None:
        """Start the handlers of a client that was opened without them."""
        if isinstance(self.object, Client) and not self.object.starts_handlers:
            await self.in_loop(self.object.start_handlers())

    @property
    def consumers(self) -> list[PushConsumer]:
        """The consumers that call its handlers."""
        if isinstance(self.object, PushConsumer):
            return [self.object]
        return list(self.object.consumers.values()) if isinstance(self.object, Client) else []

    @property
    def has_work(self) -> bool:
        """Whether it does something by itself once it is open."""
        found = self.object
        if isinstance(found, Client):
            return bool(found.consumers or found.schedules)
        return relay_of(found) is not None or isinstance(
            found, PushConsumer | ScheduledPull | TransactionManager | TransactionProducer
        )

    @property
    def description(self) -> str:
        """What it does, in a few words; empty if it only serves other parts."""
        found = self.object
        texts = [
            f"{subscription.topic} as {consumer.group}"
            for consumer in self.consumers
            for subscription in consumer.subscriptions
        ]
        if isinstance(found, Client):
            texts += [f"schedule {name}" for name in found.schedules]
        elif isinstance(found, TransactionManager | TransactionProducer):
            texts.append(f"checks of {found.group}")
        elif (relay := relay_of(found)) is not None:
            texts.append(f"relay of {relay.outbox.name}")
        elif isinstance(found, ScheduledPull):
            texts.append(f"scheduled pulls of {found.consumer.group}")
        return ", ".join(texts)


class BlockingPart(WorkerPart):
    """An object of :mod:`txmq.blocking`, which is opened and closed in a thread."""

    def __init__(self, facade: OpenableFacade[Any], name: str) -> None:
        super().__init__(facade.real, name)
        self._facade = facade

    async def open(self) -> None:
        """Open it."""
        await asyncio.to_thread(self._facade.start)

    async def close(self) -> None:
        """Close it."""
        await asyncio.to_thread(self._facade.stop)

    async def in_loop(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the loop of the object, which another thread runs.

        Raises:
            Exception: Any error of the coroutine.
        """
        return await asyncio.to_thread(self._facade.run, work)


def part_of(found: object, name: str) -> WorkerPart | None:
    """The part for an object; ``None`` if a worker does not run it, such as a pull consumer."""
    if isinstance(found, PullConsumer):
        return None
    if isinstance(found, Lifecycle):
        return WorkerPart(found, name)
    if isinstance(found, OpenableFacade) and isinstance(found.real, Lifecycle):
        return None if isinstance(found.real, PullConsumer) else BlockingPart(found, name)
    return None


def relay_of(found: object) -> Relay | None:
    """The object if it is a relay, otherwise ``None``."""
    # An application with a relay has imported this module, which needs SQLAlchemy.
    module = sys.modules.get("txmq.outbox.relay")
    return found if module is not None and isinstance(found, module.Relay) else None


class OpenParts:
    """Opens the parts of all targets inside its ``async with``, and closes them in order.

    Args:
        parts: The parts.
        drain_s: How long handlers may take to finish the messages in hand.
    """

    def __init__(self, parts: Iterable[WorkerPart], drain_s: float) -> None:
        self.parts = _in_order(parts)
        self._drain_s = drain_s
        self._stack = AsyncExitStack()
        self._draining: list[PushConsumer] = []

    def check(self) -> None:
        """Check that the parts can be opened.

        Raises:
            ConfigError: None of them does anything by itself, one is open already, or a blocking
                one shares a client that is not among them.
        """
        if not any(part.has_work for part in self.parts):
            names = ", ".join(part.name for part in self.parts)
            raise ConfigError(
                f"{names}: nothing to run; give a client handlers with @client.on(topic, group=...)"
            )
        known = {id(part.object) for part in self.parts}
        for part in self.parts:
            if not {id(need) for need in part.object.needs} <= known:
                raise ConfigError(
                    f"{part.name} shares a client of txmq.blocking; name that client too"
                )
            if part.object.is_open and not part.may_be_open:
                raise ConfigError(
                    f"{part.name} is open already; the worker opens it, so do not start it while "
                    "the module is imported"
                )

    @property
    def consumers(self) -> dict[PushConsumer, WorkerPart]:
        """All consumers, and the parts that they belong to."""
        return {consumer: part for part in self.parts for consumer in part.consumers}

    @property
    def description(self) -> str:
        """What the parts do."""
        return ", ".join(dict.fromkeys(filter(None, (part.description for part in self.parts))))

    async def open(self) -> None:
        """Open all parts; handlers start last.

        Raises:
            TxmqError: A part cannot be opened; the parts opened so far are closed again.
        """
        try:
            for part in self.parts:
                if part.object.is_open:
                    continue
                if isinstance(part.object, Client):
                    part.object.starts_handlers = False
                await part.open()
                if not isinstance(part.object, PushConsumer) or isinstance(part, BlockingPart):
                    self._stack.push_async_callback(part.close)
            for part in self.parts:
                await part.start_handlers()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop fetching, let handlers finish, save offsets; then close the rest."""
        busy = {consumer: part for consumer, part in self.consumers.items() if consumer.is_open}
        if busy:
            log.info("draining %s", quantity(len(busy), "consumer"))
        async with asyncio.timeout(self._drain_s + CLOSE_S):
            ends = await asyncio.gather(
                *[part.in_loop(consumer.stop()) for consumer, part in busy.items()],
                return_exceptions=True,
            )
            for consumer, end in zip(busy, ends, strict=True):
                if isinstance(end, BaseException):
                    log.error("group %s did not stop in order", consumer.group, exc_info=end)
            await self._stack.aclose()


def _in_order(parts: Iterable[WorkerPart]) -> list[WorkerPart]:
    """All parts and the clients that they share: shared clients first, handlers last."""
    given = {id(part.object): part for part in parts}
    known = dict(given)
    waiting = list(given.values())
    while waiting:
        part = waiting.pop()
        for need in part.object.needs:
            # Facades share the loops of their own clients, which are parts themselves.
            if id(need) not in known and not isinstance(part, BlockingPart):
                known[id(need)] = WorkerPart(need, f"{part.name}'s {type(need).__name__}")
                waiting.append(known[id(need)])
    return sorted(known.values(), key=lambda part: _rank(part.object, known.values()))


def _rank(found: Lifecycle, parts: Iterable[WorkerPart]) -> int:
    if isinstance(found, ClusterClient):
        return 0
    if isinstance(found, ScheduledPull):
        return 3
    if isinstance(found, PushConsumer):
        return 4
    # A relay may share a producer.
    return 1 if any(found in part.object.needs for part in parts) else 2


DEPTH_MAX: Final = 5
"""The maximum depth of functions that return functions, and of lists within lists."""

ACCEPTED: Final = (
    "a worker runs a Client, PushConsumer, ScheduledPull, TransactionManager, TransactionProducer "
    "or Relay, a list or an object that holds some, or a function or an async context manager "
    "that returns them"
)


def import_modules(targets: Iterable[str]) -> None:
    """Import the modules of all targets.

    Raises:
        ConfigError: A module does not exist, or fails while it is imported.
    """
    for target in targets:
        _module(target.partition(":")[0], target)


async def load_parts(target: str, names: str | None, stack: AsyncExitStack) -> list[WorkerPart]:
    """The parts of a target.

    Args:
        target: ``module:name``, or a module for all its parts.
        names: The name servers for functions with a parameter ``names``.
        stack: Exits the context managers that were entered.

    Raises:
        ConfigError: The target does not exist, fails while it is imported, or has no parts.
    """
    module_name, _, path = target.partition(":")
    module = _module(module_name, target)
    if not path:
        parts = _parts_among(vars(module), module_name)
        if not parts:
            raise ConfigError(f"module {module_name} has nothing to run; {ACCEPTED}")
    else:
        found = _attribute(module, path)
        parts = await _Search(target, names, stack).parts(found)
    return [part for part in parts if not isinstance(part.object, ModuleType)]


def _module(name: str, target: str) -> ModuleType:
    if name.endswith(".py") or any(not part.isidentifier() for part in name.split(".")):
        hint = name.removesuffix(".py").replace("/", ".").strip(".")
        raise ConfigError(
            f"{target!r} is not a target; write module:name, as in {hint or 'app.orders'}:client"
        )
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failed(name, error) from error
        raise ConfigError(
            f"module {error.name!r} does not exist; start the worker in the folder of {name}, or "
            "name that folder with --app-dir"
        ) from error
    except SyntaxError as error:
        place = f"{error.filename}, line {error.lineno}" if error.filename else name
        raise ConfigError(f"{name} cannot be imported: {error.msg} ({place})") from error
    except SystemExit as error:
        raise ConfigError(
            f"{name} ended the program while it was imported, with exit code {error.code}"
        ) from error
    except Exception as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: Exception) -> ConfigError:
    note_lines("".join(traceback.format_exception(error)).rstrip())
    return ConfigError(f"{name} cannot be imported: {type(error).__name__}: {error}")


def _attribute(module: ModuleType, path: str) -> object:
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise ConfigError(_missing(module, found, name))
        found = getattr(found, name)
    return found


def _missing(module: ModuleType, owner: object, name: str) -> str:
    known = [other for other in vars(owner) if not other.startswith("_")]
    what = module.__name__ if owner is module else f"{type(owner).__name__} in {module.__name__}"
    runnable = [
        f"{other} ({type(value).__name__})"
        for other, value in vars(owner).items()
        if part_of(value, other) is not None
    ]
    has = f"; it can run {', '.join(runnable)}" if runnable else f"; {ACCEPTED}"
    return f"{what} has no name {name!r}{nearest(name, known)}{has}"


class _Search:
    """Finds the parts of one target."""

    def __init__(self, target: str, names: str | None, stack: AsyncExitStack) -> None:
        self._target = target
        self._names = names
        self._stack = stack

    async def parts(self, found: object, depth: int = 0) -> list[WorkerPart]:
        """The parts of a value.

        Raises:
            ConfigError: It has none.
        """
        part = part_of(found, self._target)
        if part is not None:
            return [part]
        if depth > DEPTH_MAX:
            raise ConfigError(f"{self._target}: the result is nested too deeply; {ACCEPTED}")
        if isinstance(found, type) or inspect.isroutine(found):
            return await self.parts(await self._call(found), depth + 1)
        if hasattr(found, "__aenter__"):
            return await self._enter(found, depth)
        if isinstance(found, Mapping):
            found = list(found.values())
        if isinstance(found, list | tuple | set | frozenset):
            return [part for value in found for part in await self.parts(value, depth + 1)]
        held = _parts_among(getattr(found, "__dict__", {}), self._target)
        if held:
            return held
        if callable(found):
            return await self.parts(await self._call(found), depth + 1)
        kind = "None" if found is None else f"a {type(found).__name__}"
        raise ConfigError(f"{self._target} is {kind}; {ACCEPTED}")

    async def _call(self, function: Callable[..., Any]) -> object:
        parameters: list[inspect.Parameter] = []
        with suppress(ValueError):  # Some built-in functions have no signature.
            parameters = list(signature_of(function).parameters.values())
        missing = [
            parameter.name
            for parameter in parameters
            if parameter.default is parameter.empty
            and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
            and parameter.name != "names"
        ]
        if missing:
            raise ConfigError(
                f"{self._target} needs {', '.join(missing)}; a worker calls it with names, or with "
                "nothing; to run a handler, name its client"
            )
        given: dict[str, object] = {}
        names = next((found for found in parameters if found.name == "names"), None)
        if names is not None:
            if self._names is not None:
                given["names"] = self._names
            elif names.default is names.empty:
                raise ConfigError(
                    f"{self._target} needs names: give --names HOST:PORT, or set TXMQ_NAMES"
                )
        found = function(**given)
        return await found if inspect.isawaitable(found) else found

    async def _enter(self, manager: Any, depth: int) -> list[WorkerPart]:
        entered = await self._stack.enter_async_context(manager)
        if entered is None or entered is manager:
            parts = _parts_among(getattr(manager, "__dict__", {}), self._target)
            if entered is None and not parts:
                raise ConfigError(f"{self._target} yields nothing; {ACCEPTED}")
        else:
            parts = await self.parts(entered, depth + 1)
        for part in parts:
            part.may_be_open = True
        return parts


def _parts_among(names: Mapping[str, object], owner: str) -> list[WorkerPart]:
    """The parts among some values and in lists of values, without duplicates."""
    found: dict[int, WorkerPart] = {}
    for name, value in names.items():
        items: Iterable[object] = (value,)
        if isinstance(value, Mapping):
            items = list(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            items = list(value)
        for item in items:
            part = part_of(item, f"{owner}:{name}")
            if part is not None:
                found.setdefault(id(item), part)
    return list(found.values())
