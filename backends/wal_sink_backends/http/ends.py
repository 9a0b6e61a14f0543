"""The end of an answer: bytes that follow it on its connection are no answer to the next request."""

from __future__ import annotations

from typing import Any

from wal_sink_backends.http.answers import ACCEPTED_ENCODINGS

_WITHOUT_BODY = (204, 304)


def doubt_of_end(response: Any) -> str:
    """Why a body that was read to its end may be incomplete; empty if it is complete.

    If more than the answer came, the connection is closed: the next request would take the rest for its own answer.
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
