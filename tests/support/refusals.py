"""Tables of arguments that are refused: one test for a table, not one for each line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any


def unrefused(
    error: type[Exception],
    make: Callable[..., object],
    cases: Iterable[tuple[Any, ...]],
    *,
    hidden: Iterable[str] = ("hunter2",),
) -> list[str]:
    """The cases that `make` takes, or refuses by another text than the case's last item, or with a part of `hidden`.

    The items before the last one are the arguments of `make`. Other classes than `error` are raised.
    """
    faults = []
    for *arguments, message in cases:
        try:
            made = make(*arguments)
        except error as refused:
            told = str(refused)
            if not re.search(message, told) or any(part in told for part in hidden):
                faults.append(f"{arguments}: {told}")
        else:
            faults.append(f"{arguments}: made {made!r}")
    return faults
