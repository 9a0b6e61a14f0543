"""Events of MkDocs: pages of the repository's root, and links into the repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

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
BOOSTS = {"troubleshooting.md": 1000}
"""Pages that the search shows first, with the factor. For the theme, a word of a title weighs as much as 1,000 words of
a text, and messages stand in texts."""
IMAGES = "repository"
"""The folder of the site for images that lie elsewhere in the repository."""
_BLOCK = re.compile(r"^<details>", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in what mkdocs.yml leaves to the checkout: the repository's address."""
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


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents of the repository's root. The build warns of an entry of the navigation that has none."""
    for source, page in ROOT_PAGES.items():
        if (ROOT / source).is_file():
            files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite a document for the site. API pages included: they are documents, too."""
    source = _source(page.file)
    if page.file.src_uri in BOOSTS:
        page.meta["search"] = {"boost": BOOSTS[page.file.src_uri]}

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
