"""Seeds depend on what is run and on nothing else."""

import hashlib
import itertools
import random
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from passhat.workers.seeds import agent_seed, derive, env_seed, stream

TASK = bytes(range(32))
_parts = st.lists(st.text(max_size=4) | st.binary(max_size=4), max_size=4)


def by_hand(*parts: bytes) -> int:
    prefixed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return int.from_bytes(hashlib.blake2b(prefixed, digest_size=8, person=b"passhat-seed-1").digest(), "big")


def test_the_environment_seed_is_blake2b_over_length_prefixed_parts() -> None:
    assert env_seed(7, TASK, 3) == by_hand(b"env", b"7", TASK, b"3") == 12368777651216758888


def test_the_agent_seed_has_the_stream_in_it() -> None:
    expected = by_hand(b"agent", b"7", TASK, b"3", b"candidate")
    assert agent_seed(7, TASK, 3, "candidate") == expected == 15607408703526116310


@given(one=_parts, other=_parts)
def test_different_parts_give_different_seeds(one: list[str | bytes], other: list[str | bytes]) -> None:
    def encoded(parts: list[str | bytes]) -> list[bytes]:
        return [part if isinstance(part, bytes) else part.encode() for part in parts]

    assert (derive("x", *one) == derive("x", *other)) == (encoded(one) == encoded(other))


def test_parts_do_not_run_into_one_another() -> None:
    assert len({derive("p", "ab", "c"), derive("p", "a", "bc"), derive("p", "abc"), derive("pa", "bc")}) == 4


def test_a_larger_grid_changes_no_seed_of_a_smaller_one() -> None:
    def seeds(tasks: int, runs: int) -> dict[tuple[int, int], int]:
        cells = itertools.product(range(tasks), range(runs))
        return {(task, run): env_seed(1, task.to_bytes(8, "big"), run) for task, run in cells}

    small, large = seeds(3, 2), seeds(50, 20)
    assert small.items() <= large.items()
    assert len(set(large.values())) == 50 * 20


def test_releases_share_the_environment_and_have_noise_of_their_own() -> None:
    """An environment seed names no release; agents differ unless they share a stream."""
    seeds = {agent_seed(0, TASK, 0, name) for name in ("A", "B", "common")}
    assert len(seeds | {env_seed(0, TASK, 0)}) == 4


def test_the_same_on_every_machine_and_in_every_process() -> None:
    code = f"from passhat.workers.seeds import *; print(env_seed(1, {TASK!r}, 2), agent_seed(1, {TASK!r}, 2, 'é'))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": salt}, capture_output=True, text=True, check=True
        ).stdout
        for salt in ("1", "2")
    }
    assert printed == {f"{env_seed(1, TASK, 2)} {agent_seed(1, TASK, 2, 'é')}\n"}


def test_seeds_leave_the_global_generator_alone() -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    stream(5, "tasks").random()
    env_seed(1, TASK, 0)
    assert random.random() == expected


def test_a_draw_from_one_stream_shifts_no_other() -> None:
    expected = stream(5, "b").random()
    stream(5, "a").random()
    assert stream(5, "b").random() == expected
    assert stream(5, "a").random() != expected
