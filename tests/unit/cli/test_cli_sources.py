"""Options of `drain` from the environment and from a file: each one, with which rights, and no secret in a message."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from tests.house.cli import main
from wal_sink.cli.drain import drain
from wal_sink.cli.sources import CHECKPOINT_VARIABLE, MOST_BYTES, PREFIX, checkpoint_options
from wal_sink.errors import ConfigError

PLANTED = "hunter2-is-the-password"
SAMPLES: dict[str, Any] = {
    "wal": "s3://lake/wal",
    "to": "kafka://broker/topic",
    "name": "orders",
    "checkpoint": "s3://lake/checkpoint",
    "moved-from": "s3://old/wal",
    "moved-from-gone": "s3://older/wal",
    "follow": True,
    "timeout": 12,
    "liveness-file": "/run/alive",
    "guarantee": "at_least_once",
    "start-from": "earliest",
    "through": 7,
    "yes": True,
    "take-over": True,
    "on-rejected": "dead_letter",
    "on-gone": "prepare_again",
    "order": "total",
    "retention-batches": 20_000,
    "rows-per-s": 100,
    "max-attempts": 3,
    "budget": 60.0,
    "attempt-timeout": 5,
    "roll-s": 60,
    "roll-bytes": 1000,
    "metrics": "127.0.0.1:9464",
    "json": True,
}
"""A value for every key of the file. A new option needs one."""
OTHERS = {"config", "storage-options", "checkpoint-options", "columns"}
"""`--config` itself, and those that are tables in the file."""


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(PREFIX) and not name.startswith(f"{PREFIX}TEST")]:
        monkeypatch.delenv(name)


def written(text: str, name: str = "drain.toml", mode: int = 0o600) -> str:
    path = Path(name)
    path.write_text(text)
    path.chmod(mode)
    return name


def toml(values: dict[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def understood(*args: str) -> dict[str, Any]:
    """The values that the command would run with."""
    params = drain.make_context("drain", list(args)).params
    return {name: value for name, value in params.items() if value not in (None, (), False)}


def as_arguments(values: dict[str, Any]) -> list[str]:
    args = [values["wal"]]
    for key, value in values.items():
        if value is True:
            args.append(f"--{key}")
        elif key != "wal":
            args += [f"--{key}", str(value)]
    return args


def keys() -> set[str]:
    return {max(param.opts, key=len).lstrip("-") for param in drain.params}


def test_every_option_comes_from_the_environment_as_from_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    assert keys() == {*SAMPLES, *OTHERS}
    told = understood(*as_arguments(SAMPLES))
    assert len(told) == len(SAMPLES)
    for key, value in SAMPLES.items():
        monkeypatch.setenv(PREFIX + key.replace("-", "_").upper(), str(value))

    assert understood() == told


def test_every_option_comes_from_a_file_as_from_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = understood(*as_arguments(SAMPLES))
    for name, text in (("drain.toml", toml(SAMPLES)), ("drain.json", json.dumps(SAMPLES))):
        for mode in (0o600, 0o400):
            assert understood("--config", written(text, name, mode)) == expected
            Path(name).unlink()
    monkeypatch.setenv(f"{PREFIX}CONFIG", written(toml(SAMPLES)))
    assert understood() == expected


def test_an_argument_goes_before_the_environment_and_that_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(toml({"wal": "w", "to": "a:b", "name": "file", "order": "total"}))
    assert understood("--config", file)["name"] == "file"
    monkeypatch.setenv(f"{PREFIX}NAME", "environment")
    assert understood("--config", file)["name"] == "environment"
    assert understood("--config", file, "--name", "argument")["name"] == "argument"
    assert understood("--config", file)["order"] == "total"


def test_options_of_the_stores_are_tables_of_the_file() -> None:
    text = 'wal = "w"\nto = "a:b"\n[storage-options]\nkey = "k"\n[storage-options.client_kwargs]\nregion_name = "x"\n'
    found = understood("--config", written(text + "[checkpoint-options]\nanon = true\n"))

    assert found["storage_options"] == {"key": "k", "client_kwargs": {"region_name": "x"}}
    assert found["checkpoint_options"] == {"anon": True}


def test_options_of_a_store_are_json_on_the_line_in_a_file_or_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options, place = {"anon": False, "client_kwargs": {"region_name": "x"}}, ["w", "--to", "a:b"]
    forms = [json.dumps(options), "@" + written(json.dumps(options), "options.json")]
    for name in ("storage-options", "checkpoint-options"):
        found = [understood(*place, f"--{name}", form) for form in forms]
        for form in forms:
            monkeypatch.setenv(PREFIX + name.replace("-", "_").upper(), form)
            found.append(understood(*place))

        assert [each[name.replace("-", "_")] for each in found] == [options] * 4


MISTAKES_IN_OPTIONS: list[tuple[str, int, str]] = [
    (PLANTED, 0o600, r'--storage-options: expected one JSON object such as \{"anon": true\}, or @ .*\(line 1\)'),
    (f'{{"a": "{PLANTED}", "a": 1}}', 0o600, "a key that occurs twice"),
    ("@missing.json", 0o600, "--storage-options @missing.json: this file cannot be read: No such file"),
    ("@f.json", 0o640, r"--storage-options @f.json: this file has mode 0640, .*chmod 600 f\.json"),
    ("@f.json", 0o600, r"--storage-options @f.json: expected one JSON object .* \(line 1\)"),
]


def test_a_mistake_in_options_of_a_store_is_named_without_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, mode, said in MISTAKES_IN_OPTIONS:
        written(PLANTED, "f.json", mode)
        with pytest.raises(ConfigError, match=said) as told:
            understood("w", "--to", "a:b", "--storage-options", given)
        assert PLANTED not in str(told.value)
        monkeypatch.setenv(CHECKPOINT_VARIABLE, given)
        with pytest.raises(ConfigError, match=said.replace("--storage-options", CHECKPOINT_VARIABLE)) as told:
            checkpoint_options()
        assert PLANTED not in str(told.value)


def test_a_file_that_others_may_read_or_change_is_refused() -> None:
    for mode in (0o644, 0o640, 0o604, 0o660, 0o610, 0o602):
        with pytest.raises(ConfigError, match=rf"has mode {mode:04o}, .*chmod 600 drain\.toml"):
            understood("--config", written(toml(SAMPLES), mode=mode))


MISTAKES_IN_THE_FILE = [
    ("f.toml", "nmae = 'x'", r"'nmae' is not a key of this file\. Expected .* name, .*storage-options"),
    ("f.toml", "config = 'other.toml'", "'config' is not a key"),
    ("f.toml", "start_from = 'next'", "'start_from' is not a key"),
    ("f.toml", "follow = 'yes'", "follow: expected true or false, found a str"),
    ("f.toml", "name = 3", "name: expected text, found a int"),
    ("f.toml", "name = true", "name: expected text, found a bool"),
    ("f.toml", "max-attempts = 3.5", "max-attempts: expected a whole number, found a float"),
    ("f.toml", "max-attempts = true", "max-attempts: expected a whole number, found a bool"),
    ("f.toml", "timeout = '5'", "timeout: expected a number, found a str"),
    ("f.toml", "storage-options = 'x'", "storage-options: expected a table of names and values, found a str"),
    ("f.toml", f"to = {PLANTED}\n", r"expected TOML, and it cannot be parsed \(line 1, column"),
    ("f.toml", "name = 'a'\nname = 'b'\n", r"expected TOML, and it cannot be parsed \(line 2, column"),
    ("f.json", f'{{"to": {PLANTED}}}', r"expected one JSON object, and it cannot be parsed \(line 1\)"),
    ("f.json", '{"name": "a", "name": "b"}', "a key that occurs twice"),
    ("f.json", "[" * 100_000, "the place is not known"),
    ("f.json", "[]", "expected one JSON object, found a list"),
    ("f.toml", "#" * (MOST_BYTES + 1), "expected at most 1048576 bytes"),
]


def test_a_mistake_in_the_file_is_named_without_what_it_holds() -> None:
    for name, text, said in MISTAKES_IN_THE_FILE:
        with pytest.raises(ConfigError, match=said) as told:
            understood("--config", written(text, name))
        assert name in str(told.value)
        assert PLANTED not in str(told.value)


def test_a_file_that_is_no_text_or_no_file_is_refused() -> None:
    Path("f.toml").write_bytes(b"\xff\xfe")
    Path("f.toml").chmod(0o600)
    with pytest.raises(ConfigError, match="expected text in UTF-8"):
        understood("--config", "f.toml")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        understood("--config", "missing.toml")
    os.mkfifo("pipe", 0o600)
    holder = os.open("pipe", os.O_RDWR)
    try:
        with pytest.raises(ConfigError, match="expected a file"):
            understood("--config", "pipe")
    finally:
        os.close(holder)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        understood("--config", ".")


def run(*args: str) -> Result:
    return CliRunner().invoke(main, ["drain", *args])


def test_what_click_refuses_is_refused_as_ever() -> None:
    result = run("--config", written(toml({"wal": "w", "to": "a:b", "order": "chaos"})))

    assert result.exit_code == 2
    assert "'chaos' is not one of 'batch', 'total'" in result.stderr
    assert "Missing argument 'WAL'" in run("--to", "a:b").stderr
    assert "Missing option '--to'" in run("w").stderr


def test_the_completion_of_a_shell_reads_no_file() -> None:
    context = drain.make_context("drain", ["--config", "missing.toml"], resilient_parsing=True)
    assert isinstance(context, click.Context)
