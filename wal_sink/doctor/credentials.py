"""Which kinds of credentials are found for a store: names of options, variables and files, never a value."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wal_sink.reporting.findings import Finding, fault, fine, risk
from wal_sink.stores.spec import S3, StoreSpec

CHECK = "credentials"


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where the client of a kind of store looks for credentials."""

    pairs: tuple[tuple[str, str], ...] = ()
    """Options or variables that are useless without each other."""
    options: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    file_variables: tuple[str, ...] = ()
    """Variables that name a file."""
    files: tuple[str, ...] = ()
    """Files below the home directory."""
    otherwise: str = ""
    """The way of the client if it finds nothing of this."""


_AWS = _Sources(
    pairs=(("key", "secret"), ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
    options=("key", "secret", "token", "profile", "anon", "session"),
    variables=(
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ROLE_ARN"),
        *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    ),
    file_variables=("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"),
    files=(".aws/credentials", ".aws/config"),
    otherwise="the role of the machine, if it has one",
)
_GOOGLE = _Sources(
    options=("token",),
    file_variables=("GOOGLE_APPLICATION_CREDENTIALS",),
    files=(".config/gcloud/application_default_credentials.json",),
    otherwise="the service account of the machine, if it has one",
)
_AZURE = _Sources(
    pairs=(("client_id", "client_secret"), ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")),
    options=(
        *("account_key", "sas_token", "connection_string", "credential", "client_id", "client_secret", "tenant_id"),
        "anon",
    ),
    variables=(
        *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING"),
        *("AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"),
    ),
    file_variables=("AZURE_FEDERATED_TOKEN_FILE",),
    otherwise="the managed identity of the machine, if it has one",
)
_HDFS = _Sources(
    options=("user", "kerberos", "token", "password"),
    variables=("HADOOP_USER_NAME",),
    file_variables=("KRB5CCNAME", "KRB5_CONFIG"),
    otherwise="the name of this machine's user",
)
_KINDS: Mapping[str, _Sources] = {
    S3: _AWS,
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
    **dict.fromkeys(("abfs", "abfss", "az"), _AZURE),
    **dict.fromkeys(("hdfs", "viewfs", "webhdfs"), _HDFS),
}


def credential_findings(spec: StoreSpec, environ: Mapping[str, str], home: Path) -> list[Finding]:
    """The kinds of credentials for a store. Reads no file's content, and sends no request."""
    sources = _KINDS.get(spec.scheme)
    if sources is None:
        return [fine(CHECK, f"a {spec.scheme} store takes no credentials that wal-sink knows")]
    problems = [
        *_half_given(sources, spec, environ),
        *_files_missing(sources, environ),
        *_files_open(sources, environ, home),
    ]
    found = _found(sources, spec, environ, home)
    if found:
        return [*problems, fine(CHECK, f"found, in the order in which the client looks: {'; '.join(found)}")]
    return [
        *problems,
        risk(
            CHECK,
            f"found none in options, environment and files: the client uses {sources.otherwise}",
            "if requests are refused, pass a profile or a role, or set the variables of docs/operations/security.md",
        ),
    ]


def _found(sources: _Sources, spec: StoreSpec, environ: Mapping[str, str], home: Path) -> list[str]:
    options = [name for name in sources.options if name in spec.options]
    variables = [name for name in (*sources.variables, *sources.file_variables) if environ.get(name)]
    files = [name for name in sources.files if (home / name).is_file()]
    kinds = (("storage options", options), ("environment", variables), ("files", [f"~/{name}" for name in files]))
    return [f"{kind} {', '.join(names)}" for kind, names in kinds if names]


def _half_given(sources: _Sources, spec: StoreSpec, environ: Mapping[str, str]) -> list[Finding]:
    given = {**dict.fromkeys(spec.options, True), **{name: True for name, value in environ.items() if value}}
    return [
        fault(CHECK, f"{there} is set, but {absent} is not", f"set {absent} too, or remove {there}")
        for pair in sources.pairs
        for there, absent in (pair, pair[::-1])
        if there in given and absent not in given
    ]


def _files_missing(sources: _Sources, environ: Mapping[str, str]) -> list[Finding]:
    return [
        fault(CHECK, f"{name} names a file that does not exist", f"correct {name}, or remove it")
        for name, path in _named_files(sources, environ)
        if not path.exists()
    ]


def _files_open(sources: _Sources, environ: Mapping[str, str], home: Path) -> list[Finding]:
    """Warnings about files that other users of this machine may read."""
    named: Sequence[tuple[str, Path]] = [
        *_named_files(sources, environ),
        *((f"~/{name}", home / name) for name in sources.files),
    ]
    return [
        risk(CHECK, f"the file of {name} can be read by every user of this machine", "chmod 600 this file")
        for name, path in named
        if path.is_file() and path.stat().st_mode & stat.S_IROTH and not name.endswith("onfig") and "CONFIG" not in name
    ]


def _named_files(sources: _Sources, environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    """Variables that name a file, and the files. A ticket cache of Kerberos may be of another kind than a file."""
    values = [(name, environ.get(name, "").removeprefix("FILE:")) for name in sources.file_variables]
    return [(name, Path(value)) for name, value in values if value and ":" not in value]
