"""Checks of the arguments of `run`, `start` and `stage`; the errors show the right call. Driver only."""

from __future__ import annotations

from typing import Any, cast

from wal_sink.errors import ConfigError

_WRITER = "DataStreamWriter"
_EXPECTED = "expected a DataStreamWriter: df.writeStream of a streaming DataFrame"


def check_stream_writer(writer: object) -> None:
    """Refuse anything but a `DataStreamWriter`, known by its class name: Spark Connect has its own. `ConfigError`."""
    if not any(base.__name__ == _WRITER for base in type(writer).__mro__):
        kind = type(writer).__name__
        raise ConfigError(f"{kind} cannot be run: {_EXPECTED}{_meant(writer, kind)}. Nothing was started")


def check_batch_frame(df: object) -> None:
    """Refuse a batch for `stage` that is no `DataFrame`. Raises `ConfigError`."""
    if not hasattr(df, "sparkSession"):
        raise ConfigError(
            f"stage got a {type(df).__name__} as its DataFrame: expected stage(df, batch_id), with the two arguments "
            "of foreachBatch in this order"
        )


def _meant(given: object, kind: str) -> str:
    if kind == "DataFrame":
        if not cast("Any", given).isStreaming:
            return (
                ". This is a batch DataFrame, and streaming queries need a streaming one: read its source with "
                "spark.readStream, then pass df.writeStream"
            )
        return "; write sink.run(df.writeStream) instead of sink.run(df)"
    if kind in {"DataFrameWriter", "DataFrameWriterV2"}:
        return (
            "; df.write writes once and has no checkpoint: read the source with spark.readStream, pass df.writeStream"
        )
    if kind == "StreamingQuery":
        return "; this query was started already. Leave out start(): sink.run(df.writeStream.trigger(…))"
    return ""
