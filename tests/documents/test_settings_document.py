"""`docs/settings.md` names every setting, with the default it has."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from typing import Any

from tests.support.processes import CHECKOUT
from wal_sink import Delivery, Retry, Settings

PAGE = (CHECKOUT / "docs" / "settings.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (?:`([^`]*)`)? ?\|", re.MULTILINE)
KINDS: tuple[Any, ...] = (Settings, Delivery, Retry)
NUMBERS: dict[str, Any] = {"10_000": 10_000, "32 << 20": 32 << 20, "64 << 20": 64 << 20, "Retry()": Retry()}


def told(section: str) -> dict[str, str]:
    """The default of each setting in a section's table; empty where it has none."""
    text = PAGE.partition(f"## `{section}`")[2].partition("\n## ")[0]
    return dict(ROW.findall(text))


def test_every_setting_is_named_in_order_with_its_default() -> None:
    wrong = []
    for kind in KINDS:
        expected = {field.name: "" if field.default is MISSING else field.default for field in fields(kind)}
        found = told(kind.__name__)
        assert list(found) == list(expected)
        for name, text in found.items():
            if NUMBERS.get(text, text) not in (expected[name], repr(expected[name]).replace("'", '"')):
                wrong.append(f"{kind.__name__}.{name}: {text}, expected {expected[name]!r}")
    assert wrong == []
