#!/usr/bin/env python3
"""The peers' options against attn_bench's own: the same values, the same one-line refusals, the same sweeps."""

import os
import re
import shlex
import tempfile
import unittest

from common import ATTN_BENCH, documentation, peer, peer_here, run, strict
from warpmeter_peers import grammar, side_by_side
from warpmeter_peers.grammar import GrammarError

# Refused by both with the same words. The device is named, so that neither looks for a GPU.
BAD_USAGE = [line.split("|") for line in """\
--seq-len|0
--seq-len|-5
--seq-len|abc
--seq-len|12x
--seq-len|16:8:x2
--seq-len|1e99
--seq-len|99999999999999999999
--seq-len|1,2,,3
--seq-len|1,x
--seq-len|8:16
--seq-len|8:16:y2
--seq-len|8:16:x1
--seq-len|8:16:xa
--seq-len|8:16:+0
--seq-len|8:16:+a
--seq-len|1:1000000:+1
--seq-len|+5
--seq-len
--seq-len=
--seq-lne|8
--dtype|fp33
--dtype|fp32,bf61
--preset|nites
--preset|fa_gird
--heads|3|--d-model|64
--heads|4|--kv-heads|3|--d-model|64
--head-dim|24|--d-model|64
--head-dim|300
--d-model|512
--tokens|1000|--seq-len|128
--tokens|1024|--batch|8
--heads|2|--head-dim|32
--steps|0
--steps|-1
--steps|5|--max-time|1
--steps|5|--max-noise|1%
--duty-cycle|0
--duty-cycle|2
--max-noise|nan
--max-noise|2
--max-noise|200%
--max-noise|abc
--max-time|0
--max-time|1e5
--max-time|99999999
--memory-limit|24GB2
--memory-limit|0
--memory-limit|24gb
--memory-limit|24G
--memory-limit|1.0000001KiB
--memory-limit|99999999999999999999TiB
-o|x.txt
-o|.json
-o|/tmp/x.json|-o|/tmp/./x.json
--format|xml
--columns|fwd_ms,,a
--columns|fwd_ms,fwd_ms
--columns|fwd_ms|--wide
junk
-z
seq-len
--causal|--no-causal
--causal=maybe
--no-causal=1
--wide=1
--check|--no-check
--samples
--pass|fwd,back
--seq-len|8|--seq-len|9
--timer|clock
--cache|warm
--warmup|-3
--warmup|9999999
--seed|-1
--seed|x
--batch|9999999999999
--batch|2147483648|--seq-len|2147483648
--row-timeout|5
--isolate|--row-timeout|0
--isolate|--row-timeout|x
--no-chekc""".splitlines()]

SWEEPS = [line.split() for line in """\
--preset notes
--preset quick
--preset fa_grid
--preset course_flash --memory-limit 1TiB
--preset leaderboard
--preset fa_grid --seq-len 512 --no-causal
--preset fa_grid --batch 4 --heads 16 --seq-len 512
--preset notes --d-model 64,128 --heads 2,4 --kv-heads 1,2 --seq-len 100 --kv-len 50,300 --dtype fp16,fp32
--seq-len 1,256:1024:x2,100:200:+50 --pass fwd
--head-dim 32 --d-model 64:256:x2 --seq-len 16 --causal=both --pass bwd
--batch 1,2 --seq-len 64 --deterministic --causal=false""".splitlines()]


def of_training(text):
    """attn_bench's words without the presets of its serving modes, which the peer does not have."""
    serving = ", prefill, notebook, decode, notebook_decode, notebook_stability, prefill_chunk, mixed, decode_grid"
    return text.replace(serving, "")


class Values(unittest.TestCase):
    def test_lists(self):
        for text, values in (("16", [16]), ("16,32,16", [16, 32]), ("256:2048:x2", [256, 512, 1024, 2048]),
                             ("100:250:+50", [100, 150, 200, 250]), ("3:10:x2", [3, 6]), ("1,4:8:+2", [1, 4, 6, 8]),
                             ("5:5:x99999999999999999999999", [5]), ("007", [7])):
            with self.subTest(text=text):
                self.assertEqual(grammar.parse_integer_list(text, 0, 10**6), values)
        for text in ("٣", "1_000", " 1", "1 ", "0x10", "1.0", "−1"):
            with self.subTest(text=text), self.assertRaises(GrammarError):
                grammar.parse_integer_list(text, 0, 10**6)

    def test_sizes(self):
        for text, size in (("4096", 4096), ("64KiB", 65536), ("1.5GiB", 3 << 29), ("10MB", 10**7), ("0.5KB", 500)):
            self.assertEqual(grammar.parse_size(text), size)
        for text in ("", "KiB", "1.KiB", "1..5KiB", "0.3B", "-1KiB", "1e3"):
            with self.subTest(text=text), self.assertRaises(GrammarError):
                grammar.parse_size(text)

    def test_fractions(self):
        self.assertEqual(grammar.parse_fraction("0.5%"), 0.005)
        self.assertEqual(grammar.parse_fraction("1"), 1.0)
        with self.assertRaisesRegex(GrammarError, r"did you mean 5%\?"):
            grammar.parse_fraction("5")

    def test_near_words(self):
        self.assertEqual(grammar.nearest_words("-seq-len", ["--seq-len", "--kv-len"]), ["--seq-len"])
        self.assertEqual(grammar.nearest_words("zzzz", ["--seq-len"]), [])

    def test_messages_stay_one_line(self):
        self.assertEqual(grammar.one_line("a\nb\tc\x1b"), "a\\nb\\tc\\x1b")
        self.assertEqual(str(grammar.UsageError("--x", "9" * 200, "no")), "--x '" + "9" * 77 + "...': no")

    def test_shell_line(self):
        self.assertEqual(grammar.shell_line(["a", "b c", "it's", ""]), "a 'b c' 'it'\\''s' ''")


class Usage(unittest.TestCase):
    def test_one_line_exit_2_nothing_printed(self):
        for arguments in BAD_USAGE + [["--device", "tpu"], ["--device", "cuda:x"], ["--threads", "0"], ["--"],
                                      ["--impl", "flash"], ["--list=1"], ["--against"]]:
            with self.subTest(arguments=arguments):
                result = peer_here(*arguments)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
                self.assertTrue(result.stderr.startswith("pytorch_attention: "), result.stderr)

    @unittest.skipUnless(ATTN_BENCH, "attn_bench is not built")
    def test_refused_with_attn_benchs_own_words(self):
        for arguments in BAD_USAGE:
            with self.subTest(arguments=arguments):
                ours = run(ATTN_BENCH, "--device", "cpu", *arguments)
                theirs = peer_here("--device", "cpu", *arguments)
                self.assertEqual(ours.returncode, 2)
                self.assertEqual(of_training(ours.stderr.partition(": ")[2]), theirs.stderr.partition(": ")[2])

    def test_help_list_version(self):
        for option, words in (("--help", ["--seq-len", "Presets", "--against", "Examples"]),
                              ("--list", ["pytorch_eager", "pytorch_sdpa_cudnn"]), ("--version", ["warpmeter 0."])):
            result = peer(option, "--seq-len", "nonsense", "--nonsense") if option != "--list" else peer(option)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stderr, "")
            for word in words:
                self.assertIn(word, result.stdout)
            if option == "--help":
                self.assertLessEqual(max(map(len, result.stdout.splitlines())), 100)


CONFIGS = ["seq-len = 64\nheads = 3", "seq-len = 64\nsq-len = 3", "seq-len = 64\nseq-len = 3", "[a]\nx = 1", "a.b = 1",
           "seq-len 64", "seq-len =", "seq-len = 64 32", "seq-len = [64, 32", "seq-len = [64 32]", "seq-len = [[1]]",
           "seq-len = [x]", "dtype = bf16", 'dtype = "bf16', 'dtype = "b\\q"', 'dtype = "\\u12"', 'dtype = "\\ud800"',
           "dtype = \"\"\"bf16\"\"\"", "causal = 7", "causal = \"neither\"", "no-causal = true", "help = true",
           "list = true", "config = \"x\"", "seq-len = 064", "seq-len = 1__0", "batch = []", "dtype = \"\"", "= 3",
           "seq-len = \"x\"", "steps = 3\nmax-time = 1", "preset = \"nites\"", "zzzzzzzzz = 1",
           "deterministic = \"both\"", "wide = 3"]
GOOD_CONFIG = """\
# A comment, then every kind of value.
preset = "fa_grid"   # behind a value too
"seq-len" = [512, 1024]
head-dim = 64
causal = "both"
dtype = 'bf16'
max-time = 0.5
check = false
output = ["a.json", "b.md"]
tokens = 16_384
"""


class ConfigFiles(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.path = os.path.join(self._folder.name, "c.toml")

    def write(self, text):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)

    def test_mistakes_are_told_in_one_line(self):
        for text in CONFIGS:
            with self.subTest(text=text):
                self.write(text)
                result = peer_here("--device", "cpu", "--config", self.path)
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1)
                if ATTN_BENCH:
                    ours = run(ATTN_BENCH, "--device", "cpu", "--config", self.path)
                    self.assertEqual(of_training(ours.stderr.partition(": ")[2]), result.stderr.partition(": ")[2])

    def test_files_that_are_none(self):
        for path in (self._folder.name, self.path):
            result = peer_here("--config", path)
            self.assertEqual(result.returncode, 2)
            if ATTN_BENCH:
                self.assertEqual(run(ATTN_BENCH, "--config", path).stderr.partition(": ")[2],
                                 result.stderr.partition(": ")[2])

    def test_every_kind_of_value(self):
        self.write(GOOD_CONFIG)
        common = ["--device", "cpu", "--config", self.path, "--seq-len", "512", "--dry-run", "--format", "json"]
        found = strict(peer_here(*common).stdout)
        self.assertEqual([(row["impl"], row["causal"], row["batch"], row["seq_len"]) for row in found["rows"]],
                         [(impl, causal, 32, 512) for impl in ("pytorch_sdpa_flash", "pytorch_sdpa_cudnn")
                          for causal in (True, False)])
        self.assertEqual((found["settings"]["max_time_s"], found["settings"]["check"]), (0.5, False))
        if ATTN_BENCH:
            ours = strict(run(ATTN_BENCH, *common).stdout)
            self.assertEqual([row["causal"] for row in ours["rows"]], [True, False])
            self.assertEqual(ours["settings"]["preset"], found["settings"]["preset"])

    def test_print_config_is_read_back(self):
        first = peer_here("--device", "cpu", "--seq-len", "64,96", "--impl", "pytorch_eager", "--causal=both", "-o",
                          "a b.json", "--steps", "7", "--print-config")
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertIn('output = ["a b.json"]', first.stdout)
        self.write(first.stdout)
        self.assertEqual(peer_here("--config", self.path, "--print-config").stdout, first.stdout)

    @unittest.skipUnless(ATTN_BENCH, "attn_bench is not built")
    def test_print_config_has_attn_benchs_lines(self):
        options = ["--device", "cpu", "--preset", "fa_grid", "--seq-len", "64,96", "--max-noise", "1%", "--no-check"]
        ours = run(ATTN_BENCH, *options, "--print-config").stdout.splitlines()
        theirs = peer_here(*options, "--print-config").stdout.splitlines()
        own = re.compile(r"(# )?(impl|threads|against|mode|dump-on-oom)\b")
        # What the peer does not measure, at the end.
        serving = [line.startswith("# Serving (--mode ") for line in ours].index(True) - 1
        self.assertEqual([line for line in ours[2:serving] if not own.match(line)],
                         [line for line in theirs[2:] if not own.match(line)])


class Sweeps(unittest.TestCase):
    @unittest.skipUnless(ATTN_BENCH, "attn_bench is not built")
    def test_the_same_configurations_as_attn_bench(self):
        for sweep in SWEEPS:
            with self.subTest(sweep=sweep):
                common = ["--device", "cpu", "--dry-run", "--format", "json", *sweep]
                ours = strict(run(ATTN_BENCH, *common, "--impl", "naive").stdout)
                theirs = strict(peer_here(*common, "--impl", "pytorch_eager").stdout)
                self.assertEqual(ours["row_keys"], theirs["row_keys"])
                keys = [key for key in ours["row_keys"] if key != "impl"]
                self.assertEqual([[row[key] for key in keys] for row in ours["rows"]],
                                 [[row[key] for key in keys] for row in theirs["rows"]])
                self.assertGreater(len(ours["rows"]), 0)
                for a, b in zip(ours["rows"], theirs["rows"]):
                    if "unsupported" in (a["status"], b["status"]):
                        continue
                    for figure in ("fwd_flops", "fwd_bytes", "bwd_flops", "bwd_bytes"):
                        self.assertEqual(a.get(figure), b.get(figure), figure)
                # What decides how it is measured.
                for setting in ("warmup", "steps", "max_noise", "max_time_s", "duty_cycle", "timer", "cache",
                                "cache_flush", "seed", "check", "memory_limit_bytes"):
                    self.assertEqual(ours["settings"][setting], theirs["settings"][setting], setting)

    def test_rerun_line_repeats_the_row(self):
        sweep = ["--preset", "fa_grid", "--seq-len", "512", "--max-time", "0.5", "--dtype", "fp16"]
        sweep += ["--impl", "pytorch_sdpa_flash"]
        document = strict(peer_here("--device", "cpu", "--dry-run", "--format", "json", *sweep).stdout)
        self.assertEqual(len(document["rows"]), 4)
        for row in document["rows"]:
            arguments = shlex.split(row["rerun"])
            self.assertEqual(arguments[0], "pytorch_attention")
            again = strict(peer_here(*arguments[1:], "--dry-run", "--format", "json").stdout)
            self.assertEqual(len(again["rows"]), 1)
            self.assertEqual([again["rows"][0][key] for key in document["row_keys"]],
                             [row[key] for key in document["row_keys"]])
            self.assertEqual({**again["settings"], "preset": None}, {**document["settings"], "preset": None})

    def test_the_readmes_commands_are_accepted(self):
        commands = [shlex.split(line) for line in documentation.commands("scripts/peers/pytorch_attention")]
        self.assertGreaterEqual(len(commands), 2)
        for command in commands:
            result = peer_here(*command[1:], "--dry-run", "--device", "cpu")
            self.assertEqual(result.returncode, 0, result.stderr)
        both = [shlex.split(line) for line in documentation.commands("scripts/peers/side_by_side")]
        self.assertGreaterEqual(len(both), 1)
        for command in both:
            options, rest = side_by_side._parse(command[1:])
            theirs = side_by_side._commands(options, rest)["pytorch"]
            options.peer_impl = "all"
            any_of_theirs = side_by_side._commands(options, rest)["pytorch"]
            # Some backends run on a GPU alone: what they are called is looked at apart from what would be measured.
            for command in ([*theirs, "--print-config"], [*any_of_theirs, "--dry-run"]):
                result = run(*command, "--device", "cpu")
                self.assertEqual(result.returncode, 0, result.stderr)
            if ATTN_BENCH:
                result = run(ATTN_BENCH, *rest, "--impl", options.impl, "--dry-run", "--device", "cpu")
                self.assertEqual(result.returncode, 0, result.stderr)

    def test_without_torch_exit_3_in_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/torch.py", "w", encoding="utf-8") as file:
                file.write("raise ImportError('no torch here')\n")
            result = peer("--seq-len", "8", env=dict(os.environ, PYTHONPATH=folder))
        self.assertEqual(result.returncode, 3)
        self.assertEqual(result.stdout, "")
        self.assertEqual(len(result.stderr.splitlines()), 1)
        self.assertIn("python3-torch", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
