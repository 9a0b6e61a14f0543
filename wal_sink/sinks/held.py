"""Registry of the sink objects that are in use in this process, and of their holders.

A sink is opened for one name of one WAL: it keeps the context, connections and rows that are not written yet. One
object under two names, or in two `WalSink`s, would write rows of one as rows of the other. So an object has one holder.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from wal_sink.errors import ConfigError
from wal_sink.sinks.base import BatchSink, Sink, Wrapper
from wal_sink.support.exit_hooks import Owner

_STATELESS = (types.FunctionType, types.BuiltinFunctionType, type)
"""Kinds of objects without state of a delivery: any number of sinks may call them."""


@dataclass(frozen=True, slots=True, eq=False)
class _Hold:
    thing: object
    """A reference to the object, so that no other object gets its id."""
    holder: str
    owner: Owner


_holds: dict[int, _Hold] = {}


def objects_of(sink: object) -> list[object]:
    """The objects that a sink consists of: itself, the wrapped object and the sinks in its attributes. No plain
    functions.
    """
    found: dict[int, object] = {}
    left = [sink]
    while left:
        thing = _called(left.pop())
        if id(thing) not in found and not isinstance(thing, _STATELESS):
            found[id(thing)] = thing
            left += _inner(thing)
    return list(found.values())


def _called(thing: object) -> object:
    """The object that is called in the end: a method's object, or the function within a partial function."""
    while True:
        if isinstance(thing, functools.partial):
            thing = thing.func
        elif isinstance(thing, (types.MethodType, types.BuiltinMethodType)) and not _is_global(thing.__self__):
            thing = thing.__self__
        else:
            return thing


def _is_global(owner: object) -> bool:
    """Return whether the callee is a function of a module or a class, not an object's method."""
    return owner is None or isinstance(owner, (types.ModuleType, type))


def _inner(thing: object) -> list[object]:
    inner: list[object] = [thing.wrapped_object()] if isinstance(thing, Wrapper) else []
    if isinstance(thing, (Sink, BatchSink)):
        inner += [value for value in getattr(thing, "__dict__", {}).values() if isinstance(value, (Sink, BatchSink))]
    return inner


def refuse_shared(sinks: Mapping[str, object]) -> None:
    """Raise `ConfigError` if one object serves two of these names."""
    named: dict[int, str] = {}
    for name, sink in sinks.items():
        for thing in objects_of(sink):
            if (other := named.setdefault(id(thing), name)) != name:
                raise _refused(thing, f"sink {name!r}", f"sink {other!r}")


def hold(sinks: Iterable[object], holder: str) -> Callable[[], None]:
    """Hold the objects of these sinks. Returns a function that releases them; it may be called any number of times.

    Raises `ConfigError` if another holder has one of the objects, and then holds none.
    """
    held: list[int] = []
    release = functools.partial(_release, held)
    for thing in {id(thing): thing for sink in sinks for thing in objects_of(sink)}.values():
        mine = _Hold(thing, holder, Owner())
        found = _holds.setdefault(id(thing), mine)
        if found is not mine and found.owner.is_here:
            release()
            raise _refused(thing, holder, found.holder)
        _holds[id(thing)] = mine  # a forked child may hold its parent's objects: the parent's holds do not count here
        held.append(id(thing))
    return release


@contextmanager
def holding(sink: object, holder: str) -> Iterator[None]:
    """Hold the objects of a sink within a `with` block."""
    release = hold([sink], holder)
    try:
        yield
    finally:
        release()


def _release(held: list[int]) -> None:
    while held:
        _holds.pop(held.pop(), None)


def _refused(thing: object, holder: str, other: str) -> ConfigError:
    return ConfigError(
        f"{holder} was given a {type(thing).__name__} object that {other} already uses: rows of one could be written "
        "as rows of the other. Create a separate object for each, or close the other WalSink first"
    )
