"""The command line: reads arguments, calls the part that does the work, prints its answer, ends with its exit code.

Standard output is the answer; progress, hints and errors go to standard error. Everything heavy is imported by the
command that needs it, so that help appears at once.
"""

import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from passhat.runner.errors import ExitCode, PasshatError

if TYPE_CHECKING:
    from passhat.runner.store import Campaign

app = typer.Typer(
    name="passhat",
    help="May release B of an agent replace release A? Runs both many times, and shows the evidence.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,  # a traceback with the values of variables could show a key
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="exit codes: 0 done, 1 against (invalid file), 2 usage, 3 inconclusive, 4 evidence not acceptable, "
    "5 nothing matched, 6 incomplete (resumable), 70 a bug in passhat, 130 interrupted (resumable)",
)

suite_app = typer.Typer(no_args_is_help=True, help="The suite as an asset.")
app.add_typer(suite_app, name="suite")

Run = Annotated[
    Path | None, typer.Argument(help="Campaign folder or id; left out: results/latest.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Campaign folder to make.", show_default="results/<id>")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", "-j", help="Ray workers; 0: in this process, without Ray.", show_default="one a processor"
    ),
]
Address = Annotated[
    str | None,
    typer.Option("--address", help="Ray cluster to join.", show_default="RAY_ADDRESS, else a Ray of our own"),
]
WorkingDir = Annotated[
    Path | None,
    typer.Option("--working-dir", help="Folder with your modules, for Ray to copy to every node.", resolve_path=True),
]


def main() -> NoReturn:
    """Entry point: every way out has a documented exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without these letters still gets the numbers
    try:
        returned = app(standalone_mode=False)
        code: int = returned if isinstance(returned, int) else ExitCode.DONE
        if code == ExitCode.INTERRUPTED:  # typer turns Ctrl-C into this
            print("passhat: interrupted", file=sys.stderr)
    except PasshatError as error:
        print(f"passhat: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        print("passhat: interrupted", file=sys.stderr)
        code = ExitCode.INTERRUPTED
    except Exception as error:
        code = _unexpected(error)
    sys.stderr.flush()
    sys.exit(code)


def _unexpected(error: Exception) -> int:
    """Usage errors are typer's own to show; anything else is a bug, shown without the values of variables."""
    show, exit_code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if show is not None and isinstance(exit_code, int):
        show(file=sys.stderr)
        return exit_code
    import traceback

    traceback.print_exc()
    print("passhat: this is a bug in passhat, please report it with the lines above", file=sys.stderr)
    return ExitCode.INTERNAL


def _answer(document: dict[str, Any], as_json: bool, render: Callable[[dict[str, Any]], str]) -> None:
    """Print the answer of a command, for programs or for people."""
    if as_json:
        _print_json(document)
    else:
        _print(render(document))


def _print(text: str) -> None:
    """Write to standard output; a reader that has gone away has seen enough."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_json(document: dict[str, Any]) -> None:
    """Print a document; marks that would move a cursor or turn the text around stand in it as JSON spells them."""
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(document, ensure_ascii=not is_utf8, indent=1, allow_nan=False)
    _print(re.sub(r"[^\n -~]", _json_letter, text) + "\n")


def _json_letter(found: re.Match[str]) -> str:
    if found[0].isprintable():
        return found[0]
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def _say(text: str) -> None:
    print(text, file=sys.stderr)


@app.command()
def run(
    suite: Annotated[str, typer.Argument(help="Suite file, or desk for the built-in one.")],
    release: Annotated[
        list[str] | None,
        typer.Option(
            "--release", "-r", help="Release file, [name=]module:function, incumbent or candidate; repeat for several."
        ),
    ] = None,
    runs: Annotated[
        int | None, typer.Option("--runs", "-n", help="Runs of each task.", show_default="the suite's")
    ] = None,
    tasks: Annotated[int | None, typer.Option(help="Number of tasks.", show_default="the suite's")] = None,
    filter_: Annotated[str | None, typer.Option("--filter", help="Task id pattern, or cohort=NAME.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all run-time noise.")] = 0,
    stream: Annotated[str, typer.Option(help="Noise of the agents: release (independent) or common.")] = "release",
    workers: Workers = None,
    address: Address = None,
    working_dir: WorkingDir = None,
    timeout: Annotated[
        float | None, typer.Option(help="Wall-clock limit of a run, in seconds.", show_default="the suite's")
    ] = None,
    retries: Annotated[int, typer.Option(help="Further attempts at a run after a fault of the machinery.")] = 2,
    hermetic: Annotated[
        str | None,
        typer.Option(help="Level of the environment: declared, guarded or confined.", show_default="the suite's"),
    ] = None,
    traces: Annotated[
        str | None,
        typer.Option(
            help="Storage that all hosts share, for traces: a path or fsspec URL.", show_default="the campaign folder"
        ),
    ] = None,
    flaw: Annotated[
        list[str] | None,
        typer.Option(help="[RELEASE:]NAME=P[,RHO]: a flaw of the scripted releases, or of one; repeat for several."),
    ] = None,
    truth: Annotated[
        bool | None,
        typer.Option(
            "--truth/--no-truth", help="Write truth.json for scripted releases.", show_default="≤ 20,000 tasks"
        ),
    ] = None,
    gate_file: Annotated[
        Path | None, typer.Option("--gate", metavar="GATE", help="Declared gate that the campaign is begun under.")
    ] = None,
    out: Out = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and run nothing.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the campaign in --out.")] = False,
    as_json: Json = False,
) -> None:
    """Run every task of a suite several times for each release."""
    from passhat.runner import launch
    from passhat.runner.request import Request

    if stream not in ("release", "common"):
        raise typer.BadParameter(f"{stream!r} is neither release nor common", param_hint="--stream")
    default = ["incumbent", "candidate"] if suite == "desk" else []
    if not (release or default):
        raise typer.BadParameter("name at least one release", param_hint="--release")
    request = Request(
        suite=suite,
        releases=tuple(release or default),
        runs=runs,
        tasks=tasks,
        filter=filter_,
        seed=seed,
        stream=stream,
        retries=retries,
        timeout_s=timeout,
        hermetic=hermetic,
        traces=traces,
        flaws=tuple(flaw or ()),
        truth=truth,
        gate=None if gate_file is None else str(gate_file),
        folder=str(Path.cwd()),
    )
    if dry_run:
        _print_plan(request, as_json)
        return
    campaign = launch.run(request, launch.Place(workers, address, working_dir), out=out, resume=resume)
    _finish(campaign, as_json)


@app.command("resume")
def resume_command(
    run: Run = None,
    workers: Workers = None,
    address: Address = None,
    working_dir: WorkingDir = None,
    as_json: Json = False,
) -> None:
    """Execute what a campaign's plan still lacks."""
    from passhat.runner import launch
    from passhat.runner.store import find

    campaign = find(run)
    launch.resume(campaign, launch.Place(workers, address, working_dir))
    _finish(campaign, as_json)


def _print_plan(request: Any, as_json: bool) -> None:
    from passhat.runner.render import render_plan
    from passhat.runner.request import describe_plan, load, prepare

    _answer(describe_plan(prepare(request, *load(request))), as_json, render_plan)


def _finish(campaign: "Campaign", as_json: bool) -> None:
    from passhat.runner.render import render_summary
    from passhat.runner.report import summarise

    _answer(summarise(campaign), as_json, render_summary)


@app.command()
def report(run: Run = None, as_json: Json = False) -> None:
    """Show a campaign's evidence, one page a release."""
    from passhat.runner.render import render_report
    from passhat.runner.report import report_campaign
    from passhat.runner.store import find

    _answer(report_campaign(find(run)), as_json, render_report)


@app.command()
def compare(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="One campaign with both releases, or two.", show_default="results/latest"),
    ] = None,
    base: Annotated[str | None, typer.Option("--base", help="Baseline release.", show_default="the first")] = None,
    candidate: Annotated[
        str | None, typer.Option("--cand", "--candidate", help="Candidate release.", show_default="the second")
    ] = None,
    common: Annotated[
        bool, typer.Option("--common", help="Compare what both share although conditions differ, and say so.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare two releases on the tasks both ran."""
    from passhat.runner.compare import compare as compare_pairing
    from passhat.runner.pairing import choose, pair
    from passhat.runner.render_compare import render_comparison

    sides = choose(_campaigns(runs), base, candidate)
    _answer(compare_pairing(pair(*sides, common=common)), as_json, render_comparison)


@app.command()
def declare(
    gate_file: Annotated[Path, typer.Argument(metavar="GATE", help="Gate file.")],
    results: Annotated[Path, typer.Option(help="Folder that holds campaign folders.")] = Path("results"),
    as_json: Json = False,
) -> None:
    """Seal a gate before the runs: its digest and the time, in a file beside it."""
    from passhat.runner.declaration import declare as declare_gate
    from passhat.runner.gate_file import load_gate
    from passhat.runner.render_gate import render_declaration

    _answer(declare_gate(load_gate(gate_file), results), as_json, render_declaration)


@app.command()
def gate(
    gate_file: Annotated[Path, typer.Argument(metavar="GATE", help="Gate file.")],
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="One campaign with both releases, or two.", show_default="results/latest"),
    ] = None,
    base: Annotated[str | None, typer.Option("--base", help="Baseline.", show_default="the gate's")] = None,
    candidate: Annotated[
        str | None, typer.Option("--cand", "--candidate", help="Candidate.", show_default="the gate's")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="text, json, github or junit.")] = "text",
    as_json: Json = False,
) -> int:
    """Evaluate a gate: exit code 0 GO, 1 NO-GO, 3 INCONCLUSIVE."""
    from passhat.runner.declaration import standing
    from passhat.runner.gate import EXIT_CODES, evaluate
    from passhat.runner.gate_file import load_gate
    from passhat.runner.pairing import choose, pair

    if form not in _GATE_FORMATS:
        raise typer.BadParameter(f"{form!r}; allowed are {', '.join(_GATE_FORMATS)}", param_hint="--format")
    declared = load_gate(gate_file)
    campaigns = _campaigns(runs)
    pairing = pair(*choose(campaigns, *declared.names(base, candidate, campaigns=len(campaigns))))
    gate_stands = standing(declared, pairing)
    verdict = {**evaluate(declared, pairing), "gate": gate_stands}
    _print_verdict(verdict, "json" if as_json else form)
    return EXIT_CODES[verdict["verdict"]]


_GATE_FORMATS = ("text", "json", "github", "junit")


def _print_verdict(verdict: dict[str, Any], form: str) -> None:
    from passhat.runner import render_gate

    if form == "json":
        _print_json(verdict)
    elif form == "junit":
        _print(render_gate.render_junit(verdict))
    else:
        _print(render_gate.render_verdict(verdict))
    if form == "github":
        _print(render_gate.render_annotations(verdict))
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if summary:
            try:
                with Path(summary).open("a", encoding="utf-8") as stream:
                    stream.write(render_gate.render_step_summary(verdict))
            except OSError as error:  # the verdict stands all the same
                _say(f"passhat: {summary}: the step summary cannot be written: {error.strerror}")


def _campaigns(runs: list[Path] | None) -> "list[Campaign]":
    from passhat.runner.store import find

    if runs is not None and len(runs) > 2:
        raise typer.BadParameter("name one campaign, or two", param_hint="RUNS")
    return [find(run) for run in runs] if runs else [find(None)]


@app.command()
def packet(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="One campaign with both releases, or two.", show_default="results/latest"),
    ] = None,
    gate_file: Annotated[
        Path | None, typer.Option("--gate", metavar="GATE", help="Gate whose verdict it holds.")
    ] = None,
    base: Annotated[str | None, typer.Option("--base", help="Baseline.", show_default="the gate's")] = None,
    candidate: Annotated[
        str | None, typer.Option("--cand", "--candidate", help="Candidate.", show_default="the gate's")
    ] = None,
    common: Annotated[
        bool, typer.Option("--common", help="Compare what both share although conditions differ, and say so.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to make.")] = Path("packet"),
    verify: Annotated[
        Path | None, typer.Option("--verify", metavar="DIR", help="Compute a packet again from its evidence.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Make a decision packet (page, data, evidence, digests), or verify one: exit code 1 when it does not hold."""
    from passhat.runner.packet import build_packet
    from passhat.runner.packet_verify import verify_packet
    from passhat.runner.render_packet import render_packet, render_verification

    if verify is not None:
        document = verify_packet(verify)
        _answer(document, as_json, render_verification)
        return ExitCode.DONE if document["holds"] else ExitCode.AGAINST
    made = build_packet(_campaigns(runs), out, base=base, candidate=candidate, gate=gate_file, common=common)
    _answer(made, as_json, render_packet)
    return ExitCode.DONE


@app.command("import")
def import_command(
    files: Annotated[list[Path], typer.Argument(help="JSONL or CSV of runs, tau-bench results; also .gz.")],
    release: Annotated[str | None, typer.Option(help="Name of the release, where the file has none.")] = None,
    out: Out = None,
    runs: Annotated[
        int | None, typer.Option(help="Runs planned for each task; those not in the files are missing.")
    ] = None,
    map_: Annotated[
        list[str] | None, typer.Option("--map", help="KNOWN=COLUMN: a column's name in the files; repeat for several.")
    ] = None,
    pass_mark: Annotated[
        float | None, typer.Option(help="Least score that passes, where the files have a score, from 0 to 1.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a campaign folder from other tools' results."""
    from passhat.runner.importing import describe_import, import_files
    from passhat.runner.render import render_import

    pairs = [pair.partition("=")[::2] for pair in map_ or ()]
    columns = dict(pairs)
    if "" in columns.values() or len({*columns.values()}) < len(pairs) or len(columns) < len(pairs):
        raise typer.BadParameter("expected KNOWN=COLUMN, each of them once", param_hint="--map")
    imported = import_files(files, release=release, out=out, runs=runs, columns=columns, pass_mark=pass_mark)
    document = describe_import(imported)
    _answer(document, as_json, render_import)


@app.command("list")
def list_command(
    results: Annotated[Path, typer.Option(help="Folder that holds campaign folders.")] = Path("results"),
    as_json: Json = False,
) -> None:
    """List the campaigns of a results folder."""
    from passhat.runner.render import render_list
    from passhat.runner.report import list_campaigns

    _answer(list_campaigns(results), as_json, render_list)


@app.command()
def show(
    what: Annotated[
        str | None, typer.Argument(help="RUN[/release[/task[/run]]]", show_default="results/latest")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at a campaign, at a release's failures, at a task's runs, or at one run with its trace."""
    from passhat.runner.render_show import render_shown
    from passhat.runner.show import show as find_shown

    _answer(find_shown(what), as_json, render_shown)


@suite_app.command()
def validate(
    suite: Annotated[str, typer.Argument(help="Suite file, or desk for the built-in one.")],
    tasks: Annotated[
        int | None, typer.Option(help="Number of tasks, from the first.", show_default="the suite's")
    ] = None,
    as_json: Json = False,
) -> int:
    """Examine whether each task measures an agent: oracle, trivial agents, flaws, replay, leaks."""
    from passhat.runner.render_validation import render_validation
    from passhat.runner.validation import validate_suite

    document = validate_suite(suite, tasks=tasks)
    _answer(document, as_json, render_validation)
    return ExitCode.AGAINST if document["rejected"] else ExitCode.DONE


@app.command("check-env")
def check_env(
    environment: Annotated[str, typer.Argument(metavar="MODULE:FACTORY", help="Environment of your own, or desk.")],
    suite: Annotated[str | None, typer.Option(help="Suite whose worlds it is tried in.")] = None,
    world: Annotated[
        Path | None, typer.Option(help="JSON file with the world it is tried in.", show_default="an empty world")
    ] = None,
    as_json: Json = False,
) -> int:
    """Examine an environment: does it repeat, is it hermetic, does it keep its promises?"""
    from passhat.runner.check_env import check_environment
    from passhat.runner.render_check import render_check

    document = check_environment(environment, suite=suite, world=world)
    _answer(document, as_json, render_check)
    return ExitCode.DONE if document["passed"] else ExitCode.AGAINST


@app.command()
def schema(kind: Annotated[str, typer.Argument(help="suite, release, task or gate.")]) -> None:
    """Print the JSON Schema of a kind of file, for editors and other programs."""
    from passhat.runner.schemas import schema as schema_of

    _print_json(schema_of(kind))


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write into.")] = Path("."),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    as_json: Json = False,
) -> None:
    """Write a small suite, its world, an agent, a release and a gate, to be changed into your own."""
    from passhat.runner.render import render_init
    from passhat.runner.starter_files import write_starter_files

    _answer(write_starter_files(folder, force=force), as_json, render_init)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check what this machine has of what passhat needs."""
    from passhat.runner.doctor import examine
    from passhat.runner.render import render_doctor

    _answer(examine(), as_json, render_doctor)


@app.command()
def demo(workers: Workers = None, out: Out = None, as_json: Json = False) -> None:
    """Tell the whole story on the built-in desk, from a declared gate to its verdict: no key, no network."""
    from passhat.runner.demo import tell
    from passhat.runner.launch import Place
    from passhat.runner.render import render_report
    from passhat.runner.render_compare import render_comparison
    from passhat.runner.render_gate import render_verdict

    _say("two scripted releases with known flaws on the built-in back-office desk: 120 tasks × 8 runs each")
    story = tell(Place(workers), out)
    if as_json:
        _print_json(story.report)
        return
    pages = (render_report(story.report), render_comparison(story.comparison), render_verdict(story.verdict))
    _print("\n".join(pages))
    folder = story.folder
    _print(f"\nresults  {folder}\npacket   {folder / 'packet' / 'index.html'}\n")
    _print(f"next     passhat show {shlex.quote(f'{folder}/candidate')}\n")


if __name__ == "__main__":
    main()
