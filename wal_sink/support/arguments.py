"""Checks of users' arguments: texts, numbers, functions, sinks. Nothing is started or opened here.

A value of a wrong kind raises `ConfigError`. The message names the argument, the found value and the expected one. A
wrong name or number of arguments is Python's own `TypeError`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import TypeGuard, TypeVar
from weakref import WeakSet

from wal_sink.errors import ConfigError, PermanentError

T = TypeVar("T")
LONGEST_S = 1_000_000_000
"""Maximum number of seconds, some 31 years. Python's locks and queues cannot wait much longer, or for ever."""
MOST = 2**63 - 1
"""Maximum count: Arrow and Parquet count rows and bytes in 64 bits."""
_checked: WeakSet[type] = WeakSet()
"""Classes of sinks whose methods were already checked."""
_ROWS_COME_FROM = {"DataFrame", "DataStreamWriter", "DataFrameWriter", "DataFrameWriterV2", "StreamingQuery"}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`"; did you mean NAME?"` for a name that resembles a known one, otherwise an empty text."""
    shown = {each.lower(): each for each in known}
    text = name.lower()
    close = get_close_matches(text, shown) or [each for each in shown if len(each) > 3 and text.startswith(each)]
    return f"; did you mean {shown[close[0]]}?" if close else ""


def check_text(name: str, value: object, example: str = "s3://lake/orders") -> str:
    """A URL or a path as text. Raises `ConfigError` if it is neither, or empty."""
    if not isinstance(value, str | os.PathLike):
        shown = repr(value) if value is None or isinstance(value, int | float) else f"a {type(value).__name__}"
        raise ConfigError(f"{name}={shown}: expected text, such as {name}={example!r}")
    text = str(value)
    if not text.strip():
        raise ConfigError(f"{name} is empty: expected text, such as {name}={example!r}")
    return text


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether the value is a number. True and False are not, although Python counts with them."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_seconds(name: str, value: object, *, above_0: bool = False) -> None:
    """Raise `ConfigError` unless the value is a number of seconds that a lock or a queue can wait."""
    if not (is_number(value) and 0 <= value <= LONGEST_S and (value > 0 or not above_0)):
        above = " above 0" if above_0 else ""
        raise ConfigError(
            f"{name}={value!r}: expected a number of seconds{above}, at most {LONGEST_S:,}, such as {name}=30"
        )


def check_timeout(name: str, value: object) -> None:
    """Raise `ConfigError` unless the value is None or a number of seconds from 0 on."""
    if value is not None:
        check_seconds(name, value)


def check_count(name: str, value: object) -> None:
    """Raise `ConfigError` unless the value is a whole number from 1 on that fits into 64 bits."""
    if not (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST):
        raise ConfigError(f"{name}={value!r}: expected a whole number, at least 1 and at most {MOST:,}")


def check_bool(name: str, value: object) -> None:
    """Raise `ConfigError` unless the value is True or False: Python would take the text "no" for true."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}: expected True or False")


def check_options(name: str, value: object) -> Mapping[str, object] | None:
    """Options by name, or None. Messages never show their values. Raises `ConfigError` for anything else."""
    if value is None or (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        return value
    raise ConfigError(
        f'{name}: expected a mapping of names to values, such as {name}={{"name": value}}, found a '
        f"{type(value).__name__}"
    )


def one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raise `ConfigError` for a value that is not allowed. The message suggests a similar one."""
    choices = list(allowed)
    if value not in choices:
        meant = did_you_mean(repr(value), [repr(choice) for choice in choices])
        listed = ", ".join(repr(choice) for choice in choices)
        raise ConfigError(f"{name}={value!r}: expected one of {listed}{meant}")


def name_of(thing: object) -> str:
    """The name of an object for people. Never its values, which may be secret."""
    if isinstance(thing, partial):
        called: object = thing.func
        return name_of(called)
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


def takes(function: Callable[..., object], count: int) -> bool:
    """Return whether the function accepts so many arguments. True if Python cannot tell.

    Some functions written in C have no signature. Their first call then raises its own error.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def check_runs(function: object, what: str) -> None:
    """Refuse a function that would return at once without any effect. Raises `ConfigError`."""
    bodies = (function, type(function).__call__)  # an object may be called through it
    if any(inspect.iscoroutinefunction(body) for body in bodies):
        raise ConfigError(
            f"{what} is async: wal-sink would never await it, so nothing would be written. Use a plain function"
        )
    if any(inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body) for body in bodies):
        raise ConfigError(
            f"{what} contains yield: a call would run none of its code, so nothing would be written. Use a plain "
            "function that returns None"
        )


def check_ran(what: str, returned: T) -> T:
    """The answer of a user's code. Raises `PermanentError` for code that did not run: an awaitable, a generator."""
    if returned is not None and (
        inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned)
    ):
        if inspect.iscoroutine(returned):
            returned.close()  # no warning is due: the error says it
        raise PermanentError(
            f"{what} returned a {type(returned).__name__}, which wal-sink would never run, so nothing would be "
            "written. Use plain functions without async and yield, also under decorators"
        )
    return returned


def check_method(owner: object, method: str, *arguments: str) -> None:
    """Refuse a method that cannot be called with these arguments, or that would have no effect. Raises
    `ConfigError`.
    """
    function = getattr(owner, method)
    what = f"{type(owner).__qualname__}.{method}"
    check_runs(function, what)
    if not takes(function, len(arguments)):
        raise ConfigError(f"{what} cannot be called as wal-sink calls it: expected {method}({', '.join(arguments)})")


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
    for claim in ("idempotent", "replaces_rows", "driver_only", "names_refused_rows", "needs_tasks", "keep_segments"):
        if hasattr(to, claim):
            check_bool(f"{name}.{claim}", getattr(to, claim))
    if (on_gone := getattr(to, "on_gone", None)) is not None:
        one_of(f"{name}.on_gone", on_gone, ("halt", "prepare_again"))
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
