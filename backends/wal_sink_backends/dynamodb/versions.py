"""Rows with versions as requests: in a transaction after what was read, or one by one under a condition.

Deletes are remembered in the table of the ledger. An item for each deleted key has its version. Each chunk that deletes
adds a list of its keys, under the next number, so that they are found when their batch is old. One item tells which
lists there are, the oldest batch since which no delete was forgotten, and `newer_by`. Each transaction has the
condition that its numbers are as they were read; so writers of one sink, replays too, cannot decide by what another
one just changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from wal_sink.sinks.chunk import Chunk
from wal_sink_backends.common.newest import MOMENT, Events, NewestWins, too_old
from wal_sink_backends.common.pacing import Patience
from wal_sink_backends.dynamodb.calls import Calls, ItemsRefusedError, RowsRefusedError
from wal_sink_backends.dynamodb.items import Item, key_text

Attributes: TypeAlias = Mapping[str, Any]
Version: TypeAlias = Sequence["Attributes | None"]
Request: TypeAlias = dict[str, Any]
MOST_DELETES = 48
"""Rows of a transaction, each of which may need two requests: 100 without the ledger, the lists and one list."""
_LISTS = 2
"""Lists that are forgotten after a chunk, which adds one."""


def compared(forms: str, stored: Version | None, new: Version) -> int:
    """Below 0 if the stored version is the older one, 0 if they are equal. No version is the oldest.

    Raises `ItemsRefusedError` if the stored version has another type.
    """
    if stored is None:
        return -1
    for form, old, due in zip(forms, stored, new, strict=True):
        if old is None or "NULL" in old:
            return -1
        (kind, one), (expected, other) = *old.items(), *(due or {}).items()
        if kind != expected or (form == MOMENT and len(one) != len(other)):
            raise ItemsRefusedError(
                f"a column of newer_by is {one!r} ({kind}), which cannot be compared with {other!r} ({expected})"
            )
        left, right = (Decimal(one), Decimal(other)) if kind == "N" else (one.encode(), other.encode())
        if left != right:
            return -1 if left < right else 1
    return 0


@dataclass(slots=True)
class _Key:
    """The state of a key while the rows of a chunk are applied one after the other."""

    read: Attributes | None
    """The item, or the part of it that was read; None: there is none."""
    row: Version | None
    """The version of the row that stays."""
    dead: Version | None
    item: Item | None = None
    """The row that decided last."""
    put: Attributes | None = None
    marked: bool = False
    deleted: bool = False


class Versioned:
    """The rows of a chunk with versions, for one transaction after the other until one of them is accepted."""

    def __init__(self, rule: NewestWins, events: Events, calls: Calls, chunk: Chunk, *, ledger_table: str) -> None:
        self._rule, self._events, self._calls, self._ledger = rule, events, calls, ledger_table
        self._chunk, self._patience = chunk, Patience(calls.target.timeout_s)
        self._sink = "/".join(chunk.position.slot.split("/")[:2])
        self._lists: Attributes | None = None
        self._newer_by = {"L": [{"S": name} for name in rule.newer_by]}

    def requests(self, items: Sequence[Item], what: str) -> tuple[list[Item], list[Request]]:
        """The rows that change something, with a request each, and then requests for the memory of deletes.

        Raises `PermanentError` for a batch older than the memory and for another `newer_by`, `RowsRefusedError`.
        """
        known = self._read(items)
        covered = self._number("covered")
        if self._rule.remembers and self._chunk.batch_id < covered:
            raise too_old(what, self._chunk.batch_id, covered)
        stored: Attributes = (self._lists or {}).get("newer_by", {"L": []})
        if stored != self._newer_by and self._number("first") < self._number("next"):
            raise self._rule.other_newer_by(what, [name["S"] for name in stored["L"]])
        refused: dict[int, str] = {}
        for item in items:
            try:
                self._apply(known[item.key], item)
            except ItemsRefusedError as error:
                refused[item.row] = str(error)
        if refused:
            raise RowsRefusedError(refused)
        changed = [key for key in known.values() if key.item is not None]
        rows = [self._request(key) for key in changed]
        dead = {key.item.key: key.dead for key in changed if key.deleted and key.item and key.dead}
        return [key.item for key in changed if key.item], rows + (self._remember(dead) if self._rule.remembers else [])

    def forget(self) -> None:
        """Forget deletes whose batch is old enough, of a few lists. The next chunk goes on if this ends early."""
        floor = self._chunk.batch_id - self._rule.deletes_kept + 1
        if not self._rule.remembers or self._calls.oldest_deletes >= floor:
            return
        for _ in range(_LISTS):
            self._lists = self._items([self._slot()]).get(self._slot())
            number = self._number("first")
            if number >= self._number("next"):
                self._calls.oldest_deletes = self._chunk.batch_id
                return
            listed = self._items([self._slot(number)]).get(self._slot(number), {"batch_id": {"N": "0"}})
            if (oldest := int(listed["batch_id"]["N"])) >= floor:
                self._calls.oldest_deletes = oldest
                return
            keys = listed.get("keys", {"SS": []})["SS"]
            stored = self._items([f"{self._sink}/deleted/{key}" for key in keys])
            gone = [slot for slot, item in stored.items() if item["list"] == {"N": str(number)}]
            covered = max(self._number("covered"), oldest + 1)
            lists = self._put_lists(first=number + 1, next_=self._number("next"), covered=covered)
            deletes = [{"Delete": {"TableName": self._ledger, "Key": {"slot": {"S": slot}}}} for slot in gone]
            deletes.append({"Delete": {"TableName": self._ledger, "Key": {"slot": {"S": self._slot(number)}}}})
            if not self._calls.transact((), [*deletes, lists], f"deletes of {self._sink} in {self._ledger!r}"):
                return

    def _read(self, items: Sequence[Item]) -> dict[str, _Key]:
        """The keys of the rows, with what the table and the memory have of them."""
        by_key = {item.key: item for item in items}
        dead = {key: f"{self._sink}/deleted/{_digest(key)}" for key in by_key} if self._rule.remembers else {}
        if self._rule.remembers:
            found = self._items([self._slot(), *dead.values()])
            self._lists = found.get(self._slot())
        else:
            found = {}
        names = list(self._calls.keys.types)
        table, keys = self._calls.target.table, [_key_of(item, names) for item in by_key.values()]
        rows = self._calls.read(table, keys, self._patience, [*names, *self._rule.newer_by])
        stored = {key_text(row, names): row for row in rows}
        known: dict[str, _Key] = {}
        for key in by_key:
            row = stored.get(key)
            grave = found.get(dead.get(key, ""))
            versions = None if grave is None else [grave.get(f"v{at}") for at in range(len(self._rule.newer_by))]
            known[key] = _Key(row, None if row is None else self._version(row), versions)
        return known

    def _apply(self, key: _Key, item: Item) -> None:
        """One row, after those before it."""
        new, forms = self._version(item.attributes), self._events.forms
        by_row, by_dead = compared(forms, key.row, new), compared(forms, key.dead, new)
        if not self._events.deletes[item.row]:
            is_newer = by_row < 0 or (self._rule.changes is None and by_row == 0)
            if is_newer and by_dead < 0:
                key.item, key.put, key.row, key.marked, key.deleted = item, item.attributes, new, False, False
        elif self._rule.mark is None:
            if by_row <= 0 and (by_dead < 0 or (by_dead == 0 and key.row is not None)):
                key.item, key.put, key.row, key.dead, key.deleted = item, None, None, new, True
        elif key.row is None:
            key.item, key.put, key.row = item, item.attributes, new
        elif by_row <= 0:
            key.item, key.row = item, new
            if key.put is None:
                key.marked = True
            else:
                key.put = {**key.put, **self._marks(item)}

    def _request(self, key: _Key) -> Request:
        """The request for a key's row, under the condition that its version is as it was read."""
        assert key.item is not None  # noqa: S101 - the caller chose those
        table, names = self._calls.target.table, list(self._calls.keys.types)
        shown = {"#k": names[0]}
        values: dict[str, Any] = {}
        texts = [f"attribute_{'not_' if key.read is None else ''}exists(#k)"]
        for at, name in enumerate(self._rule.newer_by if key.read is not None else ()):
            old = (key.read or {}).get(name)
            shown[f"#v{at}"] = name
            texts.append(f"attribute_not_exists(#v{at})" if old is None else f"#v{at} = :v{at}")
            values |= {} if old is None else {f":v{at}": old}
        condition: Request = {"TableName": table, "ConditionExpression": " AND ".join(texts)}
        if key.put is not None:
            request: Request = {"Item": key.put}
        else:
            request = {"Key": _key_of(key.item, names)}
            if key.marked:
                marks = self._marks(key.item)
                shown |= {f"#m{at}": name for at, name in enumerate(marks)}
                values |= {f":m{at}": value for at, value in enumerate(marks.values())}
                request["UpdateExpression"] = "SET " + ", ".join(f"#m{at} = :m{at}" for at in range(len(marks)))
        verb = "Put" if key.put is not None else "Update" if key.marked else "Delete"
        given = {"ExpressionAttributeValues": values} if values else {}
        return {verb: {**condition, **request, "ExpressionAttributeNames": shown, **given}}

    def _marks(self, item: Item) -> dict[str, Any]:
        """The attributes that a delete sets in a row that stays."""
        names = [*self._rule.newer_by, *([self._rule.mark] if self._rule.mark else [])]
        return {name: item.attributes[name] for name in names}

    def _version(self, attributes: Attributes) -> Version:
        return [attributes.get(name) for name in self._rule.newer_by]

    # The memory of deletes.

    def _slot(self, number: int | None = None) -> str:
        return f"{self._sink}/deletes" + ("" if number is None else f"/{number}")

    def _number(self, name: str) -> int:
        return int(self._lists[name]["N"]) if self._lists is not None else 0

    def _items(self, slots: Sequence[str]) -> dict[str, Any]:
        keys = [{"slot": {"S": slot}} for slot in slots]
        return {item["slot"]["S"]: item for item in self._calls.read(self._ledger, keys, self._patience)}

    def _remember(self, dead: Mapping[str, Version]) -> list[Request]:
        number, digests = self._number("next"), {_digest(key): version for key, version in dead.items()}
        found: list[Request] = []
        for digest, version in digests.items():
            item: dict[str, Any] = {"slot": {"S": f"{self._sink}/deleted/{digest}"}, "list": {"N": str(number)}}
            item |= {f"v{at}": value for at, value in enumerate(version) if value is not None}
            found.append({"Put": {"TableName": self._ledger, "Item": item}})
        if digests:
            listed: dict[str, Any] = {"slot": {"S": self._slot(number)}, "keys": {"SS": list(digests)}}
            listed["batch_id"] = {"N": str(self._chunk.batch_id)}
            found.append({"Put": {"TableName": self._ledger, "Item": listed}})
        first, covered = self._number("first"), self._number("covered")
        after = number + bool(digests)
        return [*found, self._put_lists(first=first, next_=after, covered=covered, newer_by=self._newer_by)]

    def _put_lists(self, *, first: int, next_: int, covered: int, **more: Attributes) -> Request:
        """The item that tells which lists there are, if it is as it was read."""
        numbers = {"first": first, "next": next_, "covered": covered}
        after = {name: {"N": str(number)} for name, number in numbers.items()}
        item = {**(self._lists or {"slot": {"S": self._slot()}}), **after, **more}
        names = {"#slot": "slot"} if self._lists is None else {f"#{name}": name for name in numbers}
        request: Request = {"TableName": self._ledger, "Item": item, "ExpressionAttributeNames": names}
        if self._lists is None:
            return {"Put": {**request, "ConditionExpression": "attribute_not_exists(#slot)"}}
        request["ConditionExpression"] = " AND ".join(f"#{name} = :{name}" for name in numbers)
        request["ExpressionAttributeValues"] = {f":{name}": self._lists[name] for name in numbers}
        return {"Put": request}


# One by one, without a transaction.


def conditional(rule: NewestWins, item: Item, names: Sequence[str], *, is_delete: bool) -> list[Request]:
    """The requests for a row: the first whose condition is met is enough."""
    shown = {f"#v{at}": name for at, name in enumerate(rule.newer_by)}
    values: dict[str, Any] = {f":v{at}": item.attributes[name] for at, name in enumerate(rule.newer_by)}
    last, older = len(rule.newer_by) - 1, ""
    for at in range(last, -1, -1):
        below = "<=" if at == last and (is_delete or rule.changes is None) else "<"
        rest = f" OR (#v{at} = :v{at} AND ({older}))" if older else ""
        older = f"attribute_not_exists(#v{at}) OR attribute_type(#v{at}, :null) OR #v{at} {below} :v{at}{rest}"
    whole: Request = {"ConditionExpression": older, "ExpressionAttributeNames": shown}
    given = {**values, ":null": {"S": "NULL"}}
    if not is_delete:
        return [{"Item": item.attributes, **whole, "ExpressionAttributeValues": given}]
    assert rule.mark is not None  # noqa: S101 - else deletes are refused
    absent = {"ConditionExpression": "attribute_not_exists(#k)", "ExpressionAttributeNames": {"#k": names[0]}}
    sets = ", ".join(["#m = :m", *(f"{name} = :v{at}" for at, name in enumerate(shown))])
    marks = {**given, ":m": item.attributes[rule.mark]}
    update = {"Key": _key_of(item, names), "UpdateExpression": f"SET {sets}"}
    shown = {**shown, "#m": rule.mark}
    return [
        {"Item": item.attributes, **absent},
        {**update, **whole, "ExpressionAttributeNames": shown, "ExpressionAttributeValues": marks},
    ]


def stays(rule: NewestWins, events: Events, item: Item, found: Attributes) -> None:
    """Raise `ItemsRefusedError` if a condition failed because of another type than the row's."""
    compared(events.forms, [found.get(name) for name in rule.newer_by], [item.attributes[n] for n in rule.newer_by])


def _key_of(item: Item, names: Sequence[str]) -> dict[str, Any]:
    return {name: item.attributes[name] for name in names}


def _digest(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
