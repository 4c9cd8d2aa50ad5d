"""The simulated cluster: small campaigns worked out by hand, laws that hold whatever fails, and what is claimed."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passhat.runner.machines import Arrival, Cluster, Costs, Ledger, Machines
from passhat.runner.schedule import FrameArrived, ShardEnded, SlotLost, SlotReady
from passhat.runner.simulation import Prediction, episode_seconds, simulate
from passhat.workers.order import Shard

FREE = Costs()
SHARES = ("utilisation", "overhead", "wasted", "down", "starved", "tail")
# of the order of what tests/benchmarks/cluster_simulation.py finds; half as much again
PRICES = Costs(
    look=4e-5, look_at_worker=4e-6, frame=5e-4, record=4e-6, assign=3e-4, shard_end=5e-4, start=3e-4, sync=5e-3,
    run=1e-4, shard=3e-3,
)  # fmt: skip


def shares(found: Prediction) -> dict[str, float]:
    return {name: getattr(found, name) for name in SHARES}


# Worked out by hand; all times are sums of powers of two, and exact


def test_runs_on_one_free_worker_take_as_long_as_they_take() -> None:
    found = simulate([0.25, 0.5, 0.125, 1.0], Cluster(1), FREE)
    assert (found.seconds, found.utilisation, found.first_record_s) == (1.875, 1.0, 0.25)
    assert (found.scored, found.executions, found.frames, found.shards) == (4, 4, 4, 4)


def test_two_runs_step_by_step() -> None:
    """Every step of the driver takes 1/16 s, every way 1/8 s, the start of a worker 1 s.

    0.0625 asked for a worker, 1.0625 it is up, 1.1875 known, 1.25 taken in, 1.3125 and 1.375 a run handed out each;
    1.4375 to 1.9375 and on to 2.4375 at work; 2.0625 first frame there, 2.125 taken in, 2.1875 the end of its shard;
    2.5625 second frame there, 2.625 taken in.
    """
    step = 1 / 16
    costs = Costs(frame=step, assign=step, shard_end=step, start=step)
    found = simulate([0.5, 0.5], Cluster(1, latency_s=1 / 8, start_s=1.0), costs)
    assert (found.seconds, found.first_record_s, found.driver_s) == (2.625, 2.125, 7 * step)
    assert {name: share * 2.625 for name, share in shares(found).items()} == pytest.approx(
        {"utilisation": 1.0, "overhead": 0.0, "wasted": 0.0, "down": 1.0625, "starved": 0.375, "tail": 0.1875}
    )


def test_looks_are_paid_for_each_worker_that_is_heard_of() -> None:
    """Looks of 3/8 s find both workers up, their first frames, the ends of these shards, their second frames.

    Two runs each, from 0.375 to 0.875 and on to 1.375; the second look begins when there is something to find.
    """
    found = simulate([0.5] * 4, Cluster(2), Costs(look=1 / 8, look_at_worker=1 / 8))
    assert (found.seconds, found.upkeep_s, found.driver_s) == (2.0, 1.5, 0.0)


def test_a_frame_takes_its_time_on_the_line() -> None:
    found = simulate([0.5], Cluster(1, bytes_per_s=1000.0, record_bytes=500), FREE)
    assert (found.seconds, found.utilisation) == (1.0, 0.5)


def test_frames_queue_for_the_line() -> None:
    """Four frames of half a second each, sent by four workers at once."""
    found = simulate([0.5] * 4, Cluster(4, bytes_per_s=1000.0, record_bytes=500), FREE)
    assert (found.seconds, found.first_record_s) == (2.5, 1.0)


def test_workers_are_placed_one_after_the_other() -> None:
    """The fourth comes up at 2 s."""
    assert simulate([1.0] * 4, Cluster(4, starts_per_s=2.0), FREE).seconds == 3.0


def test_what_surrounds_runs_and_shards_is_overhead() -> None:
    found = simulate([0.5] * 4, Cluster(1), Costs(run=0.25, shard=0.125))
    assert (found.seconds, found.utilisation, found.overhead) == (3.5, 2 / 3.5, 1.5 / 3.5)


def arrivals(machines: Machines, until: float) -> list[tuple[float, Arrival]]:
    """Return what arrives, with the time."""
    now, arrived = 0.0, []
    while (now := machines.wait(now)) <= until:
        arrived += [(now, arrival) for arrival in machines.take()]
        if isinstance(arrived[-1][1], ShardEnded | SlotLost):
            break
    return arrived


def machines_with(shard: Shard, *, cluster: Cluster = Cluster(1)) -> Machines:  # noqa: B008 - frozen
    machines = Machines([1 / 32] * 64, cluster, FREE, Random(0), Ledger())
    machines.start(0, 0.0)
    assert machines.wait(0.0) == 0.0
    assert machines.take() == [SlotReady(0)]
    machines.assign(0, shard, 0.0)
    return machines


def test_a_frame_holds_what_ended_while_the_first_of_it_waited() -> None:
    """Runs of 1/32 s, a frame every 4/32 s: the first run goes at once, the last ones with the end of the shard."""
    machines = machines_with(Shard(7, 0, 16, 1, 10.0, 4 / 32))
    sent = [(1, 0, 1), (5, 1, 4), (9, 5, 4), (13, 9, 4), (16, 13, 3)]
    assert arrivals(machines, 1.0) == [
        *((at / 32, FrameArrived(0, 7, first, runs, runs / 32)) for at, first, runs in sent[:1]),
        *((at / 32, FrameArrived(0, 7, first, runs, 4 / 32)) for at, first, runs in sent[1:4]),
        (0.5, FrameArrived(0, 7, 13, 3, 3 / 32)),
        (0.5, ShardEnded(0, 7)),
    ]


def test_a_frame_that_is_full_does_not_wait() -> None:
    machines = machines_with(Shard(7, 0, 5, 1, 10.0, 4.0), cluster=Cluster(1, record_bytes=32 << 10))
    assert [(at, arrival.runs) for at, arrival in arrivals(machines, 1.0) if isinstance(arrival, FrameArrived)] == [
        (1 / 32, 1), (3 / 32, 2), (5 / 32, 2),
    ]  # fmt: skip


def test_a_shard_is_left_off_when_its_time_is_used_up() -> None:
    """The fourth run of 1/32 s is the first to end after 0.1 s."""
    machines = machines_with(Shard(7, 8, 64, 1, 0.1, 4.0))
    assert arrivals(machines, 1.0)[-2:] == [
        (4 / 32, FrameArrived(0, 7, 9, 3, 3 / 32)),
        (4 / 32, ShardEnded(0, 7)),
    ]


def test_a_lost_worker_takes_along_what_it_has_not_sent() -> None:
    """Lost within a quarter of a second or so, noticed two seconds later; nothing of it comes in between."""
    cluster = Cluster(1, losses_per_hour=4 * 3600.0, loss_noticed_s=2.0)
    machines = machines_with(Shard(7, 0, 64, 1, 100.0, 0.125), cluster=cluster)
    *frames, (at, last) = arrivals(machines, 100.0)
    assert last == SlotLost(0, "was lost")
    kept = sum(frame.runs for _, frame in frames if isinstance(frame, FrameArrived))
    assert 0 < kept < 64
    assert kept < machines.executions <= kept + 5
    assert at - 2.0 > frames[-1][0]


# Laws


@settings(max_examples=150, deadline=None)
@given(
    runs=st.integers(0, 300),
    workers=st.integers(1, 20),
    workers_per_node=st.integers(1, 8),
    shape=st.sampled_from(["constant", "lognormal", "heavy tail"]),
    mean_s=st.sampled_from([1e-4, 0.02, 1.0, 60.0]),
    losses=st.sampled_from([0.0, 10.0, 600.0]),
    node_losses=st.sampled_from([0.0, 10.0, 200.0]),
    invalid_share=st.sampled_from([0.0, 0.01, 0.5]),
    max_attempts=st.integers(1, 3),
    costs=st.sampled_from([FREE, PRICES]),
    seed=st.integers(0, 2**32),
)
def test_every_run_is_settled_once_and_all_time_is_accounted_for_whatever_fails(
    runs: int, workers: int, workers_per_node: int, shape: str, mean_s: float, losses: float, node_losses: float,
    invalid_share: float, max_attempts: int, costs: Costs, seed: int,
) -> None:  # fmt: skip
    """That none is settled twice the simulation asserts itself."""
    cluster = Cluster(
        workers, latency_s=0.001, bytes_per_s=1e6, start_s=0.5, starts_per_s=10.0, workers_per_node=workers_per_node,
        losses_per_hour=losses, node_losses_per_hour=node_losses, node_loss_noticed_s=5.0, node_returns_s=20.0,
        invalid_share=invalid_share,
    )  # fmt: skip
    seconds = episode_seconds(shape, mean_s, runs, seed)  # type: ignore[arg-type]
    found = simulate(seconds, cluster, costs, max_attempts=max_attempts, seed=seed)
    assert found.gave_up is None or losses or node_losses
    assert found.scored + found.invalid <= runs
    assert found.gave_up is not None or found.scored + found.invalid == runs
    assert found.executions >= found.scored
    if not (losses or node_losses):
        assert (found.lost_attempts, found.lost_workers) == (0, 0)
        assert runs <= found.executions <= runs * max_attempts
        assert invalid_share or (found.scored, found.executions) == (runs, runs)
    if runs:
        assert sum(shares(found).values()) == pytest.approx(1.0)
    assert min(shares(found).values()) >= -1e-9
    assert found == simulate(seconds, cluster, costs, max_attempts=max_attempts, seed=seed)


@settings(max_examples=100, deadline=None)
@given(
    seconds=st.lists(st.floats(0.001, 100.0), min_size=1, max_size=200), workers=st.integers(1, 16)
)  # fmt: skip
def test_no_campaign_is_shorter_than_its_work_or_its_longest_run(seconds: list[float], workers: int) -> None:
    found = simulate(seconds, Cluster(workers), FREE)
    least_s = max(sum(seconds) / workers, max(seconds))
    assert found.seconds >= least_s * (1 - 1e-9)
    assert found.utilisation == pytest.approx(sum(seconds) / workers / found.seconds)


@pytest.mark.parametrize("shape", ["constant", "lognormal"])
def test_where_nothing_costs_anything_the_use_of_workers_goes_to_one(shape: str) -> None:
    used = [
        simulate(episode_seconds(shape, 1.0, 20 * each, 1), Cluster(20), FREE).utilisation  # type: ignore[arg-type]
        for each in (2, 20, 200, 2000)
    ]
    assert used == sorted(used)
    assert used[-1] > 0.99


def test_one_free_worker_is_used_all_the_time() -> None:
    found = simulate(episode_seconds("heavy tail", 0.02, 5000, 1), Cluster(1), FREE)
    assert shares(found) == pytest.approx(dict.fromkeys(SHARES, 0.0) | {"utilisation": 1.0}, abs=1e-9)


@pytest.mark.parametrize("shape", ["constant", "lognormal", "heavy tail"])
def test_episodes_have_the_mean_that_was_asked_for(shape: str) -> None:
    """The heavy tail is cut at a hundred times the mean, which takes a mean excess of a seventeenth off."""
    expected = {"constant": 3.0, "lognormal": 3.0, "heavy tail": 3.0 - 3.0 * 2 * (1 / 3) ** 1.5 * 100**-0.5}
    drawn = episode_seconds(shape, 3.0, 200_000, 5)  # type: ignore[arg-type]
    assert sum(drawn) / len(drawn) == pytest.approx(expected[shape], rel=0.02)
    assert max(drawn) <= 300.0


# What is claimed


def test_a_driver_takes_in_no_more_than_it_can() -> None:
    """At a millisecond a record it is full at a thousand a second, however many workers send."""
    costs = Costs(record=1e-3)
    idle = simulate([1 / 8] * 2000, Cluster(10), costs)
    assert idle.driver_limit == pytest.approx(1000.0)
    full = simulate([1 / 8] * 20_000, Cluster(1000), costs)
    assert full.driver_limit == pytest.approx(1000.0)
    assert 900 < full.planned / full.seconds <= 1000.0
    assert full.driver_share > 0.9


def test_a_thousand_workers_are_used_to_nine_tenths_by_episodes_of_a_second() -> None:
    """Half a second to one and a half, a hundred a worker, with what things cost and what workers take to start."""
    random = Random(1)
    seconds = [random.uniform(0.5, 1.5) for _ in range(100_000)]
    cluster = Cluster(1000, latency_s=0.0005, bytes_per_s=1.25e9, start_s=1.5, starts_per_s=550.0)
    found = simulate(seconds, cluster, PRICES)
    assert found.scored == 100_000
    assert found.utilisation >= 0.9
    assert found.driver_share < 0.75
