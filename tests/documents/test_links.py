"""Every relative link of a document names a tracked file or folder and, with a fragment, one of its headings."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import PurePosixPath
from posixpath import normpath
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support.documents import tracked_files
from tests.support.processes import CHECKOUT

AT_THE_TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
FOLDERS = ("docs/**/*.md", "benchmarks/*.md", "specs/*.md")
DOCUMENTS = [
    *AT_THE_TOP,
    *sorted(path.relative_to(CHECKOUT).as_posix() for pattern in FOLDERS for path in CHECKOUT.glob(pattern)),
]
PARSER = MarkdownIt().enable("table")


@cache
def tracked() -> frozenset[str]:
    """Return the tracked files, and the folders that hold them."""
    files = [path.relative_to(CHECKOUT) for path in tracked_files()]
    return frozenset(path.as_posix() for file in files for path in (file, *file.parents))


@cache
def tokens_of(text: str) -> list[Token]:
    """Return the parts of a document: parsed once, because many links lead into it."""
    return PARSER.parse(text)


def inner(tokens: list[Token]) -> Iterator[Token]:
    """Yield all tokens, those within texts included."""
    for token in tokens:
        yield token
        yield from inner(token.children or [])


def links(text: str) -> list[str]:
    """Return the targets of all links and images, and of those in HTML."""
    found = []
    for token in inner(tokens_of(text)):
        if token.type == "link_open":
            found.append(str(token.attrs["href"]))
        elif token.type == "image":
            found.append(str(token.attrs["src"]))
        elif token.type in ("html_block", "html_inline"):
            found += re.findall(r"(?:href|src|srcset)=[\"']([^\"']+)", token.content)
    return found


@cache
def anchors(text: str) -> frozenset[str]:
    """Return the fragments under which a code host *and* a site find a heading: where these two differ, it has none."""
    found = set()
    for before, token in pairwise(tokens_of(text)):
        if before.type == "heading_open":
            title = "".join(part.content for part in token.children or [] if part.type in ("text", "code_inline"))
            if of_a_code_host(title) == of_a_site(title):
                found.add(of_a_site(title))
    return frozenset(found)


def of_a_code_host(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def of_a_site(title: str) -> str:
    """As Python-Markdown makes it."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def faults(document: str, text: str) -> list[str]:
    """Return the links of a document that lead nowhere."""
    return [f"{link}: {why}" for link in links(text) if (why := fault(document, text, link))]


def fault(document: str, text: str, link: str) -> str:
    """Return what is wrong with a link, or an empty text."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return "an absolute link to this project's own host" if is_own(link) else ""
    if parts.path.startswith("/"):
        return "begins with a slash, which a code host and a site resolve differently"
    target = normpath((PurePosixPath(document).parent / unquote(parts.path)).as_posix()) if parts.path else document
    if target != document and target not in tracked():
        return f"{target} is no tracked file"
    if not parts.fragment:
        return ""
    if not target.endswith(".md"):
        return f"{target} has no headings"
    found = text if target == document else (CHECKOUT / target).read_text()
    return "" if parts.fragment in anchors(found) else f"{target} has no such heading"


def is_own(link: str) -> bool:
    """Tell whether a link leads to the repository or to a site that pyproject names as the project's."""
    return any(_place(link)[: len(_place(url))] == _place(url) for url in _own_urls())


@cache
def _own_urls() -> list[str]:
    return list(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["urls"].values())


def _place(url: str) -> list[str]:
    """Return the host, and on a host of many projects the owner and the project."""
    parts = urlsplit(url)
    return [parts.netloc.lower(), *[part for part in parts.path.split("/") if part][:2]]


def test_every_link_leads_somewhere() -> None:
    texts = {document: (CHECKOUT / document).read_text() for document in DOCUMENTS}
    assert [f"{document}: {each}" for document, text in texts.items() for each in faults(document, text)] == []


def test_a_link_that_leads_nowhere_is_a_fault() -> None:
    for link, why in [
        ("GLOSSARY.md", ""),
        ("../README.md#install", ""),
        ("../examples", ""),
        ("#what-a-page-says", ""),
        ("https://example.com/no-such-page", ""),
        ("GLOSARY.md", "docs/GLOSARY.md is no tracked file"),
        ("../../README.md", "../README.md is no tracked file"),
        ("../README.md#instal", "README.md has no such heading"),
        ("#what-a-page-said", "docs/a-page.md has no such heading"),
        ("rooms.toml#data", "docs/rooms.toml has no headings"),
        ("/README.md", "begins with a slash, which a code host and a site resolve differently"),
        ("https://github.com/wal-sink/wal-sink/issues", "an absolute link to this project's own host"),
        ("https://github.com/another/project", ""),
    ]:
        text = f"# What a page says\n\n[here]({link})\n"
        assert faults("docs/a-page.md", text) == ([f"{link}: {why}"] if why else [])
