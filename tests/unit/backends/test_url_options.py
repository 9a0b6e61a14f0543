"""Options in URLs: read by the types of the sink's arguments, refused by name, and never a way to show a secret."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import EntryPoint
from typing import Any, Literal

import pytest

from tests.house.sinks import sink_from_url
from tests.support.processes import CHECKOUT
from tests.support.refusals import unrefused
from wal_sink.errors import ConfigError
from wal_sink_backends.common.options import options_in, options_of
from wal_sink_backends.common.pacing import Pacing

GROUP = "wal_sink.backends"
URL = "x://user:hunter2@host/a"


class Sample:
    """One argument of each type, and three that no text can hold or that are no options."""

    def __init__(
        self,
        url: str,
        *,
        text: str | None = None,
        flag: bool = False,
        count: int = 1,
        wait_s: float | None = None,
        columns: Sequence[str] | Mapping[str, str] = (),
        numbers: tuple[int, ...] = (),
        pairs: Mapping[str, str] | None = None,
        mode: Literal["put", "append"] = "put",
        trust: bool | str = True,
        check: Callable[[str], bool] | None = None,
        storage: Mapping[str, object] | None = None,
    ) -> None: ...


KNOWN = {**options_of(Sample, "url"), **options_of(Pacing), "conf.": (str,)}


@pytest.mark.parametrize(
    ("query", "name", "value"),
    [
        ("text=a%20b+c", "text", "a b+c"),
        ("text=", "text", ""),
        ("text=null", "text", "null"),
        ("flag=true", "flag", True),
        ("flag=FALSE", "flag", False),
        ("flag=0", "flag", False),
        ("count=1000", "count", 1000),
        ("wait_s=1e3", "wait_s", 1000.0),
        ("wait_s=inf", "wait_s", float("inf")),
        ("columns=id,day,", "columns", ["id", "day"]),
        ("columns=", "columns", []),
        ("columns=a%2Cb,c+d%20e", "columns", ["a,b", "c+d e"]),
        ("pairs=a%3Ab:c%2Cd", "pairs", {"a:b": "c,d"}),
        ("numbers=409,410", "numbers", (409, 410)),
        ("pairs=a:b,c:d", "pairs", {"a": "b", "c": "d"}),
        ("mode=append", "mode", "append"),
        ("trust=1", "trust", True),
        ("trust=/ca.pem", "trust", "/ca.pem"),
        ("conf.a.b=1", "conf.a.b", "1"),
    ],
)
def test_a_text_is_read_by_the_type_of_its_argument(query: str, name: str, value: Any) -> None:
    found = options_in(query, URL, KNOWN)
    assert found == {name: value}
    assert type(found[name]) is type(value)


def test_every_scheme_of_the_ready_sinks_is_an_entry_point() -> None:
    """Of this checkout: what is installed may be another one."""
    declared = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    made = {
        scheme: type(EntryPoint(scheme, declared[scheme], GROUP).load()(f"{scheme}://{rest}")).__name__
        for scheme, rest in {
            **dict.fromkeys(("http", "https"), "host/orders"),
            **dict.fromkeys(("redis", "rediss", "redis+unix"), "host/0?key={id}"),
            **dict.fromkeys(("mariadb", "mysql", "postgres", "postgresql", "sqlite"), "/shop?table=orders"),
            "kafka": "host/orders",
            "iceberg": "lake.orders",
            **dict.fromkeys(("delta+s3", "dynamodb", "files+s3"), "orders"),
            **dict.fromkeys(("delta", "files"), "/orders"),
        }.items()
    }
    assert made.keys() == declared.keys()
    assert sorted(set(made.values())) == [
        "DeltaSink",
        "DynamoDbSink",
        "FilesSink",
        "HttpSink",
        "IcebergSink",
        "KafkaSink",
        "RedisSink",
        "SqlSink",
    ]


def test_arguments_that_a_text_can_hold_are_options() -> None:
    assert [*KNOWN] == [
        *("text", "flag", "count", "wait_s", "columns", "numbers", "pairs", "mode", "trust"),
        *(each.name for each in fields(Pacing)),
        "conf.",
    ]
    assert options_in("", URL, KNOWN) == {}


def test_a_wrong_option_is_named_with_what_it_takes() -> None:
    def make(query: str) -> None:
        options_in(query, URL, KNOWN)

    cases: list[tuple[Any, ...]] = [
        ("flag=yes", "x://host/a: flag='yes': expected true or false$"),
        ("count=1_000", "count='1_000': expected a whole number"),
        ("count=1.5", "count='1.5': expected a whole number, such as count=100"),
        ("wait_s=soon", "wait_s='soon': expected a number, such as wait_s=30"),
        ("numbers=1,b", "numbers='1,b': expected whole numbers with commas, such as numbers=409,410"),
        ("pairs=a", "pairs='a': expected NAME:VALUE pairs with commas, such as pairs=NAME:VALUE,NAME:VALUE"),
        ("mode=apend", r"mode='apend': expected one of 'put', 'append'; did you mean append\?"),
        ("tekst=a&b=c", r"unknown options b, tekst; known are text, flag, .*, trust, rows_per_s, .*, conf\.NAME"),
        ("flagg=true", r"unknown options flagg; known are .*; did you mean flag\?"),
        ("flag=true&flag=true", "options given twice: flag. Give each option only once"),
        ("flag", "expected options as name=value&name=value"),
    ]
    assert unrefused(ConfigError, make, cases) == []


@pytest.mark.parametrize("query", ["count=hunter2@host", "hunter2=1@host", "ter2&hun=@host/a"])
def test_a_part_of_a_password_that_holds_a_question_mark_does_not_show(query: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options_in(query, f"x://user:pw?{query}", KNOWN)
    assert "hun" not in str(caught.value)
    assert "ter2" not in str(caught.value)


def test_an_unknown_secret_is_named_and_hides_the_names_beside_it() -> None:
    with pytest.raises(ConfigError, match="unknown options password; known are") as caught:
        options_in("password=a&hunter2=1", URL, KNOWN)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("files:///made#up?format=csv", "FilesSink('file:///made#up', format='csv')"),
        ("files+s3://bucket/made#up?format=parquet", "FilesSink('s3://bucket/made#up', format='parquet')"),
        ("sqlite:////made#up.db?table=orders", "SqlSink('sqlite:////made#up.db', 'orders', mode='append')"),
    ],
)
def test_a_number_sign_before_the_options_hides_none_of_them(url: str, shown: str) -> None:
    assert repr(sink_from_url(url)) == shown


@pytest.mark.parametrize(
    "url",
    [
        "files:///made-up?format=csv#more",
        "sqlite:///made-up.db?table=orders&mode=append#more",
        "dynamodb://orders?region=eu-west-1&mode=put#more",
        "dynamodb://orders#more?region=eu-west-1",
        "dynamodb://orders#?region=eu-west-1",
    ],
)
def test_no_text_behind_a_number_sign_is_dropped(url: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        sink_from_url(url)


CHANGES = "newer_by=at,pos&delete_when=gone&on_delete=mark&deletes_kept=5"


@pytest.mark.parametrize("url", [f"redis://h:6379/0?key=a:{{id}}&{CHANGES}", f"dynamodb://orders?region=eu&{CHANGES}"])
def test_a_url_may_tell_a_change_stream(url: str) -> None:
    rule: Any = vars(sink_from_url(url))["_rule"]
    assert (rule.newer_by, rule.mark, rule.deletes_kept) == (("at", "pos"), "gone", 5)


@pytest.mark.parametrize("url", ["files:///data/out?delete_when=gone", "kafka://h/a?newer_by=at"])
def test_a_sink_without_change_streams_refuses_their_options(url: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown options (delete_when|newer_by)"):
        sink_from_url(url)
