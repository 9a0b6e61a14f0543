"""docs/troubleshooting.toml: an entry for every error class, messages that exist, and a page made from it.

Small made-up sources show how messages are found, and that a message without an entry is noticed.
"""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.messages import FEWEST_LETTERS, OTHERS, UNKNOWN, Sources, read_sources
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
    assert all(cause.title and cause.do for cause in causes)
    alone = [cause.title for cause in causes if not (cause.messages or cause.foreign)]
    assert alone == ["A wrapped Spark writer failed"]  # Spark's text
    assert all(entry.meaning and entry.safe and entry.avoid for entry in FILE.entries)


def test_the_page_is_made_from_the_file_and_its_lines_fit() -> None:
    page = FILE.page(read_sources())
    assert PAGE.read_text() == page, COMMAND
    assert [line for line in page.splitlines() if len(line) > WIDTH and line[0] not in "-|<" and "](" not in line] == []


def test_the_parents_of_an_error_are_those_of_its_class() -> None:
    parents = read_sources().parents
    assert {name: parents[name] for name in PUBLIC} == {
        name: tuple(kind.__name__ for kind in getattr(errors, name).__mro__[1:] if kind.__module__ == errors.__name__)
        for name in PUBLIC
    }


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
        f'[[error.cause]]\ntitle = "Cleaners"\nmessages = [{messages}]\nwhy = "A rule."\ndo = "Stop it."\n'
        f'[warnings]\nmeaning = "It goes on."\n[[warnings.cause]]\ntitle = "Tidied"\nmessages = ["{warnings}"]\n'
        'why = ""\ndo = "Nothing."\n[not_met]\n'
    )


def test_texts_are_computed_from_the_syntax_tree(made_up: Sources) -> None:
    found = {site.line: site.texts for site in made_up.sites}
    assert list(found.values()) == [
        (f"{UNKNOWN} is not there any more; restore the object by hand",),
        (f"path {UNKNOWN}: it is too late now", f"path {UNKNOWN}: nobody wrote it at all"),
        (f"{UNKNOWN}: a text that a function makes",),
        ("no answer for minutes",),
        (f"{UNKNOWN}: {UNKNOWN}",),
        (f"{UNKNOWN} was tidied after {UNKNOWN} s: {UNKNOWN}",),
    ]
    assert made_up.classes == dict.fromkeys(["WalSinkError", "LostError", "TimedError"], "wal_sink/one.py")


def test_a_docstring_is_no_message_and_an_ellipsis_stands_for_anything_within_one_text(made_up: Sources) -> None:
    assert not_in_the_sources(["never a message of ours"], made_up) == ["never a message of ours"]
    assert not_in_the_sources(["restore the object by hand"], made_up) == []
    assert not_in_the_sources(["path …: it is too late", "is not there…by hand"], made_up) == []
    across = "is not there any more…a text that a function makes"
    assert not_in_the_sources([across], made_up) == [across]


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


def test_the_coverage_counts_places_with_words_and_found_places(made_up: Sources) -> None:
    lines = [line.split() for line in _file("is not there any more", "no answer for").coverage(made_up)]
    assert lines[1:] == [["LostError", "4", "3", "1"], ["TimedError", "1", "1", "1"], ["warning", "1", "1", "1"]]


def test_the_page_tells_what_catches_an_error_and_what_the_common_class_does_not_catch(made_up: Sources) -> None:
    for name, caught in [
        ("TimedError", "`except LostError` and `except WalSinkError` catch it too.\n\n**Safe"),
        ("LostError", "`except WalSinkError` catches it too.\n\n**Safe"),
        ("WalSinkError", "Gone. For good.\n\n**Safe"),
    ]:
        assert caught in _file("lost", names=f'"{name}"').page(made_up)
    alone = replace(made_up, parents={"LostError": ()})
    assert "`except WalSinkError` does not catch this class.\n" in _file("lost").page(alone)


def test_the_page_shows_every_part(made_up: Sources) -> None:
    page = _file("gone `now`", "lost").page(made_up)
    assert "| [`LostError`](#losterror) | Gone. |\n" in page
    assert "## `LostError`\n\nGone. For good.\n\nThe same holds for `TimedError`.\n\n" in page
    assert "\n\n**Safe:** All.\n\n**Do not** run.\n" in page
    assert (
        "**Do not** run.\n\n### Cleaners\n\n- `` gone `now` ``\n- `lost`\n\nA rule.\n\n**Remedy:** Stop it.\n" in page
    )
    assert page.endswith(
        "## Warnings in the log\n\nIt goes on.\n\n### Tidied\n\n- `was tidied after`\n\n**Remedy:** Nothing.\n"
    )


def test_texts_of_servers_are_shown_and_not_looked_for_in_the_sources(made_up: Sources) -> None:
    file = _file("is not there any more", names='"LostError"')
    (cause,) = file.entries[0].causes
    entry = replace(file.entries[0], causes=(replace(cause, foreign=("Access denied",)),))
    told = replace(file, entries=(entry,))
    assert "- `is not there any more`\n- `Access denied`\n\nA rule." in told.page(made_up)
    assert not_in_the_sources(told.fragments, made_up) == []


def test_an_entry_with_an_unknown_or_a_missing_part_is_an_error() -> None:
    with pytest.raises(TypeError, match="remedy"):
        Troubleshooting.read(SOURCE.read_text().replace("\ndo = ", "\nremedy = ", 1))
    with pytest.raises(TypeError, match="avoid"):
        Troubleshooting.read(SOURCE.read_text().replace("\navoid = ", "\n#", 1))
