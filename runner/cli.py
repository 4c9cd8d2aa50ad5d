"""The command line: reads arguments, calls the part that does the work, prints its answer, ends with its exit code.

Standard output is the answer; progress, hints and errors go to standard error. Everything heavy is imported by the
command that needs it, so that help appears at once.
"""

import io
import json
import os
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
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    _print(json.dumps(document, ensure_ascii=not is_utf8, indent=1, allow_nan=False) + "\n")


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
    timeout: Annotated[
        float | None, typer.Option(help="Wall-clock limit of a run, in seconds.", show_default="the suite's")
    ] = None,
    retries: Annotated[int, typer.Option(help="Further attempts at a run after a fault of the machinery.")] = 2,
    out: Out = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and run nothing.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the campaign in --out.")] = False,
    as_json: Json = False,
) -> None:
    """Run every task of a suite several times for each release."""
    from passhat.runner import launch

    if stream not in ("release", "common"):
        raise typer.BadParameter(f"{stream!r} is neither release nor common", param_hint="--stream")
    default = ["incumbent", "candidate"] if suite == "desk" else []
    if not (release or default):
        raise typer.BadParameter("name at least one release", param_hint="--release")
    request = launch.Request(
        suite=suite,
        releases=tuple(release or default),
        runs=runs,
        tasks=tasks,
        filter=filter_,
        seed=seed,
        stream=stream,
        retries=retries,
        timeout_s=timeout,
        folder=str(Path.cwd()),
    )
    if dry_run:
        _print_plan(request, as_json)
        return
    campaign = launch.run(request, launch.Place(workers, address), out=out, resume=resume)
    _finish(campaign, as_json)


@app.command("resume")
def resume_command(run: Run = None, workers: Workers = None, address: Address = None, as_json: Json = False) -> None:
    """Execute what a campaign's plan still lacks."""
    from passhat.runner import launch
    from passhat.runner.store import find

    campaign = find(run)
    launch.resume(campaign, launch.Place(workers, address))
    _finish(campaign, as_json)


def _print_plan(request: Any, as_json: bool) -> None:
    from passhat.runner import launch
    from passhat.runner.render import render_plan

    _answer(launch.describe_plan(launch.prepare(request, *launch.load(request))), as_json, render_plan)


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


@app.command("import")
def import_command(
    files: Annotated[list[Path], typer.Argument(help="JSONL or CSV of runs, tau-bench results; also .gz.")],
    release: Annotated[str | None, typer.Option(help="Name of the release, where the file has none.")] = None,
    out: Out = None,
    runs: Annotated[
        int | None, typer.Option(help="Runs planned for each task; those not in the files are missing.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a campaign folder from other tools' results."""
    from passhat.runner.importing import describe_import, import_files
    from passhat.runner.render import render_import

    document = describe_import(import_files(files, release=release, out=out, runs=runs))
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


@app.command()
def schema(kind: Annotated[str, typer.Argument(help="suite, release or task.")]) -> None:
    """Print the JSON Schema of a kind of file, for editors and other programs."""
    from passhat.runner.schemas import schema as schema_of

    _print_json(schema_of(kind))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check what this machine has of what passhat needs."""
    from passhat.runner.doctor import examine
    from passhat.runner.render import render_doctor

    _answer(examine(), as_json, render_doctor)


@app.command()
def demo(workers: Workers = None, out: Out = None, as_json: Json = False) -> None:
    """Run and report two releases of the built-in desk: no key, no network."""
    from passhat.runner import launch
    from passhat.runner.render import render_report
    from passhat.runner.report import report_campaign

    _say("two scripted releases with known flaws on the built-in back-office desk: 120 tasks × 8 runs each")
    request = launch.Request(
        suite="desk", releases=("incumbent", "candidate"), runs=8, tasks=120, seed=1, folder=str(Path.cwd())
    )
    campaign = launch.run(request, launch.Place(workers), out=out)
    _answer(report_campaign(campaign), as_json, render_report)
    if not as_json:
        _print(f"\nresults  {campaign.folder}\nnext     passhat show {campaign.folder}/candidate\n")


if __name__ == "__main__":
    main()
