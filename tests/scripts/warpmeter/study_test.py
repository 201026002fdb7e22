#!/usr/bin/env python3
"""Which field is the axis, which tells series apart, which panels; and what is said to be fastest."""

import json
import os
import pathlib
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(os.environ["WARPMETER_SOURCE"]) / "scripts/lib"), str(pathlib.Path(__file__).parent)]
import report_samples  # noqa: E402
from warpmeter import charts, findings, png, results, roofline, study, tables  # noqa: E402


def placed(*documents):
    files = [
        results.parse(json.dumps(document).encode(), f"{number}.json")[0] for number, document in enumerate(documents)
    ]
    return study.studies(files)


def rows(*configurations, **figures):
    return [{**each, **figures, "status": "ok", "reason": None, "rerun": "x"} for each in configurations]


def of(configurations, **figures):
    keys = list(configurations[0])
    return placed(report_samples.document("attn_bench", keys, rows(*configurations, **figures)))[0]


class Placing(unittest.TestCase):
    def test_attention(self):
        whole = placed(report_samples.attention())[0]
        self.assertEqual((whole.axis, whole.series_keys), ("seq_len", ["impl"]))
        self.assertEqual(
            [whole.panel_title(panel) for panel in whole.panels],
            ["fp32 · d_model 64", "fp32 · d_model 128", "bf16 · d_model 64", "bf16 · d_model 128"],
        )
        # head_dim follows from d_model, kv_len from seq_len; what a row timed makes no panels.
        self.assertEqual(whole.constants["kv_len"], "kv_len = seq_len")
        self.assertNotIn("pass", whole.constants)

    def test_tokens_in_all(self):
        whole = of([{"impl": "flash", "batch": 16384 // length, "seq_len": length} for length in (512, 1024, 4096)])
        self.assertEqual(whole.axis, "seq_len")
        self.assertEqual(whole.constants["batch"], "batch = 16384 / seq_len")
        self.assertEqual(len(whole.panels), 1)

    def test_decode_goes_along_kv_len(self):
        whole = of([{"impl": "flash", "seq_len": 1, "kv_len": length} for length in (1024, 2048)])
        self.assertEqual(whole.axis, "kv_len")

    def test_an_axis_needs_two_places(self):
        whole = of([{"impl": name, "seq_len": 1024} for name in ("naive", "flash")])
        self.assertEqual((whole.axis, whole.categories), ("impl", ["naive", "flash"]))
        whole = of([{"impl": "flash", "seq_len": 1024}])
        self.assertIsNone(whole.axis)

    def test_collectives(self):
        whole = placed(report_samples.collectives())[0]
        self.assertEqual((whole.axis, whole.series_keys, whole.panel_keys), ("bytes", ["target"], ["world_size"]))
        self.assertEqual(whole.axis_text(2.0**20), "1 MiB")
        self.assertEqual([chart.title for chart in charts.of_study(whole, charts.styles(whole))], ["Time", "Bandwidth"])

    def test_names_along_the_axis(self):
        whole = placed(report_samples.model())[0]
        self.assertEqual(
            (whole.axis, whole.categories, whole.series_keys),
            ("size", ["small", "medium", "large", "xl"], ["structure"]),
        )

    def test_sizes_as_texts(self):
        for text, number in (("4 KiB", 4096), ("1MB", 2**20), ("512", 512), ("2GB", 2**31), ("12B", 12)):
            self.assertEqual(study.as_number(text), number)
        for text in ("", "MB", "-1", "1.5.2", "1e3", None, True, float("inf"), 1e25, [1]):
            self.assertIsNone(study.as_number(text))

    def test_two_devices_are_panels(self):
        other = report_samples.attention(device={"cpu": "Xeon", "cores": 16})
        whole = placed(report_samples.attention(), other)[0]
        self.assertEqual(whole.panel_keys, ["device", "dtype", "d_model"])
        self.assertEqual(whole.series_keys, ["impl"])

    def test_two_runs_are_series_of_one_colour(self):
        other = report_samples.attention()
        other["version"]["git_sha"] = "f" * 40
        whole = placed(report_samples.attention(), other)[0]
        self.assertEqual(whole.series_keys, ["impl", "run"])
        looks = charts.styles(whole)
        by_label = {whole.series_labels[key]: look for key, look in looks.items()}
        first, second = by_label["flash (0123456789)"], by_label["flash (ffffffffff)"]
        self.assertEqual(first.colour, second.colour)
        self.assertNotEqual(first.variant, second.variant)
        self.assertNotEqual(by_label["flash (0123456789)"].colour, by_label["naive (0123456789)"].colour)

    def test_files_that_add_implementations_are_one_sweep(self):
        peers = report_samples.attention()
        peers["tool"] = "pytorch_attention"
        peers["row_keys"].append("deterministic")
        for row in peers["rows"]:
            row.update(impl="pytorch_" + row["impl"], deterministic=False)
        whole = placed(report_samples.attention(), peers)[0]
        self.assertEqual(whole.series_keys, ["impl"])
        self.assertEqual(len(whole.series_labels), 6)
        self.assertEqual(whole.tool, "attn_bench and pytorch_attention")
        self.assertEqual(len(whole.panels), 4)

    def test_what_one_implementation_alone_has_tells_its_variants_apart(self):
        document = report_samples.attention()
        document["row_keys"] = ["impl", "batch", "kv_len", "merge", "splits"]
        document["rows"] = [
            {"impl": impl, "batch": batch, "kv_len": kv_len, "merge": merge, "splits": splits, "decode_ms": 1.0,
             "status": "ok", "reason": None, "rerun": "x"}
            for impl, merge, splits in (("naive", "-", "-"), ("flash_decode", "tree", "auto"),
                                        ("flash_decode", "lse", "4"))
            for batch in (1, 16) for kv_len in (1024, 4096)
        ]
        whole = placed(document)[0]
        self.assertEqual((whole.axis, whole.panel_keys), ("kv_len", ["batch"]))
        self.assertEqual(list(whole.series_labels.values()),
                         ["naive", "flash_decode (tree, splits auto)", "flash_decode (lse, splits 4)"])
        document["rows"] = document["rows"][:8]
        whole = placed(document)[0]
        self.assertEqual(list(whole.series_labels.values()), ["naive", "flash_decode"])
        self.assertEqual(whole.constants["splits"], "auto")

    def test_a_way_that_a_series_always_goes_makes_no_panels(self):
        ways = (("naive", "naive"), ("fused", "flash"))
        whole = of([{"structure": structure, "attention": attention, "batch": batch}
                    for structure, attention in ways for batch in (1, 2)], fwd_ms=1.0)
        self.assertEqual((whole.axis, whole.series_keys, whole.panel_keys), ("batch", ["structure"], []))
        self.assertEqual(list(whole.series_labels.values()), ["naive", "fused (flash)"])
        # Where it varies within a series, panels part it; and sizes are no ways, whatever goes along with them.
        whole = of([{"structure": structure, "attention": attention, "batch": batch}
                    for structure in ("naive", "fused") for attention in ("naive", "flash") for batch in (1, 2)])
        self.assertEqual([whole.panel_title(panel) for panel in whole.panels], ["attention naive", "attention flash"])
        whole = of([{"impl": impl, "d_model": width, "seq_len": length}
                    for impl, width in (("naive", 64), ("flash", 128)) for length in (1, 2)])
        self.assertEqual(whole.panel_keys, ["d_model"])

    def test_studies_of_one_tool_are_told_apart(self):
        keys = ["impl", "seq_len"]
        sweep = report_samples.document("attn_bench", keys, rows({"impl": "flash", "seq_len": 1}))
        decode = report_samples.document("attn_bench", ["mode", "impl", "kv_len"],
                                         rows({"mode": "decode", "impl": "flash", "kv_len": 1}))
        self.assertEqual([whole.name for whole in placed(sweep, decode)], ["attn_bench", "attn_bench decode"])
        self.assertEqual([whole.name for whole in placed(sweep)], ["attn_bench"])
        other = report_samples.document("attn_bench", ["mode", "impl", "chunk"],
                                        rows({"mode": "decode", "impl": "flash", "chunk": 1}))
        self.assertEqual([whole.name for whole in placed(decode, other)], ["attn_bench (1)", "attn_bench (2)"])

    def test_other_fields_are_another_study(self):
        self.assertEqual(
            [whole.tool for whole in placed(report_samples.attention(), report_samples.model())],
            ["attn_bench", "e2e_bench"],
        )


class Charts(unittest.TestCase):
    def test_a_phase_in_two_units_and_its_first_run_are_one_chart(self):
        whole = of([{"impl": "flash", "batch": batch} for batch in (1, 2)], fwd_ms=2.0, fwd_s=0.002, fwd_first_ms=9.0,
                   fwd_noise=0.01, train_step_ms=4.0, train_step_s=0.004, train_step_noise=0.02)
        drawn = charts.of_study(whole, charts.styles(whole))
        self.assertEqual([chart.title for chart in drawn], ["Forward time", "Training step time"])
        self.assertEqual(
            [(column.group, column.heading) for column in tables.of_study(whole)[0].columns if column.group],
            [("Forward", "ms"), ("Forward", "noise"), ("Training step", "ms"), ("Training step", "noise")],
        )

    def test_predicted_memory_is_drawn_until_it_is_measured(self):
        one = [{"impl": "flash", "batch": batch} for batch in (1, 2)]
        whole = of(one, fwd_predicted_peak_mem_mib=2.0, predicted_logits_mib=1.0)
        self.assertEqual([field.name for field in charts.charted_fields(whole)],
                         ["fwd_predicted_peak_mem_mib", "predicted_logits_mib"])
        whole = of(one, fwd_predicted_peak_mem_mib=2.0, predicted_logits_mib=1.0, fwd_peak_mem_mib=2.5)
        self.assertEqual([field.name for field in charts.charted_fields(whole)], ["fwd_peak_mem_mib"])

    def test_the_ceiling_that_a_row_was_held_against(self):
        whole = placed(report_samples.attention())[0]
        names = {}
        for entry in whole.entries:
            for ceiling in charts.row_ceilings(entry, "fwd"):
                names.setdefault((entry.row.config["impl"], entry.row.config["dtype"]), set()).add(ceiling.text)
        self.assertEqual(names["flash", "fp32"] - {"read 4500 GB/s"}, {"matmul tf32 / 3 138 TFLOP/s"})
        self.assertEqual(names["naive", "fp32"] - {"read 4500 GB/s"}, {"matmul fp32 52 TFLOP/s"})
        self.assertEqual(names["flash", "bf16"] - {"read 4500 GB/s"}, {"matmul 16bit 800 TFLOP/s"})

    def test_a_forward_alone_misses_no_backward(self):
        document = report_samples.attention()
        for row in document["rows"]:
            if row["status"] == "oom":
                row["pass"] = "fwd"
        whole = placed(document)[0]
        missing = {
            chart.key: sum(len(series.missing) for panel in chart.panels for series in panel.series)
            for chart in charts.of_study(whole, charts.styles(whole))
        }
        self.assertEqual(missing["fwd-ms"], 4 + 1)
        self.assertEqual(missing["bwd-ms"], 1)

    def test_a_panel_where_nothing_fits_is_drawn(self):
        document = report_samples.attention()
        for row in document["rows"]:
            if row["d_model"] == 128:
                row.update(status="oom", reason="too large", fwd_ms=None)
        whole = placed(document)[0]
        time = charts.of_study(whole, charts.styles(whole))[0]
        self.assertEqual([panel.title for panel in time.panels], [whole.panel_title(panel) for panel in whole.panels])
        self.assertEqual([sum(len(series.points) for series in panel.series) for panel in time.panels], [14, 0, 14, 0])
        self.assertEqual([sum(len(series.missing) for series in panel.series) for panel in time.panels], [1, 15, 1, 15])
        for row in document["rows"]:
            row.update(status="oom", reason="too large", fwd_ms=None)
        whole = placed(document)[0]
        self.assertNotIn("fwd-ms", [chart.key for chart in charts.of_study(whole, charts.styles(whole))])

    def test_a_slow_device_is_read_in_smaller_units(self):
        document = report_samples.attention()
        for row in document["rows"]:
            for phase in ("fwd", "bwd"):
                if row.get(phase + "_tflops"):
                    row[phase + "_tflops"] /= 5000
        whole = placed(document)[0]
        speed = next(chart for chart in charts.of_study(whole, charts.styles(whole)) if chart.key == "fwd-tflops")
        self.assertTrue(speed.subtitle.startswith("GFLOP/s"))

    def test_roofline(self):
        whole = placed(report_samples.attention())[0]
        chart = roofline.of_study(whole, charts.styles(whole))
        self.assertEqual([panel.title for panel in chart.panels], ["fp32", "bf16"])
        memory, *compute = chart.panels[0].lines
        self.assertEqual([line.text for line in compute], ["tf32 / 3 138", "fp32 52"])
        self.assertEqual(memory.text, "read 4500 GB/s")
        # The slope meets the highest roof where the rates balance.
        self.assertAlmostEqual(memory.points[-1][0], 138e12 / 4500e9)
        self.assertAlmostEqual(memory.points[-1][1], 138)
        for panel in chart.panels:
            for series in panel.series:
                for point in series.points:
                    self.assertLessEqual(point.y, 1.0001 * min(800, point.x * 4.5))
        without = report_samples.attention()
        del without["device"]["ceilings"]
        for row in without["rows"]:
            row.pop("fwd_bound_share", None)
            row.pop("bwd_bound_share", None)
        self.assertIsNone(roofline.of_study(placed(without)[0], charts.styles(placed(without)[0])))


class Picture(unittest.TestCase):
    """What several studies share in one picture."""

    def studies(self, widths=1):
        keys = ["impl", "d_model", "seq_len"]
        wide = rows(*({"impl": impl, "d_model": width, "seq_len": length} for width in range(1, widths + 1)
                      for impl in ("naive", "fused", "flash") for length in (1, 2)), fwd_ms=1.0)
        narrow = rows(*({"mode": "prefill", "impl": impl, "chunk": chunk} for impl in ("naive", "flash", "other")
                        for chunk in (1, 2)), chunked_ms=1.0)
        return placed(report_samples.document("attn_bench", keys, wide),
                      report_samples.document("attn_bench", ["mode", "impl", "chunk"], narrow))

    def test_one_legend_is_true_of_all(self):
        places, _ = png._places(self.studies())
        looks = {}
        for _, _, panel in places:
            for series in panel.series:
                self.assertEqual(looks.setdefault(series.label, series.style), series.style)
        self.assertEqual(len({style.colour for style in looks.values()}), 4)

    def test_every_study_has_its_share(self):
        places, wanted = png._places(self.studies(widths=20))
        self.assertEqual([name for name, _, _ in places], ["attn_bench"] * 20 + ["attn_bench prefill"])
        self.assertEqual(wanted, 21)
        places, wanted = png._places(self.studies(widths=60))  # charts have at most 24 panels
        self.assertEqual((len(places), wanted), (25, 25))
        many = [self.studies(widths=24)[0] for _ in range(3)] + [self.studies()[1]]
        for number, whole in enumerate(many):
            whole.name = str(number)
        places, wanted = png._places(many)
        names = [name for name, _, _ in places]
        self.assertEqual(([names.count(str(number)) for number in range(4)], wanted), ([16, 16, 15, 1], 73))
        self.assertEqual(names, sorted(names))
        self.assertEqual([name for name, _, _ in png._places(many[:1])[0]], [""] * 24)


class Findings(unittest.TestCase):
    def answers(self, times, noise=0.002):
        """{impl: [ms at 256, 512, ...]} -> what is said of the forward."""
        made = [
            {"impl": impl, "seq_len": 256 * 2**index, "fwd_ms": value, "fwd_noise": noise}
            for impl, values in times.items()
            for index, value in enumerate(values)
            if value is not None
        ]
        document = report_samples.document("attn_bench", ["impl", "seq_len"], rows(*made))
        found = findings.of_study(placed(document)[0])
        return found.answers[0].cells[0] if found.answers else None

    def test_fastest(self):
        self.assertEqual(self.answers({"naive": [2, 4], "flash": [1, 1]}), "flash, 2.0x to 4.0x")
        self.assertEqual(
            self.answers({"naive": [1, 4, 9], "flash": [2, 2, 3]}),
            "naive at 256, 2.0x; flash from 512 to 1024, 2.0x to 3.0x",
        )

    def test_within_the_noise_is_even(self):
        self.assertEqual(
            self.answers({"naive": [1.0, 2], "flash": [1.005, 1]}), "flash and naive even at 256; flash at 512, 2.0x"
        )
        self.assertEqual(
            self.answers({"naive": [1.08], "flash": [1.0], "fused": [9]}, noise=0.1), "flash and naive even"
        )

    def test_runs_of_one_build_do_not_rival_each_other(self):
        """Ours and a peer's, each twice, as side_by_side measures them; a peer between our runs is even with us."""
        def said(ours, peers, caches=("cold", "cold"), **version):
            made = []
            for tool, impl, runs in (("attn_bench", "flash", ours), ("pytorch_attention", "pytorch_sdpa", peers)):
                for ms, cache in zip(runs, caches):
                    document = report_samples.document(
                        tool, ["impl", "seq_len"],
                        rows(*({"impl": impl, "seq_len": n, "fwd_ms": ms, "fwd_noise": 0.002} for n in (256, 512))))
                    document["version"].update(version)
                    document["settings"]["cache"] = cache
                    made.append(document)
            found = findings.of_study(placed(*made)[0])
            return found.answers[0].cells[0], found.opening.split(" on ")[0]
        opening = "attn_bench and pytorch_attention measured 8 configurations of flash and pytorch_sdpa"
        self.assertEqual(said([1.0, 1.02], [2.0, 2.0]), ("flash, 1.98x", opening))
        self.assertEqual(said([1.0, 1.2], [1.15, 1.15])[0], "flash and pytorch_sdpa even")
        # A hot cache and a cold one are no repetition.
        self.assertEqual(said([1.0, 1.5], [2.0, 2.0], ("hot", "cold"))[0], "flash (0), 1.50x")
        # Of trees that were changed, or that nobody knows, two runs may be two programs.
        for version in ({"dirty": True}, {"git_sha": None}):
            self.assertEqual(said([1.0, 1.5], [2.0, 2.0], **version)[0], "flash (0), 1.50x")

    def test_files_of_other_flushes_are_said(self):
        """Rows of an older file, measured with the flush's own lines to write back, beside those of a newer one."""
        def notes(*flushes, **changes):
            made = []
            for length, settings in enumerate(flushes, 1):
                document = report_samples.document("x", ["impl", "seq_len"],
                                                   rows({"impl": "flash", "seq_len": 256 * length, "fwd_ms": 1.0}))
                document["settings"] = {"timer": "device", **settings}
                document.update(changes)
                made.append(document)
            return findings.of_study(placed(*made)[0]).notes

        cold, clean, hot = {"cache": "cold"}, {"cache": "cold", "cache_flush": "clean"}, {"cache": "hot"}
        (origin, text), = notes(clean, cold, hot, clean)
        self.assertEqual(origin, "1.json")
        self.assertIn("wrote back what the flush had left in the L2", text)
        for same in ((cold, cold), (clean, clean, hot), (cold, hot)):
            self.assertEqual(notes(*same), [])
        self.assertEqual(notes(clean, cold, device={"cpu": "EPYC", "cores": 2}), [])

    def test_the_best_speed_is_told_by_what_bounds_it(self):
        """A kernel bound by compute among many bound by memory: FLOP/s, not the few bytes that it moves."""
        made = [
            {"kernel": kernel, "impl": "warpmeter", "cols": cols, "fwd_ms": 1.0, "fwd_tflops": 2.0, "fwd_gbps": 300.0,
             "fwd_bound": bound, "fwd_bound_share": 0.5}
            for kernel, bound in (("add", "memory"), ("row_sum", "memory"), ("matmul", "compute")) for cols in (1, 2)
        ]
        whole = placed(report_samples.document("kernel_bench", ["kernel", "impl", "cols"], rows(*made)))[0]
        said = {answer.panel: answer.cells for answer in findings.of_study(whole).answers}
        self.assertEqual(said["add"], ["300 GB/s at cols 1, 50.0% of the memory bound"])
        self.assertEqual(said["matmul"], ["2 TFLOP/s at cols 1, 50.0% of the compute bound"])

    def test_plain_code_is_told_and_is_no_phase(self):
        made = [{"kernel": "add", "impl": impl, "cols": cols, "fwd_ms": ms, "fwd_gbps": 300.0, "fwd_bound": "memory",
                 "fwd_bound_share": 0.5, **plain}
                for impl, ms, plain in (("warpmeter", 1.0, {"fwd_plain_ms": 0.9, "fwd_plain_share": 0.9}),
                                        ("triton", 2.0, {})) for cols in (1, 2)]
        whole = placed(report_samples.document("kernel_bench", ["kernel", "impl", "cols"], rows(*made)))[0]
        self.assertEqual([field.name for field in charts.charted_fields(whole)], ["fwd_ms", "fwd_gbps"])
        found = findings.of_study(whole)
        self.assertEqual(found.phases, ["Forward"])
        whole = placed(report_samples.document("kernel_bench", ["kernel", "impl", "cols"], rows(*made[:2])))[0]
        (answer,) = findings.of_study(whole).answers
        self.assertEqual(answer.cells, ["300 GB/s at cols 1, 50.0% of the memory bound, 90.0% of plain code"])

    def test_a_phase_that_nothing_is_said_of_is_no_column(self):
        made = [{"impl": impl, "batch": batch, "fwd_ms": ms, "update_exposed_ms": 0.0}
                for impl, ms in (("naive", 2.0), ("flash", 1.0)) for batch in (1, 2)]
        found = findings.of_study(placed(report_samples.document("x", ["impl", "batch"], rows(*made)))[0])
        self.assertEqual((found.phases, found.answers[0].cells), (["Forward"], ["flash, 2.0x"]))

    def test_alone_at_a_place_wins_nothing(self):
        self.assertEqual(self.answers({"naive": [2, None], "flash": [1, 1]}), "flash, 2.0x")
        self.assertIsNone(self.answers({"naive": [2, None], "flash": [None, 1]}))


if __name__ == "__main__":
    unittest.main(verbosity=1)
