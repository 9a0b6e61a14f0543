"""Tables of arguments that are refused: one test for a table, not one for each line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

SHOWN_NOWHERE = "hunter2"


def unrefused(error: type[Exception], make: Callable[..., object], cases: Iterable[tuple[Any, ...]]) -> list[str]:
    """The cases that `make` takes, or refuses by another text than the case's last item, or with `SHOWN_NOWHERE` in it.

    The items before the last one are the arguments of `make`. Other classes than `error` are raised.
    """
    faults = []
    for *arguments, message in cases:
        try:
            made = make(*arguments)
        except error as refused:
            told = str(refused)
            if not re.search(message, told) or SHOWN_NOWHERE in told:
                faults.append(f"{arguments}: {told}")
        else:
            faults.append(f"{arguments}: made {made!r}")
    return faults
