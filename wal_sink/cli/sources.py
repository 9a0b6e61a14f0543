"""Options from the environment and from a file, so that no secret stands among the arguments of a process.

Everybody on a machine can read the arguments of its processes. The environment of a process, and a file of mode 0600,
are read by its user alone. An argument goes before the environment, and the environment before the file.
"""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import click

from wal_sink.errors import ConfigError

C = TypeVar("C", bound=click.Command)

PREFIX = "WAL_SINK_"
STORAGE_VARIABLE = f"{PREFIX}STORAGE_OPTIONS"
CHECKPOINT_VARIABLE = f"{PREFIX}CHECKPOINT_OPTIONS"
MOST_BYTES = 1 << 20
OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""Rights of everyone but the owner of a file."""


class StoreOptions(click.ParamType[dict[str, Any]]):
    """The options of a store: one JSON object, `@` and the file that holds it, or a table of the file of `--config`."""

    name = "json|@file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """The object. Raises `ConfigError`, which shows none of it: it may hold secrets."""
        del ctx
        return value if isinstance(value, dict) else _store_options(value, f"--{_key(param)}" if param else self.name)


class Columns(StoreOptions):
    """`Delivery.columns`: one JSON object, or a table of the file of `--config`."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        del param, ctx
        expected = 'one JSON object such as {"order_id": "id", "note": null}'
        return value if isinstance(value, dict) else _parsed(value, "--columns", expected)


def checkpoint_options() -> dict[str, Any] | None:
    """The options of the checkpoint's store, from the environment. None: they are those of the WAL."""
    given = os.environ.get(CHECKPOINT_VARIABLE)
    return _store_options(given, CHECKPOINT_VARIABLE) if given else None


def _store_options(given: str, named: str) -> dict[str, Any]:
    if given.startswith("@"):
        named = f"{named} {given}"
        given = _read(given[1:], named)
    return _parsed(given, named, 'one JSON object such as {"anon": true}, or @ and the name of its file')


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
        named = f"--config {value}"
        found = _parsed(_read(value, named), named, "one JSON object" if value.endswith(".json") else "TOML")
        context.default_map = _defaults(context.command, found, named)


def _key(param: click.Parameter) -> str:
    """The name of an option as users write it, without the dashes; of an argument its own name."""
    longest = max(param.opts, key=len) if isinstance(param, click.Option) else param.name or ""
    return longest.lstrip("-")


def _parsed(text: str, named: str, expected: str) -> dict[str, Any]:
    """The content of a file or an argument, which is TOML or one JSON object. No message shows any of it."""
    try:
        found = tomllib.loads(text) if expected == "TOML" else json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        where = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else _place_of(error)
        raise ConfigError(f"{named}: expected {expected}, and it cannot be parsed ({where})") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{named}: expected {expected}, found a {type(found).__name__}")
    return found


def _place_of(error: BaseException) -> str:
    """Where a parser stopped. The rest of its text may quote the file."""
    _, at, place = str(error).rpartition("(at ")
    return place.rstrip(")") if at else "the place is not known"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("(at a key that occurs twice)")
    return found


def _read(path: str, named: str) -> str:
    """A file that only its owner may read or change. Raises `ConfigError`, which begins with `named`."""
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{named}: expected a file")
            if status.st_mode & OTHERS:
                raise ConfigError(
                    f"{named}: this file has mode {stat.S_IMODE(status.st_mode):04o}, so users other than its "
                    f"owner may read or change it. It may hold secrets: chmod 600 {path}"
                )
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{named}: this file cannot be read: {error.strerror or error}") from error
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{named}: expected at most {MOST_BYTES} bytes in this file")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{named}: expected text in UTF-8") from None


def _defaults(verb: click.Command, found: dict[str, Any], named: str) -> dict[str, Any]:
    known = {_key(param): param for param in verb.params if param.name not in {"config", "help"}}
    defaults: dict[str, Any] = {}
    for key, value in found.items():
        if key in known:
            _check(known[key], value, named, key)
            defaults[str(known[key].name)] = value
        else:
            raise ConfigError(
                f"{named}: {key!r} is not a key of this file. Expected the names of the options without "
                f"dashes: {', '.join(sorted(known))}"
            )
    return defaults


def _check(param: click.Parameter, value: object, named: str, key: str) -> None:
    expected, types = _expected(param)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise ConfigError(f"{named}: {key}: expected {expected}, found a {type(value).__name__}")


def _expected(param: click.Parameter) -> tuple[str, tuple[type, ...]]:
    """The kind of value that a file has for this option, in words and as types."""
    if isinstance(param.type, StoreOptions):
        return "a table of names and values", (dict,)
    if isinstance(param, click.Option) and param.is_flag:
        return "true or false", (bool,)
    if isinstance(param.type, click.types.IntParamType):
        return "a whole number", (int,)
    return ("a number", (int, float)) if isinstance(param.type, click.types.FloatParamType) else ("text", (str,))
