"""One request to an API and the meaning of its answer. Only this module knows httpx."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any, Literal, TypeAlias

from wal_sink.errors import ConfigError, OutcomeUnknownError, PermanentError, RetryLaterError
from wal_sink.support.clock import SYSTEM
from wal_sink.support.secrets import Redactor, mask_url
from wal_sink_backends.common.pacing import Pace, Patience, own_pause_s, retry_after_s
from wal_sink_backends.http.answers import Body, Check, DecodingError, body_of, check_answer, doubt_of_end

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
            return check_answer(
                self.check,
                answer.status,
                answer.headers,
                answer.body,
                rows=call.rows,
                what=_told(call),
                most_bytes=self.most_bytes,
                clean=self._clean,
            )
        if self.statuses.meaning(answer.status) == "done":
            return {}
        raise PermanentError(
            f"{_told(call)} {answer}; expected an answer for the whole request. With status 207, some rows may have "
            "been refused, and only the body tells which rows. Pass check=, a function that reads the body"
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
    """The client library; `ConfigError` naming the extra if it is missing."""
    try:
        import httpx as library  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(
            "HttpSink needs httpx, on the executors too. Install wal-sink with its extra http, or: pip install httpx"
        ) from error
    return library


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
