"""The one way to PySpark's private names, where it has no public one: a name that is gone is an error, never "none"."""

from __future__ import annotations

from typing import Any

from wal_sink.errors import ConfigError


def private(thing: object, name: str) -> Any:
    """What PySpark keeps under a private name. Raises `ConfigError` if this version of PySpark has no such name.

    `docs/ASSUMPTIONS.md` tells for each name what is taken for granted of it.
    """
    try:
        return getattr(thing, name)
    except AttributeError as error:
        owner = thing if isinstance(thing, type) else type(thing)
        raise ConfigError(
            f"{owner.__module__}.{owner.__qualname__} has no {name} in PySpark {_version()}, and wal-sink needs it: "
            "use a version of PySpark that README.md names, or a newer wal-sink"
        ) from error


def _version() -> str:
    from pyspark import __version__  # noqa: PLC0415 - who asks for a name of PySpark's has imported it

    return __version__
