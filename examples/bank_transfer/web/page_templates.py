"""The templates of pages; all values in them are escaped."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from examples.bank_transfer.money import Money
from examples.bank_transfer.texts import visible

__all__ = ["away", "error_page", "fragment", "page", "static_files"]

HERE: Final = Path(__file__).parent


def money(minor: int, currency: str) -> str:
    """An amount as people read it."""
    return str(Money(minor, currency))


def moment(at_ms: int | None) -> str:
    """A time as people read it."""
    if at_ms is None:
        return "not yet"
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _visible(value: object) -> object:
    """Escape characters that control the browser, such as a change of the writing direction."""
    is_foreign = isinstance(value, str) and not isinstance(value, Markup)
    return visible(str(value)) if is_foreign else value


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_visible,
    )  # fmt: skip
    made.filters |= {"money": money, "moment": moment}
    return made


TEMPLATES: Final = Jinja2Templates(env=_environment())


def page(request: Request, name: str, shown: Mapping[str, Any], status: int = 200) -> Response:
    """A whole page; it shows the current state, so no browser caches it."""
    return TEMPLATES.TemplateResponse(
        request, name, dict(shown), status, headers={"cache-control": "no-cache"}
    )


def fragment(name: str, shown: Mapping[str, Any]) -> str:
    """A part of a page."""
    return TEMPLATES.get_template(name).render(shown)


def error_page(request: Request, bank: str, status: int, title: str, text: str) -> Response:
    """A page that explains an error."""
    shown = {"bank": bank, "title": title, "text": text}
    return page(request, "error.html", shown, status)


async def away(request: Request, wrong: Exception) -> Response:
    """The answer if the database does not answer."""
    assert isinstance(wrong, SQLAlchemyError), wrong
    text = "The books cannot be read now. Bookings are safe; reload this page soon."
    return error_page(request, "", 503, "The database does not answer", text)


def static_files() -> Mount:
    """The style, the icon, and the few lines of JavaScript."""
    return Mount("/static", StaticFiles(directory=HERE / "static"))
