"""How long rows took in relation to rows of the same configuration in another file."""

import math

from .cells import four_digits, is_number, table
from .tables import label

PHASES = ("fwd", "bwd")
_SHAPE = ("dtype", "batch", "num_heads", "num_kv_heads", "head_dim", "seq_len", "kv_len", "causal", "deterministic",
          "pass")


def device_difference(then, now):
    """What tells two devices apart, or ""."""
    for field in ("name", "uuid", "cpu", "cores"):
        if then.get(field) != now.get(field):
            return f"{field} {then.get(field)}, now {now.get(field)}"
    return ""


def time_of(row, phase):
    value = row.get(f"{phase}_ms") if row.get("status") == "ok" else None
    return value if is_number(value) and value > 0 else None


def problem_key(row, row_keys):
    """A row's configuration but for how it was computed. A file may have been cut by hand: what is missing is None."""
    return tuple((key, row.get(key)) for key in row_keys if key != "impl")


def by_problem(rows, row_keys):
    """{problem: {impl: row}}, in the rows' order."""
    found = {}
    for row in rows:
        found.setdefault(problem_key(row, row_keys), {})[row.get("impl")] = row
    return found


def geometric_mean(values):
    values = list(values)
    return math.exp(math.fsum(math.log(value) for value in values) / len(values)) if values else None


def shape_columns(problems):
    """The configuration fields that vary, by which a table's rows are told apart; seq_len at least."""
    problems = [dict(problem) for problem in problems]
    varying = [name for name in _SHAPE if len({repr(problem.get(name)) for problem in problems}) > 1]
    # The length of keys and the number of heads follow from others in most sweeps.
    for name, other in (("kv_len", "seq_len"), ("num_kv_heads", "num_heads")):
        if name in varying and all(problem.get(name) == problem.get(other) for problem in problems):
            varying.remove(name)
    return varying or ["seq_len"]


def common_text(problems, varying):
    """`fp32, batch 8, causal`: what all the problems share."""
    first = dict(next(iter(problems)))
    names = [name for name in _SHAPE if name not in varying and name in first and name not in ("deterministic", "pass")]
    if first.get("kv_len") == first.get("seq_len") or "seq_len" in varying:
        names = [name for name in names if name != "kv_len"]
    if first.get("num_kv_heads") == first.get("num_heads") or "num_heads" in varying:
        names = [name for name in names if name != "num_kv_heads"]
    return ", ".join(label(name, first[name]) for name in names)


def ratio(value):
    return "" if value is None else f"{value:.2f}x" if value < 99.995 else f"{value:.0f}x"


def milliseconds(value):
    return "" if value is None else four_digits(value)


def cell(value):
    return {True: "yes", False: "no", None: ""}[value] if value is None or isinstance(value, bool) else str(value)


def pair_table(title, problems, varying, columns):
    """One implementation pair. columns: (heading, {problem: text})."""
    header = varying + [heading for heading, _ in columns]
    rows = [[cell(dict(problem).get(name)) for name in varying] + [texts.get(problem, "") for _, texts in columns]
            for problem in problems]
    numeric = [all(is_number(dict(problem).get(name)) for problem in problems) for name in varying]
    return [f"### {title}", ""] + table(header, rows, numeric + [True] * len(columns))


def ratio_text(reference, rows, row_keys):
    """Markdown: for each implementation pair the times of both sides and PyTorch's over the other's, row by row, then
    geometric means."""
    ours, theirs = by_problem(reference["rows"], row_keys), by_problem(rows, row_keys)
    our_impls = list(dict.fromkeys(impl for found in ours.values() for impl in found))
    their_impls = list(dict.fromkeys(impl for found in theirs.values() for impl in found))
    blocks, means = [], []
    for our_impl in our_impls:
        for their_impl in their_impls:
            problems = [problem for problem, found in theirs.items()
                        if their_impl in found and our_impl in ours.get(problem, {})]
            texts, ratios = {}, {}
            for phase in PHASES:
                for problem in problems:
                    a = time_of(ours[problem][our_impl], phase)
                    b = time_of(theirs[problem][their_impl], phase)
                    texts.setdefault((phase, our_impl), {})[problem] = milliseconds(a)
                    texts.setdefault((phase, their_impl), {})[problem] = milliseconds(b)
                    if a and b:
                        ratios.setdefault(phase, {})[problem] = b / a
            if not ratios:
                continue
            shown = [phase for phase in PHASES if phase in ratios]
            problems = [problem for problem in problems if any(problem in ratios[phase] for phase in shown)
                        or any(texts[(phase, impl)].get(problem) for phase in shown for impl in (our_impl, their_impl))]
            varying = shape_columns(problems)
            columns = []
            for phase in shown:
                columns += [(f"{phase} {our_impl}, ms", texts[(phase, our_impl)]),
                            (f"{phase} {their_impl}, ms", texts[(phase, their_impl)]),
                            (f"{phase} ratio", {problem: ratio(value) for problem, value in ratios[phase].items()})]
            common = common_text(problems, varying)
            title = f"{their_impl} / {our_impl}" + (f" ({common})" if common else "")
            blocks.append("\n".join(pair_table(title, problems, varying, columns)))
            means.append([their_impl, our_impl]
                         + [ratio(geometric_mean(ratios.get(phase, {}).values())) for phase in PHASES]
                         + [str(max(len(found) for found in ratios.values()))])
    if not blocks:
        return "No row of the two has the same configuration and a time in both: no ratios.\n"
    blocks.append("\n".join(["### Geometric means", ""] + table(
        ["PyTorch", "over", "fwd ratio", "bwd ratio", "rows"], means, [False, False, True, True, True])))
    return "## Ratios (above 1: PyTorch takes longer)\n\n" + "\n\n".join(blocks) + "\n"
