"""The software bill of materials: what `txmq[all]` brings along, in the pinned versions."""

import json
import os
import re
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import requires
from pathlib import Path
from zipfile import ZipFile

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.release.distributions import ROOT
from tools.release.refusal import checked


def wheel_requirements(wheel: Path) -> list[str]:
    """The requirements in the metadata of a wheel."""
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])


def needed(requirements: list[str], extras: set[str]) -> Iterator[Requirement]:
    """The requirements that apply here with these extras."""
    for requirement in map(Requirement, requirements):
        places = [{**default_environment(), "extra": extra} for extra in extras | {""}]
        if not requirement.marker or any(map(requirement.marker.evaluate, places)):
            yield requirement


def closure(wheel: Path) -> set[str]:
    """The names of all packages that `txmq[all]` installs, by the metadata of the pinned ones."""
    own = wheel_requirements(wheel)
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement("txmq[all]")]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in requirement.extras | {""}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += needed(own if name == "txmq" else requires(name) or [], {extra})
    return {name for name, _ in seen} - {"txmq"}


def pinned(names: set[str]) -> str:
    """The entries of constraints.txt for these packages, with their hashes."""
    entries = re.split(r"^(?=\w)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    return "".join(entry for entry in entries if entry.partition("==")[0] in names)


def write_bill(tools: Path, wheel: Path, version: str, moment: str) -> Path:
    """Write the bill in CycloneDX's JSON beside the wheel."""
    bill = wheel.with_name(f"txmq-{version}.cdx.json")
    command = [tools / "cyclonedx-py", "requirements", "--pyproject", ROOT / "pyproject.toml"]
    command += ["--mc-type", "library", "--output-reproducible", "--validate", "-"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": moment}
    printed = checked(command, "cyclonedx-py", input=pinned(closure(wheel)), env=environment)
    document = json.loads(printed)
    for package in document["components"]:
        del package["description"]  # The line of constraints.txt, with hashes that stand beside it.
    # Its version stands in the code, where cyclonedx-py does not look.
    component = document["metadata"]["component"]
    component |= {"version": version, "purl": f"pkg:pypi/txmq@{version}"}
    bill.write_text(json.dumps(document, indent=2) + "\n")
    return bill
