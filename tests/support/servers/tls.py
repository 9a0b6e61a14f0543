"""Certificates for tests, and a server on 127.0.0.1 that only does the TLS handshake."""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Authority:
    """A certificate authority of a test, in a file that clients may trust."""

    folder: Path
    name: str

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.pem"

    def certificate(self, host: str) -> Path:
        """Make a key and a certificate for one host, a name or an address, in one file."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            subject: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            subject = x509.DNSName(host)
        names = x509.SubjectAlternativeName([subject])
        own = _name(host)
        made = _builder(own, self._own_name, key).add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        path = self.folder / f"{self.name}-{host}.pem"
        path.write_bytes(_private(key) + made.public_bytes(_PEM))
        return path

    @property
    def _own_name(self) -> x509.Name:
        return _name(f"authority {self.name}")

    @property
    def _key(self) -> ec.EllipticCurvePrivateKey:
        path = self.folder / f"{self.name}.key"
        if not path.exists():
            path.write_bytes(_private(ec.generate_private_key(ec.SECP256R1())))
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key

    def make(self) -> Authority:
        is_one = x509.BasicConstraints(ca=True, path_length=None)
        builder = _builder(self._own_name, self._own_name, self._key).add_extension(is_one, critical=True)
        self.file.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(_PEM))
        return self


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number(), now, now + dt.timedelta(hours=1)
    ).add_extension(usage, critical=True)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


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
        self._socket = socket.create_server(("127.0.0.1", 0))
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
                connection.settimeout(5)
                if self._preface is not None:
                    self._preface(connection)
                with self._context.wrap_socket(connection, server_side=True) as secure:
                    if secure.recv(1):  # with TLS 1.3 a client may still refuse after the server's handshake
                        self.trusted += 1
