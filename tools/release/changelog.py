"""The section of CHANGELOG.md that belongs to a version."""

import re

from tools.release.refusal import ReleaseRefused


def dated_section(text: str, version: str) -> str:
    """What the changelog says about a version.

    Raises:
        ReleaseRefused: It has no section for the version, or one without a date or without entries.
    """
    found = re.search(
        rf"^## {re.escape(version)}, (.+?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    if not found:
        raise ReleaseRefused(
            f"CHANGELOG.md has no section for {version}: "
            f"add one that begins with '## {version}, YYYY-MM-DD'"
        )
    date, section = found.groups()
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
        raise ReleaseRefused(
            f"CHANGELOG.md calls {version} '{date}': replace this by the date of the release"
        )
    if not re.search(r"^- ", section, re.MULTILINE):
        raise ReleaseRefused(f"CHANGELOG.md has no entry for {version}: say what users notice")
    return section.strip()
