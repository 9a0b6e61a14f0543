"""Arguments and URLs of the DynamoDB sinks, right and wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.house.sinks import promise
from tests.support.chunks import chunk, ids
from tests.support.dynamodb_tools import KINDS
from tests.support.refusals import unrefused
from wal_sink.errors import ConfigError
from wal_sink.settings import Delivery
from wal_sink_backends.dynamodb.sink import DynamoDbPutSink, DynamoDbSink
from wal_sink_backends.dynamodb.urls import dynamodb_sink


def test_arguments_that_cannot_work() -> None:
    def make(table: str, arguments: dict[str, Any]) -> None:
        DynamoDbSink(table, **arguments)

    cases: list[tuple[Any, ...]] = [
        ("", {}, "expected the name of a DynamoDB table"),
        ("orders", {"nulls": "drop"}, "expected one of 'null', 'omit'"),
        ("orders", {"row_key": ""}, "expected the name of the table's partition key"),
        ("orders", {"recreated_table": "nix"}, "recreated_table='nix': expected one of 'refuse', 'accept'"),
        ("orders", {"timeout_s": 0}, "timeout_s=0"),
        ("orders", {"endpoint_url": "ftp://u:hunter2@x"}, "endpoint_url='ftp://x': expected http"),
        ("orders", {"ledger_table": "orders"}, "a table other than 'orders'"),
        ("orders", {"ledger_table": "AKIA:hunter2@ledger"}, "ledger_table: .* boto3 finds credentials"),
        ("orders", {"ledger_table": ""}, "ledger_table='': expected the name of a DynamoDB table"),
    ]
    assert unrefused(ConfigError, make, cases) == []


@pytest.mark.parametrize("kind", [DynamoDbSink, DynamoDbPutSink])
@pytest.mark.parametrize(
    "table",
    ["AKIA:hunter2@orders", "hunter2@orders", "AKIA:hunter2", "AKIA:hun/hunter2@orders", "dynamodb://hunter2@o"],
)
def test_credentials_in_the_name_of_a_table_are_refused(kind: Any, table: str) -> None:
    """They would stand in messages and in the WAL, as a part of the name."""
    with pytest.raises(ConfigError, match=r"table: .* boto3 finds credentials where the sink runs") as caught:
        kind(table)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("table", ["orders", "a.b-c_9", "arn:aws:dynamodb:eu-central-1:123456789012:table/orders"])
def test_names_and_arns_of_tables(table: str) -> None:
    assert repr(table) in repr(DynamoDbSink(table))


_ARN = "arn:aws:dynamodb:eu-central-1:123456789012:table/"


@pytest.mark.parametrize("table", ["orders", f"{_ARN}orders"])
@pytest.mark.parametrize("ledger", ["orders", f"{_ARN}orders"])
def test_a_table_that_is_its_own_ledger_is_refused_by_name_and_by_arn(table: str, ledger: str) -> None:
    with pytest.raises(
        ConfigError, match=f"ledger_table='{ledger}': expected the name of a table other than '{table}'"
    ):
        DynamoDbSink(table, ledger_table=ledger)


@pytest.mark.parametrize(
    "ledger",
    ["other", f"{_ARN}other", f"{_ARN.replace('central', 'west')}orders", f"{_ARN.replace('123', '923')}orders"],
)
def test_two_arns_of_one_name_are_two_tables_in_other_regions_and_accounts(ledger: str) -> None:
    assert "orders" in repr(DynamoDbSink(f"{_ARN}orders", ledger_table=ledger))


def test_urls_that_cannot_work() -> None:
    def make(url: str) -> None:
        dynamodb_sink(url)

    cases: list[tuple[Any, ...]] = [
        ("dynamodb://?region=x", "expected dynamodb://TABLE"),
        ("dynamodb://orders/more", "expected dynamodb://TABLE"),
        ("dynamodb://AKIA:hunter2@orders?region=x", "not shown, because they may contain .*boto3"),
        ("dynamodb://hunter2@orders?region=x", "not shown, because they may contain .*boto3"),
        ("dynamodb://AKIA:hunter2?region=x", "not shown, because they may contain .*boto3"),
        ("dynamodb://AKIA:hun/hunter2@orders?region=x&mode=put", "expected dynamodb://TABLE"),
        ("dynamodb://orders?ledger_table=AKIA:hunter2@ledger", "ledger_table: .* boto3 finds credentials"),
        ("dynamodb://orders?regoin=x", "unknown options regoin; known are mode, row_key"),
        (
            "dynamodb://orders?mode=put&ledger_table=x",
            "mode=put has no options ledger_table; options of this mode: row_key",
        ),
        ("dynamodb://orders?mode=both", "mode='both': expected one of 'transactional', 'put'"),
    ]
    assert unrefused(ConfigError, make, cases) == []


@pytest.mark.parametrize(
    ("options", "guarantee"),
    [
        ("", "at_least_once"),
        ("&idempotent=false", "at_least_once"),
        ("&idempotent=true", "exactly_once"),
        ("&row_key=id", "exactly_once"),
    ],
)
def test_puts_are_exactly_once_only_where_no_older_row_can_replace_a_newer_one(options: str, guarantee: str) -> None:
    sink = dynamodb_sink(f"dynamodb://orders?mode=put&region=x{options}")

    assert promise(sink, Delivery(sink), "sink").guarantee == guarantee


@pytest.mark.parametrize("kind", KINDS)
def test_write_before_open_says_so(kind: Any) -> None:
    with pytest.raises(RuntimeError, match=r"not open: call open\(\) first"):
        kind("orders").write(chunk(ids(1)))
