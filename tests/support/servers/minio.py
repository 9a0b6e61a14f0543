"""MinIO on 127.0.0.1: a real S3 server of another maker. `make servers` builds it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.go_programs import MINIO
from tests.support.servers.s3_product import ACCESS_KEY, SECRET_KEY, S3Product


class MinioServer(S3Product):
    """A running server."""

    product = "MinIO"
    number_of_ports = 2

    def command(self) -> Sequence[str | Path]:
        users = [f"MINIO_ROOT_USER={ACCESS_KEY}", f"MINIO_ROOT_PASSWORD={SECRET_KEY}", "MINIO_UPDATE=off"]
        addresses = ["--address", f"127.0.0.1:{self.port}", "--console-address", f"127.0.0.1:{self.ports[1]}"]
        return ["env", *users, MINIO.require(), "server", "--quiet", *addresses, self.folder / "data"]

    def release(self) -> str:
        return MINIO.version
