"""`wal-sink doctor` over a real bucket, target and checkpoint, and no secret is shown."""

from __future__ import annotations

import json
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


@pytest.mark.s3
def test_a_bucket_in_order_is_fine(s3_wal: str, s3_server: S3Server) -> None:
    before = set(s3_server.objects())
    results = found(s3_wal, env=s3_options(s3_server))
    assert {one["level"] for one in results.values()} == {"OK"}
    assert results["bucket.life-cycle"]["found"] == "the bucket has no life-cycle rule"
    assert set(s3_server.objects()) == before


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
