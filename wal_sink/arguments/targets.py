"""Checks of targets. If a target is wrong, the error spells out the intended call, before anything is started."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from weakref import WeakSet

from wal_sink.arguments.values import check_bool, check_count, check_method, check_runs, name_of, takes
from wal_sink.errors import ConfigError

_checked: WeakSet[type] = WeakSet()
"""Classes of sinks whose methods were already checked."""
_ROWS_COME_FROM = {"DataFrame", "DataStreamWriter", "DataFrameWriter", "DataFrameWriterV2", "StreamingQuery"}


def check_sink(sink: object, kinds: Iterable[type]) -> None:
    """Refuse a sink with a method that wal-sink cannot call. Raises `ConfigError`.

    `kinds`: the base classes of the sink. Their methods define the calls. Each class is checked once.
    """
    if type(sink) in _checked:
        return
    for kind in kinds:
        for name, function in vars(kind).items():
            if inspect.isfunction(function) and not name.startswith("_"):
                check_method(sink, name, *list(inspect.signature(function).parameters)[1:])
    _checked.add(type(sink))


def check_claims(to: object) -> None:
    """Refuse a sink or a function with a meaningless claim. Raises `ConfigError`.

    Python takes a method `idempotent`, or the text "no", for true, and exactly once would be promised wrongly. A
    function or a `BatchSink` without claims lacks the attribute; every reader of the claim takes that for False.
    """
    name = name_of(to)
    for claim in ("idempotent", "replaces_rows", "driver_only"):
        if hasattr(to, claim):
            check_bool(f"{name}.{claim}", getattr(to, claim))
    for limit in ("max_chunk_rows", "max_chunk_bytes", "max_concurrency"):
        if (most := getattr(to, limit, None)) is not None:
            check_count(f"{name}.{limit}", most)


def check_chunk_function(function: Callable[..., object]) -> None:
    """Refuse a function that cannot be called with one `Chunk`. Raises `ConfigError`."""
    name = name_of(function)
    if isinstance(function, type):
        raise ConfigError(f"{name} is a class: pass an instance, {name}(…), or a function of one Chunk")
    check_runs(function, name)
    if takes(function, 1):
        return
    if takes(function, 2):
        raise ConfigError(
            f"{name} has two arguments, like a function for foreachBatch, but WalSink expects a function of one Chunk. "
            f"Write wrap.foreach_batch({name}): this calls the function with a DataFrame and the batch id (from "
            "wal_sink import wrap)"
        )
    raise ConfigError(f"{name} cannot be called with one argument: expected a function of one Chunk, def {name}(chunk)")


def check_batch_function(function: Callable[..., object]) -> None:
    """Refuse a function that cannot be called with a DataFrame and a batch id. Raises `ConfigError`."""
    name = name_of(function)
    check_runs(function, f"foreach_batch({name})")
    if takes(function, 2):
        return
    chunk = f". If the argument is a Chunk, pass the function to WalSink directly: WalSink({name}, …)"
    raise ConfigError(
        f"foreach_batch({name}): expected a function of a DataFrame and a batch id, def {name}(df, batch_id)"
        f"{chunk if takes(function, 1) else ''}"
    )


def check_row_writer(writer: object) -> None:
    """Refuse a `ForeachWriter`, or a function of one `Row`, that PySpark cannot call. Raises `ConfigError`."""
    if not callable(writer):
        for method, arguments in (("open", ("partition_id", "epoch_id")), ("process", ("row",)), ("close", ("error",))):
            if hasattr(writer, method):
                check_method(writer, method, *arguments)
        return
    name = name_of(writer)
    check_runs(writer, f"foreach_writer({name})")
    if not takes(writer, 1):
        raise ConfigError(f"foreach_writer({name}): expected a function of one Row, def {name}(row)")


def refused_target(to: object) -> ConfigError:
    """The error for a target that is neither a sink nor a function."""
    kind = type(to).__name__
    return ConfigError(
        f"rows cannot be delivered to {kind}: expected a function of one Chunk, a Sink, a wrapped writer "
        f"(wal_sink.wrap) or the URL of a backend{_meant(to, kind)}"
    )


def _meant(to: object, kind: str) -> str:
    by_name = {
        **dict.fromkeys(
            _ROWS_COME_FROM, "This is a source of rows: WalSink(to, …).run(df.writeStream); `to` receives the rows"
        ),
        "Delivery": "Pass it directly, not within another one: WalSink(Delivery(to, …), …)",
        "WalSink": "A WalSink is not a target; several sinks share one: WalSink({name: to, name: to}, …)",
    }
    if kind in by_name:
        return f". {by_name[kind]}"
    if isinstance(to, list | tuple | set | Mapping):
        return ". Several sinks are a mapping from names to them: WalSink({name: to, name: to}, …)"
    if hasattr(to, "__fspath__"):
        return ". A file or folder is named by a URL as text, such as sqlite:///orders.db?table=orders or files:///out"
    return _meant_by_methods(to, kind)


def _meant_by_methods(to: object, kind: str) -> str:
    methods = {name for name in ("process", "write", "commit") if callable(getattr(to, name, None))}
    if "process" in methods:
        return f". It looks like a ForeachWriter: wrap.foreach_writer({kind}(…))"
    if {"write", "commit"} <= methods:
        return f". It looks like the writer of a data source: wrap.data_source_writer({kind}(…))"
    if "write" in methods:
        return f". It has a method write: derive its class from wal_sink.Sink, class {kind}(Sink)"
    return ""
