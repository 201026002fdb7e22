"""Rows as Markdown and CSV. As reports/markdown_writer.cpp and csv_writer.cpp."""

from .cells import code_span, escape_markdown, format_cell, has_unit, is_number, printable
from .grammar import shell_line
from .results import to_json


class Layout:
    def __init__(self, group_by, columns, wide_columns):
        self.group_by, self.columns, self.wide_columns = list(group_by), list(columns), list(wide_columns)

    def names(self, row_keys):
        """Every name that --columns accepts."""
        return list(dict.fromkeys([*row_keys, *self.group_by, *self.columns, *self.wide_columns, "status", "reason",
                                   "rerun"]))

    def telling_apart(self, row_keys, configurations):
        """With the columns added that it takes to tell all the configurations apart."""
        shown, added = self.group_by + self.columns, []
        for key in row_keys:
            if key in shown:
                continue
            classes = {}
            for configuration in configurations:
                classes.setdefault(tuple(repr(configuration.get(name)) for name in shown), set()).add(
                    repr(configuration.get(key)))
            if any(len(values) > 1 for values in classes.values()):
                shown = shown + [key]
                added.append(key)
        at = next((i for i, column in enumerate(self.columns) if column not in row_keys), len(self.columns))
        return Layout(self.group_by, self.columns[:at] + added + self.columns[at:], self.wide_columns)


def label(name, value):
    """`naive`, `d_model 64`, `causal`, `not causal`."""
    if isinstance(value, bool):
        return ("" if value else "not ") + escape_markdown(name)
    text = escape_markdown(format_cell(name, value))
    if isinstance(value, str) and value:
        return text
    return f"{escape_markdown(name)} {text or 'none'}"


def markdown_text(document, layout, wide=False, columns=()):
    """A table for each group, then why rows are not ok, then what was measured where."""
    candidates = list(columns) or layout.columns + [name for name in layout.wide_columns if wide]
    group_by = [name for name in layout.group_by if name not in candidates]
    rows = [row.flat() for row in document.rows]
    if not columns:
        candidates = [name for name in candidates if any(row.get(name, "") != "" and name in row for row in rows)]
    blocks, groups = [], {}
    for row in rows:
        groups.setdefault(tuple(label(name, row.get(name)) for name in group_by), []).append(row)
    numeric = [_is_numeric(name, rows) for name in candidates]
    cells = {id(row): [escape_markdown(format_cell(name, row.get(name))) for name in candidates] for row in rows}
    header = [escape_markdown(name) for name in candidates]
    widths = [max([6 if has_unit(name) else 3, len(header[i])] + [len(cells[id(row)][i]) for row in rows])
              for i, name in enumerate(candidates)]

    def line(texts):
        return "| " + " | ".join(text.rjust(width) if right else text.ljust(width)
                                 for text, width, right in zip(texts, widths, numeric)) + " |"

    for group, members in groups.items():
        if group:
            blocks.append([f"### {', '.join(group)}"])
        rule = "|" + "|".join("-" * (w + 1) + (":" if right else "-") for w, right in zip(widths, numeric)) + "|"
        blocks.append([line(header), rule] + [line(cells[id(row)]) for row in members])
    if not rows:
        blocks.append(["No rows."])
    reasons = [_reason_line(row, layout, document, wide) for row in rows if row["status"] != "ok"]
    if reasons:
        are = "row is" if len(rows) == 1 else "rows are"
        blocks.append([f"{len(reasons)} of {len(rows)} {are} not ok:", "", *reasons])
    blocks.append([context_line(document.envelope)])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _is_numeric(name, rows):
    for row in rows:
        if format_cell(name, row.get(name)):
            return is_number(row[name])
    return has_unit(name)


def _reason_line(row, layout, document, wide):
    keys = document.envelope["row_keys"]
    names = [name for name in layout.group_by + layout.columns if name in keys] or keys
    text = "- " + ", ".join(label(name, row[name]) for name in names if name in row) + f": {row['status']}"
    if row["reason"]:
        text += ": " + escape_markdown(printable(row["reason"]))
    if wide:
        text += "; rerun: " + code_span(printable(row["rerun"]))
    return text


def context_line(envelope):
    """What a reader needs to trust a pasted table: program, device, time and how it was timed."""
    version, device, settings = envelope["version"], envelope["device"], envelope["settings"]

    def text_of(holder, name):
        return escape_markdown(format_cell(name, holder.get(name)))

    text = f"Measured by {escape_markdown(envelope['tool'])} {text_of(version, 'project')}".rstrip()
    build = [text_of(version, "git_sha")[:12]] if version.get("git_sha") else []
    if version.get("dirty"):
        build.append("modified")
    if version.get("build_type") not in (None, "", "Release"):
        build.append(text_of(version, "build_type") + " build")
    if build:
        text += f" ({', '.join(build)})"
    details = [before + text_of(device, name) + after for name, before, after in (
        ("sm", "sm_", ""), ("driver", "driver ", ""), ("cuda", "CUDA ", ""), ("cores", "", " cores"),
        ("threads", "", " threads"), ("isa", "", "")) if text_of(device, name)]
    if envelope["libraries"].get("torch"):
        details.append("PyTorch " + text_of(envelope["libraries"], "torch"))
    text += f" on {text_of(device, 'name') or text_of(device, 'cpu')}" + (f" ({', '.join(details)})" if details else "")
    parts = [text, envelope["started_at"]]
    parts += [f"{name} {text_of(settings, name)}" for name in ("timer", "cache", "warmup", "steps")
              if text_of(settings, name)]
    if settings.get("memory_limit_bytes"):
        parts.append(f"memory limit {format_cell('limit_mib', settings['memory_limit_bytes'] / 2**20)} MiB")
    if settings.get("check") is False:
        parts.append("results not checked")
    argv = envelope["argv"]
    command = shell_line([argv[0].rsplit("/", 1)[-1]] + argv[1:])
    return ", ".join(parts) + ". Command: " + code_span(printable(command))


def csv_columns(layout, row_keys, wide=False, columns=()):
    if columns:
        return list(columns)
    last = ["status", "reason"] + (["rerun"] if wide else [])
    names = (row_keys if wide else []) + layout.group_by + layout.columns + (layout.wide_columns if wide else [])
    return [name for name in dict.fromkeys(names) if name not in last] + last


def csv_line(row, columns):
    """RFC 4180; an empty string is quoted, so that it differs from nothing."""
    flat = row.flat()
    return ",".join(_csv_cell(flat.get(name)) for name in columns) + "\n"


def csv_header(columns):
    return ",".join(_csv_cell(name) for name in columns) + "\n"


def _csv_cell(value):
    if value is None or isinstance(value, float) and not is_number(value):
        return ""
    text = value if isinstance(value, str) else to_json(value)
    if text and not any(char in text for char in ',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'
