"""`wal-sink doctor`: each line has a test in which it fails, and no secret is shown."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tests.house.cli import main
from tests.house.protocol import Run
from tests.house.stores import StoreSpec, open_store
from tests.support.servers.ports import free_port
from tests.support.servers.s3_server import Fault, S3Server
from wal_sink.errors import StoreError
from wal_sink.settings import Settings
from wal_sink.testing import FakeQuery

SECRET = "hush-hush-0123"  # noqa: S105 - a dummy
BATCHES = 2


def stage(wal: str, checkpoint: str, options: Mapping[str, object] | None = None) -> None:
    """Make a WAL of complete batches."""
    checkpoint_store = open_store(StoreSpec(checkpoint, options or {}))
    run = Run(open_store(StoreSpec(wal, options or {})), checkpoint_store, Settings())
    run.open()
    run.become_stager()
    query = FakeQuery(checkpoint_store, lambda batch, _end: [pa.table({"id": [batch], "name": ["a"]})])
    assert len(list(query.batches(run, BATCHES))) == BATCHES


@pytest.fixture
def wal(tmp_path: Path) -> str:
    stage(str(tmp_path / "wal"), str(tmp_path / "checkpoint"))
    return str(tmp_path / "wal")


@pytest.fixture
def s3_wal(s3_url: str, s3_server: S3Server) -> Iterator[str]:
    stage(f"{s3_url}/wal", f"{s3_url}/checkpoint", s3_server.storage_options)
    yield f"{s3_url}/wal"
    s3_server.fault = None
    client = s3_server.client()
    client.delete_bucket_lifecycle(Bucket=s3_server.bucket)


def invoke(*args: str, exit_code: int = 0, env: Mapping[str, str] | None = None) -> Result:
    result = CliRunner(env=dict(env or {})).invoke(main, ["doctor", *args])
    assert result.exit_code == exit_code, (result.output, result.exception)
    return result


def found(*args: str, exit_code: int = 0, env: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    report = json.loads(invoke("--json", *args, exit_code=exit_code, env=env).stdout)
    return {one["check"]: one for one in report["findings"]}


def failed(check: str, *args: str, env: Mapping[str, str] | None = None) -> str:
    """The text of the only check that fails."""
    results = found(*args, exit_code=1, env=env)
    assert [name for name, one in results.items() if one["level"] == "error"] == [check]
    assert results[check]["next_step"]
    return str(results[check]["found"])


def s3_options(server: S3Server) -> dict[str, str]:
    return {"WAL_SINK_STORAGE_OPTIONS": json.dumps(server.storage_options)}


def objects(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_healthy_place_is_told_line_by_line_and_nothing_is_changed(wal: str, tmp_path: Path) -> None:
    before = objects(tmp_path)
    target = f"sqlite:///{tmp_path}/orders.db?table=orders"
    result = invoke(wal, "--checkpoint", str(tmp_path / "checkpoint"), "--to", target)
    assert "\nOK      store.race: of 8 threads" in result.stdout
    assert "not examined: Spark's workers (give --master)" in result.stdout
    assert result.stdout.endswith("0 errors, 0 warnings\n")
    assert objects(tmp_path) == before


def test_without_a_wal_only_java_is_examined() -> None:
    results = found()
    assert list(results) == ["java"]
    shown = invoke().stdout
    assert "not examined: store and checkpoint (give WAL); the target (give --to)" in shown


def test_json_holds_the_worst_level_and_what_was_left_out(wal: str) -> None:
    report = json.loads(invoke(wal, "--json").stdout)
    assert report["wal"] == f"file://{wal}"
    assert report["worst"] == "OK"
    assert report["not_examined"] == ["the target (give --to)", "Spark's workers (give --master)"]


def fake_java(folder: Path, version: str) -> dict[str, str]:
    """A java on PATH, and the environment that finds it."""
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return {"PATH": str(java.parent), "JAVA_HOME": ""}


def test_an_old_java_is_an_error(tmp_path: Path) -> None:
    assert "is Java 1.8.0_392" in failed("java", env=fake_java(tmp_path, "1.8.0_392"))


def test_a_machine_without_java_is_an_error(tmp_path: Path) -> None:
    assert "PATH holds no java" in failed("java", env={"PATH": str(tmp_path), "JAVA_HOME": ""})


def test_a_store_that_cannot_be_opened_is_an_error() -> None:
    assert "directory bucket" in failed("store", "s3://lake--x-s3/wal")


def test_wrong_use_has_exit_code_2() -> None:
    invoke("s3://", exit_code=2)


@pytest.mark.s3
def test_a_bucket_in_order_is_fine(s3_wal: str, s3_server: S3Server) -> None:
    before = set(s3_server.objects())
    results = found(s3_wal, env=s3_options(s3_server))
    assert {one["level"] for one in results.values()} == {"OK"}
    assert results["bucket.life-cycle"]["found"] == "the bucket has no life-cycle rule"
    assert set(s3_server.objects()) == before


@pytest.mark.s3
def test_a_life_cycle_rule_is_an_error(s3_wal: str, s3_server: S3Server) -> None:
    rule = {"ID": "thirty days", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 30}}
    s3_server.client().put_bucket_lifecycle_configuration(
        Bucket=s3_server.bucket, LifecycleConfiguration={"Rules": [rule]}
    )
    assert "'thirty days' deletes objects of the WAL after 30 days" in failed(
        "bucket.life-cycle", s3_wal, env=s3_options(s3_server)
    )


@pytest.mark.s3
def test_rules_that_may_not_be_read_are_unknown(s3_wal: str, s3_server: S3Server) -> None:
    def deny(_method: str, _path: str, environ: Mapping[str, Any]) -> Fault | None:
        return Fault(403, "AccessDenied") if environ.get("QUERY_STRING", "").startswith("lifecycle") else None

    s3_server.fault = deny
    finding = found(s3_wal, env=s3_options(s3_server))["bucket.life-cycle"]
    assert finding["level"] == "warning"
    assert "s3:GetLifecycleConfiguration" in finding["found"]


@pytest.mark.s3
def test_a_store_without_exclusive_creates_is_an_error(s3_wal: str, s3_server: S3Server) -> None:
    def forget_the_condition(_method: str, _path: str, environ: Any) -> None:
        environ.pop("HTTP_IF_NONE_MATCH", None)

    s3_server.fault = forget_the_condition
    results = found(s3_wal, exit_code=1, env=s3_options(s3_server))
    assert "8 were told that they made it" in results["store.race"]["found"]
    assert "second create of the same object was accepted" in results["store.create"]["found"]


@pytest.mark.s3
def test_a_clock_that_s3_refuses_is_an_error_that_names_the_clock(s3_wal: str, s3_server: S3Server) -> None:
    def refuse(method: str, _path: str, _environ: Mapping[str, Any]) -> Fault | None:
        return Fault(403, "RequestTimeTooSkewed") if method == "PUT" else None

    s3_server.fault = refuse
    assert "the clock of this machine differs" in failed("store.create", s3_wal, env=s3_options(s3_server))


def test_the_checkpoint_of_another_query_is_an_error(wal: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "metadata").write_text('{"id":"another"}')
    text = failed("checkpoint.query", wal, "--checkpoint", str(tmp_path / "checkpoint"))
    assert "is that of query another" in text


def test_without_the_right_to_list_the_checkpoint_is_looked_at(
    s3_wal: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The incident: GetObject is granted, ListBucket is not."""
    from tests.house.stores import S3Store  # noqa: PLC0415

    def refused(_: S3Store, prefix: str, **__: object) -> list[str]:
        raise StoreError(f"list {prefix}: AccessDenied")

    monkeypatch.setattr(S3Store, "list", refused)
    target = f"sqlite:///{tmp_path}/rows.db?table=rows"
    results = found(s3_wal, "--to", target, exit_code=1, env=s3_options(s3_server))
    assert results["wal"]["level"] == "error"
    assert "AccessDenied" in results["checkpoint"]["found"]  # it is opened, by the address in wal.json
    assert results["target.rows"]["found"].endswith("the WAL could not be read")


def test_a_checkpoint_that_cannot_be_opened_is_an_error(wal: str) -> None:
    assert "s3://" in failed("checkpoint", wal, "--checkpoint", "s3://")


def test_a_recorded_checkpoint_of_a_strange_kind_is_not_opened(wal: str) -> None:
    from msgspec.structs import replace  # noqa: PLC0415

    from tests.house.log import WalRecord, decode, encode  # noqa: PLC0415

    file = Path(wal, "wal.json")
    record = decode(WalRecord, file.read_bytes(), "wal.json")
    file.write_bytes(encode(replace(record, checkpoint="zip:///in.zip::s3://lake/x")))
    finding = found(wal)["checkpoint"]
    assert (finding["level"], finding["next_step"]) == ("warning", "give --checkpoint")


def test_options_of_the_checkpoint_are_its_own(wal: str, tmp_path: Path) -> None:
    options = {"WAL_SINK_CHECKPOINT_OPTIONS": json.dumps({"key": SECRET})}
    assert found(wal, "--checkpoint", str(tmp_path / "checkpoint"), env=options)["checkpoint"]["level"] == "OK"


def test_a_table_that_does_not_fit_is_an_error(wal: str, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "orders.db") as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
    before = (tmp_path / "orders.db").read_bytes()
    text = failed("target", wal, "--to", f"sqlite:///{tmp_path}/orders.db?table=orders")
    assert "the table has no column 'name'" in text
    assert (tmp_path / "orders.db").read_bytes() == before


def test_a_target_that_cannot_be_reached_is_an_error(tmp_path: Path) -> None:
    port = free_port()
    assert f"127.0.0.1:{port} cannot be reached" in failed("target", "--to", f"http://127.0.0.1:{port}/rows")
    assert "refused" in failed("target", "--to", f"postgresql://etl@127.0.0.1:{port}/shop?table=orders")
    assert "does not exist" in failed("target", "--to", f"sqlite:///{tmp_path}/nowhere/orders.db?table=orders")


def test_a_target_that_cannot_be_named_is_an_error() -> None:
    assert "no backend serves the scheme" in failed("target", "--to", "nothing://somewhere")


def test_a_damaged_batch_is_an_error(wal: str, tmp_path: Path) -> None:
    for segment in Path(wal).rglob("*.parquet"):
        segment.unlink()
    results = found(wal, "--to", f"sqlite:///{tmp_path}/orders.db?table=orders", exit_code=1)
    assert results["wal.rows"]["level"] == "error"


@pytest.mark.s3
@pytest.mark.parametrize("how", [(), ("--json",)])
def test_no_secret_is_shown(how: tuple[str, ...], s3_wal: str, s3_server: S3Server) -> None:
    options = {**s3_server.storage_options, "secret": f"{SECRET}-option"}
    env = {
        "WAL_SINK_STORAGE_OPTIONS": json.dumps(options),
        "AWS_SESSION_TOKEN": f"{SECRET}-variable",
        "SHOP_LOGIN": f"{SECRET}-named",
    }
    port = free_port()
    target = f"postgresql://etl:{SECRET}-url@127.0.0.1:{port}/shop?table=orders"
    for one in (target, f"postgresql://etl@127.0.0.1:{port}/shop?table=orders&password_env=SHOP_LOGIN"):
        result = CliRunner(env=env).invoke(main, ["doctor", s3_wal, "--to", one, *how])
        assert SECRET not in result.output
        assert result.exit_code == 1


def test_a_narrow_terminal_shows_every_word(wal: str) -> None:
    shown = invoke(wal, env={"COLUMNS": "40"}).stdout
    assert max(map(len, shown.splitlines())) <= 40
    assert " ".join(shown.split()).count("store.race: of 8 threads that create one object at once, one wins") == 1


def test_a_promise_of_a_single_writer_can_be_given(wal: str) -> None:
    assert found(wal, "--single-writer")["store.sharing"]["level"] == "OK"


def test_help_names_the_exit_code() -> None:
    assert "Exit code 1" in invoke("--help").stdout
    assert os.environ.get("COLUMNS") is None
