"""What documents say of a kind of sink is what `guarantees.py` promises for it: one truth."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.house.sinks import Chunk, Position, Sink, TransactionalSink, promise
from tests.support.processes import CHECKOUT
from tests.support.vault import Vault, VaultSink
from wal_sink.settings import Delivery

DOCUMENTS = ("README.md", "CHANGELOG.md", *(str(path.relative_to(CHECKOUT)) for path in CHECKOUT.glob("docs/**/*.md")))
TEXTS = (*DOCUMENTS, *(str(path.relative_to(CHECKOUT)) for path in CHECKOUT.glob("backends/**/*.py")))


class Plain(Sink):
    def write(self, chunk: Chunk) -> None: ...


class Keyed(Plain):
    idempotent = True


class LooksUp(Plain):
    def was_applied(self, key: str) -> bool:
        return bool(key)


class Ledger(Plain, TransactionalSink):
    def last(self, slot: str) -> Position | None: ...


KINDS: dict[str, Sink] = {
    r"was_applied|HttpLookupSink": LooksUp(),
    r"`TransactionalSink`": Ledger(),
    r"`TwoPhaseSink`": VaultSink(Vault()),
    r"@idempotent|idempotent ?= ?True": Keyed(),
}
"""How a table names what the user writes, and a sink of that kind."""
_WORDS = re.compile(r"exactly once in effect|exactly once|at least once|at most once")
_LOOKS_UP = re.compile(r"look-?ups?\b|was_applied|HttpLookupSink", re.IGNORECASE)


@dataclass(frozen=True)
class Claim:
    """A row of a table: the target can do this, you write that, you get …"""

    document: str
    written: str
    kind: str
    got: str


def claims(document: str, text: str) -> Iterator[Claim]:
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or len(cells) < 3 or not _WORDS.match(cells[2]):
            continue
        for kind in KINDS:
            if re.search(kind, cells[1]):
                yield Claim(document, cells[1], kind, first_words(cells[2]))


def first_words(text: str) -> str:
    match = _WORDS.match(text)
    assert match, text
    return match[0]


def words_of(sink: Sink) -> str:
    return first_words(promise(sink, Delivery(sink), "a").sentence)


def test_every_table_promises_what_the_code_promises() -> None:
    found = [claim for name in DOCUMENTS for claim in claims(name, (CHECKOUT / name).read_text())]
    promised = {kind: words_of(sink) for kind, sink in KINDS.items()}
    assert [claim for claim in found if claim.got != promised[claim.kind]] == []
    assert {claim.kind for claim in found} == set(KINDS)
    assert {"README.md", "docs/writing-a-sink.md", "docs/sinks/http.md"} <= {claim.document for claim in found}


def contradictions(text: str) -> list[str]:
    """Sentences and cells that speak of a look-up and promise more than it keeps."""
    parts = re.split(r"(?<=[.:;!?])\s|\||\n\n|\n- ", text)
    return [part for part in parts if _LOOKS_UP.search(part) and "exactly once" in " ".join(part.split()).lower()]


def test_no_text_promises_more_of_a_lookup() -> None:
    assert len(TEXTS) > 100
    assert [(name, part) for name in TEXTS for part in contradictions((CHECKOUT / name).read_text())] == []


def test_a_contradiction_is_noticed() -> None:
    document = "| have this key? | `was_applied(key)` | exactly once, except late requests | one chunk |"

    [claim] = claims("a.md", document)

    assert claim.got != words_of(LooksUp())
    assert contradictions("It is exactly once in effect by key and by a look-up, or at least once.")
    assert not contradictions("Exactly once by key; at least once, with fewer repeats, by a look-up.")
