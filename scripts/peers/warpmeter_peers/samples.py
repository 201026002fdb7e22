"""Statistics of samples and when enough are taken. As tools/harness/statistics.cpp and detail/stopping.cpp."""

import math

FEW_SAMPLES, FEW_SAMPLES_SHARE = 5, 0.25
MANY_SAMPLES, MANY_SAMPLES_SHARE = 30, 0.05


def percentile(ordered, q):
    """Nearest rank: the smallest sample such that at least q of all samples are at or below it."""
    if not ordered:
        return None
    # q has no exact binary form: without the allowance 0.07 of 100 would be rank 8.
    rank = max(math.ceil(q * len(ordered) - 1e-9), 1)
    return ordered[min(rank, len(ordered)) - 1]


def median(ordered):
    if not ordered:
        return None
    half = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[half]
    return ordered[half - 1] + (ordered[half] - ordered[half - 1]) / 2


def noise_of(ordered):
    """Interquartile range over the median; 0 where the quartiles are equal, whatever the median."""
    spread = percentile(ordered, 0.75) - percentile(ordered, 0.25)
    return 0.0 if spread == 0 else spread / median(ordered)


def summarize(samples_ms):
    """min, median, mean, p95, p99, stdev (n - 1; None for one sample) and noise of at least one finite sample."""
    ordered = sorted(samples_ms)
    count, least = len(ordered), ordered[0]
    # Distances from the smallest sample: equal samples then give an exact mean and no deviation.
    mean_distance = math.fsum(sample - least for sample in ordered) / count
    stdev = None
    if count > 1:
        squares = math.fsum(((sample - least) - mean_distance) ** 2 for sample in ordered)
        stdev = math.sqrt(squares / (count - 1))
    return {"ms": median(ordered), "mean_ms": least + mean_distance, "min_ms": least,
            "p95_ms": percentile(ordered, 0.95), "p99_ms": percentile(ordered, 0.99), "stdev_ms": stdev,
            "noise": noise_of(ordered), "n": count}


class StoppingRule:
    """With `steps`: exactly that many samples. Otherwise when the noise is at most max_noise, with at least 5 samples
    over a quarter of max_time or 30 over a twentieth of it; or when max_time has passed."""

    def __init__(self, steps, max_noise, max_time_s):
        self._steps, self._max_noise, self._max_time_s = steps, max_noise, max_time_s
        self._next_look = FEW_SAMPLES

    def after(self, samples_ms, elapsed_s):
        """Asked after every sample: why sampling ends now, or None."""
        count = len(samples_ms)
        if self._steps is not None:
            return "steps" if count >= self._steps else None
        spans_enough = (count >= FEW_SAMPLES and elapsed_s >= FEW_SAMPLES_SHARE * self._max_time_s) or (
            count >= MANY_SAMPLES and elapsed_s >= MANY_SAMPLES_SHARE * self._max_time_s)
        # The noise is looked at in growing steps, so that sorting stays a small part of the work.
        if spans_enough and count >= self._next_look:
            self._next_look = count + max(1, count // 16)
            if noise_of(sorted(samples_ms)) <= self._max_noise:
                return "noise"
        return "max_time" if elapsed_s >= self._max_time_s else None


class Samples:
    """The samples of one phase: milliseconds of one call each, in the order taken."""

    def __init__(self):
        self.milliseconds = []
        self.stop = "steps"
        self.discarded = 0
        self.calls_per_sample = 1

    def add_to(self, figures, phase):
        for name, value in summarize(self.milliseconds).items():
            figures[f"{phase}_{name}"] = value
        figures[f"{phase}_stop"] = self.stop
        figures[f"{phase}_samples_ms"] = list(self.milliseconds)
        if self.discarded:
            figures[f"{phase}_discarded"] = self.discarded
        if self.calls_per_sample > 1:
            figures[f"{phase}_calls_per_sample"] = self.calls_per_sample
