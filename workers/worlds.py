"""Where a worker's environment lives, by the hermetic level asked for, and the stages on which runs are replayed.

Level 0 and 1 are this process, level 2 is one under bubblewrap. A level that cannot be had here ends the work before
the first run, unless the campaign allows to go without; records then say what was had.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from passhat.workers.confine import OTHER_VARIABLES, CannotStart, Remote, RemoteEnvironment, obstacle
from passhat.workers.environment import Environment
from passhat.workers.guard import VARIABLES, Guard, Ledger
from passhat.workers.loading import DESK, WorkerError, build_environment
from passhat.workers.order import Hermetic, WorkOrder
from passhat.workers.records import Level
from passhat.workers.replay import Stage

_TWIN = "replayed by a second instance"
_OTHER = "replayed in a process with other hash seed, time zone, locale and folder"


@dataclass(frozen=True, slots=True)
class HostedWorld:
    """An environment with what guards it."""

    level: Level  # achieved
    environment: Environment
    guard: Ledger
    stages: tuple[Stage, ...]


def achievable(hermetic: Hermetic) -> Level:
    """Return the level that the environment gets here; raise WorkerError when it is less than may be done with."""
    wanted = hermetic.environment
    problem = obstacle() if wanted == Level.CONFINED else None
    if problem is None:
        return wanted
    if not hermetic.allow_degraded:
        raise WorkerError(f"hermetic level confined cannot be had here: {problem}")
    return Level.GUARDED


def build_world(order: WorkOrder, *, is_child: bool) -> HostedWorld:
    """Set up the environment of a work order; raise WorkerError when it cannot be."""
    level = achievable(order.hermetic)
    replayed = order.hermetic.replay_every > 0 and level >= Level.GUARDED
    other = None
    if replayed and is_child and order.environment != DESK:  # the desk's own tests show that it repeats
        other = _remote(order, confined=level == Level.CONFINED, variables=OTHER_VARIABLES)
    try:
        world = _confined(order, replayed) if level == Level.CONFINED else _in_process(order, level, replayed)
        if other is None:
            return world
        stage = Stage(_OTHER, *_resident(other, 0))
        return HostedWorld(world.level, world.environment, world.guard, (*world.stages, stage))
    except CannotStart as error:
        if other is not None:
            other.close()
        raise WorkerError(f"{order.environment}: {error}") from None


def _in_process(order: WorkOrder, level: Level, replayed: bool) -> HostedWorld:
    kind = Guard if level == Level.GUARDED else Ledger
    environment = build_environment(order.environment)
    stages = (Stage(_TWIN, build_environment(order.environment), kind()),) if replayed else ()
    return HostedWorld(level, environment, kind(), stages)


def _confined(order: WorkOrder, replayed: bool) -> HostedWorld:
    remote = _remote(order, confined=True)
    environment, guard = _resident(remote, 0)
    stages = (Stage(_TWIN, *_resident(remote, 1)),) if replayed else ()
    return HostedWorld(Level.CONFINED, environment, guard, stages)


def _remote(order: WorkOrder, *, confined: bool, variables: Mapping[str, str] = VARIABLES) -> Remote:
    return Remote(
        order.environment, order.sys_path, confined=confined, variables=variables, limit_s=order.limits.seconds
    )


def _resident(remote: Remote, instance: int) -> tuple[Environment, Ledger]:
    ledger = Ledger()
    return RemoteEnvironment(remote, instance, ledger), ledger
