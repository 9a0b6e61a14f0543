"""The places of retired words and phrases: `python -m tests.support.words [PATH …]` lists them.

`tests/documents/words.toml` holds the words, what to write instead, and the places where one may stay, each with its
reason. Sources, documents and the specification are searched as text: names, comments, docstrings and messages, also
across the ends of lines. Names of tests are passed over, because other files refer to tests by these names.
"""

from __future__ import annotations

import argparse
import fnmatch
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.processes import CHECKOUT

LIST = "tests/documents/words.toml"
SEARCHED = ("wal_sink", "backends", "examples", "tests", "docs", "specs", "benchmarks", ".github")
AT_THE_TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "pyproject.toml", ".ci/run")
ENDINGS = frozenset({".py", ".md", ".toml", ".tla", ".cfg", ".java", ".txt", ".yml"})
OF_THE_FINDER = (LIST, "tests/support/words.py", "tests/documents/test_words.py")
"""These files name the words that they look for."""
SPACE = r"(?:\s+(?:(?:\#:?|\\\*|\*|>)[ ]+)?|\s*\"\s+[rbf]*\")"
"""A space, or the end of a line with the beginning of the next line of a comment, a quotation or a split text."""
NAME_OF_A_TEST = re.compile(r"\btest_\w+")
BEGINS = r"(?:(?<=[.!?:;|>*\"'`(\[#-][ ])|(?<=[\"'`*(|])|^[ ]*(?:\d+\.[ ])?)"
SENTENCE = BEGINS + r"{word}[ ](?!=)[^.?!|]*(?:[.!|](?![\w`])|\Z|\n[ ]*\n)"
"""A sentence that begins with the word and does not end in a question mark."""


@dataclass(frozen=True, slots=True)
class Retired:
    """A word or phrase that is no longer written."""

    word: str
    pattern: re.Pattern[str]
    near: re.Pattern[str]
    is_name: bool
    write: str
    marks: frozenset[str]
    """Each match holds one of these texts, in small letters if case does not count."""

    def may_be_in(self, text: str, lowered: str) -> bool:
        """Tell whether the pattern may match in a text. Most words are in few files, and this is quick."""
        searched = lowered if self.pattern.flags & re.IGNORECASE else text
        return any(mark in searched for mark in self.marks)


@dataclass(frozen=True, slots=True)
class Allowed:
    """An exception: a retired word may stay in these files, in lines that contain a text."""

    word: str
    files: str
    line: str
    why: str

    def covers(self, place: Place) -> bool:
        """Tell whether this entry allows the place."""
        return self.word == place.word and fnmatch.fnmatch(place.file, self.files) and self.line in place.line


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """One retired word in a file."""

    file: str
    number: int
    word: str
    line: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.word}: {self.line.strip()}"


class Words:
    """The retired words of a checkout, and the places where they may stay."""

    def __init__(self, text: str) -> None:
        told = tomllib.loads(text)
        self.passed_over: list[str] = told["passed_over"]
        self.retired = [_retired(**entry) for entry in told["retired"]]
        self.allowed = [Allowed(**{"line": ""} | entry) for entry in told.get("allowed", [])]
        unknown = {entry.word for entry in self.allowed} - {entry.word for entry in self.retired}
        if unknown or any(not entry.why.strip() for entry in self.allowed):
            raise ValueError(f"an allowed place names no retired word ({sorted(unknown)}), or gives no reason")

    def places(self, checkout: Path, folders: Iterable[str]) -> list[Place]:
        """List every place below these folders and files, allowed or not."""
        return sorted({place for file in self._files(checkout, folders) for place in self._in(file, checkout / file)})

    def left(self, places: list[Place]) -> list[Place]:
        """Return the places that no entry allows."""
        return [place for place in places if not any(entry.covers(place) for entry in self.allowed)]

    def unused(self, places: list[Place]) -> list[Allowed]:
        """Return the entries that allow nothing."""
        return [entry for entry in self.allowed if not any(entry.covers(place) for place in places)]

    def _files(self, checkout: Path, folders: Iterable[str]) -> Iterator[str]:
        for folder in folders:
            inside = [name for name in (*SEARCHED, *AT_THE_TOP) if folder == "."] or [folder]
            if not all((checkout / name).exists() for name in inside if name == folder):
                raise FileNotFoundError(f"{folder} does not exist in {checkout}")
            for name in inside:
                for path in [checkout / name, *(checkout / name).rglob("*")]:
                    file = path.relative_to(checkout).as_posix()
                    if (
                        path.is_file()
                        and (path.suffix in ENDINGS or file in AT_THE_TOP)
                        and not self._is_passed_over(file)
                    ):
                        yield file

    def _is_passed_over(self, file: str) -> bool:
        return file in OF_THE_FINDER or any(fnmatch.fnmatch(file, pattern) for pattern in self.passed_over)

    def _in(self, file: str, path: Path) -> Iterator[Place]:
        whole = path.read_text()
        lowered = whole.lower()
        near = [one for one in self.retired if one.may_be_in(whole, lowered) and one.near.search(f"{file}\n{whole}")]
        if not near:
            return
        lines = whole.split("\n")
        text = NAME_OF_A_TEST.sub(lambda test: "_" * len(test[0]), whole)
        sentences = re.sub(r"(?m)^#.*$", "", text) if file.endswith(".md") else text
        names = cache(lambda: _names(text) if file.endswith(".py") else "")
        for retired in near:
            searched = sentences if retired.word.endswith("…") else text
            if retired.is_name:  # taking a source apart is slow, and seldom needed
                searched = names() if retired.pattern.search(text) else ""
            for number in (searched.count("\n", 0, match.start()) + 1 for match in retired.pattern.finditer(searched)):
                yield Place(file, number, retired.word, lines[number - 1])


def _retired(
    word: str, write: str, pattern: str = "", sentence: str = "", near: str = "", *, names: bool = False
) -> Retired:
    if sentence:
        whole = re.compile(SENTENCE.format(word=sentence), re.MULTILINE)
        return Retired(word, whole, re.compile(near), names, write, _marks(f"{sentence} "))
    flags = 0 if re.search("[A-Z]", pattern) else re.IGNORECASE
    whole = re.compile(rf"(?<![A-Za-z])(?:{pattern.replace(' ', SPACE)})(?![A-Za-z])", flags)
    marks = _marks(pattern.lower() if flags else pattern)
    return Retired(word, whole, re.compile(near), names, write, marks)


def _marks(pattern: str) -> frozenset[str]:
    """Return texts of which each match of a pattern holds at least one: the longest of each of its alternatives."""
    left = re.sub(r"\[[^\]]*\][?*+]?", " ", pattern)
    while (shorter := re.sub(r"\([^()]*\)[?*+]?", " ", left)) != left:
        left = shorter
    parts = re.sub(r"\\.|.[?*]", " ", left).split("|")
    return frozenset(max(re.findall(r"\w+", part), key=len, default="") for part in parts)


def _names(source: str) -> str:
    """Return only the names of a source, each in its line."""
    lines: list[list[str]] = [[] for _ in range(source.count("\n") + 2)]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            lines[token.start[0] - 1].append(token.string)
    return "\n".join(map(" ".join, lines))


def room_of(file: str) -> str:
    """Return the folder of a file. The counts are shown by folder."""
    return file.rpartition("/")[0] or file


def main() -> None:
    """List the places that are left, or count them."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.words", description="List retired words.")
    parser.add_argument("paths", nargs="*", default=["."], help="files or folders, from the top of the checkout")
    parser.add_argument("--count", action="store_true", help="count by folder and by word")
    given = parser.parse_args()
    words = Words((CHECKOUT / LIST).read_text())
    left = words.left(words.places(CHECKOUT, given.paths))
    if given.count:
        for counts in (Counter(place.word for place in left), Counter(room_of(place.file) for place in left)):
            sys.stdout.write("".join(f"{count:5} {name}\n" for name, count in counts.most_common()) + "\n")
    else:
        sys.stdout.write("".join(f"{place}\n" for place in left))
    sys.stdout.write(f"{len(left)} places\n")


if __name__ == "__main__":
    main()
