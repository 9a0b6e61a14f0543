"""The arguments of `WalSink`: checked, and turned into deliveries and sinks. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.log import paths
from wal_sink.metrics.prometheus import Metrics
from wal_sink.protocol.location import GonePlace
from wal_sink.settings import Delivery, GuaranteeName, Settings, check_chunks
from wal_sink.sinks.base import BatchSink, Sink, TwoPhaseSink, as_sink
from wal_sink.sinks.calls import problem_of_variants
from wal_sink.sinks.held import refuse_shared
from wal_sink.sinks.renaming import Renaming
from wal_sink.sinks.urls import sink_from_url
from wal_sink.support.arguments import check_options, check_runs, check_text
from wal_sink.support.secrets import mask_url
from wal_sink.support.texts import name_of

_JDBC = "jdbc:"


def check_arguments(
    *,
    settings: object,
    storage_options: object,
    checkpoint_options: object,
    moved_from: object,
    name: object,
    on_event: object = None,
    metrics: object = None,
) -> None:
    """Refuse values of a wrong kind. Raises `ConfigError`."""
    if not isinstance(settings, Settings):
        raise ConfigError(
            f"settings: expected a Settings, found a {type(settings).__name__}; write "
            f"settings=Settings({_as_arguments(settings)})"
        )
    check_options("storage_options", storage_options)
    check_options("checkpoint_options", checkpoint_options)
    if moved_from is not None:
        check_text("moved_from", moved_from, "s3://lake/wal/orders")
    _check_name("name", name)
    if on_event is not None and not callable(on_event):
        raise ConfigError(
            f"on_event: expected a function of one event, found a {type(on_event).__name__}; for example on_event=print"
        )
    check_runs(on_event, "on_event")
    if metrics is not None and not isinstance(metrics, Metrics):
        raise ConfigError(
            f"metrics: expected a Metrics, found a {type(metrics).__name__}; write metrics=Metrics(), and "
            "metrics.serve('127.0.0.1:9464') to serve them"
        )


def place_of(moved_from: str | None, gone: object) -> str | GonePlace | None:
    """The place from which the WAL was moved; None: it was not. Raises `ConfigError`."""
    if gone is None:
        return moved_from
    if moved_from is not None:
        raise ConfigError(
            "moved_from and moved_from_gone: pass one. moved_from checks the old location, moved_from_gone does not"
        )
    return GonePlace(check_text("moved_from_gone", gone, "s3://lake/wal/orders"))


def folder_of(name: str, given: object) -> str:
    """The URL of a folder, for the WAL or the checkpoint. Raises `ConfigError`."""
    text = check_text(name, given, f"s3://lake/{name}/orders")
    if text.lower().startswith(_JDBC):
        raise ConfigError(
            f"{name}={mask_url(text)!r}: expected a folder on a file system or an object store, such as "
            f"s3://lake/{name}/orders. A database can only be the target: WalSink('postgresql://…?table=orders', …)"
        )
    return text


def deliveries_of(to: object, guarantee: GuaranteeName | None, name: str) -> dict[str, Delivery]:
    """The delivery of each sink, by its name; empty for None. Raises `ConfigError`."""
    named = dict(to) if isinstance(to, Mapping) else {} if to is None else {name: to}
    if to is not None and not named:
        raise ConfigError(
            "WalSink got an empty mapping of sinks: name one, or pass None to stage only: WalSink(None, …)"
        )
    deliveries = {}
    for sink_name, target in named.items():
        _check_name("the name of a sink", sink_name)
        paths.check_sink_name(sink_name)
        if isinstance(target, Delivery) and guarantee is not None:
            raise ConfigError(f"sink {sink_name!r}: state the guarantee in its Delivery only")
        deliveries[sink_name] = target if isinstance(target, Delivery) else Delivery(target, guarantee=guarantee)
    return deliveries


def sinks_of(deliveries: Mapping[str, Delivery]) -> dict[str, Sink | BatchSink]:
    """The sinks of these deliveries, by name. Raises `ConfigError` if two are the same object."""
    sinks = {name: _sink(delivery) for name, delivery in deliveries.items()}
    refuse_shared(sinks)
    return sinks


def refuse_large_chunks(settings: Settings, sinks: Mapping[str, Sink | BatchSink]) -> None:
    """Refuse chunks larger than a sink takes: `ConfigError`. Call it before staging; staged chunks keep their size."""
    for name, sink in sinks.items():
        if isinstance(sink, Sink):
            check_chunks(settings, f"sink {name!r}, {name_of(sink)}", sink.max_chunk_rows, sink.max_chunk_bytes)


def refuse_unfit_columns(
    sinks: Mapping[str, Sink | BatchSink], deliveries: Mapping[str, Delivery], spark_schema: str
) -> None:
    """Refuse columns that a sink cannot get: `ConfigError`. Call it before staging; staged rows keep their types."""
    for name, sink in sinks.items():
        try:
            renamed = Renaming.of(deliveries[name].columns).spark_schema(spark_schema)
        except PermanentError as error:
            raise ConfigError(f"sink {name!r}: {error}") from None
        if isinstance(sink, Sink) and (problem := problem_of_variants(sink, renamed)):
            raise ConfigError(f"sink {name!r}, {name_of(sink)}: {problem}")


def refuse_what_only_the_stager_can_do(
    settings: Settings, sinks: Mapping[str, Sink | BatchSink], *, has_checkpoint_options: bool = False
) -> None:
    """Refuse settings that need staging and delivery in one process, where another process stages: `ConfigError`."""
    not_kept = [name for name, sink in sinks.items() if isinstance(sink, TwoPhaseSink) and not sink.keep_segments]
    if settings.single_writer:
        said = (
            "single_writer=True promises that one process writes to the WAL, but two write here. Leave out "
            "single_writer"
        )
    elif settings.max_pending_batches is not None:
        said = (
            "max_pending_batches cannot hold back the query, because the query runs in another process. Leave out "
            "max_pending_batches"
        )
    elif not_kept:
        said = (
            f"keep_segments=False of {not_kept} has no effect, because rows are prepared in this process only. Leave "
            "out keep_segments"
        )
    elif has_checkpoint_options:
        said = (
            "checkpoint_options stay in this process, and the server would read the checkpoint without them. Leave out "
            "checkpoint_options, and provide these values through the environment of server and client"
        )
    else:
        return
    raise ConfigError(f"over Spark Connect, the server stages and this process delivers: {said}")


def _sink(delivery: Delivery) -> Sink | BatchSink:
    return sink_from_url(delivery.to) if isinstance(delivery.to, str) else as_sink(delivery.to)


def _as_arguments(settings: object) -> str:
    """The entries of a dict as arguments. Only values that `Settings` may have are shown: others may be secret."""
    given = settings if isinstance(settings, dict) else {}
    numbers = {key: repr(value) if isinstance(value, int) else "…" for key, value in given.items()}
    return ", ".join(f"{key}={value}" for key, value in numbers.items())


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str):
        raise ConfigError(f"{what}={name!r}: expected text, such as 'orders'")
