"""Data nodes that hang up."""

from __future__ import annotations

import json
import socket
import threading
from types import SimpleNamespace

import pytest
import requests

from tests.support.servers.ports import free_port
from wal_sink.stores.hdfs import NO_ANSWER, HdfsError
from wal_sink.stores.webhdfs import _PIECE, _WebWriter


def refusal(answer: bytes) -> HdfsError:
    """Send pieces to a data node that reads the headers, says `answer` and hangs up; return the writer's error."""
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        hung_up = threading.Event()

        def hang_up() -> None:
            client, _ = listener.accept()
            with client:
                while b"\r\n\r\n" not in client.recv(1 << 16):
                    continue
                client.sendall(answer)
            hung_up.set()

        threading.Thread(target=hang_up, daemon=True).start()
        writer = _WebWriter(
            SimpleNamespace(session=requests.Session()), f"http://127.0.0.1:{listener.getsockname()[1]}/a?b=c"
        )
        assert hung_up.wait(60)

        def send() -> None:
            for _ in range(1000):
                writer.write(b"x" * _PIECE)

        with pytest.raises(HdfsError) as caught:
            send()
        writer.drop()
        return caught.value


def test_what_a_data_node_says_before_it_hangs_up_is_told() -> None:
    body = json.dumps({"RemoteException": {"exception": "SafeModeException", "message": "Name node is in safe mode."}})
    said = refusal(f"HTTP/1.1 403 Forbidden\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    assert (said.kind, "safe mode" in str(said)) == ("SafeModeException", True)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"])
def test_a_data_node_that_refuses_nothing_and_did_not_read_the_body_gave_no_answer(answer: bytes) -> None:
    assert refusal(answer).kind == NO_ANSWER
