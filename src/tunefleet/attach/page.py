"""A page of memory that the ranks of one machine share, so that a step's end costs no message to a store.

A message wakes the thread that keeps the store, beside processors that compute: a quarter of a millisecond. Ranks of
several machines, in containers of their own or on a system without `memfd_create` have no page.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import secrets
import weakref

from .identity import machine

logger = logging.getLogger(__name__)

_WORD = 8
_HEAD = 1
_SLOT = 3
# What fresh memory holds is no entry.
_MAGIC = 0x5443_4F4E_5452_4F4C


class Page:
    """Entries of a ring, written by rank 0 and read by all, and a counter of each rank, written by that rank alone.

    Words are written whole, but another processor may see them in another order: an entry has a check.

    Args:
        fd: Of the memory; it belongs to the page.
        slots: How many entries the ring holds.
        size: How many ranks there are.
    """

    def __init__(self, fd: int, slots: int, size: int) -> None:
        # Only once: another file may have the number by then.
        self._closing = weakref.finalize(self, os.close, fd)
        self._slots = slots
        self._counters = _HEAD + slots * _SLOT
        self._length = (self._counters + size) * _WORD
        self._words = memoryview(mmap.mmap(fd, self._length)).cast("q")

    @classmethod
    def make(cls, slots: int, size: int) -> tuple[Page, bytes] | None:
        """Make a page, and what others need to find it; None where a system has no such memory."""
        if not hasattr(os, "memfd_create"):
            return None
        try:
            fd = os.memfd_create("tunefleet-ranks")
        except OSError as error:
            logger.info("There is no memory to share (%s); the ranks ask their store", error)
            return None
        os.ftruncate(fd, (_HEAD + slots * _SLOT + size) * _WORD)
        page = cls(fd, slots, size)
        token = page._words[0] = secrets.randbits(62)
        address = {"host": machine(), "pid": os.getpid(), "fd": fd, "token": token}
        return page, json.dumps(address).encode()

    @classmethod
    def find(cls, address: bytes, slots: int, size: int) -> Page | None:
        """Open the page of another process, or return None where this one cannot."""
        told = json.loads(address)
        if told["host"] != machine():
            return None
        try:
            fd = os.open(f"/proc/{told['pid']}/fd/{told['fd']}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
            page = cls(fd, slots, size)
        except (OSError, ValueError) as error:
            # Of another user, or the number is another file's by now.
            logger.info("The memory of rank 0 cannot be opened (%s); this rank asks the store", error)
            return None
        page.close()
        return page if page._words[0] == told["token"] else None

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
        at, fact = _HEAD + number % self._slots * _SLOT, until * 2 + more
        self._words[at + 1] = fact
        self._words[at + 2] = number ^ fact ^ _MAGIC
        self._words[at] = number

    def get(self, number: int) -> tuple[int, bool] | None:
        """Return `until` and `more` of an entry, or None as long as it is not there."""
        at = _HEAD + number % self._slots * _SLOT
        there, fact, check = self._words[at : at + _SLOT]
        return (fact // 2, bool(fact % 2)) if there == number and check == number ^ fact ^ _MAGIC else None

    def set_count(self, rank: int, count: int) -> None:
        """Write the counter of this rank."""
        self._words[self._counters + rank] = count

    def count(self) -> int:
        """Return the sum of all counters."""
        return sum(self._words[self._counters :])
