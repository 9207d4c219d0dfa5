"""Makes the description of the project page from README.md: its links lead to the sources.

hatchling calls this when it builds; pyproject.toml names it.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


def with_absolute_links(text: str, source: str) -> str:
    """A page of this repository with links that also lead somewhere from another site."""
    return re.sub(r"\]\((?!\w+:|#)([^)]+)\)", rf"]({source}/blob/main/\1)", text).replace(
        f"({source}/blob/main/docs/images/", f"({source}/raw/main/docs/images/"
    )


class ProjectPage(MetadataHookInterface):
    """Sets ``readme`` of the metadata."""

    def update(self, metadata: dict) -> None:
        """See hatchling."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        page = with_absolute_links(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
