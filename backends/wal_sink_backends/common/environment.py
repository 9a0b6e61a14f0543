"""Secrets from the environment of the process where a sink runs, so that they do not travel with the sink."""

from __future__ import annotations

import os
from collections.abc import Mapping

from wal_sink.errors import PermanentError


def from_environment(names: Mapping[str, str], sink: str) -> dict[str, str]:
    """The values of environment variables by the keys of `names`. `PermanentError` names the first that is not set.

    `sink` is for the message, without secrets.
    """
    for name in names.values():
        if name not in os.environ:
            raise PermanentError(
                f"{sink}: the environment variable {name} is not set where the sink runs. Set this variable"
            )
    return {option: os.environ[name] for option, name in names.items()}
