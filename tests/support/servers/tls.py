"""Certificates for tests, and a server on 127.0.0.1 that only does the TLS handshake."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trustme

from tests.support.servers.ports import listening


class Authority:
    """A certificate authority of a test, in a file that clients may trust."""

    def __init__(self, folder: Path, name: str) -> None:
        self._authority = trustme.CA()
        self._folder = folder
        self.file = folder / f"{name}.pem"
        self._authority.cert_pem.write_to_path(str(self.file))

    def certificate(self, host: str) -> Path:
        """Make a key and a certificate for one host, a name or an address, in one file."""
        path = self._folder / f"{self.file.stem}-{host}.pem"
        self._authority.issue_cert(host).private_key_and_cert_chain_pem.write_to_path(str(path))
        return path


Preface = Callable[[socket.socket], None]


def postgresql(connection: socket.socket) -> None:
    """Answer yes to a request for TLS."""
    connection.recv(8)
    connection.sendall(b"S")


def mysql(connection: socket.socket) -> None:
    """Greet as a MySQL 8 server that has TLS. Read the client's request for it."""
    connection.sendall(greeting(tls=True))
    connection.recv(36)


def greeting(*, tls: bool) -> bytes:
    flags = 0x000FA200 | 0x0200 | 0x8000 | 0x00080000 | (0x0800 if tls else 0)
    body = b"\x0a8.0.30\0" + struct.pack("<I", 1) + b"12345678\0" + struct.pack("<H", flags & 0xFFFF)
    body += b"\x21" + struct.pack("<HH", 2, flags >> 16) + b"\x15" + bytes(10) + b"123456789012\0"
    body += b"mysql_native_password\0"
    return struct.pack("<I", len(body))[:3] + b"\0" + body


class TlsServer:
    """A server that counts the handshakes that clients completed, and closes each connection after that."""

    def __init__(self, certificate: Path, preface: Preface | None = None) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._preface = preface
        self._socket = listening()
        self.port: int = self._socket.getsockname()[1]
        self.connections = 0
        self.trusted = 0
        """The number of clients that went on after they had seen the certificate."""

    @contextmanager
    def running(self) -> Iterator[TlsServer]:
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            with connection, suppress(OSError):
                connection.settimeout(60)
                if self._preface is not None:
                    self._preface(connection)
                with self._context.wrap_socket(connection, server_side=True) as secure:
                    if secure.recv(1):  # with TLS 1.3 a client may still refuse after the server's handshake
                        self.trusted += 1
