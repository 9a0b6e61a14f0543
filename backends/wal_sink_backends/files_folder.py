"""The folder that files are written to: its address, what is needed to reach it, and its store while a sink is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink_backends.environment import from_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wal_sink.stores.base import Store


class Folder:
    """Plain data that travels with a sink. What it read from the environment is forgotten when it is closed."""

    def __init__(
        self, url: str, storage_options: Mapping[str, object] | None, options_from_env: Mapping[str, str] | None
    ) -> None:
        self.spec = StoreSpec(url, dict(storage_options or {}))
        self._options_from_env = dict(options_from_env or {})
        self._opened: StoreSpec | None = None

    def open(self, who: str) -> Store:
        """Read the environment, open the store; `who` is for messages. `PermanentError` if either lacks something."""
        options = from_environment(self._options_from_env, who)
        self._opened = StoreSpec(self.spec.url, {**self.spec.options, **options})
        return self.store(who)

    def store(self, who: str) -> Store:
        """The store, once this is open."""
        if self._opened is None:
            raise RuntimeError(f"{who} is not open: call open() first")
        try:
            return open_store(self._opened)
        except ConfigError as error:
            raise PermanentError(str(error)) from error

    def close(self) -> None:
        self._opened = None
