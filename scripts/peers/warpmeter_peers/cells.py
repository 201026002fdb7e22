"""How values look in Markdown tables. As reports/detail/cell.cpp."""

import json
import math
import re

_MEMORY = ("_kib", "_mib", "_gib")
_PERCENT = ("_share", "_noise", "_mfu")
_UNITS = _MEMORY + _PERCENT + ("_ms", "_us", "_ns", "_s", "_flops", "_gflops", "_tflops", "_bytes", "_gbps", "_gibps",
                               "_GiBps", "_speedup", "_mhz", "_error", "_tolerance", "_n")


def has_unit(name):
    return name.endswith(_UNITS)


def _exponent(magnitude, digits):
    """Power of ten of the leading digit after rounding to that many significant ones."""
    return int(f"{magnitude:.{digits - 1}e}".partition("e")[2])


def _trimmed(text):
    return text.rstrip("0").rstrip(".") if "." in text else text


def _fixed(number, decimals):
    text = _trimmed(f"{number:.{decimals}f}")
    return "0" if text == "-0" else text


def _scientific(number):
    mantissa, _, exponent = f"{number:.3e}".partition("e")
    return f"{_trimmed(mantissa)}e{exponent}"


def four_digits(number):
    """At least four significant digits: every digit before the point stays."""
    if number == 0:
        return "0"
    exponent = _exponent(abs(number), 4)
    if exponent < -4 or exponent >= 9:
        return _scientific(number)
    return _fixed(number, max(0, 3 - exponent))


def _memory(number):
    if number == 0:
        return "0"
    exponent = _exponent(abs(number), 6)
    if exponent < -5 or exponent >= 12:
        return _scientific(number)
    if exponent < -2:
        return _fixed(number, 1 - exponent)
    return _fixed(number, min(max(5 - exponent, 0), 2))


def _percent(fraction):
    number = fraction * 100
    if abs(number) >= 1e9:
        return _scientific(number) + "%"
    if number != 0 and abs(number) < 0.01:
        return four_digits(number) + "%"
    return _fixed(number, 1 if abs(number) >= 9.995 else 2) + "%"


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def format_cell(name, value):
    if isinstance(value, str):
        return printable(value)
    if not is_number(value):
        return "" if value is None or isinstance(value, float) else printable(json.dumps(value))
    if name.endswith(_MEMORY):
        return _memory(value)
    if name.endswith(_PERCENT):
        return _percent(value)
    if has_unit(name) and not name.endswith(("_n", "_bytes")):
        return four_digits(value)
    return str(int(value)) if value == math.floor(value) and abs(value) < 2**63 else four_digits(value)


def printable(text):
    """One line: what a terminal would act on becomes U+FFFD, line breaks and tabs become spaces."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "\ufffd", re.sub(r"\r\n|[\t\r\n]", " ", text))


def escape_markdown(text):
    return re.sub(r"([\\|`*<\[])", r"\\\1", text)


def code_span(text):
    fence = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return fence + pad + text + pad + fence


def table(header, rows, numeric):
    """A Markdown table of texts; `numeric` says which columns stand to the right."""
    header = [escape_markdown(printable(cell)) for cell in header]
    rows = [[escape_markdown(printable(cell)) for cell in row] for row in rows]
    widths = [max([3, len(name)] + [len(row[i]) for row in rows]) for i, name in enumerate(header)]

    def line(cells):
        return "| " + " | ".join(cell.rjust(width) if right else cell.ljust(width)
                                 for cell, width, right in zip(cells, widths, numeric)) + " |"

    rule = "|" + "|".join("-" * (width + 1) + (":" if right else "-") for width, right in zip(widths, numeric)) + "|"
    return [line(header), rule] + [line(row) for row in rows]
