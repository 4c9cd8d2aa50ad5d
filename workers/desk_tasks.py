"""Tasks for the desk: any number of distinct ones from a seed, with exact cohort quotas.

A task depends on (seed, cohort, ordinal) alone. It is therefore the same in every process, and a suite of 300 tasks
contains the suite of 200 wherever no cohort shrinks. Distinctness comes from the draws: a task holds thirty and more
numbers, names and dates of its own, so two tasks are equal only if the 64 bits their draws start from are, which
happens among a million tasks with a probability below one in thirty million.
"""

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import overload

from passhat.workers.contract import Task
from passhat.workers.desk_scene import TODAY, Scene
from passhat.workers.desk_templates import TEMPLATES
from passhat.workers.desk_tools import RESULT_SCHEMA
from passhat.workers.environment import Principal
from passhat.workers.seeds import derive

DEFAULT_WEIGHTS: Mapping[str, float] = {
    "routine": 0.40,
    "ambiguous": 0.20,
    "destructive": 0.15,
    "adversarial": 0.15,
    "unanswerable": 0.10,
}
# Where boundaries may be hard. Elsewhere they are soft, so that what an agent skips is seen in itself and not in a
# denial that follows from it.
_MAY_BE_HARD = ("ambiguous", "adversarial", "unanswerable")


def task_at(seed: int, cohort: str, ordinal: int) -> Task:
    """Return a cohort's task number `ordinal`. Templates take turns; the seed decides everything else in it."""
    rng = random.Random(derive("task", seed, cohort, ordinal))
    template, build = list(TEMPLATES[cohort].items())[ordinal % len(TEMPLATES[cohort])]
    scene = Scene(rng)
    draft = build(scene)
    scene.crowd(empty=draft.twin_is_empty)
    boundaries = "hard" if cohort in _MAY_BE_HARD and rng.random() < 0.5 else "soft"
    return Task(
        id=_task_id(cohort, ordinal),
        cohort=cohort,
        template=template,
        request=draft.request,
        inputs={"case_id": scene.case, **draft.inputs, "verification": scene.verification},
        policy=scene.policy,
        output_schema=RESULT_SCHEMA,
        world={"tables": scene.tables, "today": TODAY, "boundaries": boundaries, **draft.world},
        principal=Principal("desk-1", scene.tenant, "desk"),
        contract=draft.contract,
        oracle=draft.oracle,
    )


def _task_id(cohort: str, ordinal: int) -> str:
    return f"{cohort}-{ordinal:04d}"


def quotas(tasks: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Share out the tasks by weight, by largest remainder; of equal remainders the one named first wins."""
    exact = {cohort: Fraction(str(weight)) for cohort, weight in weights.items()}
    total = sum(exact.values())
    if tasks < 0 or total <= 0 or min(exact.values()) < 0:
        raise ValueError(
            f"cannot share {tasks} tasks by the weights {dict(weights)}: some must be positive, none negative"
        )
    shares = {cohort: tasks * weight / total for cohort, weight in exact.items()}
    whole = {cohort: int(share) for cohort, share in shares.items()}
    by_remainder = sorted(shares, key=lambda cohort: whole[cohort] - shares[cohort])
    for cohort in by_remainder[: tasks - sum(whole.values())]:
        whole[cohort] += 1
    return whole


class DeskTasks(Sequence[Task]):
    """The tasks of a desk suite, cohort after cohort; each is made when it is asked for."""

    def __init__(self, seed: int, tasks: int, weights: Mapping[str, float] = DEFAULT_WEIGHTS) -> None:
        unknown = sorted(weights.keys() - TEMPLATES.keys())
        if unknown:
            raise ValueError(f"no cohort of the desk is called {unknown[0]!r}; there are {', '.join(TEMPLATES)}")
        self.seed = seed
        self.quotas = quotas(tasks, weights)
        self._cohorts = list(self.quotas)
        self._ends = list(accumulate(self.quotas.values()))

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return task_at(self.seed, *self._place(index))

    def cohort(self, index: int) -> str:
        """Return the cohort of a task without making the task."""
        return self._place(index)[0]

    def id(self, index: int) -> str:
        """Return the id of a task without making the task."""
        return _task_id(*self._place(index))

    def _place(self, index: int) -> tuple[str, int]:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"task {index} of {len(self)}")
        block = bisect_right(self._ends, position)
        return self._cohorts[block], position - (self._ends[block] - self.quotas[self._cohorts[block]])
