"""The requests to DynamoDB: the table, the ledger, rows in a transaction or by puts; the client with its credentials.

Only this module knows boto3.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, get_args

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.calls import is_certificate_error
from wal_sink.sinks.ledger import LedgerEntry
from wal_sink.support.arguments import check_seconds, one_of
from wal_sink.support.secrets import mask_url
from wal_sink_backends.common.pacing import Patience, own_pause_s
from wal_sink_backends.common.sinks import client_library
from wal_sink_backends.dynamodb.items import (
    Identity,
    Item,
    Keys,
    Nulls,
    attributes,
    check_name,
    entry_in,
    keys_of,
    unchanged,
)

_NEVER = frozenset(
    {
        "AccessDeniedException",
        "IncompleteSignatureException",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "ResourceNotFoundException",
        "SerializationException",
        "ValidationException",
    }
)
"""Codes of errors that every attempt meets again."""
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException"})
_UNKNOWN = frozenset({"InvalidClientTokenId", "UnrecognizedClientException"})
"""Codes for credentials that are expired or unknown. boto3 may find newer ones in the same place."""


class TryAgainError(Exception):
    """DynamoDB cannot take the request now. A later attempt may succeed."""


class StaleCredentialsError(TryAgainError):
    """The service refuses these credentials. boto3 may find newer ones in the same place."""

    def __init__(self, told: str, *, expired: bool) -> None:
        super().__init__(told)
        self.expired = expired


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """A table and the way to reach it. Plain data without secrets."""

    table: str
    row_key: str | None
    nulls: Nulls
    region: str | None
    endpoint_url: str | None
    timeout_s: float

    def __post_init__(self) -> None:
        check_name(self.table, "table")
        one_of("nulls", self.nulls, get_args(Nulls))
        if self.row_key == "":
            raise ConfigError("row_key='': expected the name of the table's partition key")
        check_seconds("timeout_s", self.timeout_s, above_0=True)
        if self.endpoint_url is not None and not self.endpoint_url.startswith(("http://", "https://")):
            raise ConfigError(f"endpoint_url={mask_url(self.endpoint_url)!r}: expected http://… or https://…")

    def __repr__(self) -> str:
        where = mask_url(self.endpoint_url) if self.endpoint_url else self.region
        return f"{self.table!r}, {where!r}"


def code_of(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code"))


@contextmanager
def translated(what: str) -> Iterator[None]:
    """A context that turns boto3's errors into `PermanentError`, unless a retry may help."""
    from botocore import exceptions as errors  # noqa: PLC0415 - an extra

    try:
        yield
    except errors.ClientError as error:
        if code_of(error) in _NEVER:
            raise PermanentError(f"{what}: {error}") from error
        if code_of(error) in _EXPIRED | _UNKNOWN:
            raise StaleCredentialsError(f"{what}: {error}", expired=code_of(error) in _EXPIRED) from error
        raise
    except (errors.NoCredentialsError, errors.PartialCredentialsError, errors.NoRegionError) as error:
        raise PermanentError(
            f"{what}: {error} Set the missing values where the sink runs, in a place where boto3 looks for them"
        ) from None
    except errors.ParamValidationError as error:
        raise PermanentError(f"{what}: {error}") from error
    except errors.SSLError as error:
        if is_certificate_error(error):
            raise PermanentError(
                f"{what}: {error}. To trust the authority of this certificate, set AWS_CA_BUNDLE"
            ) from error
        raise


_session_lock = threading.Lock()


@lru_cache(maxsize=1)
def session() -> Any:
    """boto3's session, one in a process: it reads megabytes of descriptions, and sinks are opened for every task.

    Raises `ConfigError` naming the extra if boto3 is missing.
    """
    return client_library("boto3", "DynamoDbSink needs boto3", "dynamodb", "boto3").session.Session()


def forget_session(old: Any) -> None:
    """Make the next client read the credentials anew, unless another sink did that already."""
    with _session_lock:
        if session() is old:
            session.cache_clear()


def new_client(target: Target) -> tuple[Any, Any]:
    """A client and its session, which has the credentials."""
    with _session_lock:  # sessions are for one thread at a time, clients are not
        shared = session()
        from botocore.config import Config  # noqa: PLC0415 - boto3 brings it

        settings = Config(
            connect_timeout=target.timeout_s,
            read_timeout=target.timeout_s,
            retries={"mode": "standard", "total_max_attempts": 3},
        )
        with translated(repr(target)):
            client = shared.client(
                "dynamodb", region_name=target.region, endpoint_url=target.endpoint_url, config=settings
            )
        return client, shared


_USABLE = ("ACTIVE", "UPDATING")
"""States in which a table takes requests."""
_CONDITION = "ConditionalCheckFailed"
_ROW_IS_WRONG = frozenset({"ValidationError", "ItemCollectionSizeLimitExceeded"})
"""Reasons of a cancelled transaction that are about its rows."""
_ITEM_IS_WRONG = frozenset({"ValidationException", "ItemCollectionSizeLimitExceededException"})
"""Errors of PutItem and BatchWriteItem that are about their items."""
MOST_KEYS = 100
"""Most keys of one BatchGetItem: the service's quota."""


class RowsRefusedError(Exception):
    """A transaction was refused because of some rows, by their index in the chunk. Never leaves this package."""

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__(str(reasons))
        self.reasons = reasons


class ItemsRefusedError(Exception):
    """An item was refused, or one of several and the server did not tell which. Never leaves this package."""


class Calls:
    """A connected client and the table's keys. Not pickled; for one thread at a time."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.client, self._session = new_client(target)
        self.keys = Keys({}, ())
        self._identity = Identity("", "")
        self.recreated_is_fine = False
        self.oldest_deletes = -1
        """No remembered delete of the sink is of an older batch, as far as this was read."""
        self._is_renewed = False
        """Whether the credentials were read anew, and no request was successful since."""

    @classmethod
    def connect(cls, target: Target) -> Calls:
        calls = cls(target)
        try:
            with suppress(StaleCredentialsError):  # the call has read new credentials by then
                return calls.look()
            return calls.look()
        except BaseException:
            calls.close()
            raise

    def look(self) -> Calls:
        """Read the table's keys and identity, in one request. `PermanentError` if it is missing or does not fit."""
        with self._asking(repr(self.target)):
            self.keys, self._identity = _keys_and_identity(self.client, self.target)
        return self

    def check_unchanged(self, what: str) -> None:
        """Raise `TryAgainError` if the table's keys have changed: then no row is at fault."""
        before = self.keys
        self.look()
        if self.keys != before:
            raise TryAgainError(
                f"{what}: the keys of the table were {before}, but now they are {self.keys}: the table was altered in "
                "the meantime"
            )

    def close(self) -> None:
        self.client.close()

    def described_ledger(self, table: str, *, create: bool) -> dict[str, Any] | None:
        """The ledger's table; None if it is to be made. `PermanentError` if it is another table, or may not be made."""
        what = f"ledger table {table!r} of {self.target!r}"
        with self._asking(what):
            found = _described(self.client, table, what)
        _refuse_ledger(found, what, create=create)
        return found

    def check_ledger(self, table: str, *, create: bool) -> None:
        """Make the ledger's table if it is missing and may be made; `PermanentError` if it is another table."""
        found = self.described_ledger(table, create=create)
        with self._asking(f"ledger table {table!r} of {self.target!r}"):
            if found is None:
                self._create_ledger(table)
            if found is None or found.get("TableStatus") not in _USABLE:
                waiter = self.client.get_waiter("table_exists")
                waiter.wait(TableName=table, WaiterConfig={"Delay": 1, "MaxAttempts": 60})

    def _create_ledger(self, table: str) -> None:
        with suppress(self.client.exceptions.ResourceInUseException):  # another task makes it at the same moment
            self.client.create_table(
                TableName=table,
                KeySchema=[{"AttributeName": "slot", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "slot", "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )

    def ledger(self, table: str, slot: str) -> LedgerEntry | None:
        """The ledger's entry of a slot, read consistently; None if there is none."""
        what = f"slot {slot!r} of table {table!r}"
        with self._asking(what):
            try:
                found = self.client.get_item(TableName=table, Key={"slot": {"S": slot}}, ConsistentRead=True)
            except self.client.exceptions.ResourceNotFoundException as error:
                raise _ledger_missing(what, error) from error
        return self._entry_in(found["Item"]) if "Item" in found else None

    def ledgers(self, table: str, slots: Sequence[str], patience: Patience) -> dict[str, LedgerEntry]:
        """The entries of any number of slots; slots without an entry are left out."""
        names = dict.fromkeys(slots)  # the service refuses repeated keys
        entries = map(self._entry_in, self.read(table, [{"slot": {"S": slot}} for slot in names], patience))
        return {entry.position.slot: entry for entry in entries}

    def read(
        self, table: str, keys: Sequence[Mapping[str, Any]], patience: Patience, names: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """The items of any number of keys, read consistently, 100 in a request; those of `names`, or all attributes."""
        shown = {f"#{at}": name for at, name in enumerate(names)}
        part = {"ProjectionExpression": ", ".join(shown), "ExpressionAttributeNames": shown} if names else {}
        found: list[dict[str, Any]] = []
        for first in range(0, len(keys), MOST_KEYS):
            left = list(keys[first : first + MOST_KEYS])
            for wait_s in waits():
                items, left = self._read(table, left, part)
                found += items
                if not left:
                    break
                if not patience.wait(wait_s):
                    raise TryAgainError(
                        f"table {table!r}: DynamoDB throttles this table, and {len(left)} items were not read within "
                        "timeout_s. Raise the capacity of the table"
                    )
        return found

    def _read(
        self, table: str, keys: list[Mapping[str, Any]], part: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]]]:
        """Up to 100 items, and the keys that were left unread."""
        what = f"{len(keys)} items of table {table!r}, from {keys[0]} on"
        with self._asking(what):
            try:
                wanted = {table: {"Keys": keys, "ConsistentRead": True, **part}}
                answer = self.client.batch_get_item(RequestItems=wanted)
            except self.client.exceptions.ResourceNotFoundException as error:
                raise _ledger_missing(what, error) from error
        left: list[Mapping[str, Any]] = answer.get("UnprocessedKeys", {}).get(table, {}).get("Keys", [])
        return answer.get("Responses", {}).get(table, []), left

    def _entry_in(self, item: Mapping[str, Any]) -> LedgerEntry:
        """The entry in an item of the ledger. `HistoryError` if its rows are gone with their table."""
        entry = entry_in(item, repr(self.target))
        if not self.recreated_is_fine:
            self._identity.check(item, repr(self.target))
        return entry

    def ledger_move(self, table: str, stored: LedgerEntry | None, due: LedgerEntry) -> dict[str, Any]:
        """The request that puts the ledger's entry if the stored one is unchanged since it was read."""
        item = attributes(due) | self._identity.attributes()
        return {"Put": {"TableName": table, "Item": item, **unchanged(stored)}}

    def transact(self, items: Sequence[Item], requests: Sequence[Mapping[str, Any]], what: str) -> bool:
        """Write all or nothing; False if a condition is not met: the ledger or an item changed since it was read.

        `requests`: one for each of the items, in their order, and then others.

        botocore sends a random token with each call, and the same token when it repeats the call by itself. We set no
        lasting token: for ten minutes DynamoDB would report success for a repeat without checking anything, even after
        a table was emptied. The condition on the ledger makes a repeat harmless.
        """
        with self._asking(what):
            try:
                self.client.transact_write_items(TransactItems=list(requests))
            except self.client.exceptions.ResourceNotFoundException as error:
                if _described(self.client, self.target.table, what) is None:
                    raise
                raise _ledger_missing(what, error) from error
            except self.client.exceptions.TransactionCanceledException as error:
                return _cancelled(error.response.get("CancellationReasons", []), items, what)
            except self.client.exceptions.ClientError as error:
                wrong = self._refused_alone(items) if _is_invalid(error) else {}
                if not wrong:
                    raise
                raise RowsRefusedError(wrong) from error
        return True

    def put_if(self, request: Mapping[str, Any], what: str) -> dict[str, Any] | None:
        """Put or update an item under a condition. None if it was met, else the item that stays.

        Raises `ItemsRefusedError`.
        """
        call = self.client.update_item if "Key" in request else self.client.put_item
        with self._asking(what):
            try:
                call(TableName=self.target.table, ReturnValuesOnConditionCheckFailure="ALL_OLD", **request)
            except self.client.exceptions.ConditionalCheckFailedException as error:
                found: dict[str, Any] = error.response.get("Item", {})
                return found
            except self.client.exceptions.ClientError as error:
                if code_of(error) not in _ITEM_IS_WRONG:
                    raise
                raise ItemsRefusedError(str(error)) from error
        return None

    def _refused_alone(self, items: Sequence[Item]) -> dict[int, str]:
        """The rows that DynamoDB refuses by themselves, and the reasons, found one by one. Nothing is written.

        DynamoDB refuses a transaction for an item that is nested too deep, for example, without naming the item. So
        each item is put under a condition that no item fulfils: an acceptable one fails the condition, a wrong one is
        refused as in the transaction. Other errors of the client are raised.
        """
        refused: dict[int, str] = {}
        name = {"#key": next(iter(self.keys.types))}
        never = "attribute_exists(#key) AND attribute_not_exists(#key)"
        for item in items:
            try:
                self.client.put_item(
                    TableName=self.target.table,
                    Item=item.attributes,
                    ConditionExpression=never,
                    ExpressionAttributeNames=name,
                )
            except self.client.exceptions.ConditionalCheckFailedException:
                continue
            except self.client.exceptions.ClientError as error:
                if code_of(error) not in _ITEM_IS_WRONG:
                    raise
                refused[item.row] = str(error)
        return refused

    def put(self, requests: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
        """Put up to 25 items; returns those left unprocessed. Raises `ItemsRefusedError` if one cannot be put."""
        with self._asking(what):
            try:
                answer = self.client.batch_write_item(RequestItems={self.target.table: requests})
            except self.client.exceptions.ClientError as error:
                if code_of(error) not in _ITEM_IS_WRONG:
                    raise
                raise ItemsRefusedError(str(error)) from error
        left: list[dict[str, Any]] = answer.get("UnprocessedItems", {}).get(self.target.table, [])
        return left

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """`translated`; after stale credentials also a new client.

        `PermanentError` if the new credentials are refused too.
        """
        try:
            with translated(what):
                yield
        except StaleCredentialsError as error:
            if self._is_renewed and not error.expired:  # expired credentials are replaced by their issuer
                raise PermanentError(
                    f"{error}. New credentials were read, but DynamoDB refuses them too. Correct the credentials"
                ) from error
            self._renew()
            raise
        self._is_renewed = False

    def _renew(self) -> None:
        forget_session(self._session)
        client, self._session = new_client(self.target)
        self.client.close()
        self.client, self._is_renewed = client, True


def waits() -> Iterator[float]:
    """Growing pauses with jitter, without end; patience ends them."""
    return (own_pause_s(pauses, first_s=0.05, growth=2.0, longest_s=5.0) for pauses in count())


def _ledger_missing(what: str, error: Exception) -> TryAgainError:
    """The error for a ledger that existed when the sink was opened: not every server knows a new table, or it is
    deleted.
    """
    return TryAgainError(
        f"{what}: the table of the ledger was not found. It was just created, or it was deleted: {error}"
    )


def _cancelled(reasons: Sequence[Mapping[str, Any]], items: Sequence[Item], what: str) -> bool:
    """Raise why a transaction was cancelled; False if one of its conditions is not met.

    There is one reason per request, those of the items first.
    """
    codes = [str(reason.get("Code")) for reason in reasons]
    if _CONDITION in codes:
        return False
    wrong = {
        item.row: f"{reason['Code']}: {reason.get('Message', '')}"
        for item, reason in zip(items, reasons, strict=False)
        if reason.get("Code") in _ROW_IS_WRONG
    }
    if wrong:
        raise RowsRefusedError(wrong)
    told = ", ".join(sorted(set(codes).difference({"None"}))) or "DynamoDB gave no reason"
    raise TryAgainError(f"{what}: DynamoDB cancelled the transaction: {told}")


def _keys_and_identity(client: Any, target: Target) -> tuple[Keys, Identity]:
    found = _described(client, target.table, repr(target))
    if found is None:
        raise PermanentError(f"{target!r}: this table does not exist. Create it, or correct name and region")
    keys = keys_of(found)
    if target.row_key is not None and keys.types != {target.row_key: "S"}:
        raise PermanentError(
            f"{target!r}: the key of this table is {keys.types}, but row_key={target.row_key!r} needs a table whose "
            "only key is this string"
        )
    return keys, Identity.of(found, repr(target))


def _refuse_ledger(found: Mapping[str, Any] | None, what: str, *, create: bool) -> None:
    """Refuse another table than a ledger, and a missing one that is not to be made."""
    if found is None and not create:
        raise PermanentError(
            f"{what}: this table does not exist. Create it with the partition key 'slot' of type string, or "
            "pass create_ledger=True"
        )
    if found is not None and keys_of(found).types != {"slot": "S"}:
        raise PermanentError(
            f"{what}: the key of this table is {keys_of(found).types}, expected only the string 'slot'. Pass "
            "another ledger_table"
        )


def _described(client: Any, table: str, what: str) -> dict[str, Any] | None:
    """The service's description of a table; None if there is no such table."""
    with translated(what):
        try:
            found: dict[str, Any] = client.describe_table(TableName=table)["Table"]
        except client.exceptions.ResourceNotFoundException:
            return None
    return found


def _is_invalid(error: Any) -> bool:
    return code_of(error) == "ValidationException"
