"""Settings of a bucket: each one that hurts is told, and one that cannot be read is unknown, never fine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from wal_sink.doctor.bucket_rules import PERMISSIONS, bucket_findings
from wal_sink.reporting.findings import Finding, Level
from wal_sink.stores.examined import Answer
from wal_sink.stores.measured import MeasuredStore
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec

PREFIX = "wal/orders/"
RULES, VERSIONS, LOCK, ENCRYPTION = PERMISSIONS
ENCRYPTED = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}]}
GOOD: Mapping[str, Answer] = {
    RULES: Answer({}, "NoSuchLifecycleConfiguration"),
    VERSIONS: Answer({}),
    LOCK: Answer({}, "ObjectLockConfigurationNotFoundError"),
    ENCRYPTION: Answer({"ServerSideEncryptionConfiguration": ENCRYPTED}),
}


class Bucket(MeasuredStore):
    """A store with these settings."""

    def __init__(self, answers: Mapping[str, Answer], prefix: str = PREFIX) -> None:
        super().__init__(MemoryStore(StoreSpec("memory://bucket-rules")))
        self._answers = answers
        self._prefix = prefix

    @property
    def prefix(self) -> str:
        return self._prefix

    def bucket_setting(self, operation: str) -> Answer:
        return self._answers[operation]


def found(answers: Mapping[str, Answer], prefix: str = PREFIX) -> dict[str, Finding]:
    return {one.check: one for one in bucket_findings(Bucket({**GOOD, **answers}, prefix))}


def of_rule(prefix: str = PREFIX, **rule: Any) -> Finding:
    rules = {"Rules": [{"ID": "clean", "Status": "Enabled", **rule}]}
    return found({RULES: Answer(rules)}, prefix)["bucket.life-cycle"]


def test_a_good_bucket_has_four_good_lines() -> None:
    results = found({})
    assert {one.level for one in results.values()} == {Level.OK}
    assert list(results) == ["bucket.life-cycle", "bucket.versions", "bucket.lock", "bucket.encryption"]
    assert "aws:kms" in results["bucket.encryption"].found


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


@pytest.mark.parametrize(
    ("storage_class", "level"),
    [("GLACIER", Level.ERROR), ("DEEP_ARCHIVE", Level.ERROR), ("STANDARD_IA", Level.WARNING)],
)
def test_a_rule_that_moves_the_wal_is_told(storage_class: str, level: Level) -> None:
    finding = of_rule(Filter={}, Transitions=[{"Days": 1, "StorageClass": storage_class}])
    assert finding.level is level
    assert storage_class in finding.found


@pytest.mark.parametrize("status", ["Enabled", "Suspended"])
def test_versions_that_nobody_deletes_are_a_warning(status: str) -> None:
    versions = Answer({"Status": status})
    assert found({VERSIONS: versions})["bucket.versions"].level is Level.WARNING
    ends = {"Rules": [{"Status": "Enabled", "Filter": {}, "NoncurrentVersionExpiration": {"NoncurrentDays": 7}}]}
    assert found({VERSIONS: versions, RULES: Answer(ends)})["bucket.versions"].level is Level.OK
    tagged = {"Rules": [{**ends["Rules"][0], "Filter": {"Tag": {"Key": "a", "Value": "b"}}}]}
    assert found({VERSIONS: versions, RULES: Answer(tagged)})["bucket.versions"].level is Level.WARNING
    assert "the root" in found({VERSIONS: versions}, prefix="")["bucket.versions"].next_step


@pytest.mark.parametrize(("retention", "says"), [({"Days": 30}, "30 days"), ({"Years": 2}, "2 years")])
def test_a_default_retention_is_a_warning(retention: Mapping[str, int], says: str) -> None:
    answer = Answer({"ObjectLockConfiguration": {"Rule": {"DefaultRetention": retention}}})
    assert says in found({LOCK: answer})["bucket.lock"].found
    assert found({LOCK: answer})["bucket.lock"].level is Level.WARNING
    assert found({LOCK: Answer({"ObjectLockConfiguration": {}})})["bucket.lock"].level is Level.OK


def test_a_bucket_without_encryption_is_a_warning() -> None:
    finding = found({ENCRYPTION: Answer({}, "ServerSideEncryptionConfigurationNotFoundError")})["bucket.encryption"]
    assert finding.level is Level.WARNING
    assert "kind unknown" in found({ENCRYPTION: Answer({})})["bucket.encryption"].found


@pytest.mark.parametrize("operation", PERMISSIONS)
@pytest.mark.parametrize("code", ["AccessDenied", "403", "NotImplemented"])
def test_a_setting_that_cannot_be_read_is_unknown(operation: str, code: str) -> None:
    unknown = [one for one in found({operation: Answer({}, code, "not today")}).values() if one.level is not Level.OK]
    assert len(unknown) == 1
    assert unknown[0].level is Level.WARNING
    assert unknown[0].found.startswith("unknown: ")
    assert (PERMISSIONS[operation] in unknown[0].found) is (code != "NotImplemented")
    assert unknown[0].next_step


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
