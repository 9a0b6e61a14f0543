"""Removes secrets from URLs, options, headers, and errors of libraries. Only this module does so.

It removes secrets that we were given, in every spelling; user, password and query of URLs; and values whose name ends
in a word such as password, secret, token, signature or api_key. Rather too much is removed than too little.

- `mask_url`: the text is one URL.
- `redacted`: any text, with nothing known.
- `Redactor`: any text, with known secrets, which `named_secrets`, `secrets_in_options` and `secrets_in_url` collect.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from wal_sink.support.texts import text_of

MASK = "***"
SHORTEST_SECRET = 4
"""Minimum length of a secret. Shorter texts are parts of too many words, and a secret so short protects nothing."""

_CONTAINER_SCHEMES = frozenset({"abfs", "abfss", "az", "wasb", "wasbs"})
"""Schemes in which the part before `@` names a container and is not a secret. A password after `:` still is."""
_SCHEME = r"(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z0-9+.-]+)://"
"""The search tries each word once, however long it is."""
_PASSWORD = re.compile(_SCHEME + r"(?P<user>[^/\s?#:]*):(?P<password>[^\n]*)@")
_USER = re.compile(_SCHEME + r"(?P<user>[^/\s?#]+)@")
_NO_PORT = re.compile(_SCHEME + r"(?!arn:)[^/\s?#:@\[]+:[^\s\d/?#]")
"""A user and a text that cannot be a port: a URL that was cut within its password."""
_WORD = re.compile(r"\S*")
_QUERY = re.compile(r"\?\S*")

_WORDS = (
    r"passw(?:or)?d|passphrase|pwd|secret|token|signature|credentials?|authorization"
    r"|(?:access|account|api|private|secret)[_.-]?key|(?<![a-z])(?:sig|sas)"
)
_PUBLIC = r"location|file|url|id|keytab|algorithm|env|(?:de)?serializer|(?:ca|certificate)\.pem"
"""Endings of names that contain such a word but are public, or only tell where a secret is."""
_SECRET_NAME = re.compile(
    rf"(?!.*[._](?:{_PUBLIC})$)"
    rf".*(?:{_WORDS}|jaas|cookie|assertion|oauthbearer\.config|(?<![a-z])(?:key|pass|pw|auth|pem)(?![a-z]))",
    re.IGNORECASE,
)
_VALUE = re.compile(
    rf"(?P<name>(?P<listed>;[ \t]*)?(?<![\w.-])(?!env\.)[\w.-]*(?:{_WORDS})[\"']?[ \t]*(?:=|:(?=[ \t\"']))[ \t]*"
    r"(?:(?:basic|bearer|digest|token)[ \t]+)?b?(?P<quote>[\"'])?)"
    r"(?P<value>(?(quote)(?:\\.|(?!(?P=quote))[^\\\n])*|(?(listed)[^;\n]+|[^\s&;,)\]}]+)))",
    re.IGNORECASE,
)
"""A name and its value: in quotes, up to the `;` of a list, or one word. A `:` has a blank or a quote behind it, unlike
the one before a port.
"""
_ORDINARY = frozenset({"basic", "bearer", "digest", "token", "true", "false", "none", "null", "json", "utf-8", "gzip"})
"""Words that occur in headers and queries, and in ordinary texts."""
_ENDS = (re.compile(r"[/@#?:]"), re.compile(r"[/@#?:&;\s]+"))
_UNQUOTED = ("", "/", "/:")
"""Characters that libraries leave as they are when they percent-encode a text."""
_PUBLIC_OPTIONS = frozenset(
    {
        *("endpoint_url", "region_name", "anon", "profile", "signature_version", "addressing_style", "mode", "project"),
        *("account_name", "host", "port", "protocol"),
    }
)


def mask_url(url: str) -> str:
    """The URL without user, password and query; without the fragment too if it is an `http` URL.

    A password may hold any character, percent-encoded or not: it ends at the last `@`. Nothing of a `jdbc:` URL is
    kept, since each driver has its own grammar.
    """
    if url.lower().startswith("jdbc:"):
        return "jdbc:…"
    scheme, found, _ = url.partition("://")
    bare = _without_users(re.sub(r"[\r\n]", " ", url))
    if found and (bare.startswith(f"{scheme}://{MASK}") or _NO_PORT.search(bare)):
        return f"{scheme}://{MASK}"
    bare = bare.partition("?")[0] if found else bare
    bare = bare.partition("#")[0] if scheme.lower() in {"http", "https"} else bare
    return _without_values(bare)


def redacted(thing: object) -> str:
    """The text of `thing` without credentials and queries of URLs, and without values of secret names.

    A query ends at the first blank. A text of any length costs as much as `text_of` leaves of it.
    """
    text = text_of(thing)
    if "://" in text:
        text = _QUERY.sub("", "\n".join(map(_without_users, text.split("\n"))))
    return _without_values(text)


class Redactor:
    """Removes known secrets from texts, in every spelling, and everything else that looks like a secret."""

    __slots__ = ("_spellings",)

    def __init__(self, secrets: Iterable[str]) -> None:
        found = {spelt for secret in secrets if _is_hidden(secret) for spelt in _spellings(secret)}
        self._spellings = sorted(filter(_is_hidden, found), key=len, reverse=True)

    def __repr__(self) -> str:
        return f"Redactor({len(self._spellings)} spellings)"

    def __call__(self, text: str) -> str:
        """The text without any secret."""
        return redacted(self.known(text))

    def known(self, text: str) -> str:
        """The text without the known secrets."""
        for secret in self._spellings:
            text = text.replace(secret, MASK)
        return text

    def cause(self, error: BaseException) -> BaseException | None:
        """`error`, as the cause of another one; None if its traceback would show a secret."""
        shown = [text_of(part) for part in _chain(error)]
        return error if all(self(text) == text for text in shown) else None


def is_secret_name(name: str) -> bool:
    """Return whether an option, a header, a property or a parameter of this name holds a secret."""
    return _SECRET_NAME.match(name) is not None


def secrets_in_url(url: str) -> set[str]:
    """The secrets in a URL: the password and its parts, the user if it may be a token, and every value of the query;
    user and password as HTTP sends them (Base64), too.

    Parts count because a library that fails on a character of a password shows the text before or after it.
    """
    rest = url.partition("://")[2]
    match = _PASSWORD.match(re.sub(r"[\r\n]", " ", url))  # one start, so its cost is that of the text
    head, _, behind = rest.rpartition("@") if match else re.split(r"[/?#]", rest)[0].rpartition("@")
    user, _, password = head.partition(":")
    query = (behind if match else rest).partition("?")[2]
    found = {password} | {pair.partition("=")[2] for pair in re.split(r"[&;]", query)}
    found |= {base64.b64encode(unquote(f"{user}:{password}").encode()).decode()} if head else set()
    found |= {part for ends in _ENDS for text in (password, unquote(password)) for part in ends.split(text)}
    # A short user name is not a secret, and is part of many words. Without a password it may be a token.
    found |= {user} if not password or len(user) > SHORTEST_SECRET + 1 else set()
    return set(filter(_is_hidden, found))


def secrets_in_options(options: Mapping[str, object]) -> set[str]:
    """The secrets among a store's options, at any depth: every text whose name is not known to be harmless."""
    return _secrets_in(options, "", lambda name: name not in _PUBLIC_OPTIONS)


def named_secrets(options: Mapping[str, object]) -> set[str]:
    """The secrets among mostly public options, at any depth: values of secret names, and those in URLs and lists."""
    return _secrets_in(options, "", is_secret_name)


def _secrets_in(value: object, name: str, is_secret: Callable[[str], bool]) -> set[str]:
    """The secrets in the value of an option. A number counts only if its name says so."""
    if isinstance(value, Mapping):
        return {found for inner, each in value.items() for found in _secrets_in(each, str(inner), is_secret)}
    if isinstance(value, (list, tuple)):
        return {found for each in value for found in _secrets_in(each, name, is_secret)}
    if isinstance(value, bytes):
        return _secrets_in(value.decode(errors="replace"), name, is_secret)
    if not isinstance(value, str):
        return {str(value)} if is_secret_name(name) and value is not None and not isinstance(value, bool) else set()
    found = secrets_in_url(value) | {match["value"].strip() for match in _VALUE.finditer(value)}
    return found | {value} if is_secret(name) else found


def _is_hidden(secret: str) -> bool:
    """Return whether a text is long enough to be a secret, and not an ordinary word."""
    return len(secret) >= SHORTEST_SECRET and secret.lower() not in _ORDINARY and secret.strip("*") != ""


def _spellings(secret: str) -> Iterator[str]:
    """Forms in which a library may write a secret: as it is, percent-encoded or decoded, escaped as in JSON and in
    Python.
    """
    for plain in {secret, unquote(secret), unquote_plus(secret)}:
        yield plain
        for encoded in (*(quote(plain, safe=safe) for safe in _UNQUOTED), quote_plus(plain)):
            yield encoded
            yield re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), encoded)
        for only_ascii in (True, False):
            yield json.dumps(plain, ensure_ascii=only_ascii)[1:-1]
        yield repr(plain)[1:-1]
        yield plain.strip()


def _without_users(line: str) -> str:
    """The line without the users of its URLs, and without its password. There is at most one, up to the last `@`: the
    search ends there, or each URL behind it would look for another.
    """
    if match := _PASSWORD.search(line, 0, line.rfind("@") + 1):
        begin, behind = line[: match.start()], line[match.end() :]
        if {"?", "#"} & set(match["password"]):  # the `@` may be part of a value, and the text behind it secret
            return f"{_USER.sub(_without_user, begin)}{match['scheme']}://{MASK}{_WORD.sub('', behind, count=1)}"
        line = begin + _without_user(match) + behind
    return _USER.sub(_without_user, line)


def _without_user(match: re.Match[str]) -> str:
    is_container = match["scheme"].lower() in _CONTAINER_SCHEMES
    return f"{match['scheme']}://{_ENDS[0].split(match['user'])[0] + '@' if is_container else ''}"


def _without_values(text: str) -> str:
    return _VALUE.sub(lambda match: match["name"] + MASK, text)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """All exceptions that a traceback of `error` shows."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
