"""Options that several verbs share, and their meaning for the store of a WAL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from wal_sink.cli.sources import PREFIX, StoreOptions
from wal_sink.stores.spec import StoreSpec
from wal_sink.wal.holders import TakeOver

F = TypeVar("F", bound=Callable[..., Any])

STORAGE_VARIABLE = f"{PREFIX}STORAGE_OPTIONS"

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, to stdout.")
storage_options = click.option(
    "--storage-options",
    type=StoreOptions(),
    envvar=STORAGE_VARIABLE,
    show_envvar=True,
    help="Options of fsspec for the WAL's store: one JSON object, or a file of mode 0600 that holds it.",
)
checkpoint_options = click.option(
    "--checkpoint-options",
    type=StoreOptions(),
    envvar=f"{PREFIX}CHECKPOINT_OPTIONS",
    show_envvar=True,
    help="The same for the checkpoint's store. Default: those of the WAL.",
)
take_over = click.option(
    "--take-over",
    is_flag=True,
    help="Continue although it is not known whether the process that serves the sink ended. Make sure that this "
    "process ended.",
)


def whom(*, take_over: bool) -> TakeOver:
    """Which processes may be fenced. A process that runs on this machine must be stopped first, in any case."""
    return TakeOver.UNLESS_RUNNING if take_over else TakeOver.IF_GONE


def delivery_policies(*names: str) -> Callable[[F], F]:
    """Add these options of a delivery. `policies` turns their values into the arguments of a `Delivery`."""

    def add(verb: F) -> F:
        for name in reversed(names):
            verb = _POLICIES[name](verb)
        return verb

    return add


def policies(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, by name; for the others the defaults of `Delivery` hold."""
    return {name: given[name] for name in _POLICIES if given.get(name) is not None}


_SECONDS = click.FloatRange(min=0, min_open=True)
_POLICIES: Mapping[str, Callable[[Any], Any]] = {
    "on_rejected": click.option(
        "--on-rejected", type=click.Choice(["halt", "dead_letter"]), help="If the target rejects rows."
    ),
    "on_gone": click.option(
        "--on-gone", type=click.Choice(["halt", "prepare_again"]), help="If a two-phase target lost a transaction."
    ),
    "order": click.option("--order", type=click.Choice(["batch", "total"]), help="total: one segment after the other."),
    "rows_per_s": click.option("--rows-per-s", type=_SECONDS, metavar="ROWS", help="Limit of rows per second."),
    "max_attempts": click.option(
        "--max-attempts", type=click.IntRange(min=1), help="Attempts at a batch in a row without progress."
    ),
    "budget_s": click.option(
        "--budget", "budget_s", type=_SECONDS, metavar="SECONDS", help="Time for a batch without progress."
    ),
    "attempt_timeout_s": click.option(
        "--attempt-timeout", "attempt_timeout_s", type=_SECONDS, metavar="SECONDS", help="Time limit of one call."
    ),
}
POLICIES = tuple(_POLICIES)


def wal_spec(wal: str, more: Mapping[str, Any]) -> StoreSpec:
    """The address of the WAL with the options of its store."""
    return StoreSpec(wal, more["storage_options"] or {})
