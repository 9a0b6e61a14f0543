"""The target that `--to` names: the URL of a backend, or an object in a module of the user."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.redaction import mask_url
from wal_sink.reporting.texts import told
from wal_sink.sinks.base import BatchSink, Sink, as_sink
from wal_sink.sinks.urls import sink_from_url


def target(named: str) -> Sink | BatchSink:
    """The sink that `--to` names. Raises `ConfigError` with what was found instead."""
    if "://" in named or named.startswith("sqlite:"):
        return sink_from_url(named)
    module, colon, name = named.partition(":")
    if not colon or not module or not name:
        raise ConfigError(
            f"--to {mask_url(named)}: expected the URL of a backend, such as sqlite:///orders.db?table=orders, or "
            "package.module:object"
        )
    return as_sink(_attribute(_module(module), name, named))


def _module(name: str) -> Any:
    """Import the module; the current directory is searched first."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except WalSinkError:
        raise
    except Exception as error:  # a user's module may raise any error while it is imported
        raise ConfigError(f"--to: module {name!r} cannot be imported: {told(error)}") from error


def _attribute(module: Any, path: str, named: str) -> object:
    found = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise ConfigError(f"--to {named}: {found!r} has no attribute {name!r}")
        found = getattr(found, name)
    return found
