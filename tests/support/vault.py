"""A two-phase target in memory: rows held back, rows shown, and a memory that can be lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wal_sink import Chunk, HandleGoneError, SinkContext, TwoPhaseSink
from wal_sink.sinks import Transaction
from wal_sink.sinks.base import OnGone

Row = dict[str, Any]


@dataclass
class Vault:
    """The target. It outlives every process."""

    held: dict[str, list[Row]] = field(default_factory=dict)
    """The rows of open transactions, by the id of the transaction."""
    shown: dict[str, list[Row]] = field(default_factory=dict)
    """The rows of committed transactions, in the same way."""
    commits: list[str] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    remembers_commits: bool = True
    """True if it can tell a handle that was never committed from one that was committed and has gone since."""

    def rows(self) -> list[Row]:
        return [row for rows in self.shown.values() for row in rows]

    def drop_held(self) -> None:
        """Drop all open transactions, as after a timeout."""
        self.held.clear()

    def take_shown(self) -> None:
        """Remove the rows that are shown, as a reader of a queue does."""
        self.shown.clear()


class VaultSink(TwoPhaseSink):
    """A sink that holds rows back in a vault. It is not pickled: the test's process itself has the vault."""

    token = ""

    def __init__(self, vault: Vault, *, keep_segments: bool = True, on_gone: OnGone = "halt") -> None:
        self.vault = vault
        self.keep_segments, self.on_gone = keep_segments, on_gone
        self.contexts: list[SinkContext] = []
        self.transaction: Transaction | None = None

    def open(self, context: SinkContext) -> None:
        self.contexts.append(context)

    def begin(self, transaction: Transaction) -> str:
        self.transaction = transaction
        self.vault.held[transaction.id] = []
        return self.token and f"{self.token} {transaction.id}"

    def write(self, chunk: Chunk) -> None:
        assert self.transaction is not None
        self.vault.held[self.transaction.id] += chunk.table.to_pylist()

    def prepare(self) -> str:
        assert self.transaction is not None
        return f"handle {self.transaction.id}"

    def commit(self, transaction: Transaction, handle: str) -> None:
        assert handle == f"handle {transaction.id}"
        self.vault.commits.append(transaction.id)
        if transaction.id in self.vault.shown:
            return
        if transaction.id not in self.vault.held:
            raise HandleGoneError(f"no {handle}", never_committed=self.vault.remembers_commits)
        self.vault.shown[transaction.id] = self.vault.held.pop(transaction.id)

    def abort(self, transaction: Transaction, token: str) -> None:
        assert token in {"", f"{self.token} {transaction.id}"}
        self.vault.aborts.append(transaction.id)
        self.vault.held.pop(transaction.id, None)
