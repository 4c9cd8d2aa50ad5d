"""The command line as the tests of it call it: in this process, with its exit code and both streams."""

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from passhat.runner import cli


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document


@pytest.fixture
def passhat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def call(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["passhat", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return Answer(int(ended.value.code or 0), out, err)

    return call
