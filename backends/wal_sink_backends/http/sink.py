"""Rows to a web API: once in effect if the API ignores keys that it has seen, else at least once.

Before a chunk is sent again, `HttpLookupSink` looks up whether the API has it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from wal_sink.errors import ConfigError, OutcomeUnknownError, PermanentError
from wal_sink.sinks.base import Rejected, SinkContext
from wal_sink.sinks.chunk import Chunk
from wal_sink.sinks.json_rows import Maps, check_maps
from wal_sink.support.arguments import check_seconds, one_of
from wal_sink.support.clock import SYSTEM
from wal_sink.support.secrets import Redactor, mask_url, secrets_in_url
from wal_sink.support.texts import Finding, fine
from wal_sink_backends.common.options import from_environment, refuse_braces
from wal_sink_backends.common.pacing import Pacing, Patience, own_pause_s, pace_of
from wal_sink_backends.common.sinks import ReadySink, name_of
from wal_sink_backends.http.api import (
    ACCEPTED_ENCODINGS,
    Api,
    Call,
    Check,
    Statuses,
    TargetFailedError,
    httpx,
    mask_logged_urls,
    tls_context,
)

__all__ = ["HttpSink", "Pacing", "Statuses", "TargetFailedError"]

Body: TypeAlias = Literal["json", "jsonl", "rows"]
Method: TypeAlias = Literal["POST", "PUT", "PATCH"]
_CONTENT_TYPES: dict[str, str] = {
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "rows": "application/json",
}
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROL = re.compile(r"[\0-\x1f\x7f]")
KEY = "{key}"
"""The only braces that a URL may have. The key of the request takes their place."""
MOST_REFUSED = 100
"""Most refused rows that are searched for in a chunk that was refused as a whole."""


class HttpSink(ReadySink):
    """An API that takes rows as JSON, with one request for each chunk or each row. Runs anywhere.

    `body`: `"json"` sends a chunk as an array of objects, `"jsonl"` as one object a line, `"rows"` each row as one
    object in a separate request, one after the other. Values and `maps` look as `Chunk.to_json` describes.

    Each request carries a key that never changes in the header `idempotency_header`, and where `url` has `{key}`. It is
    `SinkContext.own_key` of the chunk's key, or with `"rows"` of the row's. Say `idempotent=True` if the API does a
    request of a known key only once: exactly once in effect, for as long as it remembers keys. Otherwise a chunk may
    repeat after a crash, a retry or a takeover; see `HttpLookupSink` too.

    `headers` travel with the sink, so keep secrets out of them: `headers_from_env={"Authorization": "ORDERS_AUTH"}`
    reads whole header values where the sink runs, when it is opened. Neither is ever shown.
    `statuses`: the meaning of the API's answers. `pacing`: how fast it is called, in each process.
    `timeout_s`: the most seconds without any data from the API, and for connecting.
    `verify`: False turns off the check of its certificate; or a file of certificates to trust.

    `check`: a function that reads answers which would count as done, and those with 207, which are an error without it.
    It is called with status, headers (names in lower case) and the whole body, of at most `max_answer_bytes`, and
    returns None or `{}` if the API has all rows, else the reasons of those that it refused, by their index in the
    request. It may raise `PermanentError`, `RetryLaterError` or `OutcomeUnknownError`; anything else that it raises is
    an unknown outcome. It travels with the sink, so it has to be picklable. An idempotent API has to answer a known key
    as it did first.

    A row that is refused for good is returned as `Rejected` with the answer's text, and the others are written. With
    `"rows"` each answer tells this. Otherwise a sink that delivers at least once halves a refused chunk until the rows
    are found. An idempotent sink and one with a lookup never halve: after a crash or a late request, the API may still
    take the whole chunk, and its halves have other keys. Use `"rows"` there.

    Redirects are not followed. Raises `ConfigError` for arguments that cannot work.

        sink = HttpSink("https://api.example.com/orders", idempotent=True, headers_from_env={"Authorization": "AUTH"})
    """

    _is_looked_up = False
    """Whether a process that never saw the API's answers may later ask it for a whole chunk."""

    def __init__(
        self,
        url: str,
        *,
        body: Body = "json",
        method: Method = "POST",
        idempotent: bool = False,
        idempotency_header: str = "Idempotency-Key",
        headers: Mapping[str, str] | None = None,
        headers_from_env: Mapping[str, str] | None = None,
        statuses: Statuses | None = None,
        pacing: Pacing | None = None,
        timeout_s: float = 30.0,
        verify: bool | str = True,
        check: Check | None = None,
        max_answer_bytes: int = 1 << 20,
        maps: Maps = "object",
    ) -> None:
        self.idempotent = idempotent
        self._url = checked_url(url)
        self._body = body
        self._method = method
        self._idempotency_header = idempotency_header
        self._headers = dict(headers or {})
        self._headers_from_env = dict(headers_from_env or {})
        self._statuses = statuses or Statuses()
        self._pacing = pacing or Pacing()
        self._timeout_s = timeout_s
        self._verify = verify
        self._check = check
        self._max_answer_bytes = max_answer_bytes
        self._maps: Maps = maps
        self._api: Api | None = None
        self._own_key: Callable[[str], str] = str
        self._check_arguments()
        may_halve = not (idempotent or self._is_looked_up)
        self.names_refused_rows = body == "rows" or may_halve or check is not None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({mask_url(self._url)!r}, body={self._body!r}, idempotent={self.idempotent})"

    def open(self, context: SinkContext) -> None:
        """Read the environment and make a client; nothing is sent. `PermanentError` if a variable is not set."""
        headers = {**self._headers, **self._environment()}
        client = self._client(headers)
        secrets = {part for value in headers.values() for part in (value, *value.split())}
        self._api = Api(
            client=client,
            statuses=self._statuses,
            pace=pace_of(self._url, self._pacing),
            repeats_are_harmless=self.idempotent,
            redactor=Redactor(secrets.union(*map(secrets_in_url, self._urls()))),
            most_bytes=self._max_answer_bytes,
            check=self._check,
        )
        self._own_key = context.own_key
        self._may_repeat = self.idempotent or not context.at_most_once

    def examine(self, schema: Any) -> Sequence[Finding]:  # noqa: ARG002 - only the service knows which rows it takes
        """Read the environment, and connect to each server without a request: any request may have an effect."""
        self._client({**self._headers, **self._environment()}).close()
        return [_reached(url, self._timeout_s) for url in self._urls()]

    def close(self) -> None:
        """Close the connections; forget the values from the environment."""
        if self._api is not None:
            self._api.client.close()
            self._api = None

    def write(self, chunk: Chunk) -> Rejected | None:
        """Send the rows. Nothing is sent for a chunk without rows.

        Raises `PermanentError` for an answer that no retry changes and for columns JSON cannot carry;
        `TargetFailedError` and `NotNowError` if a later attempt may succeed; `OutcomeUnknownError` if no answer came.
        """
        if not chunk.num_rows:
            return None
        chunk = chunk.maps_as(self._maps)
        what = name_of(chunk)
        pace_of(self._url, self._pacing).check_chunk(chunk.num_rows, what)
        patience = Patience(self._pacing.max_wait_s)
        refused = self._write_rows(chunk, patience) if self._body == "rows" else self._write_whole(chunk, patience)
        return Rejected(refused) if refused else None

    def _write_rows(self, chunk: Chunk, patience: Patience) -> dict[int, str]:
        """Send each row in a separate request; the reasons of those that were refused."""
        refused: dict[int, str] = {}
        lines = _json_of(chunk, lines=True).split(b"\n")[:-1]
        for index, (line, key) in enumerate(zip(lines, chunk.row_keys(), strict=True)):
            found = self._send_row(line, key, f"batch {chunk.batch_id}, row {key}", patience)
            if found:
                refused[index] = found if isinstance(found, str) else found[0]
        return refused

    def _send_row(self, line: bytes, key: str, what: str, patience: Patience) -> dict[int, str] | str:
        """Send a row, and again after a failure that may pass: a new call would begin with the chunk's first row."""
        pauses = 0
        while True:
            try:
                return self._send(line, key, 1, what, patience)
            except (TargetFailedError, OutcomeUnknownError):
                if not (self._may_repeat and patience.wait(own_pause_s(pauses, longest_s=5.0))):
                    raise
            pauses += 1

    def _write_whole(self, chunk: Chunk, patience: Patience) -> dict[int, str]:
        """Send the chunk in one request; if rows may repeat, find its refused rows by halving."""
        refused: dict[int, str] = {}
        parts = [range(chunk.num_rows)]
        while parts:
            rows = parts.pop()
            part = chunk.without(set(range(chunk.num_rows)).difference(rows))
            what = name_of(part)
            content = _json_of(part, lines=self._body == "jsonl")
            found = self._send(content, part.key, len(rows), what, patience)
            if isinstance(found, dict):
                self._check_named(part, found)
                refused |= {rows[index]: reason for index, reason in found.items()}
            elif len(rows) == 1:
                refused[rows[0]] = found
                _check_refused(refused, what)
            else:
                self._check_halving(part, found)
                half = len(rows) // 2
                parts += [rows[half:], rows[:half]]  # the first half is taken first
        return refused

    def _send(self, content: bytes, key: str, rows: int, what: str, patience: Patience) -> dict[int, str] | str:
        own = self._own_key(key)
        headers = {self._idempotency_header: own, "Content-Type": _CONTENT_TYPES[self._body]}
        url = self._url.replace(KEY, own)
        return self.opened(self._api).send(Call(self._method, url, content, headers, rows, what), patience)

    def _check_halving(self, part: Chunk, reason: str) -> None:
        if self.idempotent or self._is_looked_up:
            raise PermanentError(
                f"{name_of(part)}: all {part.num_rows} rows were refused in one answer, and this answer names no row: "
                f"{reason}. wal-sink does not halve the chunk, because the API may still accept the whole chunk, and "
                f"the halves have other keys. Look at the rows: wal-sink show WAL {part.batch_id}. To send each row "
                "alone, which finds the refused ones, use body='rows' (in the URL of the target: #body=rows, or "
                "&body=rows after other options). Delivery then stops at the refused row again. To keep that row as a "
                "dead letter and go on, also use Delivery(…, on_rejected='dead_letter') or wal-sink drain … "
                "--on-rejected dead_letter. Or configure the API to accept this chunk; if the chunk is too large, "
                "stage smaller chunks with Settings(chunk_rows=…)"
            )

    def _check_named(self, part: Chunk, found: Mapping[int, str]) -> None:
        """Refuse a check that names some rows of a chunk, if a later process can only ask for the whole chunk."""
        if self._is_looked_up and 0 < len(found) < part.num_rows:
            raise PermanentError(
                f"{name_of(part)}: {len(found)} of {part.num_rows} rows were refused, the "
                f"first with: {next(iter(found.values()))}. A look-up cannot tell which rows were refused: after a "
                "crash, the refused rows would count as delivered, or the other rows would be sent twice. Configure "
                "the API to accept or refuse a chunk as a whole, or use HttpSink with body='rows'"
            )

    def _urls(self) -> list[str]:
        return [self._url]

    def _client(self, headers: Mapping[str, str]) -> Any:
        """A client for the whole task, so that its chunks share a connection."""
        mask_logged_urls()
        if "accept-encoding" not in {name.lower() for name in headers}:
            headers = {"Accept-Encoding": ACCEPTED_ENCODINGS, **headers}
        try:
            return httpx().Client(
                headers=headers,
                timeout=self._timeout_s,
                verify=tls_context(
                    verify=self._verify, plain=not any(urlsplit(url).scheme == "https" for url in self._urls())
                ),
                follow_redirects=False,
            )
        except (OSError, ValueError, ImportError) as error:  # no file of certificates, no ASCII, a proxy of SOCKS
            raise PermanentError(f"{self!r}: the client cannot be made: {type(error).__name__}") from None

    def _environment(self) -> dict[str, str]:
        found = from_environment(self._headers_from_env, repr(self))
        values = {header: value.strip() for header, value in found.items()}
        for header, value in values.items():
            if _CONTROL.search(value) or not value.isascii():
                raise PermanentError(
                    f"{self!r}: the environment variable {self._headers_from_env[header]} is not a valid header value: "
                    "it contains line breaks, control characters or letters beyond ASCII. Correct the variable"
                )
        return values

    def _check_arguments(self) -> None:
        one_of("body", self._body, get_args(Body))
        one_of("method", self._method, get_args(Method))
        check_maps(self._maps)
        check_seconds("timeout_s", self._timeout_s, above_0=True)
        if self._check is not None and not callable(self._check):
            raise ConfigError(f"check={self._check!r}: expected a function of status, headers and body")
        if not (type(self._max_answer_bytes) is int and self._max_answer_bytes > 0):
            raise ConfigError(f"max_answer_bytes={self._max_answer_bytes!r}: expected a whole number above 0")
        names = [self._idempotency_header, "Content-Type", *self._headers, *self._headers_from_env]
        folded = [name.lower() for name in names]
        for name in names:
            if not _TOKEN.fullmatch(name) or folded.count(name.lower()) > 1:
                raise ConfigError(f"header {name!r}: expected names of headers, each once, other than Content-Type")
        for name, value in self._headers.items():
            if _CONTROL.search(value) or not value.isascii():
                raise ConfigError(
                    f"header {name!r}: the value contains control characters or letters beyond ASCII. Remove them"
                )


def _json_of(chunk: Chunk, *, lines: bool) -> bytes:
    try:
        return chunk.to_json(lines=lines)
    except ConfigError as error:  # a type or names JSON cannot carry: no retry will help
        raise PermanentError(f"{name_of(chunk)}: {error}") from error


def _check_refused(refused: Mapping[int, str], what: str) -> None:
    if len(refused) > MOST_REFUSED:
        raise PermanentError(
            f"{what}: the API refused more than {MOST_REFUSED} rows. The last error: {list(refused.values())[-1]}. "
            "Correct the rows or the API. With body='rows', the number of refused rows is not limited"
        )


def _reached(url: str, timeout_s: float) -> Finding:
    """Connect to the server of a URL. Raises `ConnectionError`."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=timeout_s).close()
    except OSError as error:
        raise ConnectionError(f"{mask_url(url)}: {parts.hostname}:{port} cannot be reached: {error}") from error
    return fine("target", f"{parts.hostname}:{port} can be reached; no request was sent to {mask_url(url)}")


def checked_url(url: str) -> str:
    parts = urlsplit(url)
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        usable = False
    if not usable or _CONTROL.search(url) or " " in url:
        raise ConfigError(f"{mask_url(url)!r}: expected http://host/path or https://host/path")
    refuse_braces("url", url, KEY)
    if parts.fragment:
        raise ConfigError(
            f"{mask_url(url)!r}: expected no '#' here. Pass the options as arguments, or pass the whole URL to "
            "WalSink, because only WalSink accepts options after '#'"
        )
    return url


_NO_CACHE = {"Cache-Control": "no-cache"}
"""A cache on the way may keep a 404 that was true before the chunk was sent."""


class HttpLookupSink(HttpSink):
    """An `HttpSink` whose API tells whether it has a chunk: at least once, and only late requests repeat rows.

    `lookup_url` holds `{key}`, which becomes the key of the chunk's request: `https://api.example.com/chunks/{key}`.
    GET must answer with 200 if the API has the whole chunk of that key, and with 404 if it has nothing of it. Anything
    else is an error. The look-up has the same headers. `body="rows"` is refused: its requests carry the keys of rows.
    """

    _is_looked_up = True

    def __init__(self, url: str, *, lookup_url: str, **more: Any) -> None:
        super().__init__(url, **more)
        self._lookup_url = lookup_url
        checked_url(lookup_url)
        if KEY not in lookup_url:
            raise ConfigError(f"lookup_url={mask_url(lookup_url)!r}: expected {{key}} in it, for the key of a chunk")
        if self._body == "rows":
            raise ConfigError(
                "lookup_url with body='rows': the API receives keys of rows, but never the key of a chunk. Omit "
                "lookup_url or body='rows'"
            )

    def _urls(self) -> list[str]:
        return [self._url, self._lookup_url]

    def was_applied(self, key: str) -> bool:
        """Ask the API, and not a cache before it. Raises what `write` raises.

        `PermanentError` if the API also answers 200 for a key that was never sent, as a login page in front of it does.
        """
        if not self._knows(self._own_key(key)):
            return False
        never_sent = self._own_key(SYSTEM.new_id())  # an API may look at the form of a key
        if self._knows(never_sent):
            raise PermanentError(
                f"chunk {key}: {mask_url(self._lookup_url)} answered 200 for this chunk, but also for {never_sent}. "
                "That key was never sent, so 404 was expected. So an answer of 200 proves nothing, and the chunk may "
                "be missing. Correct lookup_url, or the server that answers in place of the API"
            )
        return True

    def _knows(self, key: str) -> bool:
        call = Call("GET", self._lookup_url.replace(KEY, key), b"", _NO_CACHE, 0, f"chunk {key}")
        return self.opened(self._api).knows(call, Patience(self._pacing.max_wait_s))
