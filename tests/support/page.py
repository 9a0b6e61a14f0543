"""The code of `docs/writing-a-sink.md`, as it stands there."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

from tests.support.processes import CHECKOUT

PAGE = CHECKOUT / "docs" / "writing-a-sink.md"


def class_on_the_page(name: str, **given: object) -> Any:
    """The class of one code block, with the page's own line numbers; `given` are the names that the block lacks."""
    text = PAGE.read_text()
    blocks = re.finditer(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if f"class {name}(" in block[1])
    module = ModuleType(f"the_page_with_{name.lower()}")
    vars(module).update(given)
    sys.modules[module.__name__] = module  # where pickle looks for the class
    lines_before = text[: block.start(1)].count("\n")
    exec(compile("\n" * lines_before + block[1], str(PAGE), "exec"), vars(module))  # noqa: S102 - our own page
    return getattr(module, name)
