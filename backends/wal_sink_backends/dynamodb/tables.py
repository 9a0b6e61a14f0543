"""The keys and the identity of a table, and the rows for which it refuses a transaction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from wal_sink.errors import ConfigError, HistoryError, PermanentError

if TYPE_CHECKING:
    from wal_sink_backends.dynamodb.items import Item

MOST_KEY_BYTES = (2048, 1024)
"""Most bytes of the partition key and of the sort key, of a table and of an index."""
ROW_IS_WRONG = frozenset({"ValidationError", "ItemCollectionSizeLimitExceeded"})
"""Reasons of a cancelled transaction that are about its rows."""
ITEM_IS_WRONG = frozenset({"ValidationException", "ItemCollectionSizeLimitExceededException"})
"""Errors of PutItem and BatchWriteItem that are about their items."""
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


class RowsRefusedError(Exception):
    """A transaction was refused because of some rows, by their index in the chunk. Never leaves this package."""

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__(str(reasons))
        self.reasons = reasons


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


def cancelled_for(reasons: Sequence[Mapping[str, Any]], items: Sequence[Item]) -> dict[int, str]:
    """The rows that a cancelled transaction blames, and the reasons. It gives one reason per item, in order."""
    return {
        item.row: f"{reason['Code']}: {reason.get('Message', '')}"
        for item, reason in zip(items, reasons, strict=False)
        if reason.get("Code") in ROW_IS_WRONG
    }


def refused_alone(client: Any, table: str, keys: Keys, items: Sequence[Item]) -> dict[int, str]:
    """The rows that DynamoDB refuses by themselves, and the reasons, found one by one. Nothing is written.

    DynamoDB refuses a transaction for an item that is nested too deep, for example, without naming the item. So each
    item is put under a condition that no item fulfils: an acceptable one fails the condition, a wrong one is refused as
    in the transaction. Other errors of the client are raised.
    """
    refused: dict[int, str] = {}
    name = {"#key": next(iter(keys.types))}
    never = "attribute_exists(#key) AND attribute_not_exists(#key)"
    for item in items:
        try:
            client.put_item(
                TableName=table, Item=item.attributes, ConditionExpression=never, ExpressionAttributeNames=name
            )
        except client.exceptions.ConditionalCheckFailedException:
            continue
        except client.exceptions.ClientError as error:
            if error.response.get("Error", {}).get("Code") not in ITEM_IS_WRONG:
                raise
            refused[item.row] = str(error)
    return refused
