"""What a table says of its keys, and which rows of a refused transaction are to blame."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from wal_sink.errors import ConfigError, HistoryError, PermanentError

if TYPE_CHECKING:
    from wal_sink_backends.dynamodb.items import Item

MOST_KEY_BYTES = (2048, 1024)
"""Of the partition key and of the sort key, of a table and of an index."""
ROW_IS_WRONG = frozenset({"ValidationError", "ItemCollectionSizeLimitExceeded"})
"""Of a transaction's reasons."""
ITEM_IS_WRONG = frozenset({"ValidationException", "ItemCollectionSizeLimitExceededException"})
"""Of the errors of a PutItem or a BatchWriteItem."""
_NAME = re.compile(r"(arn:[a-z0-9-]+:dynamodb:[a-z0-9-]*:[0-9]*:table/)?[A-Za-z0-9_.-]+")
"""A name, or an ARN: the service's own rule."""


def check_name(table: str, argument: str) -> None:
    """Raise `ConfigError` for what cannot be a table's name. It is not shown: it may hold credentials."""
    if not table:
        raise ConfigError(f"{argument}='': expected the name of a DynamoDB table")
    if not _NAME.fullmatch(table):
        raise ConfigError(
            f"{argument}: expected the name of a DynamoDB table (letters, digits, '_', '-' and '.') or its ARN, found "
            f"{len(table)} characters with others among them. They are not shown because they may hold credentials. "
            "Give the name alone: boto3 finds credentials where the sink runs, in the environment, a profile or a role"
        )


def is_same_table(one: str, other: str) -> bool:
    """Whether two tables of one client are the same.

    A name is in the client's own account and region, and a transaction reaches no other ones. So an ARN that ends with
    that name is the same table.
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
    """The attributes of a table whose types the table prescribes."""

    types: Mapping[str, str]
    """S, N or B by the name of each attribute of the primary key."""
    indexes: tuple[IndexKey, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """Which table this is: one that is deleted and created again has the same name and another id."""

    table: str
    id: str

    @classmethod
    def of(cls, found: Mapping[str, Any], what: str) -> Self:
        """What a description tells. Where a server tells no id (DynamoDB always does), the time of creation is one."""
        told = found.get("TableId") or found.get("CreationDateTime")
        if not told:
            raise PermanentError(
                f"{what}: its description has neither TableId nor CreationDateTime, so a table that was emptied by "
                "creating it again could not be told; use a server that tells one of them"
            )
        return cls(found["TableName"], str(told))

    def attributes(self) -> dict[str, Any]:
        """What the ledger holds of it, beside the position."""
        return {"table": {"S": self.table}, "table_id": {"S": self.id}}

    def check(self, item: Mapping[str, Any], what: str) -> None:
        """Raise `HistoryError` if an item of the ledger tells of a table of this name that is gone.

        An item without a table was written by an older version, which noted none: its slot is as it always was, and
        the next chunk notes the table. One with another name tells of the table that the sink had before.
        """
        noted = item.get("table_id")
        if noted is not None and "table" not in item:
            raise PermanentError(
                f"{what}: the ledger's item of slot {item['slot']} is damaged: expected the name 'table' beside "
                "'table_id', found none. Restore the item"
            )
        if noted is None or item["table"] != {"S": self.table} or noted == {"S": self.id}:
            return
        raise HistoryError(
            f"{what}, slot {item['slot']['S']!r}: table {self.table!r} was deleted and created again since batch "
            f"{item['batch_id']['N']}, row {item['rows']['N']}: expected the id {noted['S']}, found {self.id}. Rows "
            "that were delivered before are gone. Restore the table and its ledger, or go on without those rows: "
            "recreated_table='accept'"
        )


def keys_of(found: Mapping[str, Any]) -> Keys:
    """What the description of a table tells of its keys."""
    types = {one["AttributeName"]: one["AttributeType"] for one in found["AttributeDefinitions"]}
    own = {one["AttributeName"]: types[one["AttributeName"]] for one in found["KeySchema"]}
    return Keys(own, tuple(_index_keys(found, types, own)))


def _index_keys(found: Mapping[str, Any], types: Mapping[str, str], own: Mapping[str, str]) -> Iterator[IndexKey]:
    indexes = [*found.get("GlobalSecondaryIndexes", ()), *found.get("LocalSecondaryIndexes", ())]
    for index in indexes:
        for one, most_bytes in zip(index["KeySchema"], MOST_KEY_BYTES, strict=False):
            name = one["AttributeName"]
            if name not in own:  # which is checked as the table's
                yield IndexKey(name, types[name], index["IndexName"], most_bytes)


def cancelled_for(reasons: Sequence[Mapping[str, Any]], items: Sequence[Item]) -> dict[int, str]:
    """The rows that a cancelled transaction blames, and why. It tells a reason an item, in their order."""
    return {
        item.row: f"{reason['Code']}: {reason.get('Message', '')}"
        for item, reason in zip(items, reasons, strict=False)
        if reason.get("Code") in ROW_IS_WRONG
    }


def refused_alone(client: Any, table: str, keys: Keys, items: Sequence[Item]) -> dict[int, str]:
    """The rows that DynamoDB refuses by themselves, and why, asked one by one. Nothing is written.

    It refuses a transaction for an item that is nested too deep, and for much else, without a word of which item. So
    each item is put under a condition that no item fulfils: one that could be put fails the condition, another is
    refused as the transaction was. Raises what else the client raises.
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
