"""Options of `format("wal_sink")`, read strictly. Spark shows options in its UI, so none of them may hold a secret."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from wal_sink.errors import ConfigError
from wal_sink.settings import Settings
from wal_sink.spark.checkpoint_files import checkpoint_location
from wal_sink.spark.connect import CHECKPOINT
from wal_sink.stores.spec import StoreSpec
from wal_sink.support.secrets import mask_url, secrets_in_options

WAL = "wal"
STORAGE_OPTIONS = "storageOptions"
_PATH = "path"
_QUERY_NAME = "queryName"
"""Spark passes the name of the query on. It means nothing here."""
_SIZES = {"chunkRows": "chunk_rows", "chunkBytes": "chunk_bytes", "segmentBytes": "segment_bytes"}
_USER = "user"
_PLAIN_USER = r"[A-Za-z_][A-Za-z0-9_.-]{0,31}"
_HADOOP_USER = re.compile(rf"^((?:s?web)?hdfs|viewfs)://{_PLAIN_USER}@", re.IGNORECASE)
"""A name of a user of an operating system has no password there. The user of any other service may be a token."""
_FROM, _TO = "fromBatch", "toBatch"

TO_WRITE = (WAL, CHECKPOINT, STORAGE_OPTIONS, *_SIZES)
TO_READ = (WAL, STORAGE_OPTIONS, _FROM, _TO)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a query that stages into a WAL."""

    store: StoreSpec
    checkpoint: str
    """Full address of the query's checkpoint."""
    settings: Settings


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a DataFrame that reads a WAL."""

    store: StoreSpec
    first_batch: int
    """The first batch to read. 0: the oldest that the WAL holds."""
    last_batch: int | None
    """The last batch to read; None for the newest released one."""


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Options of `writeStream`. Names are compared without case. Raises `ConfigError` for every mistake."""
    values = _known(given, TO_WRITE, also=(_PATH, _QUERY_NAME))
    checkpoint = values.get(CHECKPOINT)
    if not checkpoint:
        raise ConfigError(
            f'format("wal_sink"): option {CHECKPOINT} is missing. Spark does not pass on the default of the session '
            f"(spark.sql.streaming.checkpointLocation), and the WAL follows the checkpoint of its query. Add "
            f'.option("{CHECKPOINT}", …) to this query. Nothing was staged'
        )
    _refuse_secret_url(CHECKPOINT, checkpoint)
    sizes: dict[str, Any] = {
        name: _count(option, values[option]) for option, name in _SIZES.items() if option in values
    }
    settings = replace(Settings(), **sizes)
    return WriteOptions(_store(values), checkpoint_location(checkpoint, None), settings)


def options_of(store: StoreSpec, checkpoint: str, settings: Settings) -> dict[str, str]:
    """The options of a query that stages into `store` with these settings. Raises `ConfigError` for a secret."""
    options = {WAL: store.url, CHECKPOINT: checkpoint}
    if store.options:
        _refuse_secrets(store.options)
        options[STORAGE_OPTIONS] = _json(store.options)
    options |= {option: str(getattr(settings, name)) for option, name in _SIZES.items()}
    write_options(options)
    return options


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Options of `spark.read`. Names are compared without case. Raises `ConfigError` for every mistake."""
    values = _known(given, TO_READ, also=(_PATH,))
    first = _count(_FROM, values[_FROM]) if _FROM in values else 0
    last = _count(_TO, values[_TO]) if _TO in values else None
    if last is not None and last < first:
        raise ConfigError(f'format("wal_sink"): expected {_FROM} to be at most {_TO}, found {first} and {last}')
    return ReadOptions(_store(values), first, last)


def _known(given: Mapping[str, str], names: Iterable[str], *, also: Iterable[str]) -> dict[str, str]:
    """The options by their names as documented. An unknown one is an error: it may be a misspelt one."""
    by_fold = {name.lower(): name for name in (*names, *also)}
    found: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in by_fold:
            near = get_close_matches(name.lower(), by_fold, 1)
            advice = f"Did you mean {by_fold[near[0]]}?" if near else f"Expected one of {', '.join(names)}"
            raise ConfigError(f'format("wal_sink"): unknown option {name!r}. {advice} Nothing was staged or read')
        found[by_fold[name.lower()]] = value
    return found


def _store(values: Mapping[str, str]) -> StoreSpec:
    """The WAL's store: of the option `wal`, or of the path that was given to `start` or `load`."""
    wal, path = values.get(WAL), values.get(_PATH)
    if wal and path and wal != path:
        raise ConfigError(
            f'format("wal_sink"): option {WAL} is {mask_url(wal)}, but the path is {mask_url(path)}. Pass one of them'
        )
    if not (url := wal or path):
        raise ConfigError(f'format("wal_sink"): option {WAL} is missing: the URL of the log\'s folder')
    _refuse_secret_url(WAL, url)
    return StoreSpec(url, _storage_options(values.get(STORAGE_OPTIONS, "{}")))


def _storage_options(text: str) -> dict[str, object]:
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise ConfigError(
            f'format("wal_sink"): option {STORAGE_OPTIONS}: expected one JSON object such as {{"anon": true}}, found '
            f"{len(text)} characters of other text"
        )
    _refuse_secrets(options)
    return options


def _json(options: Mapping[str, object]) -> str:
    try:
        return json.dumps(dict(options))
    except (TypeError, ValueError):
        kinds = sorted({type(value).__name__ for value in options.values()})
        raise ConfigError(
            f'format("wal_sink"): option {STORAGE_OPTIONS}: expected values that JSON can hold, found values '
            f"of type {', '.join(kinds)}. Another process reads these options. Give texts, numbers, booleans, or lists "
            "and dicts of these"
        ) from None


def _refuse_secrets(options: Mapping[str, object]) -> None:
    secret = sorted(
        name
        for name, value in options.items()
        if not (name == _USER and re.fullmatch(_PLAIN_USER, str(value))) and secrets_in_options({name: value})
    )
    if secret:
        raise ConfigError(
            f'format("wal_sink"): option {STORAGE_OPTIONS}: {", ".join(map(repr, secret))} may hold a secret, and '
            "Spark shows the options of a query in its UI and its event log. Let the environment of driver and "
            "executors provide credentials: an instance role, environment variables, or a profile"
        )


def _refuse_secret_url(option: str, url: str) -> None:
    url = _HADOOP_USER.sub(r"\1://", url)
    if mask_url(url) != url:
        raise ConfigError(
            f'format("wal_sink"): option {option} is {mask_url(url)} with a part that may be a secret, and Spark shows '
            "the options of a query in its UI and its event log. Let the environment of driver and executors provide "
            "credentials"
        )


def _count(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f'format("wal_sink"): option {option}: expected a whole number, found {text[:40]!r}')
    return int(text)
