"""scripts/report: result files to a page."""

import argparse
import contextlib
import os
import signal
import sys
import tempfile

from warpmeter import numerals, page, results, study

_EPILOG = """examples:
  attn_bench --format json | scripts/report - -o page.html
  scripts/report h200.json cpu.json --title "H200 beside its host" -o both.html
  scripts/report sweep.jsonl --md                      # a table for a pull request
  scripts/report sweep.json --png plots.png            # needs matplotlib

Exit status: 0; 2 for bad usage and for a file that is no result, in one line; 3 for --png without matplotlib.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(f"{message}; scripts/report --help lists the options")


def fail(message, status=2):
    print(f"scripts/report: {message}", file=sys.stderr)
    raise SystemExit(status)


def parse_arguments(arguments):
    parser = _Parser(
        prog="scripts/report",
        description="Makes one self-contained HTML page of result files of any tool: "
        "what was measured on what, what was fastest, plots, tables, and how to repeat it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="JSON or JSON lines as the tools write them; - is stdin"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where to write (default: stdout); .md gives Markdown, .png a picture"
    )
    parser.add_argument("--md", action="store_true", help="Markdown instead of HTML")
    parser.add_argument(
        "--png", metavar="FILE", help="the plots as a picture; alone, no page is written unless -o asks for one"
    )
    parser.add_argument("--title", metavar="TEXT", help="the page's heading (default: tool and device)")
    options = parser.parse_args(arguments)
    if options.files.count("-") > 1:
        parser.error("stdin ('-') can be read only once")
    if options.output and options.output.endswith(".png") and not options.png:
        options.png, options.output = options.output, None
    if options.output and options.output.endswith((".md", ".markdown")):
        options.md = True
    return options


def default_title(studies):
    tools = list(dict.fromkeys(whole.tool for whole in studies))
    devices = list(dict.fromkeys(file.device_name for whole in studies for file in whole.files))
    devices = [*devices[:2], f"{len(devices) - 2} more"] if len(devices) > 2 else devices
    return f"{numerals.listed(tools)} on {numerals.listed(devices)}"


def write_whole(path, data):
    """Writes a file or leaves it as it was."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # /dev/stdout, a pipe
            with open(path, "wb") as file:
                file.write(data)
            return
        handle, beside = tempfile.mkstemp(dir=folder, prefix="." + os.path.basename(path)[:40])
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(beside, 0o666 & ~mask)
            os.replace(beside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise
    except (OSError, ValueError) as error:
        fail(f"cannot write '{results.clean_text(path)}': {getattr(error, 'strerror', None) or error}")


def write(path, data):
    """To a file, whole or not at all, or to stdout ("-" or None)."""
    if path and path != "-":
        write_whole(path, data)
        return
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        fail(f"cannot write to stdout: {error.strerror}")


@contextlib.contextmanager
def patient():
    """Ctrl-C in `tool | scripts/report -` stops the tool, whose rows are still to come: the first is left to it."""

    def once(number, frame):
        print("scripts/report: waiting for what was measured; Ctrl-C again gives up", file=sys.stderr)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def main(arguments=None):
    options = parse_arguments(arguments)
    try:
        return make(options)
    except KeyboardInterrupt:
        return 130


def make(options):
    try:
        with patient() if "-" in options.files else contextlib.nullcontext():
            files = [result for path in options.files for result in results.load_all(path)]
    except results.ReadError as error:
        fail(error)
    studies = study.studies(files)
    title = results.clean_text(options.title) if options.title else default_title(studies)
    if options.png:
        from warpmeter import png

        try:
            write(options.png, png.draw(studies, title))
        except png.NoMatplotlib as error:
            fail(error, 3)
        if not options.output and not options.md:
            return 0
    if options.md:
        from warpmeter import markdown

        text = markdown.write(studies, title)
    else:
        text = page.write(studies, title)
    write(options.output, text.encode("utf-8", "replace"))
    return 0
