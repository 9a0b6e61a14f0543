"""Rows as DynamoDB items, and the rows that no item can hold; the keys and the identity of a table; the ledger's items:
the entry of a slot, and that it is unchanged.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Literal, Self, TypeAlias

import pyarrow as pa

from wal_sink.errors import ConfigError, HistoryError, PermanentError
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.sinks.ledger import LedgerEntry
from wal_sink_backends.common.columns import rows_without_utf8, stored_type

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
            f"{len(table)} characters, some of them not allowed. They are not shown, because they may contain "
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
        other = f"is given, but {item['table']['S']!r} has the rows up to" if item["table"] != {"S": self.table} else ""
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


Nulls: TypeAlias = Literal["null", "omit"]
MOST_ITEM_BYTES = 400 * 1024
_DIGITS = 38
_SMALLEST, _LARGEST = -130, 125
"""Decimal exponents of a number's first digit: the service's range."""
_EXACT = Context(prec=100)
"""Rounds no number that Arrow has; the default context keeps 28 digits."""
_IS: Any = pa.types


@dataclass(frozen=True, slots=True)
class Item:
    """One item to put."""

    row: int
    """The index of its row in the chunk."""
    attributes: dict[str, Any]
    size: int
    """Bytes as DynamoDB counts them, or a few more."""
    key: str
    """`key_text` of the row."""


class _Number(str):
    """The digits of a number, as they stand in JSON."""

    __slots__ = ()


class _UnfitError(Exception):
    """A value that no item can hold."""


def encoded(
    chunk: Chunk, row_key: str | None, nulls: Nulls, keys: Keys, what: str
) -> tuple[list[Item], dict[int, str]]:
    """An item for each row, and the reasons of rows that no item can hold.

    Raises `PermanentError` for columns that cannot be carried, or that do not fit a key of the table.
    """
    try:
        lines = chunk.to_json(lines=True, maps="entries").split(b"\n")[:-1]
    except ConfigError as error:
        raise PermanentError(f"{what}: {error}") from error
    fields = {field.name: stored_type(field.type) for field in chunk.table.schema}
    check_columns(list(fields), row_key, keys.types, what)
    items: list[Item] = []
    refused = rows_without_utf8(chunk.table)
    for row, (line, own_key) in enumerate(zip(lines, chunk.row_keys(), strict=True)):
        if row in refused:
            continue
        values = json.loads(line, parse_int=_Number, parse_float=_Number)
        try:
            attributes = {name: _attribute(value, fields[name]) for name, value in values.items()}
            if row_key is not None:
                attributes[row_key] = {"S": own_key}
            key = _key(attributes, keys.types, fields, what)
            kept = {name: value for name, value in attributes.items() if nulls == "null" or "NULL" not in value}
            _check_indexes(kept, keys.indexes, fields, what)
            items.append(Item(row, kept, _checked_size(kept), key))
        except _UnfitError as error:
            refused[row] = str(error)
    return items, refused


def last_of_each_key(items: Sequence[Item]) -> list[Item]:
    """The item that stays of those with one key, if no version decides."""
    return list({item.key: item for item in items}.values())


def key_text(attributes: Mapping[str, Any], names: Iterable[str]) -> str:
    """The key of an item, as a text to compare."""
    parts = (next(iter(attributes[name].items())) for name in names)
    return " ".join(_same_for_equals(value) if kind == "N" else repr(value) for kind, value in parts)


def check_columns(names: Sequence[str], row_key: str | None, key_types: Mapping[str, str], what: str) -> None:
    """Raise `PermanentError` for columns that cannot be attributes, or that lack the table's key."""
    listed = ", ".join(names)
    if "" in names:
        raise PermanentError(
            f"{what}: a column has an empty name ({listed}), but an attribute needs a name. Rename the column"
        )
    if row_key is not None:
        if row_key in names:
            raise PermanentError(f"{what}: column {row_key!r} has the name of row_key. Rename the column ({listed})")
        return
    missing = [name for name in key_types if name not in names]
    if missing:
        raise PermanentError(
            f"{what}: the table's key {missing[0]!r} is not among the columns {listed}. Rename a column in the query. "
            "Or use a table whose whole key is one string attribute, and name this attribute in row_key"
        )


def _key(attributes: Mapping[str, Any], key_types: Mapping[str, str], fields: Mapping[str, Any], what: str) -> str:
    """`key_text` of a row. Raises `_UnfitError`, or `PermanentError` for a column that cannot be such a key."""
    for (name, expected), most_bytes in zip(key_types.items(), MOST_KEY_BYTES, strict=False):
        if "NULL" in attributes[name]:
            raise _UnfitError(f"column {name!r} of the row's key is NULL")
        place = _Place(f"column {name!r} of the row's key", "the table's key", expected, most_bytes)
        place.check(name, attributes[name], fields.get(name), what)
    return key_text(attributes, key_types)


def _check_indexes(
    attributes: Mapping[str, Any], indexes: Sequence[IndexKey], fields: Mapping[str, Any], what: str
) -> None:
    """Refuse a row whose value no index of the table takes. An item without the attribute is in no such index."""
    for one in indexes:
        attribute = attributes.get(one.attribute)
        if attribute is None:
            continue
        index = f"the key of index {one.index!r}"
        if "NULL" in attribute:
            raise _UnfitError(
                f"column {one.attribute!r} is NULL, but it is {index}. A key cannot be NULL. Correct the row, or pass "
                "nulls='omit': the item is then stored without this attribute, and does not appear in the index"
            )
        place = _Place(f"column {one.attribute!r}, {index},", index, one.kind, one.most_bytes)
        place.check(one.attribute, attribute, fields.get(one.attribute), what)


@dataclass(frozen=True, slots=True)
class _Place:
    """A key whose type and length DynamoDB prescribes."""

    subject: str
    key: str
    expected: str
    most_bytes: int

    def check(self, name: str, attribute: Mapping[str, Any], field: Any, what: str) -> None:
        """Raise `_UnfitError` for a value, `PermanentError` for a column that cannot be such a key."""
        ((kind, value),) = attribute.items()
        if self.expected == "N" and kind == "S" and _is_number(field):
            raise _UnfitError(f"{self.subject} is {value}, but DynamoDB cannot hold this value as a number")
        if kind != self.expected:
            raise PermanentError(
                f"{what}: column {name!r} would be stored as {kind}, but {self.key} is {self.expected}. Cast the "
                "column in the query"
            )
        if kind != "N" and not 0 < len(_bytes(value)) <= self.most_bytes:
            raise _UnfitError(f"{self.subject} has {len(_bytes(value))} bytes, expected 1 to {self.most_bytes}")


def _same_for_equals(digits: str) -> str:
    """A number's text, the same for 1 and 1.0, and for 0 and -0."""
    return str(Decimal(digits).normalize(_EXACT) or Decimal(0))


def _checked_size(attributes: Mapping[str, Any]) -> int:
    size = sum(len(name.encode()) + _size(value) for name, value in attributes.items())
    if size > MOST_ITEM_BYTES:
        raise _UnfitError(
            f"the item has about {size} bytes, but an item can have at most {MOST_ITEM_BYTES} bytes. Make the row "
            "smaller in the query"
        )
    return size


def _size(attribute: Mapping[str, Any]) -> int:
    """Bytes of a value; of a number, at most: https://docs.aws.amazon.com/amazondynamodb CapacityUnitCalculations."""
    ((kind, value),) = attribute.items()
    if kind == "L":
        return 3 + sum(1 + _size(one) for one in value)
    if kind == "M":
        return 3 + sum(1 + len(name.encode()) + _size(one) for name, one in value.items())
    if kind == "N":
        return min(21, len(value) // 2 + 2)
    return len(_bytes(value)) if kind in ("S", "B") else 1


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


# Values: from JSON to attributes, by the type of the column.


def _is_number(kind: Any) -> bool:
    return kind is not None and bool(_IS.is_integer(kind) or _IS.is_floating(kind) or _IS.is_decimal(kind))


def _attribute(value: Any, kind: Any) -> dict[str, Any]:
    if isinstance(value, (dict, list)):
        return _nested(value, kind)
    if value is None:
        return {"NULL": True}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, _Number):
        return {"N" if _is_held(value) else "S": str(value)}
    return {"B": base64.b64decode(value)} if "binary" in str(kind) else {"S": value}


def _nested(value: Any, kind: Any) -> dict[str, Any]:
    if _IS.is_map(kind):
        return _map(value, kind)
    if isinstance(value, dict):
        return {"M": {field.name: _attribute(value[field.name], stored_type(field.type)) for field in kind}}
    return {"L": [_attribute(one, stored_type(kind.value_type)) for one in value]}


def _map(entries: Sequence[Mapping[str, Any]], kind: Any) -> dict[str, Any]:
    key_kind, item_kind = stored_type(kind.key_type), stored_type(kind.item_type)
    if "string" in str(key_kind):
        keys = [entry["key"] for entry in entries]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise _UnfitError(f"a map holds the key {twice!r} twice, and DynamoDB keeps only one of them")
        return {"M": {entry["key"]: _attribute(entry["value"], item_kind) for entry in entries}}
    pairs = [(_attribute(one["key"], key_kind), _attribute(one["value"], item_kind)) for one in entries]
    return {"L": [{"M": {"key": key, "value": item}} for key, item in pairs]}


def _is_held(digits: str) -> bool:
    """Whether DynamoDB holds a number to its last digit.

    Of Spark's numbers, only some floating ones are beyond that.
    """
    number = Decimal(digits)
    few = len(number.normalize(_EXACT).as_tuple().digits) <= _DIGITS
    return not number or (_SMALLEST <= number.adjusted() <= _LARGEST and few)
