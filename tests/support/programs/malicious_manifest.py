"""A program that reads a manifest whose schema hides code, in the way of a delivering process.

A user-defined type's schema may contain `serializedClass`, a pickle that PySpark 4.0.0 loads, and the name of a module,
which every PySpark imports. Here both create a file if they are run. No JVM is started.

The argument is a folder. The program writes `run.json` there: the result of each attack, and the files that exist.
"""

from __future__ import annotations

import base64
import json
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyspark
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as t

from tests.house.log import Manifest, decode, encode, paths
from tests.house.sinks import SegmentSink, SinkContext
from tests.house.stores import StoreSpec, open_store
from wal_sink import wrap
from wal_sink.errors import WalSinkError
from wal_sink.spark.whole_batch import _dataframe


class Creates:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open, (str(self.file), "w")


def hidden(file: Path, name: str) -> dict[str, object]:
    """Return a user-defined type of this name, with a pickle hidden in its class."""
    payload = base64.b64encode(pickle.dumps(Creates(file))).decode()
    return {"type": "udt", "pyClass": name, "serializedClass": payload, "sqlType": "long"}


def attacks(folder: Path) -> dict[str, object]:
    """Return the attacks: the JSON of a column's type, by name."""
    module = folder / "modules" / "wal_sink_attack.py"
    module.parent.mkdir()
    module.write_text(f"open({str(folder / 'by import')!r}, 'w')\nclass Type: pass\n")
    sys.path.insert(0, str(module.parent))

    def pickled(name: str, known: str = "pyspark.sql.types.NoSuchType") -> dict[str, object]:
        return hidden(folder / name, known)

    array = {"type": "array", "containsNull": True}
    odd = {"type": "map", "valueContainsNull": True, "keyType": "string", "valueType": pickled("by a map")}
    inner = {"type": "struct", "fields": [{"name": "b", "nullable": True, "metadata": {}, "type": odd}]}
    return {
        "a class that is not there": pickled("by a class"),
        "a class of this program": pickled("by main", "__main__.NoSuchType"),
        "no type": pickled("by a function", "os.getcwd"),
        "deep": {**array, "elementType": {**array, "elementType": inner}},
        "a module that is not loaded": {**hidden(folder / "by both", "wal_sink_attack.Type")},
        "a module of this folder": {"type": "udt", "pyClass": "wal_sink_attack.Type", "sqlType": "long"},
        "a shell": {"type": "udt", "pyClass": "pyspark.shell.spark", "sqlType": "long"},
        "a key": {"type": "map", "valueContainsNull": True, "keyType": pickled("by a key"), "valueType": "long"},
    }


def schema_of(kind: object) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": "a", "nullable": True, "metadata": {}, "type": kind}]})


def read_back(wal: Path, schema: str) -> Manifest:
    """Return the manifest as a WAL stores it."""
    store, path = open_store(StoreSpec(str(wal))), paths.manifest(7, 1, 1)
    store.delete([path])
    manifest = Manifest(
        id="attacker",
        created="2026-01-01T00:00:00Z",
        batch_id=7,
        term=1,
        attempt=1,
        run_id="run",
        fingerprint="f",
        offsets="v1\n{}\n{}",
        columns=("a",),
        spark_schema=schema,
        chunk_rows=10,
        segments=(),
    )
    store.create(path, encode(manifest))
    return decode(Manifest, store.read(path), path)


def whole_batch(wal: Path, manifest: Manifest) -> object:
    """Return the input of a writer of whole batches. The schema is parsed before the session is used."""
    return _dataframe(None, StoreSpec(str(wal)), manifest)  # type: ignore[arg-type]


def rows(manifest: Manifest) -> object:
    """Return the input of a ForeachWriter."""
    sink = wrap.foreach_writer(print)
    assert isinstance(sink, SegmentSink)
    copy = pickle.loads(pickle.dumps(sink))  # noqa: S301 - bytes of this process
    copy.open(SinkContext("wal", "default", 1, 7, ("a",), on_executor=True, spark_schema=manifest.spark_schema))
    return copy.write_segment(0, 7, iter(()))


def said(read: Callable[[], object]) -> str:
    try:
        read()
    except WalSinkError as error:
        return f"{type(error).__name__}: {error}"
    except AttributeError as error:
        return "used" if "NoneType" in str(error) else traceback.format_exc()  # the session is None
    except Exception:  # noqa: BLE001 - the test must see any error
        return traceback.format_exc()
    return "used"


class Own(t.UserDefinedType):
    """A type that this program defines."""

    @classmethod
    def sqlType(cls) -> t.DataType:  # noqa: N802 - Spark's name
        return t.LongType()

    @classmethod
    def module(cls) -> str:
        return "__main__"


def main(folder: Path) -> None:
    seen: dict[str, dict[str, str]] = {}
    kinds = {name: schema_of(kind) for name, kind in attacks(folder).items()}
    for name, kind in {"vector": VectorUDT(), "own": Own()}.items():
        kinds[name] = t.StructType([t.StructField("a", kind)]).json()
    for name, schema in kinds.items():
        manifest = read_back(folder / "wal", schema)
        seen[name] = {
            "whole batch": said(lambda manifest=manifest: whole_batch(folder / "wal", manifest)),  # type: ignore[misc]
            "rows": said(lambda manifest=manifest: rows(manifest)),  # type: ignore[misc]
        }
    found = sorted(file.name for file in folder.iterdir() if file.name.startswith("by "))
    report = {"version": pyspark.__version__, "seen": seen, "created": found}
    (folder / "run.json").write_bytes(msgspec.json.encode(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
