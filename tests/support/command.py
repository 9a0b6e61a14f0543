"""The command line as a test calls it: in this process, with the exit code that is expected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from click.testing import CliRunner, Result

from tests.house.cli import main


def invoke(*args: object, code: int = 0, env: Mapping[str, str] | None = None) -> Result:
    """Run a command. No error of it may be told as a traceback."""
    result = CliRunner().invoke(main, [*map(str, args)], env=env)
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def invoke_json(*args: object, code: int = 0) -> Any:
    """Run a command with `--json`. Nothing but JSON may stand on stdout."""
    return json.loads(invoke(*args, "--json", code=code).stdout)
