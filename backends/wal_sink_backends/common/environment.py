"""What a sink takes from the environment of the process it runs in: secrets, which so do not travel with it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from wal_sink.errors import PermanentError


def from_environment(names: Mapping[str, str], who: str) -> dict[str, str]:
    """The values of these variables, by what they are for. `PermanentError` naming the first that is not set.

    `who` is for the message, without secrets.
    """
    for name in names.values():
        if name not in os.environ:
            raise PermanentError(f"{who}: the environment variable {name} is not set where the sink runs; set it")
    return {option: os.environ[name] for option, name in names.items()}
