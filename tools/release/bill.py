"""The software bill of materials: what `txmq[all]` brings along, in the pinned versions.

python -m tools.release.bill broker

prints the pins of one extra: the image of the broker installs these. Packages that are named after
it are added: `make demo` installs the extra `all` with the packages that build txmq.
"""

import json
import re
import sys
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import requires
from pathlib import Path
from subprocess import check_output
from zipfile import ZipFile

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


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


def closure(own: list[str], extra: str, *others: str) -> set[str]:
    """The packages that an extra of txmq and others install, by the requirements of pinned ones."""
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(f"txmq[{extra}]"), *map(Requirement, others)]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for chosen in requirement.extras | {""}:
            if (name, chosen) not in seen:
                seen.add((name, chosen))
                waiting += needed(own if name == "txmq" else requires(name) or [], {chosen})
    return {name for name, _ in seen} - {"txmq"}


def pinned(names: set[str]) -> str:
    """The entries of constraints.txt for these packages, with their hashes."""
    entries = re.split(r"^(?=\w)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    return "".join(entry for entry in entries if entry.partition("==")[0] in names)


def write_bill(tools: Path, wheel: Path, version: str) -> Path:
    """Write the bill in CycloneDX's JSON beside the wheel."""
    bill = wheel.with_name(f"txmq-{version}.cdx.json")
    command = [tools / "cyclonedx-py", "requirements", "--pyproject", ROOT / "pyproject.toml"]
    command += ["--mc-type", "library", "--output-reproducible", "--validate", "-"]
    pins = pinned(closure(wheel_requirements(wheel), "all"))
    document = json.loads(check_output(command, input=pins, text=True))
    for package in document["components"]:
        del package["description"]  # The line of constraints.txt, with hashes that stand beside it.
    # Its version stands in the code, where cyclonedx-py does not look.
    component = document["metadata"]["component"]
    component |= {"version": version, "purl": f"pkg:pypi/txmq@{version}"}
    bill.write_text(json.dumps(document, indent=2) + "\n")
    return bill


if __name__ == "__main__":
    print(pinned(closure(requires("txmq") or [], *sys.argv[1:])), end="")
