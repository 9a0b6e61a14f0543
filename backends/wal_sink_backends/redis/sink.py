"""Rows and position in one script of Redis: exactly once, for as long as Redis keeps what it acknowledged.

The ledger is a hash for each slot, `wal_sink:ledger:<slot>`: term, batch_id, segment_id, rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec

from wal_sink.errors import ConfigError, OutcomeUnknownError, PermanentError
from wal_sink.sinks.base import Rejected, SinkContext
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.sinks.json_rows import Maps, check_maps
from wal_sink.sinks.ledger import LedgerEntry
from wal_sink.support.arguments import check_seconds, one_of
from wal_sink.support.secrets import mask_url
from wal_sink.support.texts import Finding, fine
from wal_sink_backends.common.changes import OnDelete, warn_of_repeated_keys
from wal_sink_backends.common.newest import DELETES_KEPT, Events, NewestWins, too_old
from wal_sink_backends.common.options import from_environment
from wal_sink_backends.common.sinks import LedgerSink, name_of
from wal_sink_backends.redis.rows import LEDGER, MOST_ARGUMENTS, SCRIPT, KeyTemplate, encoded
from wal_sink_backends.redis.server import (
    check_address,
    check_server,
    connect,
    redis_library,
    translated,
    warn_of_truncation,
)
from wal_sink_backends.redis.versions import APPLY, arguments_of, keys_of_deletes, verbs_and_versions

Kind: TypeAlias = Literal["hash", "stream", "set"]
_NOTHING = (-1, 0, "")
"""The position that the script gets for a slot without one."""
_TAKES_MANY = 7
"""The major version since which a command may have more than a million arguments."""


class RedisSink(LedgerSink):
    """Rows as Redis hashes, as entries of a stream, or as members of a set. Runs anywhere that reaches the server.

    `url` is `redis://host:6379/0`, `rediss://…` (TLS) or `unix:///path/of.sock`. `key` names a row's Redis key, with
    columns in braces: `"orders:{id}"`; two braces are one.

    - `hash`: one hash a row, a field a column. A row of a known key replaces its fields; NULL removes a field.
    - `stream`: `XADD`, a field a column, NULL left out; `maxlen` trims the stream to about so many entries.
    - `set`: `SADD` of the row as a JSON object; equal rows are one member.

    Texts are UTF-8, binary is bytes, numbers are decimal digits, booleans true and false, the rest as `Chunk.to_json`
    writes it. A row is returned as `Rejected`, with nothing written, if a column of `key` is NULL in it, if a value of
    `key` holds the text between its field and the next one, or if Redis has something of another type under its key.

    Each chunk is one Lua script: rows and position at once, a lower term refused. Redis serves no other client
    meanwhile, so keep `chunk_rows` moderate. Redis acknowledges before it has written to disk unless it runs with
    `appendonly yes` and `appendfsync always`. A crash that loses rows loses their position too, and delivery stops if
    that position was marked already. With `wait_replicas=n`, `write` returns only when n replicas have the chunk. A
    stream also needs `aof-load-truncated no`: see docs/sinks/redis.md.

    `newer_by`: columns whose values are the version of a row, the most important one first; a row replaces a hash only
    if its version is as new or newer. With `operation` (a column of Debezium's c, r, u, d) or `delete_when` (a boolean
    column) the rows are changes: see "Change streams" in docs/sinks/redis.md.

    A Redis that may evict the ledger (`maxmemory-policy allkeys-…`) and a Redis Cluster are refused. `password_env`
    names an environment variable that is read where the sink runs. Raises `ConfigError` for arguments that cannot work.

        sink = RedisSink("redis://cache:6379/0", kind="hash", key="orders:{id}", password_env="REDIS_PASSWORD")
    """

    def __init__(
        self,
        url: str,
        *,
        key: str,
        kind: Kind = "hash",
        maxlen: int | None = None,
        password_env: str | None = None,
        ca_file: str | None = None,
        wait_replicas: int = 0,
        timeout_s: float = 30.0,
        maps: Maps = "object",
        newer_by: Sequence[str] | str = (),
        operation: str | None = None,
        delete_when: str | None = None,
        on_delete: OnDelete = "delete",
        deletes_kept: int = DELETES_KEPT,
    ) -> None:
        check_maps(maps)
        self._maps: Maps = maps
        self._url = url
        self._template = KeyTemplate(key)
        self._kind, self.replaces_rows = kind, kind == "hash"
        self._maxlen = maxlen
        self._password_env = password_env
        self._ca_file = ca_file
        self._wait_replicas = wait_replicas
        self._timeout_s = timeout_s
        self._client: Any = None
        self._takes_many = False
        self._rule = NewestWins.of(
            f"RedisSink(key={key!r})",
            key=self._template.columns,
            newer_by=newer_by,
            operation=operation,
            delete_when=delete_when,
            on_delete=on_delete,
            deletes_kept=deletes_kept,
        )
        if self._rule is not None and self._rule.changes is not None:
            self.max_concurrency = 1
        self._check_arguments()

    def __repr__(self) -> str:
        return f"RedisSink({mask_url(self._url)!r}, kind={self._kind!r}, key={self._template.text!r})"

    def open(self, context: SinkContext) -> None:  # noqa: ARG002 - the ledger needs no context
        """Connect and check the kind of the server. `PermanentError`, or redis-py's error if a retry may help."""
        self._connect()

    def examine(self, schema: Any) -> Sequence[Finding]:
        """Connect and check the kind of the server, as `open` does, which changes nothing."""
        columns = self._template.columns if schema is None else schema.names  # without a schema, all may be there
        missing = [name for name in self._template.columns if name not in columns]
        if missing:
            raise PermanentError(
                f"key={self._template.text!r}: the column {missing[0]!r} is not among the columns {columns}. "
                "Correct key, or select this column in the query"
            )
        if schema is not None and self._rule is not None:
            self._rule.read(schema.empty_table(), repr(self))
        self._connect()
        self.close()
        return [fine("target", f"{mask_url(self._url)} can be reached, and keeps what it acknowledges")]

    def _connect(self) -> None:
        self._client = connect(self._url, self._connection_options())
        try:
            with translated(f"opening {mask_url(self._url)}"):
                version = check_server(self._client, mask_url(self._url), self._wait_replicas)
                self._takes_many = version >= _TAKES_MANY
                if self._kind == "stream":
                    warn_of_truncation(
                        self._client, mask_url(self._url), refused=redis_library().exceptions.ResponseError
                    )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; forget the password."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def positions_in_ledger(self, slots: Sequence[str]) -> Mapping[str, Position]:
        """The positions, read together on one connection."""
        what = (
            f"{len(slots)} slots of the ledger in {mask_url(self._url)}, the first: {LEDGER}{slots[0] if slots else ''}"
        )
        with translated(what), self.opened(self._client).pipeline(transaction=False) as questions:
            for slot in slots:
                questions.hmget(f"{LEDGER}{slot}", "batch_id", "rows", "segment_id")
            answers = zip(slots, questions.execute(), strict=True)
            return {slot: _position(slot, found) for slot, found in answers if found[0] is not None}

    def write(self, chunk: Chunk) -> Rejected | None:
        """Rows and position in one script; nothing if the ledger is there already.

        Returns `Rejected` for rows that Redis cannot take, with nothing written. Raises `FencedError` for a lower term
        than the ledger's, `HistoryError` for other rows than the ledger records, `PermanentError` if no retry can help;
        anything else may be tried again.
        """
        what = f"{name_of(chunk)}: {mask_url(self._url)}"
        events = None if self._rule is None else self._rule.read(chunk.table, what)
        keys, values, refused = self._encoded(chunk, events, what)
        if refused:
            return Rejected(refused)
        if self._rule is None and self._kind == "hash":
            warn_of_repeated_keys(len(keys), len({*keys}), repr(self))
        if len(keys) + len(values) > MOST_ARGUMENTS and not self._takes_many:
            raise PermanentError(
                f"{what}: {len(keys)} rows are {len(keys) + len(values)} arguments, but a Redis before version 7 "
                f"accepts about {MOST_ARGUMENTS}. Stage with a smaller Settings(chunk_rows=…), or use Redis 7"
            )
        more: Sequence[Any] = ()
        first = [f"{LEDGER}{chunk.position.slot}"]
        if self._rule is not None and events is not None:
            first, more = first + keys_of_deletes(chunk), arguments_of(self._rule, events)
        arguments = (*first, *keys, *self._head(chunk), *more, *values)
        with translated(what):
            answer, replicas = self._run_script(len(first) + len(keys), arguments, what)
            verdict, *details = [part.decode("utf-8", "replace") for part in answer]
            if verdict == "WRONGTYPE":
                return Rejected(self._reasons(keys, details, what))
            if verdict == "NOT COMPARED":
                return Rejected(_not_compared(details))
            self._check_verdict(verdict, details, chunk, what)
            self._check_replicas(replicas, what)
        return None

    def _encoded(
        self, chunk: Chunk, events: Events | None, what: str
    ) -> tuple[list[bytes], list[bytes | int], dict[int, str]]:
        """Keys and values for the script, and why some rows cannot be written."""
        if self._rule is None or events is None:
            return encoded(chunk.maps_as(self._maps), self._kind, self._template, what)
        stored = replace(chunk, table=events.stored).maps_as(self._maps)
        version_of = verbs_and_versions(self._rule, events)
        keys, values, refused = encoded(stored, self._kind, self._template, what, version_of)
        return keys, values, refused | events.refused

    def _head(self, chunk: Chunk) -> tuple[Any, ...]:
        """The arguments of the script that describe the chunk, before those of its rows."""
        at, before = chunk.position, chunk.follows
        follows = (before.batch_id, before.rows, before.segment_id) if before else _NOTHING
        return (chunk.term, at.batch_id, at.rows, at.segment_id, chunk.start, self._kind, self._maxlen or 0, *follows)

    def _run_script(self, keys: int, arguments: Sequence[Any], what: str) -> tuple[list[bytes], Any]:
        """The script's answer; and, with `wait_replicas`, the number of replicas with its writes, or the error of WAIT.

        WAIT counts the writes of the same connection: on another connection it counts replicas that may lack the rows.
        So both are sent together, and redis-py cannot connect anew between them.
        """
        client, errors = self.opened(self._client), redis_library().exceptions
        script = SCRIPT if self._rule is None else APPLY
        if not self._wait_replicas:
            return client.eval(script, keys, *arguments), 0
        with client.pipeline(transaction=False) as both:
            both.eval(script, keys, *arguments)
            both.wait(self._wait_replicas, int(self._timeout_s * 500))
            try:
                answer, replicas = both.execute(raise_on_error=False)
            except (errors.AuthenticationError, errors.AuthorizationError):  # which count as ConnectionError
                raise
            except (errors.ConnectionError, errors.TimeoutError) as error:
                raise OutcomeUnknownError(
                    f"{what}: the connection failed before {self._wait_replicas} replicas acknowledged: {error}. "
                    "wal-sink sends the chunk again. The server writes it only if it does not have it"
                ) from error
        if isinstance(answer, Exception):
            raise answer
        return answer, replicas

    def _reasons(self, keys: Sequence[bytes], found: Sequence[str], what: str) -> dict[int, str]:
        """Why rows are refused; `found` holds pairs of a row's number and the type that its key has in Redis."""
        reasons = {
            int(row): f"key {keys[int(row)].decode('utf-8', 'replace')!r} is a {kind} already; expected a {self._kind}"
            for row, kind in zip(found[::2], found[1::2], strict=True)
        }
        if not self._template.columns:  # every row has this key, now and later, so no row is at fault
            raise PermanentError(f"{what}: {reasons[0]}, or no key")
        return reasons

    def _check_verdict(self, verdict: str, details: list[str], chunk: Chunk, what: str) -> None:
        """Raise the error for the script's verdict; `DONE` and `KNOWN` are none."""
        if verdict == "BAD LEDGER":
            wrong, *other = details
            key = other[0] if other else f"{LEDGER}{chunk.position.slot}"
            expected = "zset" if key.endswith("-by-batch") else "hash"
            raise PermanentError(f"{what}: key {key!r} is a {wrong} already; expected a {expected}, or no key")
        if verdict == "TOO OLD":
            raise too_old(what, chunk.batch_id, int(details[0]))
        if verdict == "OTHER NEWER_BY" and self._rule is not None:
            raise self._rule.other_newer_by(what, msgspec.json.decode(details[0]))
        if verdict == "REFUSED":
            term, batch_id, rows, segment_id = details
            at = Position(chunk.position.slot, int(batch_id), int(rows), segment_id)
            entry, where = LedgerEntry(int(term), at), f"{LEDGER}… in {mask_url(self._url)}"
            entry.check_term(chunk, where)
            LedgerEntry.is_known(None if at.batch_id < 0 else entry, chunk, where)
        if verdict not in ("DONE", "KNOWN"):
            raise PermanentError(
                f"{what}: the script answered {[verdict, *details]}, expected DONE or KNOWN. The ledger may be "
                "damaged: restore it together with the rows"
            )

    def _check_replicas(self, replicas: Any, what: str) -> None:
        if isinstance(replicas, Exception):
            raise replicas
        if replicas < self._wait_replicas:
            raise OutcomeUnknownError(
                f"{what}: {replicas} replicas have the rows, expected wait_replicas={self._wait_replicas}. The server "
                "has the rows, and ignores them when they are sent again"
            )

    def _connection_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"socket_timeout": self._timeout_s, "socket_connect_timeout": self._timeout_s}
        if self._password_env is not None:
            options |= from_environment({"password": self._password_env}, repr(self))
        if urlsplit(self._url).scheme == "rediss":
            options["ssl_check_hostname"] = True  # redis-py 5 checks no name by itself
        if self._ca_file is not None:
            options["ssl_ca_certs"] = self._ca_file
        return options

    def _check_arguments(self) -> None:
        parts = urlsplit(self._url)
        check_address(self._url)
        one_of("kind", self._kind, get_args(Kind))
        if self._kind == "hash" and not self._template.columns:
            raise ConfigError(
                f"key={self._template.text!r}: expected a column in it, as in 'orders:{{id}}', for kind='hash'"
            )
        if self._rule is not None and self._kind != "hash":
            raise ConfigError(f"kind={self._kind!r}: newer_by, operation and delete_when need kind='hash'")
        if self._template.text.startswith(LEDGER):
            raise ConfigError(f"key={self._template.text!r}: keys that begin with {LEDGER} belong to the ledger")
        if self._maxlen is not None and (self._kind != "stream" or self._maxlen < 1):
            raise ConfigError(f"maxlen={self._maxlen!r}: expected a number above 0, and kind='stream'")
        check_seconds("timeout_s", self._timeout_s, above_0=True)
        if self._wait_replicas < 0:
            raise ConfigError(f"wait_replicas={self._wait_replicas!r}: expected 0 or more")
        if self._password_env is not None and parts.password:
            raise ConfigError(
                f"{mask_url(self._url)}: the URL holds a password, but password_env is given too. Use only one of them"
            )
        if self._ca_file is not None and parts.scheme != "rediss":
            raise ConfigError(
                f"ca_file={self._ca_file!r}: expected a rediss:// URL, because the file verifies TLS certificates"
            )


def _not_compared(found: Sequence[str]) -> dict[int, str]:
    """Why rows are refused; `found` holds triples of a row's number, a field and its stored value."""
    return {
        int(row): f"field {name!r} of the stored hash is {value!r}, which cannot be compared with the row's version"
        for row, name, value in zip(found[::3], found[1::3], found[2::3], strict=True)
    }


def _position(slot: str, found: Sequence[bytes | None]) -> Position:
    """The answer of HMGET as a position. `PermanentError` for values that the script never writes."""
    batch_id, rows, segment_id = found
    if batch_id is None or rows is None or segment_id is None or not (batch_id.isdigit() and rows.isdigit()):
        raise PermanentError(
            f"key {LEDGER + slot!r} has batch_id, rows and segment_id {list(found)}: expected two whole numbers and a "
            "text. Another program altered the ledger: restore it together with the rows"
        )
    return Position(slot, int(batch_id), int(rows), segment_id.decode())
