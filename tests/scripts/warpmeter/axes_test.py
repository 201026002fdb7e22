#!/usr/bin/env python3
"""Axes, ticks, the places of labels, and how numbers are written."""

import os
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(os.environ["WARPMETER_SOURCE"]) / "scripts/lib"))
from warpmeter import axes, numerals, svg  # noqa: E402


def texts(axis):
    return [tick.text for tick in axis.ticks if tick.text]


class Ticks(unittest.TestCase):
    def test_decades(self):
        self.assertEqual(texts(axes.LogAxis(2e-5, 9e-2, "s")), ["100 µs", "1 ms", "10 ms"])
        self.assertEqual(texts(axes.LogAxis(1e-3, 12, "s")), ["1 ms", "10 ms", "100 ms", "1 s", "10 s"])

    def test_a_narrow_range_has_finer_ticks(self):
        self.assertEqual(texts(axes.LogAxis(170, 900, "TFLOP/s")), ["200", "300", "400", "500", "600", "800"])
        self.assertEqual(texts(axes.LogAxis(0.9, 25)), ["1", "2", "3", "5", "10", "20"])

    def test_a_wide_range_has_fewer(self):
        for high in (1e9, 1e20, 1e60):
            self.assertLessEqual(len(texts(axes.LogAxis(1e-9, high))), 6)
            self.assertGreaterEqual(len(texts(axes.LogAxis(1e-9, high))), 2)

    def test_bytes_by_powers_of_two(self):
        self.assertEqual(
            texts(axes.LogAxis(2**20, 2**33, "bytes", 2)), ["2 MiB", "16 MiB", "128 MiB", "1 GiB", "8 GiB"]
        )
        self.assertEqual(
            texts(axes.LogAxis(170 * 2**20, 390 * 2**20, "bytes", 2)),
            ["192 MiB", "224 MiB", "256 MiB", "320 MiB", "384 MiB"],
        )

    def test_ticks_lie_on_the_axis_in_order(self):
        randoms = random.Random(0)
        for _ in range(500):
            low = 10 ** randoms.uniform(-12, 12)
            high = low * 10 ** randoms.uniform(0, 9)
            for base, unit in ((2, "bytes"), (10, "s"), (10, "")):
                axis = axes.LogAxis.around([low, high], unit, base)
                values = [tick.value for tick in axis.ticks]
                self.assertEqual(values, sorted(values))
                self.assertTrue(all(-1e-6 <= axis.position(value) <= 1 + 1e-6 for value in values))
                self.assertLessEqual(len(texts(axis)), 6)
                self.assertEqual(len(texts(axis)), len(set(texts(axis))), (low, high, unit))

    def test_one_value_is_in_the_middle(self):
        self.assertAlmostEqual(axes.LogAxis.around([5.0]).position(5.0), 0.5)
        self.assertAlmostEqual(axes.ValueAxis([512], str).position(512), 0.5)

    def test_no_axis_without_positive_ends(self):
        for low, high in ((0, 1), (-1, 1), (2, 1), (1, float("inf"))):
            with self.assertRaises(ValueError):
                axes.LogAxis(low, high)

    def test_categories(self):
        axis = axes.CategoryAxis(["small", "medium"])
        self.assertEqual([axis.position(name) for name in ("small", "medium")], [0.25, 0.75])


class Labels(unittest.TestCase):
    def test_thin_keeps_the_ends(self):
        self.assertEqual(axes.thin(["1", "2", "3", "4"], [0, 5, 10, 15], [8] * 4, 1), [True, False, False, True])
        self.assertEqual(axes.thin(["1", "2", "3"], [0, 50, 100], [8] * 3, 1), [True] * 3)
        self.assertEqual(axes.thin(["1", "2"], [0, 5], [8] * 2, 1), [False, True])
        self.assertEqual(axes.thin([], [], [], 1), [])

    def test_spread(self):
        self.assertEqual(axes.spread([50], 10, 0, 100), [50])
        self.assertEqual(axes.spread([50, 52], 10, 0, 100), [46, 56])
        self.assertEqual(axes.spread([0, 0, 100], 10, 0, 100), [5, 15, 95])
        randoms = random.Random(0)
        for _ in range(300):
            wanted = [randoms.uniform(-20, 220) for _ in range(randoms.randint(1, 20))]
            places = axes.spread(wanted, 12, 0, 200)
            step = min(12, 200 / len(wanted))
            ordered = sorted(places)
            self.assertGreaterEqual(ordered[0], step / 2 - 1e-6)
            self.assertLessEqual(ordered[-1], 200 - step / 2 + 1e-6)
            for one, other in zip(ordered, ordered[1:]):
                self.assertGreaterEqual(other - one, step - 1e-6)


class Numbers(unittest.TestCase):
    def test_numbers(self):
        for value, text in (
            (0, "0"),
            (1234.56, "1235"),
            (0.0123456, "0.01235"),
            (2, "2"),
            (123456789, "123456789"),
            (2e-7, "2e-07"),
            (9.9999, "10"),
        ):
            self.assertEqual(numerals.significant(value), text)
        self.assertEqual([numerals.fixed(value) for value in (2, 0.25, 1234.5)], ["2.000", "0.2500", "1234"])
        self.assertEqual([numerals.percent(share) for share in (0.8312, 0.0041, 1.2)], ["83.1%", "0.41%", "120.0%"])
        self.assertEqual(
            [numerals.times(ratio) for ratio in (1.04, 1.94, 2.34, 23.4)], ["1.04x", "1.94x", "2.3x", "23x"]
        )

    def test_quantities(self):
        for seconds, text in ((1.23e-3, "1.23 ms"), (1e-6, "1 µs"), (5e-8, "50 ns"), (2, "2 s"), (1e-3, "1 ms")):
            self.assertEqual(numerals.duration(seconds), text)
        for number, text in ((512, "512 B"), (1536, "1.5 KiB"), (2**30, "1 GiB"), (3 * 2**40, "3 TiB")):
            self.assertEqual(numerals.bytes_binary(number), text)
        self.assertEqual(numerals.day("2026-01-31T12:00:00Z"), "31 January 2026")
        self.assertEqual(numerals.day("soon"), "soon")
        self.assertEqual(numerals.listed(["a", "b", "c"]), "a, b and c")

    def test_names_that_are_too_long(self):
        for name, text in (("flash_two_pass", "flash_two_pass"), ("pytorch_sdpa_efficient", "pytorch…efficient"),
                           ("a" * 20, "a" * 16 + "…"), ("a" * 20 + "_b_c", "a" * 16 + "…")):  # fmt: skip
            self.assertEqual(svg.short_name(name, 17), text)

    def test_escape(self):
        self.assertEqual(svg.escape("<a href='x\"&"), "&lt;a href=&#39;x&quot;&amp;")


if __name__ == "__main__":
    unittest.main(verbosity=1)
