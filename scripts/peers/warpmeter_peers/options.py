"""A table of options that gives parsing, --help and rerun lines. As tools/harness/option_table.cpp.

Options are written `--name value` or `--name=value`. The order of force: command line, configuration file, preset,
default.
"""

import textwrap
from dataclasses import dataclass, field

from . import config_file, grammar
from .grammar import GrammarError, UsageError

FALLBACK, PRESET, CONFIG, COMMAND_LINE = range(4)
_WIDTH, _TEXT_COLUMN = 100, 26


@dataclass
class Option:
    """With a metavar it takes a value; without one it is a flag ("true", "false"); with a metavar and a negation it is
    a flag that may be swept: `--causal=both` is "true,false"."""

    name: str
    help: str
    metavar: str = ""
    default: str = ""
    accepted: str = ""
    group: str = ""
    short_name: str = ""
    negation: str = ""
    repeatable: bool = False
    row_option: bool = False     # part of a row's configuration: rerun lines set it to the row's own value
    output_option: bool = False  # where results go, or whether anything runs: in no rerun line
    action: bool = False         # prints something instead of measuring
    excludes: tuple = ()         # asks for the contrary of these
    default_note: str = ""

    @property
    def is_flag(self):
        return not self.metavar

    @property
    def is_swept_flag(self):
        return bool(self.metavar and self.negation)

    def flag_text(self, text):
        """A flag's text in its one spelling; None when it is none."""
        if text in ("true", "false"):
            return text
        if not self.is_swept_flag:
            return None
        return {"both": "true,false", "true,false": "true,false", "false,true": "false,true"}.get(text)

    def flag_accepted(self):
        if self.accepted:
            return self.accepted
        if self.is_swept_flag:
            return f"{self.name}, {self.negation} or {self.name}=both"
        return f"{self.name} or {self.negation}" if self.negation else self.name


@dataclass
class Preset:
    name: str
    description: str
    values: dict


@dataclass
class _Entry:
    texts: list = field(default_factory=list)
    source: int = FALLBACK
    where: str = ""

    @property
    def text(self):
        return ",".join(self.texts)


class OptionTable:
    def __init__(self, program, summary):
        self.program, self.summary = program, summary
        self.options, self.presets, self.examples = {}, {}, []
        self.default_preset, self.preset = "", ""
        self._entries = {}

    def add(self, *options):
        for option in options:
            if (option.is_flag or option.is_swept_flag) and not option.default:
                option.default = "false"
            self.options[option.name] = option

    def add_presets(self, *presets):
        for preset in presets:
            self.presets[preset.name] = preset

    # Parsing.

    def parse(self, arguments):
        """Raises UsageError. --help and --version win over every mistake on the same line: see asked()."""
        given, unknown = self._split(arguments)
        entries = {name: self._fallback(option) for name, option in self.options.items()}
        for name in ("--help", "--version"):
            if given.get(name):
                entries[name] = _Entry(["true"], COMMAND_LINE)
        self._entries, self.preset = entries, ""
        if self.flag("--help") or self.flag("--version"):
            return
        if unknown:
            self._refuse_unknown(unknown[0])
        for option in self.options.values():
            entry = self._from_command_line(option, given.get(option.name, []), given.get(option.negation, []))
            if entry:
                entries[option.name] = entry
        if "--config" in entries and entries["--config"].texts:
            self._apply_config(entries["--config"].text, entries)
        preset = self.default_preset
        if entries["--preset"].texts:
            preset = entries["--preset"].text
            if preset not in self.presets:
                guess = grammar.did_you_mean(grammar.nearest_words(preset, self.presets))
                problem = f"unknown preset ({guess})" if guess else "unknown preset"
                if entries["--preset"].where:
                    problem += f" (from {entries['--preset'].where})"
                raise UsageError("--preset", preset, problem,
                                 ", ".join(self.presets) or "this program has no presets")
        for name, text in self._preset_values(preset):
            if entries[name].source <= PRESET:
                entries[name] = _Entry([text], PRESET, f"preset {preset}")
        self._resolve_exclusions(entries)
        self.preset = preset

    def _split(self, arguments):
        """The values of each option in the order given ("" for a flag or a missing value), and what is no option."""
        by_name = {}
        for option in self.options.values():
            takes_value = not option.is_flag and not option.is_swept_flag
            by_name[option.name] = takes_value
            if option.short_name:
                by_name[option.short_name] = takes_value
            if option.negation:
                by_name[option.negation] = False
        long_names = {option.short_name: option.name for option in self.options.values() if option.short_name}
        given, unknown = {}, []
        rest = list(arguments)
        while rest:
            argument = rest.pop(0)
            name, equals, value = argument.partition("=")
            if name not in by_name and argument[:2] in long_names and not argument.startswith("--"):
                name, equals, value = argument[:2], "=", argument[2:]
            if name not in by_name:
                unknown.append(argument)
                continue
            if equals and not value:
                raise UsageError(name, "", "nothing stands behind the =")
            if not equals and by_name[name] and rest and not _looks_like_option(rest[0]):
                value = rest.pop(0)
            given.setdefault(long_names.get(name, name), []).append(value)
        return given, unknown

    def _refuse_unknown(self, argument):
        if len(argument) < 2 or argument[0] != "-" or argument == "--":
            raise UsageError(f"'{argument}': unexpected; options are written --name value")
        name = argument.partition("=")[0]
        known = [word for option in self.options.values() for word in (option.name, option.negation) if word]
        guess = grammar.did_you_mean(grammar.nearest_words(name, known))
        raise UsageError(name, "", f"unknown option; {guess or '--help lists them'}")

    @staticmethod
    def _from_command_line(option, on, off):
        if not on and not off:
            return None
        if on and off:
            raise UsageError(f"{option.name} and {option.negation}: contradict each other; accepted: one of them")
        if off:
            for value in filter(None, off):
                raise UsageError(option.negation, value, "takes no value", option.flag_accepted())
            return _Entry(["false"], COMMAND_LINE)
        if option.is_flag or option.is_swept_flag:
            texts = []
            for value in on:
                text = option.flag_text(value) if value else "true"
                if text is None:
                    raise UsageError(option.name, value, "takes no value" if option.is_flag else "not a truth value",
                                     option.flag_accepted())
                if texts and texts[0] != text:
                    raise UsageError(f"{option.name}: given as {texts[0]} and as {text}; accepted: "
                                     f"{option.flag_accepted()}")
                texts = [text]
            return _Entry(texts, COMMAND_LINE)
        if not all(on):
            raise UsageError(option.name, "", "needs a value", option.accepted)
        if len(on) > 1 and not option.repeatable:
            raise UsageError(option.name, "', '".join(on), "given more than once",
                             f"once; {option.accepted}" if option.accepted else "one value")
        return _Entry(on, COMMAND_LINE)

    def _is_configurable(self, name):
        return name in self.options and not self.options[name].action and name != "--config"

    def _apply_config(self, path, entries):
        known = [name[2:] for name in self.options if self._is_configurable(name)]
        for item in config_file.read_config_file(path):
            def refuse(problem, accepted="", line=item.line):
                raise UsageError("--config", path, f"line {line}: {problem}", accepted)

            for option in self.options.values():
                if option.negation == "--" + item.key:
                    refuse(f"'{item.key}' is no key; write {option.name[2:]} = false")
            name = "--" + item.key
            if not self._is_configurable(name):
                if name in self.options:
                    refuse(f"'{item.key}' is for the command line only")
                guess = grammar.did_you_mean(grammar.nearest_words(item.key, known))
                refuse(f"unknown key '{item.key}'" + (f"; {guess}" if guess else ""),
                       "" if guess else "the options' names without their dashes")
            option = self.options[name]
            texts = [",".join(item.texts)] if item.is_array and not option.repeatable else item.texts
            if not texts or not all(texts):
                refuse(f"{item.key} needs a value", option.accepted)
            if self._is_any_flag(name):
                text = option.flag_text(",".join(texts))
                if text is None:
                    refuse(f"{item.key} = '{','.join(texts)}' is not a truth value",
                           'true, false, "both"' if option.is_swept_flag else "true, false")
                texts = [text]
            # What the command line said stays.
            if entries[name].source < CONFIG:
                entries[name] = _Entry(texts, CONFIG, f"{path} line {item.line}")

    def _preset_values(self, name):
        """(option, text), flags in their one spelling."""
        preset = self.presets.get(name)
        for option, text in preset.values.items() if preset else ():
            yield option, self.options[option].flag_text(text) if self._is_any_flag(option) else text

    def _is_any_flag(self, name):
        return self.options[name].is_flag or self.options[name].is_swept_flag

    @staticmethod
    def _fallback(option):
        return _Entry([option.default] if option.default else [])

    def _resolve_exclusions(self, entries):
        def describe(name):
            return name if self.options[name].is_flag else f"{name} {entries[name].text}"

        for option in self.options.values():
            for other in option.excludes:
                mine, theirs = entries[option.name].source, entries[other].source
                if FALLBACK in (mine, theirs):
                    continue
                if mine == theirs:
                    where = entries[option.name].where
                    raise UsageError(f"{describe(option.name)} and {describe(other)}: contradict each other"
                                     + (f" (from {where})" if where else "") + "; accepted: one of them")
                weaker = option.name if mine < theirs else other
                entries[weaker] = self._fallback(self.options[weaker])

    # Reading.

    def text(self, name):
        return self._entries[name].text

    def texts(self, name):
        return list(self._entries[name].texts)

    def has(self, name):
        return bool(self._entries[name].texts)

    def given(self, name):
        """True when the user named it: on the command line or in the configuration file."""
        return self._entries[name].source >= CONFIG

    def flag(self, name):
        return self.text(name) == "true"

    def flags(self, name):
        return [word == "true" for word in self.text(name).split(",")]

    def _read(self, name, parser, accepted=""):
        text = self.text(name)
        try:
            return parser(text)
        except GrammarError as problem:
            raise self.error(name, str(problem), accepted=accepted) from None

    def integer(self, name, low, high):
        return self._read(name, lambda text: grammar.parse_integer(text, low, high))

    def integers(self, name, low, high):
        return self._read(name, lambda text: grammar.parse_integer_list(text, low, high))

    def size(self, name):
        return self._read(name, grammar.parse_size)

    def number(self, name, low, high):
        return self._read(name, lambda text: grammar.parse_number(text, low, high))

    def fraction(self, name):
        return self._read(name, grammar.parse_fraction)

    def word(self, name, accepted):
        return self._read(name, lambda text: grammar.parse_word(text, accepted), ", ".join(accepted))

    def words(self, name, accepted, allow_all=False):
        return self._read(name, lambda text: grammar.parse_words(text, accepted, allow_all),
                          ", ".join(accepted) + (", all" if allow_all else "")
                          + ", one or several with commas between")

    def error(self, name, problem, value=None, accepted=""):
        """UsageError for an option with its value and what it accepts."""
        entry = self._entries[name]
        if entry.where:
            problem = f"{problem} (from {entry.where})"
        return UsageError(name, entry.text if value is None else value, problem,
                          accepted or self.options[name].accepted)

    # Writing.

    def rerun_arguments(self, row_values, without=()):
        """The arguments that repeat one row: what the user set beyond the row's own options, then the row's."""
        of_row = {*row_values, *without}
        for option in self.options.values():
            for other in option.excludes:
                if option.row_option and self.options[other].row_option and {option.name, other} & of_row:
                    of_row |= {option.name, other}

        def matters(option):
            return (option.name not in of_row and not option.output_option and not option.action
                    and option.name not in ("--preset", "--config"))

        def baseline(preset):
            entries = {name: self._fallback(option).text for name, option in self.options.items()}
            entries.update(self._preset_values(preset))
            return entries

        arguments = []

        def append(option, text):
            if not text:
                return
            if option.is_flag or option.is_swept_flag:
                if text == "true":
                    arguments.append(option.name)
                elif text == "false" and option.negation:
                    arguments.append(option.negation)
                else:
                    arguments.append(f"{option.name}={text}")
            elif text.startswith("-"):
                arguments.append(f"{option.name}={text}")  # not to be taken for an option
            else:
                arguments.extend([option.name, text])

        base = baseline(self.default_preset)
        if self.preset != self.default_preset and any(
                matters(option) and not self.given(name) and self.text(name) != base[name]
                for name, option in self.options.items()):
            arguments += ["--preset", self.preset]
            base = baseline(self.preset)
        excluded = {other for option in self.options.values() for other in option.excludes}
        for name, option in self.options.items():
            if not matters(option) or not self.given(name):
                continue
            # A value that is the default all the same may have put another option out of force.
            if self.text(name) == base[name] and not option.excludes and name not in excluded:
                continue
            for text in self.texts(name) if option.repeatable else [self.text(name)]:
                append(option, text)
        for name, text in row_values.items():
            option = self.options[name]
            # A switch that can only be turned on is off by leaving it out.
            if not (option.is_flag and not option.negation and text == base[name]):
                append(option, text)
        return arguments

    def config_text(self):
        """TOML that --config reads back to the same options; what stands anyway is in comments."""
        lines = [f"# Options of {self.program}, as in force: `{self.program} --config FILE` reads this file back.",
                 "# Lines that start with # are what stands anyway."]
        for group in dict.fromkeys(option.group for option in self.options.values()):
            lines += ["", f"# {group}"]
            lines += [self._config_line(option) for option in self.options.values()
                      if option.group == group and self._is_configurable(option.name)]
        return "\n".join(lines) + "\n"

    def _config_line(self, option):
        key, entry = option.name[2:], self._entries[option.name]
        # The default preset is written out, since another device may have another one.
        if option.name == "--preset" and self.preset:
            entry = _Entry([self.preset], CONFIG)
        if not entry.texts:
            return f"# {key} is not set"
        if option.repeatable:
            value = "[" + ", ".join(config_file.toml_string(text) for text in entry.texts) + "]"
        elif self._is_any_flag(option.name) and entry.text in ("true", "false"):
            value = entry.text
        else:
            value = config_file.toml_value(entry.text)
        return f"{key} = {value}" if entry.source >= CONFIG else f"# {key} = {value}  # {entry.where or 'default'}"

    def help_text(self):
        def wrapped(text, first=" " * _TEXT_COLUMN, rest=" " * _TEXT_COLUMN):
            return textwrap.fill(text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False,
                                 break_on_hyphens=False)

        lines = [wrapped(f"{self.program}: {self.summary}", "", "  "), "", f"Usage: {self.program} [options]"]
        for group in dict.fromkeys(option.group for option in self.options.values()):
            lines += ["", f"{group}:"]
            for option in self.options.values():
                if option.group != group:
                    continue
                head = "  " + _usage_of(option)
                if len(head) + 2 > _TEXT_COLUMN:
                    lines.append(head)
                    head = ""
                lines.append(wrapped(option.help, head.ljust(_TEXT_COLUMN)))
                facts = []
                if _shown_default(option):
                    facts.append("default: " + _shown_default(option))
                if option.accepted:
                    facts.append("accepted: " + option.accepted)
                if facts:
                    text = "; ".join(facts)
                    lines.append(wrapped(text[0].upper() + text[1:]))
        if self.presets:
            lines += ["", "Presets (options given beside one win):"]
            for preset in self.presets.values():
                here = " (the default here)" if preset.name == self.default_preset else ""
                lines.append(wrapped(preset.description + here, f"  {preset.name}".ljust(_TEXT_COLUMN)))
                lines.append(wrapped(" ".join(self._preset_words(preset))))
        if self.examples:
            lines += ["", "Examples:"] + [f"  {line}" for line in self.examples]
        return "\n".join(lines) + "\n"

    def _preset_words(self, preset):
        for name, text in preset.values.items():
            option = self.options[name]
            if not (option.is_flag or option.is_swept_flag):
                yield f"{name} {text}"
            elif text == "true":
                yield name
            else:
                yield option.negation if text == "false" and option.negation else f"{name}={text}"


def _looks_like_option(text):
    """A dash and a digit is a number that is refused with its own reason."""
    return len(text) > 1 and text[0] == "-" and not text[1].isdigit()


def _usage_of(option):
    text = f"{option.short_name}, {option.name}" if option.short_name else option.name
    if option.negation:
        return f"{text}[={option.metavar}], {option.negation}" if option.metavar else f"{text}, {option.negation}"
    return f"{text} {option.metavar}" if option.metavar else text


def _shown_default(option):
    if option.default_note or option.action:
        return option.default_note
    if option.is_flag or option.is_swept_flag:
        if not option.negation:
            return ""
        return {"true": option.name, "false": option.negation}.get(option.default, f"{option.name}=both")
    return option.default
