"""docs/troubleshooting.toml: an entry for every error class, messages that exist, and a page made from it.

Small made-up sources show how messages are found, and that a message without an entry is noticed.
"""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path

import pytest

from tests.support.messages import FEWEST_LETTERS, OTHERS, Sources, read_sources
from tests.support.troubleshooting import (
    COMMAND,
    PAGE,
    SOURCE,
    WIDTH,
    Troubleshooting,
    not_in_the_sources,
    read_file,
)
from wal_sink import errors

FILE = read_file()
MOST_WORDS = 4000
"""Words of the page: it is searched, not read."""
MOST_WHY, MOST_DO = 14, 20
"""Words of the two texts of a row."""
PUBLIC = [name for name, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]


def test_every_error_class_is_named_once_and_every_public_one_has_an_entry_in_its_own_name() -> None:
    sources = read_sources()  # once for all tests
    assert {entry.name for entry in FILE.entries} >= set(PUBLIC)
    named = Counter([*(name for entry in FILE.entries for name in entry.names), *FILE.not_met])
    assert [name for name, times in named.items() if times > 1] == []
    assert sorted(named.keys() - sources.classes.keys()) == []
    assert sorted(name for name in sources.classes.keys() - named.keys() if not name.startswith("_")) == []


def test_every_fragment_is_in_a_text_of_the_sources_and_has_words_to_search_for() -> None:
    assert not_in_the_sources(FILE.fragments, read_sources()) == []
    letters = {fragment: sum(map(str.isalpha, fragment)) for fragment in FILE.fragments}
    assert [fragment for fragment, count in letters.items() if count < FEWEST_LETTERS] == []


def test_every_message_of_the_sources_is_found_under_its_class() -> None:
    missed = FILE.uncovered(read_sources())
    assert not missed, f"add a fragment to {SOURCE.name}, then {COMMAND}\n" + "\n".join(map(str, missed))


def test_every_cause_helps_and_a_class_that_no_user_meets_has_its_reason() -> None:
    assert [name for name, reason in FILE.not_met.items() if len(reason.split()) < 4] == []
    causes = [cause for entry in (*FILE.entries, FILE.warnings) for cause in entry.causes]
    assert all(cause.seen and cause.do for cause in causes)
    assert [cause.do for cause in causes if len(cause.why.split()) > MOST_WHY or len(cause.do.split()) > MOST_DO] == []
    assert all(entry.meaning and entry.safe and entry.avoid for entry in FILE.entries)


def test_what_the_page_shows_of_a_message_is_part_of_a_fragment() -> None:
    causes = [cause for entry in (*FILE.entries, FILE.warnings) for cause in entry.causes]
    unknown = [
        seen
        for cause in causes
        for seen in cause.seen
        if not any(seen in text for text in cause.messages + cause.foreign)
    ]
    assert unknown == []


def test_the_page_is_made_from_the_file_and_is_short_and_its_lines_fit() -> None:
    page = FILE.page(read_sources())
    assert PAGE.read_text() == page, COMMAND
    assert len(page.split()) <= MOST_WORDS
    assert [line for line in page.splitlines() if len(line) > WIDTH and line[0] not in "-|<" and "](" not in line] == []


# --- how messages are found

TEXTS = f'{OTHERS.rpartition("/")[2]!r}\ndef told(error):\n    return f"{{error}} without any text"\n'
MADE_UP = '''
"""A docstring that says: never a message of ours."""
HINT = "restore the object by hand"

class WalSinkError(Exception):
    pass

class LostError(WalSinkError):
    pass

class TimedError(LostError):
    def __init__(self, seconds, message): ...

def plain(path):
    raise LostError(f"{path} is not there any more; {HINT}")

def chosen(path, late):
    why = "it is too late now" if late else "nobody wrote it at all"
    raise LostError("path " + path + f": {why}")

def made():
    return "a text that a function makes"

def called(path):
    raise LostError(masked(f"{path}: {made()}"))

def timed():
    raise TimedError(3, "no answer for minutes")

def passed_on(error):
    raise LostError(f"{error}: {told(error)}") from error

def logged(logger, path, error):
    logger.warning("%s was tidied after %.1f s: %r", path, 1.0, error)
'''


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    checkout = tmp_path_factory.mktemp("made_up")
    for file, text in {OTHERS: TEXTS, "wal_sink/one.py": MADE_UP}.items():
        path = Path(checkout, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_sources(checkout)


def _file(
    *fragments: str, warnings: str = "was tidied after", names: str = '"LostError", "TimedError"'
) -> Troubleshooting:
    messages = ", ".join(f"'''{fragment}'''" for fragment in fragments)
    return Troubleshooting.read(
        f'introduction = "Search."\n[[error]]\nnames = [{names}]\nmeaning = "Gone. For good."\n'
        'safe = "All."\navoid = "run."\n'
        f'[[error.cause]]\nseen = ["gone"]\nwhy = "A rule."\ndo = "Stop it."\nmessages = [{messages}]\n'
        f'[warnings]\nmeaning = "It goes on."\n[[warnings.cause]]\nseen = ["tidied"]\ndo = "Nothing."\n'
        f'messages = ["{warnings}"]\n[not_met]\n'
    )


def test_a_message_without_an_entry_is_noticed_also_if_it_is_one_side_of_a_condition(made_up: Sources) -> None:
    every = (
        "is not there any more",
        "it is too late now",
        "nobody wrote it",
        "a text that a function",
        "no answer for",
    )
    assert _file(*every).uncovered(made_up) == []
    for left_out in every:
        (missed,) = _file(*(fragment for fragment in every if fragment != left_out)).uncovered(made_up)
        assert left_out in " ".join(missed.texts)
    (missed,) = _file(*every, warnings="was repeated").uncovered(made_up)
    assert missed.what == "warning"
