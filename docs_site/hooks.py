"""Events of MkDocs: pages of the repository's root, links into the repository, entries of the navigation with a "*"."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, InclusionLevel

from docs_site.links import Links
from docs_site.lists import indented

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
"""Documents of the repository's root that are pages, with their place in the site."""
IMAGES = "repository"
"""The folder of the site for images that lie elsewhere in the repository."""
_BLOCK = re.compile(r"^<details>", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in what mkdocs.yml leaves to the checkout: the documents behind a "*", and the repository's address."""
    if config.nav is not None:
        named = set(named_in(config.nav))
        documents = (path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir).rglob("*.md"))
        config.nav = expanded(config.nav, sorted(set(documents) - named))
    repository = {"icon": "fontawesome/brands/git-alt", "link": repository_url(), "name": "The repository"}
    config.extra["social"] = [repository]  # not `repo_url`: the theme would query that host for stars
    return config


def repository_url(pyproject: Path = ROOT / "pyproject.toml") -> str:
    """Return the URL of the repository, which is kept in pyproject.toml alone."""
    urls = tomllib.loads(pyproject.read_text()).get("project", {}).get("urls", {})
    url = urls.get("Repository")
    if not isinstance(url, str) or not url.startswith("https://"):
        raise PluginError(f'{pyproject}: [project.urls] needs an entry Repository = "https://…": found {url!r}')
    return url.rstrip("/")


def expanded(nav: list[Any], documents: list[str]) -> list[Any]:
    """Return the navigation with each "folder/*.md" replaced by the documents that it fits."""
    result: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            inner = {
                title: expanded(part, documents) if isinstance(part, list) else part for title, part in entry.items()
            }
            result.append(inner)
        elif isinstance(entry, str) and "*" in entry:
            found = [name for name in documents if fnmatch.fnmatch(name, entry)]
            if not found:
                raise PluginError(f"mkdocs.yml: nav: no document fits {entry!r}")
            result += found
        else:
            result.append(entry)
    return result


def named_in(nav: Any) -> list[str]:
    """Return the documents that the navigation names, as they stand there."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [name for part in parts for name in named_in(part)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents of the repository's root. The build warns of an entry of the navigation that has none."""
    for source, page in ROOT_PAGES.items():
        if (ROOT / source).is_file():
            files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite a document for the site. API pages included: they are documents, too."""
    source = _source(page.file)

    def add_image(path: str) -> str:
        place = f"{IMAGES}/{path}"
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
        return place

    pages = {
        _source(file): file.src_uri
        for file in files
        if file.abs_src_path and file.inclusion is not InclusionLevel.EXCLUDED
    }
    links = Links(ROOT, pages, repository_url(), add_image)
    return _BLOCK.sub('<details markdown="1">', indented(links.rewritten(markdown, source)))


def _source(file: File) -> str:
    """Return the path in the repository of a file of the site; that of the theme's files is absolute."""
    path = Path(str(file.abs_src_path))
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()
