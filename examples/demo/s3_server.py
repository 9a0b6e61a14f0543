"""An S3 server for the demo: moto's, over HTTP on 127.0.0.1, in a separate process. It keeps everything in memory.

Run as `python -m examples.demo.s3_server`; prints its address as one line. Ends when its parent does.
"""

from __future__ import annotations

import io
import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from examples.demo.process import DemoError, Driver, end_with_parent
from wal_sink import ConfigError

BUCKET = "wal-sink-demo"
REGION = "us-east-1"
KEY_ID, KEY = "demo", "nothing-to-hide"
"""moto asks for none in particular; they are not those of the user."""
ANSWERS = "answers at "
_START_LIMIT_S = 60.0

_Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


def main() -> None:
    """Serve until the parent has ended."""
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 - optional
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import make_server  # noqa: PLC0415 - comes with moto[server]

    end_with_parent()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = _one_by_one(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    print(f"{ANSWERS}http://127.0.0.1:{server.server_port}", flush=True)  # noqa: T201 - what the parent waits for
    server.serve_forever()


def require_moto() -> None:
    """Raise `ConfigError` with the remedy unless moto and s3fs are there."""
    try:
        import moto.server  # noqa: F401, PLC0415 - optional
        import s3fs  # noqa: F401, PLC0415 - optional
    except ImportError as error:
        raise ConfigError(
            f'--s3 needs an S3 server and a client ({error}). Run `make setup`, or: pip install s3fs "moto[server]"'
        ) from error


def start_server(log: Path) -> tuple[Driver, str]:
    """Start the server; its process and its address."""
    require_moto()
    server = Driver(__name__, log=log, env={})
    deadline = time.monotonic() + _START_LIMIT_S
    while ANSWERS not in (output := log.read_text(errors="replace")):
        if not server.running or time.monotonic() > deadline:
            server.kill()
            raise DemoError(f"the S3 server did not start; its log {log} ends with:\n{server.tail()}")
        time.sleep(0.05)
    endpoint = output.partition(ANSWERS)[2].split()[0]
    _make_bucket(endpoint)
    return server, endpoint


def storage_options(endpoint: str) -> dict[str, Any]:
    """fsspec's options for this server."""
    return {"key": KEY_ID, "secret": KEY, "endpoint_url": endpoint, "client_kwargs": {"region_name": REGION}}


def _make_bucket(endpoint: str) -> None:
    import boto3  # noqa: PLC0415 - comes with moto

    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name=REGION, aws_access_key_id=KEY_ID, aws_secret_access_key=KEY
    )
    client.create_bucket(Bucket=BUCKET)


def _one_by_one(app: _Wsgi) -> _Wsgi:
    """moto looks first and writes then; S3 does both at once. So every request takes its turn here."""
    turn = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if not environ.get("wsgi.input_terminated"):  # who sends slowly, or dies, must not hold up the others
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = io.BytesIO(body)
        with turn:
            return list(app(environ, start_response))

    return answer


if __name__ == "__main__":
    main()
