"""Was it faster? What two measurements of one configuration allow to say.

The rule, for one phase of one row. r is the new median over the base median, and its uncertainty u is such that two
runs of the same program differ by more only once in some twenty times:

    u = 2 * sqrt(s_base^2 + s_new^2) + g        s^2 = e^2 + d^2 + f^2

e   how well a run's samples tell its own median: from the order statistics around the middle; without raw samples from
    noise and count, 0.93 * noise / sqrt(n). Widened by Student's t for few samples.
d   how far the machine moves from run to run, of which a single run only shows traces: the largest of half the noise
    (device time of a GPU: a third; its noise is its timer's and its caches' more than a drift), the spread (scaled MAD)
    of the medians of eight consecutive parts of the raw samples, and, where several files of one build are at hand,
    half the distance between their medians. A time without samples of its own (communication, what of it is exposed)
    is taken to move as much as the noisiest phase of its row.
f   0.4%: what clocks and temperature move between two runs of an idle machine however steady each was.
g   what the clocks explain: by how much the two runs' SM clocks differ, where the rows have them; and on a GPU one
    grain of its timer (32 ns) beside the median.

SLOWER      r > 1 + effect, r is more than u from 1, and the least times say so too, by half the effect: other programs
            lengthen some samples, more work lengthens the shortest
FASTER      the same with 1 / r
SAME        within the effect, and u below five thirds of it: a change of 5% would have shown
UNCLEAR     anything else: more samples, or a quieter machine, would tell

with an effect of 3% unless told otherwise. Kernels of some microseconds on a CPU are up to 3% faster in one process
than in the next, by where their operands happen to lie; no run shows that of itself. Less than the effect needs several
runs of each build, which a history pools.
"""

import math
from statistics import median
from typing import NamedTuple, Optional

EFFECT = 0.03
FLOOR = 0.004
CONFIDENCE = 2.0  # standard deviations, about 95%
DRIFT_OF_NOISE = 0.5
DRIFT_OF_NOISE_GPU = 1 / 3
MEDIAN_OF_NOISE = 0.929  # sqrt(pi / 2) / 1.349: the error of a median, from the interquartile range
MAD_TO_SIGMA = 1.4826
PARTS = 8
GPU_GRAIN_MS = 32e-6
MOST_UNSURE = 5 / 3  # effects

SAME, FASTER, SLOWER, UNCLEAR = "SAME", "FASTER", "SLOWER", "UNCLEAR"

#: Two-sided 95% points of Student's t over those of the normal distribution, by degrees of freedom.
_STUDENT = {
    1: 6.48,
    2: 2.20,
    3: 1.62,
    4: 1.42,
    5: 1.31,
    6: 1.25,
    7: 1.21,
    8: 1.18,
    9: 1.15,
    10: 1.14,
    15: 1.09,
    20: 1.06,
}


class Measurement(NamedTuple):
    """One phase of one row. `median` in milliseconds; `noise` is interquartile range over median, None when unknown;
    `least` the shortest sample; `samples` in the order they were taken, or empty."""

    median: float
    noise: Optional[float] = None
    n: int = 1
    least: Optional[float] = None
    samples: tuple = ()
    clock_mhz: Optional[float] = None
    grain_ms: float = 0.0
    run_spread: float = 0.0  # half the relative distance between medians of several runs, or a guess at it


class Verdict(NamedTuple):
    word: str
    ratio: float
    uncertainty: float  # of the ratio, relative


def _student(n):
    """How much wider an interval of n samples is than the normal distribution has it."""
    degrees = max(1, n - 1)
    return next((factor for limit, factor in sorted(_STUDENT.items()) if degrees <= limit), 1.0)


def _own_error(measurement):
    """e: one standard deviation, relative."""
    n = len(measurement.samples) or measurement.n
    if n < 2:
        return 0.0 if measurement.noise is None else measurement.noise
    if len(measurement.samples) >= 6:
        ordered = sorted(measurement.samples)
        # The ranks that enclose the median with about 68%: (n +- sqrt(n)) / 2.
        half = math.sqrt(n) / 2
        low, high = math.floor((n - 1) / 2 - half), math.ceil((n - 1) / 2 + half)
        return (ordered[min(n - 1, high)] - ordered[max(0, low)]) / 2 / measurement.median * _student(n)
    noise = measurement.noise
    if noise is None:
        noise = _interquartile(measurement.samples) if measurement.samples else 0.0
    return MEDIAN_OF_NOISE * noise / math.sqrt(n) * _student(n)


def _interquartile(samples):
    ordered = sorted(samples)
    middle = median(ordered)
    low, high = ordered[(len(ordered) - 1) // 4], ordered[len(ordered) - 1 - (len(ordered) - 1) // 4]
    return (high - low) / middle if middle else 0.0


def _drift(measurement):
    """d: how far the machine moves from run to run, as far as this one shows it; relative."""
    samples = measurement.samples
    noise = measurement.noise
    if noise is None:
        noise = _interquartile(samples) if samples else 0.0
    spread = 0.0
    if len(samples) >= 2 * PARTS:
        edges = [len(samples) * part // PARTS for part in range(PARTS + 1)]
        parts = [median(samples[begin:end]) for begin, end in zip(edges, edges[1:])]
        middle = median(parts)
        spread = MAD_TO_SIGMA * median(abs(part - middle) for part in parts) / middle if middle else 0.0
    drift = DRIFT_OF_NOISE_GPU if measurement.grain_ms else DRIFT_OF_NOISE
    return max(drift * noise, spread, measurement.run_spread)


def deviation(measurement):
    """s: one standard deviation of what another run's median would be, relative."""
    return math.sqrt(_own_error(measurement) ** 2 + _drift(measurement) ** 2 + FLOOR**2)


def _shortest_agree(base, new, change, least):
    if not base.least or not new.least:
        return True
    return math.copysign(1, change) * math.log(new.least / base.least) > least / 2


def judge(base, new, effect=EFFECT):
    ratio = new.median / base.median
    explained = 0.0
    if base.clock_mhz and new.clock_mhz:
        explained = abs(math.log(new.clock_mhz / base.clock_mhz))
    explained += max(base.grain_ms, new.grain_ms) / min(base.median, new.median)
    unsure = CONFIDENCE * math.hypot(deviation(base), deviation(new)) + explained
    change = math.log(ratio)
    least = math.log1p(effect)
    if abs(change) > max(least, unsure) and _shortest_agree(base, new, change, least):
        word = SLOWER if change > 0 else FASTER
    elif abs(change) <= least and unsure <= MOST_UNSURE * effect:
        word = SAME
    else:
        word = UNCLEAR
    return Verdict(word, ratio, unsure)
