#!/usr/bin/env python3
"""torch.compile takes a while: its row has a test of its own. Skipped without PyTorch or a compiler."""

import pathlib
import sys
import unittest

import pytorch_test


@unittest.skipUnless(pytorch_test.torch, pytorch_test.WITHOUT)
class Compiled(unittest.TestCase):
    def test_a_row(self):
        found, result, problems = pytorch_test.document(
            *pytorch_test.QUICK, "--impl", "pytorch_compiled", "--d-model", "32", "--seq-len", "24,40")
        self.assertEqual(problems, "")
        for row in found["rows"]:
            if row["status"] == "unsupported":
                self.skipTest(row["reason"])
            self.assertEqual(row["status"], "ok", row["reason"])
            self.assertEqual(row["kernel"], "torch_inductor")
            self.assertLess(row["max_rel_error"], 1e-5)
            # Compiled for each shape, outside the times.
            for phase in ("fwd", "bwd"):
                self.assertGreater(row[f"{phase}_compile_s"], 0.05)
                self.assertLess(row[f"{phase}_min_ms"] / 1e3, row[f"{phase}_compile_s"])
        self.assertEqual(result.returncode, 0)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    import skipping

    skipping.main(verbosity=2)
