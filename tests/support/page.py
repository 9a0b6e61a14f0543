"""The code of `docs/writing-a-sink.md`, as the page has it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from tests.support.code_blocks import blocks_of

PAGE = "docs/writing-a-sink.md"


def class_on_the_page(name: str, **given: object) -> Any:
    """Return the class of one code block, with the line numbers of the page. `given` are names that the block lacks."""
    (block,) = (block for block in blocks_of(PAGE) if f"class {name}(" in block.code)
    module = ModuleType(f"the_page_with_{name.lower()}")
    vars(module).update(given)
    sys.modules[module.__name__] = module  # pickle looks for the class there
    exec(compile(block.source, PAGE, "exec"), vars(module))  # noqa: S102 - a page of this repository
    return getattr(module, name)
