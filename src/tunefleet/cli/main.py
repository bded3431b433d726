"""The `tunefleet` command: its table of commands, and what happens when one of them fails."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextvars import copy_context
from typing import Annotated, ClassVar, Final

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]

from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import Entry, LazyGroup, markup_mode

START, WORK, FLEET, HERE = "Start", "Train", "Fleet", "This machine"


class Root(LazyGroup):
    """All commands."""

    table: ClassVar[tuple[Entry, ...]] = (
        Entry("demo", "local_cluster.demo:demo", "Fine-tune a small model on this machine and show it live.", START),
        Entry("up", "local_cluster.up:up", "Start a server and a worker on this machine.", START),
        Entry("login", "server.login:login", "Save a server's URL and key, or print a login link.", START),
        Entry("submit", "tasks.submit:submit", "Submit a workflow document; local files it names are uploaded.", WORK),
        Entry("follow", "tasks.submit:follow", "Show a task, or all tasks of a workflow, live until the end.", WORK),
        Entry(
            "validate", "tasks.validate:validate", "Check a workflow document; list every fault with its line.", WORK
        ),
        Entry("graph", "tasks.graph:graph", "Draw what the tasks of a workflow wait for.", WORK),
        Entry("preview", "models.preview:preview", "Show what the model would be trained on, before it is.", WORK),
        Entry(
            "chat", "models.chat_commands:chat", "Talk with a model on a worker, or with what a task has trained.", WORK
        ),
        Entry("ls", "tasks.task_commands:ls", "List tasks, newest first, or workflows.", WORK),
        Entry(
            "show", "tasks.show:show", "Show all that is known of a task, or a workflow's tasks in their order.", WORK
        ),
        Entry("why", "tasks.why:why", "Say why a task waits, worker by worker.", WORK),
        Entry("logs", "tasks.log_command:logs", "Print a task's log.", WORK),
        Entry("metrics", "tasks.metrics:metrics", "Print or plot what a task has measured.", WORK),
        Entry(
            "compare",
            "tasks.compare:compare",
            "Compare evaluations: their metrics, and how sure a difference is.",
            WORK,
        ),
        Entry("artifacts", "models.artifact_commands:app", "List and fetch what tasks produced.", WORK),
        Entry("export", "models.push:export", "Download a task's adapter or model, merged or as GGUF.", WORK),
        Entry("push", "models.push:push", "Publish what a task has made: hub, bucket or folder.", WORK),
        Entry("data", "models.data_commands:app", "Push datasets and models to the server by name.", WORK),
        Entry(
            "federation",
            "federations.federation_commands:app",
            "Train one adapter with many workers, each on its own data.",
            WORK,
        ),
        Entry("campaign", "campaigns.campaign_commands:app", "Train on and on by itself, chunk by chunk.", WORK),
        Entry(
            "models", "models.model_commands:app", "List, promote and export the models that campaigns have made.", WORK
        ),
        Entry("pause", "tasks.task_control:pause", "Pause tasks: each saves and ends; the GPU is free.", WORK),
        Entry(
            "resume", "tasks.task_control:resume", "Let paused tasks go on; an ended one goes on as a new task.", WORK
        ),
        Entry("stop", "tasks.task_control:stop", "End a training early; what it has learned is delivered.", WORK),
        Entry("save", "tasks.task_control:save", "Save a checkpoint of a running task now.", WORK),
        Entry("evaluate", "tasks.task_control:evaluate", "Let a running task measure its held-out loss now.", WORK),
        Entry("set", "tasks.task_control:set_", "Change a running task; what is changed survives a resume.", WORK),
        Entry("checkpoints", "tasks.task_control:checkpoints", "List the checkpoints of a task.", WORK),
        Entry(
            "cancel",
            "tasks.task_commands:cancel",
            "Cancel tasks, and what waits for them; what they saved stays.",
            WORK,
        ),
        Entry(
            "retry", "tasks.retry:retry", "Submit a final task again, or what has not completed of a workflow.", WORK
        ),
        Entry("clone", "tasks.task_commands:clone", "Submit a task again with some fields changed.", WORK),
        Entry("rm", "tasks.task_commands:rm", "Remove final tasks with what they stored.", WORK),
        Entry("workers", "workers.worker_commands:app", "List the machines that run tasks.", FLEET),
        Entry(
            "notify",
            "server.notify_commands:app",
            "Be told when tasks end, fail or stall: webhook, Slack, Discord, e-mail.",
            FLEET,
        ),
        Entry("keys", "server.key_commands:app", "Create, list and revoke API keys.", FLEET),
        Entry("projects", "server.project_commands:app", "Share the fleet: projects, their quotas and weights.", FLEET),
        Entry("usage", "tasks.usage:usage", "Show what was used: GPU hours, energy, cost.", FLEET),
        Entry("audit", "tasks.usage:audit", "List who changed what, and from where.", FLEET),
        Entry("storage", "server.maintenance:storage", "Show how much room the server's data takes.", FLEET),
        Entry("servers", "server.maintenance:servers", "List the servers that share one database.", FLEET),
        Entry("prune", "server.maintenance:prune", "Remove what ended long ago.", FLEET),
        Entry(
            "simulate",
            "local_cluster.simulate:simulate",
            "Load a real server with simulated workers and measure it.",
            FLEET,
        ),
        Entry("join", "workers.join:join", "Make this machine a worker of a server, and run it.", HERE),
        Entry("server", "server.start_server:server", "Run a server on this machine.", HERE),
        Entry("worker", "workers.start_worker:worker", "Run tasks of a server on this machine.", HERE),
        Entry("agent", "workers.agent_commands:app", "Run the training agent of this machine.", HERE),
        Entry("run", "control.run:run", "Run a training script so that it can be steered, paused and resumed.", HERE),
        Entry("control", "control.control_commands:app", "See and steer the trainings of this machine.", HERE),
        Entry(
            "env",
            "workers.environment_commands:app",
            "Make and check the environments that some task kinds run in.",
            HERE,
        ),
        Entry("db", "server.database_commands:app", "Check and migrate the server's database.", HERE),
        Entry(
            "verify-store",
            "server.verify_store:verify_store",
            "Read all stored files; name what is damaged or lost.",
            HERE,
        ),
        Entry(
            "backup",
            "server.database_commands:backup",
            "Write the server's database into a file, also while it runs.",
            HERE,
        ),
        Entry(
            "restore",
            "server.database_commands:restore",
            "Fill a database from a backup: SQLite's or PostgreSQL's.",
            HERE,
        ),
        Entry("doctor", "server.doctor:doctor", "Check this machine and say how to mend what is wrong.", HERE),
        Entry(
            "debug-dump", "server.debug_dump:debug_dump", "Write one archive that helps to find what is wrong.", HERE
        ),
        Entry("completion", "lazy_group:completion", "Print the completion script of a shell.", HERE),
        Entry(
            "uninstall",
            "local_cluster.uninstall:uninstall",
            "Show what Tunefleet left on this machine, and remove it.",
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


# Commands that run, or look after, what is set up by a file `.env`; `campaign` reads it as the scheduler did.
_READ_DOTENV: Final = frozenset({
    "up", "server", "worker", "agent", "campaign", "db", "backup", "restore", "verify-store", "doctor", "uninstall",
})  # fmt: skip


@app.callback()
def root(
    context: typer.Context,
    *,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Server to talk to; default: the one of `up` or `login`.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Fine-tune language models on the machines you have.

    Start with `tunefleet demo`; then `tunefleet up`, and `tunefleet submit FILE --follow` in another terminal.
    Wherever an id is wanted, its first characters are enough.
    """
    if context.invoked_subcommand not in _READ_DOTENV:
        from tunefleet.settings import without_dotenv

        context.with_resource(without_dotenv())
    if url:
        from tunefleet.cli.options import chosen_url

        chosen_url.set(url)


def main() -> None:
    """Entry point of the `tunefleet` command."""
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run a command line and return its exit code; every error ends here, in one sentence and without a traceback."""
    app.rich_markup_mode = markup_mode()
    completion_init()
    try:
        # In a context of its own: what one command line chose is gone when the next one runs in this process.
        copy_context().run(typer.main.get_command(app).main, list(args), prog_name="tunefleet")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.FAILED
    except Exception as error:  # noqa: BLE001  # the command line's edge: every error becomes a sentence
        from tunefleet.cli.error_display import report

        return report(error, as_json="--json" in args)
    return ExitCode.OK
