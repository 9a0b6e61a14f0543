"""`wal-sink drain`: deliver the batches of a WAL in a separate process, without Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import click

from wal_sink.cli import options
from wal_sink.cli.opened import NoWal, Wal, checkpoint_url, no_wal, target
from wal_sink.cli.printer import Answer, batch_text
from wal_sink.cli.sources import StoreOptions, config_option
from wal_sink.cli.working import Work, say, signal_of, without_raised_errors, working
from wal_sink.errors import ConfigError, UndeliveredError, WalSinkError
from wal_sink.metrics.prometheus import Metrics
from wal_sink.operate.status import SinkStatus, Status
from wal_sink.settings import Delivery, GuaranteeName, Settings
from wal_sink.sinks.base import TwoPhaseSink
from wal_sink.support.arguments import name_of
from wal_sink.support.calls import within
from wal_sink.support.texts import counted, pending_text, told
from wal_sink.telemetry import Event, Rejected
from wal_sink.walsink import WalSink

_DEFAULTS = Settings()
STATUS_S = 2.0
"""How long the end of the command waits for the state of the WAL, after a signal. A supervisor may kill it soon."""


@dataclass(frozen=True, slots=True)
class Drained:
    """The result of a drain. None: a signal ended it, and the store did not tell."""

    wal: str
    sink: str
    guarantee: str
    batches: int | None
    delivered_through: int | None
    pending_batches: int | None
    refused_rows: int
    """Rows that the target refused and that were kept as dead letters."""
    interrupted: bool


class _Start(click.ParamType[str | int]):
    """`earliest`, `next` or a batch."""

    name = "batch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        if value in {"earliest", "next"} or isinstance(value, int):
            return value  # type: ignore[no-any-return]
        if not (value.isascii() and value.isdigit()):
            self.fail(f"{value!r}: expected earliest, next or the number of a batch", param, ctx)
        return int(value)


@config_option
@options.verb("drain", "Deliver the batches of a WAL, without Spark.", delivers=True)
@options.to()
@options.name
@options.checkpoint
@click.option("--moved-from", metavar="URL", help="The address from which the WAL was moved here; pass it one time.")
@click.option("--moved-from-gone", metavar="URL", help="The same, if that address no longer exists.")
@click.option("--follow", is_flag=True, help="Go on as batches complete, until stopped (Ctrl-C, SIGTERM) or --timeout.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop with an error after this time; with --follow: start no new batch after this time.",
)
@click.option(
    "--liveness-file",
    metavar="PATH",
    help="A local file that is touched while the delivery makes progress. A supervisor looks at its age.",
)
@click.option("--guarantee", type=click.Choice(get_args(GuaranteeName)), help="Default: the strongest possible.")
@click.option(
    "--start-from",
    type=_Start(),
    metavar="earliest|next|BATCH",
    help="The first batch of a new sink name: the oldest, the next completed one, or a number.",
)
@click.option(
    "--through", type=options.BATCH, metavar="BATCH", help="The last batch of a new sink name; then the sink retires."
)
@click.option("--yes", is_flag=True, help="Begin with a number although another sink of the WAL has the same target; "
              "go on although the table or topic of a known sink has a new name.")  # fmt: skip
@options.take_over
@options.delivery_policies(*options.POLICIES)
@click.option(
    "--retention-batches",
    type=int,
    default=_DEFAULTS.retention_batches,
    show_default=True,
    help="Delivered batches that the WAL keeps; the same as in Settings of the query.",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Serve metrics for Prometheus at http://HOST:PORT/metrics, such as 127.0.0.1:9464.",
)
@click.option(
    "--checkpoint-options",
    type=StoreOptions(),
    show_envvar=True,
    help="Options of the checkpoint's store. Default: those of the WAL.",
)
def drain(*, wal: Wal, to: str, name: str, **more: Any) -> Answer:
    """Deliver all complete batches to a target. Needs no Spark.

    Batches that any process delivered before under the same --name are not delivered again. If another process still
    serves the sink, the command fails and leaves that process running. The target is the URL of a backend, or a
    function or Sink in a module. The module is looked for in the current directory too. SIGTERM has the effect of
    Ctrl-C: chunks in flight are finished, and one line says how many batches are pending. With --follow the exit code
    is then 0, otherwise 143 (Ctrl-C: 130).

    Everybody on this machine can read the arguments of a process. So each option also comes from the environment
    (--to from WAL_SINK_TO, WAL from WAL_SINK_WAL), or from the file of --config.

    \b
        wal-sink drain wal/orders --to 'sqlite:///orders.db?table=orders' --start-from earliest
        wal-sink drain s3://lake/wal/orders --to mypackage.targets:post --name api --follow
    """
    before = wal.status()
    if before.wal_id is None and not more["follow"]:
        raise NoWal(no_wal(before))
    to_there = target(to)
    if isinstance(to_there, TwoPhaseSink) and more["on_gone"] is not None:
        try:
            to_there.on_gone = more["on_gone"]
        except AttributeError:  # frozen, or a property
            raise ConfigError(
                f"--on-gone cannot be set for {name_of(to_there)}. Leave out --on-gone, and set on_gone where the "
                "sink is made"
            ) from None
    _check_start(before, name, more["start_from"])
    refused: list[int] = []

    def note(event: Event) -> None:
        if isinstance(event, Rejected):
            refused.append(event.rows)

    with contextlib.nullcontext() if more["metrics"] is None else Metrics() as metrics:
        if metrics is not None:
            say(f"metrics: http://{metrics.serve(str(more['metrics']))}/metrics")
        sink = WalSink(
            {name: _delivery(to_there, more)},
            wal=wal.spec.url,
            checkpoint=checkpoint_url(before.checkpoint, more["checkpoint"]),
            storage_options=wal.spec.options,
            checkpoint_options=more["checkpoint_options"],
            settings=Settings(retention_batches=more["retention_batches"]),
            moved_from=more["moved_from"],
            moved_from_gone=more["moved_from_gone"],
            take_over=more["take_over"],
            metrics=metrics,
            on_event=note,
        )
        what = f"delivering to sink {name!r}"
        with without_raised_errors(), working(what, look=lambda work: _look(sink, name, work)):
            after, is_stopped = _deliver(sink, name, more)
    done = _drained(sink, before, after, name, sum(refused), is_stopped=is_stopped)
    return Answer(done, _lines(done))


def _delivery(to: Any, more: Mapping[str, Any]) -> Delivery:
    given = {each: more[each] for each in ("guarantee", "start_from", "through")}
    return Delivery(to, **given, same_target=more["yes"], where="driver", **options.policies(more))


def _check_start(before: Status, name: str, start_from: str | int | None) -> None:
    """Refuse a new name without --start-from if the WAL has batches. The library's error names no CLI option."""
    if start_from is not None or before.newest_batch < 0 or _of(before, name) is not None:
        return
    if any(sink.folder == name for sink in before.sinks):
        return  # it was renamed: the error of the library names the new name
    known = ", ".join(repr(sink.name) for sink in before.sinks) or "none"
    raise ConfigError(
        f"sink {name!r} is new to {before.wal}, but this WAL already holds batches up to {before.newest_batch} (known "
        f"sinks: {known}). Choose the first batch of the sink: --start-from earliest delivers all batches that the WAL "
        "still holds; --start-from next delivers only batches that Spark completes from now on; --start-from NUMBER "
        "begins with this batch. To continue a known sink, pass the name of that sink with --name, or rename the sink: "
        f"wal-sink sinks rename WAL OLD {name}. If the new sink replaces an old sink, retire the old sink (wal-sink "
        "sinks retire WAL OLD). Otherwise the WAL never deletes the batches that the old sink does not have"
    )


def _deliver(sink: WalSink, name: str, more: Mapping[str, Any]) -> tuple[Status | None, bool]:
    """Serve the sink. The state of the WAL afterwards, None if the store did not answer, and whether a signal ended it,
    which is the normal end with --follow.
    """
    timeout_s = more["timeout"]
    try:
        with contextlib.ExitStack() as stack:
            stack.push(sink)  # entering the sink would wait for the whole backlog and ignore the timeout
            sink.drain(follow=more["follow"], timeout_s=timeout_s, liveness_file=more["liveness_file"])
    except UndeliveredError as error:
        raise UndeliveredError(_left(sink, name, timeout_s)) from error
    except KeyboardInterrupt as error:
        pending, status = _pending(sink, name)
        if not more["follow"]:
            raise type(error)(pending) from error
        say(f"ended by {signal_of(error)}: {pending}")
        return status, True
    return sink.status(), False


def _pending(sink: WalSink, name: str) -> tuple[str, Status | None]:
    """How many batches wait for the next start: one line at the end of a command that a signal ended. And the state of
    the WAL, if the store tells it soon.
    """
    try:
        status = within(STATUS_S, "wal-sink-status", sink.status)
    except WalSinkError as error:
        why = told(error)
    except TimeoutError:
        why = f"the store did not answer within {STATUS_S:g} s"
    else:
        own = _of(status, name)
        return pending_text(own.pending_batches if own else 0), status
    return f"it is not known how many batches are pending ({why}). They stay in the WAL", None


def _left(sink: WalSink, name: str, timeout_s: float | None) -> str:
    own = _of(sink.status(), name)
    through, pending = (own.delivered_through, own.pending_batches) if own else (None, 0)
    over = "not all complete batches were delivered" if timeout_s is None else f"the time of {timeout_s:g} s is over"
    return (
        f"sink {name!r}: {over}; delivered through batch {batch_text(through)}, {pending} pending. Pending batches "
        "stay in the WAL. Repeat the command, or allow more time"
    )


def _drained(
    sink: WalSink, before: Status, after: Status | None, name: str, refused: int, *, is_stopped: bool
) -> Drained:
    guarantee = sink.guarantee()[name]
    if after is None:
        return Drained(before.wal, name, guarantee, None, None, None, refused, interrupted=True)
    now, then = _of(after, name), _of(before, name)
    before_it = max(then.delivered_through if then else -1, now.first_batch - 1 if now else -1)
    through, pending = (now.delivered_through, now.pending_batches) if now else (-1, 0)
    batches = max(0, through - before_it) if now else 0
    return Drained(after.wal, name, guarantee, batches, through, pending, refused, interrupted=is_stopped)


def _lines(done: Drained) -> Iterator[str]:
    if done.batches is None or done.delivered_through is None:
        yield f"sink {done.sink!r}: ended, but the store did not tell how far delivery came"
    else:
        through = f"through batch {done.delivered_through}" if done.delivered_through >= 0 else "none so far"
        pending = f"; {done.pending_batches} pending" if done.pending_batches else ""
        yield f"sink {done.sink!r}: {counted(done.batches, 'batch')} delivered, {through}{pending}"
        yield f"guarantee: {done.guarantee}"
    if done.refused_rows:
        yield (
            f"REFUSED: the target refused {counted(done.refused_rows, 'row')}, which lie in dead letters and not in "
            f"the target. See why: wal-sink letters list WAL --name {done.sink}"
        )


def _of(status: Status, name: str) -> SinkStatus | None:
    return next((sink for sink in status.sinks if sink.name == name), None)


def _look(sink: WalSink, name: str, work: Work) -> None:
    work.is_idle = False
    with contextlib.suppress(WalSinkError):  # the delivery itself raises it, if it matters
        status = sink.status()
        own = _of(status, name)
        through = batch_text(own.delivered_through if own else None)
        work.is_idle = own is not None and own.delivered_through == status.newest_batch
        work.how_far = f"through batch {through} of {batch_text(status.newest_batch)}"
        if work.is_idle:
            work.how_far += ", no batch is pending"
