"""A conversation in a terminal: with one model, or with two of them side by side."""

from __future__ import annotations

import logging
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError
from rich.text import Text

from tunefleet.cli.console import err, print_json, say
from tunefleet.cli.models.streaming_output import Answer, follow
from tunefleet.client import Client
from tunefleet.errors import InputError, TunefleetError
from tunefleet.schemas.chat import ChatMessage, ChatRequest

logger = logging.getLogger(__name__)

_PROMPT: Final = "> "
_QUIT: Final = frozenset({"/quit", "/exit", "/q"})
_MAX_TEMPERATURE: Final = 100.0
_HELP: Final = """\
/reset           begin anew
/system TEXT     from now on this is the system prompt
/temperature X   from now on draw so freely; 0: not at all
/quit            end the conversation; so does Ctrl-D
/help            this list
//TEXT           say something that begins with a slash
Ctrl-C           end the answer that is being given"""


class Conversation:
    """What was said, with each model by itself.

    Args:
        drawn: How answers are drawn; what is None is left to the chat.
    """

    def __init__(
        self, client: Client, task_id: str, names: list[str], drawn: Mapping[str, Any], *, system: str | None
    ) -> None:
        self.names = names
        self._client = client
        self._task_id = task_id
        self._drawn = {name: value for name, value in drawn.items() if value is not None}
        self._system = [ChatMessage(role="system", content=system)] if system else []
        self._said: dict[str, list[ChatMessage]] = {}
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._said = {name: [] for name in self.names}

    def prompt(self, text: str) -> None:
        """Take another system prompt; what was said stays.

        Raises:
            InputError: If it is too long.
        """
        try:
            self._system = [ChatMessage(role="system", content=text)]
        except ValidationError as error:
            raise InputError(f"This cannot be a system prompt: {error.errors()[0]['msg']}.") from error

    def draw(self, name: str, value: Any) -> None:
        """Draw answers in another way from now on."""
        self._drawn[name] = value

    def ask(self, text: str, answer: Answer, stop: threading.Event) -> None:
        """Let one model answer; what fails is noted in the answer."""
        try:
            said = (*self._system, *self._said[answer.name], ChatMessage(role="user", content=text))
            request = ChatRequest(messages=said, model=answer.name, **self._drawn)
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
            why = error.errors()[0]["msg"]
            answer.error = InputError(f"The conversation cannot be sent: {why}.", hint="/reset begins anew.")
        except Exception as error:
            # The edge of the thread: whatever it is, who asked is told.
            logger.info("A question failed", exc_info=True)
            answer.error = TunefleetError(f"The question failed: {type(error).__name__}: {error}")
        finally:
            answer.waiting = ""

    def remember(self, text: str, answer: Answer) -> None:
        """Take what was said, and the answer as far as it came, for what is said before the next question."""
        whole = answer.last is not None and answer.last.finish is not None
        if answer.error is None and (answer.text or whole):
            ours = ChatMessage(role="user", content=text)
            self._said[answer.name] += [ours, ChatMessage(role="assistant", content=answer.text)]


def once(talk: Conversation, text: str, *, as_json: bool) -> None:
    """Ask one question and print the answers.

    Raises:
        TunefleetError: If a model does not answer.
    """
    answers = _answers(talk, text, shown=not as_json)
    for answer in answers:
        if answer.error is not None:
            raise answer.error
    if as_json:
        print_json({"answers": [answer.facts for answer in answers]})


def converse(talk: Conversation) -> None:
    """Take questions from the terminal until the user ends it."""
    if sys.stdin.isatty():
        # What was typed while the model was loaded was typed at something else.
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
        say(f"You talk with {' and '.join(talk.names)}. /help lists what can be done, /quit ends.", style="dim")
    while (text := _read()) is not None:
        try:
            if text.startswith("/") and not text.startswith("//"):
                _obey(talk, text)
            elif text:
                _tell(talk, _answers(talk, text[1:] if text.startswith("//") else text, shown=True))
        except InputError as error:
            err().print(Text(str(error), style="bad"))


def _read() -> str | None:
    """Return what the user says; None at the end."""
    try:
        text = input(_PROMPT if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        return None
    return None if text in _QUIT else text


def _obey(talk: Conversation, text: str) -> None:
    word, _, rest = text.partition(" ")
    rest = rest.strip()
    if word == "/help":
        say(_HELP)
    elif word == "/reset":
        talk.reset()
    elif word == "/system":
        if not rest:
            raise InputError("/system needs a text.", hint="Write it behind: /system Be brief.")
        talk.prompt(rest)
    elif word == "/temperature":
        talk.draw("temperature", _temperature(rest))
    else:
        raise InputError(f"There is no {word}.", hint="/help lists what there is; // says what begins with a slash.")


def _temperature(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= _MAX_TEMPERATURE:
        raise InputError("/temperature needs a number from 0 to 100.", hint="Write it behind: /temperature 0.7")
    return found


def _tell(talk: Conversation, answers: Sequence[Answer]) -> None:
    for answer in answers:
        if answer.error is not None:
            whose = f"{answer.name}: " if len(talk.names) > 1 else ""
            err().print(Text(f"{whose}{answer.error}", style="bad"))


def _answers(talk: Conversation, text: str, *, shown: bool) -> list[Answer]:
    answers = [Answer(name) for name in talk.names]
    stop = threading.Event()
    threads = [
        threading.Thread(target=talk.ask, args=(text, answer, stop), name=answer.name, daemon=True)
        for answer in answers
    ]
    try:
        for thread in threads:
            thread.start()
        follow(answers, threads, shown=shown)
    except KeyboardInterrupt:
        # Not waited for: nothing may come for long, and then the thread sees it.
        stop.set()
    for answer in answers:
        # The words of an answer that was ended are part of the conversation, too.
        talk.remember(text, answer)
    return answers
