"""Helpers for tests of two-phase sinks: a place with few rows, a target that can fail, its visible rows."""

from __future__ import annotations

from typing import Any

from tests.house.log import paths
from tests.house.protocol import Run
from tests.support.small_run import Place
from tests.support.vault import Vault, VaultSink


def place(*rows: int) -> Place:
    return Place(rows=lambda _: list(rows))


def staged(where: Place, run: Run, batch_id: int = 0) -> None:
    """Stage and complete a batch, without delivering it."""
    for done in where.query().batches(run, batch_id + 1):
        assert done <= batch_id


def shown(vault: Vault) -> list[int]:
    return sorted(row["row"] for row in vault.rows())


def begun(where: Place, sink: str = "a") -> list[str]:
    return where.wal.list(paths.begun_folder(sink))


def restaged(where: Place, run: Run, vault: Vault) -> str:
    """Let Spark run a batch twice, complete and deliver it. Return the transaction of the attempt that lost."""
    query = where.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    query.stage(run, 0)
    lost = next(iter(vault.held))
    query.complete_batch(0)
    run.deliver_all()
    return lost


def restarted(where: Place, vault: Vault, times: int = 2) -> None:
    for _ in range(times):
        where.open({"a": VaultSink(vault)}).deliver_all()


class Failing(VaultSink):
    """A sink that fails in one of its methods, for a given number of times."""

    def __init__(self, vault: Vault, call: str, *, times: int = 1, error: Exception | None = None) -> None:
        super().__init__(vault)
        self.times = times
        right = getattr(self, call)

        def fail_first(*args: Any) -> Any:
            if self.times:
                self.times -= 1
                raise error or ConnectionError("unreachable")
            return right(*args)

        setattr(self, call, fail_first)
