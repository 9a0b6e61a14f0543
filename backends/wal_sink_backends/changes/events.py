"""`debezium`: its arguments. Spark is imported where it is called, since draining needs none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from wal_sink.support.arguments import check_text, one_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Connector: TypeAlias = Literal["postgresql", "mysql", "mariadb", "oracle"]
VERSIONS: dict[str, tuple[str, ...]] = {
    "postgresql": ("source_lsn",),
    "mysql": ("source_file", "source_pos", "source_row"),
    "mariadb": ("source_file", "source_pos", "source_row"),
    "oracle": ("source_scn",),
}
"""By connector: the place of a change in the source's log (clocks go back), the most important column first."""


def debezium(
    df: DataFrame,
    *,
    columns: str | StructType,
    key: str | Sequence[str],
    connector: Connector,
    value: str = "value",
    operation: str = "op",
    observed_as: str = "debezium",
) -> DataFrame:
    """The rows of Debezium's events in the JSON column `value` (text, or Kafka's bytes): one table, an event a row.

    Returns `columns` (such as `"id BIGINT, name STRING"`), the `operation` (c, r, u or d), and the version, to be given
    to a sink as `key` (the table's primary key), `operation` and `newer_by`. The version is `source_lsn` (PostgreSQL),
    `source_file`, `source_pos` and `source_row` (MySQL, MariaDB) or `source_scn` (Oracle): the place of the change in
    the source's log. A snapshot has version 0, older than any change. A column that an event lacks is NULL. An update
    that changed the key becomes two rows, a delete and an update; Debezium itself sends most of them as two events.
    Readers may see the moment between them.

    Tombstones and heartbeats are left out, and counted in Spark's progress: `observedMetrics[observed_as]` has
    `events`, `tombstones` and `heartbeats`. Any other event becomes a row whose operation says what it is, such as `t`
    for a truncate: sinks refuse it by name. So do they with an update that lacks the value of a column which did not
    change (TOAST), unless the event has its before-image, and with a before-image or a delete without the key.

    Runs on the driver, with functions of Spark only; over Spark Connect too. Raises `ConfigError`. Text that is no
    JSON, or more than one event, or a value of another type than its column, fails the query.
    """
    from wal_sink_backends.changes.expressions import rows_of_events  # noqa: PLC0415 - see above

    one_of("connector", connector, get_args(Connector))
    check_text("operation", operation)
    keys = [key] if isinstance(key, str) else list(key)
    versions = VERSIONS[connector]
    return rows_of_events(df, columns, keys, connector, versions, value=value, operation=operation, name=observed_as)
