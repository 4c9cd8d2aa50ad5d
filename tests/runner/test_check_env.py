"""`passhat check-env` as a user meets it: what it prints, as text and as JSON, and its exit codes."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from passhat.runner.check_env import check_environment
from passhat.runner.errors import InvalidFile, UsageError
from passhat.workers.conformance import CHECKS

LAMP = '''
from typing import Any

from passhat.workers.tool import World, tool


class Lamp(World):
    version = "2"
    tables = {"lamps": {"L-1": {"on": False}}}

    @tool(effect="write")
    def switch(self, lamp_id: str, on: bool) -> dict[str, Any]:
        """Switch a lamp."""
        if self.rows.get("lamps", lamp_id) is not None:
            self.rows.update("lamps", lamp_id, on=on)
        return {"colour": self.colour()}

    @tool(effect="read")
    def look(self) -> dict[str, Any]:
        """Look at the lamps."""
        return {key: dict(row) for key, row in self.rows.scan("lamps")}

    def colour(self) -> Any:
        return "white"


class Flickering(Lamp):
    def colour(self) -> Any:
        import random

        print("flicker")
        return random.random()


class Wired(Lamp):
    """Cannot be without a world that says how it is wired."""

    def reset(self, *, seed: int, options: Any) -> None:
        super().reset(seed=seed, options=options)
        self.wire = options["wire"]


def unplugged() -> World:
    raise OSError("no current")


nothing = 3
dict = dict
'''


Passhat = Callable[..., Any]


@pytest.fixture(autouse=True)
def lamp(monkeypatch: pytest.MonkeyPatch, own_folder: Path) -> None:
    """A folder with a user's module; what is imported from it is forgotten afterwards."""
    (own_folder / "lamp.py").write_text(LAMP)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "lamp", raising=False)


def states(document: dict[str, Any]) -> dict[str, str]:
    return {check["check"]: check["state"] for check in document["checks"]}


def test_a_sound_environment_passes_with_every_check_named(passhat: Passhat) -> None:
    code, out, _ = passhat("check-env", "lamp:Lamp")
    assert code == 0
    lines = out.splitlines()
    assert lines[:3] == [
        "environment   Lamp 2   lamp:Lamp",
        "tried         12 runs in 1 world: 72 calls of 2 tools, each run again in other ways",
        "",
    ]
    assert lines[3:-2] == [f"ok       {name:<22}{promise}" for name, promise in CHECKS.items()]
    assert lines[-2:] == ["", "nothing speaks against this environment"]


def test_a_check_that_fails_is_told_with_its_first_call_and_the_command_ends_with_1(passhat: Passhat) -> None:
    code, out, err = passhat("check-env", "lamp:Flickering")
    assert code == 1
    assert out.endswith("\n2 of 22 checks failed: same_seed_twice, global_random\n")
    found = out[out.index("FAILED   global_random") :].splitlines()
    assert found[1] == "              call#1: entropy (random the global generator)"
    assert found[2].startswith("              at call 1 in world {}, seed ")
    assert "flicker" in err
    assert "flicker" not in out
    assert "skipped  other_processes" in out


def test_the_document_names_world_seed_call_tool_and_arguments(passhat: Passhat) -> None:
    code, out, _ = passhat("check-env", "lamp:Flickering", "--json")
    document = json.loads(out)
    assert code == 1
    assert document["schema"] == "passhat.check-env/1"
    assert document["environment"] == {"target": "lamp:Flickering", "name": "Flickering", "version": "2"}
    assert (document["passed"], document["worlds"], document["runs"]) == (False, 1, 12)
    assert document["tools"] == {tool: {"calls": 36, "answered": 36} for tool in ("switch", "look")}
    check = next(check for check in document["checks"] if check["check"] == "global_random")
    assert (check["state"], check["promise"]) == ("fail", "global random generators are left alone")
    assert check["times"] > 1
    first = check["first"]
    assert first.keys() == {"world", "seed", "call", "tool", "arguments"}
    assert (first["world"], first["call"] >= 1, first["tool"]) == ("{}", True, "switch")
    assert first["arguments"].keys() == {"lamp_id", "on"}


def test_a_world_that_needs_options_says_so_and_gets_them_from_a_file(passhat: Passhat, own_folder: Path) -> None:
    code, out, _ = passhat("check-env", "lamp:Wired")
    assert code == 1
    assert "\nno world      none could be reset: name others with --suite or --world\n" in out
    assert "raised KeyError: 'wire'" in out
    assert "at the reset in world {}, seed " in out
    (own_folder / "wired.json").write_text('{"wire": "blue"}')
    code, out, _ = passhat("check-env", "lamp:Wired", "--world", "wired.json", "--json")
    assert (code, json.loads(out)["passed"]) == (0, True)


def test_the_worlds_of_a_suite_are_tried_and_its_folder_holds_the_module(passhat: Passhat, own_folder: Path) -> None:
    suite = own_folder / "elsewhere"
    suite.mkdir()
    (own_folder / "lamp.py").rename(suite / "wired_lamp.py")
    (suite / "suite.yaml").write_text("name: lamps\nversion: '1'\nenvironment: wired_lamp:Wired\ntasks: tasks.jsonl\n")
    tasks = ({"id": f"t{number}", "request": "Go.", "world": {"wire": "red"}} for number in range(30))
    (suite / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    document = check_environment("wired_lamp:Wired", suite=str(suite / "suite.yaml"))
    assert (document["passed"], document["worlds"], document["runs"]) == (True, 24, 48)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("lamp", 'found "lamp", expected desk or module:factory'),
        ("lantern:Lamp", "lantern:Lamp: no module lantern in"),
        ("lamp:Lantern", "lamp.py has no Lantern; allowed are Any, Flickering, Lamp, Wired"),
        ("lamp:nothing", "lamp:nothing: found int, expected a function"),
        ("lamp:dict", "lamp:dict: it made dict, expected an environment with a spec"),
        ("lamp:unplugged", "lamp:unplugged: the environment cannot be set up: OSError: no current"),
    ],
)
def test_what_cannot_be_imported_or_set_up_is_named_and_ends_with_2(
    passhat: Passhat, target: str, message: str
) -> None:
    code, out, err = passhat("check-env", target)
    assert (code, out) == (2, "")
    assert err.startswith("passhat: ")
    assert message in err


def test_a_module_that_raises_when_imported_is_named(passhat: Passhat, own_folder: Path) -> None:
    (own_folder / "dark.py").write_text("import nowhere_to_be_found\n")
    code, _, err = passhat("check-env", "dark:Lamp")
    assert code == 2
    assert "dark:Lamp: cannot be imported: ModuleNotFoundError: No module named 'nowhere_to_be_found'" in err


def test_suite_and_world_exclude_each_other(own_folder: Path) -> None:
    with pytest.raises(UsageError, match="expected either --suite or --world, found both"):
        check_environment("desk", suite="desk", world=own_folder / "w.json")


def test_a_world_file_has_to_be_there_and_to_hold_an_object(own_folder: Path) -> None:
    path = own_folder / "w.json"
    with pytest.raises(UsageError, match=r"w\.json: no such file"):
        check_environment("desk", world=path)
    path.write_text("[1]")
    with pytest.raises(InvalidFile, match=r"w\.json: found \[1\], expected an object"):
        check_environment("desk", world=path)


def test_the_desk_passes_in_worlds_of_every_template() -> None:
    document = check_environment("desk")
    assert set(states(document).values()) == {"pass"}
    assert document["worlds"] == 24
    assert [name for name, tool in document["tools"].items() if not tool["answered"]] == []


def test_a_suite_that_is_not_there_is_named_and_ends_with_2(passhat: Passhat) -> None:
    code, _, err = passhat("check-env", "lamp:Lamp", "--suite", "nowhere.yaml")
    assert code == 2
    assert "nowhere.yaml: no such suite file" in err
