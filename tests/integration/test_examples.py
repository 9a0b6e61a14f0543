"""Every example runs as it stands, with the one command at its top, and says in its last line that it went well."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import CHECKOUT, Child
from tests.support.programs.quick_workers import SUBMIT
from tests.support.servers.databases import PostgresqlServer
from tests.support.servers.kafka_connector import kafka_connector

pytestmark = pytest.mark.spark

EXAMPLES = sorted((CHECKOUT / "examples").glob("[!_]*.py"))
SMALL = {
    "kafka_exactly_once": ["--kills", "1", "--rows", "4000"],
    "kafka_to_kafka": ["--kills", "1", "--events", "4000"],
    "keyed_states": ["--kills", "1", "--rows", "200"],
    "stream_stream_join": ["--kills", "1", "--rows", "100"],
    "update_and_complete": ["--kills", "1", "--rows", "500"],
    "change_stream": ["--kills", "1", "--rows", "60"],
    "iot_late_data": ["--kills", "1", "--rows", "200"],
}
"""Those that take minutes as they stand. Kafka's use the tests' broker here, and change streams go into PostgreSQL."""
LIMIT_S = 400.0


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_ends_well(example: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    head = example.read_text().splitlines()[0]
    assert head.startswith(f"# python examples/{example.name}"), "its first line is the command that runs it"
    arguments = SMALL.get(example.stem, [])
    if example.stem.startswith("kafka_"):
        kafka_connector()  # fetched here, where a test that cannot have it is skipped
        arguments = [*arguments, "--brokers", request.getfixturevalue("kafka").address]
    if example.stem == "change_stream":
        server: PostgresqlServer = request.getfixturevalue("postgresql")
        arguments = [*arguments, "--into", server.url(server.new_database(), password=True)]
    quick = {"PYSPARK_SUBMIT_ARGS": SUBMIT}
    with Child.python(example, *arguments, log=tmp_path / "log", env=quick, limit_s=LIMIT_S) as child:
        lines = child.succeed().splitlines()
    assert [line for line in lines if line.strip()][-1].startswith("ok"), "\n".join(lines)
