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
