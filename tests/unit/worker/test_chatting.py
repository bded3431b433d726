"""Turns of a chat whose process dies: one that has no word of an answer yet is taken by the next launch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tunefleet.runtime.chat_channel import Call
from tunefleet.schemas.chat import ChatMessage, ChatPiece, ChatRequest, ChatTurn
from tunefleet.worker.interfaces import Delivery
from tunefleet.worker.jobs.chat_relay import ChatRelay

WAITS = {"waiting": "The worker loads the model for 'base'."}
WORD = {"text": "18"}


class Dies:
    """A line to a chat whose process dies after what it has said."""

    def __init__(self, said: list[dict[str, Any]]) -> None:
        self._said = said

    def lines(self) -> Iterator[dict[str, Any]]:
        yield from self._said

    def close(self) -> None:
        pass


class Told:
    """Takes pieces for the server."""

    def __init__(self) -> None:
        self.pieces: list[ChatPiece] = []

    def chat_piece(self, task_id: str, turn_id: str, piece: ChatPiece) -> bool:
        assert (task_id, turn_id) == ("task-1", "turn-1")
        self.pieces.append(piece)
        return True


@pytest.mark.parametrize(
    ("said", "again"), [([], True), ([WAITS], True), ([WORD], False), ([WAITS, WORD], False), ([WORD, WAITS], False)]
)
def test_a_turn_without_a_word_of_an_answer_is_given_again(
    tmp_path: Path, said: list[dict[str, Any]], again: bool
) -> None:
    told = Told()
    relay = ChatRelay("task-1", tmp_path, lambda: cast(Delivery, told), serves_chat=True)
    turn = ChatTurn(id="turn-1", request=ChatRequest(messages=(ChatMessage(role="user", content="9 * 2?"),)))
    relay._answer(cast(Delivery, told), turn, cast(Call, Dies(said)))
    assert relay._waiting == ([turn] if again else [])
    lost = [piece for piece in told.pieces if piece.error is not None]
    assert len(lost) == (0 if again else 1), "else who asked is told that the answer is lost"
