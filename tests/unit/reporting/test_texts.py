"""Texts of what a user's code raises, returns and is: making one never raises."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.one_segment import Stage
from tests.support.processes import CHECKOUT
from wal_sink.errors import PermanentError
from wal_sink.reporting.texts import name_of, repr_of, text_of, told
from wal_sink.runtime.timed_calls import ProgramExitError, ThreadCall
from wal_sink.sinks.base import Rejected, Sink
from wal_sink.sinks.chunk import Chunk
from wal_sink.sinks.failures import FailureKind


class Odd(Exception):
    """Its text is made by a function that may raise."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.make = make

    def __str__(self) -> str:
        text: str = self.make()
        return text

    __repr__ = __str__


class OddPermanent(Odd, PermanentError):
    """One that the sink raises on purpose."""


class OddText(str):
    """Text that cannot be put into other text."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        raise RuntimeError(spec)

    def __str__(self) -> str:
        raise RuntimeError


def raises(error: BaseException) -> Callable[[], str]:
    def make() -> str:
        raise error

    return make


ODD = [
    pytest.param(raises(ValueError("no text")), "raised ValueError", id="raises"),
    pytest.param(raises(SystemExit(3)), "raised SystemExit", id="exits"),
    pytest.param(raises(RecursionError()), "raised RecursionError", id="endless"),
    pytest.param(lambda: 7, "raised TypeError", id="not text"),
    pytest.param(lambda: OddText("half"), "half", id="text that raises later"),
    pytest.param(lambda: "\ud800 and more", r"\ud800 and more", id="half a pair"),
]


@pytest.mark.parametrize(("make", "expected"), ODD)
def test_a_text_is_plain_and_can_be_written(make: Callable[[], Any], expected: str) -> None:
    for text in (text_of(Odd(make)), repr_of(Odd(make))):
        assert type(text) is str
        assert expected in text
        assert text.encode()


WHERE_DESCRIBED = {"wal_sink/reporting/texts.py", "wal_sink/sinks/base.py", "wal_sink/testing/contract/sink.py"}
"""The places that may call `describe()` by themselves."""
LEFT_OUT = " … {} characters are left out … "


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a" * 200_000, "a" * 200_000),
        ("b" * 200_001, LEFT_OUT.format("200,001")),
        ("first " + "b" * 300_000, "first" + LEFT_OUT.format("300,001")),
        ("b" * 300_000 + " last", LEFT_OUT.format("300,001") + "last"),
    ],
    ids=["of the greatest length", "of one word", "with a first word", "with a last word"],
)
def test_of_a_text_of_megabytes_its_ends_are_kept(text: str, kept: str) -> None:
    """Each text is searched for secrets, which took minutes for the text of one exception."""
    assert text_of(text) == kept


def test_no_part_of_a_word_is_kept_where_a_text_is_cut() -> None:
    """A part of a password is masked by nothing."""
    words = " ".join(f"password={number:07}-secret" for number in range(20_000))
    kept = text_of(words)
    assert kept.count("password=") == 2 * (100_000 // len("password=0000000-secret "))
    assert {len(word) for word in kept.split(" ") if "=" in word} == {len("password=0000000-secret")}
    assert kept.startswith("password=0000000-secret ")
    assert kept.endswith(" password=0019999-secret")


def test_what_is_told_of_an_ordinary_error_is_its_class_and_text() -> None:
    assert told(ValueError("expected a number")) == "ValueError: expected a number"


@pytest.mark.parametrize(("make", "expected"), ODD)
@pytest.mark.parametrize(("kind", "outcome"), [(Odd, FailureKind.RETRIABLE), (OddPermanent, FailureKind.PERMANENT)])
def test_a_sinks_exception_without_text_is_an_outcome(
    make: Callable[[], Any], expected: str, kind: type[Odd], outcome: FailureKind
) -> None:
    def fail(_: Chunk) -> None:
        raise kind(make)

    failure = Stage().deliver(fail).failure
    assert failure is not None
    assert failure.kind is outcome
    assert expected in failure.message


class Returned:
    """A value that a sink returns by mistake."""

    def __repr__(self) -> str:
        raise ValueError


def test_so_is_what_it_returns_and_why_it_rejects() -> None:
    returned = Stage().deliver(lambda _: Returned()).failure
    assert returned is not None
    assert "<a Returned without text: repr() raised ValueError>" in returned.message
    rejected = Stage().deliver(lambda _: Rejected({0: Odd(raises(ValueError()))})).failure  # type: ignore[dict-item]
    assert rejected is not None
    assert "row 0 of the chunk: <a Odd without text: str() raised ValueError>" in rejected.message


def test_a_row_that_is_named_by_no_index_is_an_outcome() -> None:
    outcome = Stage().deliver(lambda _: Rejected({0: "x", "a": "y"}))  # type: ignore[dict-item]
    assert outcome.failure is not None
    assert "Rejected names a row by 'a': expected its index in the chunk" in outcome.failure.message


def test_a_refused_row_whose_reason_has_no_text_is_kept() -> None:
    outcome = Stage().deliver(lambda _: Rejected({0: Odd(raises(ValueError()))}), keeps_rejected=True)  # type: ignore[dict-item]
    assert outcome.failure is None
    assert outcome.rejected == 3


class Nameless(Sink):
    """A sink that cannot say what it is."""

    def write(self, chunk: Chunk) -> None:
        raise OSError(f"{chunk.num_rows} rows are too many")

    def describe(self) -> str:
        raise ValueError("no name")


def test_a_sink_that_cannot_say_what_it_is_fails_by_its_own_error_alone() -> None:
    failure = Stage().deliver(Nameless()).failure
    assert failure is not None
    assert "describe() raised ValueError" in failure.message
    assert "OSError: 2 rows are too many" in failure.message
    assert name_of(Nameless()).startswith("<a Nameless")


def test_a_sink_that_says_a_number_is_called_by_it() -> None:
    class Seventh(Nameless):
        def describe(self) -> Any:
            return 7

    assert name_of(Seventh()) == "7"


def test_a_call_that_ends_the_program_with_something_without_text_is_answered() -> None:
    caller = ThreadCall()
    with pytest.raises(ProgramExitError, match=r"sys.exit\(<a Odd without text"):
        caller.call(raises(SystemExit(Odd(raises(ValueError())))), timeout_s=60)
    caller.close()


def broad_handlers(tree: ast.AST) -> Iterator[ast.ExceptHandler]:
    """The handlers of whatever there is, by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.name is not None and node.type is not None:
            named = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if any(isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"} for kind in named):
                yield node


def unsafe_texts(handler: ast.ExceptHandler) -> list[int]:
    """Lines that make a text of the handler's error by themselves."""

    def is_error(node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == handler.name

    return [
        node.lineno
        for node in ast.walk(handler)
        if (isinstance(node, ast.FormattedValue) and is_error(node.value))
        or (isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"str", "repr"} and is_error(node.args[0]))
    ]


def test_a_handler_of_every_exception_makes_its_texts_safely() -> None:
    files = sorted((CHECKOUT / "wal_sink").rglob("*.py"))
    faults, handlers = [], 0
    for file in files:
        source, name = file.read_text(), file.relative_to(CHECKOUT).as_posix()
        if ".describe()" in source and name not in WHERE_DESCRIBED:
            faults.append(f"{name}: calls describe(), which may raise")
        for handler in broad_handlers(ast.parse(source)) if "except" in source else ():
            handlers += 1
            faults += [f"{name}:{line}: makes a text of {handler.name}" for line in unsafe_texts(handler)]
    assert faults == []
    assert len(files) > 200
    assert handlers > 10, "the search finds the handlers"


def test_a_handler_that_makes_a_text_by_itself_is_found() -> None:
    (handler,) = broad_handlers(ast.parse("try:\n    f()\nexcept (OSError, Exception) as e:\n    g(f'{e}', str(e))"))
    assert unsafe_texts(handler) == [4, 4]
