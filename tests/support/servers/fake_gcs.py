"""fake-gcs-server on 127.0.0.1: an emulator of Google Cloud Storage, with one bucket. `make servers` builds it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import requests

from tests.support.go_programs import FAKE_GCS
from tests.support.servers.server import Server


class FakeGcsServer(Server):
    """A running server. It keeps its objects in memory."""

    product = "fake-gcs-server"
    bucket = "wal-sink-tests"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """Return the options for gcsfs, and for `StoreSpec`."""
        return {"endpoint_url": self.endpoint, "token": "anon", "project": "test"}

    def command(self) -> Sequence[str | Path]:
        place = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port), "-backend", "memory"]
        public = ["-public-host", f"127.0.0.1:{self.port}", "-external-url", self.endpoint]
        return [FAKE_GCS.require(), *place, *public]

    def release(self) -> str:
        return FAKE_GCS.version

    def answers(self) -> bool:
        """Whether it answers and has its bucket, which is made if necessary."""
        try:
            made = requests.post(f"{self.endpoint}/storage/v1/b?project=test", json={"name": self.bucket}, timeout=2)
        except requests.RequestException:
            return False
        return made.status_code in (200, 409)
