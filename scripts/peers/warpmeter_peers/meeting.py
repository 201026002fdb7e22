"""Where the ranks of one host meet: counters in a file that all of them map, beside whatever is being measured."""

import mmap
import struct
import time

_SLOT = 64  # bytes: a cache line each
_SPINS = 2000


class Late(Exception):
    """Ranks that have not come in time."""

    def __init__(self, ranks, seconds):
        super().__init__(f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(map(str, ranks))} did not come within "
                         f"{seconds:g} s")
        self.ranks = ranks


class Meeting:
    """Each rank has a slot: how often it has come, and three numbers that it leaves for the others."""

    @staticmethod
    def create(path, ranks):
        with open(path, "wb") as file:
            file.write(bytes(_SLOT * (ranks + 1)))

    def __init__(self, path, rank, ranks, timeout_s, crowded):
        self._rank, self._ranks, self._timeout_s, self._crowded = rank, ranks, timeout_s, crowded
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SLOT * (ranks + 1))
        self._words = memoryview(self._memory).cast("q")
        self._count = 0

    def come(self):
        """Returns when all have come as often as this rank."""
        self._count += 1
        words, count, step = self._words, self._count, _SLOT // 8
        words[self._rank * step] = count
        spins, deadline = 0, None
        for other in range(self._ranks):
            while words[other * step] < count:
                spins += 1
                if self._crowded or spins > _SPINS:
                    time.sleep(0 if spins < 50 * _SPINS else 0.001)
                    if deadline is None:
                        deadline = time.monotonic() + self._timeout_s
                    elif time.monotonic() > deadline:
                        raise Late([r for r in range(self._ranks) if words[r * step] < count], self._timeout_s)

    def leave_numbers(self, *numbers):
        struct.pack_into(f"<{len(numbers)}d", self._memory, self._rank * _SLOT + 8, *numbers)

    def numbers(self, rank, count):
        return struct.unpack_from(f"<{count}d", self._memory, rank * _SLOT + 8)
