"""Rows that real targets refuse: each is once in the target or once among the dead letters, whatever is killed.

Once they were sent again, each is in the target once.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from tests.house.cli import main
from tests.house.log import Log, Marker, paths
from tests.house.stores import StoreSpec, open_store
from tests.house.support import SYSTEM
from tests.support.kafka_topics import new_topic, read, set_config
from tests.support.programs.dead_letter_lives import (
    ALL,
    BAD,
    BATCH_ROWS,
    BATCHES,
    Death,
    batch_ids,
    deliver,
    is_bad,
    replay,
    was_killed,
)
from tests.support.servers.databases import PASSWORD as SQL_PASSWORD
from tests.support.servers.databases import PASSWORD_VARIABLE, DatabaseServer
from tests.support.servers.dynamodb_server import ACCESS, REGION
from tests.support.servers.redis_server import PASSWORD as REDIS_PASSWORD
from tests.support.sql_chunks import as_owner
from wal_sink import DeadLetters

REDIS_VARIABLE = "WAL_SINK_TEST_REDIS_PASSWORD"
GOOD = [row for row in ALL if not is_bad(row)]

DEATHS = (
    Death("before create", "dead-letters"),  # the target has answered, and nobody knows
    Death("after create", "dead-letters", nth=2),  # kept; where it works in transactions, the others are not sent yet
    Death("before read", "terms/committer-default", nth=4),  # between two chunks; the first is in, and nobody knows
    Death("before create", "markers"),
    Death(after_s=0.05),  # in the midst of something
)
REPLAY_DEATHS = (
    Death("before create", ".replayed.json", nth=2),  # the second is in the target, and nobody knows
    Death(after_s=0.02),
)


@dataclass(frozen=True)
class Target:
    """A target that refuses words that are too long, until it is repaired."""

    url: str
    ids: Callable[[], Sequence[int]]
    repair: Callable[[], object]
    environment: Mapping[str, str] = field(default_factory=dict)
    repaired_url: str = ""
    """Another URL, if another table is the repair."""


def sqlite_file(request: pytest.FixtureRequest) -> Target:
    path = request.getfixturevalue("tmp_path") / "target.db"

    def run(script: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path)) as database:
            return database.executescript(script).fetchall()

    def ids() -> list[int]:
        with closing(sqlite3.connect(path)) as database:
            return [row for (row,) in database.execute("SELECT id FROM orders")]

    run("CREATE TABLE orders (id INTEGER, word TEXT CHECK (length(word) < 100))")
    repair = (
        "ALTER TABLE orders RENAME TO old; CREATE TABLE orders (id INTEGER, word TEXT); "
        "INSERT INTO orders SELECT * FROM old; DROP TABLE old;"
    )
    return Target(f"sqlite:///{path}?table=orders", ids, lambda: run(repair))


def sql_server(server: DatabaseServer) -> Target:
    database = server.new_database()
    as_owner(
        server,
        database,
        "CREATE TABLE orders (id BIGINT, word VARCHAR(4000), CONSTRAINT short CHECK (char_length(word) < 100))",
    )
    return Target(
        server.url(database, options=urlencode({"table": "orders", "password_env": PASSWORD_VARIABLE})),
        lambda: [int(row) for (row,) in server.query(database, "SELECT id FROM orders")],
        lambda: as_owner(server, database, "ALTER TABLE orders DROP CONSTRAINT short"),
        {PASSWORD_VARIABLE: SQL_PASSWORD},
    )


def redis_streams(request: pytest.FixtureRequest) -> Target:
    """A stream a row; where a bad row's stream would be, there is something else."""
    server, name = request.getfixturevalue("redis_server"), "dead-letters"
    keys = [f"{name}:{row}" for row in BAD]
    with server.client() as client:
        client.flushall()
        client.mset(dict.fromkeys(keys, "something else"))

    def ids() -> list[int]:
        with server.client() as client:
            streams = client.scan_iter(f"{name}:*", count=1000, _type="stream")
            return [int(row["id"]) for key in streams for _, row in client.xrange(key)]

    def repair() -> None:
        with server.client() as client:
            client.delete(*keys)

    options = {"kind": "stream", "key": f"{name}:{{id}}", "password_env": REDIS_VARIABLE}
    return Target(f"{server.url}?{urlencode(options)}", ids, repair, {REDIS_VARIABLE: REDIS_PASSWORD})


def kafka_topic(request: pytest.FixtureRequest) -> Target:
    address = request.getfixturevalue("kafka").address
    topic = new_topic(address, max_message_bytes="2000")

    return Target(
        f"kafka://{address}/{topic}?key=id&transaction_timeout_s=20&ledger_topic={topic}-ledger",
        lambda: [json.loads(message.value())["id"] for message in read(address, topic)],
        lambda: set_config(address, topic, "max.message.bytes", "20000"),
    )


def http_api(request: pytest.FixtureRequest) -> Target:
    server, name = request.getfixturevalue("http_target"), request.node.name
    server.refuse = lambda row: "too long" if len(row["word"]) > 100 else ""
    return Target(
        f"{server.url}/keys/{name}#body=rows&idempotent=true",
        lambda: [row["id"] for row in server.store.rows(name)],
        server.forget,
    )


def dynamodb_table(request: pytest.FixtureRequest) -> Target:
    """Words too long for a key. A table with another key is the repair."""
    server = request.getfixturevalue("dynamodb_server")
    first, second = server.new_table(word="S"), server.new_table(id="N")
    options = urlencode({"region": REGION, "endpoint_url": server.endpoint, "ledger_table": f"{first}-ledger"})
    return Target(
        f"dynamodb://{first}?{options}",
        lambda: [*server.ids(first), *server.ids(second)],
        lambda: None,
        {name.upper(): value for name, value in ACCESS.items()},
        repaired_url=f"dynamodb://{second}?{options}",
    )


TARGETS: Mapping[str, Callable[[pytest.FixtureRequest], Target]] = {
    "sqlite": sqlite_file,
    "postgresql": lambda request: sql_server(request.getfixturevalue("postgresql")),
    "mariadb": lambda request: sql_server(request.getfixturevalue("mariadb")),
    "redis": redis_streams,
    "kafka": kafka_topic,
    "http": http_api,
    "dynamodb": dynamodb_table,
}


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
    made = TARGETS[request.param](request)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def test_each_row_is_in_the_target_or_a_dead_letter_and_after_a_replay_in_the_target(
    target: Target, tmp_path: Path
) -> None:
    wal = str(tmp_path / "wal")
    for death in (*DEATHS, Death()):
        killed = was_killed(deliver, tmp_path, target.url, death, target.environment)
        assert killed or not death.what, f"{death} was not met"

    assert Counter(target.ids()) == Counter(GOOD)
    assert Counter(_ids_in_letters(wal)) == Counter(BAD)
    assert _counted(wal) == [(BATCH_ROWS, sum(map(is_bad, batch_ids(batch))), 0) for batch in range(BATCHES)]

    target.repair()
    url = target.repaired_url or target.url
    assert _replay(wal, url, "--dry-run")["rows"] == len(BAD)
    for death in REPLAY_DEATHS:
        killed = was_killed(replay, tmp_path, url, death, target.environment)
        assert killed or not death.what, f"{death} was not met"
    _replay(wal, url)

    assert Counter(target.ids()) == Counter(ALL)
    assert _replay(wal, url)["letters"] == 0
    assert Counter(target.ids()) == Counter(ALL)
    letters = list(DeadLetters(wal).all())
    assert letters
    assert all(letter.replayed for letter in letters)


def _ids_in_letters(wal: str) -> Iterator[Any]:
    for kept in DeadLetters(wal).all():
        yield from kept.letter.chunk.table.column("id").to_pylist()


def _counted(wal: str) -> list[tuple[int, int, int]]:
    """Return the counts of each batch's marker: rows, rejected, unknown."""
    log = Log(open_store(StoreSpec(wal)), SYSTEM, "the test")
    markers = [log.find(Marker, paths.marker("default", batch)) for batch in range(BATCHES)]
    return [(marker.rows, marker.rejected, marker.unknown) for marker in markers if marker]


def _replay(wal: str, url: str, *more: str) -> dict[str, Any]:
    """By the command line."""
    result = CliRunner().invoke(main, ["letters", "replay", wal, "--to", url, "--json", *more])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found
