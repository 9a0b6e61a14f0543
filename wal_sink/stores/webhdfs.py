"""HDFS over HTTP: `webhdfs://`, with the session, the user and the data proxy that fsspec's `WebHDFS` was given.

The requests are our own: fsspec's rename ignores the answer, and its file appears before it is whole.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from typing import Any
from urllib.parse import quote, urlsplit

import certifi
import requests
from requests import exceptions as failures
from urllib3.exceptions import NameResolutionError, NewConnectionError

from wal_sink.stores.hdfs import (
    IGNORES_OPTION,
    MISSING,
    NO_ANSWER,
    NO_HDFS,
    REFUSED,
    TIMEOUT,
    UNKNOWN_HOST,
    Entry,
    HdfsClient,
    HdfsError,
    HdfsWriter,
)

_CONNECT_S, _ANSWER_S = 5.0, 60.0
_PIECE = 1 << 20
_BYTES = {"Content-Type": "application/octet-stream"}


class WebHdfs(HdfsClient):
    """Calls over the session of an fsspec `WebHDFS`. A read, a write or a new file is two requests, else it is one."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def new_file(self, path: str) -> HdfsWriter:
        answer = self._ask("PUT", path, "CREATE", overwrite="false")
        location = answer.headers.get("Location", "")
        if answer.status_code != 307 or not location:
            raise HdfsError(NO_HDFS, f"expected a redirect to a data node, found the status {answer.status_code}")
        return _WebWriter(self._fs, self._proxied(location))

    def rename(self, source: str, target: str) -> None:
        answer = self._ask("PUT", source, "RENAME", destination=target, renameoptions="NONE")
        if answer.content:
            raise HdfsError(IGNORES_OPTION, f"expected an answer without a body, found {_start_of(answer)}")

    def make_folder(self, path: str) -> None:
        self._ask("PUT", path, "MKDIRS", permission="755")

    def read(self, path: str) -> bytes:
        answer = self._ask("GET", path, "OPEN")
        if "Location" in answer.headers:
            answer = self._send("GET", self._proxied(answer.headers["Location"]))
        return answer.content

    def length(self, path: str) -> int:
        return int(self._json("GET", path, "GETFILESTATUS", "FileStatus")["length"])

    def list(self, path: str) -> list[Entry]:
        found = self._json("GET", path, "LISTSTATUS", "FileStatuses")["FileStatus"]
        return [
            Entry(entry["pathSuffix"], entry["type"] == "DIRECTORY", int(entry["modificationTime"]))
            for entry in found
            if entry["pathSuffix"]  # a file's listing is the file itself, without a name
        ]

    def delete(self, path: str) -> bool:
        try:
            return bool(self._json("DELETE", path, "DELETE", "boolean", recursive="false"))
        except HdfsError as error:
            if error.kind in MISSING:
                return False
            raise

    def _json(self, method: str, path: str, operation: str, field: str, **arguments: str) -> Any:
        answer = self._ask(method, path, operation, **arguments)
        try:
            return answer.json()[field]
        except (ValueError, KeyError, TypeError) as error:
            raise HdfsError(NO_HDFS, f"expected {field} in JSON, found {_start_of(answer)}") from error

    def _ask(self, method: str, path: str, operation: str, **arguments: str) -> requests.Response:
        url = self._proxied(self._fs.url + quote(path))
        return self._send(method, url, params={"op": operation, **arguments, **self._fs.pars})

    def _send(self, method: str, url: str, **arguments: Any) -> requests.Response:
        try:
            answer: requests.Response = self._fs.session.request(
                method, url, allow_redirects=False, timeout=(_CONNECT_S, _ANSWER_S), **arguments
            )
        except failures.RequestException as error:
            raise _error_of(error) from error
        _check(answer.status_code, answer.content)
        return answer

    def _proxied(self, url: str) -> str:
        return str(self._fs._apply_proxy(url))  # noqa: SLF001 - the user's map of data nodes, as fsspec applies it


class _WebWriter(HdfsWriter):
    """The body of one PUT to a data node, piece by piece."""

    def __init__(self, fs: Any, location: str) -> None:
        self._pending = bytearray()
        prepared = fs.session.prepare_request(requests.Request("PUT", location, headers=_BYTES))
        address = urlsplit(prepared.url)
        if address.scheme == "https":
            context = _tls_of(fs.session)
            self._to: http.client.HTTPConnection = http.client.HTTPSConnection(
                address.hostname or "", address.port, timeout=_ANSWER_S, context=context
            )
        else:
            self._to = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_ANSWER_S)
        try:
            self._to.putrequest("PUT", f"{address.path}?{address.query}", skip_accept_encoding=True)
            for name, value in prepared.headers.items():
                if name not in ("Content-Length", "Connection"):
                    self._to.putheader(name, value)
            self._to.putheader("Transfer-Encoding", "chunked")
            self._to.putheader("Connection", "close")
            self._to.endheaders()
        except (OSError, http.client.HTTPException) as error:
            self.drop()
            raise _error_of(error) from error

    def write(self, data: bytes | memoryview) -> None:
        self._pending += data
        if len(self._pending) >= _PIECE:
            self._flush()

    def close(self) -> None:
        try:
            if self._pending:
                self._flush()
            self._send(b"0\r\n\r\n")
            self._check_answer()
        finally:
            self.drop()

    def drop(self) -> None:
        self._to.close()

    def _flush(self) -> None:
        piece, self._pending = self._pending, bytearray()
        self._send(b"%x\r\n%b\r\n" % (len(piece), bytes(piece)))

    def _send(self, data: bytes) -> None:
        try:
            self._to.send(data)
        except OSError as error:
            self._check_answer(error)
            raise _error_of(error) from error  # it accepted a body that it did not read whole

    def _check_answer(self, cause: OSError | None = None) -> None:
        """Raise what the data node answered. It may answer and hang up while the body is still on its way."""
        try:
            answer = self._to.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise _error_of(cause or error) from error
        _check(answer.status, body)


def _check(status: int, body: bytes) -> None:
    """Raise the name node's exception that an answer holds. Any other refusal comes from a server that is no HDFS."""
    if status < 400:
        return
    try:
        answer = json.loads(body)["RemoteException"]
        kind, text = str(answer["exception"]), str(answer.get("message") or "")
    except (ValueError, KeyError, TypeError) as error:
        kind = "RetriableException" if status in (502, 503, 504) else NO_HDFS
        raise HdfsError(kind, f"status {status}: {body[:200]!r}") from error
    raise HdfsError(kind, text)


def _error_of(error: Exception) -> HdfsError:
    """The failure behind an error of requests or of a socket."""
    reasons = [error, *error.args, *(getattr(cause, "reason", None) for cause in error.args)]
    text = f"{type(error).__name__}: {error}"
    if any(isinstance(reason, NameResolutionError | socket.gaierror) for reason in reasons):
        return HdfsError(UNKNOWN_HOST, text)
    if isinstance(error, failures.ConnectTimeout | ConnectionRefusedError) or any(
        isinstance(reason, NewConnectionError) for reason in reasons
    ):
        return HdfsError(REFUSED, text)
    if isinstance(error, failures.Timeout | TimeoutError):
        return HdfsError(TIMEOUT, text)
    return HdfsError(NO_ANSWER, text)


def _start_of(answer: requests.Response) -> str:
    return repr(answer.content[:200])


def _tls_of(session: requests.Session) -> ssl.SSLContext:
    """The settings of the session, for the connection to a data node."""
    verify, own = session.verify, session.cert
    context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else certifi.where())
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if own is not None:
        context.load_cert_chain(*([own] if isinstance(own, str) else own))
    return context
