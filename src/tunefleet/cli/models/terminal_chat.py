"""Chat in a terminal with one model, or with two side by side."""

from __future__ import annotations

import logging
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import ValidationError
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tunefleet.cli.console import err, out, plain, print_json, say
from tunefleet.client import Client
from tunefleet.errors import InputError, TunefleetError
from tunefleet.schemas.chat import ChatMessage, ChatPiece, ChatRequest
from tunefleet.validation_errors import summary

logger = logging.getLogger(__name__)
_PROMPT: Final = "> "
_QUIT: Final = frozenset({"/quit", "/exit", "/q"})
_MAX_TEMPERATURE: Final = 100.0
_HELP: Final = """\
/reset           new chat
/system TEXT     set the system prompt
/temperature X   set the sampling temperature; 0 = greedy
/quit            exit (also Ctrl-D)
/help            show this list
//TEXT           send a message that starts with a slash
Ctrl-C           stop the current answer"""
_EVERY_S = 0.1
# Free lines at the bottom of the screen: the cursor's, and one for what the user types in the meantime.
_BELOW = 2


class Answer:
    """The answer of one model while it streams."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = ""
        self.last: ChatPiece | None = None
        # Why the answer is stalled, if the server knows.
        self.waiting = ""
        self.error: TunefleetError | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of `--json`."""
        usage = self.last.usage if self.last is not None else None
        counted = None if usage is None else usage.model_dump()
        return {
            "model": self.name,
            "text": self.text,
            "finish_reason": self.last and self.last.finish,
            "usage": counted,
        }


def follow(answers: Sequence[Answer], threads: Sequence[threading.Thread], *, shown: bool) -> None:
    """Show the answers until the threads that receive them have ended.

    Raises:
        KeyboardInterrupt: On Ctrl-C; the text received so far is printed.
    """
    if not shown:
        _wait(threads)
    elif len(answers) == 1:
        _stream(answers[0], threads[0])
    elif out().is_terminal:
        _side_by_side(answers, threads)
    else:
        _wait(threads)
        for answer in answers:
            say(f"{answer.name}:", style="head")
            say(answer.text)


def _wait(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


def _stream(answer: Answer, thread: threading.Thread) -> None:
    printed, waiting = 0, ""
    try:
        while thread.is_alive():
            printed = _print_new(answer, printed)
            if answer.waiting != waiting:
                waiting = answer.waiting
                if waiting:
                    err().print(Text(f"{waiting} Waiting…", style="dim"))
            thread.join(_EVERY_S)
    finally:
        # Also after Ctrl-C: what arrived since the last round.
        _print_new(answer, printed)
        sys.stdout.write("\n")
        sys.stdout.flush()


def _print_new(answer: Answer, printed: int) -> int:
    """Print the new part of an answer, and return the length printed so far."""
    # Read once: another thread appends to it.
    text = answer.text
    fresh = text[printed:]
    sys.stdout.write(plain(fresh) if out().is_terminal else fresh)
    sys.stdout.flush()
    return len(text)


def _side_by_side(answers: Sequence[Answer], threads: Sequence[threading.Thread]) -> None:
    console = out()
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while left := [thread for thread in threads if thread.is_alive()]:
                # Doubles as the pause between two frames.
                left[0].join(_EVERY_S)
                live.update(_Tail(answers), refresh=True)
    finally:
        console.print(_columns(answers))


@dataclass(frozen=True, slots=True)
class _Tail:
    """The ends of the answers, as far as they fit on the screen: `Live` cannot redraw scrolled lines."""

    answers: Sequence[Answer]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(_columns(self.answers), options, pad=False)
        height = max(2, console.height - _BELOW)
        if len(lines) > height:
            # Aligned at the bottom: a short answer next to a long one must not scroll out of sight.
            lines = console.render_lines(_columns(self.answers, "bottom"), options, pad=False)
            lines = [lines[0], *lines[1 - height :]]
        for number, line in enumerate(lines):
            if number:
                yield Segment.line()
            yield from line


def _columns(answers: Sequence[Answer], vertical: Literal["top", "bottom"] = "top") -> Table:
    grid = Table(box=None, pad_edge=False, header_style="head", padding=(0, 3, 0, 0), expand=True)
    for answer in answers:
        grid.add_column(answer.name, ratio=1, overflow="fold", vertical=vertical)
    grid.add_row(*(_cell(answer) for answer in answers))
    return grid


def _cell(answer: Answer) -> Text:
    text = Text(answer.text)
    if answer.waiting:
        text.append(f"{chr(10) if answer.text else ''}{answer.waiting} Waiting…", style="dim")
    return text


class Conversation:
    """The messages of a chat, separately for each model.

    Args:
        sampling: Sampling parameters; `None` values use the defaults of the chat.
        suffix: Added to each message of the user, such as the separator that plain text was trained with.
    """

    def __init__(
        self,
        client: Client,
        task_id: str,
        names: list[str],
        sampling: Mapping[str, Any],
        *,
        system: str | None,
        suffix: str = "",
    ) -> None:
        self.names = names
        self._client = client
        self._task_id = task_id
        self._suffix = suffix
        self._sampling = {name: value for name, value in sampling.items() if value is not None}
        self._system = [ChatMessage(role="system", content=system)] if system else []
        self._history: dict[str, list[ChatMessage]] = {}
        self.reset()

    def reset(self) -> None:
        """Start a new chat."""
        self._history = {name: [] for name in self.names}

    def set_system_prompt(self, text: str) -> None:
        """Set the system prompt; the messages are kept.

        Raises:
            InputError: If it is too long.
        """
        try:
            self._system = [ChatMessage(role="system", content=text)]
        except ValidationError as error:
            raise InputError(f"Invalid system prompt: {summary(error, most=1)}.") from error

    def set_sampling(self, name: str, value: Any) -> None:
        """Set a sampling parameter."""
        self._sampling[name] = value

    def ask(self, text: str, answer: Answer, stop: threading.Event) -> None:
        """Send a message to one model; errors are stored in the answer."""
        try:
            messages = (
                *self._system,
                *self._history[answer.name],
                ChatMessage(role="user", content=text + self._suffix),
            )
            request = ChatRequest(messages=messages, model=answer.name, **self._sampling)
            for piece in self._client.tasks.chat(self._task_id, request):
                if stop.is_set():
                    break
                answer.waiting = piece.waiting or ""
                answer.text += piece.text
                if piece.waiting is None:
                    answer.last = piece
        except TunefleetError as error:
            answer.error = error
        except ValidationError as error:
            why = summary(error, most=1)
            answer.error = InputError(f"The conversation cannot be sent: {why}.", hint="Start a new chat with /reset.")
        except Exception as error:
            # Outermost handler of the thread: an exception would be lost, and the prompt would wait for an answer.
            logger.info("A chat request failed", exc_info=True)
            answer.error = TunefleetError(f"The question failed: {type(error).__name__}: {error}")
        finally:
            answer.waiting = ""

    def remember(self, text: str, answer: Answer) -> None:
        """Append the message and its answer, also a partial one, to the history."""
        complete = answer.last is not None and answer.last.finish is not None
        if answer.error is None and (answer.text or complete):
            message = ChatMessage(role="user", content=text)
            self._history[answer.name] += [message, ChatMessage(role="assistant", content=answer.text)]


def ask_once(conversation: Conversation, text: str, *, as_json: bool) -> None:
    """Send one message and print the answers.

    Raises:
        TunefleetError: If a request fails.
    """
    answers = _answers(conversation, text, shown=not as_json)
    for answer in answers:
        if answer.error is not None:
            raise answer.error
    if as_json:
        print_json({"answers": [answer.facts for answer in answers]})


def converse(conversation: Conversation) -> None:
    """Read messages from the terminal until the user quits."""
    if sys.stdin.isatty():
        # Drop keys that were pressed while the model was loading.
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
        say(f"Chat with {' and '.join(conversation.names)}. /help lists the commands, /quit exits.", style="dim")
    while (text := _read()) is not None:
        try:
            if text.startswith("/") and not text.startswith("//"):
                _run_command(conversation, text)
            elif text:
                _print_errors(
                    conversation, _answers(conversation, text[1:] if text.startswith("//") else text, shown=True)
                )
        except InputError as error:
            err().print(Text(str(error), style="bad"))


def _read() -> str | None:
    """Return the next input; None at the end."""
    try:
        text = input(_PROMPT if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        return None
    return None if text in _QUIT else text


def _run_command(conversation: Conversation, text: str) -> None:
    word, _, rest = text.partition(" ")
    rest = rest.strip()
    if word == "/help":
        say(_HELP)
    elif word == "/reset":
        conversation.reset()
    elif word == "/system":
        if not rest:
            raise InputError("/system needs a prompt.", hint="Example: /system Be brief.")
        conversation.set_system_prompt(rest)
    elif word == "/temperature":
        conversation.set_sampling("temperature", _temperature(rest))
    else:
        raise InputError(
            f"Unknown command {word}.", hint="/help lists the commands; // sends text that starts with a slash."
        )


def _temperature(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= _MAX_TEMPERATURE:
        raise InputError("/temperature needs a number from 0 to 100.", hint="Example: /temperature 0.7")
    return found


def _print_errors(conversation: Conversation, answers: Sequence[Answer]) -> None:
    for answer in answers:
        if answer.error is not None:
            whose = f"{answer.name}: " if len(conversation.names) > 1 else ""
            err().print(Text(f"{whose}{answer.error}", style="bad"))


def _answers(conversation: Conversation, text: str, *, shown: bool) -> list[Answer]:
    answers = [Answer(name) for name in conversation.names]
    stop = threading.Event()
    threads = [
        # Daemons: a stalled answer must not keep the process alive.
        threading.Thread(target=conversation.ask, args=(text, answer, stop), name=answer.name, daemon=True)
        for answer in answers
    ]
    try:
        for thread in threads:
            thread.start()
        follow(answers, threads, shown=shown)
    except KeyboardInterrupt:
        # The threads are not joined: one that waits for the next token may take long to see the event.
        stop.set()
    for answer in answers:
        # A stopped answer is part of the conversation, too.
        conversation.remember(text, answer)
    return answers
