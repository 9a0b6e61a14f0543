"""Names of files from templates, checked where a sink is made."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from urllib.parse import unquote

from wal_sink.errors import ConfigError, StoreError
from wal_sink.sinks.base import Transaction
from wal_sink.stores.base import check_path
from wal_sink.support.clock import SYSTEM

CHUNK_TEMPLATE = "batch={batch:019d}/{ordinal:06d}-{rows:012d}-{key}.{ext}"
"""Zero-padded, so that a listing has the order of batches, of their segments and of the rows in them."""
SEGMENT_TEMPLATE = "batch={batch_id:019d}/{partition:06d}-{file_index:04d}-{wal_id}.{ext}"
"""The same for whole segments. The WAL's id tells a new query from an earlier one in the same folder."""

_CHUNK_SAMPLE = {"batch": 0, "ordinal": 0, "rows": 1, "key": "key", "ext": "ext"}
_NUMBERS = ("batch_id", "partition", "file_index")
_TEXTS = ("wal_id", "sink", "ext")
_NUMBER_SPEC = re.compile(r"(?:0[1-9]\d?)?d?")


def check_chunk_template(template: str) -> None:
    """Raise `ConfigError` for a name by which chunks could not be told apart, or that no store takes."""
    try:
        fields = {name: (spec, how) for _, name, spec, how in string.Formatter().parse(template) if name is not None}
        for name in fields.keys() - _CHUNK_SAMPLE:
            raise ValueError(_unknown(name, _CHUNK_SAMPLE))
        _check_visible(template.format(**_CHUNK_SAMPLE))
    except (StoreError, ValueError, LookupError) as error:
        raise ConfigError(f"name_template={template!r}: {error}; expected something like {CHUNK_TEMPLATE!r}") from error
    if "key" not in fields:
        raise ConfigError(
            f"name_template={template!r}: expected {{key}} in it, because only the key distinguishes chunks"
        )
    if any(fields["key"]):
        raise ConfigError(
            f"name_template={template!r}: expected {{key}} without ':' or '!', because they could shorten the key: two "
            "chunks would have the same name, and the second chunk would count as a repeat of the first"
        )


def check_columns(columns: Sequence[str], path: str, what: str) -> None:
    """Raise `ConfigError` for a column that has the name of a folder `name=…` in the path of its file.

    Spark, Arrow and DuckDB read such a folder as a partition column. They silently take its value, not the file's.
    Spark compares names without regard to case, and undoes `%` escapes.
    """
    folders = {unquote(part.partition("=")[0]).casefold(): part for part in path.split("/")[:-1] if "=" in part}
    for column in columns:
        folder = folders.get(column.casefold())
        if folder is not None:
            bare = folder.partition("=")[0]
            raise ConfigError(
                f"{what}: column {column!r} has the same name as the folder {folder!r} of the file {path!r}. Spark, "
                "Arrow and DuckDB would read the value of the folder instead of the column. Nothing was written. "
                f"Rename the column in the query, or pass a name_template without '{bare}='"
            )


@dataclass(frozen=True, slots=True)
class SegmentNames:
    """Names of a query's segments: `{batch_id}`, `{partition}` and `{file_index}` give each a lasting, separate name.

    Further placeholders: `{wal_id}`, `{sink}`, `{ext}`, and `{date}`, the day in UTC on which the file was begun.
    Raises `ConfigError` for a template that could give two segments one name.
    """

    template: str
    ext: str

    def __post_init__(self) -> None:
        fields = self._fields()
        present = {name for _, name in fields}
        for name in _NUMBERS:
            if name not in present:
                raise self._error(f"{{{name}}} is missing, and without it two files could have one name")
        for (_, before), (literal, after) in pairwise(fields):
            if not literal.strip(string.digits):
                raise self._error(
                    f"{{{before}}} and {{{after}}} need a character between them that is not a digit. "
                    "Otherwise batch 1, partition 11 would have the name of batch 11, partition 1"
                )
        sample = Transaction("0" * 32, wal_id="0" * 32, sink="default", batch_id=0, partition=0, file_index=0)
        try:
            _check_visible(self.name_of(sample))
        except (StoreError, ValueError) as error:
            raise self._error(str(error)) from error

    def name_of(self, transaction: Transaction, today: Callable[[], date] = lambda: SYSTEM.now().date()) -> str:
        """The path of the transaction's file in the folder."""
        return self.template.format(
            batch_id=transaction.batch_id,
            partition=transaction.partition,
            file_index=transaction.file_index,
            wal_id=transaction.wal_id,
            sink=transaction.sink,
            ext=self.ext,
            date=today(),
        )

    def _fields(self) -> list[tuple[str, str]]:
        """Each field, with the text before it."""
        try:
            parsed = [part for part in string.Formatter().parse(self.template) if part[1] is not None]
        except ValueError as error:
            raise self._error(str(error)) from error
        fields = []
        for literal, name, spec, conversion in parsed:
            allowed = _SPECS.get(name or "")
            if allowed is None:
                raise self._error(_unknown(name or "", _SPECS))
            if conversion or not allowed.fullmatch(spec or ""):
                raise self._error(
                    f"{{{name}{f'!{conversion}' if conversion else ''}:{spec}}} could shorten a value or be read in "
                    f"two ways; write {{{name}}}, numbers also as {{{name}:06d}}, dates as {{date:%Y/%m/%d}}"
                )
            fields.append((literal, name or ""))
        return fields

    def _error(self, why: str) -> ConfigError:
        return ConfigError(f"name_template={self.template!r}: {why}; expected something like {SEGMENT_TEMPLATE!r}")


def _unknown(name: str, known: Iterable[str]) -> str:
    return f"{{{name}}} is unknown; known are {', '.join(f'{{{each}}}' for each in known)}"


def _check_visible(path: str) -> None:
    """Raise `StoreError` or `ValueError` for a path that no store takes, or that readers pass over."""
    if any(part.startswith("_") for part in check_path(path).split("/")):
        raise ValueError(f"{path!r} has a name that begins with '_'. Spark, Hive and Arrow do not read such files")


_SPECS: Mapping[str, re.Pattern[str]] = {
    **dict.fromkeys(_NUMBERS, _NUMBER_SPEC),
    **dict.fromkeys(_TEXTS, re.compile("")),
    "date": re.compile(r"[^{}]*"),
}
