"""The secrets that are known, and a report without them."""

from __future__ import annotations

import json

from wal_sink.doctor.report import Report, shown_report
from wal_sink.doctor.secrets import known_secrets, secrets_in_target
from wal_sink.redaction import Redactor
from wal_sink.reporting.findings import Level, fault, fine, risk

ENVIRON = {
    "SHOP_PASSWORD": "from-environment",
    "PWD": "/some/folder",
    "SHOP_LOGIN": "named-by-url",
    "HOME": "/where/i/live",
}
TARGET = "postgresql://etl:in-the-url@db/shop?table=orders&password_env=SHOP_LOGIN&token=in%20query#ssl.key=in-fragment"


def test_secrets_of_environment_options_and_addresses_are_known() -> None:
    found = known_secrets(
        ENVIRON, [{"key": "an-option", "endpoint_url": "http://host"}], ["sftp://u:pass-word@host/wal"], TARGET
    )
    assert {"from-environment", "an-option", "pass-word", "in-the-url", "named-by-url", "in query"} <= found
    assert not found & {"/some/folder", "/where/i/live", "orders", "http://host", "db", "shop"}


def test_options_of_a_target_are_public_unless_their_names_say_otherwise() -> None:
    assert "orders" not in secrets_in_target(TARGET, ENVIRON)
    assert secrets_in_target("", {}) == set()


def test_a_report_shows_no_secret_and_knows_its_worst_line() -> None:
    findings = [fine("a", "good"), risk("b", "in-the-url is here", "look at in-the-url"), fault("c", "bad", "go")]
    report = shown_report(findings, ["something"], Redactor({"in-the-url"}))
    assert "in-the-url" not in json.dumps(report.plain())
    assert report.worst is Level.ERROR
    assert [report.count(level) for level in Level] == [1, 1, 1]
    assert report.plain()["not_examined"] == ["something"]
    assert Report((), ()).worst is Level.OK
    assert shown_report(findings[:2], [], Redactor([])).worst is Level.WARNING
