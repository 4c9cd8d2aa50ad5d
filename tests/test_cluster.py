"""The cluster files are what Ray and KubeRay take, and agree with each other, with pyproject.toml and with passhat."""

import importlib.util
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from typer.main import get_command

from passhat.runner import cli

TOP = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))["project"]
README = (TOP / "README.md").read_text("utf-8")
IMAGE = re.compile(r"rayproject/ray:(\d+\.\d+\.\d+)-py(\d)(\d+)")


@pytest.fixture
def cluster() -> Any:
    return yaml.safe_load((TOP / "cluster.yaml").read_text("utf-8"))


@pytest.fixture
def rayjob() -> Any:
    blocks = re.findall(r"```yaml\n(.*?)```", README, re.S)
    return yaml.safe_load(next(text for text in blocks if "kind: RayJob" in text))


def of_ray(dependencies: list[str]) -> Requirement:
    return next(found for found in map(Requirement, dependencies) if found.name == "ray")


def option(command: str, name: str) -> str:
    found = re.search(rf"--{name}=(\S+)", command)
    assert found is not None, command
    return found[1]


def test_the_cluster_is_what_the_schema_of_ray_allows(cluster: Any) -> None:
    ray = importlib.util.find_spec("ray")  # without importing it
    assert ray is not None
    assert ray.submodule_search_locations is not None
    folder = Path(ray.submodule_search_locations[0])
    jsonschema.validate(cluster, json.loads((folder / "autoscaler/ray-schema.json").read_text("utf-8")))


def test_ray_up_accepts_the_cluster_and_finds_its_mistakes(cluster: Any) -> None:
    """The two steps that `ray up` takes before it starts anything."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(cluster))
    with pytest.raises(ValueError, match="head_node_type"):
        validate_config(prepare_config({**cluster, "head_node_type": "none of them"}))


def test_one_ray_and_one_python_everywhere(cluster: Any, rayjob: Any) -> None:
    base = IMAGE.search(cluster["docker"]["image"])
    assert base is not None
    version, python = base[1], f"{base[2]}.{base[3]}"
    (setup,) = cluster["setup_commands"]
    pinned = next(Requirement(word) for word in shlex.split(setup) if word.startswith("ray["))
    assert (str(pinned.specifier), rayjob["spec"]["rayClusterSpec"]["rayVersion"]) == (f"=={version}", version)
    assert IMAGE.findall(README) == [(version, base[2], base[3])]
    for dependencies in (PROJECT["dependencies"], PROJECT["optional-dependencies"]["cluster"]):
        assert of_ray(dependencies).specifier.contains(version)
    assert pinned.extras == of_ray(PROJECT["optional-dependencies"]["cluster"]).extras
    assert SpecifierSet(PROJECT["requires-python"]).contains(python)


def test_workers_join_the_head_which_does_no_runs_and_listens_to_nobody_outside(cluster: Any) -> None:
    head, worker = cluster["head_start_ray_commands"][-1], cluster["worker_start_ray_commands"][-1]
    assert option(worker, "address") == f"$RAY_HEAD_IP:{option(head, 'port')}"
    assert option(head, "dashboard-host") == "127.0.0.1"
    assert f"port {option(head, 'dashboard-port')}" in (TOP / "cluster.yaml").read_text("utf-8")
    assert f"http://127.0.0.1:{option(head, 'dashboard-port')}" in README
    types = cluster["available_node_types"]
    assert types[cluster["head_node_type"]]["resources"] == {"CPU": 0}
    assert [kind["resources"] for name, kind in types.items() if name != cluster["head_node_type"]] == [{}]


def test_nodes_install_the_wheels_that_are_mounted(cluster: Any) -> None:
    (mounted,) = cluster["file_mounts"]
    (setup,) = cluster["setup_commands"]
    assert shlex.split(setup)[-1] == f"{mounted}/*.whl"
    wheels = Path(cluster["file_mounts"][mounted]).name
    assert f"--wheel-dir {wheels} " in (TOP / "cluster.yaml").read_text("utf-8")


def test_what_a_user_has_to_fill_in_is_marked(cluster: Any) -> None:
    filled = json.dumps(cluster).count("FILL-IN")
    assert filled == 2
    assert cluster["provider"]["region"] == "FILL-IN"


def test_the_rayjob_runs_passhat_on_workers_and_keeps_what_it_makes_on_shared_storage(rayjob: Any) -> None:
    assert (rayjob["apiVersion"], rayjob["kind"]) == ("ray.io/v1", "RayJob")
    spec = rayjob["spec"]
    assert spec["shutdownAfterJobFinishes"] is True
    cluster = spec["rayClusterSpec"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert cluster["enableInTreeAutoscaling"] is True
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    pods = [group["template"]["spec"] for group in (cluster["headGroupSpec"], workers)]
    containers = [pod["containers"][0] for pod in pods]
    assert [container["name"] for container in containers] == ["ray-head", "ray-worker"]
    assert len({container["image"] for container in containers}) == 1
    assert workers["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "8"
    for pod, container in zip(pods, containers, strict=True):
        (mount,) = container["volumeMounts"]
        assert [volume["name"] for volume in pod["volumes"]] == [mount["name"]]
        for name in ("out", "traces"):
            written = parsed(spec["entrypoint"])[name]
            assert str(written).startswith(f"{mount['mountPath']}/")


def parsed(command: str) -> dict[str, Any]:
    """Return the parameters of a passhat command line; it is refused when there is no such option."""
    program, verb, *arguments = shlex.split(command)
    assert program == "passhat"
    found = get_command(cli.app).commands[verb]  # type: ignore[attr-defined]
    return dict(found.make_context(verb, arguments).params)


def test_every_command_line_of_the_section_is_one_of_passhats() -> None:
    section = README[README.index("## On a cluster") : README.index("## Guarantees and limits")]
    commands = re.findall(r"(?:^|-- )(passhat (?:run|resume) [^\n`]+)$", section, re.M)
    assert [command.split()[1] for command in commands] == ["run", "resume"]
    for command in commands:
        assert parsed(command)
