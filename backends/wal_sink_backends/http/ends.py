"""Where an answer ends: what follows it on its connection is no answer to the next request."""

from __future__ import annotations

from typing import Any

from wal_sink_backends.http.answers import ACCEPTED_ENCODINGS

_WITHOUT_BODY = (204, 304)


def doubt_of_end(response: Any) -> str:
    """Why the body that was read to its end may not be all of it; empty if it is. The connection is closed where more
    than the answer came, since the next request would take that for its own answer.
    """
    more = _bytes_behind(response)
    if more != b"" and (stream := response.extensions.get("network_stream")) is not None:
        stream.close()
    if more:
        return "after which more came than its headers tell"
    told = {"content-length", "transfer-encoding"}.intersection(response.headers)
    ends_itself = response.headers.get("content-encoding", "").strip().lower() in ACCEPTED_ENCODINGS.split(", ")
    if told or ends_itself or response.status_code in _WITHOUT_BODY:
        return ""
    return "with neither Content-Length nor chunks, so that it ends where the connection does and a cut does not show"


def _bytes_behind(response: Any) -> bytes | None:
    """What was received with an answer and lies behind it. Only h11 has it, and httpx shows it to nobody. None where it
    is not found: there may be some.
    """
    try:
        state = response.stream._stream._httpcore_stream._stream._connection._h11_state  # noqa: SLF001
        more: bytes = state.trailing_data[0]
    except AttributeError:
        return None
    return more
