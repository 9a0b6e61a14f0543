"""Address of a store and access to it, as plain data. It is sent to executors; the store itself never is."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import fsspec

from wal_sink.errors import ConfigError
from wal_sink.support.secrets import MASK, Redactor, mask_url, secrets_in_options, secrets_in_url

LOCAL = "file"
S3 = "s3"
MEMORY = "memory"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?=:(?:/|:))")
_AUTHORITY = re.compile(r"[/?#]")
_ALIASES = {"local": LOCAL, "s3a": S3, "s3n": S3}
_UNKNOWN_TO_FSSPEC = {"viewfs": "Install wal-sink with its extra hdfs, or: pip install hdfs-native"}
"""Advice for schemes that fsspec does not know before a package is installed. It knows gs, abfs and hdfs."""


@dataclass(frozen=True, repr=False)
class StoreSpec:
    """The address of a store: a URL, fsspec's options for it, and whether the user promises a single writer.

    URLs: a plain local path or `file:///…`; `s3://` (`s3a://`, `s3n://`); `memory://`; any other that fsspec supports.
    Equal by value and hashable. It is sent to executors with its secrets, but neither `repr` nor `safe_url` shows one.
    Raises `ConfigError` for a URL that cannot be opened.
    """

    url: str
    """URL in normal form: absolute, one spelling per scheme, without a trailing slash."""
    options: Mapping[str, object] = field(default_factory=dict, repr=False, hash=False)
    single_writer: bool = False
    """True if the user promises that no two processes ever write; see `Settings.single_writer`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", _normalised(os.fspath(self.url)))
        object.__setattr__(self, "options", copy.deepcopy(dict(self.options or {})))

    @property
    def scheme(self) -> str:
        """The canonical scheme, such as `file` or `s3`; the first one of a chained URL."""
        return _scheme(self.url) or LOCAL

    @property
    def location(self) -> str:
        """The part after `scheme://`."""
        return self.url.partition("://")[2]

    @property
    def safe_url(self) -> str:
        """The URL without user, password and query: for messages, `repr` and records.

        For S3 this is the URL itself, which has none of them; its keys may hold any character.
        """
        return self.url if self.scheme in {LOCAL, S3} and "::" not in self.url else mask_url(self.url)

    def scrub(self, text: str) -> str:
        """`text` without any value of a secret option and without credentials in URLs; for error messages of other
        libraries.
        """
        return self._redactor()(text.replace(self.url, self.safe_url))

    def cause(self, error: BaseException) -> BaseException | None:
        """`error`, as the cause of another one; None if its traceback would show a secret."""
        return self._redactor().cause(error)

    def _redactor(self) -> Redactor:
        own = set() if self.safe_url == self.url else secrets_in_url(self.url)
        return Redactor(secrets_in_options(self.options) | own)

    def __repr__(self) -> str:
        return f"StoreSpec({self.safe_url!r}, single_writer={self.single_writer})"


def _scheme(url: str) -> str | None:
    match = _SCHEME.match(url)
    return match[1].lower() if match else None


def _normalised(url: str) -> str:
    if not url.strip():
        raise ConfigError("the URL of a store is empty: give a local path or a URL such as s3://bucket/folder")
    written = _scheme(url)
    scheme = _ALIASES.get(written or LOCAL, written or LOCAL)
    if "::" in url:
        _refuse_local(url, scheme)
        return _known(url, scheme)
    if scheme == LOCAL:
        path = url if written is None else url[len(written) + 1 :]
        if written and re.match("//[^/]", path):
            raise ConfigError(f"{mask_url(url)}: a local folder has no host. Expected file:/// and an absolute path")
        return f"{LOCAL}://{_absolute(path)}"
    location = url[len(written or "") + 1 :].removeprefix("//").rstrip("/")
    if scheme == S3:
        _check_s3(url, location)
    return f"{scheme}://{location.lstrip('/')}" if scheme in {S3, MEMORY} else _known(url.rstrip("/"), scheme)


def _refuse_local(url: str, scheme: str) -> None:
    """Refuse a local path with `::`, where fsspec would split it. A chain begins with a scheme that fsspec supports."""
    if scheme == LOCAL or ("://" not in url and scheme not in fsspec.available_protocols()):
        raise ConfigError(
            f"{mask_url(url)}: a local path must not contain '::', because '::' joins the parts of a chained URL such "
            "as simplecache::s3://bucket/folder. Nothing was started. Rename the folder, or pass the path of a "
            "symbolic link to the folder"
        )


def _absolute(path: str) -> str:
    bare = "/" + path.lstrip("/") if path.startswith("//") else path
    return os.path.abspath(os.path.expanduser(bare))  # noqa: PTH100, PTH111 - Path.resolve would follow links


def _check_s3(url: str, location: str) -> None:
    bucket = location.partition("/")[0]
    if ":" in bucket and not bucket.startswith("arn:"):
        raise ConfigError(
            f"{S3}://{MASK}: expected s3://bucket/folder without user and password; pass credentials as "
            "storage_options (key, secret, token) or let the environment provide them"
        )
    if not bucket:
        raise ConfigError(f"{mask_url(url)} names no bucket: expected s3://bucket/folder")
    if "@" in bucket or "?" in location:
        raise ConfigError(
            f"{mask_url(url)}: expected s3://bucket/folder without user, password or query; pass credentials as "
            "storage_options (key, secret, token) or let the environment provide them"
        )


def _known(url: str, scheme: str) -> str:
    if scheme not in fsspec.available_protocols():
        way = _UNKNOWN_TO_FSSPEC.get(scheme, "Correct the scheme, or install the package that provides it")
        raise ConfigError(f"{mask_url(url)}: fsspec does not know the scheme {scheme!r}. {way}")
    _check_authority(url)
    return url


def _check_authority(url: str) -> None:
    """Refuse a URL whose password contains a character that ends a host: the rest would count as a path and be
    recorded.
    """
    authority, behind = _AUTHORITY.split(url.partition("://")[2], maxsplit=1)[0], url.rpartition("@")
    port = authority.rpartition(":")[2] if ":" in authority.rpartition("]")[2] else "0"
    if behind[1] and "@" not in authority and not port.isdecimal():
        raise ConfigError(
            f"{mask_url(url)}: expected scheme://user:password@host/path. In the password, write / as %2F, ? as %3F, # "
            "as %23 and @ as %40. Or pass the password as a storage option"
        )
