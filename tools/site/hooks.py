"""What the site does beyond its plugins: links into the repository, and the changelog.

MkDocs calls the functions named ``on_...``; see ``hooks`` in mkdocs.yml.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

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


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file of the repository that a page links to, and the changelog."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changelog))
    linked: set[Path] = set()
    for file in files.documentation_pages():
        for found in LINK.finditer(file.content_string):
            target = repository_path(file.src_uri, found["path"])
            if target is not None:
                linked.add(target)
    for path in sorted(with_contents(linked)):
        files.append(File.generated(config, source_uri(path), content=source_page(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Point links that leave the documentation to the pages made for them."""

    def replaced(found: re.Match[str]) -> str:
        path = repository_path(page.file.src_uri, found["path"])
        if path is None:
            return found["path"]
        return posixpath.relpath(source_uri(path), posixpath.dirname(page.file.src_uri))

    return LINK.sub(replaced, markdown)


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
        inside = sorted(each for each in with_contents({path}) if each != path)
        rows = [
            f"- [{each.relative_to(path)}]({path.name}/{each.relative_to(path)}.md)"
            for each in inside
        ]
        return head + "\n".join(rows) + "\n"
    text = whole.read_text(encoding="utf-8")
    return f"{head}````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n"
