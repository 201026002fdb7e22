"""A tool and its peer on the same sweep, in the order A B B A, so that a machine that warms up or slows down does not
favour one of them."""

import argparse
import os
import pathlib
import subprocess
import sys
import time

from . import against, results
from .grammar import one_line, shell_line

ROOT = pathlib.Path(__file__).resolve().parents[3]
USAGE, FAILURE, INTERRUPTED = 2, 1, 130
ORDER = (("ours", 1), ("pytorch", 1), ("pytorch", 2), ("ours", 2))
OWN = ("-o", "--output", "--format", "--columns", "--wide", "--resume", "--against", "--dry-run", "--list", "--version",
       "--print-config")
#: Which peer measures what attn_bench does in a mode.
_PEERS = {"train": "pytorch_attention", "decode": "pytorch_serving", "prefill": "pytorch_serving"}
HELP = """\
side_by_side: attn_bench and PyTorch on the same sweep, in the order attn_bench, PyTorch, PyTorch, attn_bench.

Usage: side_by_side [--impl NAMES] [--peer-impl NAMES] [--folder DIR] [options of both]

  --impl NAMES       attn_bench's implementations (its own default)
  --peer-impl NAMES  the peer's implementations (its own default). As many as attn_bench's: each is held against the
                     one in the same place; otherwise every one against every other
  --folder DIR       where the four results and the ratios go (side_by_side_<time>); must not hold results yet
  --show             print the ratios of what is in --folder; measure nothing
  --threads N        CPU threads of both sides
  --tool PROGRAM     attn_bench to run (scripts/run attn_bench)
  --peer PROGRAM     peer to run (scripts/peers/pytorch_attention, for --mode decode and prefill
                     scripts/peers/pytorch_serving; with this Python)
  --help             print this text

All other options go to both: --preset, --dtype, --seq-len, --steps, --device, ...
The folder gets ours_1.json, pytorch_1.json, pytorch_2.json, ours_2.json and ratios.md; stdout gets the ratios.

Exit status: 0; 1 when a row of either side has no result (mismatch, error) or a run broke off; 2 for bad usage of this
script or of one of the two; 3 when PyTorch is missing; 130 after Ctrl-C.

Examples:
  side_by_side --preset notes --impl naive,fused,flash --peer-impl pytorch_eager,pytorch_compiled,pytorch_sdpa_efficient
  side_by_side --preset fa_grid --impl flash --peer-impl pytorch_sdpa_cudnn --max-time 0.5
  side_by_side --mode decode --preset decode_grid --impl flash_decode --peer-impl pytorch_sdpa_cudnn
"""


def say(text):
    print(f"side_by_side: {one_line(text)}", file=sys.stderr, flush=True)


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        say(message)
        sys.exit(USAGE)


def _parse(arguments):
    parser = _Parser(add_help=False, allow_abbrev=False)
    for name in ("--impl", "--peer-impl", "--folder", "--tool", "--peer"):
        parser.add_argument(name)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--show", action="store_true")
    options, rest = parser.parse_known_args(arguments)
    for word in rest:
        name = word.partition("=")[0]
        if name in OWN or (word.startswith("-o") and not word.startswith("--")):
            parser.error(f"{name}: not here; results go to --folder as JSON, ratios to stdout")
    if options.threads is not None and options.threads < 1:
        parser.error(f"--threads '{options.threads}': below 1; accepted: a whole number from 1")
    if _mode(rest) not in ("", *_PEERS) and not options.peer:
        parser.error(f"--mode '{_mode(rest)}': no peer measures it; accepted: {', '.join(_PEERS)}, or --peer PROGRAM")
    if options.show and not options.folder:
        parser.error("--show: needs --folder, where the results are")
    if options.show and rest:
        parser.error(f"--show and {rest[0]}: contradict each other; --show measures nothing")
    return options, rest


def main(arguments):
    if "--help" in arguments or "-h" in arguments:
        sys.stdout.write(HELP)
        return 0
    options, rest = _parse(arguments)
    folder = pathlib.Path(options.folder or time.strftime("side_by_side_%Y%m%dT%H%M%SZ", time.gmtime()))
    status = 0
    if not options.show:
        status = _measure(options, rest, folder)
        if status not in (0, FAILURE):
            return status
    return max(status, _print(options, folder))


def _mode(rest):
    """The last --mode of a command line, or ""."""
    mode = ""
    for word, following in zip(rest, [*rest[1:], ""]):
        if word == "--mode":
            mode = following
        elif word.startswith("--mode="):
            mode = word.partition("=")[2]
    return mode


def _without_mode(rest):
    return [word for before, word in zip(["", *rest], rest)
            if before != "--mode" and word.partition("=")[0] != "--mode"]


def _commands(options, rest):
    """What is run for each side, without its output file."""
    tool = [options.tool] if options.tool else [str(ROOT / "scripts" / "run"), "attn_bench"]
    # This Python has found its way here, so it is the one that may have torch.
    name = _PEERS.get(_mode(rest) or "train", "")  # none: --peer names one
    peer = [options.peer] if options.peer else [sys.executable, str(ROOT / "scripts" / "peers" / name)]
    ours = tool + (["--impl", options.impl] if options.impl else []) + rest
    # A mode of its own is no option of the peer that has only that.
    given = _without_mode(rest) if _mode(rest) == "train" and not options.peer else rest
    theirs = peer + (["--impl", options.peer_impl] if options.peer_impl else []) + given
    return {"ours": ours, "pytorch": theirs}


def _measure(options, rest, folder):
    files = {turn: folder / f"{turn[0]}_{turn[1]}.json" for turn in ORDER}
    held = [path.name for path in files.values() if path.exists()]
    if held:
        say(f"--folder '{folder}': has {held[0]} already; accepted: a folder without results, or --show")
        return USAGE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        say(f"--folder '{folder}': cannot be made: {error.strerror}")
        return USAGE
    commands = _commands(options, rest)
    environment = dict(os.environ)
    if options.threads:
        environment["OMP_NUM_THREADS"] = str(options.threads)
    worst = 0
    for index, turn in enumerate(ORDER, 1):
        command = commands[turn[0]] + ["-o", str(files[turn])]
        say(f"[{index}/{len(ORDER)}] {shell_line(command)}")
        try:
            code = subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=False).returncode
        except OSError as error:
            say(f"{command[0]}: cannot be run: {error.strerror}")
            return USAGE
        except KeyboardInterrupt:
            return INTERRUPTED
        if code in (0, FAILURE):
            worst = max(worst, code)
        elif code < 0:
            say(f"{turn[0]}, round {turn[1]}, was ended by signal {-code}; what it had measured is in {files[turn]}")
            worst = FAILURE
        else:
            if index == 1 and not any(folder.iterdir()):
                folder.rmdir()
            return code  # it has said why
    return worst


def _read(folder):
    """[(our rows, PyTorch's rows), ...] of the rounds that are there, and the rows' keys."""
    rounds, row_keys, first = [], None, None
    for number in (1, 2):
        sides = []
        for side in ("ours", "pytorch"):
            path = folder / f"{side}_{number}.json"
            if not path.exists() or path.stat().st_size == 0:
                say(f"{path} is not there: round {number} is left out")
                break
            document = results.read_document(str(path))
            first = first or document
            difference = against.device_difference(first["device"], document["device"])
            if difference:
                raise results.ReadError(f"{path.name} is of another device ({difference})")
            difference = against.flush_difference(first, document)
            if difference:
                raise results.ReadError(f"{path.name} was measured behind another flush (it left the L2 {difference})")
            row_keys = document["row_keys"]
            sides.append(document["rows"])
        if len(sides) == 2:
            rounds.append(tuple(sides))
    return rounds, row_keys


def _pairs(options, rounds):
    """As many of ours as of PyTorch's: each with the one in the same place. Otherwise None, which is all with all."""
    sides = []
    for side, names in enumerate((options.impl, options.peer_impl)):
        if names and "all" in names.split(","):
            return None
        measured = dict.fromkeys(row.get("impl") for of_round in rounds for row in of_round[side])
        sides.append(names.split(",") if names else list(measured))
    return list(zip(*sides)) if len(sides[0]) == len(sides[1]) else None


def _print(options, folder):
    try:
        rounds, row_keys = _read(folder)
    except results.ReadError as error:
        say(f"--folder '{folder}': {error}")
        return USAGE
    if not rounds:
        say(f"--folder '{folder}': no round has both sides' results")
        return USAGE if options.show else FAILURE
    text = against.ratio_text(rounds, row_keys, _pairs(options, rounds))
    sys.stdout.write(text)
    sys.stdout.flush()
    try:
        (folder / "ratios.md").write_text(text, encoding="utf-8")
    except OSError as error:
        say(f"{folder / 'ratios.md'}: cannot be written: {error.strerror}")
        return FAILURE
    return 0
