#!/usr/bin/env python3
"""compare's rule: what it says of simulated runs of many shapes, and of cases with known answers."""

import math
import os
import pathlib
import random
import sys
import unittest
from collections import Counter
from statistics import median

SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])
sys.path.insert(0, str(SOURCE / "scripts/lib"))
from warpmeter import verdict  # noqa: E402
from warpmeter.verdict import FASTER, SAME, SLOWER, UNCLEAR, Measurement  # noqa: E402

BETWEEN_RUNS = 0.004  # standard deviation of a run's median on an idle machine, beyond what its samples show
RUNS = 150


def shape(kind, noise, n, rng):
    """n samples around 1 with about this interquartile range."""
    sigma = noise / 1.349
    if kind == "normal":
        return [1 + rng.gauss(0, sigma) for _ in range(n)]
    if kind == "lognormal":
        return [math.exp(rng.gauss(0, sigma)) for _ in range(n)]
    if kind == "tail":
        return [1 + rng.expovariate(math.log(3) / noise) for _ in range(n)]
    if kind == "interrupted":  # now and then something else takes the core
        return [(1 + rng.gauss(0, sigma)) * (1.3 if rng.random() < 0.03 else 1) for _ in range(n)]
    if kind == "grain":  # a clock of 32 ns beside 5 us
        return [round((1 + rng.gauss(0, sigma)) / 0.0064) * 0.0064 for _ in range(n)]
    if kind == "warming":
        return [1 + rng.gauss(0, sigma) + noise * (at / n - 0.5) for at in range(n)]
    assert kind == "wandering"
    samples, place = [], 0.0
    for _ in range(n):
        place = 0.9 * place + rng.gauss(0, sigma * math.sqrt(1 - 0.81))
        samples.append(1 + place)
    return samples


def noise_of(samples):
    ordered = sorted(samples)

    def rank(share):
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return (rank(0.75) - rank(0.25)) / median(ordered)


def measured(samples, keep, **more):
    return Measurement(
        median(samples), noise_of(samples), len(samples), min(samples), tuple(samples) if keep else (), **more
    )


def run(kind, noise, n, work, keep, rng, between=BETWEEN_RUNS):
    factor = work * math.exp(rng.gauss(0, between))
    return measured([sample * factor for sample in shape(kind, noise, n, rng)], keep)


def share(word, kind, noise, n, work, keep, rng):
    found = Counter(
        verdict.judge(run(kind, noise, n, 1, keep, rng), run(kind, noise, n, work, keep, rng)).word for _ in range(RUNS)
    )
    return found[word] / RUNS, found


KINDS = ("normal", "lognormal", "tail", "interrupted", "grain", "warming", "wandering")
#: What an idle machine gives: few samples only where their noise is low, which is when sampling stops.
SIZES = ((0.003, 5), (0.005, 8), (0.01, 30), (0.01, 300), (0.02, 300))


class IdleMachine(unittest.TestCase):
    """Rates over all shapes together, as a sweep has them; and no shape much worse alone."""

    def rates(self, work, word, keep):
        rng = random.Random(20260131)
        rates = []
        for kind in KINDS:
            for noise, n in SIZES:
                rate, found = share(word, kind, noise, n, work, keep, rng)
                self.assertGreaterEqual(rate, 0.93, (kind, noise, n, dict(found)))
                rates.append(rate)
        return sum(rates) / len(rates)

    def test_two_runs_of_one_program_are_the_same(self):
        for keep in (True, False):
            self.assertGreaterEqual(self.rates(1, SAME, keep), 0.98)

    def test_five_percent_more_work_is_slower(self):
        for keep in (True, False):
            self.assertGreaterEqual(self.rates(1.05, SLOWER, keep), 0.95)

    def test_five_percent_less_work_is_faster(self):
        self.assertGreaterEqual(self.rates(1 / 1.05, FASTER, False), 0.95)


class BusyMachine(unittest.TestCase):
    def test_runs_that_interference_moves_are_rarely_called_slower_or_faster(self):
        """Other programs take half of a run's samples and up to a third more time; which half is chance."""
        rng = random.Random(7)
        found = Counter()
        for _ in range(RUNS):
            pair = []
            for _ in range(2):
                busy = rng.random() * 0.7
                pair.append(
                    measured(
                        [
                            1 + rng.gauss(0, 0.003) + (rng.random() * 0.3 if rng.random() < busy else 0)
                            for _ in range(60)
                        ],
                        True,
                    )
                )
            found[verdict.judge(*pair).word] += 1
        self.assertLessEqual(found[SLOWER] + found[FASTER], 0.02 * RUNS, dict(found))
        self.assertGreater(found[UNCLEAR], 0.3 * RUNS)

    def test_two_clock_states_within_a_run_are_unclear(self):
        samples = [1.0] * 30 + [1.06] * 30
        other = [1.0] * 29 + [1.06] * 31
        self.assertEqual(verdict.judge(measured(samples, True), measured(other, True)).word, UNCLEAR)


class KnownAnswers(unittest.TestCase):
    steady = Measurement(10.0, 0.002, 50, 9.98)

    def judged(self, ratio, **changes):
        new = self.steady._replace(median=10.0 * ratio, least=9.98 * ratio)._replace(**changes)
        return verdict.judge(self.steady, new)

    def test_the_effect_is_three_percent(self):
        self.assertEqual(
            [self.judged(ratio).word for ratio in (1, 1.029, 1.031, 1 / 1.029, 1 / 1.031)],
            [SAME, SAME, SLOWER, SAME, FASTER],
        )

    def test_the_ratio_is_new_over_base(self):
        self.assertAlmostEqual(self.judged(1.25).ratio, 1.25)

    def test_uncertainty_of_steady_runs_is_the_floor(self):
        # 2 sqrt(2) sqrt(0.4%^2 + (0.1%)^2 + (0.93 * 0.2% / sqrt(50))^2)
        self.assertAlmostEqual(self.judged(1).uncertainty, 0.01169, places=4)

    def test_another_effect(self):
        new = self.steady._replace(median=10.4, least=10.38)
        self.assertEqual(verdict.judge(self.steady, new, 0.05).word, SAME)
        self.assertEqual(verdict.judge(self.steady, new, 0.03).word, SLOWER)

    def test_the_shortest_samples_must_say_so_too(self):
        self.assertEqual(self.judged(1.1).word, SLOWER)
        self.assertEqual(self.judged(1.1, least=9.98).word, UNCLEAR)
        self.assertEqual(self.judged(1.1, least=None).word, SLOWER)
        self.assertEqual(self.judged(1 / 1.1, least=9.98).word, UNCLEAR)

    def test_noise_makes_it_unclear(self):
        self.assertEqual(self.judged(1.05, noise=0.1).word, UNCLEAR)
        self.assertEqual(self.judged(1.0, noise=0.1).word, UNCLEAR)  # it could hide 5%
        self.assertEqual(self.judged(1.3, noise=0.1).word, SLOWER)

    def test_clocks_explain_as_much_as_they_differ(self):
        base = self.steady._replace(clock_mhz=1980)
        new = self.steady._replace(median=10.4, least=10.38)
        self.assertEqual(verdict.judge(base, new._replace(clock_mhz=1980)).word, SLOWER)
        self.assertEqual(verdict.judge(base, new._replace(clock_mhz=1910)).word, UNCLEAR)
        self.assertEqual(verdict.judge(base, new._replace(clock_mhz=None)).word, SLOWER)

    def test_a_grain_of_the_timer_is_no_change(self):
        base = Measurement(0.001, 0.0, 100, 0.001, grain_ms=verdict.GPU_GRAIN_MS)
        self.assertEqual(verdict.judge(base, base._replace(median=0.00104, least=0.00104)).word, UNCLEAR)
        self.assertEqual(verdict.judge(base, base._replace(median=0.0012, least=0.0012)).word, SLOWER)

    def test_noise_of_a_gpus_clock_tells_less_of_drift(self):
        """Kernels of 10 to 40 us on an H200: noise of 3 to 5%, medians of two sweeps within 0.6% of each other."""
        gpu = Measurement(0.029, 0.043, 1120, 0.028, grain_ms=verdict.GPU_GRAIN_MS)
        host = gpu._replace(grain_ms=0.0)
        more = {"median": 0.029 * 1.05, "least": 0.028 * 1.05}
        self.assertEqual(verdict.judge(gpu, gpu).word, SAME)
        self.assertEqual(verdict.judge(gpu, gpu._replace(**more)).word, SLOWER)
        self.assertEqual(verdict.judge(host, host).word, UNCLEAR)

    def test_a_single_sample_is_never_sure_of_little(self):
        one = Measurement(10.0, None, 1, 10.0, (10.0,))
        self.assertIn(verdict.judge(one, one).word, (SAME, UNCLEAR))
        self.assertEqual(verdict.judge(one, one._replace(median=20.0, least=20.0, samples=(20.0,))).word, SLOWER)

    def test_runs_of_one_build_that_lie_apart(self):
        self.assertEqual(self.judged(1.05, run_spread=0.04).word, UNCLEAR)

    def test_parts_of_a_run_that_lie_apart(self):
        """The noise is small within each part; the parts wander by 4%."""
        samples = tuple(10 * (1 + 0.02 * (-1) ** part) for part in range(8) for _ in range(10))
        new = self.steady._replace(median=10.5, least=10.4, noise=0.0, n=80, samples=samples)
        self.assertEqual(verdict.judge(self.steady, new).word, UNCLEAR)

    def test_few_samples_widen(self):
        wide, narrow = (verdict.judge(self.steady, self.steady._replace(n=n, noise=0.01)).uncertainty for n in (2, 200))
        self.assertGreater(wide, 2 * narrow)


if __name__ == "__main__":
    unittest.main(verbosity=2)
