"""Releases: the versions of an agent under test, from a file, from the command line, or built in.

Knows where an agent is to be found and what identifies it, and nothing of how it runs.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import rfc8785
from pydantic import BaseModel, ConfigDict, Field

from passhat.runner.errors import UsageError
from passhat.runner.files import Loc, invalid, nearest, read_yaml, shown, validate
from passhat.runner.names import refuse_lookalikes
from passhat.runner.targets import check_target, is_target
from passhat.workers.chances import INDEPENDENT, Latent, validate_flaws

SCRIPTED = "scripted"

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A version of the agent under test."""

    name: str
    agent: str  # "scripted", or "module:function" of a Python callable
    flaws: Mapping[str, tuple[float, float]]  # of the scripted agent: name → (probability, correlation within a task)
    identity: Mapping[str, str]  # what the user says identifies it: version, model, prompt …
    folder: Path  # where its modules are looked for first
    path: Path | None  # of the release file; None when named on the command line or built in
    latent: Latent = INDEPENDENT  # whether a task is hard for each flaw by itself, or for all

    @property
    def kind(self) -> Literal["scripted", "python"]:
        return "scripted" if self.agent == SCRIPTED else "python"

    @property
    def digest(self) -> str:
        """Return "sha256:…" over what the release file says, its name apart. It does not cover the agent's code."""
        flaws = {name: list(chances) for name, chances in self.flaws.items()}
        content: Any = {"agent": self.agent, "flaws": flaws, "identity": dict(self.identity)}
        if self.latent != INDEPENDENT:
            content["latent"] = self.latent
        return f"sha256:{hashlib.sha256(rfc8785.dumps(content)).hexdigest()}"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FlawFile(_File):
    """How often a flaw shows."""

    p: Share = Field(description="Probability that a run has the flaw, over all tasks.")
    rho: Share = Field(default=0.0, description="Correlation between runs of a task; 0: alike for all tasks.")


class ReleaseFile(_File):
    """A version of the agent under test."""

    name: str | None = Field(default=None, description="Name of the release; by default that of the file.")
    description: str = Field(default="", description="What this release changes.")
    agent: str = Field(description='"module:function" of a Python callable, or "scripted" for the built-in one.')
    flaws: dict[str, Share | FlawFile] = Field(
        default={}, description="Flaws of the scripted agent: a probability, or {p: probability, rho: correlation}."
    )
    latent: Latent = Field(
        default=INDEPENDENT, description="Whether a task is hard for each flaw by itself, or for all alike."
    )
    identity: dict[str, str] = Field(
        default={}, description="What identifies the release besides its name: version, model, prompt."
    )


_BUILT_IN: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "incumbent": {
        "skip_verify": (0.06, 0.10),
        "wrong_amount": (0.08, 0.20),
        "no_escalate": (0.15, 0.25),
        "loop": (0.02, 0.05),
        "forbidden_tool": (0.01, 0.20),
    },
    "candidate": {
        "skip_verify": (0.02, 0.10),
        "wrong_amount": (0.05, 0.20),
        "no_escalate": (0.06, 0.25),
        "loop": (0.02, 0.05),
        "forbidden_tool": (0.03, 0.20),
    },
}


def load_releases(texts: Iterable[str]) -> tuple[Release, ...]:
    """Return the releases; refuse names that are the same or look the same."""
    releases = [(text, load_release(text)) for text in texts]
    refuse_lookalikes("release", ((release.name, text) for text, release in releases), unique=True)
    return tuple(release for _, release in releases)


def load_release(text: str) -> Release:
    """Return the release of a file, "name=module:function", "module:function", "incumbent" or "candidate".

    Whether its agent can be imported is for `check_release` to say.
    """
    if text in _BUILT_IN:
        return _release(name=text, agent=SCRIPTED, flaws=_BUILT_IN[text])
    path = Path(text)
    if path.is_file():
        return _read_release(path)
    name, equals, agent = text.rpartition("=")
    if is_target(agent):
        return _release(name=name if equals else agent, agent=agent)
    raise UsageError(
        f"release {shown(text)}: no such file; allowed are a release file, module:function, name=module:function"
        f" and {', '.join(_BUILT_IN)}"
    )


def with_flaws(releases: Sequence[Release], texts: Iterable[str]) -> tuple[Release, ...]:
    """Return the releases with flaws from the command line, in place of those of the same name that they have.

    A text is NAME=P[,RHO] for every scripted release, or RELEASE:NAME=P[,RHO] for one.
    """
    changed = {release.name: release for release in releases}
    for text in texts:
        for release in _addressed(releases, text):
            flaws = {**changed[release.name].flaws, **_flaw(text)}
            changed[release.name] = replace(changed[release.name], flaws=flaws)
    return tuple(changed.values())


def _addressed(releases: Sequence[Release], text: str) -> Sequence[Release]:
    scripted = [release for release in releases if release.kind == "scripted"]
    address, colon, _ = text.partition("=")[0].rpartition(":")
    if not scripted:
        raise UsageError(f"--flaw {text}: only the agent {SCRIPTED} has flaws, and no release here is {SCRIPTED}")
    if not colon:
        return scripted
    named = [release for release in scripted if release.name == address]
    if not named:
        hint = nearest(address, [release.name for release in scripted])
        raise UsageError(f"--flaw {text}: no {SCRIPTED} release is called {shown(address)}; {hint}")
    return named


def _flaw(text: str) -> Mapping[str, tuple[float, float]]:
    address, _, value = text.partition("=")
    numbers: list[Any] = [_number(number) for number in value.split(",")]
    if not value or len(numbers) > 2:
        raise UsageError(f"--flaw {text}: expected [RELEASE:]NAME=P[,RHO], found {shown(text)}")
    try:
        return validate_flaws({address.rpartition(":")[2]: tuple(numbers)})
    except ValueError as error:
        raise UsageError(f"--flaw {text}: {error}") from None


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def check_release(release: Release) -> None:
    """Raise InvalidFile, with the reason, unless the release's agent can be had."""
    if release.kind == "python":
        check_target(release.agent, list(dict.fromkeys((release.folder, Path.cwd()))))


def _release(
    *,
    name: str,
    agent: str,
    flaws: Mapping[str, tuple[float, float]] | None = None,
    latent: Latent = INDEPENDENT,
    identity: Mapping[str, str] | None = None,
    path: Path | None = None,
) -> Release:
    refuse_lookalikes("release", [(name, str(path or name))])
    folder = Path.cwd() if path is None else path.resolve().parent
    return Release(
        name=name, agent=agent, flaws=flaws or {}, latent=latent, identity=identity or {}, folder=folder, path=path
    )


def _read_release(path: Path) -> Release:
    document = read_yaml(path)
    file = validate(ReleaseFile, document)
    flaws = {name: (one.p, one.rho) if isinstance(one, FlawFile) else (one, 0.0) for name, one in file.flaws.items()}
    problems = [document.problem(loc, text) for loc, text in _contradictions(file, flaws)]
    if problems:
        raise invalid(problems)
    name = path.stem if file.name is None else file.name
    return _release(name=name, agent=file.agent, flaws=flaws, latent=file.latent, identity=file.identity, path=path)


def _contradictions(file: ReleaseFile, flaws: Mapping[str, tuple[float, float]]) -> Iterator[tuple[Loc, str]]:
    """Yield what is wrong with a release file whose keys are each of the right kind."""
    if file.agent != SCRIPTED and not is_target(file.agent):
        yield ("agent",), f"found {shown(file.agent)}, expected module:function or {SCRIPTED}"
    if flaws and file.agent != SCRIPTED:
        yield ("flaws",), f"only the agent {SCRIPTED} has flaws, found agent {shown(file.agent)}"
    for name, rate in flaws.items():
        try:
            validate_flaws({name: rate})
        except ValueError as error:
            yield ("flaws", name), str(error)
