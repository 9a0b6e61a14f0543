"""How a function that returns an `Answer` becomes a verb, and the options that verbs share."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Literal, TypeVar

import click

from wal_sink.cli.opened import Wal
from wal_sink.cli.printer import Answer, print_answer, print_lines
from wal_sink.cli.sources import STORAGE_VARIABLE, Columns, StoreOptions
from wal_sink.cli.working import FOUND_SOMETHING, in_order, say
from wal_sink.errors import ConfigError
from wal_sink.log.holders import TakeOver
from wal_sink.settings import Retry

F = TypeVar("F", bound=Callable[..., Any])
Verb = Callable[..., Answer]

_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|h|d|)")
_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def verb(
    name: str, summary: str, *, wal: Literal["needed", "optional", "none"] = "needed", delivers: bool = False
) -> Callable[[Verb], click.Command]:
    """Make a command of a function. It gets the argument WAL as a `Wal`, `--storage-options` with it, and `--json`.

    `delivers`: SIGTERM and Ctrl-C end it in order.
    """

    def make(function: Verb) -> click.Command:
        @functools.wraps(function)
        def run(*, as_json: bool, **given: Any) -> None:
            if wal != "none":
                url, storage_options = given.pop("wal"), given.pop("storage_options")
                given["wal"] = None if url is None else Wal(url, storage_options)
            with in_order() if delivers else contextlib.nullcontext():
                answer = function(**given)
            print_answer(answer, as_json=as_json)

        command = click.command(name, short_help=summary)(run)
        if wal != "none":
            command.params = [click.Argument(["wal"], required=wal == "needed"), *command.params, _storage_options()]
        command.params.append(click.Option(["--json", "as_json"], is_flag=True, help=_AS_JSON))
        return command

    return make


_AS_JSON = "Print JSON, and nothing else, to stdout."


def _storage_options() -> click.Option:
    return click.Option(
        ["--storage-options"],
        type=StoreOptions(),
        envvar=STORAGE_VARIABLE,
        show_envvar=True,
        help="Options of fsspec for the WAL's store: one JSON object, or a file of mode 0600 that holds it.",
    )


def is_json() -> bool:
    """Whether the command that runs prints JSON."""
    return _given("as_json")


def _given(flag: str) -> bool:
    return bool(click.get_current_context().params[flag])


def duration(text: str) -> float:
    """The seconds in a text such as `10s`. Raises click's `BadParameter` for any other text and for 0."""
    match = _DURATION.fullmatch(str(text).strip().lower())
    if match is None or float(match[1]) == 0:
        raise click.BadParameter(f"{text!r}: expected a duration above 0 such as 10s, 500ms or 2m")
    return float(match[1]) * _SECONDS[match[2]]


def to(help_: str = "A backend's URL, or an object to import.", *, required: bool = True) -> Callable[[F], F]:
    """`--to`, the target. `opened.target` opens it."""
    return click.option("--to", "to", required=required, metavar="URL|MODULE:OBJECT", help=help_)


name = click.option("--name", default="default", show_default=True, help="The sink's name in the WAL.")
checkpoint = click.option(
    "--checkpoint", metavar="URL", help="The query's checkpoint. Default: the one that the WAL records."
)
BATCH = click.IntRange(min=0)
batch = click.argument("batch", type=BATCH)


def _whom(_context: click.Context, _option: click.Parameter, is_given: bool) -> TakeOver:  # noqa: FBT001 - of click
    return TakeOver.UNLESS_RUNNING if is_given else TakeOver.IF_GONE


take_over = click.option(
    "--take-over",
    is_flag=True,
    callback=_whom,
    help="Continue although it is not known whether the process that serves the sink ended. Make sure that this "
    "process ended.",
)
"""The verb gets which processes may be fenced. One that runs on this machine must be stopped first, in any case."""


def delivery_policies(*names: str) -> Callable[[F], F]:
    """Add these options of a delivery. `policies` turns their values into the arguments of a `Delivery`."""

    def add(function: F) -> F:
        for name in reversed(names):
            function = _POLICIES[name](function)
        return function

    return add


def policies(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, as arguments of a `Delivery`; for the others its defaults hold."""
    names = ("on_rejected", "rows_per_s", "roll_s", "roll_bytes", "columns")
    found = {name: given[name] for name in names if given.get(name) is not None}
    if given.get("order") == "total":
        found["max_concurrency"] = 1
    return {**found, "retry": Retry(**{name: given[name] for name in _RETRY if given.get(name) is not None})}


_AMOUNT = click.FloatRange(min=0, min_open=True)
_POLICIES: Mapping[str, Callable[[Any], Any]] = {
    "on_rejected": click.option(
        "--on-rejected", type=click.Choice(["halt", "dead_letter"]), help="If the target rejects rows."
    ),
    "on_gone": click.option(
        "--on-gone", type=click.Choice(["halt", "prepare_again"]), help="If a two-phase target lost a transaction."
    ),
    "order": click.option("--order", type=click.Choice(["batch", "total"]), help="total: one segment after the other."),
    "rows_per_s": click.option("--rows-per-s", type=_AMOUNT, metavar="ROWS", help="Limit of rows per second."),
    "roll_s": click.option(
        "--roll-s", type=_AMOUNT, metavar="SECONDS", help="How long batches wait for later ones, to appear as one."
    ),
    "roll_bytes": click.option("--roll-bytes", type=click.IntRange(min=1), help="Bytes that end such a wait."),
    "attempts": click.option(
        "--max-attempts", "attempts", type=click.IntRange(min=1), help="Attempts at a batch in a row without progress."
    ),
    "budget_s": click.option(
        "--budget", "budget_s", type=_AMOUNT, metavar="SECONDS", help="Time for a batch without progress."
    ),
    "columns": click.option(
        "--columns",
        type=Columns(),
        help='Other names for columns; null leaves one out: {"order_id": "id", "note": null}',
    ),
    "attempt_timeout_s": click.option(
        "--attempt-timeout", "attempt_timeout_s", type=_AMOUNT, metavar="SECONDS", help="Time limit of one call."
    ),
}
POLICIES = tuple(_POLICIES)
_RETRY = tuple(field.name for field in fields(Retry))


def _has_a_reason(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("is empty: expected the reason of the change, in words")
    return value


_WHY = "The reason. It is kept in the WAL; see wal-sink sinks list."
why = click.option("--why", required=True, metavar="TEXT", callback=_has_a_reason, help=_WHY)
optional_why = click.option("--why", default="", metavar="TEXT", help=_WHY)
dry_run = click.option("--dry-run", is_flag=True, help="Only show what the command would do. Changes nothing.")


def asks(function: F) -> F:
    """Add `--dry-run` and `--yes`, which `carry_out` obeys."""
    return dry_run(click.option("--yes", is_flag=True, help="Do not ask before the command acts.")(function))


def carry_out(document: object, text: Iterable[str], question: str, act: Callable[[], Answer]) -> Answer:
    """Show a plan to people, ask, and act. With `--dry-run`, or without a question, nothing is changed.

    `document`: what `--json` prints if nothing is changed. `question`: empty if there is nothing to do.
    """
    if not is_json():
        print_lines(text)
    if _given("dry_run") or not question:
        return Answer(document)
    confirm(question, yes=_given("yes"))
    return act()


def confirm(question: str, *, yes: bool) -> None:
    """Ask before a repair acts, unless `yes`. Ends the command with exit code 1 if the answer is no.

    Raises `ConfigError` where nobody can answer.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{question} This command asks before it acts, and there is no terminal. Add --yes to go on without the "
            "question, or --dry-run to see only what it would do. Nothing was changed"
        )
    if not click.confirm(question, err=True):
        say("Nothing was changed")
        sys.exit(FOUND_SOMETHING)
