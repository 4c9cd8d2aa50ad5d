"""What the driver does for a cluster: which hosts work, what they get a copy of, and what Prometheus hears."""

import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from passhat.runner import dispatch, launch
from passhat.runner.dispatch import RayBackend, RaySession
from passhat.runner.progress import Progress, Tally
from passhat.workers.order import Limits, WorkOrder

NODES = [
    {"NodeManagerHostname": "head", "Alive": True, "Resources": {"memory": 1.0}},
    {"NodeManagerHostname": "h2", "Alive": True, "Resources": {"CPU": 4.0}},
    {"NodeManagerHostname": "h3", "Alive": False, "Resources": {"CPU": 4.0}},
    {"NodeManagerHostname": "h2", "Alive": True, "Resources": {"CPU": 2.0}},
    {"NodeManagerHostname": "h1", "Alive": True, "Resources": {"CPU": 1.0}},
]


class FakeRay(ModuleType):
    """A cluster that notes how it was joined."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.joined: list[dict[str, Any]] = []
        self.nodes = lambda: NODES
        self.cluster_resources = lambda: {"CPU": 7.0}
        self.shutdown = lambda: None
        self.put = lambda value: value
        self.exceptions = SimpleNamespace(RayError=RuntimeError)

    def init(self, **settings: Any) -> None:
        self.joined.append(settings)


class Metric:
    """A counter or gauge that keeps what it was told."""

    made: dict[str, "Metric"]

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...] = ()) -> None:
        self.told: list[Any] = []
        self.tag_keys = tag_keys
        self.made[name] = self

    def inc(self, value: int, tags: dict[str, str] | None) -> None:
        assert value > 0
        assert tuple(tags or ()) == self.tag_keys
        self.told.append((*(tags or {}).values(), value))

    def set(self, value: float) -> None:
        self.told.append(value)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    actor = ModuleType("passhat.workers.actor")
    actor.Worker = SimpleNamespace(options=lambda **_: None)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "passhat.workers.actor", actor)
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_SCHEDULER_EVENTS", "RAY_ENABLE_UV_RUN_RUNTIME_ENV"):
        monkeypatch.setenv(name, "0")
    return fake


@pytest.fixture
def metrics(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> dict[str, Metric]:
    Metric.made = {}
    module = ModuleType("ray.util.metrics")
    module.Counter = module.Gauge = Metric  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray.util.metrics", module)
    return Metric.made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time as the backend sees it, which stands still until a test moves it."""
    fake = SimpleNamespace(now=100.0)
    monkeypatch.setattr(dispatch, "time", SimpleNamespace(monotonic=lambda: fake.now))
    return fake


def session(working_dir: Path | None = None) -> RaySession:
    joined = RaySession("10.0.0.1:6379", None, working_dir)
    try:
        assert joined.wait() == 7
    finally:
        joined.close()
    return joined


def backend() -> RayBackend:
    return RayBackend(WorkOrder("desk", (), (), 1, 0, "release", Limits()), 2)


# Hosts and what is on them


def test_hosts_that_have_processors_now_are_named_once(ray: FakeRay) -> None:
    assert session().hosts() == ["h1", "h2"]


def test_every_node_gets_a_copy_of_the_folder_that_is_named_and_of_no_other(ray: FakeRay) -> None:
    session()
    session(Path("/shared/agents"))
    environments = [settings.get("runtime_env") for settings in ray.joined]
    assert environments == [None, {"working_dir": "/shared/agents", "excludes": ["results/", "*.mpk", "*.trace"]}]


@pytest.mark.parametrize(
    ("working_dir", "seen"),
    [
        (None, ("/p/agents", "/p", "/elsewhere")),
        ("/p", ("agents", ".", "/elsewhere")),
        ("/p/agents", (".", "/p", "/elsewhere")),
    ],
)
def test_modules_in_the_copied_folder_are_looked_for_in_the_copy(
    working_dir: str | None, seen: tuple[str, ...]
) -> None:
    folders = ("/p/agents", "/p", "/elsewhere")
    assert launch._as_workers_see(folders, None if working_dir is None else Path(working_dir)) == seen


def test_hosts_whose_traces_will_not_be_here_are_named_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.socket, "gethostname", lambda: "h1")
    said = []
    for hosts in (["h1"], ["h1", "h2", "h3"]):
        progress = Progress([Tally("A", 1)], "title", io.StringIO())
        order = WorkOrder("desk", (), (), 1, 0, "release", Limits(), trace_dir="/r/c/traces")
        launch._warn_of_far_traces(SimpleNamespace(hosts=lambda hosts=hosts: hosts), order, progress)  # type: ignore[arg-type]
        said.append(progress._stream.getvalue())  # type: ignore[attr-defined]
    assert said[0] == ""
    assert said[1].startswith("traces of runs on h2, h3 stay there in /r/c/traces, ")


# What Prometheus hears


def test_counters_rise_by_what_came_since_and_at_most_once_a_second(
    metrics: dict[str, Metric], clock: SimpleNamespace
) -> None:
    a, b = Tally("A", 9, passed=4), Tally("B", 9)  # four were settled by a session before this one
    progress = Progress([a, b], "title", io.StringIO())
    told = backend()
    told.publish(progress)
    a.passed, b.failed, progress.retried = 6, 1, 2
    clock.now += 0.9
    told.publish(progress)
    assert metrics["passhat_runs_settled"].told == []
    clock.now += 1.1
    told.publish(progress)
    assert metrics["passhat_runs_settled"].told == [("A", "passed", 2), ("B", "failed", 1)]
    assert metrics["passhat_retries"].told == [(2,)]
    assert metrics["passhat_runs_per_second"].told == [0.0, 1.5]
    b.invalid = 1
    told._lost(0, RuntimeError("gone"))
    told.publish(progress, final=True)
    assert metrics["passhat_runs_settled"].told[2:] == [("B", "invalid", 1)]
    assert metrics["passhat_retries"].told == [(2,)]
    assert metrics["passhat_workers_lost"].told == [(1,)]
    assert metrics["passhat_runs_per_second"].told == [0.0, 1.5, 0.0]


def test_metrics_that_cannot_be_had_end_nothing_and_are_not_tried_again(
    metrics: dict[str, Metric], clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(self: Metric, value: float) -> None:
        asked.append(value)
        raise RuntimeError("no agent to send metrics to")

    monkeypatch.setattr(Metric, "set", refuse)
    told = backend()
    progress = Progress([Tally("A", 1)], "title", io.StringIO())
    for final in (False, False, True):
        told.publish(progress, final=final)
        clock.now += 5
    assert asked == [0.0]
