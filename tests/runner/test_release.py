import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from passhat.runner.errors import InvalidFile, UsageError
from passhat.runner.release import Release, check_release, load_release, load_releases


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder, entered; modules imported from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def save(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def problem(release: str) -> str:
    with pytest.raises(InvalidFile) as caught:
        check_release(load_release(release))
    return str(caught.value)


# Where releases come from


def test_a_release_file_is_read_with_flaws_in_both_forms(folder: Path) -> None:
    text = "agent: scripted\nflaws:\n  skip_verify: .06\n  loop: {p: 0.02, rho: 0.05}\nidentity: {model: m-1}\n"
    path = save(folder / "base.yaml", text)
    assert load_release(path) == Release(
        name="base",
        agent="scripted",
        flaws={"skip_verify": (0.06, 0.0), "loop": (0.02, 0.05)},
        identity={"model": "m-1"},
        folder=folder,
        path=Path(path),
    )


def test_a_release_file_may_name_the_release_and_a_python_agent(folder: Path) -> None:
    release = load_release(save(folder / "sub" / "base.yaml", "name: '1.4'\nagent: pkg.mod:run\n"))
    assert (release.name, release.kind, release.agent, release.folder) == (
        "1.4",
        "python",
        "pkg.mod:run",
        folder / "sub",
    )


@pytest.mark.parametrize(("text", "name"), [("new=my.agent:run", "new"), ("my.agent:run", "my.agent:run")])
def test_a_python_agent_may_be_named_on_the_command_line(folder: Path, text: str, name: str) -> None:
    assert load_release(text) == Release(
        name=name, agent="my.agent:run", flaws={}, identity={}, folder=folder, path=None
    )


def test_built_in_releases_are_scripted_and_differ() -> None:
    incumbent, candidate = load_releases(["incumbent", "candidate"])
    assert (incumbent.kind, candidate.kind) == ("scripted", "scripted")
    assert incumbent.flaws["no_escalate"] == (0.15, 0.25)
    assert candidate.flaws["forbidden_tool"] == (0.03, 0.20)
    assert incumbent.digest != candidate.digest
    check_release(incumbent)


@pytest.mark.parametrize("text", ["absent.yaml", "agent", "a:b:c", "name=", "x=a.yaml", "a b:c", ""])
def test_what_names_no_release_is_a_usage_error_that_lists_the_forms(folder: Path, text: str) -> None:
    with pytest.raises(UsageError, match="allowed are a release file, module:function, name=module:function"):
        load_release(text)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("agnt: scripted\n", ["1  agent: missing", "1  agnt: unknown key; did you mean agent?"]),
        ("agent: run\n", ['1  agent: found "run", expected module:function or scripted']),
        ("name: 3\nagent: scripted\n", ['1  name: found 3, expected a string; write "3"']),
        ("agent: a:b\nflaws: {loop: .1}\n", ['2  flaws: only the agent scripted has flaws, found agent "a:b"']),
        ("agent: scripted\nflaws:\n  loop: 1.5\n", ["3  flaws.loop: found 1.5, expected at most 1 or a mapping"]),
        ("agent: scripted\nflaws:\n  loop: {p: .1, roh: 0}\n", ["3  flaws.loop.roh: unknown key; did you mean rho?"]),
        ("agent: scripted\nflaws:\n  loop: yes\n", ['3  flaws.loop: found "yes", expected a number or a mapping']),
        ("agent: scripted\nidentity: {model: 4}\n", ['2  identity.model: found 4, expected a string; write "4"']),
    ],
)
def test_what_is_wrong_with_a_release_file_is_listed_with_its_lines(
    folder: Path, text: str, problems: list[str]
) -> None:
    path = save(folder / "r.yaml", text)
    with pytest.raises(InvalidFile) as caught:
        load_release(path)
    assert str(caught.value).replace(f"{path}:", "").split("\n") == problems


def test_an_unknown_flaw_is_refused_with_its_line_and_the_nearest_one(folder: Path) -> None:
    path = save(folder / "r.yaml", "agent: scripted\nflaws:\n  loop: .1\n  skip_verfy: .1\n")
    with pytest.raises(InvalidFile, match=r"r.yaml:4  flaws.skip_verfy: .*did you mean 'skip_verify'\?"):
        load_release(path)


def test_releases_of_one_campaign_have_names_that_differ(folder: Path) -> None:
    with pytest.raises(InvalidFile, match='x=b:run  release: string "x" is already at x=a:run'):
        load_releases(["x=a:run", "x=b:run"])
    with pytest.raises(InvalidFile, match='x =b:run  release: string "x " looks like string "x" at x=a:run'):
        load_releases(["x=a:run", "x =b:run"])
    with pytest.raises(InvalidFile, match="expected at least one character"):
        load_release("=a:run")


def test_the_digest_covers_what_the_file_says_but_its_name_and_formatting(folder: Path) -> None:
    reference = load_release(save(folder / "a.yaml", "agent: scripted\nflaws: {loop: .5, skip_verify: .1}\n")).digest
    same = "# note\nname: other\nflaws:\r\n  skip_verify: {rho: 0, p: 1e-1}\r\n  loop: 0.50\r\nagent: 'scripted'\n"
    assert load_release(save(folder / "b.yaml", same)).digest == reference
    assert reference.startswith("sha256:")
    others = [
        "agent: scripted\nflaws: {loop: .5}\n",
        "agent: scripted\nflaws: {loop: .5, skip_verify: {p: .1, rho: .1}}\n",
        "agent: scripted\nflaws: {loop: .5, skip_verify: .1}\nidentity: {model: x}\n",
        "agent: a:b\n",
        "agent: a:c\n",
    ]
    digests = [load_release(save(folder / "c.yaml", text)).digest for text in others]
    assert len({reference, *digests}) == len(others) + 1


# Agents


def test_an_agent_is_found_beside_its_release_file_then_in_the_current_folder(folder: Path) -> None:
    save(folder / "releases" / "agent_beside.py", "def run(task, tools, ctx): ...\n")
    save(
        folder / "agent_here.py",
        "import agent_beside\n\nclass Agent:\n    def __call__(self, *_): ...\n\nrun = Agent()\n",
    )
    before = list(sys.path)
    for module in ("agent_beside", "agent_here"):
        check_release(load_release(save(folder / "releases" / "r.yaml", f"agent: {module}:run\n")))
    assert sys.path == before


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("def rnu(*_): ...\n", "agent_x:run: {file} has no run; did you mean rnu?"),
        ("def other(*_): ...\n", "agent_x:run: {file} has no run; allowed are other"),
        ("run = 3\n", "agent_x:run: found int, expected a function"),
        ("async def run(*_): ...\n", "agent_x:run: found an async function, expected an ordinary one"),
        ("1 / 0\n", "agent_x:run: cannot be imported: ZeroDivisionError: division by zero at {file}:1 in <module>"),
        (
            "\nimport no_such\n",
            "agent_x:run: cannot be imported: ModuleNotFoundError: No module named 'no_such' at {file}:2 in <module>",
        ),
        ("import sys\nsys.exit(0)\n", "agent_x:run: cannot be imported: SystemExit: 0 at {file}:2 in <module>"),
    ],
)
def test_an_agent_that_cannot_be_had_is_refused_with_the_reason(folder: Path, code: str, text: str) -> None:
    file = save(folder / "agent_x.py", code)
    assert problem("agent_x:run") == text.format(file=file)


def test_a_module_that_is_not_there_is_named_with_the_nearest_one(folder: Path) -> None:
    save(folder / "my_agent.py", "def run(*_): ...\n")
    assert problem("my_agnet:run") == (f"my_agnet:run: no module my_agnet in {folder}; did you mean my_agent?")


def test_a_broken_file_is_told_with_the_message_of_python(folder: Path) -> None:
    save(folder / "agent_x.py", "def run(:\n")
    assert problem("agent_x:run").startswith("agent_x:run: cannot be imported: SyntaxError: invalid syntax (agent_x.py")


def test_what_an_agent_prints_while_it_is_imported_stays_off_stdout(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(folder / "agent_x.py", "print('hello')\ndef run(*_): ...\n")
    check_release(load_release("agent_x:run"))
    assert capsys.readouterr() == ("", "hello\n")


def test_a_second_module_of_the_same_name_is_refused_rather_than_taken_for_the_first(folder: Path) -> None:
    for name in ("old", "new"):
        save(folder / name / "agent_x.py", "def run(*_): ...\n")
        save(folder / name / "r.yaml", f"name: {name}\nagent: agent_x:run\n")
    check_release(load_release("old/r.yaml"))
    check_release(load_release("old/r.yaml"))
    assert problem("new/r.yaml") == (
        f"agent_x:run: module agent_x of {folder}/new/agent_x.py cannot be used beside the one of "
        f"{folder}/old/agent_x.py; rename one"
    )


def test_an_error_while_an_agent_is_imported_shows_no_values_of_variables(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "sk-test-not-real")
    code = """\
import os

def connect():
    key = os.environ["JUDGE_API_KEY"]
    raise ConnectionError("the judge does not answer")

connect()
"""
    file = save(folder / "agent_x.py", code)
    assert os.environ["JUDGE_API_KEY"] == "sk-test-not-real"
    text = problem("agent_x:run")
    assert text == f"agent_x:run: cannot be imported: ConnectionError: the judge does not answer at {file}:5 in connect"
