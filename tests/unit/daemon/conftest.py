"""What the tests of the app share."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.services import Services
from tests.unit.daemon.fakes import fake_services


@pytest.fixture
def services(tmp_path: Path) -> Services:
    """Services over fakes, level 0."""
    return fake_services(tmp_path)
