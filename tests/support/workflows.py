"""The checks of `.github/workflows`, which no host ran yet: schemas, actionlint, and what each step runs.

`make workflows` (`python -m tests.support.workflows`) runs all of them. Go builds actionlint once.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tests.support.go_programs import GoProgram
from tests.support.processes import CHECKOUT

FOLDER = CHECKOUT / ".github" / "workflows"
SCHEMAS = ("vendor.github-workflows", "custom.github-workflows-require-timeout")
"""Schemas that check-jsonschema brings, by their names there."""
ACTIONLINT = GoProgram("actionlint", "github.com/rhysd/actionlint/cmd/actionlint", "1.7.12")
CHECK_LIMIT_S = 300.0

_MAKE = re.compile(r"make((?: [a-z0-9-]+)+)(?: ARGS=(?:[\w./-]+|\"[\w./ -]+\"))?")
_CI = re.compile(r"\.ci/run((?: [a-z0-9-]+)*)")
_PINNED = re.compile(r"[\w.-]+/[\w./-]+@(?:v\d+|[0-9a-f]{40})")


def files(folder: Path = FOLDER) -> list[Path]:
    """Return the workflows of a folder.

    Raises:
        FileNotFoundError: there is none.
    """
    found = sorted(path for path in folder.glob("*") if path.suffix in {".yml", ".yaml"})
    if not found:
        raise FileNotFoundError(f"{folder} holds no workflow")
    return found


def problems(workflows: Iterable[Path]) -> list[str]:
    """Return everything that is wrong with these files, other than what actionlint finds."""
    found = list(workflows)
    return [*schema_problems(found), *(line for path in found for line in own_problems(path))]


def schema_problems(workflows: Iterable[Path]) -> list[str]:
    """Return the output of check-jsonschema for each schema that does not accept the files."""
    program = [sys.executable, "-m", "check_jsonschema", "--color", "never"]
    paths = [str(path) for path in workflows]
    return [said for schema in SCHEMAS if (said := _complaints([*program, "--builtin-schema", schema, *paths]))]


def actionlint_problems(workflows: Iterable[Path]) -> list[str]:
    """Return the output of actionlint if it does not accept the files. It must have been built."""
    said = _complaints([str(ACTIONLINT.path), "-no-color", "-shellcheck=", "-pyflakes=", *map(str, workflows)])
    return [said] if said else []


def own_problems(workflow: Path) -> list[str]:
    """Return what breaks the rules of this repository, each with the file's name.

    A command is `make` with targets of the Makefile, or `.ci/run` with names of its checks. Rights are to read and no
    more; runs of one kind do not pile up; actions are pinned.
    """
    try:
        read: Any = YAML(typ="safe").load(workflow)
        steps = [step for job in read["jobs"].values() for step in job["steps"]]
    except (YAMLError, KeyError, TypeError, AttributeError) as error:
        return [f"{workflow.name}: not a workflow with jobs and steps: {error!r}"]
    found = [] if read.get("permissions") == {"contents": "read"} else ["permissions are not `contents: read` alone"]
    found += ["a job has permissions itself" for job in read["jobs"].values() if "permissions" in job]
    if "concurrency" not in read:
        found.append("no concurrency group")
    for step in steps:
        found += [f"{line!r} is neither `make TARGET` nor `.ci/run CHECK`" for line in _unknown(step.get("run", ""))]
        if "uses" in step and not _PINNED.fullmatch(step["uses"]):
            found.append(f"{step['uses']!r} is pinned neither by a major version nor by a commit")
    return [f"{workflow.name}: {line}" for line in found]


def pythons(workflow: Path) -> list[list[str]]:
    """Return the lists of Python versions over which jobs of the file run."""
    read: Any = YAML(typ="safe").load(workflow)
    matrices = [job.get("strategy", {}).get("matrix", {}) for job in read["jobs"].values()]
    return [list(matrix["python"]) for matrix in matrices if "python" in matrix]


def make_targets() -> set[str]:
    """Return the targets of the Makefile."""
    return set(re.findall(r"^([a-z0-9-]+):(?!=)", (CHECKOUT / "Makefile").read_text(), flags=re.MULTILINE))


def ci_checks() -> set[str]:
    """Return the names of the checks of `.ci/run`."""
    return set(
        re.findall(
            r'^(?:\w+=\S.* )?(?:check|by_name) "([a-z0-9-]+)" ', (CHECKOUT / ".ci/run").read_text(), re.MULTILINE
        )
    )


def _unknown(commands: str) -> Iterator[str]:
    for line in commands.splitlines():
        made, ran = _MAKE.fullmatch(line), _CI.fullmatch(line)
        if made and set(made[1].split()) <= make_targets():
            continue
        if ran and set(ran[1].split()) <= ci_checks():
            continue
        yield line


def _complaints(command: list[str]) -> str:
    """Return the output of a check that failed, and nothing if it passed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CHECK_LIMIT_S)
    return f"{done.stdout}{done.stderr}\nexit code {done.returncode}" if done.returncode else ""


def main() -> int:
    """Check every workflow. Return 1 if one has a problem."""
    workflows = files()
    ACTIONLINT.build()
    found = [*problems(workflows), *actionlint_problems(workflows)]
    for line in found:
        _say(line)
    if not found:
        _say(
            f"{len(workflows)} workflows pass {', '.join(SCHEMAS)}, actionlint {ACTIONLINT.version} and the rules here"
        )
    return 1 if found else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
