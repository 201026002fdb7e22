"""The part of TOML that configuration files need: KEY = VALUE with texts, numbers, truth values and arrays of them. As
tools/harness/detail/config_file.cpp; tomllib came with Python 3.11, and says nothing of lines."""

import os
import re

from .grammar import UsageError

_NUMBER = re.compile(r"[+-]?(0|[1-9](_?[0-9])*)(\.[0-9](_?[0-9])*)?([eE][+-]?[0-9](_?[0-9])*)?\Z")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}
_MOST_BYTES = 1 << 20


class Entry:
    def __init__(self, line):
        self.line, self.key, self.texts, self.is_array = line, "", [], False


class _Reader:
    def __init__(self, text, path):
        self._text, self._path, self._at, self._line = text, path, 0, 1

    def _fail(self, problem):
        raise UsageError("--config", self._path, f"line {self._line}: {problem}")

    def _peek(self):
        return self._text[self._at:self._at + 1]

    def _rest_of_line(self):
        return self._text[self._at:].partition("\n")[0].rstrip("\r")[:40]

    def _skip_blank(self, lines):
        while self._peek():
            char = self._peek()
            if char == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif char == "\n" and lines:
                self._at += 1
                self._line += 1
            elif char in " \t" or self._text.startswith("\r\n", self._at):
                self._at += 1
            else:
                return

    def read(self):
        entries = {}
        while True:
            self._skip_blank(True)
            if not self._peek():
                return list(entries.values())
            if self._peek() == "[":
                self._fail("tables are not accepted; write KEY = VALUE")
            entry = Entry(self._line)
            entry.key = self._key()
            if entry.key in entries:
                self._fail(f"'{entry.key}' is set already, on line {entries[entry.key].line}")
            self._skip_blank(False)
            if self._peek() != "=":
                self._fail(f"no = behind '{entry.key}'; write KEY = VALUE")
            self._at += 1
            self._skip_blank(False)
            self._value(entry)
            self._skip_blank(False)
            if self._peek() not in ("", "\n"):
                self._fail(f"'{self._rest_of_line()}' behind the value of {entry.key}; put lists in quotes or brackets")
            entries[entry.key] = entry

    def _key(self):
        if self._peek() in ("'", '"'):
            key = self._string()
        else:
            key = re.compile(r"[A-Za-z0-9_-]*").match(self._text, self._at).group()
            self._at += len(key)
        if not key:
            self._fail(f"'{self._rest_of_line()}' is no key; write KEY = VALUE")
        if self._peek() == ".":
            self._fail(f"dotted keys are not accepted ('{key}.')")
        return key

    def _value(self, entry):
        if self._peek() in ("", "\n"):
            self._fail(f"no value behind {entry.key} =")
        if self._peek() != "[":
            entry.texts.append(self._scalar(entry.key))
            return
        entry.is_array = True
        self._at += 1
        while True:
            self._skip_blank(True)
            if not self._peek():
                self._fail(f"the array of {entry.key} has no ]")
            if self._peek() == "]":
                self._at += 1
                return
            if self._peek() == "[":
                self._fail(f"an array within the array of {entry.key}")
            entry.texts.append(self._scalar(entry.key))
            self._skip_blank(True)
            if self._peek() == ",":
                self._at += 1
            elif self._peek() not in ("", "]"):
                self._fail(f"no comma between the items of {entry.key}")

    def _scalar(self, key):
        if self._peek() in ("'", '"'):
            return self._string()
        word = re.compile(r"[A-Za-z0-9_.+:%-]*").match(self._text, self._at).group()
        self._at += len(word)
        if word in ("true", "false"):
            return word
        if _NUMBER.match(word):
            return word.replace("_", "")
        if not word:
            self._fail(f"'{self._rest_of_line()}' is no value of {key}; put text in quotes")
        return self._fail(f"{key} = {word}: put text in quotes")

    def _string(self):
        quote = self._peek()
        if self._text.startswith(quote * 3, self._at):
            self._fail("multi-line strings are not accepted")
        self._at += 1
        result = ""
        while True:
            char = self._peek()
            if char in ("", "\n"):
                self._fail("a string without its closing quote")
            self._at += 1
            if char == quote:
                return result
            result += self._escape() if char == "\\" and quote == '"' else char

    def _escape(self):
        char = self._peek()
        self._at += 1
        if char in _ESCAPES and char:
            return _ESCAPES[char]
        if char not in ("u", "U"):
            self._fail("an unknown escape in a string; write \\\\ for a backslash, or single quotes around" if char else
                       "a string without its closing quote")
        digits = 4 if char == "u" else 8
        code = self._text[self._at:self._at + digits]
        if not re.fullmatch(rf"[0-9A-Fa-f]{{{digits}}}", code):
            self._fail(f"\\u and \\U take {digits} hexadecimal digits")
        self._at += digits
        if int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) <= 0xDFFF:
            self._fail("an escape that is no Unicode character")
        return chr(int(code, 16))


def read_config_file(path):
    """The entries in the file's order. Raises UsageError that names the line."""
    if os.path.isdir(path):
        raise UsageError("--config", path, "is a directory", "a TOML file")
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError("--config", path, f"cannot be read: {error.strerror}", "a TOML file") from None
    if len(data) > _MOST_BYTES:
        raise UsageError("--config", path, "is larger than 1 MiB", "a TOML file")
    return _Reader(data.decode("utf-8-sig", "replace"), path).read()


def toml_string(text):
    escaped = "".join("\\" + char if char in '"\\' else f"\\u{ord(char):04x}" if ord(char) < 0x20 or ord(char) == 0x7F
                      else char for char in text)
    return f'"{escaped}"'


def toml_value(text):
    plain = re.fullmatch(r"[0-9][0-9.]*", text) and len(text) <= 15 and text[-1].isdigit() and _NUMBER.match(text)
    return text if plain else toml_string(text)
