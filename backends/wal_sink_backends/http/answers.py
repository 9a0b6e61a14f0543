"""Bodies of answers: how much is read, how they are decoded, where they end, and how a user's check judges them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from wal_sink.errors import ConfigError, OutcomeUnknownError, PermanentError, RetryLaterError

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


# The user's check.


def check_answer(
    check: Check,
    status: int,
    headers: Mapping[str, str],
    body: Body,
    *,
    rows: int,
    what: str,
    most_bytes: int,
    clean: Callable[[str], str],
) -> dict[int, str]:
    """The rows that the user's check finds refused: reasons by index in the request; empty if there are none.

    Raises `PermanentError` if the body is incomplete, or if the check returns anything else than None or reasons;
    `OutcomeUnknownError` if the check fails. Errors of wal-sink that it raises pass. `clean` takes secrets out of
    texts.
    """
    if not body.is_whole:
        raise PermanentError(
            f"{what} {status}: the response body is larger than {most_bytes} bytes, so the response check cannot read "
            "all of it. The API may have accepted the rows. Configure the API to send shorter responses, or pass a "
            "larger max_answer_bytes"
        )
    if body.doubt:
        raise PermanentError(
            f"{what} {status}: the response body may be incomplete, because {body.doubt}. The response check needs the "
            "whole body. The API may have accepted the rows. Configure the API, or the proxy before it, to send the "
            "length of each response"
        )
    if body.encoding:
        raise PermanentError(
            f"{what} {status}: the response has Content-Encoding {body.encoding!r}, expected one of "
            f"{ACCEPTED_ENCODINGS} or none. The response check cannot read this response. The API may have accepted "
            "the rows. Configure the API to respond in an encoding that the request accepts"
        )
    try:
        found: Any = check(status, headers, body.content)
    except _OURS:
        raise
    except Exception as error:  # noqa: BLE001 - a user's check, which may raise anything
        raise OutcomeUnknownError(
            f"{what} {status}, but the response check failed with {type(error).__name__}: {clean(str(error))}. It is "
            "not known whether the request took effect"
        ) from None
    return {index: clean(reason) for index, reason in _reasons(found, rows, f"{what} {status}", clean).items()}


def _reasons(found: Any, rows: int, what: str, clean: Callable[[str], str]) -> dict[int, str]:
    if found is None:
        return {}
    if isinstance(found, Mapping) and all(_is_reason(index, reason, rows) for index, reason in found.items()):
        return dict(found)
    raise PermanentError(
        f"{what}, but the response check returned {clean(repr(found))}: expected None, or a dict of reasons (texts) by "
        f"the index of the row in the request, from 0 to {rows - 1}. Correct the check"
    )


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
