"""No secret in any text, whatever it is made of: generated passwords, in URLs, options, headers and errors."""

from __future__ import annotations

import base64
import functools
import json
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any
from urllib.parse import quote, quote_plus

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.house.kit import served_sink
from tests.house.protocol import Run, canonical
from tests.house.sinks import Chunk, Sink, sink_from_url
from tests.house.stores import MemoryStore, StoreSpec
from tests.support.processes import CHECKOUT
from wal_sink.errors import (
    ConfigError,
    CorruptError,
    OutcomeUnknownError,
    PermanentError,
    RetryLaterError,
    WalSinkError,
)
from wal_sink.settings import Delivery, Retry, Settings
from wal_sink.support.secrets import (
    MASK,
    SHORTEST_SECRET,
    Redactor,
    is_secret_name,
    mask_url,
    named_secrets,
    redacted,
    secrets_in_options,
    secrets_in_url,
)
from wal_sink.testing import FakeQuery, simulated_runtime

quick = settings(max_examples=60)


@pytest.fixture(autouse=True, scope="module")
def backends_are_looked_for_once() -> Iterator[None]:
    """Read the installed packages once, instead of for each generated URL."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal_sink.sinks.urls.entry_points", functools.cache(entry_points))
        yield


ODD = "/@#?: %&=;+'\"\\"
LETTERS = "QXZqxz0189"
"""Of which no other word of the texts is made, so that whatever shows of them is a part of the secret."""
passwords = st.text(st.sampled_from(LETTERS + ODD), min_size=4, max_size=20)
tokens = st.text(st.sampled_from(LETTERS), min_size=4, max_size=20)
schemes = st.sampled_from(
    ["postgresql", "redis", "https", "sftp", "s3a", "mongodb+srv", "abfss", "jdbc:mysql", "a::ftp"]
)
users = st.sampled_from(["", "me", "some-one", "me%40corp.com", "me@corp.com"])
hosts = st.sampled_from(["host", "host:5432", "[::1]:75", "one:1,two:2", ""])
paths = st.sampled_from(["", "/", "/db/table", "/a@b.c", "/db?table=t"])
SPELLINGS: Mapping[str, Callable[[str], str]] = {
    "as it is": str,
    "encoded": lambda text: quote(text, safe=""),
    "encoded but for slashes": quote,
    "encoded with plus": quote_plus,
    "in small letters": lambda text: re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), quote(text, safe="")),
    "in JSON": lambda text: json.dumps(text)[1:-1],
    "in Python": lambda text: repr(text)[1:-1],
}
spellings = st.sampled_from(sorted(SPELLINGS))


def parts(secret: str) -> set[str]:
    """Every part of a secret that must not show: of any four characters, those that only letters make."""
    found = (secret[at : at + SHORTEST_SECRET] for at in range(len(secret) - SHORTEST_SECRET + 1))
    return {part for part in found if any(letter in LETTERS for letter in part)}


def shown(text: str, secret: str) -> set[str]:
    return {part for part in parts(secret) if part in text}


@quick
@given(schemes, users, passwords, hosts, paths)
@example("postgresql", "me", "QXZ/ xqz", "host", "/db")
@example("sftp", "", "a://0189@b", "host", "")
@example("https", "me", "1/xqzx", "host:80", "/a@b.c")
def test_no_part_of_a_password_in_a_url(scheme: str, user: str, password: str, host: str, path: str) -> None:
    url = f"{scheme}://{user}:{password}@{host}{path}"
    assert not shown(mask_url(url), password)
    assert mask_url(mask_url(url)) == mask_url(url)
    assert not shown(redacted(f"cannot open {url} today"), password)
    assert not shown(redacted(f"tried {url!r}, then {url}"), repr(password)[1:-1])
    assert mask_url(url).startswith("jdbc:…" if scheme.startswith("jdbc") else f"{scheme}://")


@quick
@given(schemes, tokens, hosts)
def test_no_token_in_the_place_of_a_user(scheme: str, token: str, host: str) -> None:
    if not scheme.startswith("abfs"):  # there it is a container
        assert not shown(mask_url(f"{scheme}://{token}@{host}/db"), token)
        assert not shown(redacted(f"to {scheme}://{token}@{host}/db go"), token)


@quick
@given(
    st.sampled_from(["token", "sig", "X-Amz-Signature", "X-Amz-Credential", "key", "password", "secret", "credential"]),
    passwords,
    spellings,
)
def test_no_secret_in_a_query(name: str, secret: str, spelling: str) -> None:
    value = SPELLINGS[spelling](secret)
    url = f"https://host/path?sv=1&{name}={value}&se=2"
    assert not shown(mask_url(url), value)
    if not re.search(r"\s", value):  # in a text of others it ends there
        assert not shown(redacted(f"GET {url} failed"), value)


@quick
@given(schemes, passwords, spellings, spellings)
@example("sftp", "QXZ/qxz0", "encoded", "as it is")
def test_a_known_secret_goes_in_every_spelling(scheme: str, password: str, given_as: str, echoed_as: str) -> None:
    """Of a URL that was given in one spelling, what a library says in another."""
    plain = password if given_as.startswith(("as", "in ")) else quote(password, safe="")
    spec_secrets = secrets_in_url(f"{scheme}://me:{plain}@host/db")
    told = f"the login me/{SPELLINGS[echoed_as](password)} is wrong"
    assert not shown(Redactor({password})(told), password)
    assert not shown(Redactor(spec_secrets)(told), password) or not plain.strip(ODD + LETTERS)


@quick
@given(passwords)
def test_a_library_that_stumbles_over_a_password_shows_no_part(password: str) -> None:
    redactor = Redactor(secrets_in_url(f"redis://me:{password}@host:6379/0"))
    for part in re.split(r"[/@#?:]", password):
        assert not shown(redactor(f"Port could not be cast to integer value as {part!r}"), part)


@quick
@given(st.sampled_from(["password", "sasl.password", "ssl.key.pem", "token", "fs.s3a.secret.key", "pass"]), passwords)
def test_no_option_shows(name: str, secret: str) -> None:
    redactor = Redactor(named_secrets({name: secret, "topic": "orders"}))
    assert not shown(redactor(f"conf {{{name!r}: {secret!r}, 'topic': 'orders'}} is wrong: {secret}"), secret)
    assert not shown(Redactor(secrets_in_options({"client_kwargs": {name: [secret]}}))(secret), secret)


@quick
@given(st.sampled_from(["password", "aws_secret_access_key", "session-token", "Signature", "api_key"]), tokens)
def test_no_value_of_a_secret_name_whoever_shows_it(name: str, secret: str) -> None:
    for text in (
        f"connect({name}={secret}, host=db)",
        f"connect({name}='{secret} {secret}', host=db)",
        f'{{"{name}": "{secret} {secret}", "host": "db"}}',
        f"{{'{name}': '{secret}', 'host': 'db'}}",
        f"jdbc:sqlserver://db;user=me;{name}={secret} {secret};encrypt=true",
        f"host=db {name} = {secret} user=me",
        f"db: {name}='{secret}",
        f"db: {name}: {secret}",
        f"db; Authorization: Bearer {secret}",
        f"{{'Authorization': 'Basic {secret}', 'host': 'db'}}",
    ):
        assert not shown(redacted(text), secret), redacted(text)
        assert "db" in redacted(text)


def test_what_is_no_secret_stays() -> None:
    cases: list[tuple[str, str]] = [
        ("s3://bucket/a@b:c/d", "s3://bucket/a@b:c/d"),
        ("gs://bucket/me@corp.com/wal", "gs://bucket/me@corp.com/wal"),
        ("https://host/path#token=x", "https://host/path"),
        ("https://user:pw@host:80/path?x=1#y", "https://host:80/path"),
        ("abfss://container@account/x", "abfss://container@account/x"),
        ("abfss://container:hush/hush@account/x", "abfss://container@account/x"),
        ("kafka://one:9092,two:9092/topic", "kafka://one:9092,two:9092/topic"),
        ("sqlite:////tmp/a b.db?table=t", "sqlite:////tmp/a b.db"),
        ("simplecache::sftp://u:p/w@host/x", "simplecache::sftp://host/x"),
        ("sftp://me:passw", "sftp://***"),
        ("https://me:pw?x@host/y", "https://***"),
        ("s3://arn:aws:s3:eu:1:accesspoint/x", "s3://arn:aws:s3:eu:1:accesspoint/x"),
        ("jdbc:sqlserver://db;user=me;password=hush-hush", "jdbc:…"),
        ("mssql://db;password=hush hush;x=1", "mssql://db;password=***;x=1"),
        ("relative/path", "relative/path"),
        ("sftp://u:line\nfeed@host/x", "sftp://host/x"),
        ("HTTP://host/path#token=x", "HTTP://host/path"),
        ("sqlite:///a#b.db", "sqlite:///a#b.db"),
        ("hdfs://secret:8020/a", "hdfs://secret:8020/a"),
        ("https://me:pw#x@host/y", "https://***"),
        ("https://me:pw?x://y@host/z", "https://***"),
    ]
    for url, expected in cases:
        assert mask_url(url) == expected
        assert mask_url(mask_url(url)) == expected


def test_our_own_messages_stay_as_they_are() -> None:
    cases: list[str] = [
        "cannot create s3://bucket/x: AccessDenied (arn:aws:sts::1:assumed-role/a/bob@corp.com may not)",
        "RedisSink('redis://host:6379/0', kind='hash', key='orders:{id}')",
        "give them as password_env='ORDERS', or ?env.sasl.password=VARIABLE",
        "set storage_options key and secret, since the token expired",
        "chunk key=orders/7, position {'key': 'orders/7'}, design=4, sas_token_file=x",
        "the signature does not fit; basic authentication failed",
        "batch 3: expected 4 rows, found 5",
    ]
    for text in cases:
        assert redacted(text) == text


def test_names_of_secrets_and_of_what_is_public() -> None:
    hidden = "sasl.password ssl.key.pem X-Amz-Signature sig key SAS Authorization spark.account.key pw sasl.jaas.config"
    hidden += " fs.azure.account.key.a.dfs.core.windows.net sasl.oauthbearer.config"
    hidden += " AWS_SECRET_ACCESS_KEY sessionCookie client_pem"
    public = "topic ssl.key.location ssl.ca.pem ssl.certificate.pem key.serializer password_env host monkey design"
    public += " oauthbearer.client.id"
    assert [name for name in hidden.split() if not is_secret_name(name)] == []
    assert [name for name in public.split() if is_secret_name(name)] == []


def test_a_redactor_shows_nothing_itself() -> None:
    redactor = Redactor({"QXZqxz", "abc", "Bearer", "****", ""})
    assert "QXZ" not in repr(redactor)
    assert redactor("Bearer abc QXZqxz ****") == f"Bearer abc {MASK} ****"
    assert Redactor(())("as it was") == "as it was"


def test_each_spelling_of_a_known_secret_goes_as_a_whole() -> None:
    cases: list[tuple[str, str]] = [
        ("QX%20Z%2Fq", "QX Z/q"),
        ("QX+Z%2Fq", "QX Z/q"),
        ('QX"Z\x01é', r"QX\"Z\u0001\u00e9"),
        ('QX"Z\x01é', r"QX\"Z\u0001é"),
        ('QX"Z\x01é', r'QX"Z\x01é'),
        (" QXZq\t", "QXZq"),
    ]
    for secret, echoed in cases:
        assert Redactor({secret}).known(f"wrong: {echoed}.") == f"wrong: {MASK}."


def test_a_secret_within_another_leaves_no_rest_of_it() -> None:
    assert Redactor(["QXZq", "QXZq-xz01", "xz01"]).known("QXZq-xz01, QXZq") == f"{MASK}, {MASK}"


def test_the_secrets_among_options_of_a_store_are_these_and_no_others() -> None:
    options = {
        "secret": b"QXZ\xff",
        "own": [{"deep": ["hush-1"], "anon": None, 7: 8}],
        "token": 31415,
        "timeout": 3,
        "password": True,
        "endpoint_url": "http://me:hush-2@host:1/x",
        "host": ["http://host", b"http://other"],
        "connection_string": "Name=x;AccountKey=hush=3;End=y",
    }
    whole = "Name=x;AccountKey=hush=3;End=y"
    sent = base64.b64encode(b"me:hush-2").decode()
    assert secrets_in_options(options) == {"QXZ\ufffd", "31415", "hush-1", "hush-2", "hush=3", whole, sent}


def test_the_secrets_of_a_url_are_these_and_no_others() -> None:
    cases: list[tuple[str, str, set[str]]] = [
        ("https://mine@host/p?x=1&sv=value-one;sig=two=a?b#f", "mine:", {"mine", "value-one", "two=a?b#f"}),
        ("https://me@corp-name@host/x", "me@corp-name:", {"me@corp-name"}),
        ("https://host/path@of-all", "", set()),
        ("https://abcde:hush-%20@host/?u=http://org", "abcde:hush- ", {"hush-%20", "hush- ", "hush-", "http://org"}),
        (
            "https://abcdef:p?pw=word@host/p?token=val-x",
            "abcdef:p?pw=word",
            {"abcdef", "p?pw=word", "pw=word", "val-x"},
        ),
        ("sftp://me:all&cdefg hijk@host", "me:all&cdefg hijk", {"all&cdefg hijk", "cdefg", "hijk"}),
    ]
    for url, login, secrets in cases:
        sent = {base64.b64encode(login.encode()).decode()} if login else set()
        assert secrets_in_url(url) == secrets | sent


def test_the_secrets_among_public_options_are_these_and_no_others() -> None:
    options = {
        "sasl.password": "hush-1",
        "api.token": 31415,
        "bootstrap.servers": "host:9092",
        "batch.size": 100,
        "url": "jdbc:sqlserver://db;user=someone;password=hush=2 ;encrypt=true",
        "proxy": "http://someone:hush-3@proxy",
    }
    sent = base64.b64encode(b"someone:hush-3").decode()
    assert named_secrets(options) == {"hush-1", "31415", "hush=2", "someone", "hush-3", sent}


def test_the_cause_of_an_error_shows_none_either() -> None:
    redactor = Redactor({"QXZqxz"})
    plain, telling = OSError("no disk"), OSError("no QXZqxz")
    assert redactor.cause(plain) is plain
    plain.__cause__ = telling
    assert redactor.cause(plain) is None
    plain.__cause__, plain.__context__, plain.__suppress_context__ = None, telling, True
    assert redactor.cause(plain) is plain
    plain.__suppress_context__ = False
    assert redactor.cause(plain) is None


# Their ports have no digit of `LETTERS`.
SINKS = [
    "postgresql://me:{0}@host/db?table=t",
    "mariadb://me:{0}@host/db?table=t",
    "redis://:{0}@host:6377/2?kind=stream&key=k",
    "https://me:{0}@host/orders?token={0}",
    "https://host/orders?sig={0}#idempotent=true",
    "kafka://host:7235/orders?conf.sasl.password={0}",
    "kafka://me:{0}@host:7235/orders",
    "dynamodb://orders?region=x&secret={0}",
    "files+s3://AKIA:{0}@bucket/x?format=parquet",
    "nosuch://me:{0}@host/x",
]


@pytest.mark.parametrize("url", SINKS)
@settings(max_examples=40)
@given(password=passwords, spelling=st.sampled_from(["as it is", "encoded"]))
@example(password="::00#?", spelling="as it is")  # noqa: S106 - made up
def test_no_sink_by_url_shows_its_password(url: str, password: str, spelling: str) -> None:
    given_url = url.format(SPELLINGS[spelling](password))
    texts = [repr(Delivery(given_url))]
    try:
        sink: Any = sink_from_url(given_url)
    except ConfigError as error:
        texts += [str(error), repr(error.__cause__)]
    else:
        texts += [repr(sink), sink.describe()]
    for text in texts:
        assert not shown(text, SPELLINGS[spelling](password)), text
        assert not shown(text, password), text


def texts_of_store(url: str, password: str) -> list[str]:
    """The visible text of a store, or the reason why it is refused."""
    try:
        spec = StoreSpec(url, {"secret": password})
    except ConfigError as error:
        return [str(error)]
    echo = OSError(f"cannot log in to {url} with {password!r} at {spec.url}")
    return [repr(spec), spec.safe_url, canonical(url), spec.scrub(str(echo)), str(spec.cause(echo))]


STORES = ["sftp://me:{0}@host/wal", "s3://AKIA:{0}@bucket/wal", "webhdfs://me:{0}@host/wal", "gs://b/wal?token={0}"]


@pytest.mark.parametrize("url", STORES)
@quick
@given(password=passwords, spelling=st.sampled_from(["as it is", "encoded"]))
def test_no_store_shows_its_password_and_none_is_recorded(url: str, password: str, spelling: str) -> None:
    given_url = url.format(SPELLINGS[spelling](password))
    for text in texts_of_store(given_url, password):
        assert not shown(text, password), text


def test_there_is_one_place_that_redacts() -> None:
    """Nothing else replaces secrets, or knows how a secret is named."""
    own = re.compile(r"\*\*\*\"|def (mask_url|_?mask|redact|_?scrub_)|_SECRET_(KEY|IN_URL|PARTS|NAME)\b")
    found = {
        str(file.relative_to(CHECKOUT))
        for folder in ("wal_sink", "backends")
        for file in (CHECKOUT / folder).rglob("*.py")
        if own.search(file.read_text())
    }
    assert found <= {"wal_sink/support/secrets.py", "backends/wal_sink_backends/http/api.py"}


class Talkative(Sink):
    """A sink whose library says in its error how it connects."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def write(self, chunk: Chunk) -> None:  # noqa: ARG002 - it never gets so far
        raise self.error


@pytest.mark.parametrize("kind", [OSError, PermanentError, OutcomeUnknownError, CorruptError, RetryLaterError])
def test_no_log_and_no_traceback_of_a_failed_delivery_shows_one(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    sink = Talkative(kind("cannot reach redis://me:QXZ/ qxz0@host:6379/0, password='xqz10 89Zx'"))
    checkpoint, runtime = MemoryStore(StoreSpec(f"memory://checkpoint-{kind.__name__}")), simulated_runtime()
    run = Run(MemoryStore(StoreSpec(f"memory://talkative-{kind.__name__}")), checkpoint, Settings(), runtime=runtime)
    run.open([served_sink("default", sink, Delivery(sink, retry=Retry(attempts=2)), run.log)])
    run.become_stager()
    assert [*FakeQuery(checkpoint, lambda *_: [pa.table({"id": [1]})]).batches(run, 1)] == [0]
    with pytest.raises(WalSinkError) as caught:
        run.deliver_all()
    told = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "cannot reach redis://host:6379/0" in told
    for secret in ("QXZ/ qxz0", "xqz10 89Zx"):
        assert not shown(told, secret)


COSTLY = {
    "urls": "row failed: http://host:9000/a/b, " * 4000,
    "urls behind a user": "me@host " + "http://host:9000/a/b, " * 4000,
    "one word": "https://" + "a" * 125_000,
    "one word of parts": "https://x " + "a-" * 62_500,
    "one number": "https://x " + "1." * 62_500,
    "one url": "http://u:p" * 12_500 + "@host",
    "names": "https://x " + "password " * 14_000,
    "one word of names": "https://x " + "password" * 15_500,
    "lists": "https://x " + ";  password  " * 9_000,
    "quotes": "https://x " + "password='" * 12_500,
}


@pytest.mark.parametrize("kind", COSTLY)
def test_the_cost_of_masking_grows_with_the_length_of_a_text_only(kind: str) -> None:
    """Twice as many characters took a minute or more where it grew with its square."""
    began_s = time.process_time()
    redacted(COSTLY[kind])
    assert time.process_time() - began_s < 1.5
