"""The code of `docs/writing-a-sink.md`, as the page has it."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

from tests.support.processes import CHECKOUT

PAGE = CHECKOUT / "docs" / "writing-a-sink.md"


def class_on_the_page(name: str, **given: object) -> Any:
    """Return the class of one code block, with the line numbers of the page. `given` are names that the block lacks."""
    text = PAGE.read_text()
    blocks = re.finditer(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if f"class {name}(" in block[1])
    module = ModuleType(f"the_page_with_{name.lower()}")
    vars(module).update(given)
    sys.modules[module.__name__] = module  # pickle looks for the class there
    lines_before = text[: block.start(1)].count("\n")
    exec(compile("\n" * lines_before + block[1], str(PAGE), "exec"), vars(module))  # noqa: S102 - a page of this repository
    return getattr(module, name)
