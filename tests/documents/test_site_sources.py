"""The hooks of the documentation site: navigation, links, lists, and pages that read as they do in the repository."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from markdown import Markdown
from markdown_it import MarkdownIt
from mkdocs.config import load_config
from mkdocs.exceptions import PluginError

from docs_site.hooks import ROOT_PAGES, expanded, named_in, repository_url
from docs_site.links import Links
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


def test_a_document_whose_lists_are_not_indented_has_other_parts(site: Any) -> None:
    text = "Text:\n- one\n- two\n"
    assert _counts(site.reset().convert(text))["li"] == 0
    assert _counts(site.reset().convert(indented(text)))["li"] == 2


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


# --- lists


def test_lists_are_indented() -> None:
    for text, expected in [
        ("Text\n- a\n  b\n- c\nmore\n", "Text\n\n-   a\n    b\n-   c\n    more\n"),
        ("1. a\n- b\n", "1.  a\n\n<!-- -->\n\n-   b\n"),
        ("1. a\n\n- b\n", "1.  a\n\n<!-- -->\n\n-   b\n"),
        ("- a\n# Heading\n", "-   a\n\n# Heading\n"),
        ("1. a\n   - b\n     c\n   - d\n2. e\n", "1.  a\n    -   b\n        c\n    -   d\n2.  e\n"),
        ("- a\n\n  ```\n  - no list\n  ```\n", "-   a\n\n    ```\n    - no list\n    ```\n"),
        ("```\nText\n- no list\n```\n", "```\nText\n- no list\n```\n"),
        ("10. a\n    b\n", "10. a\n    b\n"),
        ("Text - no list\n", "Text - no list\n"),
    ]:
        assert indented(text) == expected
    with pytest.raises(ValueError, match="line 1: expected the marker of one item"):
        indented("- - a\n")


# --- links


def _links(added: list[str]) -> Links:
    def add_image(path: str) -> str:
        added.append(path)
        return f"repository/{path}"

    pages = {
        "docs/FORMAT.md": "FORMAT.md",
        "docs/sinks/sql.md": "sinks/sql.md",
        "docs/sinks/index.md": "sinks/index.md",
        "docs/plots/a.svg": "plots/a.svg",
        "CHANGELOG.md": "project/changelog.md",
    }
    return Links(CHECKOUT, pages, "https://host.example/us/it", add_image)


def test_a_link_leads_to_its_page_or_to_the_repository() -> None:
    for source, text, expected in [
        ("docs/sinks/sql.md", "[a](../FORMAT.md#x)", "[a](../FORMAT.md#x)"),
        ("docs/sinks/sql.md", "[a\nb](../../CHANGELOG.md)", "[a\nb](../project/changelog.md)"),
        ("docs/FORMAT.md", "[a](sinks/)", "[a](sinks/index.md)"),
        ("docs/FORMAT.md", "[a](#x) [b](https://a.example/c)", "[a](#x) [b](https://a.example/c)"),
        ("docs/FORMAT.md", "[a](../specs/README.md#x)", "[a](https://host.example/us/it/blob/main/specs/README.md#x)"),
        ("docs/FORMAT.md", "[a](../tests/contract)", "[a](https://host.example/us/it/tree/main/tests/contract)"),
        ("docs/FORMAT.md", "[a](rooms.toml)", "[a](https://host.example/us/it/blob/main/docs/rooms.toml)"),
        ("docs/FORMAT.md", "![a](plots/a.svg)", "![a](plots/a.svg)"),
        ("docs/FORMAT.md", "[`a`](gone.md)", "[`a`](gone.md)"),
        ("docs/FORMAT.md", "[a](../../elsewhere.md)", "[a](../../elsewhere.md)"),
        (
            "docs/FORMAT.md",
            "`[a](../LICENSE)`\n```\n[a](../LICENSE)\n```\n",
            "`[a](../LICENSE)`\n```\n[a](../LICENSE)\n```\n",
        ),
        ("docs/FORMAT.md", "[a]: ../LICENSE", "[a]: https://host.example/us/it/blob/main/LICENSE"),
        (
            "CHANGELOG.md",
            "[a](docs/FORMAT.md) [b](LICENSE)",
            "[a](../FORMAT.md) [b](https://host.example/us/it/blob/main/LICENSE)",
        ),
        ("docs/FORMAT.md", "| `a` | [b](../LICENSE) |", "| `a` | [b](https://host.example/us/it/blob/main/LICENSE) |"),
    ]:
        assert _links([]).rewritten(text, source) == expected


def test_an_image_that_lies_elsewhere_is_brought_into_the_site() -> None:
    added: list[str] = []
    text = _links(added).rewritten("![a](docs/assets/favicon.svg)", "CHANGELOG.md")
    assert text == "![a](../repository/docs/assets/favicon.svg)"
    assert added == ["docs/assets/favicon.svg"]


# --- navigation and repository


def test_a_star_stands_for_the_documents_that_nothing_else_names_and_not_for_none() -> None:
    nav = ["b.md", {"A": ["a/index.md", "a/*.md"]}, {"Two": "a/2.md"}]
    assert named_in(nav) == ["b.md", "a/index.md", "a/*.md", "a/2.md"]
    assert expanded(nav, ["a/1.md", "a/3.md", "c/4.md"]) == [
        "b.md",
        {"A": ["a/index.md", "a/1.md", "a/3.md"]},
        {"Two": "a/2.md"},
    ]
    with pytest.raises(PluginError, match=r"no document fits 'c/\*\.md'"):
        expanded([{"C": ["c/*.md"]}], ["a.md"])


def test_the_repository_has_an_address_and_one_without_is_an_error(tmp_path: Path) -> None:
    for urls in ("", '[project.urls]\nDocumentation = "https://a.example"', '[project.urls]\nRepository = ""'):
        (tmp_path / "pyproject.toml").write_text(urls)
        with pytest.raises(PluginError, match="needs an entry Repository"):
            repository_url(tmp_path / "pyproject.toml")
    assert re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", repository_url())
