"""Options from the environment and from a file, so that no secret stands among the arguments of a process.

Everybody on a machine can read the arguments of its processes. The environment of a process, and a file of mode 0600,
are read by its user alone. An argument goes before the environment, and the environment before the file.
"""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from wal_sink.errors import ConfigError

C = TypeVar("C", bound=click.Command)

PREFIX = "WAL_SINK_"
MOST_BYTES = 1 << 20
OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""Rights of everyone but the owner of a file."""
TABLES = {"storage-options": "storage_options_json", "checkpoint-options": "checkpoint_options_json"}
"""Keys of the file that hold a table, and the option that takes it as JSON."""
_NOT_IN_A_FILE = frozenset({"config", "help", "option", "checkpoint_option", *TABLES.values()})
_TYPES: Mapping[str, tuple[type, ...]] = {"true or false": (bool,), "a whole number": (int,), "a number": (int, float)}


def config_option(verb: C) -> C:
    """Add `--config`, and let every option and argument come from the environment and from that file."""
    option = click.Option(
        ["--config"],
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_load,
        help='A TOML or JSON file (name.json) of mode 0600 with any of these options, such as to = "…".',
    )
    verb.params.append(option)
    for param in verb.params:
        if param.envvar is None and param.name is not None:
            param.envvar = PREFIX + _key(param).replace("-", "_").upper()
    return verb


def _load(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is not None and not context.resilient_parsing:
        context.default_map = _defaults(context.command, _parsed(value), value)


def _key(param: click.Parameter) -> str:
    """The name of an option as users write it, without the dashes; of an argument its own name."""
    longest = max(param.opts, key=len) if isinstance(param, click.Option) else param.name or ""
    return longest.lstrip("-")


def _parsed(path: str) -> dict[str, Any]:
    """The content of the file. No message shows any of it."""
    text = _read(path)
    try:
        found = json.loads(text, object_pairs_hook=_once) if path.endswith(".json") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.endswith(".json") else "TOML"
        where = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else _place_of(error)
        raise ConfigError(f"--config {path}: expected {kind}, and it cannot be parsed ({where})") from None
    if not isinstance(found, dict):
        raise ConfigError(f"--config {path}: expected one JSON object, found a {type(found).__name__}")
    return found


def _place_of(error: BaseException) -> str:
    """Where a parser stopped. The rest of its text may quote the file."""
    _, at, place = str(error).rpartition("(at ")
    return place.rstrip(")") if at else "the place is not known"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("(at a key that stands twice)")
    return found


def _read(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"--config {path}: expected a file")
            if status.st_mode & OTHERS:
                raise ConfigError(
                    f"--config {path}: this file has mode {stat.S_IMODE(status.st_mode):04o}, so users other than its "
                    f"owner may read or change it. It may hold secrets: chmod 600 {path}"
                )
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--config {path}: this file cannot be read: {error.strerror or error}") from error
    if len(data) > MOST_BYTES:
        raise ConfigError(f"--config {path}: expected at most {MOST_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"--config {path}: expected text in UTF-8") from None


def _defaults(verb: click.Command, found: dict[str, Any], path: str) -> dict[str, Any]:
    known = {_key(param): param for param in verb.params if param.name not in _NOT_IN_A_FILE}
    defaults: dict[str, Any] = {}
    for key, value in found.items():
        if key in TABLES:
            if not isinstance(value, dict):
                raise _wrong(path, key, "a table of names and values", value)
            defaults[TABLES[key]] = json.dumps(value, default=str)
        elif key in known:
            param = known[key]
            _check(param, value, path, key)
            defaults[str(param.name)] = value
        else:
            raise ConfigError(
                f"--config {path}: {key!r} is not a key of this file. Expected the names of the options without "
                f"dashes: {', '.join(sorted({*known, *TABLES}))}"
            )
    return defaults


def _check(param: click.Parameter, value: object, path: str, key: str) -> None:
    expected = _expected(param)
    types = _TYPES.get(expected, (str,))
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise _wrong(path, key, expected, value)


def _expected(param: click.Parameter) -> str:
    if isinstance(param, click.Option) and param.is_flag:
        return "true or false"
    if isinstance(param.type, click.types.IntParamType):
        return "a whole number"
    return "a number" if isinstance(param.type, click.types.FloatParamType) else "text"


def _wrong(path: str, key: str, expected: str, value: object) -> ConfigError:
    return ConfigError(f"--config {path}: {key}: expected {expected}, found a {type(value).__name__}")
