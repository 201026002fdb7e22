"""Axes: from figures to positions, and the ticks that people expect on them."""

import math
from typing import NamedTuple

from warpmeter import numerals


class Tick(NamedTuple):
    value: float
    text: str  # "" for a line without a label


class LogAxis:
    """Logarithmic from `low` to `high`, mapped to 0..1. `unit` chooses the ticks' texts: s, bytes, or a word or none.

    `base` 2 puts ticks on powers of two (lengths, bytes), 10 on 1, 2 and 5 times powers of ten.
    """

    def __init__(self, low, high, unit="", base=10, ticks=6):
        if not (0 < low <= high and math.isfinite(high)):
            raise ValueError(f"no logarithmic axis from {low} to {high}")
        self.low, self.high, self.unit, self.base = low, high, unit, base
        self._span = math.log(high / low) if high > low else 0.0
        self.ticks = self._place(ticks)

    @classmethod
    def around(cls, values, unit="", base=10, ticks=6, room=0.06):
        """With `room` of its length free at both ends."""
        low, high = min(values), max(values)
        if high / low < 1.5:
            low, high = low / 1.5, high * 1.5
        margin = (high / low) ** room
        return cls(low / margin, high * margin, unit, base, ticks)

    def position(self, value):
        return math.log(value / self.low) / self._span if self._span else 0.5

    def text(self, value):
        if self.unit == "s":
            return numerals.duration(value)
        if self.unit == "bytes":
            return numerals.bytes_binary(value)
        return numerals.significant(value, 6)

    def _place(self, most):
        if self.base == 2:
            return self._powers_of_two(most)
        decades = math.log10(self.high / self.low)
        steps = [(multiples, 1) for multiples in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,))]
        for multiples, step in steps + [((1,), step) for step in (2, 3, 6, 20, 60)]:
            found = self._decimal(multiples, step)
            if len(found) <= most:
                break
        labelled = {value: self.text(value) for value in found}
        # Lines between the labels only where they would not be a hatching.
        between = self._decimal(range(1, 10), 1) if decades <= 4 else self._decimal((1,), 1) if decades <= 12 else []
        return [Tick(value, labelled.get(value, "")) for value in sorted({*between, *labelled})]

    def _decimal(self, multiples, step):
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        values = [
            multiple * 10.0**power for power in range(first, last + 1) if power % step == 0 for multiple in multiples
        ]
        return [value for value in values if self._inside(value)]

    def _powers_of_two(self, most):
        first, last = math.floor(math.log2(self.low)), math.ceil(math.log2(self.high))
        for multiples in ((1, 1.25, 1.5, 1.75), (1, 1.5), (1,)):
            found = [multiple * 2.0**power for power in range(first, last + 1) for multiple in multiples]
            found = [value for value in found if self._inside(value)]
            if len(found) <= most:
                break
        step = -(-len(found) // most)
        found = found[(len(found) - 1) % step :: step]  # the highest is labelled: it is the one that matters
        return [Tick(value, self.text(value)) for value in found]

    def _inside(self, value):
        return self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)


class ValueAxis(LogAxis):
    """Logarithmic, with ticks at the values that were measured: a sweep's own lengths."""

    def __init__(self, values, text, room=0.04):
        self._values, self._text = sorted(set(values)), text
        low, high = self._values[0], self._values[-1]
        if high / low < 1.5:
            low, high = low / 1.5, high * 1.5
        margin = (high / low) ** room
        super().__init__(low / margin, high * margin, base=2)

    def _place(self, most):
        return [Tick(value, self._text(value)) for value in self._values]


class CategoryAxis:
    """Texts side by side, mapped to 0..1."""

    def __init__(self, categories):
        self._at = {category: (index + 0.5) / len(categories) for index, category in enumerate(categories)}
        self.ticks = [Tick(category, str(category)) for category in categories]

    def position(self, value):
        return self._at[value]


def thin(texts, positions, widths, gap):
    """Which of the texts, centred at rising `positions`, fit without touching: the last, then the first, then from the
    right whatever has room. Returns a list of bool."""
    keep = [False] * len(texts)
    taken = []

    def fits(index):
        left, right = positions[index] - widths[index] / 2 - gap, positions[index] + widths[index] / 2 + gap
        return all(right <= other_left or left >= other_right for other_left, other_right in taken)

    order = [len(texts) - 1, 0, *range(len(texts) - 2, 0, -1)] if len(texts) > 1 else list(range(len(texts)))
    for index in order:
        if texts[index] and fits(index):
            keep[index] = True
            taken.append((positions[index] - widths[index] / 2, positions[index] + widths[index] / 2))
    return keep


def spread(wanted, height, low, high):
    """Places for labels `height` tall, as near to the `wanted` middles as they fit between `low` and `high` without
    overlapping. Labels that cannot all fit are squeezed evenly."""
    if not wanted:
        return []
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    step = min(height, (high - low) / max(1, len(wanted)))
    # Blocks of touching labels, each at the mean of where its labels want to be.
    blocks = []
    for index in order:
        block = [[index], min(max(wanted[index], low + step / 2), high - step / 2)]
        while blocks and blocks[-1][1] + step * len(blocks[-1][0]) / 2 > block[1] - step * len(block[0]) / 2:
            before = blocks.pop()
            members = before[0] + block[0]
            centre = (before[1] * len(before[0]) + block[1] * len(block[0])) / len(members)
            half = step * len(members) / 2
            block = [members, min(max(centre, low + half), high - half)]
        blocks.append(block)
    places = [0.0] * len(wanted)
    for members, centre in blocks:
        for position, index in enumerate(members):
            places[index] = centre + step * (position - (len(members) - 1) / 2)
    return places
