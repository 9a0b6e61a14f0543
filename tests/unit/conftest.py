"""Fixtures of several modules here."""

from __future__ import annotations

import pytest

from tests.support.vault import Vault


@pytest.fixture
def vault() -> Vault:
    return Vault()
