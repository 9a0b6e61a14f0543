"""A schema that lies in a WAL is parsed by one function, which runs nothing of it."""

from __future__ import annotations

import itertools
import json
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import types as t

from tests.support.processes import CHECKOUT
from wal_sink import wrap
from wal_sink.errors import ConfigError, CorruptError
from wal_sink.spark.schema import schema_from_json, type_modules

OF_A_USER = """
from pyspark.sql import types as t

class Money(t.UserDefinedType):
    @classmethod
    def sqlType(cls):
        return t.LongType()

    @classmethod
    def module(cls):
        return __name__

class Broken(Money):
    def __init__(self):
        raise RuntimeError("no")

def __getattr__(name):
    if name == "Missing":
        raise SystemExit("a module's code ran")
    raise AttributeError(name)
"""


_NUMBERS = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a user's module that can be imported, and is not loaded."""
    name = f"wal_sink_test_money_{next(_NUMBERS)}"  # the classes of earlier tests may still be there
    (tmp_path / f"{name}.py").write_text(OF_A_USER)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def of(kind: object) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": "a", "nullable": True, "metadata": {}, "type": kind}]})


def of_type(name: str) -> str:
    return of({"type": "udt", "pyClass": name, "serializedClass": "AAAA", "sqlType": "long"})


def test_every_schema_of_spark_comes_back() -> None:
    inner = t.StructType([t.StructField("x", t.IntegerType(), nullable=False, metadata={"type": "udt", "pyClass": 1})])
    schema = t.StructType(
        [
            t.StructField("a", t.MapType(t.StringType(), t.ArrayType(inner, containsNull=False))),
            t.StructField("b", t.DecimalType(38, 18), metadata={"serializedClass": "kept", "deep": [1, {"k": None}]}),
            t.StructField("a", t.StringType("UNICODE_CI")),
            t.StructField("c", t.ArrayType(t.MapType(t.StringType("UNICODE"), t.VariantType()))),
        ]
    )
    assert schema_from_json(schema.json(), what="batch 1") == schema


def test_a_type_of_a_module_that_is_not_loaded_is_refused_by_name(module: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"batch 1: .*'{module}\.Money'. This program does not have the class of this type"
    ):
        schema_from_json(of_type(f"{module}.Money"), what="batch 1")
    assert module not in sys.modules


def test_a_module_that_the_driver_had_loaded_is_imported_on_executors(module: str) -> None:
    assert module not in type_modules()
    schema = schema_from_json(of_type(f"{module}.Money"), what="batch 1", modules=[module])
    assert type(schema.fields[0].dataType).__name__ == "Money"
    assert module in type_modules()
    assert "__main__" not in type_modules()


def test_what_the_driver_had_loaded_travels_with_the_writer(module: str) -> None:
    __import__(module)
    sink = wrap.foreach_writer(print)
    for _ in range(2):  # as it does to an executor, and from a copy
        sink = pickle.loads(pickle.dumps(sink))  # noqa: S301 - our own bytes
        sys.modules.pop(module, None)
    assert module in cast("tuple[str, ...]", vars(sink)["_type_modules"])


def test_a_module_that_executors_do_not_have_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match=r"'no_such_module\.Money'. This program does not have the class of this type"
    ):
        schema_from_json(of_type("no_such_module.Money"), what="batch 1", modules=["no_such_module"])


@pytest.mark.parametrize("name", ["Missing", "t", "__getattr__", "__name__"])
def test_a_name_of_anything_else_runs_nothing(module: str, name: str) -> None:
    with pytest.raises(ConfigError, match="does not have"):
        schema_from_json(of_type(f"{module}.{name}"), what="batch 1", modules=[module])


@pytest.mark.parametrize("name", ["", "Money", ".", "pyspark.sql.types.UserDefinedType.typeName"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(ConfigError, match="does not have"):
        schema_from_json(of_type(name), what="batch 1")


def test_a_type_that_cannot_be_made_is_told(module: str) -> None:
    with pytest.raises(
        ConfigError, match=r"batch 1: this PySpark cannot read the manifest's schema \(RuntimeError: no"
    ):
        schema_from_json(of_type(f"{module}.Broken"), what="batch 1", modules=[module])


def test_a_type_that_this_spark_does_not_know_is_told() -> None:
    with pytest.raises(ConfigError, match="Use the version that staged the batch"):
        schema_from_json(of("quaternion(7)"), what="batch 1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '"long"',
        "{}",
        '{"type": "struct", "fields": 3}',
        '{"type": "struct", "fields": ["long"]}',
        of(None),
        of(["udt"]),
        of({"type": "tree"}),
        of({"type": ["udt"]}),
        of({"type": "udt"}),
        of({"type": "array"}),
        '{"fields": [{"name": "a", "nullable": true, "type": ' + '{"type": "array", "elementType": ' * 100_000,
        '{"fields": [{"name": "a", "nullable": true, "type": '
        + '{"type": "array", "containsNull": true, "elementType": ' * 600
        + '"long"'
        + "}" * 600
        + "}]}",
    ],
)
def test_what_is_no_schema_is_corrupt(text: str) -> None:
    with pytest.raises((CorruptError, ConfigError), match="batch 1: "):
        schema_from_json(text, what="batch 1")


def test_nothing_else_parses_a_schema() -> None:
    """PySpark's own parsers import and unpickle what they read."""
    parsers = re.compile(r"\bfromJson\(|_parse_datatype|\.fromDDL\(")
    found = {
        str(file.relative_to(CHECKOUT))
        for folder in ("wal_sink", "backends")
        for file in (CHECKOUT / folder).rglob("*.py")
        if parsers.search(file.read_text())
    }
    assert found == {"wal_sink/spark/schema.py"}
