"""YAML for files of accounts.

If PyYAML was built with libyaml, that is used: it reads 5,000 accounts in a fifth of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from txmq.errors import ConfigError
from txmq.settings.extras import named_extra

__all__ = ["compose", "dump", "load"]


def load(name: str, text: str) -> Any:
    """The value of a text.

    Args:
        name: The name of the text in errors.
        text: The text.

    Raises:
        ConfigError: It is not YAML. The error quotes no part of the text, which may be secret.
    """
    yaml = _yaml()
    try:
        with _uncollected():
            return yaml.load(text, _loader(yaml))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        # If the text ends too early, libyaml's mark is after the last line.
        lines = text.count("\n", 0, -1) + 1
        where = f"line {min(mark.line + 1, lines)}" if mark is not None else "some line"
        raise ConfigError(f"{name}: {where} is not YAML") from None
    except RecursionError:
        raise ConfigError(f"{name}: some line is not YAML: it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ConfigError(f"{name}: some line is not YAML: it is not Unicode text") from None
    except Exception:  # noqa: BLE001 - whatever PyYAML's conversions of scalars raise
        where = _invalid_scalar(text)
        raise ConfigError(
            f"{name}: {where} is not valid for its type, such as a number or a date; if it is "
            "text, put it in quotes"
        ) from None


def compose(text: str) -> Any:
    """The nodes of a valid text, with their places."""
    yaml = _yaml()
    with _uncollected():
        return yaml.compose(text, _loader(yaml))


def dump(value: Any) -> str:
    """The text of a value."""
    dumped: str = _yaml().safe_dump(value, sort_keys=False, allow_unicode=True)
    return dumped


def _invalid_scalar(text: str) -> str:
    """The place of the first value that cannot be converted to its type."""
    yaml = _yaml()
    loader = _loader(yaml)(text)
    nodes = [loader.get_single_node()]
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.MappingNode):
            nodes += [part for pair in reversed(node.value) for part in reversed(pair)]
        elif isinstance(node, yaml.SequenceNode):
            nodes += reversed(node.value)
        else:
            try:
                loader.construct_object(node)
            except Exception:  # noqa: BLE001 - as above
                return f"a value in line {node.start_mark.line + 1}"
    return "a value"


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause garbage collection. With 5,000 accounts it finds nothing, takes half of the time, and
    stops all threads for a tenth of a second.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _loader(yaml: Any) -> Any:
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _yaml() -> Any:
    with named_extra():  # A broker without accounts does not need the package.
        import yaml
    return yaml
