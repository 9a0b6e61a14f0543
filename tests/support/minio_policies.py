"""Credentials with a policy, from a MinIO: it enforces a policy as S3 does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import boto3

from tests.support.servers.minio import MinioServer
from tests.support.servers.s3_product import ACCESS_KEY, SECRET_KEY

POLICIES = Path(__file__).parents[2] / "examples" / "deploy" / "policies"
BUCKET, LOG, CHECKPOINT = "lake", "wal/orders", "checkpoints/orders"
"""The names in the examples."""


def example(name: str) -> dict[str, Any]:
    """Read a policy of the examples."""
    found: dict[str, Any] = json.loads((POLICIES / f"{name}.json").read_text())
    return found


def actions(policy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the statement and the name of each action that a policy allows."""
    return [(one["Sid"], action) for one in policy["Statement"] for action in one["Action"]]


def without(policy: Mapping[str, Any], statement: str, action: str) -> dict[str, Any]:
    """Return the policy without one action of one statement."""
    kept = []
    for one in policy["Statement"]:
        left = [name for name in one["Action"] if (one["Sid"], name) != (statement, action)]
        kept += [{**one, "Action": left}] if left else []
    return {**policy, "Statement": kept}


def granting(log: Sequence[str], checkpoint: Sequence[str], bucket: Sequence[str]) -> dict[str, Any]:
    """Return a policy with these actions on the objects of the log, on those of the checkpoint, and on the bucket."""
    places = (
        ("Log", log, f"{BUCKET}/{LOG}/*"),
        ("Checkpoint", checkpoint, f"{BUCKET}/{CHECKPOINT}/*"),
        ("Listings", bucket, BUCKET),
    )
    statements = [
        {"Sid": sid, "Effect": "Allow", "Action": list(some), "Resource": f"arn:aws:s3:::{place}"}
        for sid, some, place in places
        if some
    ]
    return {"Version": "2012-10-17", "Statement": statements}


def options_with(server: MinioServer, policy: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return storage options that may do no more than a policy allows. The policy's places lie below `place`."""
    text = json.dumps(policy)
    for name in (LOG, CHECKPOINT):
        text = text.replace(f"{BUCKET}/{name}", f"{server.bucket}/{place}/{name}")
    text = text.replace(f'"arn:aws:s3:::{BUCKET}"', f'"arn:aws:s3:::{server.bucket}"')
    tokens = boto3.client(
        "sts",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )
    role = tokens.assume_role(RoleArn="arn:aws:iam::1:role/any", RoleSessionName="tests", Policy=text)["Credentials"]
    options = server.options_of(role["AccessKeyId"], role["SecretAccessKey"])
    return {**options, "token": role["SessionToken"]}
