"""scripts/compare: result files beside each other."""

import argparse
import os
import re
import sys

from warpmeter import comparison, comparison_text, results, verdict

_RULE = """the rule:
  A ratio is the new median over the base median. Its uncertainty is what two runs of one program may differ by, at
  95%: from how well each run's samples tell their median, half of each run's noise, and 0.4% a run for clocks and
  temperature; widened by what the two runs' clocks differ.
    SLOWER   more than 3% (--effect), more than the uncertainty, and the shortest samples say so too
    FASTER   the same the other way
    SAME     within 3%, and sure to 5%
    UNCLEAR  anything else: more samples, or a quieter machine, would tell
    LOST, GAINED   only one of the two has a time

examples:
  scripts/compare base.json new.json
  attn_bench --preset quick --format json | scripts/compare base.json - --fail-on-regression
  scripts/compare base.json new.json --fail-on-regression 5% --only slower,unclear --md
  scripts/compare results/*.json                        # more than two: a history by commit, oldest first

Exit status: 0; 1 with --fail-on-regression and a row that is SLOWER or LOST; 2 for bad usage, a file that is no result,
and results that do not compare, in one line.
"""
_PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)%?\Z")


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(f"{message}; scripts/compare --help lists the options")


def fail(message):
    print(f"scripts/compare: {message}", file=sys.stderr)
    raise SystemExit(2)


def _percent(text):
    match = _PERCENT.match(text)
    if not match or float(match.group(1)) > 1000:
        raise argparse.ArgumentTypeError(
            f"'{results.clean_text(text[:60])}' is no percentage: accepted are 5, 5% or 2.5"
        )
    return float(match.group(1))


def _words(text):
    words = [word.strip().upper() for word in text.split(",")]
    for word in words:
        if word not in comparison.WORDS:
            accepted = ", ".join(comparison.WORDS).lower()
            raise argparse.ArgumentTypeError(
                f"'{results.clean_text(word[:60].lower())}' is no verdict: accepted are {accepted}"
            )
    return words


def parse_arguments(arguments):
    parser = _Parser(
        prog="scripts/compare",
        description="Says of each configuration whether it became faster or slower, "
        "row by row, with both medians and noises, and what else changed.",
        epilog=_RULE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="base and new, or several for a history: JSON or JSON lines of one tool; - is stdin",
    )
    parser.add_argument(
        "--fail-on-regression",
        nargs="?",
        type=_percent,
        const=0.0,
        metavar="PERCENT",
        help="exit with 1 when a row is SLOWER (by more than PERCENT, when given) or no longer works",
    )
    parser.add_argument(
        "--effect",
        type=_percent,
        default=100 * verdict.EFFECT,
        metavar="PERCENT",
        help="the least change that matters (default: %(default)g%%)",
    )
    parser.add_argument("--only", type=_words, metavar="VERDICTS", help="show only these rows: slower,unclear")
    parser.add_argument("--md", action="store_true", help="Markdown")
    parser.add_argument("--json", action="store_true", help="JSON")
    parser.add_argument("--allow-different-device", action="store_true", help="compare results of different devices")
    parser.add_argument("--allow-different-settings", action="store_true", help="compare other timers, caches, flushes")
    parser.add_argument(
        "--allow-different-keys",
        action="store_true",
        help="pair rows by the fields that all files share, such as results of different tools or versions",
    )
    options = parser.parse_args(_bound(arguments))
    if options.files.count("-") > 1:
        parser.error("stdin ('-') can be read only once")
    if options.md and options.json:
        parser.error("--md and --json: contradict each other; accepted: one of them")
    if not 0 < options.effect <= 100:
        parser.error(f"--effect {options.effect:g}: accepted are percentages above 0, up to 100")
    return options


def _bound(arguments):
    """--fail-on-regression takes the next word only where that is a percentage; a file follows it otherwise."""
    bound = []
    words = iter(range(len(arguments)))
    for at in words:
        word = arguments[at]
        if word == "--fail-on-regression":
            if at + 1 < len(arguments) and _PERCENT.match(arguments[at + 1]):
                word = f"{word}={arguments[next(words)]}"
            else:
                word = f"{word}=0"
        bound.append(word)
    return bound


def write(text):
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        fail(f"cannot write to stdout: {error.strerror}")


def main(arguments=None):
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    effect = options.effect / 100
    allowed = comparison.Allowed(
        options.allow_different_device, options.allow_different_settings, options.allow_different_keys
    )
    try:
        files = [result for path in options.files for result in results.load_all(path)]
        if len(files) < 2:
            fail("one result alone compares with nothing: name a base and a new file")
        if len(files) == 2:
            found = comparison.compare(files[0], files[1], effect, allowed)
            nothing = not found.lines
        else:
            found = comparison.history(files, effect, allowed)
            nothing = not found.series
    except (results.ReadError, comparison.Refusal) as error:
        fail(error)
    if nothing:
        fail(f"no configuration with a time is in {'both' if len(files) == 2 else 'them'}")
    percent = options.fail_on_regression
    pair = len(files) == 2
    if options.json:
        write((comparison_text.comparison_json if pair else comparison_text.history_json)(found, effect, percent))
    else:
        colour = not options.md and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        how = comparison_text.style(options.md, colour)
        write((comparison_text.write_comparison if pair else comparison_text.write_history)(found, how, options.only))
    worse = found.regressions(percent) if percent is not None else []
    if worse:
        print(
            f"scripts/compare: {len(worse)} of {len(found.lines if pair else found.series)} rows are worse",
            file=sys.stderr,
        )
    return 1 if worse else 0
