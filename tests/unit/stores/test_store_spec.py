"""Addresses of stores: one spelling per place, and no secret in anything that is shown."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
from fsspec.registry import known_implementations

from tests.house.stores import LocalStore, S3Store, StoreSpec, open_store
from wal_sink.errors import ConfigError


def test_urls_have_one_spelling() -> None:
    cases: list[tuple[str, str, str]] = [
        ("/data/wal", "file:///data/wal", "file"),
        ("/data//x/../wal/", "file:///data/wal", "file"),
        ("file:///data/wal/", "file:///data/wal", "file"),
        ("file:/data/wal", "file:///data/wal", "file"),
        ("local:///data/wal", "file:///data/wal", "file"),
        ("/data/with space & ümlaut?x", "file:///data/with space & ümlaut?x", "file"),
        ("s3://bucket/a/b/", "s3://bucket/a/b", "s3"),
        ("s3a://bucket/a", "s3://bucket/a", "s3"),
        ("S3N://bucket", "s3://bucket", "s3"),
        ("memory://x/", "memory://x", "memory"),
        ("gs://bucket/x/", "gs://bucket/x", "gs"),
        ("dir::file:///data", "dir::file:///data", "dir"),
    ]
    for given, url, scheme in cases:
        spec = StoreSpec(given)
        assert (spec.url, spec.scheme) == (url, scheme)
        assert StoreSpec(spec.url) == spec


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert StoreSpec("some/wal").url == f"file://{tmp_path}/some/wal"
    assert StoreSpec("~/wal").url == f"file://{tmp_path}/home/wal"
    assert StoreSpec(tmp_path).url == f"file://{tmp_path}"  # type: ignore[arg-type]


def test_urls_that_cannot_work_are_refused_without_their_secrets() -> None:
    cases: list[tuple[str, str]] = [
        ("", "empty"),
        ("nosuch://x", "does not know the scheme 'nosuch'.*install"),
        ("s3://", "names no bucket"),
        ("s3:///key", "names no bucket"),
        ("s3://AKIA:hush@bucket/x", "storage_options"),
        ("s3://bucket/x?token=hush", "storage_options"),
    ]
    for url, message in cases:
        with pytest.raises(ConfigError, match=message) as caught:
            StoreSpec(url)
        assert "hush" not in str(caught.value)


def test_specs_are_values() -> None:
    one = StoreSpec("s3://b/x", {"key": "k", "client_kwargs": {"region_name": "r"}})
    same = StoreSpec("s3a://b/x/", {"client_kwargs": {"region_name": "r"}, "key": "k"})
    assert one == same
    assert hash(one) == hash(same)
    assert one == pickle.loads(pickle.dumps(one))  # noqa: S301 - our own bytes
    assert one != StoreSpec("s3://b/x", {"key": "other"})
    assert one != StoreSpec("s3://b/x", one.options, single_writer=True)


def test_options_that_the_caller_changes_later_stay_as_they_were() -> None:
    options = {"client_kwargs": {"region_name": "r"}}
    spec = StoreSpec("s3://b", options)
    options["client_kwargs"]["region_name"] = "other"
    assert spec == StoreSpec("s3://b", {"client_kwargs": {"region_name": "r"}})


def test_repr_shows_neither_options_nor_credentials() -> None:
    spec = StoreSpec("sftp://user:hush@host/x?sig=hush", {"password": "hush-hush", "client_kwargs": {"token": "hush"}})
    assert repr(spec) == "StoreSpec('sftp://host/x', single_writer=False)"
    assert spec.safe_url == "sftp://host/x"
    assert StoreSpec("/a?b").safe_url == "file:///a?b", "a local path has no query"


def test_foreign_messages_are_scrubbed() -> None:
    options = {"secret": "h+u/s=h1", "client_kwargs": {"nested": ["deep-secret"]}, "endpoint_url": "http://host:1"}
    spec = StoreSpec("s3://b/x", options)
    shown = spec.scrub("h+u/s=h1 and deep-secret at http://user:pw@host:1/x?X-Amz-Signature=abc to http://host:1/y")
    assert shown == "*** and *** at http://host:1/x to http://host:1/y"


def test_an_error_that_shows_a_secret_is_no_cause_of_another() -> None:
    spec, harmless = StoreSpec("s3://b/x", {"secret": "hush-hush"}), OSError("disk full")
    assert spec.cause(harmless) is harmless
    assert spec.cause(OSError("cannot use hush-hush")) is None


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[str, str]] = [("s3fs", "s3://bucket/x"), ("gcsfs", "gs://bucket/x")]
    for module, url in cases:
        for missing in (module, f"{module}.core"):  # an earlier test may have loaded both
            monkeypatch.setitem(sys.modules, missing, None)
        monkeypatch.delitem(sys.modules, "wal_sink.stores.s3", raising=False)
        with pytest.raises(ConfigError, match=module):
            open_store(StoreSpec(url))


def test_the_extra_of_a_scheme_that_fsspec_does_not_know_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(known_implementations, "viewfs", raising=False)  # hdfs-native adds it
    with pytest.raises(ConfigError, match=r"scheme 'viewfs'\. Install wal-sink with its extra hdfs, or: pip install"):
        StoreSpec("viewfs://cluster/wal")
    with pytest.raises(ConfigError, match=r"scheme 'nosuch'\. Correct the scheme, or install the package"):
        StoreSpec("nosuch://cluster/wal")


def test_single_writer_is_another_spec_of_the_same_place(tmp_path: Path) -> None:
    assert isinstance(open_store(StoreSpec(str(tmp_path), single_writer=True)), LocalStore)


def test_a_local_path_with_two_colons_is_refused_in_plain_words() -> None:
    for path in ["/data/a::b", "wals::a/wal", "./a::b", "file:///data/a::b"]:
        with pytest.raises(ConfigError, match=r"a local path must not contain '::'.*Rename the folder.*symbolic link"):
            StoreSpec(path)


def test_an_error_of_s3_shows_no_secret_that_its_client_tells() -> None:
    store = S3Store(StoreSpec("s3://bucket/wal", {"key": "AKIAEXAMPLE", "secret": "hunter22secret"}))
    told = str(store._failure("read", "wal.json", OSError("the signature of hunter22secret does not match")))
    assert "s3://bucket/wal/wal.json" in told
    assert "hunter22secret" not in told


def test_a_host_before_a_local_path_is_refused() -> None:
    """The folder would lie in the root of the disk."""
    for url in ["file://relative/wal", "local://host/wal", "file://~/wal"]:
        with pytest.raises(ConfigError, match="Expected file:/// and an absolute path"):
            StoreSpec(url)
