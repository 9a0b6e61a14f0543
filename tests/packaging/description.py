"""The description that a package index shows: README.md, whose relative links were rewritten, and where they lead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from markdown_it import MarkdownIt
from markdown_it.token import Token

_IN_HTML = re.compile(r"""\b(href|src|srcset)\s*=\s*["']?([^"'\s>]*)""", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass(frozen=True)
class Link:
    kind: Literal["link", "image"]
    target: str


def links_of(text: str) -> list[Link]:
    """Return the links and images of a Markdown text in order, those of HTML in it as well."""
    return [link for token in _tokens(text) for link in _links_in(token)]


def code_of(text: str) -> list[str]:
    """Return the code of a Markdown text: blocks and words."""
    return [token.content for token in _tokens(text) if token.type in ("fence", "code_block", "code_inline")]


def anchors_of(text: str) -> set[str]:
    """Return the anchors that GitHub gives the headings of a Markdown text, and those that its HTML names."""
    tokens = list(_tokens(text))
    anchors: set[str] = set()
    for before, inline in pairwise(tokens):
        if before.type == "heading_open":
            anchors.add(_unused(_slug(inline), anchors))
    named = re.compile(r"""\b(?:id|name)\s*=\s*["']?([^"'\s>]+)""")
    html = " ".join(token.content for token in tokens if token.type.startswith("html"))
    return anchors | set(named.findall(html))


@dataclass(frozen=True)
class Repository:
    """Where the links of a description may lead."""

    url: str
    version: str
    """The version that is described. Its tag is `v` and the version."""
    texts: Mapping[str, str]
    """The text of each file by path."""

    def dead_links(self, description: str) -> list[str]:
        """Return what is wrong with the links, or nothing.

        Each has to lead to a file or folder of the repository at the tag of the version, and to a heading there if it
        names one. Nobody asks other sites.
        """
        judged = ((link, self._wrong(link)) for link in links_of(description))
        return [f"the {link.kind} to {link.target}: {wrong}" for link, wrong in judged if wrong]

    def _wrong(self, link: Link) -> str:
        if not _SCHEME.match(link.target):
            return "it is relative, and a package index has nothing there"
        if not re.match(re.escape(self.url) + r"(?![\w.-])", link.target):
            return "" if link.target.startswith(("https://", "mailto:")) else "expected https or mailto"
        head = f"{self.url}/{'raw' if link.kind == 'image' else 'blob'}/v{self.version}/"
        if not link.target.startswith(head):
            return f"expected {head}…"
        path, _, anchor = link.target.removeprefix(head).partition("#")
        if path in self.texts:
            return f"{path} has no heading #{anchor}" if anchor and anchor not in anchors_of(self.texts[path]) else ""
        inside = any(name.startswith(f"{path.rstrip('/')}/") for name in self.texts)
        return "" if inside and link.kind == "link" and not anchor else f"the repository has no file {path}"


def _tokens(text: str) -> Iterator[Token]:
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        yield token
        yield from token.children or ()


def _links_in(token: Token) -> Iterator[Link]:
    if token.type == "link_open":
        yield Link("link", str(token.attrGet("href")))
    elif token.type == "image":
        yield Link("image", str(token.attrGet("src")))
    elif token.type in ("html_block", "html_inline"):
        for name, target in _IN_HTML.findall(token.content):
            yield Link("image" if name.lower() != "href" else "link", target)


def _slug(heading: Token) -> str:
    shown = "".join(part.content for part in heading.children or () if part.type in ("text", "code_inline"))
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


def _unused(slug: str, used: set[str]) -> str:
    numbered = (f"{slug}-{number}" if number else slug for number in range(len(used) + 1))
    return next(name for name in numbered if name not in used)
