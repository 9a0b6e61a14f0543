"""Ports for the tests' servers, below those that the kernel assigns by itself.

Clients of a server that was stopped go on asking at its port for a while. If the kernel chose this port, it may give it
to Spark next. Spark takes the first client that connects for the reader of a `collect()`, and the batch fails.
"""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack

LANE = "WAL_SINK_TEST_LANE"
"""The variable by which groups of tests that run side by side get different ports: `1/3` is the second of three."""
FIRST, LAST = 10_000, 22_000
"""Linux assigns 32768 and above, macOS and Windows 49152 and above. A Redis has a bus 10,000 above its port."""

_CHOICE = random.SystemRandom()  # not the tests' seeded numbers: two runs would draw the same ports
_LATELY: deque[int] = deque(maxlen=1000)
"""Ports given out before. A server that is still starting does not listen at its port yet."""


def free_port() -> int:
    """Return a port at which nothing listens."""
    return free_ports(1)[0]


def free_ports(count: int) -> Sequence[int]:
    """Return different ports at which nothing listens."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            probe = stack.enter_context(socket.socket())
            port = _CHOICE.choice(_own_range())
            if port in _LATELY:
                continue
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # somebody has it
                continue
            found.append(port)
            _LATELY.append(port)
    return found


def _own_range() -> range:
    """Return the ports of this group, or of this worker of pytest-xdist: no other one gives them out."""
    number, _, lanes = os.environ.get(LANE, "").partition("/")
    if not lanes:
        lanes = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
        number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return range(FIRST + int(number or 0) % int(lanes), LAST, int(lanes))


def listening() -> socket.socket:
    """Return a socket that listens at such a port."""
    while True:
        try:
            return socket.create_server(("127.0.0.1", free_port()))
        except OSError:  # another process took it in between
            continue
