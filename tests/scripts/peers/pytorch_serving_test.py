#!/usr/bin/env python3
"""pytorch_serving: the same configurations as attn_bench's serving modes, PyTorch's results and its check, ratios. What
needs PyTorch skips without it."""

import contextlib
import importlib.util
import io
import re
import subprocess
import sys
import tempfile
import unittest

from common import ATTN_BENCH, PEERS, has_schema_python, run, schema_problems, strict
from warpmeter_peers import against
from warpmeter_peers.serving_case import ServingTool
from warpmeter_peers.side_by_side import _commands, _parse
from warpmeter_peers.sweep import run_tool

HAS_TORCH = importlib.util.find_spec("torch") is not None
WITHOUT = "PyTorch is not here (WARPMETER_TORCH_PYTHON names a Python that has it)"
QUICK = ["--device", "cpu", "--steps", "2", "--warmup", "1"]


def peer_here(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_tool(ServingTool(), ["pytorch_serving", *arguments])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def decode_row(impl, kv_len, decode_ms, **values):
    fields = {"mode": "decode", "impl": impl, "dtype": "bf16", "batch": 1, "num_heads": 8, "num_kv_heads": 8,
              "d_model": 512, "head_dim": 64, "kv_len": kv_len, "tokens": 1, "merge": "-", "deal": "-", "splits": "-",
              "block": "-", "page_size": 0, "value_range": 0, "decode_ms": decode_ms, "status": "ok"}
    fields.update(values)
    return fields


class Options(unittest.TestCase):
    @unittest.skipUnless(ATTN_BENCH, "attn_bench is not built")
    def test_dry_runs_agree_with_attn_bench(self):
        for arguments, figures in (
                (["--mode", "decode", "--kv-len", "100,300", "--tokens", "1,4", "--heads", "4", "--kv-heads", "2",
                  "--d-model", "128", "--batch", "3", "--dtype", "fp32,bf16"], "decode_(flops|bytes)"),
                (["--mode", "prefill", "--seq-len", "100,70", "--chunk", "7,64", "--heads", "4", "--kv-heads", "2",
                  "--d-model", "128", "--batch", "2", "--no-projections"], "prefill_flops"),
                (["--mode", "prefill", "--seq-len", "100", "--chunk", "7", "--heads", "4", "--d-model", "128",
                  "--batch", "1"], "prefill_flops")):
            with self.subTest(arguments=arguments):
                common = ["--device", "cpu", *arguments, "--dry-run", "--format", "json"]
                impl = "flash_decode" if arguments[1] == "decode" else "flash"
                ours = run(ATTN_BENCH, *common, "--impl", impl)
                theirs = peer_here(*common, "--impl", "pytorch_sdpa_flash")
                self.assertEqual((ours.returncode, theirs.returncode), (0, 0), ours.stderr + theirs.stderr)
                ours, theirs = strict(ours.stdout), strict(theirs.stdout)
                self.assertEqual(ours["row_keys"], theirs["row_keys"])

                def told(document, figures=figures):
                    return [[(name, value) for name, value in row.items()
                             if re.fullmatch(figures, name)
                             or (name in document["row_keys"] and name not in against.HOW)]
                            for row in document["rows"]]

                self.assertEqual(told(ours), told(theirs))

    def test_bad_input_is_one_line_and_exit_2(self):
        for arguments, words in ((["--kv-len", "0"], ["--kv-len", "0"]),
                                 (["--tokens", "9", "--kv-len", "8"], ["--tokens"]),
                                 (["--mode", "mixed"], ["--mode", "mixed"]), (["--chunk", "4"], ["--chunk", "prefill"]),
                                 (["--mode", "prefill", "--kv-len", "4"], ["--kv-len", "decode"]),
                                 (["--dtype", "tf32"], ["tf32"]), (["--impl", "flash_decode"], ["flash_decode"]),
                                 (["--heads", "3"], ["--heads", "3"])):
            with self.subTest(arguments=arguments):
                result = peer_here("--device", "cpu", *arguments)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(len(result.stderr.strip().splitlines()), 1)
                for word in words:
                    self.assertIn(word, result.stderr)

    def test_side_by_side_takes_the_peer_of_the_mode(self):
        for arguments, name in ((["--mode", "decode"], "pytorch_serving"), (["--mode=prefill"], "pytorch_serving"),
                                (["--mode", "train"], "pytorch_attention"), ([], "pytorch_attention")):
            command = _commands(*_parse(arguments))["pytorch"]
            self.assertEqual(command[:2], [sys.executable, str(PEERS / name)])


class Ratios(unittest.TestCase):
    def test_how_is_no_part_of_the_problem(self):
        keys = ServingTool.row_keys
        ours = [decode_row("flash_decode", 1024, 1.0, merge="tree", splits="auto"),
                decode_row("flash_decode", 4096, 2.0)]
        theirs = [decode_row("pytorch_sdpa_cudnn", 1024, 1.5), decode_row("pytorch_sdpa_cudnn", 4096, 2.0)]
        pair = against.Pair("flash_decode", "pytorch_sdpa_cudnn", [(ours, theirs)], keys)
        self.assertEqual(pair.ratios("decode"), [1.5, 1.0])
        text = against.ratio_text([(ours, theirs)], keys)
        self.assertIn("decode pytorch_sdpa_cudnn, ms", text)
        self.assertNotIn("fwd", text)


@unittest.skipUnless(HAS_TORCH, WITHOUT)
class InPyTorch(unittest.TestCase):
    def check(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/rows.json"
            result = run(sys.executable, PEERS / "pytorch_serving", *QUICK, *arguments, "-o", path)
            self.assertEqual(result.returncode, 0, result.stderr)
            if has_schema_python():
                self.assertEqual(schema_problems(path), "")
            with open(path, encoding="utf-8") as file:
                return strict(file.read())["rows"]

    def test_decoding(self):
        rows = self.check("--mode", "decode", "--impl", "pytorch_eager,pytorch_sdpa_flash", "--kv-len", "300",
                          "--tokens", "1,4", "--heads", "4", "--kv-heads", "2", "--d-model", "128", "--dtype",
                          "fp32,bf16")
        self.assertEqual([row["status"] for row in rows], ["ok"] * 8, rows)
        for row in rows:
            self.assertLess(row["max_rel_error"], 1e-5 if row["dtype"] == "fp32" else 2e-2)
            self.assertGreater(row["decode_ms"], 0)
            self.assertEqual(row["decode_flops"], 4 * 4 * 32 * (300 if row["tokens"] == 1 else 297 + 298 + 299 + 300))

    def test_prefill(self):
        rows = self.check("--mode", "prefill", "--impl", "pytorch_sdpa_flash,pytorch_sdpa_math", "--seq-len", "100",
                          "--chunk", "30,200", "--heads", "4", "--kv-heads", "2", "--d-model", "128")
        rows += self.check("--mode", "prefill", "--impl", "pytorch_eager", "--seq-len", "100", "--chunk", "30",
                           "--heads", "4", "--d-model", "128", "--no-projections")
        self.assertEqual([(row["status"], row["equal"]) for row in rows], [("ok", True)] * 5, rows)
        for row in rows:
            self.assertLess(row["max_diff"], 1e-5)
            self.assertAlmostEqual(row["overhead_ratio"] * row["speedup"], 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
