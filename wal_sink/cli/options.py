"""Options that several verbs share, and their meaning for the store of a WAL."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from wal_sink.errors import ConfigError
from wal_sink.stores.spec import StoreSpec
from wal_sink.wal.holders import TakeOver

F = TypeVar("F", bound=Callable[..., Any])

STORAGE_VARIABLE = "WAL_SINK_STORAGE_OPTIONS"
CHECKPOINT_VARIABLE = "WAL_SINK_CHECKPOINT_OPTIONS"

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, to stdout.")


def storage_options(verb: F) -> F:
    """Add the options for the WAL's store. The verb gets them as `option` and `storage_options_json`."""
    return _options_of_a_store(verb, "--option", "--storage-options-json", STORAGE_VARIABLE, "the WAL")


def checkpoint_options(verb: F) -> F:
    """Add the same for the checkpoint, as `checkpoint_option` and `checkpoint_options_json`."""
    whose = "the checkpoint (default: those of the WAL)"
    return _options_of_a_store(verb, "--checkpoint-option", "--checkpoint-options-json", CHECKPOINT_VARIABLE, whose)


take_over = click.option(
    "--take-over",
    is_flag=True,
    help="Continue although it is not known whether the process that serves the sink ended. Make sure that this "
    "process ended.",
)


def whom(*, take_over: bool) -> TakeOver:
    """Which processes may be fenced. A process that runs on this machine must be stopped first, in any case."""
    return TakeOver.UNLESS_RUNNING if take_over else TakeOver.IF_GONE


def _options_of_a_store(verb: F, pairs: str, text: str, variable: str, whose: str) -> F:
    verb = click.option(
        pairs,
        multiple=True,
        metavar="KEY=VALUE",
        help=f"A storage option of fsspec for {whose}; may be repeated. a.b=v nests; JSON values are parsed.",
    )(verb)
    return click.option(
        text,
        envvar=variable,
        show_envvar=True,
        metavar="JSON",
        help=f"Storage options for {whose} as one JSON object; keep secrets in the environment.",
    )(verb)


def delivery_policies(verb: F) -> F:
    """Add the options of a delivery. `policies` turns their values into the arguments of a `Delivery`."""
    for policy in reversed(_POLICIES):
        verb = policy(verb)
    return verb


def policies(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, by name; for the others the defaults of `Delivery` hold."""
    return {name: given[name] for name in _POLICY_NAMES if given[name] is not None}


_POLICY_NAMES = ("on_rejected", "on_gone", "order", "rows_per_s", "max_attempts", "budget_s", "attempt_timeout_s")
_SECONDS = click.FloatRange(min=0, min_open=True)
_POLICIES: tuple[Callable[[Any], Any], ...] = (
    click.option("--on-rejected", type=click.Choice(["halt", "dead_letter"]), help="If the target rejects rows."),
    click.option(
        "--on-gone", type=click.Choice(["halt", "prepare_again"]), help="If a two-phase target lost a transaction."
    ),
    click.option("--order", type=click.Choice(["batch", "total"]), help="total: one segment after the other."),
    click.option("--rows-per-s", type=_SECONDS, metavar="ROWS", help="Limit of rows per second."),
    click.option("--max-attempts", type=click.IntRange(min=1), help="Attempts at a batch in a row without progress."),
    click.option("--budget", "budget_s", type=_SECONDS, metavar="SECONDS", help="Time for a batch without progress."),
    click.option(
        "--attempt-timeout", "attempt_timeout_s", type=_SECONDS, metavar="SECONDS", help="Time limit of one call."
    ),
)


def merged_options(pairs: tuple[str, ...], text: str | None, named: str) -> dict[str, object]:
    """Merge the options of one store; pairs override the JSON. A `ConfigError` shows no value: it may be secret."""
    options = _parsed(text, named) if text else {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:  # the text may be a value, and so a secret
            raise ConfigError(f"{named}: {len(pair)} characters without a '='; expected KEY=VALUE")
        if not all(key.split(".")):
            raise ConfigError(f"{named}: {key!r} is not a valid option name; expected KEY=VALUE")
        _put(options, key.split("."), _value(value), named)
    return options


def wal_spec(wal: str, more: Mapping[str, Any]) -> StoreSpec:
    """The address of the WAL with the options of its store."""
    return StoreSpec(
        wal, merged_options(more["option"], more["storage_options_json"], f"--option or {STORAGE_VARIABLE}")
    )


def of_checkpoint(more: Mapping[str, Any]) -> dict[str, object] | None:
    """The options of the checkpoint's store; None: those of the WAL."""
    pairs, text = more["checkpoint_option"], more["checkpoint_options_json"]
    return merged_options(pairs, text, "--checkpoint-option") if pairs or text else None


def _parsed(text: str, named: str) -> dict[str, object]:
    try:
        options = json.loads(text)
    except ValueError:
        raise ConfigError(f'{named}: expected one JSON object such as {{"anon": true}}, found no JSON') from None
    if not isinstance(options, dict):
        raise ConfigError(f"{named}: expected one JSON object, found a {type(options).__name__}")
    return options


def _value(text: str) -> object:
    """The parsed value if `text` is JSON (true, 3, {"a": 1}), else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _put(options: dict[str, object], path: list[str], value: object, named: str) -> None:
    level = options
    for name in path[:-1]:
        below = level.setdefault(name, {})
        if not isinstance(below, dict):
            raise ConfigError(f"{named}: {name!r} already has a value, so it cannot hold nested options")
        level = below
    level[path[-1]] = value
