"""Settings of a bucket that would hurt a WAL: life-cycle rules, versions, object lock, encryption.

docs/FORMAT.md lists what a rule may do. The WAL's objects have no tags, so a rule for tagged objects does not concern
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wal_sink.reporting.findings import Finding, fault, fine, risk
from wal_sink.stores.base import Store
from wal_sink.stores.examined import Answer, InBucket

_ABSENT = {
    "NoSuchLifecycleConfiguration",
    "ObjectLockConfigurationNotFoundError",
    "ServerSideEncryptionConfigurationNotFoundError",
}
_DENIED = {"AccessDenied", "403"}
_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}
"""Storage classes whose objects cannot be read before they are restored."""
_RULES = "get_bucket_lifecycle_configuration"
_VERSIONS = "get_bucket_versioning"
_LOCK = "get_object_lock_configuration"
_ENCRYPTION = "get_bucket_encryption"
PERMISSIONS: Mapping[str, str] = {
    _RULES: "s3:GetLifecycleConfiguration",
    _VERSIONS: "s3:GetBucketVersioning",
    _LOCK: "s3:GetBucketObjectLockConfiguration",
    _ENCRYPTION: "s3:GetEncryptionConfiguration",
}
"""The permission that each request needs."""


def bucket_findings(store: Store) -> list[Finding]:
    """Findings about the bucket's settings, for a WAL in `store`. Four requests for S3; none for other stores.

    A store that is no bucket of S3 gives no finding, except Google's and Azure's: their rules are unknown.
    """
    if isinstance(store, InBucket):
        asked = {operation: store.bucket_setting(operation) for operation in PERMISSIONS}
        return [
            *_life_cycle(asked[_RULES], store.prefix),
            _versions(asked[_VERSIONS], asked[_RULES], store.prefix),
            _lock(asked[_LOCK]),
            _encryption(asked[_ENCRYPTION]),
        ]
    scheme = store.root.partition(":")[0]
    if scheme in _BY_HAND:
        return [
            risk("bucket.rules", f"unknown: the rules of a {_BY_HAND[scheme][0]} are not read", _BY_HAND[scheme][1])
        ]
    return []


_BY_HAND_AT_GOOGLE = (
    "look at gcloud storage buckets describe: no life-cycle rule may delete or archive objects of the WAL, and no "
    "retention policy may forbid to delete them"
)
_BY_HAND_AT_AZURE = (
    "look at az storage account management-policy show: no rule may delete or archive blobs of the WAL, and no "
    "immutability policy may forbid to delete them"
)
_BY_HAND = {
    **dict.fromkeys(("gs", "gcs"), ("bucket of Google", _BY_HAND_AT_GOOGLE)),
    **dict.fromkeys(("abfs", "abfss", "az"), ("container of Azure", _BY_HAND_AT_AZURE)),
}


def _unknown(check: str, operation: str, answer: Answer) -> Finding:
    """The warning about a setting that could not be read."""
    permission = PERMISSIONS[operation]
    if answer.refused in _DENIED:
        return risk(
            check,
            f"unknown: these credentials have no permission to read it ({permission})",
            f"grant {permission} for this command, or let the owner of the bucket look",
        )
    return risk(
        check, f"unknown: the store answered {answer.refused} ({answer.text})", "let the owner of the bucket look at it"
    )


def _life_cycle(answer: Answer, prefix: str) -> list[Finding]:
    check = "bucket.life-cycle"
    if answer.refused in _ABSENT:
        return [fine(check, "the bucket has no life-cycle rule")]
    if answer.refused:
        return [_unknown(check, _RULES, answer)]
    rules = [rule for rule in answer.found.get("Rules", ()) if _concerns(rule, prefix)]
    found = [finding for rule in rules for finding in _of_rule(rule, prefix)]
    return found or [fine(check, "no life-cycle rule deletes or archives objects of the WAL")]


def _concerns(rule: Mapping[str, Any], prefix: str) -> bool:
    """Whether a rule may act on objects below the WAL's folder."""
    scope = _filter(rule)
    if rule.get("Status") == "Disabled" or scope.get("Tag") or scope.get("Tags"):
        return False
    head = _head(rule)
    return prefix.startswith(head) or (head.startswith(prefix) and not _is_permitted_place(head.removeprefix(prefix)))


def _is_permitted_place(head: str) -> bool:
    """Whether objects in this part of a WAL may be deleted: probes, and dead letters of one sink."""
    parts = head.split("/")
    return (parts[0] == "probe" and len(parts) > 1) or (
        parts[0] == "sinks" and parts[2:3] == ["dead-letters"] and len(parts) > 3
    )


def _filter(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    scope: Mapping[str, Any] = rule.get("Filter") or {}
    return scope.get("And") or scope


def _head(rule: Mapping[str, Any]) -> str:
    """The beginning of the keys that a rule is about; empty for all keys."""
    return str(_filter(rule).get("Prefix") or rule.get("Prefix") or "")


def _of_rule(rule: Mapping[str, Any], prefix: str) -> list[Finding]:
    check, named = "bucket.life-cycle", f"rule {rule.get('ID') or _head(rule) or '(without a name)'!r}"
    step = f"exclude the keys below {prefix or 'the root'} from this rule; docs/FORMAT.md lists what a rule may do"
    found = []
    expiry = rule.get("Expiration") or {}
    if "Days" in expiry or "Date" in expiry:
        when = f"after {expiry['Days']} days" if "Days" in expiry else f"at {expiry['Date']}"
        found.append(
            fault(check, f"{named} deletes objects of the WAL {when}; wal.json and terms must stay for ever", step)
        )
    for move in rule.get("Transitions") or ():
        where = str(move.get("StorageClass"))
        if where in _ARCHIVES:
            found.append(fault(check, f"{named} moves objects of the WAL to {where}, where they cannot be read", step))
        else:
            found.append(risk(check, f"{named} moves objects of the WAL to {where}: each read costs more there", step))
    return found


def _versions(answer: Answer, rules: Answer, prefix: str) -> Finding:
    check = "bucket.versions"
    if answer.refused:
        return _unknown(check, _VERSIONS, answer)
    if not (status := answer.found.get("Status")):
        return fine(check, "the bucket keeps no old versions")
    ends = [rule for rule in rules.found.get("Rules", ()) if _ends_versions(rule, prefix)]
    if ends:
        return fine(check, f"versioning is {status}, and a rule deletes noncurrent versions")
    return risk(
        check,
        f"versioning is {status}, and no rule is known to delete noncurrent versions: batches that wal-sink deletes "
        "stay in the bucket, and cost as before",
        f"add a rule NoncurrentVersionExpiration for the keys below {prefix or 'the root'}",
    )


def _ends_versions(rule: Mapping[str, Any], prefix: str) -> bool:
    scope = _filter(rule)
    whole = prefix.startswith(_head(rule)) and not scope.get("Tag") and not scope.get("Tags")
    return whole and rule.get("Status") != "Disabled" and bool(rule.get("NoncurrentVersionExpiration"))


def _lock(answer: Answer) -> Finding:
    check = "bucket.lock"
    if answer.refused in _ABSENT:
        return fine(check, "the bucket has no object lock")
    if answer.refused:
        return _unknown(check, _LOCK, answer)
    retention = answer.found.get("ObjectLockConfiguration", {}).get("Rule", {}).get("DefaultRetention")
    if not retention:
        return fine(check, "object lock is on, without a default retention")
    for_how_long = f"{retention['Days']} days" if "Days" in retention else f"{retention.get('Years')} years"
    return risk(
        check,
        f"object lock keeps each object for {for_how_long}: batches that wal-sink deletes stay as long, and cost as "
        "before",
        "use a bucket without a default retention, or accept the cost",
    )


def _encryption(answer: Answer) -> Finding:
    check = "bucket.encryption"
    if answer.refused in _ABSENT:
        return risk(
            check,
            "the bucket has no default encryption",
            "set one (SSE-S3 or SSE-KMS), or pass s3_additional_kwargs; see docs/operations/security.md",
        )
    if answer.refused:
        return _unknown(check, _ENCRYPTION, answer)
    rules = answer.found.get("ServerSideEncryptionConfiguration", {}).get("Rules", ())
    kinds = [rule.get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm") for rule in rules]
    return fine(check, f"objects are encrypted by default ({', '.join(map(str, kinds)) or 'kind unknown'})")
