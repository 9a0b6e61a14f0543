"""Log records of a test itself: threads that another test left may log, too."""

from __future__ import annotations

import threading

import pytest


def said_here(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages that this thread logged."""
    return [record.getMessage() for record in caplog.records if record.thread == threading.get_ident()]
