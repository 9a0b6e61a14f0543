"""The keys and the identity of a table, and items of the ledger: the entry of a slot, and that it is unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from wal_sink.errors import ConfigError, HistoryError, PermanentError
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.ledger import LedgerEntry

MOST_KEY_BYTES = (2048, 1024)
"""Most bytes of the partition key and of the sort key, of a table and of an index."""
_NAME = re.compile(r"(arn:[a-z0-9-]+:dynamodb:[a-z0-9-]*:[0-9]*:table/)?[A-Za-z0-9_.-]+")
"""A name, or an ARN: the service's own rule."""


def check_name(table: str, argument: str) -> None:
    """Raise `ConfigError` for text that cannot be a table's name. It is not shown, as it may hold credentials."""
    if not table:
        raise ConfigError(f"{argument}='': expected the name of a DynamoDB table")
    if not _NAME.fullmatch(table):
        raise ConfigError(
            f"{argument}: expected the name of a DynamoDB table (letters, digits, '_', '-' and '.') or its ARN, found "
            f"{len(table)} characters with others among them. The characters are not shown, because they may contain "
            "credentials. Pass only the name: boto3 finds credentials where the sink runs, in the environment, a "
            "profile or a role"
        )


def is_same_table(one: str, other: str) -> bool:
    """Whether two tables of one client are the same.

    A name is in the client's account and region, and a transaction reaches no others. So an ARN that ends with that
    name is the same table.
    """
    if ":" in one and ":" in other:  # two ARNs: no name has a colon
        return one == other
    return one.rpartition("/")[2] == other.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class IndexKey:
    """An attribute by which an index finds items. An item without it is not in the index."""

    attribute: str
    kind: str
    """S, N or B."""
    index: str
    most_bytes: int


@dataclass(frozen=True, slots=True)
class Keys:
    """The attributes for which a table prescribes types."""

    types: Mapping[str, str]
    """S, N or B by the name of each attribute of the primary key."""
    indexes: tuple[IndexKey, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a table: after it is deleted and created again, it has the same name and another id."""

    table: str
    id: str

    @classmethod
    def of(cls, found: Mapping[str, Any], what: str) -> Self:
        """The identity in a description. DynamoDB always tells an id; for other servers the time of creation serves."""
        told = found.get("TableId") or found.get("CreationDateTime")
        if not told:
            raise PermanentError(
                f"{what}: the description of this table has neither TableId nor CreationDateTime. So wal-sink could "
                "not notice that the table was deleted and created again. Use a server that returns one of these "
                "fields"
            )
        return cls(found["TableName"], str(told))

    def attributes(self) -> dict[str, Any]:
        """The attributes that a ledger item holds of it, beside the position."""
        return {"table": {"S": self.table}, "table_id": {"S": self.id}}

    def check(self, item: Mapping[str, Any], what: str) -> None:
        """Raise `HistoryError` if an item of the ledger names another table, or a former one of this name."""
        if "table" not in item or "table_id" not in item:
            raise PermanentError(
                f"{what}: the ledger item for slot {item['slot']} is damaged. Expected the attributes 'table' and "
                f"'table_id', found {sorted(item)}. Restore the item"
            )
        noted = item["table_id"]
        if item["table"] == {"S": self.table} and noted == {"S": self.id}:
            return
        other = f"is given, but {item['table']['S']!r} has the rows to" if item["table"] != {"S": self.table} else ""
        raise HistoryError(
            f"{what}, slot {item['slot']['S']!r}: table {self.table!r} "
            f"{other or 'was deleted and created again after'} batch {item['batch_id']['N']}, row {item['rows']['N']}. "
            f"Expected the table id {noted['S']}, found {self.id}. The rows delivered before that are not in it. "
            "Restore the table and its ledger, or give the sink a new name. Or pass recreated_table='accept' to "
            "continue without those rows"
        )


def keys_of(found: Mapping[str, Any]) -> Keys:
    """The keys in the description of a table."""
    types = {one["AttributeName"]: one["AttributeType"] for one in found["AttributeDefinitions"]}
    own = {one["AttributeName"]: types[one["AttributeName"]] for one in found["KeySchema"]}
    return Keys(own, tuple(_index_keys(found, types, own)))


def _index_keys(found: Mapping[str, Any], types: Mapping[str, str], own: Mapping[str, str]) -> Iterator[IndexKey]:
    indexes = [*found.get("GlobalSecondaryIndexes", ()), *found.get("LocalSecondaryIndexes", ())]
    for index in indexes:
        for one, most_bytes in zip(index["KeySchema"], MOST_KEY_BYTES, strict=False):
            name = one["AttributeName"]
            if name not in own:  # the table's keys are checked anyway
                yield IndexKey(name, types[name], index["IndexName"], most_bytes)


# Items of the ledger.


def entry_in(item: Mapping[str, Any], what: str) -> LedgerEntry:
    """The entry of a slot. `PermanentError` for a damaged item: nothing is sent on a guess."""
    try:
        batch_id, rows = int(item["batch_id"]["N"]), int(item["rows"]["N"])
        at = Position(item["slot"]["S"], batch_id, rows, item["segment_id"]["S"])
        return LedgerEntry(int(item["term"]["N"]), at)
    except (KeyError, TypeError, ValueError) as error:
        raise PermanentError(
            f"{what}: the ledger item for slot {item.get('slot')} is damaged ({type(error).__name__}: {error}). "
            "Expected the numbers 'term', 'batch_id' and 'rows', and the string 'segment_id'. Restore the item"
        ) from error


def attributes(entry: LedgerEntry) -> dict[str, Any]:
    at = entry.position
    return {
        "slot": {"S": at.slot},
        "term": {"N": str(entry.term)},
        "batch_id": {"N": str(at.batch_id)},
        "rows": {"N": str(at.rows)},
        "segment_id": {"S": at.segment_id},
    }


def unchanged(stored: LedgerEntry | None) -> dict[str, Any]:
    """The condition that an item of the ledger is unchanged since it was read."""
    if stored is None:
        return {"ConditionExpression": "attribute_not_exists(#slot)", "ExpressionAttributeNames": {"#slot": "slot"}}
    compared = {name: value for name, value in attributes(stored).items() if name != "slot"}
    return {
        "ConditionExpression": " AND ".join(f"#{name} = :{name}" for name in compared),
        "ExpressionAttributeNames": {f"#{name}": name for name in compared},
        "ExpressionAttributeValues": {f":{name}": value for name, value in compared.items()},
    }
