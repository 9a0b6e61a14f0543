"""Every request of a run on S3, spoilt in every way that networks and servers have: see `spoiling`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tests.chaos.faulty_proxy import Answer, Exchange, Request
from tests.chaos.s3_world import s3_place
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.chaos.spoiling import (
    LAW,
    PATIENT,
    SOON,
    UNIT,
    Fault,
    Stage,
    change_answer,
    change_upload,
    do_later,
    flipped,
    leave,
    mix_up,
    say,
    shortened,
    spoil,
    stop_half_way,
    to_answers_with_body,
    to_writes,
)


def _to_puts(request: Request, answer: Answer) -> bool:
    return request.method == "PUT" and answer.status == 200


def _to_objects_read(request: Request, answer: Answer) -> bool:
    return request.method == "GET" and answer.status == 200 and "list-type" not in request.target


def _to_listings(request: Request, _: Answer) -> bool:
    return "list-type" in request.target


def _error(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>set by a test</Message></Error>".encode())


_DROP, _RESET, _SILENCE = Exchange.drop, Exchange.reset, Exchange.keep_silent
_CONFLICT = _error(409, "ConditionalRequestConflict")
_BROKEN = _error(500, "InternalError")
_BUSY = _error(503, "SlowDown")
_BARE_412 = Answer(412)
_EMPTY = Answer(200)
"""Success and nothing else, as a device between client and server may answer."""
_PLAIN = ("plain",)

FAULTS = (
    Fault("connection dropped before the effect", leave(_DROP)),
    Fault("connection dropped after the effect", leave(_DROP, done=True)),
    Fault("connection reset before the effect", leave(_RESET), kinds=_PLAIN),
    Fault("connection reset amid the answer", stop_half_way(_RESET), to_answers_with_body, kinds=_PLAIN),
    Fault("answer lost, botocore asks again", leave(_DROP, done=True), _to_puts, client=PATIENT, kinds=_PLAIN),
    Fault("409 ConditionalRequestConflict", say(_CONFLICT)),
    Fault("bare 412 without effect", say(_BARE_412)),
    Fault("bare 412 after the effect", say(_BARE_412, done=True), to_writes),
    Fault("500 without effect", say(_BROKEN)),
    Fault("500 after the effect", say(_BROKEN, done=True), to_writes),
    Fault("503 SlowDown", say(_BUSY), kinds=_PLAIN),
    Fault("answer cut short", stop_half_way(_DROP), to_answers_with_body, kinds=_PLAIN),
    Fault("answer shortened, its length too", change_answer(shortened), to_answers_with_body),
    Fault("empty answer of success", say(_EMPTY, done=True), to_answers_with_body),
    Fault("bit flipped in an answer", change_answer(flipped), _to_objects_read),
    Fault("bit flipped in an answer without checksum", change_answer(flipped, summed=False), _to_objects_read),
    Fault("bit flipped in a listing", change_answer(flipped), _to_listings),
    Fault("answer to a read of another object", mix_up, _to_objects_read),
    Fault("upload cut short", change_upload(shortened), to_writes, kinds=_PLAIN),
    Fault("bit flipped in an upload", change_upload(flipped), to_writes, kinds=_PLAIN),
    Fault("no answer in time, no effect", leave(_SILENCE), client=SOON, kinds=_PLAIN),
    Fault("no answer in time, after the effect", leave(_SILENCE, done=True), client=SOON, kinds=_PLAIN),
    Fault("answer that stops half-way", stop_half_way(_SILENCE), to_answers_with_body, client=SOON, kinds=_PLAIN),
    Fault("dropped, its effect comes later", do_later(now_too=False), to_writes, late=True),
    Fault("done, and done again later", do_later(now_too=True), to_writes, late=True),
)


def _run(fault: Fault, effort: Effort) -> Outcome:
    with s3_place() as place:
        return spoil(fault, Stage(place), effort)


SCENARIOS: Sequence[Scenario] = tuple(
    Scenario(
        f"S3: {fault.name}",
        law=LAW,
        unit=UNIT,
        run=partial(_run, fault),
    )
    for fault in FAULTS
)
