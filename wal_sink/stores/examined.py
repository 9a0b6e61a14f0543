"""Abilities of some stores that only an examination needs. A run never uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Dated(Protocol):
    """A store that tells when an object was created, by its own clock."""

    def created_at(self, path: str) -> datetime:
        """The time of creation, in UTC, to the second or better. One request. Raises `StoreError`."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a bucket about one of its settings."""

    found: Mapping[str, Any]
    """The setting as S3 writes it; empty if there was a refusal."""
    refused: str = ""
    """S3's code for the refusal, such as `AccessDenied`; empty if there was none."""
    text: str = ""
    """The refusal in words, without secrets."""


@runtime_checkable
class InBucket(Protocol):
    """A store in a bucket of S3, which has settings for all its objects."""

    @property
    def prefix(self) -> str:
        """The beginning of the key of each object; empty or ending in `/`."""
        ...

    def bucket_setting(self, operation: str) -> Answer:
        """The answer to a request about the bucket. `operation` is boto3's name for it. One request; never raises
        `StoreError`.
        """
        ...
