"""The requests to DynamoDB and what its errors mean; all that knows boto3."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from wal_sink.chunk import Position
from wal_sink.errors import ConfigError, PermanentError
from wal_sink.stores.spec import mask_url
from wal_sink_backends.dynamodb_items import Item, Nulls

_NEVER = frozenset(
    {
        "AccessDeniedException",
        "IncompleteSignatureException",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "ResourceNotFoundException",
        "SerializationException",
        "UnrecognizedClientException",
        "ValidationException",
    }
)
"""Codes that another attempt meets again."""
_ROW_IS_WRONG = frozenset({"ValidationError", "ItemCollectionSizeLimitExceeded"})
_ITEM_IS_WRONG = frozenset({"ValidationException", "ItemCollectionSizeLimitExceededException"})
"""Of a transaction's reasons, and of errors of a BatchWriteItem."""
_CONDITION = "ConditionalCheckFailed"


class TryAgainError(Exception):
    """DynamoDB has no room for this now. A later attempt may succeed."""


class RowsRefusedError(Exception):
    """A transaction was cancelled because of some rows, by their index in the chunk. Never leaves this package."""

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__(str(reasons))
        self.reasons = reasons


class ItemsRefusedError(Exception):
    """One of some items was refused, and the server did not say which. Never leaves this package."""


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """Which table, and how it is reached. Plain data without secrets."""

    table: str
    row_key: str | None
    nulls: Nulls
    region: str | None
    endpoint_url: str | None
    timeout_s: float

    def __post_init__(self) -> None:
        if not self.table:
            raise ConfigError("table='': expected the name of a DynamoDB table")
        if self.nulls not in ("null", "omit"):
            raise ConfigError(f"nulls={self.nulls!r}: expected 'null' or 'omit'")
        if self.row_key == "":
            raise ConfigError("row_key='': expected the name of the table's partition key")
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s={self.timeout_s!r}: expected a number of seconds above 0")
        if self.endpoint_url is not None and not self.endpoint_url.startswith(("http://", "https://")):
            raise ConfigError(f"endpoint_url={mask_url(self.endpoint_url)!r}: expected http://… or https://…")

    def __repr__(self) -> str:
        where = mask_url(self.endpoint_url) if self.endpoint_url else self.region
        return f"{self.table!r}, {where!r}"


@dataclass(frozen=True, slots=True)
class LedgerItem:
    """What the ledger tells of a slot."""

    term: int
    position: Position

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> LedgerItem:
        batch_id, rows = int(item["batch_id"]["N"]), int(item["rows"]["N"])
        return cls(int(item["term"]["N"]), Position(item["slot"]["S"], batch_id, rows, item["segment_id"]["S"]))

    def attributes(self) -> dict[str, Any]:
        at = self.position
        return {
            "slot": {"S": at.slot},
            "term": {"N": str(self.term)},
            "batch_id": {"N": str(at.batch_id)},
            "rows": {"N": str(at.rows)},
            "segment_id": {"S": at.segment_id},
        }


@dataclass(frozen=True, slots=True)
class Calls:
    """A connected client, and the table's key. Not pickled."""

    target: Target
    client: Any
    key_types: Mapping[str, str]
    """S, N or B by the name of each attribute of the primary key."""

    @classmethod
    def connect(cls, target: Target) -> Calls:
        client = _client(target)
        try:
            return cls(target, client, _key_types(client, target))
        except BaseException:
            client.close()
            raise

    def close(self) -> None:
        self.client.close()

    def check_ledger(self, table: str, *, create: bool) -> None:
        """Make the ledger's table if it is missing and may be made; `PermanentError` if it is another table."""
        what = f"ledger table {table!r} of {self.target!r}"
        schema = _schema(self.client, table, what)
        if schema is None and not create:
            raise PermanentError(f"{what}: there is none; create it with the string partition key 'slot', or let us")
        if schema is None:
            self._create_ledger(table, what)
        elif schema != {"slot": "S"}:
            raise PermanentError(f"{what}: its key is {schema}, expected the string 'slot' alone; name another table")

    def _create_ledger(self, table: str, what: str) -> None:
        with translated(what):
            with suppress(self.client.exceptions.ResourceInUseException):  # another task makes it at this moment
                self.client.create_table(
                    TableName=table,
                    KeySchema=[{"AttributeName": "slot", "KeyType": "HASH"}],
                    AttributeDefinitions=[{"AttributeName": "slot", "AttributeType": "S"}],
                    BillingMode="PAY_PER_REQUEST",
                )
            self.client.get_waiter("table_exists").wait(TableName=table, WaiterConfig={"Delay": 1, "MaxAttempts": 60})

    def ledger(self, table: str, slot: str) -> LedgerItem | None:
        """What the ledger tells of a slot, read consistently."""
        with translated(f"slot {slot!r} of table {table!r}"):
            found = self.client.get_item(TableName=table, Key={"slot": {"S": slot}}, ConsistentRead=True)
        return LedgerItem.of(found["Item"]) if "Item" in found else None

    def transact(
        self, items: Sequence[Item], ledger_table: str, stored: LedgerItem | None, due: LedgerItem, what: str
    ) -> bool:
        """Put rows and ledger, if the ledger still is as it was read; False if it is not.

        botocore sends a token of its own with the call and repeats it when it tries again by itself. We give none that
        lasts: DynamoDB would answer a repeat with success for ten minutes without looking, even after a table was
        emptied. The condition on the ledger is what keeps a repeat harmless.
        """
        puts = [{"Put": {"TableName": self.target.table, "Item": item.attributes}} for item in items]
        ledger = {"TableName": ledger_table, "Item": due.attributes(), **_unchanged(stored)}
        with translated(what):
            try:
                self.client.transact_write_items(TransactItems=[*puts, {"Put": ledger}])
            except self.client.exceptions.TransactionCanceledException as error:
                return _cancelled(error.response.get("CancellationReasons", []), items, what)
        return True

    def put(self, requests: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
        """Put up to 25 items; those that were left unprocessed. Raises `ItemsRefusedError` if one cannot be put."""
        with translated(what):
            try:
                answer = self.client.batch_write_item(RequestItems={self.target.table: requests})
            except self.client.exceptions.ClientError as error:
                if _code(error) not in _ITEM_IS_WRONG:
                    raise
                raise ItemsRefusedError(str(error)) from error
        left: list[dict[str, Any]] = answer.get("UnprocessedItems", {}).get(self.target.table, [])
        return left


def _unchanged(stored: LedgerItem | None) -> dict[str, Any]:
    """The condition that an item of the ledger is as it was read."""
    if stored is None:
        return {"ConditionExpression": "attribute_not_exists(#slot)", "ExpressionAttributeNames": {"#slot": "slot"}}
    compared = {name: value for name, value in stored.attributes().items() if name != "slot"}
    return {
        "ConditionExpression": " AND ".join(f"#{name} = :{name}" for name in compared),
        "ExpressionAttributeNames": {f"#{name}": name for name in compared},
        "ExpressionAttributeValues": {f":{name}": value for name, value in compared.items()},
    }


def _cancelled(reasons: Sequence[Mapping[str, Any]], items: Sequence[Item], what: str) -> bool:
    """Why a transaction was cancelled: one reason an item, the ledger's last. False if the ledger moved."""
    codes = [str(reason.get("Code")) for reason in reasons]
    if len(codes) > len(items) and codes[len(items)] == _CONDITION:
        return False
    wrong = {
        item.row: f"{code}: {reason.get('Message', '')}"
        for item, code, reason in zip(items, codes, reasons, strict=False)
        if code in _ROW_IS_WRONG
    }
    if wrong:
        raise RowsRefusedError(wrong)
    told = ", ".join(sorted(set(codes).difference({"None"}))) or "for no reason it told"
    raise TryAgainError(f"{what}: DynamoDB cancelled the transaction: {told}")


def _key_types(client: Any, target: Target) -> dict[str, str]:
    schema = _schema(client, target.table, repr(target))
    if schema is None:
        raise PermanentError(f"{target!r}: there is no such table; create it, or correct name and region")
    if target.row_key is not None and schema != {target.row_key: "S"}:
        raise PermanentError(
            f"{target!r}: its key is {schema}; row_key={target.row_key!r} needs a table whose key is that string alone"
        )
    return schema


def _schema(client: Any, table: str, what: str) -> dict[str, str] | None:
    """Names and types of a table's key attributes; None without such a table."""
    with translated(what):
        try:
            found = client.describe_table(TableName=table)["Table"]
        except client.exceptions.ResourceNotFoundException:
            return None
    types = {one["AttributeName"]: one["AttributeType"] for one in found["AttributeDefinitions"]}
    return {one["AttributeName"]: types[one["AttributeName"]] for one in found["KeySchema"]}


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code"))


@contextmanager
def translated(what: str) -> Iterator[None]:
    """boto3's errors become `PermanentError`, or pass if a retry may help."""
    from botocore import exceptions as errors  # noqa: PLC0415 - an extra

    try:
        yield
    except errors.ClientError as error:
        if _code(error) in _NEVER:
            raise PermanentError(f"{what}: {error}") from error
        raise
    except (errors.NoCredentialsError, errors.PartialCredentialsError, errors.NoRegionError) as error:
        raise PermanentError(f"{what}: {error} Set them where the sink runs, as boto3 looks for them") from None
    except errors.ParamValidationError as error:
        raise PermanentError(f"{what}: {error}") from error


_session_lock = threading.Lock()


@lru_cache(maxsize=1)
def session() -> Any:
    """boto3's session, one in a process: it reads megabytes of descriptions, and sinks are opened for every task.

    Raises `ConfigError` naming the extra if boto3 is missing.
    """
    try:
        import boto3  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError("DynamoDbSink needs boto3: pip install 'wal-sink[dynamodb]'") from error
    return boto3.session.Session()


def _client(target: Target) -> Any:
    with _session_lock:  # sessions are for one thread at a time, clients are not
        shared = session()
        from botocore.config import Config  # noqa: PLC0415 - boto3 brings it

        settings = Config(
            connect_timeout=target.timeout_s,
            read_timeout=target.timeout_s,
            retries={"mode": "standard", "total_max_attempts": 3},
        )
        with translated(repr(target)):
            return shared.client(
                "dynamodb", region_name=target.region, endpoint_url=target.endpoint_url, config=settings
            )
