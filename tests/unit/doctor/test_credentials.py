"""Which kinds of credentials are found: names only, and never a value."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal_sink.doctor.credentials import credential_findings
from wal_sink.reporting.findings import Finding, Level
from wal_sink.stores.spec import StoreSpec

SECRET = "hush-hush-0123"  # noqa: S105 - a dummy


def found(url: str, home: Path, /, *, options: dict[str, object] | None = None, **environ: str) -> list[Finding]:
    results = credential_findings(StoreSpec(url, options or {}), environ, home)
    assert SECRET not in repr(results)
    assert all(one.next_step for one in results if one.level is not Level.OK)
    return results


def test_each_kind_is_named_in_the_order_of_the_client(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(SECRET)
    (tmp_path / ".aws/credentials").chmod(0o600)
    given: dict[str, object] = {"key": SECRET, "secret": SECRET, "endpoint_url": "http://127.0.0.1:1"}
    (finding,) = found("s3://lake/wal", tmp_path, options=given, AWS_PROFILE=SECRET)
    assert finding.level is Level.OK
    assert "storage options key, secret; environment AWS_PROFILE; files ~/.aws/credentials" in finding.found


@pytest.mark.parametrize("url", ["s3://lake/wal", "gs://lake/wal", "abfs://lake/wal", "webhdfs://host:1/wal"])
def test_no_credentials_are_a_warning_that_says_what_happens_then(url: str, tmp_path: Path) -> None:
    (finding,) = found(url, tmp_path)
    assert finding.level is Level.WARNING
    assert "found none" in finding.found
    assert "of th" in finding.found


def test_a_local_folder_takes_none(tmp_path: Path) -> None:
    assert found("wal", tmp_path)[0].level is Level.OK


@pytest.mark.parametrize(
    ("options", "environ", "absent"),
    [
        ({"key": SECRET}, {}, "secret"),
        ({"secret": SECRET}, {}, "key"),
        ({}, {"AWS_ACCESS_KEY_ID": SECRET, "AWS_SECRET_ACCESS_KEY": ""}, "AWS_SECRET_ACCESS_KEY"),
        ({}, {"AWS_SECRET_ACCESS_KEY": SECRET}, "AWS_ACCESS_KEY_ID"),
    ],
)
def test_half_of_a_pair_is_an_error(
    options: dict[str, object], environ: dict[str, str], absent: str, tmp_path: Path
) -> None:
    first, *_ = found("s3://lake/wal", tmp_path, options=options, **environ)
    assert first.level is Level.ERROR
    assert f"{absent} is not" in first.found


def test_a_variable_that_names_no_file_is_an_error(tmp_path: Path) -> None:
    gone = str(tmp_path / SECRET)
    first, *_ = found("gs://lake/wal", tmp_path, GOOGLE_APPLICATION_CREDENTIALS=gone)
    assert first.level is Level.ERROR
    assert "GOOGLE_APPLICATION_CREDENTIALS names a file that does not exist" in first.found


@pytest.mark.parametrize(("mode", "level"), [(0o644, Level.WARNING), (0o600, Level.OK)])
def test_a_file_that_others_may_read_is_a_warning(mode: int, level: Level, tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    key.write_text(SECRET)
    key.chmod(mode)
    first, *_ = found("gs://lake/wal", tmp_path, GOOGLE_APPLICATION_CREDENTIALS=str(key))
    assert first.level is level


def test_a_public_configuration_and_a_ticket_cache_that_is_no_file_are_fine(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text("[default]")
    assert [one.level for one in found("s3://lake/wal", tmp_path)] == [Level.OK]
    hdfs = found("webhdfs://host:1/wal", tmp_path, KRB5CCNAME="KEYRING:persistent:0")
    assert [one.level for one in hdfs] == [Level.OK]
