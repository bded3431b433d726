"""A conversation at a terminal: what is typed, what the models answer, and what stands on the screen in the end."""

from __future__ import annotations

import io
import os
import re
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tunefleet.cli.console import err, out
from tunefleet.cli.models import chat_commands, terminal_chat
from tunefleet.cli.models.terminal_chat import Answer
from tunefleet.errors import ConflictError, InputError
from tunefleet.schemas.chat import ChatPiece, ChatRequest, ChatView

WIDTH, HEIGHT = 70, 12
END = ChatPiece(finish="stop")
Says = Callable[[ChatRequest], Iterator[ChatPiece]]


class Tty(io.StringIO):
    """A terminal that is written to, or typed at."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise io.UnsupportedOperation


class FakeClient:
    """Answers turns, and remembers what it was asked."""

    def __init__(self, says: Says) -> None:
        self.asked: list[ChatRequest] = []
        self.tasks = SimpleNamespace(chat=self._chat)
        self._says = says

    def _chat(self, task_id: str, request: ChatRequest) -> Iterator[ChatPiece]:
        assert task_id == "task-1"
        self.asked.append(request)
        return self._says(request)

    def said(self, number: int) -> list[tuple[str, str]]:
        return [(each.role, each.content) for each in self.asked[number].messages]


def echo(request: ChatRequest) -> Iterator[ChatPiece]:
    yield ChatPiece(text=f"{request.model} heard ")
    yield ChatPiece(text=request.messages[-1].content)
    yield END


def talk_of(client: FakeClient, *names: str, **more: Any) -> terminal_chat.Conversation:
    return terminal_chat.Conversation(client, "task-1", list(names), {"max_tokens": 9}, system=None, **more)  # type: ignore[arg-type]


def terminal(monkeypatch: pytest.MonkeyPatch) -> Tty:
    made = Tty()
    monkeypatch.setattr(sys, "stdout", made)
    for name, value in {"COLUMNS": str(WIDTH), "LINES": str(HEIGHT), "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    assert out().is_terminal
    return made


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def shown(written: str, height: int = HEIGHT) -> list[str]:
    """Return the lines that stand on a terminal and above it after something was written to it."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part.startswith("\x1b"):
            if part.endswith("A"):
                row = max(row - int(part[2:-1] or 1), len(lines) - height, 0)
            elif part == "\x1b[2K":
                lines[row] = ""
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


def test_one_model_answers_until_the_end_of_the_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FakeClient(echo)
    typed(monkeypatch, "first", "second", "", "/reset", "third")
    terminal_chat.converse(talk_of(client, "tuned"))
    assert capsys.readouterr().out == "tuned heard first\ntuned heard second\ntuned heard third\n"
    assert client.said(1) == [("user", "first"), ("assistant", "tuned heard first"), ("user", "second")]
    assert client.said(2) == [("user", "third")], "begun anew"
    assert client.asked[0].max_tokens == 9


def test_commands_are_never_put_to_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FakeClient(echo)
    lines = ["/help", "/halp", "/system", "/temperature hot", "/system Be brief.", "one", "/temperature 0", "//two"]
    typed(monkeypatch, *lines, "/quit", "never")
    terminal_chat.converse(talk_of(client, "base"))
    told = capsys.readouterr()
    assert "/system TEXT" in told.out
    assert [line.split(".")[0] for line in told.err.splitlines()] == [
        "Unknown command /halp", "/system needs a prompt", "/temperature needs a number from 0 to 100",
    ]  # fmt: skip
    assert len(client.asked) == 2
    assert client.said(0) == [("system", "Be brief."), ("user", "one")]
    assert client.said(1)[-1] == ("user", "/two")
    assert [asked.temperature for asked in client.asked] == [None, 0.0]


def test_answers_side_by_side_stand_on_the_screen_once_however_long_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)

    def long(request: ChatRequest) -> Iterator[ChatPiece]:
        for number in range(30):
            yield ChatPiece(text=f"{request.model}-line-{number}\n")
            painted.acquire(timeout=10)
        yield END

    painted = threading.Semaphore(0)
    beside = terminal_chat._columns

    def paint(*about: Any) -> Any:
        painted.release(2)
        return beside(*about)

    monkeypatch.setattr(terminal_chat, "_EVERY_S", 0.001)
    monkeypatch.setattr(terminal_chat, "_columns", paint)
    talk = talk_of(FakeClient(long), "base", "tuned")
    terminal_chat.ask_once(talk, "Tell me.", as_json=False)
    lines = shown(screen.getvalue())
    assert [line.split() for line in lines if line.split() == ["base", "tuned"]] == [["base", "tuned"]]
    rows = [line.split() for line in lines if "-line-" in line]
    assert rows == [[f"base-line-{number}", f"tuned-line-{number}"] for number in range(30)]


def test_what_grows_is_cut_to_the_end_that_the_screen_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    answers = [Answer("base"), Answer("tuned")]
    answers[0].text = "\n".join(f"line {number}" for number in range(40))
    answers[1].waiting = "It hangs."
    lines = [
        "".join(each.text for each in line).split(maxsplit=2)
        for line in out().render_lines(terminal_chat._Tail(answers))
    ]
    assert len(lines) < HEIGHT
    assert lines[:2] == [["base", "tuned"], ["line", "31"]]
    assert [each.strip() for each in lines[-1]] == ["line", "39", "It hangs. Waiting…"]


def test_no_character_is_lost_of_an_answer_that_grows_while_it_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    class Growing(Answer):
        reads = 0

        @property
        def text(self) -> str:
            self.reads += 1
            return "".join(chr(97 + number % 26) for number in range(self.reads))

        @text.setter
        def text(self, text: str) -> None:
            pass

    answer = Growing("base")
    alive = iter([True, True, False])
    thread = SimpleNamespace(is_alive=lambda: next(alive), join=lambda _: None)
    terminal_chat.follow([answer], [thread], shown=True)  # type: ignore[list-item]
    assert capsys.readouterr().out == "abc\n"


def test_ctrl_c_ends_an_answer_and_not_the_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    came, never, interrupted = threading.Event(), threading.Event(), threading.Event()

    class Interrupted(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            if not interrupted.is_set():
                assert came.wait(60)
                interrupted.set()
                raise KeyboardInterrupt
            super().join(timeout)

    def half(request: ChatRequest) -> Iterator[ChatPiece]:
        yield ChatPiece(text="half")
        if len(request.messages) == 1:
            came.set()
            # Nothing more comes: who has ended the answer does not wait for it.
            never.wait(60)
        yield END

    client = FakeClient(half)
    typed(monkeypatch, "first", "second")
    with monkeypatch.context() as patched:
        patched.setattr(terminal_chat, "threading", SimpleNamespace(Thread=Interrupted, Event=threading.Event))
        terminal_chat.converse(talk_of(client, "base"))
    assert not never.is_set()
    never.set()
    assert capsys.readouterr().out == "half\nhalf\n"
    assert client.said(1) == [("user", "first"), ("assistant", "half"), ("user", "second")]


def test_a_failure_is_told_with_the_model_that_it_is_of_and_forgotten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(request: ChatRequest) -> Iterator[ChatPiece]:
        if request.model == "tuned" and len(client.asked) <= 2:
            raise ConflictError("The conversation has 521 tokens.", hint="Start a new chat with /reset.")
        yield from echo(request)

    client = FakeClient(fails)
    typed(monkeypatch, "first", "second")
    terminal_chat.converse(talk_of(client, "base", "tuned"))
    told = capsys.readouterr()
    assert told.err == "tuned: The conversation has 521 tokens. Start a new chat with /reset.\n"
    assert "base:\nbase heard second\ntuned:\ntuned heard second\n" in told.out
    by_name = {asked.model: [each.content for each in asked.messages] for asked in client.asked[2:]}
    assert by_name == {"base": ["first", "base heard first", "second"], "tuned": ["second"]}


def test_why_nothing_comes_is_told_once_and_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def waits(request: ChatRequest) -> Iterator[ChatPiece]:
        yield ChatPiece(waiting="The worker does not respond.")
        assert telling.wait(60)
        yield ChatPiece(waiting="")
        yield from echo(request)

    telling = threading.Event()

    def told() -> Console:
        telling.set()
        return err()

    monkeypatch.setattr(terminal_chat, "err", told)
    monkeypatch.setattr(terminal_chat, "_EVERY_S", 0.001)
    terminal_chat.ask_once(talk_of(FakeClient(waits), "base"), "Hello?", as_json=False)
    written = capsys.readouterr()
    assert written.err == "The worker does not respond. Waiting…\n"
    assert written.out == "base heard Hello?\n"


def test_what_was_typed_before_the_first_prompt_is_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, typed_at = os.openpty()
    client = FakeClient(echo)
    with os.fdopen(typed_at, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        os.write(controller, b"typed at the spinner\n")
        assert select.select([typed_at], [], [], 10)[0], "it has arrived"

        def prompt(_: str) -> str:
            assert not select.select([typed_at], [], [], 0)[0], "nothing is left of it"
            raise EOFError

        monkeypatch.setattr("builtins.input", prompt)
        terminal_chat.converse(talk_of(client, "base"))
    os.close(controller)
    assert client.asked == []


def test_why_a_chat_waits_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    views = iter(ChatView(task_id="t", status=each, ready=each == "ready") for each in ("queued", "running", "ready"))
    chat = {"model": {"source": {"identifier": "tiny"}}, "checkpoint": {"load": {"taskId": "task-1"}}}
    found = iter(
        SimpleNamespace(why=why, resolved=None, spec=chat) for why in ("waiting: box-1 is busy [1 of 1].", None)
    )
    tasks = SimpleNamespace(get_chat=lambda _: next(views), get=lambda _: next(found))
    status = SimpleNamespace(update=lambda text: shown.append(str(text)))
    console = SimpleNamespace(status=lambda _: nullcontext(status), print=lambda text: shown.append(str(text)))
    monkeypatch.setattr(chat_commands, "err", lambda: console)
    monkeypatch.setattr(chat_commands, "_POLL_S", 0)
    assert chat_commands._ready(SimpleNamespace(tasks=tasks), "t").ready  # type: ignore[arg-type]
    assert shown == [
        "Chat t: waiting: box-1 is busy [1 of 1].  0 s",
        "Loading tiny with the result of task-1  0 s",
        "Loaded tiny with the result of task-1 in 0.0 s.",
    ]


def test_what_is_too_much_to_be_sent_is_said_and_asks_nobody() -> None:
    client = FakeClient(echo)
    talk = terminal_chat.Conversation(client, "task-1", ["tuned"], {}, system=None)  # type: ignore[arg-type]
    answer = Answer("tuned")
    talk.ask("x" * 1_000_001, answer, threading.Event())
    assert (client.asked, "/reset" in str(answer.error)) == ([], True)
    with pytest.raises(InputError, match="system prompt"):
        talk.set_system_prompt("x" * 1_000_001)
