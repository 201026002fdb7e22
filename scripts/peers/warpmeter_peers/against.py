"""How long rows took in relation to rows of the same configuration in another file."""

import math

from warpmeter.model import cold_l2

from .cells import four_digits, is_number, table
from .samples import median
from .tables import label

PHASES = ("fwd", "bwd")
SERVING_PHASES = ("decode", "oneshot", "chunked")
HOW = ("impl", "merge", "deal", "splits", "block", "page_size")  # fields that say how, not what
MOST_DIFFERENCE = 0.1  # of a ratio between rounds before that is said
_SHAPE = ("kernel", "dtype", "batch", "rows", "cols", "inner", "kernel_size", "group_size", "num_heads", "num_kv_heads",
          "head_dim", "seq_len", "kv_len", "tokens", "chunk", "projections", "value_range", "causal", "deterministic",
          "pass")


def device_difference(then, now):
    """What tells two devices apart, or ""."""
    for field in ("name", "uuid", "cpu", "cores"):
        if then.get(field) != now.get(field):
            return f"{field} {then.get(field) or 'none'}, now {now.get(field) or 'none'}"
    return ""


def flush_difference(then, now):
    """What two documents' flushes before cold samples left in the L2, where that is not the same, else ""."""
    was, is_now = (cold_l2(document["device"], document["settings"]) for document in (then, now))
    return f"{was}, now {is_now}" if was and is_now and was != is_now else ""


def time_of(row, phase):
    value = row.get(f"{phase}_ms") if row.get("status") == "ok" else None
    return value if is_number(value) and value > 0 else None


def problem_key(row, row_keys):
    """A row's configuration but for how it was computed. A file may have been cut by hand: what is missing is None."""
    return tuple((key, row.get(key)) for key in row_keys if key not in HOW)


def by_problem(rows, row_keys):
    """{problem: {impl: row}}, in the rows' order. Of rows that differ in how alone (splits, pages) the first."""
    found = {}
    for row in rows:
        found.setdefault(problem_key(row, row_keys), {}).setdefault(row.get("impl"), row)
    return found


def phases_of(rounds):
    """Those that a table has: of serving where any row has their times, else forward and backward."""
    rows = [row for of_round in rounds for side in of_round for row in side]
    serving = tuple(phase for phase in SERVING_PHASES if any(f"{phase}_ms" in row for row in rows))
    return serving or PHASES


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
    return varying or [next((name for name in ("seq_len", "kv_len") if name in problems[0]), "kernel")]


def common_text(problems, varying):
    """`fp32, batch 8, causal`: what all the problems share."""
    first = dict(next(iter(problems)))
    names = [name for name in _SHAPE if name not in varying and first.get(name) is not None
             and name not in ("deterministic", "pass")]
    if first.get("kv_len") == first.get("seq_len") or "seq_len" in varying:
        names = [name for name in names if name != "kv_len"]
    if first.get("num_kv_heads") == first.get("num_heads") or "num_heads" in varying:
        names = [name for name in names if name != "num_kv_heads"]
    return ", ".join(label(name, first[name]) for name in names)


def ratio(value):
    return "" if value is None else f"{value:.2f}x" if value < 99.995 else f"{value:.0f}x"


def cell(value):
    return {True: "yes", False: "no", None: ""}[value] if value is None or isinstance(value, bool) else str(value)


class Pair:
    """Times and ratios of one implementation pair over the problems that both have, in one round or several.

    A round is the rows of one run of each side. A time is the median of the rounds' times; a ratio is PyTorch's time
    over the other's."""

    def __init__(self, ours, theirs, rounds, row_keys):
        self.ours, self.theirs, self.rounds, self.phases = ours, theirs, len(rounds), phases_of(rounds)
        self._times = {}  # (phase, side, problem): one time a round, None where there is none
        self._status = {}
        problems = {}
        for our_rows, their_rows in rounds:
            found_ours, found_theirs = by_problem(our_rows, row_keys), by_problem(their_rows, row_keys)
            for problem, found in found_theirs.items():
                if theirs in found and ours in found_ours.get(problem, {}):
                    problems[problem] = True
            for phase in self.phases:
                for side, impl, found in (("ours", ours, found_ours), ("theirs", theirs, found_theirs)):
                    for problem, rows in found.items():
                        at = self._times.setdefault((phase, side, problem), [])
                        at.append(time_of(rows[impl], phase) if impl in rows else None)
                        if impl in rows:
                            self._status[side, problem] = rows[impl].get("status")
        self.problems = [problem for problem in problems
                         if any(self.time(phase, side, problem) for phase in self.phases
                                for side in ("ours", "theirs"))]

    def time(self, phase, side, problem):
        times = sorted(filter(None, self._times.get((phase, side, problem), [])))
        return median(times)

    def time_text(self, phase, side, problem):
        """The time, or why there is none."""
        found, status = self.time(phase, side, problem), self._status.get((side, problem))
        return four_digits(found) if found else status if isinstance(status, str) and status != "ok" else ""

    def ratio(self, phase, problem, of_round=None):
        if of_round is None:
            theirs, ours = self.time(phase, "theirs", problem), self.time(phase, "ours", problem)
        else:
            theirs, ours = ((self._times.get((phase, side, problem), []) + [None] * self.rounds)[of_round]
                            for side in ("theirs", "ours"))
        return theirs / ours if theirs and ours else None

    def ratios(self, phase):
        return [value for value in (self.ratio(phase, problem) for problem in self.problems) if value]

    def disagreements(self):
        """(how many ratios differ between the rounds by more than MOST_DIFFERENCE, of how many)."""
        apart = of = 0
        for phase in self.phases:
            for problem in self.problems:
                found = list(filter(None, (self.ratio(phase, problem, index) for index in range(self.rounds))))
                of += len(found) > 1
                apart += len(found) > 1 and max(found) > (1 + MOST_DIFFERENCE) * min(found)
        return apart, of

    def lines(self):
        """The pair's table with its title."""
        varying = shape_columns(self.problems)
        header = list(varying)
        cells = [[cell(dict(problem).get(name)) for name in varying] for problem in self.problems]
        numeric = [all(is_number(dict(problem).get(name)) for problem in self.problems) for name in varying]
        for phase in self.phases:
            if not self.ratios(phase):
                continue
            header += [f"{phase} {self.ours}, ms", f"{phase} {self.theirs}, ms", f"{phase} ratio"]
            rounds = range(self.rounds) if self.rounds > 1 else ()
            header += [f"{phase} round {index + 1}" for index in rounds]
            for line, problem in zip(cells, self.problems):
                line += [self.time_text(phase, side, problem) for side in ("ours", "theirs")]
                line.append(ratio(self.ratio(phase, problem)))
                line += [ratio(self.ratio(phase, problem, index)) for index in rounds]
        numeric += [True] * (len(header) - len(numeric))
        common = common_text(self.problems, varying)
        title = f"### {self.theirs} / {self.ours}" + (f" ({common})" if common else "")
        return [title, ""] + table(header, cells, numeric)


def all_pairs(rounds):
    """Every implementation of the one side with every one of the other, in the rows' order."""
    ours, theirs = (list(dict.fromkeys(row.get("impl") for of_round in rounds for row in of_round[side]))
                    for side in (0, 1))
    return [(a, b) for a in ours for b in theirs]


def ratio_text(rounds, row_keys, pairs=None):
    """Markdown: a table for each pair with both sides' times and PyTorch's over the other's, then geometric means.
    rounds: [(our rows, their rows), ...]; pairs: [(our impl, their impl), ...], all when not given."""
    measured = [Pair(ours, theirs, rounds, row_keys) for ours, theirs in pairs or all_pairs(rounds)]
    phases = phases_of(rounds)
    measured = [pair for pair in measured if any(pair.ratios(phase) for phase in phases)]
    if not measured:
        return "No row of the two sides has the same configuration and a time in both: no ratios.\n"
    blocks = ["\n".join(pair.lines()) for pair in measured]
    means = []
    for pair in measured:
        line = [pair.theirs, pair.ours]
        for phase in phases:
            found = pair.ratios(phase)
            line += [ratio(geometric_mean(found)), ratio(min(found, default=None)), str(len(found))]
        means.append(line)
    peer = "PyTorch" if all(str(pair.theirs).startswith("pytorch") for pair in measured) else "Peer"
    header = [peer, "over"] + [f"{phase} {what}" for phase in phases for what in ("mean", "least", "rows")]
    numeric = [False, False] + [True] * 3 * len(phases)
    blocks.append("\n".join(["### Geometric means", ""] + table(header, means, numeric)))
    apart, of = (sum(counts) for counts in zip(*(pair.disagreements() for pair in measured)))
    if apart:
        blocks.append(f"{apart} of {of} ratios differ by more than {MOST_DIFFERENCE:.0%} between the rounds: the "
                      "machine was not quiet, or samples too few (--max-time, --steps).")
    whose = "PyTorch" if peer == "PyTorch" else "the peer"
    return f"## Ratios (above 1: {whose} takes longer)\n\n" + "\n\n".join(blocks) + "\n"
