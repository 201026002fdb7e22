"""From plain JSON values to a ResultFile, counting what has to be mended on the way."""

from collections import Counter

from warpmeter import fields
from warpmeter.model import HUGE, MAX_COLUMNS, MAX_ELEMENTS, SCHEMAS, ReadError, ResultFile, Row, clean_text

_HEADER = ("schema", "tool", "version", "argv", "started_at", "device", "libraries", "settings", "row_keys")
#: What identified a row before row_keys were written, in the order of the tools' tables.
_OLD_ROW_KEYS = (
    "impl",
    "backend",
    "collective",
    "op",
    "kernel_name",
    "size",
    "mode",
    "dtype",
    "precision",
    "structure",
    "pass",
    "batch",
    "num_heads",
    "num_kv_heads",
    "d_model",
    "head_dim",
    "d_ff",
    "num_layers",
    "context",
    "seq_len",
    "kv_len",
    "world_size",
    "tensor_size",
    "causal",
    "deterministic",
)


class Builder:
    """A ResultFile from plain JSON values, counting what it has to mend."""

    def __init__(self, origin):
        self.result = ResultFile(origin)
        self.mended = Counter()
        self._columns = {}
        self._config = ()

    def header(self, raw):
        result = self.result
        schema = raw.get("schema")
        if not isinstance(schema, str):
            raise ReadError(f"{result.origin}: not a result of this suite: there is no 'schema'")
        if schema not in SCHEMAS:
            known = ", ".join(f"'{name}'" for name in SCHEMAS)
            raise ReadError(f"{result.origin}: schema '{clean_text(schema[:60])}'; this script reads {known}")
        result.schema = schema
        result.tool = self._text(raw, "tool")
        result.started_at = self._text(raw, "started_at")
        for name in ("version", "device", "libraries", "settings"):
            setattr(result, name, self._mapping(raw, name))
        result.argv = self._texts(raw, "argv")
        keys = self._texts(raw, "row_keys")
        result.row_keys = list(dict.fromkeys(key for key in keys if fields.NAME.match(key)))
        missing = [name for name in _HEADER if name not in raw]
        if missing:
            result.notes.append(f"The header has no {', '.join(missing)}.")

    def row(self, raw):
        if not isinstance(raw, dict):
            self.mended["a row that is no object was left out"] += 1
            return
        if not self.result.row_keys:
            self._guess_row_keys(raw)
        config, figures, samples = dict.fromkeys(key for key in self.result.row_keys if key in raw), {}, {}
        for name, value in raw.items():
            if name in ("status", "reason", "rerun", "type"):
                continue
            if name in config:
                config[name] = self._scalar(name, value)
            elif not fields.NAME.match(name):
                self.mended["a field whose name is none of ours was left out"] += 1
            elif fields.SAMPLES.match(name):
                kept = self._samples(name, value)
                if kept:
                    samples[name] = kept
            elif name in self._columns or len(self._columns) < MAX_COLUMNS:
                self._columns[name] = None
                figures[name] = self._figure(name, value)
            else:
                self.mended[f"a field beyond the {MAX_COLUMNS} that are read was left out"] += 1
        status = raw.get("status")
        if status not in fields.STATUSES:
            self.mended["a row has a status that is none of ours: shown as unknown"] += 1
            status = "unknown"
        reason, rerun = (self._text(raw, name, row=True) for name in ("reason", "rerun"))
        self.result.rows.append(Row(config, figures, samples, status, reason, rerun))

    def summary(self, raw):
        kept = self._mapping({"summary": raw}, "summary")
        kept.pop("type", None)
        self.result.summary = kept

    def finish(self, problem=None):
        """`problem`: how the text ended early, or None."""
        result = self.result
        result.columns = list(self._columns)
        counts = result.statuses()
        if problem:
            result.complete = False
            result.notes.append(problem)
        elif not isinstance(result.summary.get("rows"), int):
            result.complete = False
            rows = count(len(result.rows), "row")
            result.notes.append(
                f"The run did not finish: the file has no summary, only the {rows} measured until then."
            )
        if counts["interrupted"] or counts["not_run"]:
            result.complete = False
            lost = count(counts["interrupted"] + counts["not_run"], "configuration")
            result.notes.append(f"The run was stopped early: {lost} not measured.")
        repeats = len(result.rows) - len({row.key() for row in result.rows})
        if repeats:
            rows = "A row repeats" if repeats == 1 else f"{repeats} rows repeat"
            result.notes.append(f"{rows} an earlier one's configuration.")
        for what, times in self.mended.items():
            result.notes.append(what[0].upper() + what[1:] + (f" ({times} times)." if times > 1 else "."))
        return result

    def _guess_row_keys(self, raw):
        known = [name for name in _OLD_ROW_KEYS if isinstance(raw.get(name), (str, int, bool))]
        self.result.row_keys = known or ["impl"]
        self.mended["row_keys are missing: taken as " + ", ".join(self.result.row_keys)] += 1

    def _text(self, raw, name, row=False):
        value = raw.get(name)
        if isinstance(value, str):
            return clean_text(value)
        if value is not None:
            self.mended[f"'{name}' is no text: left out" if row else f"the header's '{name}' is no text: left out"] += 1
        return ""

    def _texts(self, raw, name):
        value = raw.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.mended[f"the header's '{name}' is no array: left out"] += 1
            return []
        texts = [clean_text(element) for element in value[:MAX_ELEMENTS] if isinstance(element, str)]
        if len(texts) != len(value):
            self.mended[f"an element of the header's '{name}' is no text: left out"] += len(value) - len(texts)
        return texts

    def _mapping(self, raw, name):
        value = raw.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.mended[f"'{name}' is no object: left out"] += 1
            return {}
        return self._tidy(value, name, 3)

    def _tidy(self, value, name, depth):
        """Text, numbers, and objects and arrays of them down to `depth` levels."""
        if isinstance(value, (dict, list)) and depth == 0:
            self.mended[f"'{name}' is nested deeper than ours are: cut"] += 1
            return None
        if isinstance(value, dict):
            return {
                clean_text(key[:80]): self._tidy(inner, name, depth - 1)
                for key, inner in list(value.items())[:MAX_COLUMNS]
            }
        if isinstance(value, list):
            return [self._tidy(inner, name, depth - 1) for inner in value[:MAX_ELEMENTS]]
        return self._scalar(name, value)

    def _scalar(self, name, value):
        if isinstance(value, str):
            return clean_text(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (int, float)):
            if _finite(value):
                return value
            self.mended[f"'{name}' is not finite: taken as missing"] += 1
            return None
        self.mended[f"'{name}' is neither text nor number: taken as missing"] += 1
        return None

    def _figure(self, name, value):
        if value is None or isinstance(value, float) and (value == 0 or 1 / HUGE < value < HUGE):  # nearly all of them
            return value
        if isinstance(value, list):
            return clean_text(
                ", ".join(str(element) for element in value[:64] if not isinstance(element, (dict, list)))
            )
        value = self._scalar(name, value)
        if value is None or not fields.is_measured(name):
            return value
        if isinstance(value, (str, bool)):
            self.mended[f"'{name}' is no number: taken as missing"] += 1
            return None
        if value < 0:
            self.mended[f"'{name}' is negative: taken as missing"] += 1
            return None
        if value and not 1 / HUGE < value < HUGE:
            self.mended[f"'{name}' is beyond any measure: taken as missing"] += 1
            return None
        return value

    def _samples(self, name, value):
        if value is None:
            return None
        numbers = (
            []
            if not isinstance(value, list)
            else [
                float(number)
                for number in value
                if isinstance(number, (int, float)) and not isinstance(number, bool) and _finite(number) and number >= 0
            ]
        )
        if not isinstance(value, list) or len(numbers) != len(value):
            self.mended[f"'{name}' holds more than times: left out"] += 1
            return None
        return numbers


def _finite(number):
    return abs(number) < 1e300


def count(number, word):
    return f"{number} {word}" + ("" if number == 1 else "s")
