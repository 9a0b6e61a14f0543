"""An ability of some stores that only an examination needs. A run never uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a bucket about its life-cycle rules."""

    found: Mapping[str, Any]
    """The rules as S3 writes them; empty if there was a refusal."""
    refused: str = ""
    """S3's code for the refusal, such as `AccessDenied`; empty if there was none."""
    text: str = ""
    """The refusal in words, without secrets."""


@runtime_checkable
class InBucket(Protocol):
    """A store in a bucket of S3, which has rules for all its objects."""

    @property
    def prefix(self) -> str:
        """The beginning of the key of each object; empty or ending in `/`."""
        ...

    def life_cycle(self) -> Answer:
        """The life-cycle rules of the bucket. One request; never raises `StoreError`."""
        ...
