"""The `tunefleet` command: the table of commands, and the handling of errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextvars import copy_context
from typing import Annotated, ClassVar, Final

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]

from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import Entry, LazyGroup, markup_mode
from tunefleet.cli.program import program, rename_in_help

START, WORK, FLEET, HERE = "Start", "Train", "Fleet", "This machine"
# Commands that run or maintain services configured in `.env`; `campaign` reads it as its predecessor did.
_READ_DOTENV: Final = frozenset({
    "up", "server", "worker", "agent", "campaign", "db", "backup", "restore", "verify-store", "doctor", "uninstall",
})  # fmt: skip


class Root(LazyGroup):
    """All commands."""

    table: ClassVar[tuple[Entry, ...]] = (
        Entry("demo", "local_cluster.demo:demo", "Fine-tune a small model on this machine and show it live.", START),
        Entry("up", "local_cluster.up:up", "Start a server and a worker on this machine.", START),
        Entry("login", "server.key_commands:login", "Save a server's URL and key, or print a login link.", START),
        Entry("submit", "tasks.submit:submit", "Submit a workflow file and upload the local files it names.", WORK),
        Entry("sweep", "tasks.sweep_commands:sweep", "Start a hyperparameter sweep over a workflow file.", WORK),
        Entry("sweeps", "tasks.sweep_commands:app", "List, show and stop hyperparameter sweeps.", WORK),
        Entry("follow", "tasks.submit:follow", "Follow a run or a workflow live until it ends.", WORK),
        Entry(
            "validate", "tasks.submit:validate", "Validate a workflow file and list every error with its line.", WORK
        ),
        Entry("graph", "tasks.graph:graph", "Draw the dependency graph of a workflow.", WORK),
        Entry("preview", "models.data_commands:preview", "Preview the training data: trained and masked tokens.", WORK),
        Entry("chat", "models.chat_commands:chat", "Chat with a model, or with the result of a training run.", WORK),
        Entry(
            "serve",
            "models.serve_commands:serve",
            "Serve a model as an OpenAI-compatible endpoint.",
            WORK,
        ),
        Entry("endpoints", "models.serve_commands:app", "List and stop endpoints.", WORK),
        Entry("ls", "tasks.task_commands:ls", "List runs or workflows, newest first.", WORK),
        Entry("show", "tasks.show:show", "Show the summary of a run or a workflow.", WORK),
        Entry("why", "tasks.why:why", "Explain why a run is pending, worker by worker.", WORK),
        Entry("logs", "tasks.log_command:logs", "Print a run's log.", WORK),
        Entry("metrics", "tasks.metrics:metrics", "Print or plot the metrics of a run.", WORK),
        Entry(
            "compare",
            "tasks.compare:compare",
            "Compare evaluations and the significance of their differences, or training runs and their settings.",
            WORK,
        ),
        Entry("artifacts", "models.artifact_commands:app", "List and download the outputs of runs.", WORK),
        Entry("export", "models.push:export", "Download a run's adapter, merged model or GGUF file.", WORK),
        Entry("push", "models.push:push", "Publish an adapter or model to the Hub, a bucket or a folder.", WORK),
        Entry("data", "models.data_commands:app", "Upload datasets and models to the server.", WORK),
        Entry(
            "federation",
            "federations.federation_commands:app",
            "Federated training: many workers, each on its own data.",
            WORK,
        ),
        Entry("campaign", "campaigns.campaign_commands:app", "Continuous training, chunk by chunk.", WORK),
        Entry("models", "models.model_commands:app", "List, promote and export the models of campaigns.", WORK),
        Entry("pause", "tasks.task_control:pause", "Pause runs: save a checkpoint and free the GPU.", WORK),
        Entry("resume", "tasks.task_control:resume", "Resume paused runs; an ended run resumes as a new one.", WORK),
        Entry("stop", "tasks.task_control:stop", "Stop a training run early and keep its result.", WORK),
        Entry("save", "tasks.task_control:save", "Save a checkpoint now, while the run trains.", WORK),
        Entry("evaluate", "tasks.task_control:evaluate", "Evaluate now, while the run trains.", WORK),
        Entry(
            "set",
            "tasks.task_control:set_",
            "Change settings while the run trains; they also apply after a resume.",
            WORK,
        ),
        Entry("checkpoints", "tasks.task_control:checkpoints", "List the checkpoints of a run.", WORK),
        Entry(
            "cancel",
            "tasks.task_commands:cancel",
            "Cancel runs and their dependents; checkpoints are kept.",
            WORK,
        ),
        Entry("retry", "tasks.task_commands:retry", "Retry an ended run, or the incomplete part of a workflow.", WORK),
        Entry("clone", "tasks.task_commands:clone", "Submit a copy of a run with changed fields.", WORK),
        Entry("edit", "tasks.task_commands:edit", "Rename a run, or change its tags and notes.", WORK),
        Entry("rm", "tasks.task_commands:rm", "Remove ended runs and their metrics, logs and artifacts.", WORK),
        Entry("workers", "workers.worker_commands:app", "List and manage workers.", FLEET),
        Entry(
            "notify",
            "server.notify_commands:app",
            "Notifications when runs end, fail or stall: webhook, Slack, Discord, e-mail.",
            FLEET,
        ),
        Entry("keys", "server.key_commands:app", "Create, list and revoke API keys.", FLEET),
        Entry("projects", "server.project_commands:app", "Manage projects, their quotas and weights.", FLEET),
        Entry("usage", "tasks.usage:usage", "Show usage: GPU hours, energy, cost.", FLEET),
        Entry("audit", "tasks.usage:audit", "Show the audit log.", FLEET),
        Entry("storage", "server.server_commands:storage", "Show the server's disk usage.", FLEET),
        Entry("servers", "server.server_commands:servers", "List the servers that share a database.", FLEET),
        Entry("prune", "server.server_commands:prune", "Remove old workflows with their data.", FLEET),
        Entry(
            "simulate",
            "local_cluster.simulate:simulate",
            "Load-test a server with simulated workers.",
            FLEET,
        ),
        Entry("join", "workers.start_worker:join", "Join this machine to a server as a worker.", HERE),
        Entry("server", "server.server_commands:server", "Run a server on this machine.", HERE),
        Entry("worker", "workers.start_worker:worker", "Run a worker on this machine.", HERE),
        Entry("agent", "workers.agent_commands:app", "Run the training agent on this machine.", HERE),
        Entry("run", "control.run:run", "Run a training script with control, pause and resume.", HERE),
        Entry("control", "control.control_commands:app", "Control the training runs on this machine.", HERE),
        Entry(
            "env",
            "workers.environment_commands:app",
            "Manage the environments that some task kinds need.",
            HERE,
        ),
        Entry("db", "server.database_commands:app", "Check and migrate the server's database.", HERE),
        Entry(
            "verify-store",
            "server.server_commands:verify_store",
            "Verify stored files and list damaged and missing ones.",
            HERE,
        ),
        Entry(
            "backup",
            "server.database_commands:backup",
            "Back up the server's database, even while it is running.",
            HERE,
        ),
        Entry(
            "restore",
            "server.database_commands:restore",
            "Restore the database from a backup (SQLite or PostgreSQL).",
            HERE,
        ),
        Entry("doctor", "server.doctor:doctor", "Check this machine and show how to fix problems.", HERE),
        Entry("debug-dump", "server.debug_dump:debug_dump", "Collect diagnostics into one archive.", HERE),
        Entry("completion", "lazy_group:completion", "Print a shell completion script.", HERE),
        Entry(
            "uninstall",
            "local_cluster.uninstall:uninstall",
            "Remove Tunefleet's files from this machine.",
            HERE,
        ),
    )


def _version(wanted: bool) -> None:
    if wanted:
        from tunefleet import __version__

        typer.echo(f"tunefleet {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=Root,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    context: typer.Context,
    *,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Server URL; default: the server of `up` or `login`.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Fine-tune language models on the machines you have.

    Start with `tunefleet demo`; then `tunefleet up`, and `tunefleet submit FILE --follow` in another terminal.
    A unique prefix of an id is enough wherever an id is expected.
    """
    if context.invoked_subcommand not in _READ_DOTENV:
        # Imported here: `tunefleet --help` does not pay for the settings.
        from tunefleet.settings import without_dotenv

        context.with_resource(without_dotenv())
    if url:
        from tunefleet.cli.options import chosen_url

        chosen_url.set(url)


def main() -> None:
    """Entry point of the `tunefleet` command."""
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run a command line and return its exit code; every error becomes one sentence without a traceback."""
    app.rich_markup_mode = markup_mode()
    completion_init()
    try:
        # A context of its own: `--url` of one command line must not leak into the next one in this process.
        command = rename_in_help(typer.main.get_command(app))
        # The variable of the completion script, whose default is made of the program's name.
        copy_context().run(command.main, list(args), prog_name=program(), complete_var="_TUNEFLEET_COMPLETE")
    # Click exits this way, also for usage errors.
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.FAILED
    except Exception as error:  # noqa: BLE001  # outermost handler: every error becomes a sentence
        from tunefleet.cli.error_display import report

        return report(error, as_json="--json" in args)
    return ExitCode.OK
