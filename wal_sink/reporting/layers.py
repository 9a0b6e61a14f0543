"""Texts composed by several layers, each of which names its object."""

from __future__ import annotations

import re

_NAME = r"(?:batch \d+|sink '[^']*'|chunk [\w-]+|segment [\w-]+)"
_NAMES = re.compile(rf"(?<!\w){_NAME}(?:, {_NAME})*: ")


def said_once(text: str) -> str:
    """The text with each batch, sink, chunk and segment named once, at its first mention.

    `batch 3, sink 'a': gave up: batch 3, chunk k: no route` becomes `batch 3, sink 'a': gave up: chunk k: no route`.
    """
    said: set[str] = set()

    def rest(names: re.Match[str]) -> str:
        new = [name for name in names[0].removesuffix(": ").split(", ") if name not in said]
        said.update(new)
        return f"{', '.join(new)}: " if new else ""

    return _NAMES.sub(rest, text)
