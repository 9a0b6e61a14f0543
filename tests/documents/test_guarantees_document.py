"""Every sentence of docs/GUARANTEES.md names checks, and every check it names exists."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import get_args

import pytest

from tests.house.protocol import RECORD_S, SMALL_BATCH_BYTES
from tests.support.documents import check_exists, laws
from tests.support.laws import PAGE, read_laws, with_table
from tests.support.processes import CHECKOUT
from wal_sink.protocol.progress import GROUP_BATCHES, GROUP_S
from wal_sink.protocol.segment_delivery import LOOK_S
from wal_sink.spark.committers import GRACE_S
from wal_sink.testing.matrix.verdict import Verdict

_SENTENCE = re.compile(r"(\d+)\. (.+)")
_MORE = re.compile(r" {3,4}([^-\s].*)")
_CHECK = re.compile(r" {3,4}- `(\S.*)`")


@dataclass
class Sentence:
    number: int
    text: str
    checks: list[str] = field(default_factory=list)


def sentences(document: str | None = None) -> list[Sentence]:
    """Everything below the first heading of a section is a numbered sentence or one of its checks.

    Text below a heading of the third level promises nothing: there a numbered sentence is an error.
    """
    found: list[Sentence] = []
    text = (CHECKOUT / "docs/GUARANTEES.md").read_text() if document is None else document
    _, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    for section in sections:
        promised, *explained = re.split(r"^### ", section, flags=re.MULTILINE)
        unchecked = [line for part in explained for line in part.splitlines() if _SENTENCE.fullmatch(line)]
        assert not unchecked, f"these sentences stand where nothing is checked: {unchecked}"
        for line in filter(None, promised.splitlines()[1:]):
            if match := _SENTENCE.fullmatch(line):
                found.append(Sentence(int(match[1]), match[2]))
            elif (match := _MORE.fullmatch(line)) and not found[-1].checks:
                found[-1].text += f" {match[1]}"
            else:
                check = _CHECK.fullmatch(line)
                assert check, f"neither a sentence nor a check: {line}"
                found[-1].checks.append(check[1])
    return found


MOST_CHECKS, MOST_WORDS = 3, 2500


def faults(sentence: Sentence) -> list[str]:
    found = [] if sentence.text.endswith(".") else ["it does not end"]
    found += [] if sentence.checks else ["nothing would fail if this were false"]
    found += [] if len(sentence.checks) <= MOST_CHECKS else [f"more than {MOST_CHECKS} checks"]
    found += [f"{check} does not exist" for check in sentence.checks if not check_exists(check)]
    return [f"{sentence.number}. {sentence.text}: {fault}" for fault in found]


def test_every_sentence_names_checks_that_exist() -> None:
    assert [fault for sentence in sentences() for fault in faults(sentence)] == []


def test_a_sentence_without_checks_has_no_place_to_hide() -> None:
    assert [found.text for found in sentences("## One\n1. It holds.\n   - `a::b`\n### Why\nBecause.\n")] == [
        "It holds."
    ]
    assert [found.text for found in sentences("## One\n1. It\n   holds.\n   - `a::b`\n")] == ["It holds."]
    with pytest.raises(AssertionError, match="neither a sentence nor a check"):
        sentences("## One\n1. It holds.\n   - `a::b`\n   It holds, too.\n")
    with pytest.raises(AssertionError, match="where nothing is checked"):
        sentences("## One\n1. It holds.\n   - `a::b`\n### Why\n2. It holds, too.\n")
    with pytest.raises(AssertionError, match="neither a sentence nor a check"):
        sentences("## One\nIt holds.\n")


def test_the_document_is_short() -> None:
    assert len((CHECKOUT / "docs/GUARANTEES.md").read_text().split()) <= MOST_WORDS
    assert faults(Sentence(1, "It holds.", ["spec::I1_CompletedOnly"] * 4)) == ["1. It holds.: more than 3 checks"]


def test_the_table_is_made_from_the_verdicts_that_the_contracts_find() -> None:
    verdicts = read_laws()
    page = PAGE.read_text()
    assert page == with_table(page, verdicts), "python -m tests.support.laws --write"
    assert {verdict for found in verdicts.values() for verdict in found.values()} <= set(get_args(Verdict))
    contracts = "".join(path.read_text() for path in (CHECKOUT / "tests").glob("*/**/test_*.py"))
    assert [sink for sink in verdicts if f'law = "{sink}"\n' not in contracts] == []
    with pytest.raises(ValueError, match="expected one pair of <!-- laws -->"):
        with_table("no table", verdicts)


def test_sentences_are_numbered_in_order() -> None:
    numbers = [sentence.number for sentence in sentences()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_law_of_the_design_is_among_the_checks() -> None:
    named = {check.removeprefix("spec::") for sentence in sentences() for check in sentence.checks}
    missing = {law for law in laws() if re.match(r"I\d_", law)} - named
    assert not missing


def test_numbers_in_sentences_are_those_of_the_code() -> None:
    """The tests of groups and ends calculate with the constants: they would pass with any other number."""
    texts = {sentence.number: sentence.text for sentence in sentences()}
    assert f"other sink's tasks get {GRACE_S:g} s to end" in texts[10]
    assert "chunks of the last second and the one in flight" in texts[12]
    assert "up to eight batches that were sent within one second" in texts[12]
    assert f"up to {SMALL_BATCH_BYTES >> 20} MiB, or takes less than a second" in texts[12]
    assert "sends for one second more at most" in texts[12]
    assert (RECORD_S, GROUP_BATCHES, GROUP_S, LOOK_S) == (1.0, 8, 1.0, 1.0)


def test_what_does_not_exist_is_noticed() -> None:
    assert not check_exists("tests/documents/test_guarantees_document.py::test_that_was_never_written")
    assert not check_exists("spec::I9_NeverStated")
    assert not check_exists("chaos::nothing at all happens")
    assert len(faults(Sentence(1, "It holds", ["spec::I9_NeverStated", "spec::I8_NeverStated"]))) == 3
    assert faults(Sentence(1, "It holds.")) == ["1. It holds.: nothing would fail if this were false"]


class _Collected:
    """A pytest plugin that notes what a run would do."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.names.update(item.nodeid.partition("[")[0] for item in session.items)


def test_make_test_checks_each_sentence_about_rows() -> None:
    """A fault that `make test-all` alone would find is found too late. Sentences of the first two sections, 1 to 19."""
    about_rows = [sentence for sentence in sentences() if sentence.number <= 19]
    named = {check for sentence in about_rows for check in sentence.checks if "/" in check}
    proof = {check for check in named if check.startswith("tests/proof/")}  # is never slow; its modules import pyspark
    left_out = ("tests/proof/", "tests/integration/", "tests/chaos/", "tests/spark/")  # the last imports pyspark, too
    others = {check for check in named if not check.startswith(left_out)}
    files = sorted({check.partition("::")[0] for check in others})
    quick = _Collected()
    plain = [f"-pno:{plugin}" for plugin in ("randomly", "cacheprovider", "terminal", "cov", "faulthandler")]
    assert pytest.main([*plain, "--collect-only", "-m", "not slow", *files], [quick]) == pytest.ExitCode.OK
    unchecked = [f"{one.number}. {one.text}" for one in about_rows if not (quick.names | proof) & set(one.checks)]
    assert not unchecked, f"`make test` would not notice if these were false: {unchecked}"
