"""Rows as DynamoDB items: exactly once, in one transaction with the position, or by puts that may be repeated."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.base import Rejected, SinkContext
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.sinks.ledger import LedgerEntry
from wal_sink.support.arguments import one_of
from wal_sink.support.texts import Finding, fine
from wal_sink_backends.common.changes import OnDelete, warn_of_repeated_keys
from wal_sink_backends.common.newest import DELETES_KEPT, Events, NewestWins
from wal_sink_backends.common.pacing import Patience
from wal_sink_backends.common.sinks import IfRecreated, LedgerSink, ReadySink, name_of, reached
from wal_sink_backends.dynamodb.calls import Calls, ItemsRefusedError, RowsRefusedError, Target, TryAgainError, waits
from wal_sink_backends.dynamodb.items import (
    Item,
    Nulls,
    check_columns,
    check_name,
    encoded,
    is_same_table,
    last_of_each_key,
)
from wal_sink_backends.dynamodb.versions import MOST_DELETES, Versioned, conditional, stays

__all__ = ["DynamoDbPutSink", "DynamoDbSink", "TryAgainError"]

MOST_ROWS = 99
"""The service's quota is 100 items in a transaction, one of which is the ledger's."""
MOST_BYTES = 4_000_000
"""The service's quota for all items of a transaction is 4 MB."""
_MOST_CHUNK_BYTES = 2_000_000
"""Most bytes of a chunk as Arrow holds it: names and numbers take more in DynamoDB."""
_LOOKS = 3
_PUTS = 25
"""Most items of one BatchWriteItem."""


class _OneTable(ReadySink, ABC):
    """The part of a sink that is the same for both ways to write to a table."""

    _target: Target
    _rule: NewestWins | None = None
    _calls: Calls | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._target!r})"

    def _puts(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        return [{"Put": {"TableName": self._target.table, "Item": item.attributes}} for item in items]

    def _encoded(self, chunk: Chunk, calls: Calls, what: str) -> tuple[list[Item], dict[int, str], Events | None]:
        """The items, the rows that are refused, and with versions what the rows do."""
        events = None if self._rule is None else self._rule.read(chunk.table, what, key=calls.keys.types)
        stored = chunk if events is None else replace(chunk, table=events.stored)
        items, refused = encoded(stored, self._target.row_key, self._target.nulls, calls.keys, what)
        if events is None:
            last = last_of_each_key(items)
            warn_of_repeated_keys(len(items), len(last), repr(self))
            return last, refused, None
        return items, refused | events.refused, events

    def _key_finding(self, calls: Calls, schema: Any) -> Finding:
        """The key of the table. `PermanentError` if rows of this Arrow schema do not fit."""
        if schema is not None:
            check_columns(schema.names, self._target.row_key, calls.keys.types, repr(self._target))
        if schema is not None and self._rule is not None:
            self._rule.read(schema.empty_table(), repr(self), key=calls.keys.types)
        return fine("target.table", f"the key of the table is {', '.join(calls.keys.types)}")

    def close(self) -> None:
        """Close the connections."""
        if self._calls is not None:
            self._calls.close()
            self._calls = None


class DynamoDbSink(_OneTable, LedgerSink):
    """A DynamoDB table that gets rows and position in one transaction (`TransactWriteItems`). Runs anywhere.

    A chunk has to fit into one transaction: at most 99 rows and 4 MB. Stage with
    `Settings(chunk_rows=99, chunk_bytes=2_000_000)`; a query with larger ones is refused at start. For more rows a
    second use `DynamoDbPutSink`.

    The columns of a row become the attributes of an item. Those of the table's primary key have to be among them; an
    item of the same key is replaced, and of two rows of one key in a chunk the last one stays. Or `row_key` names the
    table's partition key, a string, which gets the row's own positional key: every row is an item.

    Numbers are N (those it cannot hold, NaN and infinities are text), texts S, binary B, booleans
    BOOL, lists L, structs and maps with text keys M, other maps L of `key` and `value`, moments ISO 8601 text. NULL is
    an attribute of type NULL, or none at all with `nulls="omit"`. A row that DynamoDB can never hold (over 400 KB, its
    key or an index's NULL or empty, nested too deep) is returned as `Rejected`.

    The ledger is the table `ledger_table`, of string key `slot`, made on demand unless `create_ledger=False`.
    `recreated_table="accept"`: go on if the table was deleted and created again, without the rows delivered before.
    boto3 finds credentials and region on the machine where the sink runs. `timeout_s` is the limit for an answer.
    Tested against moto and DynamoDB Local only. Raises `ConfigError` for arguments that cannot work.

        sink = DynamoDbSink("orders", region="eu-central-1")
    """

    max_chunk_rows = MOST_ROWS
    max_chunk_bytes = _MOST_CHUNK_BYTES

    def __init__(
        self,
        table: str,
        *,
        row_key: str | None = None,
        nulls: Nulls = "null",
        region: str | None = None,
        endpoint_url: str | None = None,
        ledger_table: str = "wal_sink_ledger",
        create_ledger: bool = True,
        timeout_s: float = 30.0,
        recreated_table: IfRecreated = "refuse",
        newer_by: Sequence[str] | str = (),
        operation: str | None = None,
        delete_when: str | None = None,
        on_delete: OnDelete = "delete",
        deletes_kept: int = DELETES_KEPT,
    ) -> None:
        self._target = Target(table, row_key, nulls, region, endpoint_url, timeout_s)
        self._ledger_table, self.target_name = ledger_table, table
        self._create_ledger = create_ledger
        self._recreated_table = recreated_table
        check_name(ledger_table, "ledger_table")
        one_of("recreated_table", recreated_table, get_args(IfRecreated))
        self._rule = NewestWins.of(
            f"DynamoDbSink({table!r})",
            key=() if row_key else None,
            newer_by=newer_by,
            operation=operation,
            delete_when=delete_when,
            on_delete=on_delete,
            deletes_kept=deletes_kept,
        )
        if self._rule is not None and self._rule.changes is not None:
            self.max_concurrency = 1
        if self._rule is not None and self._rule.remembers:
            self.max_chunk_rows = MOST_DELETES
        if is_same_table(ledger_table, table):
            raise ConfigError(f"ledger_table={ledger_table!r}: expected the name of a table other than {table!r}")

    def open(self, context: SinkContext) -> None:  # noqa: ARG002 - the ledger needs no context
        """Check both tables; make a missing ledger. `PermanentError`, or an error that a retry may help."""
        calls = Calls.connect(self._target)
        try:
            calls.check_ledger(self._ledger_table, create=self._create_ledger)
        except BaseException:
            calls.close()
            raise
        calls.recreated_is_fine = self._recreated_table == "accept"
        self._calls = calls

    def examine(self, schema: Any) -> Sequence[Finding]:
        """Describe both tables, and compare the key with these columns. A missing ledger is not made."""
        calls = Calls.connect(self._target)
        try:
            has_ledger = calls.described_ledger(self._ledger_table, create=self._create_ledger) is not None
        finally:
            calls.close()
        return [reached(repr(self), has_ledger=has_ledger), self._key_finding(calls, schema)]

    def positions_in_ledger(self, slots: Sequence[str]) -> Mapping[str, Position]:
        """The positions, read consistently, 100 in a request.

        The table is checked again, in one request: rows that it had when this sink was opened may be gone since.

        Raises `HistoryError` if it was deleted and created again, `TryAgainError` if DynamoDB leaves some positions
        unread for longer than `timeout_s`.
        """
        calls = self.opened(self._calls)
        if slots:
            calls.look()
        found = calls.ledgers(self._ledger_table, slots, Patience(self._target.timeout_s))
        return {slot: entry.position for slot, entry in found.items()}

    def write(self, chunk: Chunk) -> Rejected | None:
        """Rows and position in one transaction; nothing if the ledger is there already.

        Raises `FencedError` for a lower term than the ledger's, `HistoryError` for other rows than the ledger tells
        of, `PermanentError` for a chunk that fits no transaction and if no retry can help; anything else may be tried
        again.
        """
        what = f"{name_of(chunk)}: {self._target!r}"
        calls = self.opened(self._calls)
        items, refused, events = self._encoded(chunk, calls, what)
        if refused:
            return Rejected(refused)
        _check_fits(items, self.max_chunk_rows or MOST_ROWS, what)
        versioned = None
        if self._rule is not None and events is not None:
            versioned = Versioned(self._rule, events, calls, chunk, ledger_table=self._ledger_table)
        for _ in range(_LOOKS):
            stored = calls.ledger(self._ledger_table, chunk.position.slot)
            if LedgerEntry.is_known(stored, chunk, f"{self._ledger_table} for {self._target!r}"):
                return None
            try:
                rows, requests = versioned.requests(items, what) if versioned else (items, self._puts(items))
                moved = calls.ledger_move(self._ledger_table, stored, LedgerEntry.of(chunk))
                if calls.transact(rows, [*requests, moved], what):
                    if versioned is not None:
                        versioned.forget()
                    return None
            except RowsRefusedError as error:
                calls.check_unchanged(what)
                return Rejected(error.reasons)
        raise TryAgainError(
            f"{what}: other processes write to the ledger item for slot {chunk.position.slot}, or to the same rows, at "
            "the same time"
        )


class DynamoDbPutSink(_OneTable):
    """A DynamoDB table that gets rows by `BatchWriteItem`, in chunks of any size. Runs anywhere.

    Repeats put the same items again. That is exactly once in effect with `row_key`, or if no key occurs twice, which
    you declare by `idempotent=True`. Otherwise it delivers at least once: if later rows replace earlier ones of a key,
    a repeated chunk may restore an older item until the newer chunk is sent again. A superseded process may restore an
    older item for good, with the chunk it still holds. `DynamoDbSink` refuses that.

    Arguments, types and keys as with `DynamoDbSink`. `max_wait_s`: the most seconds that one call waits in
    all for items that DynamoDB leaves unprocessed.
    """

    def __init__(
        self,
        table: str,
        *,
        row_key: str | None = None,
        nulls: Nulls = "null",
        region: str | None = None,
        endpoint_url: str | None = None,
        timeout_s: float = 30.0,
        max_wait_s: float = 60.0,
        idempotent: bool = False,
        newer_by: Sequence[str] | str = (),
        operation: str | None = None,
        delete_when: str | None = None,
        on_delete: OnDelete = "delete",
    ) -> None:
        self._rule = NewestWins.of(
            f"DynamoDbPutSink({table!r})",
            key=() if row_key else None,
            newer_by=newer_by,
            operation=operation,
            delete_when=delete_when,
            on_delete=on_delete,
        )
        is_stream = self._rule is not None and self._rule.changes is not None
        if self._rule is not None and self._rule.remembers:
            raise ConfigError(
                "DynamoDbPutSink remembers no deletes, so an older row would come back. Pass delete_when and "
                "on_delete='mark', or use DynamoDbSink"
            )
        self.idempotent = idempotent or row_key is not None or is_stream
        self.replaces_rows = row_key is None
        self._target = Target(table, row_key, nulls, region, endpoint_url, timeout_s)
        self._max_wait_s = max_wait_s

    def open(self, context: SinkContext) -> None:  # noqa: ARG002 - puts need no context
        """Check the table. `PermanentError`, or an error that a retry may help."""
        self._calls = Calls.connect(self._target)

    def examine(self, schema: Any) -> Sequence[Finding]:
        """Describe the table, and compare its key with these columns."""
        calls = Calls.connect(self._target)
        calls.close()
        return [fine("target", f"{self!r} can be reached"), self._key_finding(calls, schema)]

    def write(self, chunk: Chunk) -> Rejected | None:
        """Put every row that DynamoDB can hold, 25 in a request, and return the others.

        Raises `PermanentError` if no retry can help, `TryAgainError` if DynamoDB leaves items unprocessed for too
        long; anything else may be tried again.
        """
        calls = self.opened(self._calls)
        what = f"{name_of(chunk)}: {self._target!r}"
        items, refused, events = self._encoded(chunk, calls, what)
        patience = Patience(self._max_wait_s)
        told: dict[int, str] = {}
        if self._rule is not None and events is not None:
            rows = [item for item in items if item.row not in refused]
            told = {item.row: reason for item in rows if (reason := self._put_if(calls, item, events, what))}
            items = []
        for start in range(0, len(items), _PUTS):
            told |= self._put_or_tell(calls, items[start : start + _PUTS], patience, what)
        if told:
            calls.check_unchanged(what)
        return Rejected(refused | told) if refused or told else None

    def _put_or_tell(self, calls: Calls, items: Sequence[Item], patience: Patience, what: str) -> dict[int, str]:
        """Put items, one by one if one of them is refused; the reasons of the refused ones by row."""
        try:
            self._put(calls, items, patience, what)
        except ItemsRefusedError as error:
            if len(items) == 1:
                return {items[0].row: str(error)}
            told = [self._put_or_tell(calls, [item], patience, what) for item in items]
            return {row: reason for reasons in told for row, reason in reasons.items()}
        return {}

    def _put_if(self, calls: Calls, item: Item, events: Events, what: str) -> str:
        """Put or mark an item if its version says so; why it is refused, or nothing."""
        assert self._rule is not None  # noqa: S101 - the caller has looked
        found: dict[str, Any] | None = {}
        try:
            for request in conditional(self._rule, item, list(calls.keys.types), is_delete=events.deletes[item.row]):
                if (found := calls.put_if(request, what)) is None:
                    return ""
            stays(self._rule, events, item, found or {})
        except ItemsRefusedError as error:
            return str(error)
        return ""

    def _put(self, calls: Calls, items: Sequence[Item], patience: Patience, what: str) -> None:
        left = [{"PutRequest": {"Item": item.attributes}} for item in items]
        for wait_s in waits():
            left = calls.put(left, what)
            if not left:
                return
            if not patience.wait(wait_s):
                raise TryAgainError(
                    f"{what}: DynamoDB throttles the table, and {len(left)} items were not written. Raise the capacity "
                    "of the table, or max_wait_s"
                )


def _check_fits(items: Sequence[Item], most_rows: int, what: str) -> None:
    size = sum(item.size for item in items)
    if len(items) > most_rows or size > MOST_BYTES:
        raise PermanentError(
            f"{what}: {len(items)} rows, {size} bytes, but a transaction can have at most {most_rows} rows and "
            f"{MOST_BYTES} bytes. Stage with Settings(chunk_rows={most_rows}, chunk_bytes={_MOST_CHUNK_BYTES}). Only a "
            "DynamoDbPutSink can receive batches that are staged already"
        )
