"""What a target names: ``module:name``, a module, or a function that makes the parts."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from difflib import get_close_matches
from types import ModuleType
from typing import Any, Final

from txmq.cli.output import note_lines
from txmq.client.lifecycle import Lifecycle
from txmq.errors import ConfigError
from txmq.runtime.signatures import signature_of
from txmq.worker.parts import BlockingPart, WorkerPart, part_of

__all__ = ["import_modules", "load_parts"]

DEPTH_MAX: Final = 5
"""Functions that return functions, and lists within lists."""

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
        stack: Leaves the context managers that were entered.

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
    near = get_close_matches(name, known, n=1)
    hint = f"; the nearest name is {near[0]!r}" if near else ""
    what = module.__name__ if owner is module else f"{type(owner).__name__} in {module.__name__}"
    runnable = [
        f"{other} ({type(value).__name__})"
        for other, value in vars(owner).items()
        if part_of(value, other) is not None
    ]
    has = f"; it can run {', '.join(runnable)}" if runnable else f"; {ACCEPTED}"
    return f"{what} has no name {name!r}{hint}{has}"


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
        raise ConfigError(f"{self._target} is {_kind_of(found)}; {ACCEPTED}")

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
    """The parts among some values and in lists of values, without repetitions."""
    found: dict[int, WorkerPart] = {}
    for name, value in names.items():
        for item in _flatten(value):
            part = part_of(item, f"{owner}:{name}")
            if part is not None:
                found.setdefault(id(item), part)
    return list(found.values())


def _flatten(value: object) -> Iterator[object]:
    values: Iterable[object] = (value,)
    if isinstance(value, Mapping):
        values = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        values = list(value)
    for item in values:
        if isinstance(item, Lifecycle) or BlockingPart.accepts(item):
            yield item


def _kind_of(found: object) -> str:
    return "None" if found is None else f"a {type(found).__name__}"
