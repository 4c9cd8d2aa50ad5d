"""The templates of the desk: kinds of work, by cohort.

Each fills a scene and returns the request, the script that carries it out, and the contract. Look-alikes in the scene
(a similar order number, a charge just outside the period, the same name elsewhere) make the wrong answer available.
"""

from collections.abc import Callable, Mapping

from passhat.workers.desk_adversarial import ADVERSARIAL
from passhat.workers.desk_ambiguous import AMBIGUOUS
from passhat.workers.desk_destructive import DESTRUCTIVE
from passhat.workers.desk_parts import Draft
from passhat.workers.desk_routine import ROUTINE
from passhat.workers.desk_scene import Scene
from passhat.workers.desk_unanswerable import UNANSWERABLE

TEMPLATES: Mapping[str, Mapping[str, Callable[[Scene], Draft]]] = {
    "routine": ROUTINE,
    "ambiguous": AMBIGUOUS,
    "destructive": DESTRUCTIVE,
    "adversarial": ADVERSARIAL,
    "unanswerable": UNANSWERABLE,
}
