"""Numbers, quantities and dates as people read them."""

import math

#: fields' units as they are written; those that are missing are written as they are.
UNITS = {
    "us": "µs",
    "kib": "KiB",
    "mib": "MiB",
    "gib": "GiB",
    "gbps": "GB/s",
    "gibps": "GiB/s",
    "GiBps": "GiB/s",
    "gflops": "GFLOP/s",
    "tflops": "TFLOP/s",
    "flops": "FLOP",
    "mhz": "MHz",
    "per_s": "/s",
}

_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
           "December")  # fmt: skip


def significant(value, digits=4):
    """1234.5 -> "1234", 0.012345 -> "0.01234", 2e-7 -> "2e-07": `digits` digits, all of them before the point."""
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if not -5 <= magnitude < 15:
        return f"{value:.{digits - 1}g}"
    text = f"{value:.{max(0, digits - 1 - magnitude)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def fixed(value, digits=4):
    """As significant(), its trailing zeros kept: what a column of figures wants."""
    if value == 0 or not -5 <= math.floor(math.log10(abs(value))) < 15:
        return significant(value, digits)
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def percent(share):
    """0.8312 -> "83.1%", 0.0041 -> "0.41%"."""
    return f"{100 * share:.1f}%" if share >= 0.1 else f"{100 * share:.2f}%" if share < 100 else "over 9999%"


def times(ratio):
    """A speed-up: 1.934 -> "1.93x", 2.34 -> "2.3x", 23.4 -> "23x"."""
    return f"{ratio:.2f}x" if ratio < 1.995 else f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:.0f}x"


def duration(seconds):
    """0.00123 -> "1.23 ms"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9999 * scale:
            return f"{significant(seconds / scale, 3)} {unit}"
    return f"{significant(seconds / 1e-9, 3)} ns"


def bytes_binary(number):
    """1536 -> "1.5 KiB"."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 2**power:
            return f"{significant(number / 2**power, 4)} {unit}"
    return f"{significant(number, 4)} B"


def count(number, word, plural=None):
    return f"{number} {word if number == 1 else plural or word + 's'}"


def listed(words, last="and"):
    """["a", "b", "c"] -> "a, b and c"."""
    words = list(words)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else ""


def day(started_at):
    """ "2026-01-31T12:00:00Z" -> "31 January 2026"; what is no such time stays as it is."""
    try:
        year, month, date = (int(part) for part in started_at[:10].split("-"))
        return f"{date} {_MONTHS[month - 1]} {year}" if 1 <= month <= 12 else started_at
    except ValueError:
        return started_at
