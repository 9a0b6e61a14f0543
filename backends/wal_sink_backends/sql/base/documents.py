"""Texts that become documents: a database that keeps a document's values, not its text, keeps a key only once."""

from __future__ import annotations

import json
from typing import Any

from wal_sink_backends.common.columns import array_of
from wal_sink_backends.common.texts import texts_of


class _Repeated(Exception):
    """A key occurs twice in an object."""


def refuse_repeated_keys(column: Any, name: str, refused: dict[int, str], kept_as: str) -> None:
    """Add the rows whose text repeats a key of an object, or cannot be searched for one."""
    for row, text in enumerate(texts_of(array_of(column), name, {})):
        if text is not None and (problem := _problem(text)) is not None:
            refused.setdefault(row, f"column {name!r} {problem.format(kept_as)}")


def _problem(text: str) -> str | None:
    try:
        json.loads(text, object_pairs_hook=_once, parse_int=str, parse_float=str)
    except _Repeated as repeated:
        key = repr(repeated.args[0]).replace("{", "{{").replace("}", "}}")
        return f"repeats the key {key}, but {{}} would keep only the last value of this key"
    except RecursionError:
        return "is nested too deeply: it cannot be searched for repeated keys"
    except ValueError as error:
        return f"is not JSON: {error.args[0]}".replace("{", "{{").replace("}", "}}")
    return None


def _once(pairs: list[tuple[str, Any]]) -> None:
    seen = set[str]()
    for key, _ in pairs:
        if key in seen:
            raise _Repeated(key)
        seen.add(key)
