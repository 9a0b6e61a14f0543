"""Links of the documents, as the site needs them.

A document links to files of the repository, as seen from its own place. In the site such a link leads to the page that
is made of the file, or else to the file at the repository's address. An image is copied into the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_FENCED = r"^ *(?P<fence>`{3,}|~{3,}).*?^ *(?P=fence)[ ]*$"
_TARGET = r"(?P<target>[^\s)]+)"
_CODE_OR_LINK = re.compile(
    rf"{_FENCED}|(?P<ticks>`+)[^`]+(?P=ticks)"
    rf"|(?P<image>!)?\[(?P<text>(?:[^\[\]]|!?\[[^\[\]]*\]\([^()]*\)|\[[^\[\]]*\])*)\]\({_TARGET}(?P<title>\s+\"[^\"]*\")?\)",
    re.MULTILINE | re.DOTALL,
)
_DEFINITION = re.compile(r"^(?P<head> {0,3}\[[^\]]+\]:\s+)(?P<target>\S+)", re.MULTILINE)
BRANCH = "main"


@dataclass(frozen=True, slots=True)
class Links:
    """Where the files of the repository at `root` are found.

    `pages` has the place in the site of each file that is part of it, both with "/" and relative: to the root, and to
    the site's sources. `repository` is the repository's URL. `add_image` brings a file of the repository into the site
    and returns its place there.
    """

    root: Path
    pages: Mapping[str, str]
    repository: str
    add_image: Callable[[str], str]

    def rewritten(self, text: str, source: str) -> str:
        """Return the text of the document at `source` with its links as the site needs them. Code stays as it is."""
        page = self.pages[source]

        def replaced(match: re.Match[str]) -> str:
            if match["target"] is None:
                return match[0]
            is_image = match["image"] is not None
            text = match["text"] if is_image else _CODE_OR_LINK.sub(replaced, match["text"])  # an image in a link
            target = self._target(match["target"], source, page, is_image=is_image)
            return f"{match['image'] or ''}[{text}]({target}{match['title'] or ''})"

        def defined(match: re.Match[str]) -> str:
            return match["head"] + self._target(match["target"], source, page, is_image=False)

        return _DEFINITION.sub(defined, _CODE_OR_LINK.sub(replaced, text))

    def _target(self, target: str, source: str, page: str, *, is_image: bool) -> str:
        path, mark, anchor = target.partition("#")
        if not path or path.startswith("/") or re.match(r"[a-z][a-z0-9+.-]*:", path):
            return target
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        place = self.pages.get(file) or self.pages.get(f"{file}/index.md")
        if place is None and is_image and (self.root / file).is_file():
            place = self.add_image(file)
        if place is not None:
            return posixpath.relpath(place, posixpath.dirname(page) or ".") + mark + anchor
        if file.startswith("..") or not (self.root / file).exists():
            return target  # MkDocs warns of it, and the build fails
        kind = "tree" if (self.root / file).is_dir() else "blob"
        return f"{self.repository}/{kind}/{BRANCH}/{file}{mark}{anchor}"
