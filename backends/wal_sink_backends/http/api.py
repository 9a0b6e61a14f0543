"""One request to an API and the meaning of its answer. Only this module knows httpx.

Of a body it decides how much is read, how it is decoded, where it ends, and how a user's check judges it.
"""

from __future__ import annotations

import logging
import re
import ssl
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any, Literal, TypeAlias

from wal_sink.errors import ConfigError, OutcomeUnknownError, PermanentError, RetryLaterError
from wal_sink.support.clock import SYSTEM
from wal_sink.support.secrets import Redactor, mask_url
from wal_sink_backends.common.pacing import Pace, Patience, own_pause_s, retry_after_s
from wal_sink_backends.common.sinks import client_library

Check: TypeAlias = Callable[[int, Mapping[str, str], bytes], Mapping[int, str] | None]
"""A user's function of status, headers (names in lower case) and whole body of an answer that would count as done."""

ACCEPTED_ENCODINGS = "gzip, deflate"
"""Encodings that can be decoded piece by piece, so that no piece grows beyond the bytes that are wanted."""
_AUTO = zlib.MAX_WBITS | 32
"""Accepts a header of gzip or of zlib."""
_MOST_GROWTH = 2
"""Reading ends at so many times the wanted bytes: a body may be endless and decode to nothing."""
_OURS = (ConfigError, OutcomeUnknownError, PermanentError, RetryLaterError)


class DecodingError(Exception):
    """The body is not in the encoding that its header names."""


@dataclass(frozen=True, slots=True)
class Body:
    """The beginning of a body, decoded; all of it if `is_whole`."""

    content: bytes
    is_whole: bool
    encoding: str
    """The Content-Encoding of the content, if it could not be decoded; else empty."""
    doubt: str = ""
    """Why a body that was read to its end may be incomplete; else empty."""


def body_of(pieces: Iterable[bytes], encoding: str, most_bytes: int) -> Body:
    """Read and decode at most `most_bytes`, and not much more than that from the connection.

    Raises `DecodingError`. A body in an encoding that was not requested stays encoded, and `encoding` names it.
    """
    name = encoding.strip().lower()
    decode = _DECODERS.get(name)
    kept, raw_bytes, is_whole = bytearray(), 0, True
    decoder = decode() if decode else _Identity()
    for piece in pieces:
        raw_bytes += len(piece)
        kept += decoder.decode(piece, most_bytes + 1 - len(kept))
        if len(kept) > most_bytes or raw_bytes > _MOST_GROWTH * most_bytes:
            is_whole = False  # the connection is closed: the rest of the answer lies in it
            break
    else:
        decoder.finish()
    return Body(bytes(kept[:most_bytes]), is_whole, "" if decode or not kept else name)


class _Identity:
    def decode(self, piece: bytes, most_bytes: int) -> bytes:
        return piece[:most_bytes]

    def finish(self) -> None:
        """Nothing is held back."""


class _Zlib:
    """gzip in one or several parts, zlib, and deflate without the header of zlib, which some servers send."""

    def __init__(self) -> None:
        self._decoder: Any = None

    def decode(self, piece: bytes, most_bytes: int) -> bytes:
        """Decode a piece to at most `most_bytes`. The rest is dropped, so no call may follow then."""
        decoded = bytearray()
        while piece and len(decoded) < most_bytes:
            if self._decoder is None or self._decoder.eof:
                self._decoder = _decoder_for(piece)
            try:
                decoded += self._decoder.decompress(piece, most_bytes - len(decoded))
            except zlib.error as error:
                raise DecodingError(f"the body is not gzip or deflate: {error}") from None
            # Behind the end of a part comes another one, or zeros, which gzip permits as padding.
            piece = self._decoder.unused_data.lstrip(b"\0") if self._decoder.eof else self._decoder.unconsumed_tail
        return bytes(decoded)

    def finish(self) -> None:
        if self._decoder is not None and not self._decoder.eof:
            raise DecodingError("the body ends before its gzip or deflate data is complete")


def _decoder_for(piece: bytes) -> Any:
    """A zlib header has 8 in the lower half of its first byte, and gzip begins with 0x1f: else it is bare deflate."""
    has_header = piece[0] == 0x1F or piece[0] & 0x0F == 8
    return zlib.decompressobj(_AUTO if has_header else -zlib.MAX_WBITS)


_DECODERS: dict[str, type[_Zlib | _Identity]] = {
    "": _Identity,
    "identity": _Identity,
    "gzip": _Zlib,
    "x-gzip": _Zlib,
    "deflate": _Zlib,
}


def _is_reason(index: object, reason: object, rows: int) -> bool:
    return type(index) is int and 0 <= index < rows and isinstance(reason, str)


# The end of an answer.

_WITHOUT_BODY = (204, 304)


def doubt_of_end(response: Any) -> str:
    """Why a body that was read to its end may be incomplete; empty if it is complete.

    If more than the answer came, the connection is closed: the next request would take the rest for its own answer.
    Closing it after each answer would need no look, but makes a request take twice as long (over TLS four times).
    """
    more = _bytes_behind(response)
    if more != b"" and (stream := response.extensions.get("network_stream")) is not None:
        stream.close()
    if more:
        return "more bytes followed than its headers announce"
    told = {"content-length", "transfer-encoding"}.intersection(response.headers)
    ends_itself = response.headers.get("content-encoding", "").strip().lower() in ACCEPTED_ENCODINGS.split(", ")
    if told or ends_itself or response.status_code in _WITHOUT_BODY:
        return ""
    return "it has neither Content-Length nor chunks: if the connection is cut, the cut looks like the end of the body"


def _bytes_behind(response: Any) -> bytes | None:
    """The bytes that were received behind an answer. Only h11 has them, and httpx does not expose them.

    None if they cannot be looked up, which counts as a doubt: there may be some.
    """
    try:
        state = response.stream._stream._httpcore_stream._stream._connection._h11_state  # noqa: SLF001
        more: bytes = state.trailing_data[0]
    except AttributeError:
        return None
    return more


Meaning: TypeAlias = Literal["done", "partial", "refused", "retry", "permanent"]
_MULTI_STATUS = 207
_TOO_MANY = 429
_SHOWN_CHARACTERS = 200
_KEPT_BYTES = 1 << 16


class TargetFailedError(RetryLaterError):
    """The API could not be reached, or answered with an error that may pass. Try again after `after_s` seconds."""


@dataclass(frozen=True, slots=True)
class Statuses:
    """The meaning of statuses other than 2xx (done) and 5xx (try again). Any other status is never tried again.

    Plain data. 207 is not done: its body tells the outcome of each part, so only a check of the body can decide.
    """

    done: tuple[int, ...] = ()
    """The API has these rows already; some APIs say so by 409."""
    retry: tuple[int, ...] = (408, 409, 425, 429)
    """A later attempt may help. Many APIs use 409 for "a request with this key is under way"."""
    refused: tuple[int, ...] = (400, 413, 422)
    """The API took nothing of the request, and never will: its rows are wrong or too large."""

    def __post_init__(self) -> None:
        for status in (*self.done, *self.retry, *self.refused):
            if not 300 <= status <= 599:
                raise ConfigError(f"status {status!r}: expected a number from 300 to 599")
        if len(self.done) + len(self.refused) != len({*self.done, *self.refused}):
            raise ConfigError(f"statuses {self!r}: expected each status in one of done and refused")

    def meaning(self, status: int) -> Meaning:
        """`done` and `refused` come before `retry`, so that naming a status there is enough."""
        if status == _MULTI_STATUS:
            return "partial"
        if 200 <= status <= 299 or status in self.done:
            return "done"
        if status in self.refused:
            return "refused"
        return "retry" if status in self.retry or status >= 500 else "permanent"


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    method: str
    url: str
    content: bytes
    headers: Mapping[str, str]
    rows: int
    """The number of rows that it carries, for the rate."""
    what: str
    """A name of its content, for messages."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; `text` is the beginning of its body, cleaned for messages."""

    status: int
    reason: str
    retry_after: str | None
    location: str
    text: str
    headers: Mapping[str, str]
    body: Body

    def __str__(self) -> str:
        return f"{self.status} {self.reason}".strip() + (f": {self.text}" if self.text else "")


@dataclass(frozen=True, slots=True)
class Api:
    """A connected API. Not pickled."""

    client: Any
    statuses: Statuses
    pace: Pace
    repeats_are_harmless: bool
    redactor: Redactor
    """Takes secrets out of the API's answers."""
    most_bytes: int
    """Most bytes of an answer that are read and decoded."""
    check: Check | None = None

    def send(self, call: Call, patience: Patience) -> dict[int, str] | str:
        """Send rows. Returns the reasons of those that the check finds refused, or the API's words if it refuses all.

        Returns an empty mapping if the API has all rows; raises for all other answers. If an answer says how long to
        wait, this waits as long as patience lasts. Then the same request goes again if the answer means that it had no
        effect (429), or if repeats are harmless. Otherwise the core sends it again.
        """
        for pauses in count():
            answer = self._ask(call, patience)
            meaning = self.statuses.meaning(answer.status)
            if meaning == "refused":
                return str(answer)
            if meaning in ("done", "partial"):
                return self._checked(call, answer)
            if meaning == "permanent":
                raise PermanentError(_permanent(call, answer))
            may_repeat = self.repeats_are_harmless or answer.status == _TOO_MANY
            _wait_as_told(call, answer, patience, pauses, may_repeat=may_repeat)
        raise AssertionError("unreachable: count() never ends")

    def _checked(self, call: Call, answer: Answer) -> dict[int, str]:
        """The refused rows by the check. Without a check the status decides, which a status of 207 cannot."""
        if self.check is not None:
            return self._judged(self.check, call, answer)
        if self.statuses.meaning(answer.status) == "done":
            return {}
        raise PermanentError(
            f"{_told(call)} {answer}; expected an answer for the whole request. With status 207, some rows may have "
            "been refused, and only the body tells which rows. Pass check=, a function that reads the body"
        )

    def _judged(self, check: Check, call: Call, answer: Answer) -> dict[int, str]:
        """The rows that the user's check finds refused: reasons by index in the request; empty if there are none.

        Raises `PermanentError` if the body is incomplete, or if the check returns anything else than None or reasons;
        `OutcomeUnknownError` if the check fails. Errors of wal-sink that it raises pass.
        """
        status, body, what = answer.status, answer.body, f"{_told(call)} {answer.status}"
        if not body.is_whole:
            raise PermanentError(
                f"{what}: the response body is larger than {self.most_bytes} bytes, so the response check cannot read "
                "all of it. The API may have accepted the rows. Configure the API to send shorter responses, or pass a "
                "larger max_answer_bytes"
            )
        if body.doubt:
            raise PermanentError(
                f"{what}: the response body may be incomplete, because {body.doubt}. The response check needs the "
                "whole body. The API may have accepted the rows. Configure the API, or the proxy before it, to send "
                "the length of each response"
            )
        if body.encoding:
            raise PermanentError(
                f"{what}: the response has Content-Encoding {body.encoding!r}, expected one of {ACCEPTED_ENCODINGS} or "
                "none. The response check cannot read this response. The API may have accepted the rows. Configure "
                "the API to respond in an encoding that the request accepts"
            )
        try:
            found: Any = check(status, answer.headers, body.content)
        except _OURS:
            raise
        except Exception as error:  # noqa: BLE001 - a user's check, which may raise anything
            raise OutcomeUnknownError(
                f"{what}, but the response check failed with {type(error).__name__}: {self._clean(str(error))}. It is "
                "not known whether the request took effect"
            ) from None
        if found is None:
            return {}
        if isinstance(found, Mapping) and all(_is_reason(index, reason, call.rows) for index, reason in found.items()):
            return {index: self._clean(reason) for index, reason in found.items()}
        raise PermanentError(
            f"{what}, but the response check returned {self._clean(repr(found))}: expected None, or a dict from "
            f"the index of a row in the request (0 to {call.rows - 1}) to a reason (a text). Correct the check"
        )

    def knows(self, call: Call, patience: Patience) -> bool:
        """Whether the API has a chunk: it answers 200 or 404. Waits as `send` does."""
        pauses = 0
        while (answer := self._ask(call, patience)).status not in (200, 404):
            if self.statuses.meaning(answer.status) != "retry":
                raise PermanentError(
                    f"{_told(call)} {answer}; expected 200 (the API has the chunk) or 404 (the API does not have the "
                    "chunk)"
                )
            _wait_as_told(call, answer, patience, pauses, may_repeat=True)
            pauses += 1
        return answer.status == 200

    def _ask(self, call: Call, patience: Patience) -> Answer:
        """One request, admitted by the pace and reported to it."""
        self.pace.admit(call.rows, patience)
        alive = False
        try:
            answer = self._exchange(call)
            alive = answer.status < 500
        finally:
            self.pace.note(alive=alive)
        return answer

    def _exchange(self, call: Call) -> Answer:
        sent = httpx()
        try:
            with self.client.stream(call.method, call.url, content=call.content, headers=call.headers) as response:
                return self._answer(response)
        except (sent.ConnectError, sent.ConnectTimeout, sent.PoolTimeout, sent.ProxyError) as error:
            raise _unreachable(call, self._clean(str(error))) from None
        except (sent.UnsupportedProtocol, sent.LocalProtocolError, sent.InvalidURL) as error:
            raise PermanentError(f"{call.what}: {mask_url(call.url)}: {self._clean(str(error))}") from None
        except (sent.HTTPError, DecodingError) as error:
            raise OutcomeUnknownError(
                f"{call.what}: {call.method} {mask_url(call.url)}: the answer could not be read "
                f"({type(error).__name__}: {self._clean(str(error))}). It is not known whether the request took effect"
            ) from None

    def _answer(self, response: Any) -> Answer:
        body = body_of(response.iter_raw(), response.headers.get("Content-Encoding", ""), self.most_bytes)
        if body.is_whole:
            body = replace(body, doubt=doubt_of_end(response))
        readable = f"({len(body.content)} bytes in {body.encoding})".encode() if body.encoding else body.content
        return Answer(
            status=response.status_code,
            reason=self._clean(response.reason_phrase),
            retry_after=response.headers.get("Retry-After"),
            location=self._address(response.headers.get("Location", "")),
            text=self._clean(readable[:_KEPT_BYTES].decode("utf-8", "replace")),
            headers=dict(response.headers),  # httpx writes names in lower case
            body=body,
        )

    def _clean(self, text: str) -> str:
        """The text without secrets, in one line, shortened."""
        line = re.sub(r"[\s\0-\x1f\x7f]+", " ", self.redactor(text)).strip()
        return line if len(line) <= _SHOWN_CHARACTERS else f"{line[: _SHOWN_CHARACTERS - 1]}…"

    def _address(self, location: str) -> str:
        """A URL, absolute or relative, without the parts that may be secret: user, query and fragment."""
        bare = re.split(r"[?#]", self.redactor.known(location), maxsplit=1)[0]
        return self._clean(re.sub(r"^(\s*//)[^/]*@", r"\1", bare))


def _wait_as_told(call: Call, answer: Answer, patience: Patience, pauses: int, *, may_repeat: bool) -> None:
    """Return when the request may go again. `TargetFailedError` if the API does not say when, or patience ends.

    A time that is too short, or past, does not shorten our own pauses, which grow.
    """
    wait_s = retry_after_s(answer.retry_after, SYSTEM.now())
    if wait_s is None or not may_repeat or not patience.wait(max(wait_s, own_pause_s(pauses))):
        raise TargetFailedError(f"{_told(call)} {answer}", after_s=wait_s or 0.0)


def _told(call: Call) -> str:
    return f"{call.what}: {call.method} {mask_url(call.url)} answered"


def _permanent(call: Call, answer: Answer) -> str:
    told = f"{_told(call)} {answer}"
    if 300 <= answer.status <= 399:
        return (
            f"{told}; the answer redirects to {answer.location or 'no address'}, but redirects are not followed. Pass "
            "the final URL"
        )
    if answer.status in (401, 403):
        return f"{told}; check the credentials that headers_from_env reads from the environment"
    if answer.status in (404, 405, 410):
        return f"{told}; check URL and method"
    return (
        f"{told}. A retry would not change this. Correct the request or the API, or pass Statuses if the answer means "
        "something else"
    )


def _unreachable(call: Call, text: str) -> Exception:
    where = f"{call.what}: {mask_url(call.url)} cannot be reached, and nothing was sent: {text}"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return PermanentError(f"{where}. If you trust the authority of this certificate, pass verify='/path/to/ca.pem'")
    return TargetFailedError(where)


@lru_cache(maxsize=1)
def httpx() -> Any:
    """The client library."""
    return client_library("httpx", "HttpSink needs httpx", "http", "httpx")


class _MaskUrls(logging.Filter):
    """Takes user and query out of the URLs that httpx logs with every request at INFO."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(one if isinstance(one, (int, float)) else mask_url(str(one)) for one in record.args)
        return True


_MASK_URLS = _MaskUrls()


def mask_logged_urls() -> None:
    """Mask the URLs that httpx logs, once in a process. The logger's level and handlers stay as they are."""
    logging.getLogger("httpx").addFilter(_MASK_URLS)  # noqa: TID251 - nothing is logged to it here


def tls_context(*, verify: bool | str, plain: bool) -> Any:
    """The value of `verify` for httpx. The usual authorities are read once in a process, which takes 50 ms."""
    if plain:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # never used, and httpx would read the authorities for it
    if isinstance(verify, str):
        return ssl.create_default_context(cafile=verify)
    return _usual_context() if verify else False


@lru_cache(maxsize=1)
def _usual_context() -> Any:
    return httpx().create_ssl_context()
