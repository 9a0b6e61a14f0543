"""The code of the racers of `races`, for processes and threads. A separate module, so that processes import little."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tests.house.stores import ObjectExists, Store, StoreSpec, open_store

TOGETHER_WITHIN_S = 60.0
NOBODY = 255
LOST, WON = 0, 1


class Meeting(Protocol):
    """A barrier of threads or of processes."""

    def wait(self, timeout: float | None = None) -> int: ...


def race_in_process(spec: StoreSpec, number: int, rounds: int, meeting: Meeting, result: Path) -> None:
    """Race in this process. Write the findings to a file atomically."""
    seen = race(open_store(spec), number, rounds, meeting)
    part = result.with_suffix(".part")
    part.write_bytes(seen)
    part.rename(result)


def race(store: Store, number: int, rounds: int, meeting: Meeting) -> bytes:
    """Return two bytes a round: whether this racer won, and the number of the racer whose object it read afterwards."""
    seen = bytearray()
    for turn in range(rounds):
        meeting.wait(TOGETHER_WITHIN_S)
        try:
            store.create(path_of(turn), payload(turn, number))
        except ObjectExists:
            seen.append(LOST)
        else:
            seen.append(WON)
        seen.append(owner(turn, store.read(path_of(turn))))
    return bytes(seen)


def path_of(turn: int) -> str:
    return f"race-{turn // 1000}/{turn:06d}.json"


def payload(turn: int, number: int) -> bytes:
    """Return bytes as long as a record, different for every racer and round."""
    return f"{number:03d} {turn:06d} ".encode() + bytes([number]) * 290


def owner(turn: int, data: bytes) -> int:
    """Return the racer that wrote exactly these bytes, or `NOBODY`."""
    number = int(data[:3]) if data[:3].isdigit() else NOBODY
    return number if number < NOBODY and payload(turn, number) == data else NOBODY
