"""Removes secrets from texts: from URLs, options, headers, and errors of libraries. Only this module does so.

It has four tools, for different knowledge of the text:

- `mask_url`: the text is one URL. It is cut at the last place where a password may end.
- `mask_typed`: an argument that may be a URL. It stays as it was typed, but for its secrets.
- `redacted`: any text, with nothing known. Everything that looks like a password is removed, rather too much than too
  little: from `scheme://user:` up to the last `@` of the line, since a password may hold any other character.
- `Redactor`: any text, with known secrets. They are removed in every spelling, then the text is `redacted`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from wal_sink.reporting.texts import text_of

MASK = "***"
HEAD_PER_CHARACTER = 8
"""How many characters are masked for each one that `redacted_head` returns: masking may remove most of them."""
SHORTEST_SECRET = 4
"""Minimum length of a secret. Shorter texts are parts of too many words, and a secret so short protects nothing."""

_CONTAINER_SCHEMES = frozenset({"abfs", "abfss", "az", "wasb", "wasbs"})
"""Schemes in which the part before `@` names a container and is not a secret. A password after `:` still is."""
_SCHEME = r"(?<![A-Za-z0-9+.-])(?P<lead>[0-9+.-]*)(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://"
"""A scheme begins with the first letter of its word. The search tries each word once, however long it is."""
_PASSWORD = re.compile(_SCHEME + r"(?P<user>[^/\s?#:]*):(?P<password>[^\n]*)@")
_WORD = re.compile(r"\S*")
_TRUNCATED = re.compile(_SCHEME + r"(?P<user>(?!arn:)[^/\s?#:@\[]+):[^\s\d/?#'\")\]},;:][^\s@]*(?!\S)")
"""A user and a text that cannot be a port: a URL that was cut within its password."""
_PLAIN_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_HADOOP_USER = re.compile(r"(?P<scheme>(?:s?web)?hdfs|viewfs)://(?P<user>[^/\s?#:@]+)@", re.IGNORECASE)
_USER = re.compile(_SCHEME + r"(?P<user>[^/\s?#]+)@")
_QUERY = re.compile(r"\?\S*")

_NAMES = (
    *("password", "passwd", "passphrase", "pwd", "secret", "token", "credential", "signature", "jaas", "assertion"),
    *("apikey", "api_key", "api-key", "api.key", "accesskey", "access_key", "access-key", "access.key", "account.key"),
    *("accountkey", "account_key", "secretkey", "private_key", "private.key", "privatekey", "authorization", "cookie"),
    *("sasl.key", "ssl.key", "pem", "oauthbearer.config"),
)
_WHOLE_NAMES = frozenset({"key", "sig", "sas", "pass", "auth", "pw"})
_NO_SECRETS = (
    *(".location", ".file", ".url", ".id", ".keytab", ".algorithm", ".ca.pem", ".certificate.pem", "_env", ".env"),
    *(".serializer", ".deserializer", "_file", "_url", "_id"),
)
"""Endings of names that contain such a part but are public, or only tell where a secret is."""
_HUMAN = "password|passwd|passphrase|pwd|secret"
_MACHINE = r"token|signature|credentials?|api[_.-]?key|(?:access|account|secret|private)[_.-]?key"
_NAME = rf"(?<![\w.-])(?!env\.)[\w.-]*(?:{_HUMAN}|{_MACHINE}|(?<![A-Za-z])(?:sig|sas))"
_IN_LIST = re.compile(rf"(?P<name>(?<=;){_NAME}\s*=\s*)[^;\n]+", re.IGNORECASE)
_QUOTED = re.compile(
    rf"(?P<name>{_NAME}(?:[\"']\s*[:=]|\s*=)\s*b?)(?P<quote>[\"'])(?:\\.|(?!(?P=quote))[^\\\n])*(?P=quote)?",
    re.IGNORECASE,
)
_BARE = re.compile(rf"(?P<name>{_NAME}\s*=\s*)(?![\"'])[^\s&;,)\]}}]+", re.IGNORECASE)
_HEADER = re.compile(
    r"(?P<name>authorization[\"']?\s*[:=]\s*(?:b?[\"'])?(?:(?:basic|bearer|digest|token|aws4-hmac-sha256)\s+)?)[^\s\"',;]+",
    re.IGNORECASE,
)
_ORDINARY = frozenset({"basic", "bearer", "digest", "token", "true", "false", "none", "null", "json", "utf-8", "gzip"})
"""Words that occur in headers and queries, and in ordinary texts."""
_BEGINS_URL = re.compile(_SCHEME)
_OPTION = re.compile(r"[?&#][^?&#]*")
_PLAIN_VALUE = re.compile(r"true|false|[0-9.]{1,6}(?:ms|s|m|h)?", re.IGNORECASE)
_PARTS, _ENDS = re.compile(r"[/@#?:&;\s]+"), re.compile(r"[/@#?:]")
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
    if not found:
        return redacted(url)
    line = _in_one_line(url)
    if (match := _password_in(line)) and _is_doubtful(match):
        return f"{scheme}://{MASK}"
    bare = _without_users(line).partition("?")[0]
    bare = bare.partition("#")[0] if scheme.lower() in {"http", "https"} else bare
    return _without_values(bare)


def mask_typed(text: str) -> str:
    """The argument of a command, so that it can be typed again: in a URL, `***` stands for user and password, and for
    the first option that may be secret with all options behind it. A second application changes nothing. Any other text
    is `redacted`.

    The query of an `http` URL belongs to a foreign service, so each of its values may be secret.
    """
    is_jdbc = text.lower().startswith("jdbc:")
    if _BEGINS_URL.match(text) is None and not is_jdbc:
        return redacted(text)
    text = _in_one_line(text)
    masked = mask_url(text)
    if is_jdbc or masked.endswith(f"://{MASK}"):
        return masked
    line = _without_users(text)
    if line != text and "@" not in masked:
        masked = masked.replace("://", f"://{MASK}@", 1)
    is_foreign = text.lower().startswith(("http:", "https:"))
    begin = re.search(r"[?#]" if is_foreign else r"\?", line)
    for option in _OPTION.findall(line[begin.start() :] if begin else ""):
        shown = _typed_option(option, is_foreign=is_foreign)
        masked += shown
        if shown != option:
            break  # an unencoded secret may go on behind any mark
    return masked


def _typed_option(option: str, *, is_foreign: bool) -> str:
    """An option of a URL with the mark before it, and `***` for a value that may be secret."""
    name, found, value = option.partition("=")
    plain = unquote(value if found else name[1:])
    is_public = _PLAIN_VALUE.fullmatch(plain) if is_foreign else not ({"@", "?"} & set(plain) or "://" in plain)
    if is_public and not (found and is_secret_name(unquote(name[1:]))) and _without_values(option) == option:
        return option
    return f"{name}={MASK}" if found else f"{name[0]}{MASK}"


def redacted(text: str) -> str:
    """The text without anything that looks like a secret: credentials and queries of URLs, values of secret names.

    In texts of other libraries, a query ends at the first blank. A second application changes little more.
    """
    if "://" in text:
        text = _QUERY.sub("", _without_users(text))
    return _without_values(text)


def redacted_head(text: str, longest: int) -> str:
    """The first characters of `redacted(text)`, with "…" at the end if more follow. A long text is cut before it is
    masked, so that the cost is bounded.

    The cut hides no secret from the mask: it is between two words, and where a password may reach beyond it, up to the
    last `@` of the line, a `@` is put in the place of what is cut off.
    """
    most = longest * HEAD_PER_CHARACTER
    if len(text) <= most:
        masked, is_whole = redacted(text), True
    else:
        head = text[:most].rsplit(None, 1)[0] if not text[:most].isspace() else ""
        rest = text[len(head) :].partition("\n")[0]
        mark = "@" if "@" in rest else ""
        masked, is_whole = redacted(head + mark).removesuffix(mark), False
    return masked if is_whole and len(masked) <= longest else f"{masked[: longest - 1]}…"


class Redactor:
    """Removes known secrets from texts, in every spelling, and everything else that looks like a secret."""

    __slots__ = ("_spellings",)

    def __init__(self, secrets: Iterable[str]) -> None:
        found = {spelt for secret in secrets if is_hidden(secret) for spelt in _spellings(secret)}
        self._spellings = sorted(filter(is_hidden, found), key=len, reverse=True)

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


def is_hidden(secret: str) -> bool:
    """Return whether a text is long enough to be a secret, and not an ordinary word."""
    return len(secret) >= SHORTEST_SECRET and secret.lower() not in _ORDINARY and secret.strip("*") != ""


def is_secret_name(name: str) -> bool:
    """Return whether an option, a header, a property or a parameter of this name holds a secret.

    A name with a secret part counts as secret unless its ending is known to be harmless.
    """
    folded = name.lower()
    named = folded.startswith("x-amz-") or any(part in folded for part in _NAMES)
    last = re.split(r"[^a-z]", folded)[-1]
    return (named or last in _WHOLE_NAMES) and not folded.endswith(_NO_SECRETS)


def is_plain_user(text: str) -> bool:
    """Return whether a text looks like a name of a user of an operating system. Such a name is no secret there."""
    return _PLAIN_USER.fullmatch(text) is not None


def may_hold_secret(url: str) -> bool:
    """Return whether a URL has a part that may be a secret. The plain user of a Hadoop file system is none: it has no
    password there. The user of any other service may be a token.
    """
    match = _HADOOP_USER.match(url)
    if match is not None and is_plain_user(match["user"]):
        url = f"{match['scheme']}://{url[match.end() :]}"
    return mask_url(url) != url


def secrets_in_url(url: str) -> set[str]:
    """The secrets in a URL: the password and its parts, the user if it may be a token, and every value of the query.

    Parts count because a library that fails on a character of a password shows the text before or after it.
    """
    rest = url.partition("://")[2]
    match = _PASSWORD.match(_in_one_line(url))  # one start, so its cost is that of the text
    head, _, behind = rest.rpartition("@") if match else re.split(r"[/?#]", rest)[0].rpartition("@")
    user, _, password = head.partition(":")
    values = {pair.partition("=")[2] for pair in re.split(r"[&;]", (behind if match else rest).partition("?")[2])}
    found = {password}
    for ends in (_PARTS, _ENDS):
        found |= {part for text in (password, unquote(password)) for part in ends.split(text)}
    # A short user name is not a secret, and is part of many words. Without a password it may be a token.
    found |= {user} if not password or len(user) > SHORTEST_SECRET + 1 else set()
    return {text for text in found | values if is_hidden(text)}


def secrets_in_options(options: Mapping[str, object]) -> set[str]:
    """Every text among a store's options, at any depth, that is not known to be harmless."""
    named = ((value, name in _PUBLIC_OPTIONS) for name, value in options.items())
    return {found for value, is_public in named for found in _secrets_in(value, is_public=is_public)}


def _secrets_in(value: object, *, is_public: bool) -> set[str]:
    """The secrets in the value of an option. `is_public`: the option's name says that its text is harmless."""
    if isinstance(value, Mapping):
        return secrets_in_options(value)
    if isinstance(value, (list, tuple)):
        return {found for each in value for found in _secrets_in(each, is_public=is_public)}
    if isinstance(value, bytes):
        return _secrets_in(value.decode(errors="replace"), is_public=is_public)
    if not isinstance(value, str):
        return set()
    return secrets_in_url(value) if is_public else {value} | secrets_in_url(value)


def named_secrets(options: Mapping[str, object]) -> set[str]:
    """The secrets among mostly public options: values of secret names, and secrets inside URLs."""
    named = {str(value) for name, value in options.items() if is_secret_name(name)}
    texts = [value for value in options.values() if isinstance(value, str)]
    listed = {match[0].partition("=")[2].strip() for text in texts for match in _IN_LIST.finditer(text)}
    return named | listed | {found for text in texts if "://" in text for found in secrets_in_url(text)}


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


def _in_one_line(url: str) -> str:
    return re.sub(r"[\r\n]", " ", url)


def _without_users(text: str) -> str:
    text = "\n".join(map(_without_password, text.split("\n")))
    return _USER.sub(_without_user, _TRUNCATED.sub(_without_all, text))


def _without_password(line: str) -> str:
    """The line without its password. There is at most one, since it ends at the last `@`."""
    match = _password_in(line)
    if match is None:
        return line
    begin, behind = line[: match.start()], line[match.end() :]
    if _is_doubtful(match):
        return begin + _without_all(match) + _WORD.sub("", behind, count=1)
    return begin + _without_user(match) + behind


def _password_in(line: str) -> re.Match[str] | None:
    """The first user that is followed by a `@`. The search ends there, or each URL behind it would look for another."""
    return _PASSWORD.search(line, 0, line.rfind("@") + 1)


def _is_doubtful(match: re.Match[str]) -> bool:
    """Return whether the last `@` after a `?` or `#` may be part of a value. Then the text behind it may be secret."""
    return "?" in match["password"] or "#" in match["password"]


def _without_all(match: re.Match[str]) -> str:
    return f"{match['lead']}{match['scheme']}://{MASK}"


def _without_user(match: re.Match[str]) -> str:
    scheme, container = match["scheme"], _ENDS.split(match["user"])[0]
    behind = f"{container}@" if scheme.lower() in _CONTAINER_SCHEMES else ""
    return f"{match['lead']}{scheme}://{behind}"


def _without_values(text: str) -> str:
    for pattern in (_IN_LIST, _QUOTED, _BARE, _HEADER):
        text = pattern.sub(_without_value, text)
    return text


def _without_value(match: re.Match[str]) -> str:
    return f"{match['name']}{MASK}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """All exceptions that a traceback of `error` shows."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
