"""Result files beside each other, configuration by configuration: two of them, or a history of many."""

import math
from collections import Counter
from statistics import median
from typing import NamedTuple, Optional

from warpmeter import fields, verdict

LOST, GAINED = "LOST", "GAINED"
#: In the order in which they are counted and said.
WORDS = (verdict.SLOWER, verdict.FASTER, verdict.SAME, verdict.UNCLEAR, LOST, GAINED)

#: Statuses that say that a configuration no longer works; others say that it was not tried.
BROKEN_STATUSES = ("oom", "unsupported", "mismatch", "error", "crashed", "timeout")
#: Settings that change what is timed.
# What a file lacks was as here when it was written.
TIMING_SETTINGS = {"timer": None, "cache": None, "duty_cycle": 1.0}

MANY_ROWS = 8
TORN_SHARE = 0.1


class Refusal(Exception):
    """Not comparable as they are: one line, with the option that compares all the same."""


class Allowed(NamedTuple):
    device: bool = False
    settings: bool = False
    keys: bool = False


NOTHING_ALLOWED = Allowed()


class Memory(NamedTuple):
    """A memory figure that is not what it was."""

    field: str
    base: Optional[float]
    new: Optional[float]


class Line(NamedTuple):
    """One phase of one configuration. `base` and `new` are medians in `unit`, None where there is none; for LOST and
    GAINED `field` may be "" (no time on either side)."""

    config: dict
    field: str
    unit: str
    base: Optional[float]
    base_noise: Optional[float]
    new: Optional[float]
    new_noise: Optional[float]
    word: str
    ratio: Optional[float]
    uncertainty: Optional[float]
    memory: list
    statuses: tuple  # of the two rows
    reason: str  # of the new row, where it is not ok
    rerun: str


class Comparison(NamedTuple):
    base: object  # ResultFile
    new: object
    keys: list
    lines: list
    only_base: list  # configurations
    only_new: list
    unmeasured: int  # configurations that neither file has a time of
    notes: list

    def counts(self):
        found = Counter(line.word for line in self.lines)
        return {word: found[word] for word in WORDS}

    def geometric_mean(self):
        ratios = [math.log(line.ratio) for line in self.lines if line.ratio]
        return math.exp(sum(ratios) / len(ratios)) if ratios else None

    def regressions(self, percent=0.0):
        """Lines that are worse: slower by more than `percent`, or gone."""
        return [
            line
            for line in self.lines
            if (line.word == verdict.SLOWER and line.ratio > 1 + percent / 100)
            or (line.word == LOST and line.statuses[1] in BROKEN_STATUSES)
        ]


class Column(NamedTuple):
    """One build of a history."""

    title: str
    files: list


class Series(NamedTuple):
    """One phase of one configuration through a history: a median a column, or None."""

    config: dict
    field: str
    unit: str
    medians: list
    word: Optional[str]  # last beside first; None where one of them has no time
    ratio: Optional[float]
    uncertainty: Optional[float]


class History(NamedTuple):
    columns: list
    keys: list
    series: list
    notes: list

    def counts(self):
        found = Counter(series.word for series in self.series)
        return {word: found[word] for word in WORDS[:4]}

    def regressions(self, percent=0.0):
        return [series for series in self.series if series.word == verdict.SLOWER and series.ratio > 1 + percent / 100]


def check_comparable(files, allowed):
    """Throws Refusal for files that measure different things. Returns what stands in a row's key."""
    first = files[0]
    for other in files[1:]:
        pair = f"{first.origin} and {other.origin}"
        if other.tool != first.tool and not allowed.keys:
            raise Refusal(
                f"{pair}: results of {first.tool or 'no tool'} and of {other.tool or 'no tool'}; "
                "--allow-different-keys compares what they share"
            )
        if other.row_keys != first.row_keys and not allowed.keys:
            odd = sorted(set(other.row_keys) ^ set(first.row_keys))
            said = f"only one has {', '.join(odd)}" if odd else "they have other orders of the same fields"
            raise Refusal(
                f"{pair}: their rows are named by different fields: {said}; --allow-different-keys compares "
                "by those that they share"
            )
        if other.device_id != first.device_id and not allowed.device:
            names = [first.device_name, other.device_name]
            if names[0] == names[1]:
                names = [f"{file.device_name} {file.device_id}" for file in (first, other)]
            raise Refusal(
                f"{pair}: different devices: {names[0]} and {names[1]}; --allow-different-device compares them "
                "all the same"
            )
        for name, early in TIMING_SETTINGS.items():
            ours, theirs = first.settings.get(name, early), other.settings.get(name, early)
            if ours != theirs and not allowed.settings:
                raise Refusal(
                    f"{pair}: --{name.replace('_', '-')} was {ours} and {theirs}; --allow-different-settings compares "
                    "them all the same"
                )
        if first.cold_l2 and other.cold_l2 and first.cold_l2 != other.cold_l2 and not allowed.settings:
            raise Refusal(
                f"{pair}: the flush before each sample left the L2 {first.cold_l2} and {other.cold_l2}, and the sample "
                "wrote dirty lines back in its time; --allow-different-settings compares them all the same"
            )
    shared = [key for key in first.row_keys if all(key in file.row_keys for file in files)]
    if not shared:
        raise Refusal(f"{first.origin}: its rows have no field in common with the others' by which to pair them")
    return shared


def rows_by_key(file, keys, notes):
    found = {}
    repeated = 0
    for row in file.rows:
        key = row.key(keys)
        # A row that was measured is worth more than one that was not, and a later one than an earlier.
        if key in found:
            repeated += 1
            if row.status != "ok" and found[key].status == "ok":
                continue
        found[key] = row
    if repeated:
        notes.append(f"{file.origin}: {repeated} rows have the configuration of another: the last measured one counts.")
    return found


def time_fields(rows):
    """The medians among the times, in the order in which rows have them; of a phase's units one that all have."""
    names = list(dict.fromkeys(name for row in rows for name in row.figures))
    kept = fields.medians_of_time(sorted(names, key=lambda name: sum(name not in row.figures for row in rows)))
    return sorted(kept, key=lambda field: names.index(field.name))


def measurement_of(row, field, is_gpu):
    """What a row says of a phase; None without a positive time."""
    middle = row.number(field.name)
    if row.status != "ok" or not middle:
        return None
    phase = f"{field.phase}_" if field.phase else ""
    to_ms = fields.TIME_UNITS[field.unit] / fields.TIME_UNITS["ms"]
    samples = row.samples.get(f"{phase}samples_{field.unit}", ())
    n = row.number(f"{phase}n")
    noise = row.number(f"{phase}noise")
    least = row.number(f"{phase}min_{field.unit}")
    unknown = noise is None and n is None and not samples
    return verdict.Measurement(
        median=middle * to_ms,
        noise=noise,
        n=int(n) if n else max(1, len(samples)),
        least=least * to_ms if least else None,
        samples=tuple(sample * to_ms for sample in samples),
        clock_mhz=row.number(f"{phase}clock_mhz") or None,
        grain_ms=verdict.GPU_GRAIN_MS if is_gpu else 0.0,
        run_spread=_spread_of_row(row, field, middle) if unknown else 0.0,
    )


def _spread_of_row(row, field, middle):
    """A guess at how far a time without samples of its own moves from run to run: as its row's noisiest phase does;
    what is left of one phase when another is taken off (exposed_ms), as far in milliseconds as that."""
    spreads = [0.0]
    for other in time_fields([row]):
        noise, time = row.number(f"{other.phase}_noise" if other.phase else "noise"), row.number(other.name)
        if noise and time:
            rest = "exposed" in field.phase.split("_") and other.unit == field.unit
            spreads.append(noise * (time / middle if rest else 1.0))
    return max(spreads)


def memory_changes(base, new):
    changes = []
    for name in dict.fromkeys([*base.figures, *new.figures]):
        if fields.parse(name).kind != "bytes":
            continue
        before, after = base.number(name), new.number(name)
        if before is not None and after is not None and abs(after - before) > 1e-3 * max(before, after):
            changes.append(Memory(name, before, after))
    return changes


def compare(base, new, effect=verdict.EFFECT, allowed=NOTHING_ALLOWED):
    """Pairs the rows of two ResultFiles. Throws Refusal."""
    keys = check_comparable([base, new], allowed)
    notes = [f"{file.origin}: {note}" for file in (base, new) if not file.complete for note in file.notes]
    before, after = rows_by_key(base, keys, notes), rows_by_key(new, keys, notes)
    lines, unmeasured = [], 0
    for key, row in before.items():
        if key not in after:
            continue
        found = _lines(row, after[key], base, new, keys, effect)
        lines += found
        unmeasured += not found
    comparison = Comparison(
        base,
        new,
        keys,
        lines,
        [_config(row, keys) for key, row in before.items() if key not in after],
        [_config(row, keys) for key, row in after.items() if key not in before],
        unmeasured,
        notes,
    )
    notes += _doubts(comparison)
    return comparison


def _config(row, keys):
    return {key: row.config.get(key) for key in keys}


def _lines(old, row, base, new, keys, effect):
    memory = memory_changes(old, row)
    found = []
    for field in time_fields([old, row]):
        first, second = measurement_of(old, field, base.is_gpu), measurement_of(row, field, new.is_gpu)
        if first is None and second is None:
            continue
        word, ratio, unsure = (LOST if second is None else GAINED), None, None
        if first is not None and second is not None:
            word, ratio, unsure = verdict.judge(first, second, effect)
        own = field.phase and [change for change in memory if fields.parse(change.field).phase == field.phase]
        found.append(
            Line(
                _config(row, keys),
                field.name,
                field.unit,
                first and old.number(field.name),
                first and first.noise,
                second and row.number(field.name),
                second and second.noise,
                word,
                ratio,
                unsure,
                own if own or field.phase else memory,
                (old.status, row.status),
                row.reason if row.status != "ok" else "",
                row.rerun or old.rerun,
            )
        )
    # Memory that belongs to no phase with a time is said once.
    told = {change.field for line in found for change in line.memory}
    if found and len(told) < len(memory):
        rest = [change for change in memory if change.field not in told]
        found[0] = found[0]._replace(memory=list(found[0].memory) + rest)
    return found


def _doubts(comparison):
    """What a reader should know before believing the whole."""
    counts = comparison.counts()
    judged = sum(counts[word] for word in WORDS[:4])
    notes = []
    if judged >= MANY_ROWS and min(counts[verdict.FASTER], counts[verdict.SLOWER]) >= TORN_SHARE * judged:
        notes.append(
            "Many rows are faster and many slower: where the code does not explain that, the machine moved more "
            "between the runs than within them; measure both again on a quieter one."
        )
    if judged >= MANY_ROWS and counts[verdict.UNCLEAR] > judged / 2:
        notes.append(
            "Most rows are unclear: more samples (--steps, --max-time) or a quieter machine (--doctor) would tell."
        )
    for file in (comparison.base, comparison.new):
        if file.version.get("build_type") not in ("Release", "RelWithDebInfo", None):
            notes.append(f"{file.origin}: built as {file.version['build_type']}: not for figures.")
    return notes


def columns_of(files):
    """The files by build, oldest first: by git sha where there are several of them, else a file a column."""
    files = sorted(files, key=lambda file: file.started_at or "~")
    shas = list(dict.fromkeys(file.git_sha for file in files))
    if len(shas) > 1 and all(shas):
        return [Column(sha, [file for file in files if file.git_sha == sha]) for sha in shas]
    days = {file.started_at[:10] for file in files}
    times = [file.started_at[11:19] if len(days) == 1 else file.started_at[:16].replace("T", " ") for file in files]
    titles = [" ".join(filter(None, (file.git_sha if len(shas) > 1 else "", time))) for file, time in zip(files, times)]
    if len(set(titles)) < len(titles) or not all(titles):
        titles = [file.origin for file in files]
    return [Column(title, [file]) for title, file in zip(titles, files)]


def history(files, effect=verdict.EFFECT, allowed=NOTHING_ALLOWED):
    """Every configuration's median by build, and a verdict on the last beside the first. Throws Refusal."""
    keys = check_comparable(files, allowed)
    notes = [f"{file.origin}: {note}" for file in files if not file.complete for note in file.notes]
    columns = columns_of(files)
    tables = [[(file, rows_by_key(file, keys, notes)) for file in column.files] for column in columns]
    order = dict.fromkeys(key for table in tables for _, rows in table for key in rows)
    found = []
    for key in order:
        present = [rows[key] for table in tables for _, rows in table if key in rows]
        for field in time_fields(present):
            measured = [
                _pooled([measurement_of(rows[key], field, file.is_gpu) for file, rows in table if key in rows])
                for table in tables
            ]
            if not any(measured):
                continue
            to_unit = fields.TIME_UNITS["ms"] / fields.TIME_UNITS[field.unit]
            word = ratio = unsure = None
            if measured[0] and measured[-1]:
                word, ratio, unsure = verdict.judge(measured[0], measured[-1], effect)
            found.append(
                Series(
                    _config(present[-1], keys),
                    field.name,
                    field.unit,
                    [each and each.median * to_unit for each in measured],
                    word,
                    ratio,
                    unsure,
                )
            )
    return History(columns, keys, found, notes)


def _pooled(measurements):
    """Several runs of one build as one measurement: the median run, and how far the runs are apart."""
    measurements = [each for each in measurements if each]
    if not measurements:
        return None
    if len(measurements) == 1:
        return measurements[0]
    middles = [each.median for each in measurements]
    centre = median(middles)
    noises = [each.noise for each in measurements if each.noise is not None]
    leasts = [each.least for each in measurements if each.least is not None]
    clocks = [each.clock_mhz for each in measurements if each.clock_mhz]
    return verdict.Measurement(
        median=centre,
        noise=median(noises) if noises else None,
        n=sum(each.n for each in measurements),
        least=median(leasts) if leasts else None,
        clock_mhz=median(clocks) if clocks else None,
        grain_ms=max(each.grain_ms for each in measurements),
        run_spread=max(
            (max(middles) - min(middles)) / 2 / centre,
            median(each.run_spread for each in measurements) / math.sqrt(len(measurements)),
        ),
    )
