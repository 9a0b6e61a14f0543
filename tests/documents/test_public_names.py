"""The public surface: its names, held one by one, and examples and documents that use no others."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import wal_sink
from tests.support.code_blocks import blocks_of, pages
from tests.support.processes import CHECKOUT, python_environment

PUBLIC = {
    "wal_sink": """
        BatchSink Chunk ConfigError CorruptError DeadLetters Delivery DeliveryError FencedError HandleGoneError
        HeldError HistoryError Metrics OutcomeUnknownError PermanentError Rejected ReleasedBatch Retry RetryLaterError
        Settings Sink SinkContext Status StoreError TransactionalSink TwoPhaseSink UndeliveredError WalSink
        WalSinkError idempotent wrap
    """,
    "wal_sink.wrap": "SparkWriterError data_source_writer foreach_batch foreach_writer spark_writer",
    "wal_sink.sinks": """
        BatchCommit CommitPosition CommitSink LedgerEntry Lookup Maps Position Redactor SegmentSink StagedSegment
        Transaction check_maps decimal_texts is_certificate_error is_secret_name logger_of mask_url named_secrets
        plain_values secrets_in_url to_json_lines
    """,
    "wal_sink.spark": "check_java prepare_python",
    "wal_sink.telemetry": """
        AttemptFailed Began Collected Delivered Ended Event FoundDelivered GaveUp Marked Rejected Released Replayed
        Sent SlowStore Staged StreamHeld StreamResumed
    """,
    "wal_sink.testing": """
        Crash CrashMatrix FakeQuery FaultyStore MemoryStore SinkContract SinkQuery StoppedByQuery StoreSpec Violation
        crash_matrix query_into simulated_runtime
    """,
    "wal_sink_backends": "FilesSink SqlSink TwoPhaseFilesSink",
    "wal_sink_backends.changes": "debezium",
    "wal_sink_backends.delta": "DeltaSink",
    "wal_sink_backends.iceberg": "IcebergSink",
    "wal_sink_backends.dynamodb": "DynamoDbPutSink DynamoDbSink",
    "wal_sink_backends.files": "FilesSink TwoPhaseFilesSink",
    "wal_sink_backends.http": "HttpLookupSink HttpSink Pacing Statuses",
    "wal_sink_backends.kafka": "KafkaSink",
    "wal_sink_backends.redis": "RedisSink",
    "wal_sink_backends.sql": "SqlSink",
}
"""All that a program may import. A name that goes from here, or changes, breaks the programs of users."""
NAMES = {module: names.split() for module, names in PUBLIC.items()}
UNNAMED = {
    "KeptLetter": "`DeadLetters` yields it",
    "Log": "`DeadLetters` takes an open log in tests only",
    "ReplayResult": "`DeadLetters.replay` returns it",
    "SinkStatus": "`Status.sinks` holds it",
    "TakeOver": "a program gives its text",
}
"""Classes that a public signature names and that nobody can import, each with the reason."""
OURS = ("wal_sink", "wal_sink_backends")
EXAMPLES = sorted(path for path in (CHECKOUT / "examples").rglob("*.py"))


def test_every_public_module_exports_these_names() -> None:
    modules = {name: import_module(name) for name in PUBLIC}
    assert {name: list(module.__all__) for name, module in modules.items()} == NAMES
    assert [name for name, names in NAMES.items() if names != sorted(names)] == []
    named = [(module, name) for module, names in NAMES.items() for name in names]
    assert [(module, name) for module, name in named if getattr(modules[module], name, None) is None] == []
    assert not hasattr(wal_sink, "no_such_name")


def test_every_target_has_a_public_package() -> None:
    scripts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["entry-points"]["wal_sink.backends"]
    packages = {place.rpartition(":")[0].split(".")[1] for place in scripts.values()} - {"urls"}
    assert {f"wal_sink_backends.{name}" for name in packages | {"files"}} <= PUBLIC.keys()


# --- the names that users meet


def test_every_class_that_a_public_signature_names_can_be_imported() -> None:
    """The search must see parameters, results, and what is imported for type checkers alone."""
    found = _classes_in_signatures()
    public = {name for names in NAMES.values() for name in names}
    missing = {name: places for name, places in found.items() if name not in public}
    assert missing.keys() == UNNAMED.keys(), missing
    assert "WalSink.status" in found["Status"]
    assert "BatchSink.write_batch" in found["ReleasedBatch"]
    assert "WalSink.__init__" in found["TakeOver"]
    assert "Sink.write" in found["Chunk"]


def _classes_in_signatures() -> dict[str, list[str]]:
    """By name, our own classes in the signatures of the public names of `wal_sink`, with the places that name them."""
    ours = {
        name
        for module in list(sys.modules.values())
        if module.__name__.startswith("wal_sink.")
        for name, thing in vars(module).items()
        if isinstance(thing, type) and thing.__module__.startswith("wal_sink.")
    }
    found: dict[str, list[str]] = {}
    for place, function in _functions():
        signature = inspect.signature(function)
        annotations = [*(each.annotation for each in signature.parameters.values()), signature.return_annotation]
        for word in re.findall(r"[A-Za-z]\w*", " ".join(map(str, annotations))):
            if word in ours:
                found.setdefault(word, []).append(place)
    return found


def _functions() -> Iterator[tuple[str, Any]]:
    for name in NAMES["wal_sink"]:
        thing = getattr(wal_sink, name)
        if not isinstance(thing, type):
            if callable(thing):
                yield name, thing
            continue
        for method, found in inspect.getmembers(thing, inspect.isroutine):
            is_ours = (getattr(found, "__module__", None) or "").startswith("wal_sink")
            if is_ours and (method == "__init__" or not method.startswith("_")):
                yield f"{name}.{method}", found


# --- programs and documents that use them


def _public_imports(source: str) -> tuple[int, list[str]]:
    """How many names of ours a text imports, and those of them that are not public."""
    count, hidden = 0, []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [each.name for each in node.names if each.name.split(".")[0] in OURS]
            count += len(modules)
            hidden += [f"import {module}" for module in modules if module not in PUBLIC]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            count += len(node.names)
            public = NAMES.get(str(node.module), [])
            hidden += [f"from {node.module} import {each.name}" for each in node.names if each.name not in public]
    return count, hidden


def test_every_example_imports_public_names_only() -> None:
    assert len(EXAMPLES) > 10
    found = {path.relative_to(CHECKOUT).as_posix(): _public_imports(path.read_text())[1] for path in EXAMPLES}
    assert {name: hidden for name, hidden in found.items() if hidden} == {}


def test_the_code_of_the_documents_imports_public_names_only() -> None:
    found = {page: [_public_imports(block.code) for block in blocks_of(page)] for page in pages()}
    assert [(name, each) for name, blocks in found.items() for _, hidden in blocks for each in hidden] == []
    assert sum(count for blocks in found.values() for count, _ in blocks) > 20


# --- the demo, Spark, the version


@pytest.mark.processes
def test_importing_wal_sink_spark_does_not_import_pyspark() -> None:
    program = """
import sys
from wal_sink.spark import check_java, prepare_python
prepare_python({})
print(sorted({"pyspark", "py4j"} & sys.modules.keys()))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=python_environment(), capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.processes
def test_the_version_is_that_of_pyproject() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert wal_sink.__version__ == project["version"]
    command = [sys.executable, "-m", "wal_sink.cli", "--version"]
    done = subprocess.run(command, env=python_environment(), capture_output=True, text=True, check=True)
    assert done.stdout == f"wal-sink, version {project['version']}\n"
