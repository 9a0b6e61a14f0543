"""A WAL behind a real HTTP server that asks for a password: it can be looked at, and no log shows the password."""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.house.cli import main
from tests.house.protocol import Run
from tests.house.stores import StoreSpec, open_store
from tests.support.components import require
from tests.support.servers.ports import free_port
from tests.support.small_run import Place, Recorder, served_sink
from wal_sink.errors import ConfigError
from wal_sink.settings import Settings

pytestmark = pytest.mark.processes

PASSWORD = "QXZ0189xqz"  # noqa: S105 - it opens a server of this test's own
BASIC = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()
LOCKED = {"client_kwargs": {"headers": {"Authorization": BASIC}}}


@dataclass
class Web:
    port: int
    allowed: list[str] = field(default_factory=list)
    """Paths of requests that carried the password."""

    def url(self, user: str = "", *, scheme: str = "http", more: str = "") -> str:
        return f"{scheme}://{user}127.0.0.1:{self.port}/wal{more}"


class Locked(SimpleHTTPRequestHandler):
    def __init__(self, *args: object, allowed: list[str], directory: str) -> None:
        self._allowed = allowed
        super().__init__(*args, directory=directory)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != BASIC:
            self.send_error(401)
            return
        self._allowed.append(self.path)
        super().do_GET()

    def do_PUT(self) -> None:
        """As a server that takes files: the tests see whether anybody tried."""
        self._allowed.append(f"PUT {self.path}")
        self.send_response(201)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the standard library
        """Nothing on stderr."""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    """A WAL of two batches, as files behind a password."""
    require(find_spec("aiohttp") is not None, "fsspec reads http with aiohttp: pip install aiohttp")
    place = Place()
    place.stream(place.open({"a": Recorder()}), 1)
    store = open_store(StoreSpec(str(tmp_path / "wal")))
    for name in place.wal.list("", recursive=True):
        store.create(name, place.wal.read(name))
    found: list[str] = []
    with ThreadingHTTPServer(
        ("127.0.0.1", free_port()), partial(Locked, allowed=found, directory=str(tmp_path))
    ) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield Web(server.server_address[1], found)
        server.shutdown()
        thread.join(10)


def status(url: str, *more: str) -> Result:
    return CliRunner().invoke(main, ["status", url, "--json", *more])


def shows_password(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if PASSWORD in record.getMessage()]


def test_a_password_in_the_address_is_refused_before_fsspec_logs_it(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        done = status(web.url(f"me:{PASSWORD}@"))

    assert shows_password(caplog) == []
    assert (done.exit_code, web.allowed) == (2, [])
    assert f"http://127.0.0.1:{web.port}/wal" in done.stderr
    assert "client_kwargs" in done.stderr
    assert PASSWORD not in done.output


def test_a_password_in_a_storage_option_works_and_shows_nowhere(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        done = status(web.url(), "--storage-options", json.dumps(LOCKED))

    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["newest_batch"] == 1
    assert any(record.name == "fsspec.http" for record in caplog.records), "this log would have shown it"
    assert shows_password(caplog) == []
    assert not [record for record in caplog.records if BASIC in record.getMessage()]


@pytest.mark.parametrize(
    ("single_writer", "told"),
    [(False, "not known to create atomically"), (True, "an object that was just created cannot be found")],
)
def test_a_wal_behind_http_cannot_be_opened_for_writing(web: Web, single_writer: bool, told: str) -> None:
    """The server takes whatever is put there: fsspec overwrites where it is told to create."""
    store = open_store(StoreSpec(web.url(), LOCKED))
    run = Run(store, Place().checkpoint, Settings(single_writer=single_writer))
    with pytest.raises(ConfigError, match=told):
        run.open([served_sink(run, "b", Recorder())])


def test_other_secrets_in_an_address_are_refused_without_being_shown(web: Web) -> None:
    addresses = [
        (f"me:{PASSWORD}@", "", "https"),
        (f"{PASSWORD}@", "", "http"),
        ("", f"?token={PASSWORD}", "http"),
        (f"me:{PASSWORD}@", "", "simplecache::http"),
        (f"me:{PASSWORD}@", "", "zip://inside::http"),
        (f"me:{PASSWORD}@", "", "jupyter"),
        (f"me:{PASSWORD}@", "", "generic"),
    ]
    for user, more, scheme in addresses:
        with pytest.raises(ConfigError, match="as a storage option") as caught:
            open_store(StoreSpec(web.url(user, scheme=scheme, more=more)))
        assert PASSWORD not in str(caught.value), (user, more, scheme)


def test_an_address_whose_password_fsspec_takes_out_is_no_reason_to_refuse() -> None:
    """`ftp` gives the password to its client alone: no path has it."""
    with pytest.raises(Exception, match="cannot be opened") as caught:
        open_store(StoreSpec(f"ftp://me:{PASSWORD}@127.0.0.1:1/wal"))
    assert not isinstance(caught.value, ConfigError)
    assert PASSWORD not in str(caught.value)
