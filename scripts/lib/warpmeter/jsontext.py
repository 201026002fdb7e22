"""JSON text to plain values, for files that may be broken off, damaged or hostile.

Nothing here knows what a result is; results.py does.
"""

import json
import re

WHITESPACE = re.compile(r"[ \t\r\n]*")
NOT_FINITE = ("NaN", "Infinity", "-Infinity")


class JsonProblem(Exception):
    """One line that says what is wrong with the text; `position` is where (an index), `at_end` whether it broke off."""

    def __init__(self, what, text="", position=0):
        super().__init__(what)
        self.what = what
        self.position = position
        # A text may also break off within a word or an escape.
        self.at_end = len(text[position : position + 16].strip()) <= len("\\u1234") or "Unterminated string" in what

    def place(self, text):
        line = text.count("\n", 0, self.position) + 1
        column = self.position - text.rfind("\n", 0, self.position)
        return f"line {line}, column {column}"


def _integer(digits):
    # Python's int() of a megabyte of digits takes minutes, or is refused.
    return int(digits) if len(digits) <= 20 else float(digits)


def _object(pairs):
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key comes twice in one object")
    return fields


_decoder = json.JSONDecoder(parse_int=_integer, parse_constant=lambda _: None, object_pairs_hook=_object)


def skip(text, position):
    return WHITESPACE.match(text, position).end()


def value_at(text, position):
    """The value that starts at `position` and where it ends. NaN and Infinity are null. Throws JsonProblem."""
    try:
        return _decoder.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise JsonProblem(error.msg, text, error.pos) from None
    except RecursionError:
        raise JsonProblem("nested too deeply", text, position) from None
    except MemoryError:
        raise JsonProblem("more than memory holds", text, position) from None
    except ValueError as error:
        raise JsonProblem(str(error), text, position) from None


def document_at(text, position, array_name):
    """Reads an object as far as it can be read: its fields, where reading ended, and the JsonProblem or None.

    The elements of its array `array_name` count one by one, any other field whole or not at all. An element that is
    whole but wrong (a key twice) is left out; what stops the reading is text that is no JSON.
    """
    fields = {}
    if text[position : position + 1] != "{":
        return fields, position, JsonProblem("Expecting an object", text, position)
    position = skip(text, position + 1)
    try:
        if text[position : position + 1] == "}":
            return fields, position + 1, None
        while True:
            name, position = value_at(text, position)
            if not isinstance(name, str):
                raise JsonProblem("Expecting a name", text, position)
            position = _expect(text, position, ":")
            if name in fields:
                raise JsonProblem("a key comes twice in one object", text, position)
            if name == array_name and text[position : position + 1] == "[":
                fields[name] = []
                position = _elements_at(text, position, fields[name])
            else:
                fields[name], position = value_at(text, position)
            position = skip(text, position)
            if text[position : position + 1] == "}":
                return fields, position + 1, None
            position = _expect(text, position, ",")
    except JsonProblem as problem:
        return fields, position, problem


def _elements_at(text, position, elements):
    position = skip(text, position + 1)
    if text[position : position + 1] == "]":
        return position + 1
    while True:
        value, position = value_at(text, position)
        elements.append(value)
        position = skip(text, position)
        if text[position : position + 1] == "]":
            return position + 1
        position = _expect(text, position, ",")


def _expect(text, position, character):
    position = skip(text, position)
    if text[position : position + 1] != character:
        raise JsonProblem(f"Expecting '{character}'", text, position)
    return skip(text, position + 1)
