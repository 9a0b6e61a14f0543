"""Reads files of Avro, as Iceberg's manifests are, without the library that wrote them."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_MAGIC, _SYNC, _RAW = b"Obj\x01", 16, -15


def records(data: bytes) -> list[dict[str, Any]]:
    """Return the records of a file."""
    stream = io.BytesIO(data)
    assert stream.read(len(_MAGIC)) == _MAGIC
    header = _value({"type": "map", "values": "bytes"}, stream)
    schema, sync, found = json.loads(header["avro.schema"]), stream.read(_SYNC), list[dict[str, Any]]()
    while stream.tell() < len(data):
        count, block = _whole(stream), stream.read(_whole(stream))
        if header.get("avro.codec") == b"deflate":
            block = zlib.decompress(block, _RAW)
        rows = io.BytesIO(block)
        found += [_value(schema, rows) for _ in range(count)]
        assert stream.read(_SYNC) == sync
    return found


def _value(schema: Any, stream: io.BytesIO) -> Any:
    if isinstance(schema, list):
        return _value(schema[_whole(stream)], stream)
    kind = schema["type"] if isinstance(schema, dict) else schema
    return _READERS[kind](schema, stream) if isinstance(kind, str) else _value(kind, stream)


def _whole(stream: io.BytesIO) -> int:
    number = shift = 0
    while (byte := stream.read(1)[0]) > 127:
        number, shift = number | (byte & 127) << shift, shift + 7
    number |= byte << shift
    return (number >> 1) ^ -(number & 1)


def _items(stream: io.BytesIO) -> Iterator[int]:
    while count := _whole(stream):
        if count < 0:
            _whole(stream)  # the bytes of the block
        yield from range(abs(count))


def _bytes(_: Any, stream: io.BytesIO) -> bytes:
    return stream.read(_whole(stream))


_READERS: Mapping[str, Callable[[Any, io.BytesIO], Any]] = {
    "null": lambda _, __: None,
    "boolean": lambda _, stream: stream.read(1) == b"\1",
    "int": lambda _, stream: _whole(stream),
    "long": lambda _, stream: _whole(stream),
    "float": lambda _, stream: struct.unpack("<f", stream.read(4))[0],
    "double": lambda _, stream: struct.unpack("<d", stream.read(8))[0],
    "bytes": _bytes,
    "string": lambda schema, stream: _bytes(schema, stream).decode(),
    "fixed": lambda schema, stream: stream.read(schema["size"]),
    "record": lambda schema, stream: {one["name"]: _value(one["type"], stream) for one in schema["fields"]},
    "array": lambda schema, stream: [_value(schema["items"], stream) for _ in _items(stream)],
    "map": lambda schema, stream: {_value("string", stream): _value(schema["values"], stream) for _ in _items(stream)},
}
