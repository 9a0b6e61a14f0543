"""Where a store is and how to reach it: plain data that travels to executors, while the store itself never does."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import fsspec

from wal_sink.errors import ConfigError

LOCAL = "file"
S3 = "s3"
MEMORY = "memory"
MASK = "***"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?=:(?:/|:))")
_ALIASES = {"local": LOCAL, "s3a": S3, "s3n": S3}
_CONTAINER_SCHEMES = {"abfs", "abfss", "az", "wasb", "wasbs"}
"""In these the part before `@` names a container and is no secret; a password after `:` still is."""
_USER_INFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/\s]+)@")
_QUERY = re.compile(r"\?[^#\s]*")
_PUBLIC_OPTIONS = {
    *("endpoint_url", "region_name", "anon", "profile", "signature_version", "addressing_style", "mode", "project"),
    *("account_name", "host", "port", "protocol"),
}
_SHORTEST_SECRET = 4


@dataclass(frozen=True, repr=False)
class StoreSpec:
    """The address of a store: a URL, fsspec's options for it, and whether one writer alone is promised.

    URLs: a plain local path or `file:///…`; `s3://` (`s3a://`, `s3n://`); `memory://`; any other that fsspec knows.
    Equal by value and hashable. It travels to executors with its secrets, but neither `repr` nor `safe_url` shows one.
    Raises `ConfigError` for a URL that nothing here can open.
    """

    url: str
    """Normalised: absolute, one spelling per scheme, without a trailing slash."""
    options: Mapping[str, object] = field(default_factory=dict, repr=False, hash=False)
    single_writer: bool = False
    """The user vouches that no two processes ever write; see `Settings.single_writer`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", _normalised(os.fspath(self.url)))
        object.__setattr__(self, "options", copy.deepcopy(dict(self.options or {})))

    @property
    def scheme(self) -> str:
        """The canonical scheme, e.g. `file` or `s3`; of a chained URL the first."""
        return _scheme(self.url) or LOCAL

    @property
    def location(self) -> str:
        """What follows `scheme://`."""
        return self.url.partition("://")[2]

    @property
    def safe_url(self) -> str:
        """The URL without user, password and query: for messages, `repr` and records."""
        return self.url if self.scheme == LOCAL else mask_url(self.url)

    def scrub(self, text: str) -> str:
        """`text` without any value of a secret option and without credentials in URLs; for foreign error messages."""
        for secret in sorted(_secrets(self.options), key=len, reverse=True):
            text = text.replace(secret, MASK)
        return mask_url(text.replace(self.url, self.safe_url))

    def cause(self, error: BaseException) -> BaseException | None:
        """`error`, to raise another one from; None if a traceback of it would show a secret."""
        shown = "\n".join(str(part) for part in _chain(error))
        return error if self.scrub(shown) == shown else None

    def __repr__(self) -> str:
        return f"StoreSpec({self.safe_url!r}, single_writer={self.single_writer})"


def mask_url(text: str) -> str:
    """Take credentials and queries out of every URL in `text`."""
    if "://" not in text:
        return text
    return _QUERY.sub("", _USER_INFO.sub(_without_user, text))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """All that a traceback of `error` shows."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _without_user(match: re.Match[str]) -> str:
    scheme, user = match[1], match[2]
    container = user.partition(":")[0]
    return f"{scheme}://{container}@" if scheme in _CONTAINER_SCHEMES else f"{scheme}://"


def _secrets(options: object, name: str = "") -> set[str]:
    """Every text among the options, however deep, that is not known to be harmless."""
    if isinstance(options, Mapping):
        return {found for key, value in options.items() for found in _secrets(value, str(key))}
    if isinstance(options, (list, tuple)):
        return {found for value in options for found in _secrets(value, name)}
    hidden = isinstance(options, str) and name not in _PUBLIC_OPTIONS and len(options) >= _SHORTEST_SECRET
    return {str(options)} if hidden else set()


def _scheme(url: str) -> str | None:
    match = _SCHEME.match(url)
    return match[1].lower() if match else None


def _normalised(url: str) -> str:
    if not url.strip():
        raise ConfigError("the URL of a store is empty: give a local path or a URL such as s3://bucket/folder")
    written = _scheme(url)
    scheme = _ALIASES.get(written or LOCAL, written or LOCAL)
    if "::" in url:
        return _known(url, scheme)
    if scheme == LOCAL:
        return f"{LOCAL}://{_absolute(url if written is None else url[len(written) + 1 :])}"
    location = url[len(written or "") + 1 :].removeprefix("//").rstrip("/")
    if scheme == S3:
        _check_s3(url, location)
    return f"{scheme}://{location.lstrip('/')}" if scheme in {S3, MEMORY} else _known(url.rstrip("/"), scheme)


def _absolute(path: str) -> str:
    bare = "/" + path.lstrip("/") if path.startswith("//") else path
    return os.path.abspath(os.path.expanduser(bare))  # noqa: PTH100, PTH111 - Path.resolve would follow links


def _check_s3(url: str, location: str) -> None:
    bucket = location.partition("/")[0]
    if not bucket:
        raise ConfigError(f"{mask_url(url)} names no bucket: expected s3://bucket/folder")
    if "@" in bucket or "?" in location:
        raise ConfigError(
            f"{mask_url(url)}: expected s3://bucket/folder without user, password or query; pass credentials as "
            "storage_options (key, secret, token) or let the environment provide them"
        )


def _known(url: str, scheme: str) -> str:
    if scheme not in fsspec.available_protocols():
        raise ConfigError(
            f"{mask_url(url)}: fsspec knows no scheme {scheme!r}; correct it, or install the package that provides it "
            "(for Google Cloud Storage `pip install gcsfs`, for Azure `pip install adlfs`)"
        )
    return url
