"""The Python of this process, and the versions of its packages, against the ranges that wal-sink was installed with."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata

from wal_sink.reporting.findings import Finding, fault, fine, risk

DISTRIBUTION = "wal-sink"
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?")
_BOUND = re.compile(r"(>=|<)\s*([\d.]+)")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
_TESTED = "Programming Language :: Python :: "


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that wal-sink needs, with the range of its versions."""

    name: str
    least: str
    """The oldest version; empty if any is old enough."""
    below: str
    """The first version that is too new; empty if none is known to be."""
    extra: str
    """The extra that needs it; empty if wal-sink itself does."""

    def range(self) -> str:
        bounds = [f"at least {self.least}" if self.least else "", f"below {self.below}" if self.below else ""]
        return " and ".join(filter(None, bounds)) or "any version"


def machine_findings() -> list[Finding]:
    """Findings about wal-sink itself, Python and the packages. No request."""
    try:
        found = metadata.metadata(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        python = ".".join(map(str, sys.version_info[:3]))
        return [
            risk(
                "wal-sink",
                f"it was not installed, so the versions of its packages are not known (Python {python})",
                "install wal-sink with pip, also if --py-files brings it to the executors",
            )
        ]
    needed = [parsed(text) for text in metadata.requires(DISTRIBUTION) or ()]
    tested = [line.removeprefix(_TESTED) for line in found.get_all("Classifier") or () if line.startswith(_TESTED)]
    return [
        fine("wal-sink", f"version {metadata.version(DISTRIBUTION)}"),
        python_finding(sys.version_info[:3], _first(found.get_all("Requires-Python")), tested),
        *package_findings(needed, versions_of(requirement.name for requirement in needed)),
    ]


def _first(values: list[str] | None) -> str:
    return values[0] if values else ""


def python_finding(version: tuple[int, ...], needed: str, tested: Iterable[str]) -> Finding:
    """The finding about a version of Python. `needed` is written like `>=3.11`, `tested` like `3.11`."""
    check, shown = "python", f"Python {'.'.join(map(str, version))} ({sys.executable})"
    least = parsed(f"python{needed}").least
    if least and version < _numbers(least):
        return fault(check, f"{shown} is older than {least}", f"use Python {least} or newer")
    minor = ".".join(map(str, version[:2]))
    known = [text for text in tested if re.fullmatch(r"\d+\.\d+", text)]
    if minor not in known:
        return risk(check, f"{shown} was not tested", f"use one of Python {', '.join(known)}")
    return fine(check, shown)


def package_findings(needed: Iterable[Requirement], versions: Mapping[str, str]) -> list[Finding]:
    """Findings about packages. One line names those that fit; each other package has its own."""
    fitting, others = list[str](), list[Finding]()
    for requirement in needed:
        version = versions.get(requirement.name)
        finding = _package_finding(requirement, version)
        if finding is not None:
            others.append(finding)
        elif version is not None and f"{requirement.name} {version}" not in fitting:
            fitting.append(f"{requirement.name} {version}")
    return [fine("packages", ", ".join(fitting) or "none"), *others]


def _package_finding(requirement: Requirement, version: str | None) -> Finding | None:
    """The finding about one package; None if it fits, or if nothing but an extra needs it and it is absent."""
    check, name = f"package.{requirement.name}", requirement.name
    step = f"pip install --upgrade {DISTRIBUTION}{f'[{requirement.extra}]' if requirement.extra else ''}"
    if version is None:
        return None if requirement.extra else fault(check, f"{name} is missing; expected {requirement.range()}", step)
    found = _numbers(version)
    if requirement.least and found < _numbers(requirement.least):
        return fault(check, f"{name} {version} is too old; expected {requirement.range()}", step)
    if requirement.below and found >= _numbers(requirement.below):
        return risk(check, f"{name} {version} was not tested; expected {requirement.range()}", step)
    return None


def parsed(text: str) -> Requirement:
    """A requirement as the metadata of a package writes it: `pandas<3,>=2.2; extra == "spark"`."""
    match = _REQUIREMENT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a requirement with bounds such as >=2.2,<3")
    bounds = dict(_BOUND.findall(match[2]))
    extra = _EXTRA.search(match[3] or "")
    return Requirement(match[1], bounds.get(">=", ""), bounds.get("<", ""), extra[1] if extra else "")


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed here."""
    return dict(_installed(names))


def _installed(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version: (2, 2, 0) of `2.2.0rc1`. A missing number counts as less than 0."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
