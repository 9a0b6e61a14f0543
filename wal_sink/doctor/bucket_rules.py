"""Life-cycle rules of a bucket that would delete or archive objects of a WAL. docs/FORMAT.md lists what a rule may do.

The WAL's objects have no tags, so a rule for tagged objects does not concern them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wal_sink.reporting.findings import Finding, fault, fine, risk
from wal_sink.stores.base import Store
from wal_sink.stores.examined import InBucket

PERMISSION = "s3:GetLifecycleConfiguration"
"""The permission that the request needs."""
_CHECK = "bucket.life-cycle"
_NONE = "NoSuchLifecycleConfiguration"
_DENIED = {"AccessDenied", "403"}
_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}
"""Storage classes whose objects cannot be read before they are restored."""
_BY_HAND = {
    **dict.fromkeys(("gs", "gcs"), "gcloud storage buckets describe"),
    **dict.fromkeys(("abfs", "abfss", "az"), "az storage account management-policy show"),
}


def bucket_findings(store: Store) -> list[Finding]:
    """Findings about the rules of the bucket of a WAL. One request for S3; none for other stores.

    A store that is no bucket gives no finding. The rules of Google and Azure are unknown.
    """
    if isinstance(store, InBucket):
        return _of_answer(store)
    if by_hand := _BY_HAND.get(store.root.partition(":")[0]):
        step = f"look at {by_hand}: no rule may delete or archive objects of the WAL"
        return [risk(_CHECK, f"unknown: the rules of {store.root} are not read", step)]
    return []


def _of_answer(store: InBucket) -> list[Finding]:
    answer, prefix = store.life_cycle(), store.prefix
    if answer.refused == _NONE:
        return [fine(_CHECK, "the bucket has no life-cycle rule")]
    if answer.refused in _DENIED:
        return [
            risk(
                _CHECK,
                f"unknown: these credentials have no permission to read it ({PERMISSION})",
                f"grant {PERMISSION} for this command, or let the owner of the bucket look",
            )
        ]
    if answer.refused:
        said = f"unknown: the store answered {answer.refused} ({answer.text})"
        return [risk(_CHECK, said, "let the owner of the bucket look at it")]
    rules = [rule for rule in answer.found.get("Rules", ()) if _concerns(rule, prefix)]
    found = [finding for rule in rules for finding in _of_rule(rule, prefix)]
    return found or [fine(_CHECK, "no life-cycle rule deletes or archives objects of the WAL")]


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
    named = f"rule {rule.get('ID') or _head(rule) or '(without a name)'!r}"
    step = f"exclude the keys below {prefix or 'the root'} from this rule; docs/FORMAT.md lists what a rule may do"
    found, expiry = [], rule.get("Expiration") or {}
    if "Days" in expiry or "Date" in expiry:
        when = f"after {expiry['Days']} days" if "Days" in expiry else f"at {expiry['Date']}"
        found.append(f"{named} deletes objects of the WAL {when}; wal.json and terms must stay for ever")
    classes = [str(move.get("StorageClass")) for move in rule.get("Transitions") or ()]
    found += [
        f"{named} moves objects of the WAL to {where}, where they cannot be read"
        for where in classes
        if where in _ARCHIVES
    ]
    return [fault(_CHECK, said, step) for said in found]
