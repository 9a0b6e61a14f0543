"""Items of the ledger in DynamoDB: the entry of a slot, and the condition that it is unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wal_sink.errors import PermanentError
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.ledger import LedgerEntry


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
