"""`wal-sink drain`: deliver the batches of a WAL in a separate process, without Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

import click

from wal_sink.cli import options
from wal_sink.cli.log_format import say, without_raised_errors
from wal_sink.cli.opened import NoWal, checkpoint_url, no_wal, opened, read_state
from wal_sink.cli.output import batch_text, print_json
from wal_sink.cli.sources import config_option
from wal_sink.cli.tables import print_text
from wal_sink.cli.targets import target
from wal_sink.cli.termination import in_order, signal_of
from wal_sink.cli.working import Work, working
from wal_sink.errors import ConfigError, UndeliveredError, WalSinkError
from wal_sink.metrics.prometheus import Metrics
from wal_sink.operate.status import SinkStatus, Status
from wal_sink.reporting.counts import counted, pending_text
from wal_sink.reporting.texts import told
from wal_sink.runtime.bounded import within
from wal_sink.settings import Delivery, GuaranteeName, Settings
from wal_sink.stores.spec import StoreSpec
from wal_sink.telemetry import Event, Rejected
from wal_sink.walsink import WalSink

_DEFAULTS = Settings()
STATUS_S = 2.0
"""How long the end of the command waits for the state of the WAL, after a signal. A supervisor may kill it soon."""


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
@click.command(short_help="Deliver the batches of a WAL, without Spark.")
@click.argument("wal")
@click.option("--to", "to", required=True, metavar="URL|MODULE:OBJECT", help="A backend's URL, or an object to import.")
@click.option("--name", default="default", show_default=True, help="The sink's name in the WAL.")
@click.option("--checkpoint", metavar="URL", help="The query's checkpoint. Default: the one that the WAL records.")
@click.option("--moved-from", metavar="URL", help="The address from which the WAL was moved here; pass it one time.")
@click.option("--moved-from-gone", metavar="URL", help="The same, for an address that cannot be looked at: it is gone.")
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
    "--through", type=click.IntRange(min=0), metavar="BATCH", help="The last batch of a new sink name, then it retires."
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
@options.storage_options
@options.checkpoint_options
@options.as_json
@in_order()
def drain(*, wal: str, to: str, name: str, as_json: bool, **more: Any) -> None:
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
    spec = options.wal_spec(wal, more)
    store = opened(spec)
    before = read_state(store)
    if before.wal_id is None and not more["follow"]:
        raise NoWal(no_wal(before))
    to_there = target(to)
    _check_start(before, name, more["start_from"])
    given = {each: more[each] for each in ("guarantee", "start_from", "through")}
    began = {**given, "same_target": more["yes"], "where": "driver"}
    made = Delivery(to_there, **began, **options.policies(more))
    with _metrics(more["metrics"]) as metrics:
        refused = _Refused()
        drained = _Drained(spec, before, name, made, more, metrics, refused)
        stopped = drained.serve()
    after = drained.sink().status() if stopped is None else stopped.status
    if after is None:
        _report_unknown(drained.sink(), before.wal, name, refused.rows, as_json=as_json)
    else:
        _report(drained.sink(), before, after, name, refused.rows, stopped=stopped is not None, as_json=as_json)


class _Refused:
    """Counts the rows that the target refused and that were kept as dead letters."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Rejected):
            self.rows += event.rows


@dataclass(frozen=True, slots=True)
class _Stopped:
    """Ctrl-C or SIGTERM ended a drain with --follow, which is its normal end."""

    status: Status | None
    """None: the store did not answer."""


@dataclass(frozen=True, slots=True)
class _Drained:
    """The sink that the command serves."""

    spec: StoreSpec
    before: Status
    name: str
    delivery: Delivery
    options: dict[str, Any]
    metrics: Metrics | None
    refused: _Refused

    def sink(self) -> WalSink:
        """A new `WalSink`. It does nothing yet."""
        more = self.options
        return WalSink(
            {self.name: self.delivery},
            wal=self.spec.url,
            checkpoint=checkpoint_url(self.before.checkpoint, more),
            storage_options=self.spec.options,
            checkpoint_options=more["checkpoint_options"],
            settings=Settings(retention_batches=more["retention_batches"]),
            moved_from=more["moved_from"],
            moved_from_gone=more["moved_from_gone"],
            take_over=options.whom(take_over=more["take_over"]),
            metrics=self.metrics,
            on_event=self.refused,
        )

    def serve(self) -> _Stopped | None:
        """Serve the sink. None unless a signal ended it."""
        sink = self.sink()
        with (
            without_raised_errors(),
            working(f"delivering to sink {self.name!r}", look=lambda work: _look(sink, self.name, work)),
        ):
            return _deliver(sink, self.name, self.options)


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
        "still holds, --start-from next only batches completed from now on, a number begins with that batch. To "
        "continue a known sink, pass the name of that sink with --name, or rename the sink: wal-sink sinks rename WAL "
        f"OLD {name}. If the new sink replaces an old sink, retire the old sink (wal-sink sinks retire WAL OLD). "
        "Otherwise the WAL never deletes the batches that the old sink does not have"
    )


@contextlib.contextmanager
def _metrics(address: str | None) -> Iterator[Metrics | None]:
    """Metrics that are served while the block runs; None without an address."""
    if address is None:
        yield None
        return
    with Metrics() as metrics:
        say(f"metrics: http://{metrics.serve(address)}/metrics")
        yield metrics


def _deliver(sink: WalSink, name: str, more: dict[str, Any]) -> _Stopped | None:
    timeout_s = more["timeout"]
    try:
        with contextlib.ExitStack() as stack:
            stack.push(sink)  # entering the sink would wait for the whole backlog and ignore the timeout
            sink.drain(follow=more["follow"], timeout_s=timeout_s, liveness_file=more["liveness_file"])
    except UndeliveredError as error:
        raise UndeliveredError(_left(sink, name, timeout_s)) from error
    except KeyboardInterrupt as error:
        if not more["follow"]:
            raise type(error)(_pending(sink, name)[0]) from error
        pending, status = _pending(sink, name)
        say(f"ended by {signal_of(error)}: {pending}")
        return _Stopped(status)
    return None


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


def _report_unknown(sink: WalSink, wal: str, name: str, refused: int, *, as_json: bool) -> None:
    """The report of a drain that a signal ended while the store did not answer."""
    if as_json:
        unknown = dict.fromkeys(["batches", "delivered_through", "pending_batches"])
        known = {"wal": wal, "sink": name, "guarantee": sink.guarantee()[name]}
        print_json({**known, **unknown, "refused_rows": refused, "interrupted": True})
        return
    click.echo(f"sink {name!r}: ended, and the store did not tell how far the delivery came")
    _tell_refused(name, refused)


def _tell_refused(name: str, refused: int) -> None:
    if refused:
        print_text(
            f"REFUSED: the target refused {counted(refused, 'row')}, which lie in dead letters and not in the target. "
            f"See why: wal-sink letters list WAL --name {name}"
        )


def _report(
    sink: WalSink, before: Status, after: Status, name: str, refused: int, *, stopped: bool, as_json: bool
) -> None:
    now, then = _of(after, name), _of(before, name)
    before_it = max(then.delivered_through if then else -1, now.first_batch - 1 if now else -1)
    batches = max(0, now.delivered_through - before_it) if now else 0
    if as_json:
        print_json(
            {
                "wal": after.wal,
                "sink": name,
                "guarantee": sink.guarantee()[name],
                "batches": batches,
                "delivered_through": now.delivered_through if now else -1,
                "pending_batches": now.pending_batches if now else 0,
                "refused_rows": refused,
                "interrupted": stopped,
            }
        )
        return
    has_any = now is not None and now.delivered_through >= 0
    through = f"through batch {now.delivered_through}" if now and has_any else "none so far"
    pending = f"; {now.pending_batches} pending" if now and now.pending_batches else ""
    click.echo(f"sink {name!r}: {counted(batches, 'batch')} delivered, {through}{pending}")
    print_text(f"guarantee: {sink.guarantee()[name]}")
    _tell_refused(name, refused)


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
