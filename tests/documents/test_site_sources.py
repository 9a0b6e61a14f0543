"""The hooks of the documentation site: navigation, links, lists, and pages that read as they do in the repository."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest
from markdown import Markdown
from markdown_it import MarkdownIt
from mkdocs.config import load_config

from docs_site.hooks import ROOT_PAGES
from docs_site.lists import indented
from tests.support.processes import CHECKOUT

DOCUMENTS = [path for path in sorted((CHECKOUT / "docs").rglob("*.md")) if path.parent.name != "api"]
DOCUMENTS += [CHECKOUT / name for name in ROOT_PAGES if (CHECKOUT / name).is_file()]
MODULES = ("wal_sink", "wal_sink.wrap", "wal_sink.sinks", "wal_sink.testing", "wal_sink.spark")
COUNTED = ("h1", "h2", "h3", "h4", "ul", "ol", "li", "table", "td", "pre", "code", "img", "details")


def _counts(html: str) -> dict[str, int]:
    return {name: len(re.findall(f"<{name}[ >]", html)) for name in COUNTED}


@pytest.fixture(scope="module")
def site() -> Any:
    """Python-Markdown as mkdocs.yml sets it up, without the extensions of plugins."""
    config = load_config(str(CHECKOUT / "mkdocs.yml"))
    extensions = [name for name in config.markdown_extensions if name != "pymdownx.highlight"]
    extensions.remove("pymdownx.superfences")  # it makes tables of code; plain fences are counted alike
    settings = {name: options for name, options in config.mdx_configs.items() if name in extensions}
    return Markdown(extensions=[*extensions, "fenced_code"], extension_configs=settings)


# --- pages


def test_every_document_has_the_same_parts_in_the_site_and_in_the_repository(site: Any) -> None:
    for path in DOCUMENTS:
        text = path.read_text()
        assert _counts(site.reset().convert(indented(text))) == _in_the_repository(text), path


def test_the_docstrings_have_the_same_parts(site: Any) -> None:
    texts: list[str | None] = []
    for module in map(importlib.import_module, MODULES):
        named = [module, *(getattr(module, name) for name in module.__all__)]
        texts += [thing.__doc__ for thing in named]
        texts += [member.__doc__ for thing in named if inspect.isclass(thing) for member in vars(thing).values()]
    for text in dict.fromkeys(map(inspect.cleandoc, filter(None, texts))):
        assert _counts(site.reset().convert(text)) == _in_the_repository(text), text


def _in_the_repository(text: str) -> dict[str, int]:
    return _counts(MarkdownIt("commonmark").enable("table").render(text))


def test_the_two_layouts_of_the_drawing_say_the_same() -> None:
    drawn = [(CHECKOUT / f"docs/assets/protocol{layout}.svg").read_text() for layout in ("", "-narrow")]
    wide, narrow = (
        sorted(" ".join(re.findall(r"<(?:text|title|desc)\b[^>]*>([^<]+)", each)).split()) for each in drawn
    )
    assert wide == narrow


# --- lists


# --- links


# --- navigation and repository
