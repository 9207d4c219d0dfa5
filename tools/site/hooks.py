"""What the site does beyond its plugins: links into the repository, diagrams, and the changelog.

MkDocs calls the functions named ``on_...``; see ``hooks`` in mkdocs.yml.
"""

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import mmdr
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

MIKE = "MIKE_DOCS_VERSION"
ROOT = Path(__file__).resolve().parents[2]

LINK = re.compile(r"(?<=\]\()(?P<path>(?:\.\./)+[^)#\s]+)(?=[)#])")
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".sh": "bash", ".service": "ini"}
SOURCE_PAGE = """\
---
search:
  exclude: true
---
# {name}

"""

BOOSTS = {
    "quickstart.md": 3.0,
    "howto/clients/": 1.0,
    "howto/": 2.0,
    "tutorial/": 1.0,
    "explanation/": 1.5,
    "reference/cli.md": 2.0,
    "reference/errors.md": 0.7,
    "reference/api/": 0.4,
    "adr/": 0.1,
    "internals/": 0.1,
    "changelog.md": 0.1,
}
"""How much the search favours a page: newcomers ask how to do things, and decide nothing."""

DIAGRAM = re.compile(r"^```mermaid\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
THEMES = {"light": "default", "dark": "dark"}
"""Mermaid's themes by the name of the site's."""
FONT = "Arial, Liberation Sans, Helvetica, sans-serif"
GLOSSARY = "glossary.md"
TERM_HEADING = re.compile(r"^### (\w+(?:[ -]\w+)+)$", re.MULTILINE)
"""A term of several words. A single word, such as "line", often means something else."""
PROSE = r"<(a|autoref|code|h[1-6]|pre|th)\b.*?</\1>|<[^>]+>|\b(?P<term>{terms})s?\b"
ERRORS_PAGE = "reference/errors.md"
ERROR_HEADING = re.compile(r"^### (\w+)$", re.MULTILINE)
CELL = re.compile(r"<td\b.*?</td>", re.DOTALL)
CODE = re.compile(r"<(a|autoref|h[1-6]|pre)\b.*?</\1>|<code>(?P<name>\w+)</code>", re.DOTALL)

VIEW = re.compile(r'width="100%"(?P<between>[^>]*?viewBox="\S+ \S+ (?P<width>[\d.]+) )')


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Offer no other versions, unless mike builds one of several: `make site` has only this."""
    if MIKE not in os.environ:
        del config.extra["version"]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the changelog, the linked files of the repository, and the diagrams."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changelog))
    linked: set[Path] = set()
    for file in list(files.documentation_pages()):
        text = file.content_string
        linked.update(repository_links(file.src_uri, text))
        for found in DIAGRAM.finditer(text):
            for theme in THEMES:
                uri = diagram_uri(found["text"], theme)
                files.append(File.generated(config, uri, content=drawn(found["text"], theme)))
    for path in sorted(with_contents(linked)):
        files.append(File.generated(config, source_uri(path), content=source_page(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Show diagrams as pictures, lead links that leave docs/ to the pages made for them, and rank
    the page in the search.
    """
    folder = posixpath.dirname(page.file.src_uri)
    boost = next((n for start, n in BOOSTS.items() if page.file.src_uri.startswith(start)), None)
    if boost is not None:
        page.meta["search"] = {"boost": boost}

    def pictures(found: re.Match[str]) -> str:
        described = "; ".join(line.strip() for line in found["text"].splitlines()[1:])
        alternative = re.sub(r"[\[\]]", "", f"Diagram: {described}")
        return "\n".join(
            f"![{alternative}]({posixpath.relpath(diagram_uri(found['text'], theme), folder)}"
            f"#only-{theme})"
            for theme in THEMES
        )

    def link(found: re.Match[str]) -> str:
        path = repository_path(page.file.src_uri, found["path"])
        return found["path"] if path is None else posixpath.relpath(source_uri(path), folder)

    return LINK.sub(link, DIAGRAM.sub(pictures, markdown))


def on_page_content(html: str, *, page: Page, files: Files, **_: object) -> str:
    """Link the names of errors to the page of errors, and terms on pages of prose to the glossary.

    In the code of a table's cell `\\|` is `|`, as it is where the pages are read without the site.
    """
    html = CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)
    errors = files.get_file_from_path(ERRORS_PAGE)
    if errors is None or page.file == errors or page.file.src_uri.startswith("source/"):
        return html
    known = set(ERROR_HEADING.findall(errors.content_string))
    target = errors.url_relative_to(page.file)

    def link(found: re.Match[str]) -> str:
        if found["name"] not in known:
            return found[0]
        return f'<a href="{target}#{found["name"].lower()}">{found[0]}</a>'

    html = CODE.sub(link, html)
    is_prose = page.file.src_uri.startswith(("howto/", "explanation/"))
    return with_terms(html, page, files) if is_prose else html


def with_terms(html: str, page: Page, files: Files) -> str:
    """Link the first mention of each term of the glossary."""
    glossary = files.get_file_from_path(GLOSSARY)
    if glossary is None:
        return html
    target = glossary.url_relative_to(page.file)
    unlinked = {term.lower() for term in TERM_HEADING.findall(glossary.content_string)}
    prose = re.compile(PROSE.format(terms="|".join(unlinked)), re.DOTALL | re.IGNORECASE)

    def link(found: re.Match[str]) -> str:
        term = (found["term"] or "").lower()
        if term not in unlinked:
            return found[0]
        unlinked.remove(term)
        return f'<a href="{target}#{term.replace(" ", "-")}">{found[0]}</a>'

    return prose.sub(link, html)


def on_post_page(output: str, **_: object) -> str:
    """Name the search for screen readers: it is a dialog, to which the theme gives no name."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)


# Links into the repository


def repository_links(page: str, text: str) -> Iterator[Path]:
    """The files and folders outside of docs/ that a page links to."""
    for found in LINK.finditer(text):
        path = repository_path(page, found["path"])
        if path is not None:
            yield path


def repository_path(page: str, link: str) -> Path | None:
    """The file or folder that a link of a page leads to, if it is outside of docs/ and exists."""
    path = Path(posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link)))
    is_outside = path.parts[0] not in ("docs", "..")
    return path if is_outside and (ROOT / path).exists() else None


def with_contents(linked: set[Path]) -> set[Path]:
    """The linked paths, and the files inside linked folders."""
    return linked | {
        inside.relative_to(ROOT)
        for path in linked
        for inside in (ROOT / path).rglob("*")
        if (inside.suffix in LANGUAGES or inside.suffix == ".md") and inside.is_file()
    }


def source_uri(path: Path) -> str:
    """The page of a file or a folder of the repository."""
    return f"source/{path.as_posix()}.md"


def source_page(path: Path) -> str:
    """A page that shows a file, or lists what is in a folder."""
    head = SOURCE_PAGE.format(name=path.as_posix())
    whole = ROOT / path
    if whole.is_dir():
        inside = sorted(file.relative_to(path) for file in with_contents({path}) if file != path)
        rows = [f"- [{file.as_posix()}]({path.name}/{file.as_posix()}.md)" for file in inside]
        return head + "\n".join(rows) + "\n"
    text = whole.read_text(encoding="utf-8")
    return f"{head}````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n"


# Diagrams


def diagram_uri(text: str, theme: str) -> str:
    """The picture of a diagram in one of the site's themes."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"images/diagram-{digest}-{theme}.svg"


def drawn(text: str, theme: str) -> str:
    """A diagram as SVG, as wide as it is meant to be seen."""
    settings = {"theme": THEMES[theme], "themeVariables": {"fontFamily": FONT}}
    svg: str = mmdr.render(f"%%{{init: {json.dumps(settings)}}}%%\n{text}").svg()
    return VIEW.sub(lambda found: f'width="{found["width"]}"{found["between"]}', svg, count=1)
