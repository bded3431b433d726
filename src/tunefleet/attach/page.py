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
import struct
import weakref

from .identity import machine

logger = logging.getLogger(__name__)

_WORD = struct.Struct("q")
_ENTRY = struct.Struct("qqq")
_TOKEN, _TOLD, _RING = 0, 8, 16
# What fresh memory holds is no entry.
_MAGIC = 0x5443_4F4E_5452_4F4C


class Page:
    """Entries of a ring, which rank 0 writes and all read, and a word by which the others say that they want something.

    Another processor may see the words of an entry in another order than they were written in: an entry has a check.

    Args:
        fd: Of the memory; it belongs to the page.
        slots: How many entries the ring holds.
    """

    def __init__(self, fd: int, slots: int) -> None:
        # Only once: another file may have the number by then.
        self._closing = weakref.finalize(self, os.close, fd)
        self._slots = slots
        self._memory = mmap.mmap(fd, _RING + slots * _ENTRY.size)

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
        os.ftruncate(fd, _RING + slots * _ENTRY.size)
        page, token = cls(fd, slots), secrets.randbits(62)
        _WORD.pack_into(page._memory, _TOKEN, token)
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
        return page if _WORD.unpack_from(page._memory, _TOKEN) == (told["token"],) else None

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
        fact = until * 2 + more
        at = _RING + number % self._slots * _ENTRY.size
        _ENTRY.pack_into(self._memory, at, number, fact, number ^ fact ^ _MAGIC)

    def get(self, number: int) -> tuple[int, bool] | None:
        """Return `until` and `more` of an entry, or None as long as it is not there."""
        there, fact, check = _ENTRY.unpack_from(self._memory, _RING + number % self._slots * _ENTRY.size)
        return (fact // 2, bool(fact % 2)) if there == number and check == number ^ fact ^ _MAGIC else None

    def tell(self) -> None:
        """Say that the store has something for rank 0; by another rank, when it has."""
        _WORD.pack_into(self._memory, _TOLD, 1)

    def was_told(self) -> bool:
        """Return whether something was said since the last time; by rank 0, before it looks at the store."""
        if not _WORD.unpack_from(self._memory, _TOLD)[0]:
            return False
        _WORD.pack_into(self._memory, _TOLD, 0)
        return True
