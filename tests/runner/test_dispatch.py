"""Both backends do what they are told and report what becomes of it; the Ray one against a Ray made of lists."""

import socket
import sys
from collections import deque
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from passhat.runner.dispatch import Data, Failed, InlineBackend, RayBackend, ray_address
from passhat.runner.errors import UsageError
from passhat.runner.schedule import ShardEnded, SlotLost, SlotReady
from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.frames import unpack_frame
from passhat.workers.host import Host
from passhat.workers.loading import WorkerError
from passhat.workers.order import AgentSpec, Limits, Shard, WorkOrder


def order(**settings: Any) -> WorkOrder:
    parts = {"tasks": DeskTasks(1, 4), "runs_per_task": 3, "seed": 7, "stream": "release", "limits": Limits()}
    return WorkOrder(**{"environment": "desk", "releases": (AgentSpec("A", "scripted"),), **parts, **settings})


def shard(number: int, first: int = 0, stop: int = 12) -> Shard:
    return Shard(number, first, stop, 1, 60.0)


# In this process


def test_in_this_process_a_shard_is_carried_out_when_its_arrivals_are_asked_for() -> None:
    backend = InlineBackend(work := order())
    assert backend.arrivals(0) == []
    backend.start(0)
    assert backend.arrivals(0) == [SlotReady(0)]
    backend.assign(0, shard(5, 0, 4))
    backend.assign(0, shard(6, 4, 12))
    seen = []
    while arrived := backend.arrivals(0):
        seen += arrived
    frames = [(arrival.shard, unpack_frame(arrival.frame)) for arrival in seen if isinstance(arrival, Data)]
    assert [arrival for arrival in seen if not isinstance(arrival, Data)] == [ShardEnded(0, 5), ShardEnded(0, 6)]
    assert all(number == frame.header.shard for number, frame in frames)
    records = [record.digest for _, frame in frames for record in frame.records]
    assert records == [one.record.digest for one in Host(work).run(shard(0))]
    assert backend.drain() == []
    backend.close()


def test_in_this_process_work_that_cannot_be_set_up_is_reported() -> None:
    backend = InlineBackend(order(environment="no_such_module:World"))
    backend.start(0)
    (failed,) = backend.arrivals(0)
    assert isinstance(failed, Failed)
    assert failed.cause.startswith("no_such_module:World: cannot import 'no_such_module'")
    backend.close()


def test_in_this_process_a_disk_error_is_reported_and_what_was_finished_is_still_there() -> None:
    Path("in the way").write_text("")
    flawed = (AgentSpec("A", "scripted", {"wrong_amount": (1.0, 0.0)}),)
    tasks = DeskTasks(1, 40, {"ambiguous": 1, "routine": 9})  # the flaw cannot happen in the first four
    work = order(releases=flawed, tasks=tasks, trace_dir=str(Path("in the way").resolve()), trace_every=2**70)
    first_failure = next(one.position for one in Host(order(releases=flawed, tasks=tasks)).run(shard(0, 0, 120))
                         if one.record.status)  # fmt: skip
    assert first_failure == 12
    backend = InlineBackend(work)
    backend.start(0)
    backend.arrivals(0)
    backend.assign(0, shard(0, 0, 120))
    seen = []
    while not any(isinstance(arrival, Failed) for arrival in seen):
        seen += backend.arrivals(0)
    kept = [arrival for arrival in [*seen, *backend.drain()] if isinstance(arrival, Data)]
    assert sum(unpack_frame(data.frame).header.runs for data in kept) == first_failure
    assert "File exists" in seen[-1].cause
    backend.close()


# Where Ray is


@pytest.mark.parametrize(
    ("given", "environment", "chosen"),
    [
        (None, None, "local"),
        ("10.0.0.1:6379", None, "10.0.0.1:6379"),
        (None, "10.0.0.2:6379", "10.0.0.2:6379"),
        ("local", "10.0.0.2:6379", "local"),
        ("auto", None, "auto"),
    ],
)
def test_the_address_of_the_command_line_goes_before_that_of_the_environment(
    given: str | None, environment: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if environment is not None:
        monkeypatch.setenv("RAY_ADDRESS", environment)
    assert ray_address(given) == chosen


def test_ray_client_is_refused_by_name_wherever_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"--address ray://head:10001: Ray Client cannot stream.*ray job submit"):
        ray_address("ray://head:10001")
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(UsageError, match="ray://head:10001"):
        ray_address(None)


# On Ray


class RayError(Exception):
    """Base of what Ray raises."""


class TaskError(RayError, WorkerError):
    """How Ray hands on an error of ours."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("a long text with Ray's own traceback")
        self.cause = cause


class Ref:
    """An answer of an actor, there or still to come."""

    def __init__(self, value: Any = None, *, is_ready: bool = True) -> None:
        self.value = value
        self.is_ready = is_ready


class Stream:
    """A generator of answers; None stands for its end."""

    def __init__(self) -> None:
        self.answers: deque[Any] = deque()

    @property
    def is_ready(self) -> bool:
        return bool(self.answers)

    def __next__(self) -> Ref:
        answer = self.answers.popleft()
        if answer is None:
            raise StopIteration
        return Ref(answer)


class Actor:
    def __init__(self, order: Any, slot: int) -> None:
        self.slot = slot
        self.place = Ref(("host", 100 + slot), is_ready=False)
        self.streams: list[Stream] = []
        self.shards: list[tuple[Any, ...]] = []
        self.ready = SimpleNamespace(remote=lambda: self.place)
        self.run = SimpleNamespace(remote=self._run)

    def _run(self, given: tuple[Any, ...]) -> Stream:
        self.shards.append(given)
        self.streams.append(Stream())
        return self.streams[-1]


class FakeRay(ModuleType):
    def __init__(self) -> None:
        super().__init__("ray")
        self.exceptions = SimpleNamespace(RayError=RayError)
        self.actors: list[Actor] = []
        self.killed: list[Actor] = []
        self.options: dict[str, Any] = {}
        self.waited: list[list[Any]] = []

    def put(self, value: Any) -> Any:
        return value

    def get(self, ref: Ref) -> Any:
        if isinstance(ref.value, Exception):
            raise ref.value
        return ref.value

    def wait(
        self, refs: list[Any], *, num_returns: int, timeout: float, fetch_local: bool
    ) -> tuple[list[Any], list[Any]]:
        self.waited.append(refs)
        ready = [ref for ref in refs if ref.is_ready][:num_returns]
        return ready, [ref for ref in refs if ref not in ready]

    def kill(self, actor: Actor) -> None:
        self.killed.append(actor)

    def worker(self, **options: Any) -> Any:
        self.options = options

        def remote(*arguments: Any) -> Actor:
            self.actors.append(Actor(*arguments))
            return self.actors[-1]

        return SimpleNamespace(remote=remote)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    actor = ModuleType("passhat.workers.actor")
    actor.Worker = SimpleNamespace(options=fake.worker)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "passhat.workers.actor", actor)
    return fake


def started(ray: FakeRay, slots: int = 2) -> RayBackend:
    backend = RayBackend(order(), slots)
    for slot in range(slots):
        backend.start(slot)
    for actor in ray.actors:
        actor.place.is_ready = True
    assert backend.arrivals(0) == [SlotReady(slot) for slot in range(slots)]
    return backend


def test_every_slot_is_an_actor_and_says_where_it_is(ray: FakeRay) -> None:
    backend = RayBackend(order(), 2)
    assert backend.arrivals(0) == []
    backend.start(0)
    backend.start(1)
    assert backend.arrivals(0) == []
    ray.actors[1].place.is_ready = True
    assert backend.arrivals(0) == [SlotReady(1)]
    assert backend.places == {1: ("host", 101)}
    assert ray.options == {"scheduling_strategy": "SPREAD"}


def test_frames_and_ends_arrive_one_a_slot_and_round(ray: FakeRay) -> None:
    backend = started(ray)
    for slot in range(2):
        backend.assign(slot, shard(slot))
        backend.assign(slot, shard(slot + 2))
    assert ray.actors[0].shards == [tuple(shard(0)), tuple(shard(2))]
    ray.actors[0].streams[0].answers += [b"0a", b"0b", None]
    ray.actors[1].streams[0].answers += [b"1a"]
    ray.actors[0].streams[1].answers += [b"2a"]
    rounds = [backend.arrivals(0) for _ in range(5)]
    assert rounds == [
        [Data(0, 0, b"0a"), Data(1, 1, b"1a")],
        [Data(0, 0, b"0b")],
        [ShardEnded(0, 0)],
        [Data(0, 2, b"2a")],
        [],
    ]


def test_what_a_lost_worker_had_sent_arrives_before_the_news_of_its_loss(ray: FakeRay) -> None:
    """Calls that wait behind the running one fail at once, when frames of the running one are still unread."""
    backend = started(ray)
    backend.assign(0, shard(0))
    backend.assign(0, shard(1))
    ray.actors[0].streams[0].answers += [b"a", b"b", RayError("long story\nthe worker died")]
    ray.actors[0].streams[1].answers += [RayError("long story\nthe worker died")]
    rounds = [backend.arrivals(0) for _ in range(4)]
    assert rounds == [[Data(0, 0, b"a")], [Data(0, 0, b"b")], [SlotLost(0, "RayError: the worker died")], []]
    assert ray.killed == [ray.actors[0]]


def test_a_shard_for_a_worker_whose_loss_is_still_to_be_heard_of_is_let_go(ray: FakeRay) -> None:
    backend = started(ray)
    backend.assign(0, shard(0))
    ray.actors[0].streams[0].answers.append(RayError("died"))
    backend.arrivals(0)
    backend.assign(0, shard(1))
    assert len(ray.actors[0].shards) == 1
    assert backend.arrivals(0) == []


def test_a_worker_that_does_not_come_up_is_lost(ray: FakeRay) -> None:
    backend = RayBackend(order(), 1)
    for text, shown in [("no memory", "RayError: no memory"), ("", "RayError: ")]:
        backend.start(0)
        ray.actors[-1].place.value, ray.actors[-1].place.is_ready = RayError(text), True
        assert backend.arrivals(0) == [SlotLost(0, shown)]
    assert ray.killed == ray.actors


def test_nothing_arrives_any_more_from_a_worker_that_was_replaced(ray: FakeRay) -> None:
    backend = started(ray, 1)
    backend.assign(0, shard(0))
    ray.actors[0].streams[0].answers.append(b"late")
    backend.start(0)
    assert backend.arrivals(0) == []
    assert ray.killed == [ray.actors[0]]
    ray.actors[1].place.is_ready = True
    assert backend.arrivals(0) == [SlotReady(0)]


def test_work_that_cannot_be_done_is_reported_in_our_own_words(ray: FakeRay) -> None:
    backend = started(ray, 1)
    backend.assign(0, shard(0))
    ray.actors[0].streams[0].answers.append(TaskError(WorkerError("agent:run: cannot import 'agent'")))
    assert backend.arrivals(0) == [Failed("agent:run: cannot import 'agent' (on host)")]
    backend.assign(0, shard(1))
    backend.places[0] = (socket.gethostname(), 1)
    ray.actors[0].streams[0].answers.clear()
    ray.actors[0].streams[0].answers.append(TaskError(WorkerError("agent:run: cannot import 'agent'")))
    assert backend.arrivals(0) == [Failed("agent:run: cannot import 'agent'")]


def test_draining_returns_every_frame_that_is_there_and_waits_for_none(ray: FakeRay) -> None:
    backend = started(ray)
    for slot in range(2):
        backend.assign(slot, shard(slot))
    backend.assign(0, shard(2))
    ray.actors[0].streams[0].answers += [b"a", b"b", None]
    ray.actors[0].streams[1].answers += [b"d"]
    ray.actors[1].streams[0].answers += [b"c", RayError("died")]
    assert backend.drain() == [Data(0, 0, b"a"), Data(1, 1, b"c"), Data(0, 0, b"b"), Data(0, 2, b"d")]


def test_closing_ends_every_worker_once(ray: FakeRay) -> None:
    backend = started(ray)
    backend.close()
    backend.close()
    assert ray.killed == ray.actors
