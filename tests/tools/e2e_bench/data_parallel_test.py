#!/usr/bin/env python3
"""Data-parallel training as its users run it: every strategy verified, launchers, ranks that die, bad input."""
import collections
import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "allreduce_bench"))
from common import HANG, SOURCE, TOOL, alive, children, document, free_port, ranks_of, run, shared_segments, wait_until  # noqa: E402

BACKENDS = os.environ.get("WARPMETER_BACKENDS", "shm").split(",")
ROUNDS = int(os.environ.get("WARPMETER_KILLS", "3"))

# Small and quick: what is looked at is behaviour, not speed.
CPU = ["--device", "cpu", "--warmup", "0"]
TINY = [*CPU, "--size", "tiny", "--vocab", "300", "--context", "24", "--batch", "2"]
ALL = ["--data-parallel", "all"]


def statuses(doc):
    return [(row["status"], row["reason"]) for row in doc["rows"] if row["status"] != "ok"]


class Verified(unittest.TestCase):
    def verify(self, *arguments, rows):
        doc, result = document(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(statuses(doc), [])
        self.assertEqual(len(doc["rows"]), rows)
        return doc, result

    def test_toy_mlp_over_two_and_four_ranks(self):
        doc, result = self.verify(*CPU, *ALL, "--size", "toy_mlp", "--world-size", "2,4", "--shard-optimizer=both",
                                  "--shard-by", "all", "--optimizer", "adamw,sgd", "--copy=both", "--verify", "4",
                                  rows=2 * 2 * 3 * 6)
        for row in doc["rows"]:
            self.assertEqual(row["batch"] * row["world_size"], 128)
            self.assertEqual(len(row["max_diffs"]), 4)
            self.assertLessEqual(row["bound_used"], 1)
        # As the notes print it.
        lines = [line for line in result.stderr.splitlines() if line.startswith("param ")]
        self.assertEqual(len(lines), 4 * len(doc["rows"]))
        self.assertRegex(lines[0], r"^param 0: max_diff = \d\.\d{8}e[-+]\d\d$")
        self.same_bits(doc)

    def same_bits(self, doc):
        """Of every strategy, sharded or not, copied or not: shm adds in the order of ranks, however arrays are cut."""
        bits = collections.defaultdict(set)
        for row in doc["rows"]:
            bits[row["world_size"], row["optimizer"], row["micro_batches"], row["structure"]].add(
                row["weights_fingerprint"])
        for key, fingerprints in bits.items():
            self.assertEqual(len(fingerprints), 1, key)
        optimizers = collections.defaultdict(set)
        for (_, optimizer, _, _), fingerprints in bits.items():
            optimizers[optimizer] |= fingerprints
        if len(optimizers) == 2:
            self.assertFalse(optimizers["adamw"] & optimizers["sgd"])

    def test_tiny_over_two_and_four_ranks(self):
        doc, _ = self.verify(*TINY, *ALL, "--world-size", "2,4", "--optimizer", "adamw,sgd", "--shard-optimizer=both",
                             "--bucket-size", "100KiB", "--verify", "2", rows=2 * 2 * 2 * 4)
        self.same_bits(doc)

    def test_accumulated_tied_frozen_and_operation_by_operation(self):
        doc, _ = self.verify(*TINY, "--data-parallel", "flat,bucketed", "--bucket-size", "64KiB", "--structure", "all",
                             "--micro-batches", "1,3", "--tie-head", "--freeze",
                             "layers.0.ffn,layers.1.attn.q_proj,ln2", "--shard-optimizer=both", "--verify", "2",
                             rows=2 * 2 * 2 * 2)
        self.same_bits(doc)
        # What is frozen is exactly alike: nothing touched it. 20 parameters with a tied head.
        for row in doc["rows"]:
            self.assertEqual(len(row["max_diffs"]), 20)
            for index in (6, 7, 8, 9, 15):  # ln2, w1, w3, w2 of the first layer, ln2 of the second
                self.assertEqual(row["max_diffs"][index], 0, row["rerun"])
            self.assertGreater(max(row["max_diffs"]), 0)

    def test_other_backends(self):
        others = [backend for backend in BACKENDS if backend != "shm"]
        if not others:
            self.skipTest("this build has shm alone")
        self.verify(*TINY, *ALL, "--backend", ",".join(others), "--shard-optimizer=both", "--bucket-size", "100KiB",
                    "--verify", "2", rows=8 * len(others))

    def test_rounding_that_grows_is_a_mismatch(self):
        # So large a rate doubles differences step by step, until they are no rounding any more.
        doc, result = document(*CPU, "--size", "toy_mlp", "--data-parallel", "flat", "--optimizer", "sgd",
                               "--learning-rate", "1", "--verify", "400")
        row = doc["rows"][0]
        self.assertEqual((result.returncode, row["status"]), (1, "mismatch"), row)
        self.assertRegex(row["reason"], r"rank 0: param \d \(fc\d\.\w+\): max_diff = ")


class Rows(unittest.TestCase):
    def test_figures(self):
        doc, result = document(*TINY, *ALL, "--steps", "3", "--bucket-size", "64KiB,256KiB", "--copy=both", "--samples",
                               "--shard-optimizer=both")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(statuses(doc), [])
        # naive, flat twice, overlap, two buckets and their fit twice; sharded and not.
        self.assertEqual(len(doc["rows"]), 2 * (1 + 2 + 1 + 6))
        parameters = doc["rows"][0]["parameters"]
        for row in doc["rows"]:
            if row["bucket"] == "fit":
                self.assertEqual(row["fit_buckets"], ["64KiB", "256KiB"])
                self.assertIn("sqrt", row["fit_formula"])
                self.assertIn(row["measured_best_bucket"], row["fit_buckets"])
                self.assertGreater(row["fit_calls"][0], row["fit_calls"][1])
                continue
            self.assertEqual(len(row["step_samples_ms"]), 3)
            self.assertAlmostEqual(row["step_s"], row["step_ms"] / 1e3)
            self.assertGreaterEqual(row["comm_bytes"], 4 * parameters)
            self.assertLess(row["comm_bytes"], 4 * parameters + 21 * 1024)
            calls = {"naive": 21, "overlap": 21, "flat": 1}.get(row["strategy"])
            if calls:
                self.assertEqual(row["comm_calls"], calls)
            self.assertEqual(len(row["peak_mem_mib_of_ranks"]), 2)
            self.assertEqual(len(row["local_step_ms_of_ranks"]), 2)
            self.assertGreater(min(row["local_step_ms_of_ranks"]), 0)
            self.assertGreaterEqual(row["rank_skew_ms"], 0)
            self.assertGreaterEqual(row["exposed_ms"], row["update_exposed_ms"])
            self.assertAlmostEqual(row["hidden_share"], max(0, 1 - (row["exposed_ms"] - row["update_exposed_ms"])
                                                            / row["comm_ms"]))
            self.assertEqual(row["update_bytes"] > 0, row["shard_optimizer"] != "no")
            for name in ("init", "before_update", "after_update"):
                self.assertAlmostEqual(row[f"{name}_mem_mib"], row[f"predicted_{name}_mem_mib"],
                                       delta=0.5 + 0.02 * row[f"{name}_mem_mib"], msg=row["rerun"])
            self.assertAlmostEqual(row["peak_mem_mib"], row["predicted_rank_peak_mem_mib"],
                                   delta=1 + 0.05 * row["peak_mem_mib"])

    def test_a_shard_saves_its_share(self):
        size = [*CPU, "--size", "tiny", "--context", "8", "--batch", "1", "--steps", "1", "--data-parallel", "flat"]
        doc, _ = document(*size, "--shard-optimizer=both", "--shard-by", "all")
        of = {row["shard_optimizer"]: row for row in doc["rows"]}
        mib = doc["rows"][0]["parameters"] / 2**20
        whole = of["no"]["after_update_mem_mib"]
        self.assertAlmostEqual(whole, 16 * mib, delta=0.05 * 16 * mib)
        # Parameters are not cut: embedding and head are nearly all of this model, one for each rank.
        self.assertAlmostEqual(of["bytes"]["after_update_mem_mib"], 12 * mib, delta=0.1 * 12 * mib)
        self.assertLess(min(of["bytes"]["after_update_mem_mib_of_ranks"]), whole)

    def test_more_ranks_than_parameters(self):
        doc, result = document(*CPU, "--size", "toy_mlp", "--data-parallel", "flat", "--world-size", "6",
                               "--shard-optimizer", "--shard-by", "all", "--verify", "2")
        self.assertEqual(statuses(doc), [], result.stderr)

    def test_markdown_has_the_columns(self):
        result = run(*TINY, *ALL, "--steps", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        heading = next(line for line in result.stdout.splitlines() if line.startswith("| strategy"))
        self.assertEqual([cell.strip() for cell in heading.strip("| \n").split("|")],
                         ["strategy", "world_size", "bucket", "s/step", "comm_ms", "exposed_ms", "peak MiB", "status"])

    def test_precisions(self):
        doc, result = document(*TINY, "--data-parallel", "flat,bucketed", "--precision", "bf16,fp16,bf16_pure",
                               "--shard-optimizer=both", "--steps", "2", "--micro-batches", "2")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(statuses(doc), [])
        for precision in ("bf16", "fp16", "bf16_pure"):
            rows = [row for row in doc["rows"] if row["precision"] == precision]
            self.assertEqual(len({row["weights_fingerprint"] for row in rows}), 1, precision)

    def test_memory_limit_is_an_oom_row(self):
        doc, result = document(*TINY, "--data-parallel", "flat", "--memory-limit", "2MiB")
        self.assertEqual([row["status"] for row in doc["rows"]], ["oom"], result.stderr)
        self.assertEqual(result.returncode, 0)

    def test_schema_rerun_and_dry_run(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/out.json"
            result = run(*TINY, *ALL, "--steps", "1", "--wide", "--bucket-size", "64KiB,1MiB", "-o", path, "-o",
                         f"{folder}/out.jsonl", "-o", f"{folder}/out.csv")
            self.assertEqual(result.returncode, 0, result.stderr)
            python = os.environ.get("WARPMETER_SCHEMA_PYTHON") or sys.executable
            checked = subprocess.run([python, str(SOURCE / "tests/reports/validate_schema.py"), path,
                                      f"{folder}/out.jsonl"], capture_output=True, text=True, check=False)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
            doc = json.loads(pathlib.Path(path).read_text())
        row = next(row for row in doc["rows"] if row["bucket"] == "64KiB")
        again, result = document(*shlex.split(row["rerun"])[1:])
        self.assertEqual(len(again["rows"]), 1, row["rerun"])
        for key in doc["row_keys"]:
            self.assertEqual(again["rows"][0][key], row[key])
        planned, result = document(*TINY, *ALL, "--dry-run")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual({row["status"] for row in planned["rows"]}, {"skipped"})
        self.assertGreater(planned["rows"][0]["predicted_rank_peak_mem_mib"], 0)


class BadInput(unittest.TestCase):
    def test_one_line_and_status_2(self):
        for arguments, words in (
                (["--data-parallel", "ddp"], ["--data-parallel", "naive, flat, overlap, bucketed"]),
                (["--world-size", "2"], ["--world-size", "--data-parallel"]),
                (["--bucket-size", "1MiB"], ["--bucket-size", "--data-parallel"]),
                (["--size", "toy_mlp"], ["--size", "toy_mlp"]),
                ([*ALL, "--bucket-size", "3"], ["--bucket-size", "3"]),
                ([*ALL, "--bucket-size", "lots"], ["--bucket-size", "lots"]),
                ([*ALL, "--world-size", "0"], ["--world-size", "0"]),
                ([*ALL, "--shard-by", "hash"], ["--shard-by", "hash"]),
                ([*ALL, "--breakdown"], ["--breakdown", "--data-parallel"]),
                ([*ALL, "--train-steps", "5"], ["--train-steps", "--data-parallel"]),
                ([*ALL, "--cache", "cold"], ["--cache 'cold'", "--data-parallel", "accepted: hot"]),
                (["--data-parallel", "naive", "--copy"], ["--copy"]),
                ([*ALL, "--max-blocks", "0"], ["--max-blocks", "0"]),
                (["--max-blocks", "8"], ["--max-blocks", "--data-parallel"]),
                ([*ALL, "--verify", "0"], ["--verify", "0"])):
            with self.subTest(arguments=arguments):
                result = run("--device", "cpu", *arguments)
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)

    def test_what_cannot_be_is_unsupported(self):
        doc, result = document(*CPU, "--data-parallel", "flat", "--size", "toy_mlp", "--precision", "fp32,bf16",
                               "--steps", "1")
        self.assertEqual([row["status"] for row in doc["rows"]], ["ok", "unsupported"], result.stderr)
        result = run(*TINY, "--data-parallel", "flat", "--precision", "bf16", "--optimizer", "sgd", "--steps", "1")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("sgd is for fp32 weights", result.stderr)
        doc, _ = document(*TINY, "--data-parallel", "flat", "--backend", "shm,nccl", "--steps", "1")
        self.assertEqual([row["status"] for row in doc["rows"]], ["ok", "unsupported"])


def environment(**variables):
    kept = {name: text for name, text in os.environ.items()
            if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    return {**kept, **{name: str(text) for name, text in variables.items()}}


class Launchers(unittest.TestCase):
    def test_torchrun_like(self):
        port = free_port()
        arguments = [*CPU, *ALL, "--size", "toy_mlp", "--verify", "2", "--format", "json"]
        processes = [subprocess.Popen([TOOL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      env=environment(RANK=rank, WORLD_SIZE=3, MASTER_ADDR="127.0.0.1",
                                                      MASTER_PORT=port)) for rank in range(3)]
        texts = [process.communicate(timeout=HANG) for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0, 0], texts)
        self.assertEqual([text[0] for text in texts[1:]], ["", ""])
        rows = json.loads(texts[0][0])["rows"]
        self.assertEqual([(row["world_size"], row["status"]) for row in rows], [(3, "ok")] * 4)

    def test_several_ranks_without_data_parallel_are_refused(self):
        result = run(*TINY, env=environment(RANK=0, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=1))
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        self.assertIn("--data-parallel", result.stderr)

    def test_mpirun(self):
        if shutil.which("mpirun") is None or "mpi" not in BACKENDS:
            self.skipTest("no mpirun, or no MPI in this build")
        # Open MPI's components leave memory behind when they are unloaded, which AddressSanitizer would report.
        result = subprocess.run(
            ["mpirun", "-np", "2", TOOL, *CPU, *ALL, "--size", "toy_mlp", "--backend", "mpi,shm", "--verify", "2",
             "--format", "json"], capture_output=True, text=True, timeout=HANG, check=False,
            env=environment(OMPI_ALLOW_RUN_AS_ROOT=1, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1,
                            OMPI_MCA_rmaps_base_oversubscribe=1, OMPI_MCA_btl="self,vader",
                            ASAN_OPTIONS="detect_leaks=0"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual({row["status"] for row in json.loads(result.stdout)["rows"]}, {"ok"})


class DyingRanks(unittest.TestCase):
    def kill_one(self, backend, folder, generator):
        file = pathlib.Path(folder, "rows.jsonl")
        file.unlink(missing_ok=True)
        before = shared_segments()
        process = subprocess.Popen(
            [TOOL, *TINY, *ALL, "--backend", backend, "--world-size", "3", "--bucket-size", "64KiB:2MiB:x2",
             "--max-noise", "0%", "--max-time", "0.2", "--timeout", str(2 * HANG), "-o", str(file)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

        def rows():
            text = file.read_text() if file.exists() else ""
            lines = text[:text.rfind("\n") + 1].splitlines()  # one may be half written
            return [line for line in map(json.loads, lines) if line["type"] == "row"]

        wait_until(lambda: rows() or process.poll() is not None)
        ranks = ranks_of(process.pid)
        self.assertEqual(len(ranks), 3)
        everybody = children(process.pid)
        time.sleep(generator.uniform(0, 0.5))
        victim = generator.randrange(3)
        os.kill(ranks[victim], signal.SIGKILL)
        stderr = process.communicate(timeout=HANG)[1]  # it does not wait for the timeout, which is longer
        self.assertEqual(process.returncode, 1, stderr)
        states = [row["status"] for row in rows()]
        lost = states.index("crashed")
        self.assertGreater(lost, 0)
        self.assertEqual(states[:lost], ["ok"] * lost)
        self.assertEqual(set(states[lost + 1:]), {"not_run"})
        self.assertRegex(rows()[lost]["reason"], rf"rank {victim} .*(signal 9|is gone)")
        wait_until(lambda: not any(alive(child) for child in everybody))
        wait_until(lambda: not shared_segments() - before)  # other programs' come and go

    def test_kill_9_in_the_middle(self):
        seed = random.randrange(1 << 32)
        generator = random.Random(seed)
        with tempfile.TemporaryDirectory() as folder:
            for number in range(ROUNDS):
                backend = BACKENDS[number % len(BACKENDS)]
                with self.subTest(backend=backend, seed=seed, round=number):
                    self.kill_one(backend, folder, generator)


if __name__ == "__main__":
    unittest.main()
