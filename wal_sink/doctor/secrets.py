"""The secrets that this process knows: in environment variables, storage options and addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote_plus

from wal_sink.redaction import is_secret_name, named_secrets, secrets_in_options, secrets_in_url

_FOLDERS = frozenset({"PWD", "OLDPWD"})
"""Variables of the shell that sound like a password."""


def known_secrets(
    environ: Mapping[str, str], options: Iterable[Mapping[str, object]], urls: Iterable[str], target: str = ""
) -> set[str]:
    """Every text that must not be shown. `target`: the address of a sink, whose options are mostly public."""
    found = named_secrets({name: value for name, value in environ.items() if name not in _FOLDERS})
    for given in options:
        found |= secrets_in_options(given)
    for url in urls:
        found |= secrets_in_url(url)
    return found | secrets_in_target(target, environ)


def secrets_in_target(target: str, environ: Mapping[str, str]) -> set[str]:
    """The secrets in the address of a sink: its password, options of secret names, and variables that it names."""
    head, *rest = re.split(r"[?#]", target)
    found = secrets_in_url(head)
    for pair in re.split(r"[&;]", "&".join(rest)):
        name, _, value = pair.partition("=")
        spellings = {value, unquote_plus(value)}
        if is_secret_name(name):
            found |= spellings
        found |= {environ[one] for one in spellings if one in environ}
    return found
