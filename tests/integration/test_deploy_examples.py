"""The files of `examples/deploy`: checked by the tools of their systems, each command line run as a plain process."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from tests.support.components import require
from tests.support.processes import CHECKOUT, Child, python_environment
from tests.support.staged_log import stage
from wal_sink.cli.drain import drain

DEPLOY = CHECKOUT / "examples/deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
MANIFEST = DEPLOY / "kubernetes/drain.yaml"
CONTAINER = DEPLOY / "Containerfile"
PROGRAM = "/opt/wal-sink/bin/wal-sink"
"""The place of the program in the units. The tests put their own there."""
INSTRUCTIONS = {"FROM", "COPY", "RUN", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
FREE = {"stringData", "labels", "matchLabels", "requests", "limits"}
"""Mappings whose keys anybody may choose, so that no schema finds a typo. Other tests here hold them."""
BATCHES = 3
LIMIT_S = 240.0


# --- systemd


def verified(*units: Path) -> str:
    """The output of `systemd-analyze verify` for units. It says nothing about right ones."""
    program = shutil.which("systemd-analyze")
    require(program is not None, "install systemd (Debian: apt-get install systemd)")
    files = [str(unit).replace("@.", "@orders.") for unit in units]
    done = subprocess.run(
        [str(program), "verify", *files], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    return done.stdout + done.stderr + ("" if done.returncode == 0 else f"exit code {done.returncode}")


def put(folder: Path) -> list[Path]:
    """Put the units into a folder, with a program that exists."""
    for unit in UNITS:
        (folder / unit.name).write_text(unit.read_text().replace(PROGRAM, sys.executable, 1))
    return [folder / unit.name for unit in UNITS]


def test_systemd_finds_nothing_in_the_units(tmp_path: Path) -> None:
    assert verified(*put(tmp_path)) == ""


# --- Kubernetes


def documents() -> list[dict[str, Any]]:
    return [dict(found) for found in yaml.safe_load_all(MANIFEST.read_text())]


def container() -> dict[str, Any]:
    (found,) = documents()[1]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_kubernetes_validate_passes_the_manifests() -> None:
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", str(MANIFEST)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed for resource") == 2


def keys(of: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every key that Kubernetes defines."""
    items = of.items() if isinstance(of, dict) else enumerate(of) if isinstance(of, list) else ()
    for key, value in items:
        if isinstance(of, dict):
            yield (*path, key)
        if key not in FREE:
            yield from keys(value, (*path, key))


def test_each_variable_is_one_of_drain() -> None:
    known = {param.envvar for param in drain.params}
    given = [*documents()[0]["stringData"], *(each["name"] for each in container()["env"])]
    assert len(given) == 5
    assert set(given) <= known


def test_a_pod_gets_longer_to_end_than_a_drain_takes() -> None:
    from wal_sink.spark.committers import CANCEL_S, GRACE_S  # noqa: PLC0415 - beside what it is compared with

    assert documents()[1]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= GRACE_S + CANCEL_S + 5
    assert "TimeoutStopSec=45" in (DEPLOY / "systemd/wal-sink-drain@.service").read_text()


# --- the container file


def instructions(text: str) -> list[tuple[str, str]]:
    found = [line.partition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    unknown = [name for name, _, _ in found if name not in INSTRUCTIONS]
    assert not unknown, f"no instruction of a container file: {unknown}"
    return [(name, rest) for name, _, rest in found]


# --- each command line as a plain process


class Local:
    """The paths of the examples in a folder: a WAL with complete batches, and an SQLite table as the target."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run/wal-sink"
        self.run.mkdir(parents=True)
        stage(folder, BATCHES, lambda batch, _: [pa.table({"id": [batch]})])

    @property
    def wal(self) -> str:
        return str(self.folder / "wal")

    @property
    def to(self) -> str:
        return f"sqlite:///{self.folder / 'out.db'}?table=orders"

    @property
    def alive(self) -> Path:
        return self.run / "alive"

    def delivered(self) -> list[int]:
        file = self.folder / "out.db"
        if not file.exists():
            return []
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=60)) as target:
            if not target.execute("SELECT 1 FROM sqlite_master WHERE name = 'orders'").fetchall():
                return []
            return [number for (number,) in target.execute("SELECT id FROM orders ORDER BY id")]

    def marked(self) -> int:
        return len(list(Path(self.wal).glob("sinks/*/markers/*.json")))

    def serves(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run a command of the examples until it delivered everything, then end it as its supervisor would."""
        assert command[0] == "wal-sink"
        arguments = [each.replace("/run/wal-sink", str(self.run)) for each in command[1:]]
        with Child(
            [sys.executable, "-m", "wal_sink.cli", *arguments],
            log=self.folder / "log",
            env=python_environment(environment),
            limit_s=LIMIT_S,
        ) as child:
            child.wait_until(lambda: self.delivered() == list(range(BATCHES)), "everything is delivered")
            child.wait_until(lambda: self.marked() == BATCHES, "all batches are marked")  # its rows may be there before
            assert self.alive.exists()
            child.send(signal.SIGTERM)
            assert child.wait() == 0, child.output
            assert "ended by SIGTERM: no batch is pending, " not in child.output
            assert "ended by SIGTERM: no batch is pending" in child.output


@pytest.fixture
def local(tmp_path: Path) -> Local:
    return Local(tmp_path)


def setting(unit: str, key: str) -> list[str]:
    lines = (DEPLOY / "systemd" / unit).read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]


def test_the_command_line_of_the_unit_serves(local: Local) -> None:
    config = local.folder / "orders.toml"
    told = {"wal": local.wal, "to": local.to, "name": "database", "start-from": "earliest"}
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in told.items()))
    config.chmod(0o600)
    (line,) = setting("wal-sink-drain@.service", "ExecStart")
    line = line.replace("/etc/wal-sink/%i.toml", str(config)).replace("%t/wal-sink-%i", "/run/wal-sink")
    assert "%" not in line
    command = shlex.split(line.replace(PROGRAM, "wal-sink", 1))

    local.serves(command, {})


def test_the_command_line_of_the_container_is_that_of_the_pod() -> None:
    named = dict(instructions(CONTAINER.read_text()))
    command = [*json.loads(named["ENTRYPOINT"]), *json.loads(named["CMD"])]
    assert command == [*container()["command"], *container()["args"]]


def age(file: Path) -> None:
    """Let a file look as if it was touched more than five minutes ago."""
    then_s = time.time() - 400
    os.utime(file, (then_s, then_s))


def code_of(command: Sequence[str], **environment: str) -> int:
    return subprocess.run(command, check=False, timeout=LIMIT_S, env={**os.environ, **environment}).returncode


def test_the_watching_unit_restarts_a_drain_whose_file_is_old(local: Local) -> None:
    """systemd does not run here. A program in the place of `systemctl` notes how it is called."""
    unit = "wal-sink-alive@.service"
    systemctl = local.folder / "bin/systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {local.folder}/called\n')
    systemctl.chmod(0o755)
    path = f"{systemctl.parent}:{os.environ['PATH']}"

    def once() -> list[str]:
        """Do what systemd does: the command, unless a condition before it fails."""
        (local.folder / "called").write_text("")
        for line in [*setting(unit, "ExecCondition"), *setting(unit, "ExecStart")]:
            plain = line.replace("/run/wal-sink-%i", str(local.run)).replace("%i", "orders")
            if code_of(shlex.split(plain), PATH=path) != 0:
                break
        return (local.folder / "called").read_text().splitlines()

    asks = "is-active --quiet wal-sink-drain@orders.service"
    local.alive.touch()
    assert once() == [asks]
    age(local.alive)
    assert once() == [asks, "restart wal-sink-drain@orders.service"]
