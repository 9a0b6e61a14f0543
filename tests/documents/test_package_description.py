"""The metadata of the package: complete, valid, without the groups of developers; and each link of its description."""

from __future__ import annotations

import re
import shutil
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

from tests.packaging.archives import Archives, metadata_bytes, metadata_of
from tests.packaging.description import Repository, code_of, links_of
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
def test_users_see_no_group_of_developers(metadata: Message) -> None:
    groups = PYPROJECT["dependency-groups"]
    assert {"bench", "dev", "mutation"} <= set(groups)
    assert set(metadata.get_all("Provides-Extra", [])) & set(groups) == set()
    assert set(metadata.get_all("Provides-Extra", [])) == set(PYPROJECT["project"]["optional-dependencies"])


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
