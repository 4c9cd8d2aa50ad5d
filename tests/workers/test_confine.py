"""An environment in a process of its own answers like one in this process; nothing it sends is more than data."""

import itertools
import os
from textwrap import dedent

import pytest

from passhat.workers.confine import OTHER_VARIABLES, CannotStart, Remote, RemoteEnvironment, obstacle
from passhat.workers.desk import Desk
from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.environment import Principal, Receipt, ToolResult
from passhat.workers.guard import Ledger
from passhat.workers.records import Reason
from passhat.workers.replay import Script, play
from passhat.workers.session import EnvironmentFault

_names = itertools.count()

WORLD = """
    import os
    from passhat.workers.environment import Breach, Effect, EnvSpec, Receipt, ToolResult, ToolSpec

    def into_the_channel(data):
        for fd in range(3, 32):
            try:
                os.write(fd, data)
            except OSError:
                pass

    class World:
        spec = EnvSpec("world", "2", (ToolSpec("do", "does", {"type": "object"}, "write", terminal=True),))

        def reset(self, *, seed, options):
            self.calls, self.options = 0, options

        def call(self, name, arguments, *, principal):
            self.calls += 1
            what = eval(arguments["what"])
            receipt = Receipt("R-1", name, principal.user, "mac", self.calls, "digest")
            return ToolResult({"what": what}, receipt=receipt)

        def effects(self):
            return [Effect("rows", "k", "n", None, {"calls": self.calls}, self.calls)]

        def invariants(self):
            return [Breach("sum", "off", process=True)]

        def state_digest(self):
            return self.calls.to_bytes(8, "big")

        def facts(self):
            return self.calls

        def virtual_ms(self):
            return 10 * self.calls

        def close(self):
            pass
"""
WHO = Principal("u", "acme", "clerk")


@pytest.fixture
def remote(tmp_path):
    """Start the process of an environment, by source; end it with the test."""
    started = []

    def start(source=WORLD, factory="World", **settings):
        name = f"remote_world_{next(_names)}"
        (tmp_path / f"{name}.py").write_text(dedent(source))
        started.append(Remote(f"{name}:{factory}", [str(tmp_path)], **{"confined": False, "limit_s": 20.0, **settings}))
        return started[-1]

    yield start
    for one in started:
        one.close()


def resident(remote, instance=0):
    environment = RemoteEnvironment(remote, instance, Ledger())
    environment.reset(seed=1, options={})
    return environment


def do(environment, what):
    return environment.call("do", {"what": what}, principal=WHO)


def test_every_answer_arrives_whole(remote):
    environment = resident(remote())
    (tool,) = environment.spec.tools
    assert (environment.spec.name, environment.spec.version) == ("world", "2")
    assert (tool.name, tool.description, tool.input_schema) == ("do", "does", {"type": "object"})
    assert (tool.effect, tool.terminal) == ("write", True)
    answer = do(environment, "[1, 2.5, None, {'é': True}]")
    receipt = Receipt("R-1", "do", "u", "mac", 1, "digest")
    assert answer == ToolResult({"what": [1, 2.5, None, {"é": True}]}, receipt=receipt)
    (effect,) = environment.effects()
    assert (effect.after, effect.call) == ({"calls": 1}, 1)
    assert [(breach.invariant, breach.process) for breach in environment.invariants()] == [("sum", True)]
    assert environment.state_digest() == (1).to_bytes(8, "big")
    assert (environment.facts(), environment.virtual_ms()) == (1, 10)
    do(environment, "0")
    assert environment.effects()[0].after == {"calls": 2}
    assert (environment.facts(), environment.virtual_ms()) == (2, 20)


def test_the_desk_says_the_same_there_as_here(remote):
    there = Remote("desk", (), confined=False, variables=OTHER_VARIABLES, limit_s=20.0)
    far = RemoteEnvironment(there, 0, Ledger())
    for task in DeskTasks(1, 12):
        script = Script(5, task.world, task.principal, [(step.tool, step.arguments) for step in task.oracle[:2]])
        said = list(play(Desk(), script))
        assert list(play(far, script)) == said
        assert not isinstance(said[-1], str) or "KeyError" not in said[-1]
    far.close()


def test_instances_in_one_process_do_not_share_their_world(remote):
    process = remote()
    one, other = resident(process), resident(process, 1)
    do(one, "0")
    do(one, "0")
    do(other, "0")
    assert (one.facts(), other.facts()) == (2, 1)


def test_an_error_there_is_the_environments_error_with_its_place(remote):
    environment = resident(remote())
    with pytest.raises(
        EnvironmentFault, match=r"ZeroDivisionError: division by zero at <string>:1 in <module>"
    ) as fault:
        do(environment, "1 / 0")
    assert fault.value.reason is Reason.ENVIRONMENT_ERROR
    assert do(environment, "'still there'")["what"] == "still there"


def test_what_is_no_data_is_refused_there(remote):
    environment = resident(remote())
    with pytest.raises(EnvironmentFault, match="what the environment answered is no data"):
        do(environment, "object()")
    assert do(environment, "1")["what"] == 1


@pytest.mark.parametrize(
    "garbage",
    [b"\xc1", b"\x93\xc3\x01", b"\x01\x02", b"\x80", b"\x93\xc3\xc0\x91\x91\xc0", b"cos\nsystem\n(S'touch owned'\ntR."],
)
def test_whatever_it_writes_into_the_channel_is_an_error_of_that_run_alone(remote, tmp_path, garbage):
    environment = resident(remote(limit_s=2.0))

    def speak():
        do(environment, f"into_the_channel({garbage!r})")
        environment.effects()

    with pytest.raises((EnvironmentFault, TypeError, ValueError)):
        speak()
    assert not (tmp_path / "owned").exists()
    environment.reset(seed=1, options={})
    assert do(environment, "1")["what"] == 1


def test_after_its_end_it_is_started_again_by_the_next_reset_alone(remote):
    environment = resident(remote())
    with pytest.raises(EnvironmentFault, match="ended: exit code 7"):
        do(environment, "os._exit(7)")
    with pytest.raises(EnvironmentFault, match="the process of the environment has ended"):
        do(environment, "1")
    environment.reset(seed=1, options={})
    assert do(environment, "self.calls")["what"] == 1


def test_one_that_hangs_is_ended_at_its_limit(remote):
    environment = resident(remote(limit_s=0.3))
    with pytest.raises(EnvironmentFault, match=r"did not answer call within 0\.3 s") as fault:
        do(environment, "__import__('time').sleep(60)")
    assert fault.value.reason is Reason.ENVIRONMENT_TIMEOUT


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise OSError('no licence')", "cannot import .*OSError: no licence"),
        ("def World(): raise RuntimeError('not today')", "the environment cannot be set up: RuntimeError: not today"),
        ("import os; os._exit(9)", "the process of the environment ended: exit code 9"),
    ],
)
def test_an_environment_that_cannot_be_set_up_says_why(remote, source, why):
    with pytest.raises(CannotStart, match=why):
        resident(remote(source))


def test_what_keeps_from_confining_is_told_in_bubblewraps_own_words(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert obstacle() == "bubblewrap (bwrap) is not installed here; it comes with the package bubblewrap"
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    refusing.chmod(0o755)
    assert obstacle() == "bwrap: setting up uid map: Permission denied"
    assert os.environ["PATH"] == str(tmp_path)
