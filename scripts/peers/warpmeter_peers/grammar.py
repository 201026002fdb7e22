"""Option values as text: whole numbers, lists and ranges, sizes, fractions, words. As tools/harness/grammar.cpp."""

import math
import re

MAX_LIST_VALUES = 100_000
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
         "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_DIGITS = re.compile(r"[0-9]+\Z")
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_\-+=:,./%@]+\Z")


class GrammarError(Exception):
    """What is wrong with a text, without the text."""


class UsageError(Exception):
    """Bad usage in one line: the option, its value, what is wrong and what would be accepted."""

    def __init__(self, option, value=None, problem=None, accepted=""):
        if problem is None:
            line = option
        else:
            line = option
            if value:
                line += f" '{_shortened(value)}'"
            line += f": {problem}"
            if accepted:
                line += f"; accepted: {accepted}"
        super().__init__(one_line(line))


def _shortened(value):
    return value if len(value) <= 80 else value[:77] + "..."


def one_line(text):
    """The text with control characters written out, so that a message stays one line."""
    out = []
    for char in str(text):
        if char == "\n":
            out.append("\\n")
        elif char == "\t":
            out.append("\\t")
        elif ord(char) < 0x20 or ord(char) == 0x7F:
            out.append(f"\\x{ord(char):02x}")
        else:
            out.append(char)
    return "".join(out)


def _check_unsigned(text):
    if not text:
        raise GrammarError("empty")
    if len(text) > 1 and text[1] in "0123456789":
        if text[0] == "-":
            raise GrammarError("negative")
        if text[0] == "+":
            raise GrammarError("a sign is not accepted")


def parse_integer(text, low, high):
    _check_unsigned(text)
    if not _DIGITS.match(text):
        raise GrammarError("not a whole number")
    # Python refuses to convert thousands of digits; no bound here has twenty.
    digits = text.lstrip("0") or "0"
    if len(digits) > 20 or int(digits) > high:
        raise GrammarError(f"above {high}")
    if int(digits) < low:
        raise GrammarError(f"below {low}")
    return int(digits)


def parse_integer_list(text, low, high):
    """`1,256:1024:x2,100:200:+50`: each value once, in the order written."""
    if not text:
        raise GrammarError("empty")
    values, seen, produced = [], set(), 0

    def append(value):
        nonlocal produced
        produced += 1
        if produced > MAX_LIST_VALUES:
            raise GrammarError(f"stands for more than {MAX_LIST_VALUES} values")
        if value not in seen:
            seen.add(value)
            values.append(value)

    def parse_range(parts):
        if len(parts) != 3 or len(parts[2]) < 2 or parts[2][0] not in "x+":
            raise GrammarError("not a range: write FIRST:LAST:xFACTOR or FIRST:LAST:+STEP")
        first, last = parse_integer(parts[0], low, high), parse_integer(parts[1], low, high)
        amount = parts[2][1:]
        if first > last:
            raise GrammarError("the range runs down")
        if not _DIGITS.match(amount):
            raise GrammarError(f"the {'factor' if parts[2][0] == 'x' else 'step'} is not a whole number")
        digits = amount.lstrip("0") or "0"
        amount = int(digits) if len(digits) <= 20 else 10**20  # passes every end at once
        if parts[2][0] == "x":
            if amount < 2:
                raise GrammarError("the factor must be at least 2")
            if first == 0:
                raise GrammarError("a range by a factor cannot start at 0")
            value = first
            while value <= last:
                append(value)
                value *= amount
        else:
            if amount < 1:
                raise GrammarError("the step must be at least 1")
            value = first
            while value <= last:
                append(value)
                value += amount

    items = text.split(",")
    for item in items:
        try:
            if not item:
                raise GrammarError("an item is empty")
            parts = item.split(":")
            if len(parts) > 1:
                parse_range(parts)
            else:
                append(parse_integer(item, low, high))
        except GrammarError as error:
            if len(items) == 1 or not item or produced > MAX_LIST_VALUES:
                raise
            raise GrammarError(f"'{item}': {error}") from None
    return values


def _unit_bytes(text):
    if not text:
        return 1
    if text in UNITS:
        return UNITS[text]
    for name in UNITS:
        if name.lower() == text.lower():
            raise GrammarError(f"unknown unit '{text}' (did you mean {name}?)")
    for letter in "KMGT":
        if text.lower() in (letter.lower(), letter.lower() + "i"):
            raise GrammarError(f"unknown unit '{text}' (did you mean {letter}iB or {letter}B?)")
    raise GrammarError(f"unknown unit '{text}'")


def parse_size(text):
    """Bytes: `4096`, `64KiB`, `1.5GiB`, `10MB`."""
    _check_unsigned(text)
    number = re.match(r"[0-9.]*", text).group()
    if not _DECIMAL.match(number):
        raise GrammarError("not a size")
    scale = _unit_bytes(text[len(number):])
    whole, _, decimals = number.partition(".")
    decimals = decimals.rstrip("0")
    if len(whole.lstrip("0")) > 20:
        raise GrammarError("too large")
    if len(decimals) > 18:
        raise GrammarError("not a whole number of bytes")
    size = int(whole) * scale
    if decimals:
        scaled, power = int(decimals) * scale, 10 ** len(decimals)
        if scaled % power != 0:
            raise GrammarError("not a whole number of bytes")
        size += scaled // power
    if size > 2**64 - 1:
        raise GrammarError("too large")
    if size == 0:
        raise GrammarError("below 1 byte")
    return size


def parse_number(text, low, high):
    _check_unsigned(text)
    if not _DECIMAL.match(text):
        raise GrammarError("not a decimal number")
    value = float(text)
    if value < low:
        raise GrammarError(f"below {low:g}")
    if value > high or not math.isfinite(value):
        raise GrammarError(f"above {high:g}")
    return value


def parse_fraction(text):
    _check_unsigned(text)
    percent = text.endswith("%")
    number = text[:-1] if percent else text
    if not _DECIMAL.match(number):
        raise GrammarError("neither a fraction nor a percentage")
    value = float(number + ("e-2" if percent else ""))
    if value > 1:
        if percent:
            raise GrammarError("above 100%")
        raise GrammarError(f"above 1 (did you mean {number}%?)" if value <= 100 else "above 1")
    return value


def _unknown(word, accepted):
    guess = did_you_mean(nearest_words(word, accepted))
    return f"unknown ({guess})" if guess else "unknown"


def parse_word(text, accepted):
    if not text:
        raise GrammarError("empty")
    if text not in accepted:
        raise GrammarError(_unknown(text, accepted))
    return text


def parse_words(text, accepted, allow_all=False):
    if not text:
        raise GrammarError("empty")
    words = []
    items = text.split(",")
    for item in items:
        if not item:
            raise GrammarError("an item is empty")
        if allow_all and item == "all":
            words += [word for word in accepted if word not in words]
        elif item in accepted:
            if item not in words:
                words.append(item)
        elif len(items) == 1:
            raise GrammarError(_unknown(item, accepted))
        else:
            raise GrammarError(f"'{item}' is {_unknown(item, accepted)}")
    return words


def _edit_distance(a, b):
    """Edits that turn one word into the other: insert, drop, replace a letter, swap two neighbours."""
    before, previous = [], list(range(len(b) + 1))
    for i in range(1, len(a) + 1):
        current = [i]
        for j in range(1, len(b) + 1):
            differs = a[i - 1] != b[j - 1]
            best = min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + differs)
            if i > 1 and j > 1 and a[i - 1] == b[j - 2] and a[i - 2] == b[j - 1]:
                best = min(best, before[j - 2] + 1)
            current.append(best)
        before, previous = previous, current
    return previous[-1]


def nearest_words(word, known):
    """At most three known words that `word` may have been meant as; dashes count for nothing."""
    folded = word.lower().lstrip("-")
    if not folded or len(word) > 64:
        return []
    scored = []
    for candidate in known:
        other = candidate.lower().lstrip("-")
        distance = _edit_distance(folded, other)
        letters = min(len(folded), len(other))
        if letters >= 3 and (other.startswith(folded) or folded.startswith(other)):
            scored.append((min(distance, 2), candidate))
        elif distance <= max(1, letters // 3):
            scored.append((distance, candidate))
    scored.sort(key=lambda pair: pair[0])
    return [candidate for distance, candidate in scored[:3] if distance <= scored[0][0] + 1]


def did_you_mean(words):
    if not words:
        return ""
    if len(words) == 1:
        return f"did you mean {words[0]}?"
    return f"did you mean {', '.join(words[:-1])} or {words[-1]}?"


def format_size(size):
    """`512 B`, `1.5 GiB`: for people."""
    if size < 1024:
        return f"{int(size)} B"
    value, unit = size / 1024, 0
    names = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    while value >= 1023.95 and unit + 1 < len(names):
        value /= 1024
        unit += 1
    return f"{value:.1f} {names[unit]}"


def shell_line(arguments):
    """Arguments as one line for a POSIX shell, quoted where needed."""
    return " ".join(argument if _PLAIN.match(argument) else "'" + argument.replace("'", "'\\''") + "'"
                    for argument in arguments)
