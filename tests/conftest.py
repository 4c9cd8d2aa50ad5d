"""Fixtures of every test: no test writes outside its own folder, or sees another's Ray."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("passhat", deadline=None)  # a busy machine is no failure
settings.load_profile("passhat")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start each test in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return tmp_path


@pytest.fixture(scope="session", autouse=True)
def _plain_output() -> None:
    for name in ("FORCE_COLOR", "GITHUB_ACTIONS"):
        os.environ.pop(name, None)
