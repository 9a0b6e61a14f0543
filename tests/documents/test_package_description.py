"""The metadata of the package: complete, valid, without the groups of developers; and each link of its description."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from email.message import Message
from functools import cache
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from trove_classifiers import classifiers, deprecated_classifiers

from tests.packaging.archives import Archives, metadata_bytes, metadata_of
from tests.packaging.description import Link, Repository, anchors_of, code_of, links_of
from tests.support.documents import tracked_files
from tests.support.processes import CHECKOUT

PYPROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
URLS = PYPROJECT["project"]["urls"]
VERSION = PYPROJECT["project"]["version"]


@cache
def repository() -> Repository:
    texts = {path.relative_to(CHECKOUT).as_posix(): path.read_text(errors="replace") for path in tracked_files()}
    return Repository(URLS["Repository"], VERSION, texts)


@pytest.fixture(scope="module")
def metadata(archives: Archives) -> Message:
    return metadata_of(archives.wheel)


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return a function that makes a description of the text of a README, as the build does."""
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(CHECKOUT / name, tmp_path)
    monkeypatch.chdir(tmp_path)  # the hook reads README.md from the current folder

    def describe(readme: str) -> str:
        (tmp_path / "README.md").write_text(readme)
        return str(ProjectMetadata(str(tmp_path), PluginManager()).core.readme)

    return describe


def description_of(metadata: Message) -> str:
    payload = metadata.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return payload.decode()


# --- the fields


@pytest.mark.processes
def test_the_metadata_is_complete_and_valid(archives: Archives, metadata: Message) -> None:
    read = Metadata.from_email(metadata_bytes(archives.wheel), validate=True)
    assert (read.name, str(read.version), str(read.requires_python)) == ("wal-sink", VERSION, ">=3.11")
    assert (read.license_expression, read.license_files) == ("Apache-2.0", ["LICENSE"])
    assert read.description_content_type == "text/markdown"
    for field in ("Summary", "Author", "Keywords", "Classifier"):
        assert metadata[field], field
    assert read.project_urls is not None
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= set(read.project_urls)


@pytest.mark.processes
def test_twine_finds_no_fault(archives: Archives) -> None:
    command = [sys.executable, "-m", "twine", "--no-color", "check", "--strict"]
    command += [str(archives.wheel), str(archives.sdist)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert (done.returncode, done.stdout.count("PASSED")) == (0, 2), done.stdout + done.stderr


def test_the_classifiers_are_known() -> None:
    ours = PYPROJECT["project"]["classifiers"]
    assert set(ours) - (classifiers - deprecated_classifiers.keys()) == set()
    assert ours == sorted(set(ours))
    assert "Typing :: Typed" in ours


def test_every_url_begins_with_that_of_the_repository() -> None:
    substitutions = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    named = [*URLS.values(), *(url for one in substitutions for url in re.findall(r"https://\S+", one["replacement"]))]
    assert len(named) == len(URLS) + len(substitutions)
    assert [url for url in named if not re.match(re.escape(repository().url) + "(?:[/#]|$)", url)] == []


@pytest.mark.processes
def test_users_see_no_group_of_developers(metadata: Message) -> None:
    groups = PYPROJECT["dependency-groups"]
    assert {"bench", "dev", "mutation"} <= set(groups)
    assert set(metadata.get_all("Provides-Extra", [])) & set(groups) == set()
    assert set(metadata.get_all("Provides-Extra", [])) == set(PYPROJECT["project"]["optional-dependencies"])


def test_developers_have_every_extra() -> None:
    """In the same range, so that the tests run what users get. boto3 comes with moto."""
    extras = {text for some in PYPROJECT["project"]["optional-dependencies"].values() for text in some}
    assert extras - set(PYPROJECT["dependency-groups"]["dev"]) == {"boto3>=1.35"}


def test_constraints_pin_every_direct_requirement() -> None:
    """Also those that only build the package."""
    pins = re.findall(r"^([\w.-]+)==", (CHECKOUT / "constraints.txt").read_text(), flags=re.MULTILINE)
    groups = [text for some in PYPROJECT["dependency-groups"].values() for text in some if isinstance(text, str)]
    texts = [*PYPROJECT["project"]["dependencies"], *PYPROJECT["build-system"]["requires"], *groups]
    wanted = {Requirement(text).name for text in texts}
    assert {_normal(name) for name in wanted} - {_normal(name) for name in pins} == set()
    assert "pip" in pins  # `make setup` installs it: that of an older Python knows no dependency groups


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# --- the description


@pytest.mark.processes
def test_every_link_of_the_description_leads_to_a_tracked_file_and_nothing_else_is_changed(metadata: Message) -> None:
    readme, description = (CHECKOUT / "README.md").read_text(), description_of(metadata)
    assert repository().dead_links(description) == []
    assert len(links_of(description)) >= 10
    assert code_of(description) == code_of(readme)
    assert [link.kind for link in links_of(description)] == [link.kind for link in links_of(readme)]
    assert re.sub(rf"{repository().url}/(blob|raw)/v{VERSION}/(README\.md(?=#))?", "", description) == readme


def test_relative_links_become_absolute(described: Callable[[str], str]) -> None:
    readme = """# One
[a](docs/FORMAT.md) and [b](docs/FORMAT.md#what-absence-means), [one](#one), [far](https://example.org/x), <a@b.example>
![p](benchmarks/plots/csv.svg) and [![q](benchmarks/plots/csv.svg)](docs/FORMAT.md)
"""
    head = f"{repository().url}/blob/v{VERSION}"
    picture = Link("image", f"{repository().url}/raw/v{VERSION}/benchmarks/plots/csv.svg")
    assert links_of(described(readme)) == [
        Link("link", f"{head}/docs/FORMAT.md"),
        Link("link", f"{head}/docs/FORMAT.md#what-absence-means"),
        Link("link", f"{head}/README.md#one"),
        Link("link", "https://example.org/x"),
        Link("link", "mailto:a@b.example"),
        picture,
        Link("link", f"{head}/docs/FORMAT.md"),
        picture,
    ]


def test_a_dead_link_is_found(described: Callable[[str], str]) -> None:
    for planted, found in [
        ("[a](docs/NOWHERE.md)", "the repository has no file docs/NOWHERE.md"),
        ("[a](docs/FORMAT.md#nowhere)", "docs/FORMAT.md has no heading #nowhere"),
        ("[a](#nowhere)", "README.md has no heading #nowhere"),
        ("![a](docs/nowhere.svg)", "the repository has no file docs/nowhere.svg"),
        ("![a](docs)", "the repository has no file docs"),
        ("[a](doc)", "the repository has no file doc"),
        ("[a](docs/../README.md)", "the repository has no file docs/../README.md"),
        ("[a](/docs/FORMAT.md)", "it is relative"),
        ('<img src="docs/FORMAT.md">', "it is relative"),
        ("text <a href='docs/FORMAT.md'>a</a>", "it is relative"),
        ("[a]\n\n[a]: docs/FORMAT.md", "it is relative"),
        ("[a](http://example.org)", "expected https"),
        (f"[a]({repository().url}/blob/main/README.md)", "expected https://"),
        (f"![a]({repository().url}/blob/v{VERSION}/README.md)", "expected https://"),
    ]:
        text = described(f"# wal-sink\n\n[fine](docs/FORMAT.md), [sinks](docs/)\n\n{planted}\n")
        dead = repository().dead_links(text)
        assert [found in each for each in dead] == [True], (planted, dead)


def test_anchors_are_those_of_github() -> None:
    text = """# A `b()`, and C: d

## Twice

## Twice

```
# no heading
```

### It's [here](x) & now

<a id='own'></a>
"""
    assert anchors_of(text) == {"a-b-and-c-d", "twice", "twice-1", "its-here--now", "own"}
