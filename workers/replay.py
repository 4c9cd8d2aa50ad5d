"""Plays what a run put to its environment once more, elsewhere, and compares what is said: whatever is not the seed's
shows here. A second instance finds state of the module, entropy, and global generators; a second process, with other
hash seed, time zone, locale and folder, finds what depends on those. Knows nothing of agents and contracts.
"""

import hashlib
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from passhat.workers.canonical import canonical_json
from passhat.workers.environment import Environment, Principal
from passhat.workers.episode import Episode, World, look
from passhat.workers.guard import Ledger, Violation
from passhat.workers.records import Reason
from passhat.workers.session import EnvironmentFault, describe, fingerprint

Said = bytes | str  # a fingerprint, or the text of an error


class Script(NamedTuple):
    """What is put to an environment in a run."""

    seed: int
    options: Mapping[str, Any]
    principal: Principal
    calls: Sequence[tuple[str, Mapping[str, Any]]]  # name and arguments


@dataclass(frozen=True, slots=True)
class Stage:
    """Somewhere to play a script again."""

    name: str
    environment: Environment
    guard: Ledger


def play(environment: Environment, script: Script) -> Iterator[Said]:
    """Yield a fingerprint of each answer and at last of the world; an error is the last of what is said, as text."""
    try:
        environment.reset(seed=script.seed, options=script.options)
        for name, arguments in script.calls:
            answer = environment.call(name, pickle.loads(pickle.dumps(arguments)), principal=script.principal)
            yield fingerprint(name, arguments, answer)
        yield world_print(look(environment))
    except EnvironmentFault as fault:
        yield str(fault)
    except Exception as error:
        yield describe(error)


def world_print(world: World) -> bytes:
    """Return 16 bytes of an environment's account of a run, equal when the accounts are."""
    effects = [[e.table, e.key, e.column, e.before, e.after] for e in world.effects]
    breaches = [[b.invariant, b.detail, b.process] for b in world.breaches]
    account = [effects, breaches, world.facts, world.state_digest.hex(), world.virtual_ms]
    return hashlib.blake2b(canonical_json(account), digest_size=16).digest()


def script_of(episode: Episode, seed: int, options: Mapping[str, Any], principal: Principal) -> Script:
    """Return what was put to the environment in a run; `options` are the stage's to change."""
    calls = [episode.calls[index] for index in episode.reached]
    return Script(seed, options, principal, [(call.tool, call.arguments) for call in calls])


def difference(episode: Episode, script: Script, stage: Stage) -> Violation | None:
    """Play the script of a run that came to its end once more; return where the two part, if they do."""
    said = _said(episode)
    stage.guard.begin()
    with stage.guard.armed("replay"):
        again = list(play(stage.environment, script))
    if again == said:
        return None
    index = next(i for i, (first, second) in enumerate(zip(said, again, strict=False)) if first != second)
    is_call = index < len(script.calls)
    place = f"call#{episode.reached[index] + 1} {script.calls[index][0]}" if is_call else "effects and state"
    answer = again[index]
    text = f"{place}: {answer}" if isinstance(answer, str) else place
    return Violation("environment", "nondeterminism", stage.name, text, "replay", False, "replay")


def condemn(episode: Episode, found: Violation) -> Episode:
    """Return the episode as invalid: its environment does not repeat what it said."""
    violations = (*episode.violations, found)
    count = episode.violation_count + 1
    reason, error = Reason.HERMETICITY, str(found)
    return replace(episode, judgement=None, reason=reason, violations=violations, violation_count=count, error=error)


def _said(episode: Episode) -> list[Said]:
    evidence = episode.evidence
    assert evidence is not None
    calls = (episode.calls[index] for index in episode.reached)
    virtual_ms = evidence.virtual_ms - evidence.usage.virtual_ms
    world = World(evidence.effects, evidence.breaches, evidence.facts, episode.state_digest, virtual_ms)
    return [*(fingerprint(call.tool, call.arguments, call.result) for call in calls), world_print(world)]
