"""Tests never listen at a port of the kernel's choice."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.processes import CHECKOUT
from tests.support.servers.ports import FIRST, LAST, free_ports, listening

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
CHOSEN_BY_THE_KERNEL = re.compile(r"""127\.0\.0\.1["'], 0\)|\bport=0\b""")


def test_ports_are_below_those_that_the_kernel_gives_away() -> None:
    lowest = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 49_152
    found = free_ports(50)
    assert len(set(found)) == 50
    assert all(FIRST <= port < LAST < lowest for port in found)
    with listening() as one, listening() as other:
        assert one.getsockname() != other.getsockname()


def test_no_test_listens_at_a_port_of_the_kernels_choice() -> None:
    sources = [path for folder in ("tests", "benchmarks") for path in (CHECKOUT / folder).rglob("*.py")]
    assert len(sources) > 100
    assert CHOSEN_BY_THE_KERNEL.search('create_server(("127.0.0.1", 0))')
    assert [path.name for path in sources if CHOSEN_BY_THE_KERNEL.search(path.read_text())] == [Path(__file__).name]
