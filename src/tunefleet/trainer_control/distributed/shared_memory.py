"""What rank 0 has decided, on its way to the other ranks, and what they were asked for, on its way to rank 0.

A ring of entries in the store that the ranks met in. Where all ranks live on one machine, what is said at every step
goes through a page of memory instead, and the store has the commands alone.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import secrets
import time
import weakref
from collections.abc import Sequence
from typing import NamedTuple

from ..control.command_queue import Command
from ..process_identity import machine
from .tcp_store import Line, Patience

_SLOTS = 64
_HEAR_EVERY_S = 0.25
_NO_PAGE = b"null"


class Entry(NamedTuple):
    """One thing that rank 0 has said."""

    until: int
    """Up to which step everything is decided."""
    at: int
    """The step at whose end `commands` act; -1 without any."""
    commands: Sequence[Command]


class Speaker:
    """Rank 0's end.

    Args:
        line: To the other ranks.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._number = self._read_by_all = self._heard = 0
        self._hear_at = time.monotonic()
        # The page, once every rank has it.
        self._shared: Page | None = None
        for slot in range(_SLOTS):
            line.set(_ring(slot), b"-1 -1 []")
        made = Page.make(_SLOTS)
        self._page = made[0] if made else None
        line.set("page", made[1] if made else _NO_PAGE)
        line.set("open", b"1")

    def say_free(self, until: int) -> bool:
        """Tell the others that nothing acts up to a step, if that takes one word of memory and none of them asks.

        Returns:
            False where it was not told: `hear` what they ask for, then `say` it.
        """
        page, number = self._shared, self._number
        if page is None or number - self._read_by_all >= _SLOTS or not page.put_free(number, until):
            return False
        self._number = number + 1
        return True

    def say(self, entry: Entry) -> None:
        """Tell the others what acts where; waits where one of them is a whole ring behind."""
        number = self._number
        if number - self._read_by_all >= _SLOTS:
            self._make_room(number)
        if entry.commands or self._shared is None:
            plain = [[item.command_id, item.command, item.data] for item in entry.commands]
            text = f"{number} {entry.until} {json.dumps([entry.at, plain]) if plain else '[]'}"
            self._line.set(_ring(number), text.encode())
        if self._page is not None:
            self._page.put(number, entry.until, bool(entry.commands))
        self._number = number + 1

    def hear(self) -> list[Command]:
        """Return what other ranks were asked for since; without a page it looks a few times a second."""
        if self._shared is not None:
            if not self._shared.was_told():
                return []
        elif (now := time.monotonic()) < self._hear_at:
            return []
        else:
            self._hear_at = now + _HEAR_EVERY_S
            if self._page is not None:
                self._await_answers(self._page)
        found: list[Command] = []
        for number in range(self._heard + 1, self._line.count("said") + 1):
            key = f"said/{number}"
            found.append(Command(*json.loads(self._line.wait_for(key, (), "what it was asked for"))))
            self._line.drop(key)
        self._heard += len(found)
        return found

    def _await_answers(self, page: Page) -> None:
        without, have = divmod(self._line.count("pages"), self._line.size)
        if without + have < self._line.size - 1:
            return
        page.close()
        if without:
            self._page = None
        else:
            self._shared = page

    def _make_room(self, number: int) -> None:
        """Wait until every rank has read what would be overwritten: what is known of it, unless that is old."""
        for rank in range(1, self._line.size):
            patience = Patience(self._line, (rank,), "that it has read what was decided")
            while number - self._read_up_to(rank) >= _SLOTS:
                patience.spend()
        self._read_by_all = min(self._read_up_to(rank) for rank in range(1, self._line.size))

    def _read_up_to(self, rank: int) -> int:
        key = f"read/{rank}"
        return int(self._line.read(key)) if self._line.has(key) else 0


class Listener:
    """Any other rank's end."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._next = 0
        self._begun = False
        self._page: Page | None = None

    def hear(self, step: int) -> Entry:
        """Wait for the next thing that rank 0 says.

        Args:
            step: What is waited for, for the error.

        Raises:
            PeerLostError: If nothing comes.
        """
        if not self._begun:
            self._begin()
        entry = self._look() or self._wait(step)
        self._go_on()
        return entry

    def hear_free(self) -> int | None:
        """Take the next thing that rank 0 says, if it is there and tells that nothing acts up to a step.

        Returns:
            The step; None leaves it to `hear`.
        """
        until = self._page.get_free(self._next) if self._page is not None else None
        if until is not None:
            self._go_on()
        return until

    def pass_on(self, command: Command) -> None:
        """Tell rank 0 what this rank was asked for."""
        number = self._line.count("said", 1)
        self._line.set(f"said/{number}", json.dumps([command.command_id, command.command, command.data]).encode())
        if self._page is not None:
            self._page.tell()

    def _go_on(self) -> None:
        self._next += 1
        if self._next % (_SLOTS // 4) == 0:
            self._line.set(f"read/{self._line.rank}", b"%d" % self._next)

    def _begin(self) -> None:
        self._line.wait_for("open", (0,), "that it has begun")
        self._begun = True
        address = self._line.read("page")
        if address != _NO_PAGE:
            self._page = Page.find(address, _SLOTS)
            # One that has none is more than all others that have it.
            self._line.count("pages", 1 if self._page is not None else self._line.size)

    def _wait(self, step: int) -> Entry:
        patience = Patience(self._line, (0,), f"what is decided for step {step}")
        while (entry := self._look()) is None:
            patience.spend()
        return entry

    def _look(self) -> Entry | None:
        free = self._page.get_free(self._next) if self._page is not None else None
        if free is not None:
            return Entry(free, -1, ())
        number, until, rest = self._line.look(_ring(self._next)).split(b" ", 2)
        if number != b"%d" % self._next:
            return None
        at, plain = json.loads(rest) if rest != b"[]" else (-1, [])
        return Entry(int(until), at, [Command(*fields) for fields in plain])


def _ring(number: int) -> str:
    return f"ring/{number % _SLOTS}"


logger = logging.getLogger(__name__)

_WORD_BYTES = 8
# Words before the ring.
_TOKEN, _TOLD, _RING = 0, 1, 2
# An entry is one word, which is written at once: another processor may see several in another order. From its top:
# in which round of the ring it was written, counted from 1 (fresh memory holds none), the step, and `more`.
_ROUND_FROM, _STEP_FROM = 33, 1
_MORE = 1
_STEP = (1 << _ROUND_FROM - _STEP_FROM) - 1


class Page:
    """Entries of a ring, which rank 0 writes and all read, and a word by which the others say that they want something.

    What a step's end asks of it is one look at a word or one change of it: the processor has computed meanwhile, and
    whatever else is touched comes from memory again.

    Args:
        fd: Of the memory; it belongs to the page.
        slots: How many entries the ring holds.
    """

    def __init__(self, fd: int, slots: int) -> None:
        # Only once: another file may have the number by then.
        self._closing = weakref.finalize(self, os.close, fd)
        self._slots = slots
        self._words = memoryview(mmap.mmap(fd, (_RING + slots) * _WORD_BYTES)).cast("q")

    @classmethod
    def make(cls, slots: int) -> tuple[Page, bytes] | None:
        """Make a page, and what others need to find it; None where a system has no such memory."""
        if not hasattr(os, "memfd_create"):
            return None
        try:
            fd = os.memfd_create("tunefleet-ranks")
        except OSError as error:
            logger.info("There is no memory to share (%s); the ranks ask their store", error)
            return None
        os.ftruncate(fd, (_RING + slots) * _WORD_BYTES)
        page, token = cls(fd, slots), secrets.randbits(62)
        page._words[_TOKEN] = token
        address = {"host": machine(), "pid": os.getpid(), "fd": fd, "token": token}
        return page, json.dumps(address).encode()

    @classmethod
    def find(cls, address: bytes, slots: int) -> Page | None:
        """Open the page of another process, or return None where this one cannot."""
        told = json.loads(address)
        if told["host"] != machine():
            return None
        try:
            fd = os.open(f"/proc/{told['pid']}/fd/{told['fd']}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
            page = cls(fd, slots)
        except (OSError, ValueError) as error:
            # Of another user, or the number is another file's by now.
            logger.info("The memory of rank 0 cannot be opened (%s); this rank asks the store", error)
            return None
        page.close()
        return page if page._words[_TOKEN] == told["token"] else None

    def close(self) -> None:
        """Close the descriptor by which others find it; whoever has it keeps it."""
        self._closing()

    def put(self, number: int, until: int, more: bool) -> None:
        """Write an entry over the one that was there before.

        Args:
            number: Of the entry, counted from 0.
            until: Up to which step everything is decided.
            more: Whether the store has commands with it.
        """
        lap, slot = divmod(number, self._slots)
        self._words[_RING + slot] = lap + 1 << _ROUND_FROM | until << _STEP_FROM | _MORE * more

    def put_free(self, number: int, until: int) -> bool:
        """Write an entry without commands, unless something was said: return whether it was written."""
        words = self._words
        if words[_TOLD]:
            return False
        lap, slot = divmod(number, self._slots)
        words[_RING + slot] = lap + 1 << _ROUND_FROM | until << _STEP_FROM
        return True

    def get_free(self, number: int) -> int | None:
        """Return up to which step nothing acts by an entry; None if it is not there, or has commands."""
        lap, slot = divmod(number, self._slots)
        word = self._words[_RING + slot]
        return word >> _STEP_FROM & _STEP if word >> _ROUND_FROM == lap + 1 and not word & _MORE else None

    def tell(self) -> None:
        """Say that the store has something for rank 0; by another rank, when it has."""
        self._words[_TOLD] = 1

    def was_told(self) -> bool:
        """Return whether something was said since the last time; by rank 0, before it looks at the store."""
        if not self._words[_TOLD]:
            return False
        self._words[_TOLD] = 0
        return True
