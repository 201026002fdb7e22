"""stdout and the files of -o. As tools/harness/sweep_outputs.cpp."""

import os
import sys

from . import results, tables
from .grammar import UsageError
from .settings import format_of_path


class Outputs:
    """stdout and the files of -o, each in its format."""

    def __init__(self, settings, layout, document, console):
        self._settings, self._layout, self._document, self._console = settings, layout, document, console
        self._stdout_open, self._files = True, []
        for path in settings.outputs:
            try:
                self._files.append((format_of_path(path), results.OutputFile(path), path))
            except results.OutputError as error:
                raise UsageError("--output", path, f"cannot be written: {error}",
                                 "a file in a folder that can be written to, ending in .md, .json, .jsonl or .csv"
                                 ) from None
        self._stale = {}

    def text(self, kind):
        return write_text(self._document, kind, self._layout, self._settings)

    def print(self, text):
        if not self._stdout_open or not text:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            self._stdout_open = False
            self._console.warning(f"stdout cannot be written: {error.strerror}")
            # Python would complain once more when it closes the stream.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def begin(self):
        if self._settings.format == "jsonl":
            self.print(results.header_line(self._document))
        elif self._settings.format == "csv":
            self.print(tables.csv_header(self._csv_columns()))

    def row(self, row):
        if self._settings.format == "jsonl":
            self.print(results.row_to_json(row, self._settings.samples, "row") + "\n")
        elif self._settings.format == "csv":
            self.print(tables.csv_line(row, self._csv_columns()))
        self._rewrite(False)

    def partial(self, row):
        """A row under way goes into the files: what ends this process leaves them with the phases that are done."""
        was = row.status, row.reason
        row.end("interrupted", "ended before the row was complete")
        self._document.rows.append(row)
        self._rewrite(False)
        self._document.rows.pop()
        row.end(*was)

    def end(self):
        if self._settings.format == "jsonl":
            self.print(results.summary_line(self._document))
        elif self._settings.format != "csv":
            self.print(self.text(self._settings.format))
        self._rewrite(True)

    def _csv_columns(self):
        return tables.csv_columns(self._layout, self._document.envelope["row_keys"], self._settings.wide,
                                  self._settings.columns)

    def _rewrite(self, last):
        for kind, file, path in self._files:
            try:
                file.write(self.text(kind), last)
                self._stale[path] = False
            except results.OutputError as error:
                if path not in self._stale:
                    self._console.warning(f"cannot write '{path}': {error}; it keeps what it had")
                self._stale[path] = True

    def failed(self):
        return not self._stdout_open or any(self._stale.values())


def write_text(document, kind, layout, settings):
    """A whole document in one format."""
    if kind == "json":
        return results.json_text(document, settings.samples)
    if kind == "md":
        return tables.markdown_text(document, layout, settings.wide, settings.columns)
    if kind == "jsonl":
        return (results.header_line(document)
                + "".join(results.row_to_json(row, settings.samples, "row") + "\n" for row in document.rows)
                + results.summary_line(document))
    columns = tables.csv_columns(layout, document.envelope["row_keys"], settings.wide, settings.columns)
    return tables.csv_header(columns) + "".join(tables.csv_line(row, columns) for row in document.rows)
