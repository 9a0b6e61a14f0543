"""Rules of a bucket: each one that hurts is told, and rules that cannot be read are unknown, never fine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.house.stores import MeasuredStore, MemoryStore, StoreSpec
from tests.house.support import Finding, Level
from wal_sink.operate.doctor import PERMISSION, bucket_findings
from wal_sink.stores.base import Answer

PREFIX = "wal/orders/"


class Bucket(MeasuredStore):
    """A store in a bucket that gives this answer."""

    def __init__(self, answer: Answer, prefix: str) -> None:
        super().__init__(MemoryStore(StoreSpec("memory://bucket-rules")))
        self._answer = answer
        self._prefix = prefix

    @property
    def prefix(self) -> str:
        return self._prefix

    def life_cycle(self) -> Answer:
        return self._answer


def found(answer: Answer, prefix: str = PREFIX) -> Finding:
    (finding,) = bucket_findings(Bucket(answer, prefix))
    assert finding.check == "bucket.life-cycle"
    assert bool(finding.next_step) is (finding.level is not Level.OK)
    return finding


def of_rule(prefix: str = PREFIX, **rule: Any) -> Finding:
    return found(Answer({"Rules": [{"ID": "clean", "Status": "Enabled", **rule}]}), prefix)


def test_a_bucket_without_rules_is_fine() -> None:
    assert found(Answer({}, "NoSuchLifecycleConfiguration")).level is Level.OK
    assert found(Answer({"Rules": []})).level is Level.OK


@pytest.mark.parametrize(
    "scope",
    [
        {"Filter": {}},
        {"Filter": {"Prefix": ""}},
        {"Prefix": "wal/"},
        {"Filter": {"Prefix": "wal/orders/batches/"}},
        {"Filter": {"Prefix": "wal/orders/sinks/default/"}},
        {"Filter": {"Prefix": "wal/orders/sinks/default/dead-letters"}},
        {"Filter": {"Prefix": "wal/orders/probe"}},
        {"Filter": {"And": {"Prefix": "wal", "ObjectSizeGreaterThan": 1}}},
    ],
)
def test_a_rule_that_deletes_the_wal_is_an_error(scope: Mapping[str, Any]) -> None:
    finding = of_rule(**scope, Expiration={"Days": 30})
    assert finding.level is Level.ERROR
    assert "'clean'" in finding.found
    assert "after 30 days" in finding.found
    assert PREFIX in finding.next_step


@pytest.mark.parametrize(
    "rule",
    [
        {"Filter": {"Prefix": "other/"}, "Expiration": {"Days": 1}},
        {"Filter": {"Prefix": "wal/orders2/"}, "Expiration": {"Days": 1}},
        {"Filter": {"Tag": {"Key": "a", "Value": "b"}}, "Expiration": {"Days": 1}},
        {"Filter": {"And": {"Prefix": "", "Tags": [{"Key": "a", "Value": "b"}]}}, "Expiration": {"Days": 1}},
        {"Filter": {}, "Status": "Disabled", "Expiration": {"Days": 1}},
        {"Filter": {"Prefix": "wal/orders/probe/"}, "Expiration": {"Days": 1}},
        {"Filter": {"Prefix": "wal/orders/sinks/default/dead-letters/"}, "Expiration": {"Days": 1}},
        {"Filter": {}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}},
        {"Filter": {}, "NoncurrentVersionExpiration": {"NoncurrentDays": 7}},
        {"Filter": {}, "Expiration": {"ExpiredObjectDeleteMarker": True}},
        {"Filter": {}, "Transitions": [{"Days": 1, "StorageClass": "STANDARD_IA"}]},
    ],
)
def test_a_rule_that_format_permits_is_fine(rule: Mapping[str, Any]) -> None:
    assert of_rule(**rule).level is Level.OK


def test_a_date_counts_as_days_do_and_a_rule_needs_no_name() -> None:
    finding = of_rule(ID="", prefix="", Filter={}, Expiration={"Date": "2030-01-01"})
    assert "'(without a name)' deletes" in finding.found
    assert "at 2030-01-01" in finding.found
    assert "below the root" in finding.next_step
    assert "'wal/'" in of_rule(ID=None, Prefix="wal/", Expiration={"Days": 1}).found


@pytest.mark.parametrize("storage_class", ["GLACIER", "DEEP_ARCHIVE"])
def test_a_rule_that_archives_the_wal_is_an_error(storage_class: str) -> None:
    finding = of_rule(Filter={}, Transitions=[{"Days": 1, "StorageClass": storage_class}])
    assert finding.level is Level.ERROR
    assert storage_class in finding.found


@pytest.mark.parametrize("code", ["AccessDenied", "403", "NotImplemented"])
def test_rules_that_cannot_be_read_are_unknown(code: str) -> None:
    finding = found(Answer({}, code, "not today"))
    assert finding.level is Level.WARNING
    assert finding.found.startswith("unknown: ")
    assert (PERMISSION in finding.found) is (code != "NotImplemented")


@pytest.mark.parametrize(("root", "says"), [("gs://lake/wal", "gcloud"), ("abfs://lake/wal", "az storage")])
def test_rules_of_google_and_azure_are_unknown(root: str, says: str) -> None:
    class Cloud(MeasuredStore):
        @property
        def root(self) -> str:
            return root

    (finding,) = bucket_findings(Cloud(MemoryStore(StoreSpec("memory://cloud"))))
    assert finding.level is Level.WARNING
    assert says in finding.next_step


def test_a_store_without_a_bucket_has_no_rules() -> None:
    assert bucket_findings(MemoryStore(StoreSpec("memory://none"))) == []
