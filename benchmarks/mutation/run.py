"""Mutation testing of the committing core: `make mutation`. Results: benchmarks/MUTATION.md.

mutmut makes the mutants in a copy of the checkout, under .cache/mutation; the checkout itself is never mutated. Killed
mutants are remembered there, by the text of the mutant and of its function. So another run continues where the last one
ended, and tries survivors again. On another machine, `report.py` carries over what this one found.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import fnmatch
import hashlib
import json
import os
import re
import runpy
import shutil
import sys
import tomllib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from report import Result, read_results, result_of, with_earlier, write

CHECKOUT = Path(__file__).parent.parent.parent
WORK = CHECKOUT / ".cache" / "mutation"

COPIED = ("wal_sink", "backends", "tests", "docs")
TESTS = tuple(
    f"tests/{folder}" for folder in runpy.run_path(str(CHECKOUT / "tests" / "support" / "covering.py"))["FOLDERS"]
)
"""Tests marked `no_cover` take too long to run on every mutant. Tests that fail in the copy are skipped."""
NOT_OF_THE_CORE = (
    *("unit/backends/*", "unit/testing/test_contract*", "unit/testing/test_crash_matrix*", "unit/testing/test_kit*"),
    *("unit/cli/test_cli.py", "unit/cli/test_cli_letters*", "unit/house/*"),
    *(f"integration/{room}/*" for room in ("backends", "dynamodb", "http", "redis", "sql")),
    *("integration/cli/test_cli_held*", "integration/cli/test_cli_sigterm*"),
    *(f"spark/test_{name}.py" for name in ("connect", "copies", "environment", "error_lines")),
    *(f"spark/test_{name}.py" for name in ("garbage", "identity", "inline_budget", "manifest_schema", "source")),
    *(
        f"spark/test_{name}.py"
        for name in ("remote_query", "repeated_shuffles", "pickled_rows", "shared_store", "spark_assumptions")
    ),
    *(f"spark/test_{name}.py" for name in ("spark_versions", "thread_properties", "versions", "wrap")),
)
"""Tests of backends, the kit, commands and Spark: many start processes, and they reach only functions that other tests
reach too.
"""
MESSAGES = [r"_logger\.", r"raise (?!SinkFailedError|divergence)\w+\(", r"^\s+f?\"[^\"]*\"\s*$"]
"""Lines whose expressions are not mutated: log calls and texts of exceptions."""
FIRST = ("protocol", "log", "stores")
"""The rooms whose mutants are tried first."""

_NUMBER = re.compile(r"__mutmut_(orig|\d+)")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one function."""

    name: str
    """The name that mutmut gives it; its number changes with its function."""
    file: str
    function: str
    change: str
    """The removed and the added lines."""
    key: str
    """An id that stays the same as long as function and change stay the same."""


def core_files() -> list[str]:
    """The files of the committing core as pyproject.toml defines it, the most important ones first."""
    omitted = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]["omit"]
    files = [path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "wal_sink").rglob("*.py")]
    core = [file for file in files if not any(fnmatch.fnmatch(file, pattern) for pattern in omitted)]
    return sorted(core, key=lambda file: (_rank(Path(file).parts[1]), file))


def _rank(room: str) -> int:
    return FIRST.index(room) if room in FIRST else len(FIRST)


def prepare() -> None:
    """Copy the tested folders, and configure mutmut in the copy."""
    WORK.mkdir(parents=True, exist_ok=True)
    for folder in COPIED:
        shutil.rmtree(WORK / folder, ignore_errors=True)
        shutil.copytree(CHECKOUT / folder, WORK / folder, ignore=shutil.ignore_patterns("__pycache__"))
    patterns = "".join(f"  '''{pattern}''',\n" for pattern in MESSAGES)
    settings = f'\n[tool.mutmut]\nsource_paths = ["wal_sink"]\ndo_not_mutate_patterns = [\n{patterns}]\n'
    (WORK / "pyproject.toml").write_text((CHECKOUT / "pyproject.toml").read_text() + settings)
    os.chdir(WORK)


def mutants_of(file: str) -> list[Mutant]:
    """All mutants of a file. In the copy, the file is replaced by one that contains them all."""
    from mutmut.mutation.file_mutation import mutate_file_contents  # noqa: PLC0415 - the group `mutation`

    source = (CHECKOUT / file).read_text()
    cached = WORK / "mutated" / f"{_digest(source + repr(MESSAGES))}.json"
    if not cached.exists():
        mutated = mutate_file_contents(file, source)
        texts = _functions(mutated.code)
        module = file.removesuffix(".py").replace("/", ".")
        mutants = [_mutant(f"{module}.{name}", file, texts) for name in mutated.mutant_names]
        cached.parent.mkdir(exist_ok=True)
        cached.write_text(json.dumps({"code": mutated.code, "mutants": [asdict(mutant) for mutant in mutants]}))
    found = json.loads(cached.read_text())
    (WORK / file).write_text(found["code"])
    return [Mutant(**mutant) for mutant in found["mutants"]]


def _functions(code: str) -> dict[str, list[str]]:
    lines = code.splitlines()
    defined = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef))
    return {node.name: [_NUMBER.sub("", line) for line in lines[node.lineno - 1 : node.end_lineno]] for node in defined}


def _mutant(name: str, file: str, texts: dict[str, list[str]]) -> Mutant:
    short = name.rpartition(".")[2]
    mangled = short.partition("__mutmut_")[0]
    original, mutated = texts[f"{mangled}__mutmut_orig"], texts[short]
    diff = difflib.unified_diff(original, mutated, n=0, lineterm="")
    change = "\n".join(f"{line[0]} {line[1:].strip()}" for line in diff if not line.startswith(("---", "+++", "@@")))
    module = file.removeprefix("wal_sink/").removesuffix(".py").replace("/", ".")
    function = f"{module}.{mangled.removeprefix('xǁ').removeprefix('x_').replace('ǁ', '.')}"
    return Mutant(name, file, function, change, _digest("\n".join([file, function, *original, "", *mutated])))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run(mutants: list[Mutant], *, most_s: float, lock: Path | None, jobs: int, controls: int) -> None:
    """Try the mutants, in `jobs` processes side by side. The file that keeps their fates grows with each mutant.

    `controls`: run the tests of this many mutants without the mutant first. None of them may fail: a test that fails
    because the machine is busy would count as a killed mutant.
    """
    import pytest  # noqa: PLC0415 - together with the next, which needs the extra
    from loop import Limits, MutantLoop  # noqa: PLC0415 - needs the group `mutation`
    from mutmut.configuration import config  # noqa: PLC0415 - needs the group `mutation`

    config()  # read here and now, from the copy: a test may be in another folder when it reaches the first function

    sys.path.insert(0, str(WORK))
    keys = {mutant.name: mutant.key for mutant in mutants}

    def note(name: str, fate: str) -> None:
        with _fates_file().open("a") as file:  # one short line, so that processes side by side keep their lines whole
            file.write(f"{keys[name]} {fate}\n")
        print(f"{fate:12} {name}", file=sys.__stdout__, flush=True)

    names = [mutant.name for mutant in mutants]
    limits = Limits(most_s=most_s, lock=lock, jobs=jobs, controls=controls)
    loop = MutantLoop(names, note, reach=WORK / "reach.json", limits=limits)
    # Other styles of tracebacks parse the whole mutated file for each failure.
    quiet = ["-q", "--no-header", "--tb=native", "--capture=sys"]
    ignored = [f"--ignore-glob=tests/{pattern}" for pattern in NOT_OF_THE_CORE]
    without = [
        part for plugin in ("randomly", "cacheprovider", "cov", "faulthandler") for part in ("-p", f"no:{plugin}")
    ]
    status = pytest.main([*TESTS, *ignored, *quiet, *without, "-m", "not (spark or s3 or no_cover)"], [loop])
    imported = Path(sys.modules["wal_sink"].__file__ or "")
    if not imported.is_relative_to(WORK):
        sys.exit(f"the tests imported {imported} and not the mutated copy: nothing was tested")
    if status:
        sys.exit(int(status))


def _fates_file() -> Path:
    return WORK / "fates.txt"


def known_fates() -> dict[str, str]:
    """The fates that were found so far, by the key of the mutant. The last line of a key counts."""
    if not _fates_file().exists():
        return {}
    return dict(line.split(" ", 1) for line in _fates_file().read_text().splitlines())


def report(mutants: list[Mutant], fates: dict[str, str]) -> list[Result]:
    """The results of all files: those of this machine, and carried over ones of files that it has not tried."""
    earlier, today = read_results(), datetime.now(UTC).date().isoformat()
    found = [
        result_of(file, _text_of(file), [each for each in mutants if each.file == file], fates, date=today)
        for file in core_files()
    ]
    return [with_earlier(result, earlier.get(result.file)) for result in found]


def _text_of(file: str) -> str:
    return _digest((CHECKOUT / file).read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", help="files of the core, such as wal_sink/log/terms.py; default: all")
    parser.add_argument("--only-report", action="store_true", help="try no mutant, only write the report")
    parser.add_argument("--seconds", type=float, default=8, help="limit of the tests' processor time per mutant")
    parser.add_argument("--jobs", type=int, default=1, help="processes that try mutants side by side")
    parser.add_argument("--controls", type=int, default=0, help="try the tests of this many mutants without the mutant")
    parser.add_argument("--lock", type=Path, help="hold a shared lock on this file while a mutant runs")
    given = parser.parse_args()
    prepare()
    mutants = [mutant for file in core_files() for mutant in mutants_of(file)]
    fates = known_fates()
    wanted = [mutant for mutant in mutants if not given.files or mutant.file in given.files]
    due = [mutant for mutant in wanted if fates.get(mutant.key) not in {"killed", "timed out"}]
    # Mutants that were never tried come first. Functions stand in an order without meaning: a run that was ended has
    # then tried a fair sample of all files.
    due.sort(key=lambda mutant: (mutant.key in fates, _digest(mutant.function)))
    if due and not given.only_report:
        run(due, most_s=given.seconds, lock=given.lock, jobs=given.jobs, controls=given.controls)
    write(report(mutants, known_fates()))


if __name__ == "__main__":
    main()
