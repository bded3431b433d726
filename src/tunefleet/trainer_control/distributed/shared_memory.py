"""Decisions of rank 0 on their way to the other ranks, and commands of other ranks on their way to rank 0.

A ring of entries in the process group's store. If all ranks are on one machine, the entries without commands go through
a shared memory page instead, and the store holds only the commands.
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
from .tcp_store import PeerWait, StoreConnection

_SLOTS = 64
_RECEIVE_EVERY_S = 0.25
_NO_PAGE = b"null"
_WORD_BYTES = 8
logger = logging.getLogger(__name__)


class Entry(NamedTuple):
    """One decision that rank 0 has published."""

    until: int
    """The last step that is decided."""
    at: int
    """The step at whose end `commands` act; -1 without commands."""
    commands: Sequence[Command]


class Publisher:
    """Rank 0's end.

    Args:
        connection: The connection to the other ranks.
    """

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection
        self._number = self._read_by_all = self._received = 0
        self._receive_at = time.monotonic()
        # The page, once every rank has mapped it.
        self._shared: Page | None = None
        # Every slot gets a value first, so that a listener can read it without asking whether it exists.
        for slot in range(_SLOTS):
            connection.set(_ring(slot), b"-1 -1 []")
        made = Page.make(_SLOTS)
        self._page = made[0] if made else None
        connection.set("page", made[1] if made else _NO_PAGE)
        connection.set("open", b"1")

    def publish_free(self, until: int) -> bool:
        """Publish that nothing acts up to a step, if that takes one memory access and no rank has a command.

        Returns:
            False if it was not published: `hear` the commands, then `say` it.
        """
        page, number = self._shared, self._number
        if page is None or number - self._read_by_all >= _SLOTS or not page.put_free(number, until):
            return False
        self._number = number + 1
        return True

    def say(self, entry: Entry) -> None:
        """Publish what acts where; waits if a rank is a whole ring behind."""
        number = self._number
        if number - self._read_by_all >= _SLOTS:
            self._await_readers(number)
        if entry.commands or self._shared is None:
            plain = [[item.command_id, item.command, item.data] for item in entry.commands]
            text = f"{number} {entry.until} {json.dumps([entry.at, plain]) if plain else '[]'}"
            self._connection.set(_ring(number), text.encode())
        if self._page is not None:
            self._page.put(number, entry.until, bool(entry.commands))
        self._number = number + 1

    def hear(self) -> list[Command]:
        """Return commands of other ranks; without a page, the store is read a few times a second only."""
        if self._shared is not None:
            if not self._shared.take_flag():
                return []
        elif (now := time.monotonic()) < self._receive_at:
            return []
        else:
            self._receive_at = now + _RECEIVE_EVERY_S
            if self._page is not None:
                self._await_answers(self._page)
        found: list[Command] = []
        for number in range(self._received + 1, self._connection.count("said") + 1):
            key = f"said/{number}"
            found.append(Command(*json.loads(self._connection.wait_for(key, (), "its command"))))
            self._connection.drop(key)
        self._received += len(found)
        return found

    def _await_answers(self, page: Page) -> None:
        without, have = divmod(self._connection.count("pages"), self._connection.size)
        if without + have < self._connection.size - 1:
            return
        # Every rank has opened it by now; the mapping stays without the descriptor.
        page.close()
        if without:
            self._page = None
        else:
            self._shared = page

    def _await_readers(self, number: int) -> None:
        """Wait until every rank has read what would be overwritten."""
        for rank in range(1, self._connection.size):
            wait = PeerWait(self._connection, (rank,), "its read position")
            while number - self._read_up_to(rank) >= _SLOTS:
                wait.once()
        self._read_by_all = min(self._read_up_to(rank) for rank in range(1, self._connection.size))

    def _read_up_to(self, rank: int) -> int:
        key = f"read/{rank}"
        return int(self._connection.read(key)) if self._connection.has(key) else 0


class Subscriber:
    """The end of any other rank."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection
        self._next = 0
        self._begun = False
        self._page: Page | None = None

    def hear(self, step: int) -> Entry:
        """Wait for the next decision of rank 0.

        Args:
            step: The step that is waited for, for the error message.

        Raises:
            PeerLostError: If nothing arrives in time.
        """
        if not self._begun:
            self._begin()
        entry = self._look() or self._wait(step)
        self._go_on()
        return entry

    def receive_free(self) -> int | None:
        """Take the next decision of rank 0, if it is there and nothing acts up to a step.

        Returns:
            The step; on None, call `hear`.
        """
        until = self._page.get_free(self._next) if self._page is not None else None
        if until is not None:
            self._go_on()
        return until

    def send(self, command: Command) -> None:
        """Send a command of this rank to rank 0."""
        # An atomic counter: several ranks may send at the same time.
        number = self._connection.count("said", 1)
        self._connection.set(f"said/{number}", json.dumps([command.command_id, command.command, command.data]).encode())
        if self._page is not None:
            self._page.tell()

    def _go_on(self) -> None:
        self._next += 1
        # Not at each entry: rank 0 needs the position only when the ring fills up.
        if self._next % (_SLOTS // 4) == 0:
            self._connection.set(f"read/{self._connection.rank}", b"%d" % self._next)

    def _begin(self) -> None:
        self._connection.wait_for("open", (0,), "its start")
        self._begun = True
        address = self._connection.read("page")
        if address != _NO_PAGE:
            self._page = Page.find(address, _SLOTS)
            # Counted by the size, so that one sum holds both numbers: ranks without a page, ranks with one.
            self._connection.count("pages", 1 if self._page is not None else self._connection.size)

    def _wait(self, step: int) -> Entry:
        wait = PeerWait(self._connection, (0,), f"the decision for step {step}")
        while (entry := self._look()) is None:
            wait.once()
        return entry

    def _look(self) -> Entry | None:
        free = self._page.get_free(self._next) if self._page is not None else None
        if free is not None:
            return Entry(free, -1, ())
        number, until, rest = self._connection.look(_ring(self._next)).split(b" ", 2)
        if number != b"%d" % self._next:
            return None
        at, plain = json.loads(rest) if rest != b"[]" else (-1, [])
        return Entry(int(until), at, [Command(*fields) for fields in plain])


def _ring(number: int) -> str:
    return f"ring/{number % _SLOTS}"


# Words before the ring.
_TOKEN, _FLAG, _RING = 0, 1, 2
# An entry is one word, so that it is written atomically: another processor may see several words in another order. From
# the top: the round of the ring in which it was written, counted from 1 (new memory holds none), the step, and `more`.
_ROUND_FROM, _STEP_FROM = 33, 1
_MORE = 1
_STEP = (1 << _ROUND_FROM - _STEP_FROM) - 1


class Page:
    """Entries of a ring, written by rank 0 and read by all, and a flag by which the others report a command.

    At the end of a step it costs one read or write of a word: the processor has computed meanwhile, and anything else
    that is touched is a cache miss.

    Args:
        fd: Of the memory; the page owns it.
        slots: How many entries the ring holds.
    """

    def __init__(self, fd: int, slots: int) -> None:
        # Closed only once: the number may belong to another file by then.
        self._closing = weakref.finalize(self, os.close, fd)
        self._slots = slots
        self._words = memoryview(mmap.mmap(fd, (_RING + slots) * _WORD_BYTES)).cast("q")

    @classmethod
    def make(cls, slots: int) -> tuple[Page, bytes] | None:
        """Create a page and the address by which others find it; None if the system does not support it."""
        if not hasattr(os, "memfd_create"):
            return None
        try:
            fd = os.memfd_create("tunefleet-ranks")
        except OSError as error:
            logger.info("Shared memory is not available (%s); the ranks use their store", error)
            return None
        # New pages are zero, which no valid entry is.
        os.ftruncate(fd, (_RING + slots) * _WORD_BYTES)
        page, token = cls(fd, slots), secrets.randbits(62)
        page._words[_TOKEN] = token
        address = {"host": machine(), "pid": os.getpid(), "fd": fd, "token": token}
        return page, json.dumps(address).encode()

    @classmethod
    def find(cls, address: bytes, slots: int) -> Page | None:
        """Open the page of another process, or return None if that is not possible."""
        location = json.loads(address)
        if location["host"] != machine():
            return None
        try:
            fd = os.open(f"/proc/{location['pid']}/fd/{location['fd']}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
            page = cls(fd, slots)
        except (OSError, ValueError) as error:
            # The process belongs to another user, or the number is another file's by now.
            logger.info("The shared memory of rank 0 cannot be opened (%s); this rank uses the store", error)
            return None
        page.close()
        return page if page._words[_TOKEN] == location["token"] else None

    def close(self) -> None:
        """Close the descriptor by which others find the memory; existing mappings stay."""
        self._closing()

    def put(self, number: int, until: int, more: bool) -> None:
        """Overwrite an entry.

        Args:
            number: Of the entry, counted from 0.
            until: The last step that is decided.
            more: Whether the store holds commands for it.
        """
        lap, slot = divmod(number, self._slots)
        self._words[_RING + slot] = lap + 1 << _ROUND_FROM | until << _STEP_FROM | _MORE * more

    def put_free(self, number: int, until: int) -> bool:
        """Write an entry without commands, unless a rank has a command; return whether it was written."""
        words = self._words
        if words[_FLAG]:
            return False
        lap, slot = divmod(number, self._slots)
        words[_RING + slot] = lap + 1 << _ROUND_FROM | until << _STEP_FROM
        return True

    def get_free(self, number: int) -> int | None:
        """Return the step up to which nothing acts; None if the entry is missing or has commands."""
        lap, slot = divmod(number, self._slots)
        word = self._words[_RING + slot]
        return word >> _STEP_FROM & _STEP if word >> _ROUND_FROM == lap + 1 and not word & _MORE else None

    def tell(self) -> None:
        """Report that the store holds a command for rank 0; called by another rank after writing it."""
        self._words[_FLAG] = 1

    def take_flag(self) -> bool:
        """Return and clear the flag; called by rank 0 before it reads the store."""
        if not self._words[_FLAG]:
            return False
        self._words[_FLAG] = 0
        return True
