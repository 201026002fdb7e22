"""Runs the rows of a sweep and writes them as they come. As tools/harness/sweep.cpp and tool.cpp."""

import gc
import logging
import os
import sys
import time
import traceback
import warnings

from . import against, machine, results
from .console import INTERRUPTED, Console, Interrupt
from .grammar import UsageError, format_size, one_line, shell_line
from .isolation import run_isolated
from .options import OptionTable
from .outputs import Outputs, write_text
from .settings import add_shared_options, parse_device_name, read_settings, resolve_device
from .timing import Interrupted, Sampler, make_timer

FAILURE, USAGE, MISSING = 1, 2, 3
INSTALL = ("PyTorch is not here: install it for this Python (pip install torch, or apt-get install python3-torch), or "
           "call this script with the Python that has it")


class Missing(Exception):
    """Something has to be installed first."""


class Predicted:
    """Bytes of the first phase and at most, and figures for a dry run."""

    def __init__(self, first_phase_bytes, peak_bytes, details):
        self.first_phase_bytes, self.peak_bytes, self.details = first_phase_bytes, peak_bytes, details


class Session:
    """What the rows of a run share: torch, settings, machine, sampler."""

    def __init__(self, torch, settings, console, interrupt):
        self.torch, self.settings, self.console = torch, settings, console
        if torch and settings.threads:
            torch.set_num_threads(settings.threads)
        self.machine = machine.CudaMachine(torch, settings.device) if settings.is_cuda else machine.CpuMachine(torch)
        self._interrupt, self._sampler, self._timers_bytes = interrupt, None, 0
        self.ceilings = None
        self.checkpoint = lambda row: None  # called by a case when a phase of its row is done

    def prepare(self):
        """Before the first row: the device, what libraries allocate once, the timer's buffers."""
        torch, settings = self.torch, self.settings
        if settings.is_cuda:
            torch.cuda.set_device(settings.device)
        timer = make_timer(torch, settings, self.machine, self.console.warning)
        self._sampler = Sampler(timer, settings, self._interrupt)
        self._timers_bytes = torch.cuda.memory_reserved() if settings.is_cuda else 0
        self.limit_memory()

    def limit_memory(self, limited=True):
        """On a GPU --memory-limit holds for what rows take: the timer's buffers are not under it."""
        torch, settings = self.torch, self.settings
        if settings.is_cuda and settings.memory_limit:
            total = torch.cuda.get_device_properties(settings.device).total_memory
            share = (settings.memory_limit + self._timers_bytes) / total if limited else 1.0
            torch.cuda.set_per_process_memory_fraction(min(1.0, share), settings.device)

    @property
    def interrupted(self):
        return self._interrupt

    @property
    def sampler(self):
        return self._sampler

    def available_bytes(self):
        free = self.machine.available_bytes()
        if self.settings.is_cuda:
            free += self.torch.cuda.memory_reserved() - self.torch.cuda.memory_allocated()
        return min(free, self.settings.memory_limit or free)

    def predicted_oom(self, predicted):
        available = self.available_bytes()
        if predicted.peak_bytes <= available or predicted.first_phase_bytes <= available:
            return None
        limit = self.settings.memory_limit
        return (f"predicted peak {format_size(predicted.peak_bytes)}, free {format_size(available)}"
                + (f", limit {format_size(limit)}" if limit else ""))


def is_out_of_memory(torch, error):
    if isinstance(error, MemoryError):
        return True
    kind = getattr(torch, "OutOfMemoryError", None) or getattr(torch.cuda, "OutOfMemoryError", None)
    if kind and isinstance(error, kind):
        return True
    text = str(error)
    return "can't allocate memory" in text or "CUDA out of memory" in text or "CUDNN_STATUS_ALLOC_FAILED" in text


def is_lost(error):
    """After such an error of CUDA nothing more runs in this process."""
    text = str(error)
    return any(part in text for part in ("CUDA error: an illegal", "CUDA error: unspecified launch failure",
                                         "CUDA error: device-side assert", "CUDA error: misaligned",
                                         "CUDA error: uncorrectable", "CUDA error: hardware stack"))


class Tool:
    """What a peer is made of. `cases(table, settings)` gives objects with configuration(), option_values(),
    unsupported(settings), predict(), run(session, row)."""

    name = summary = ""
    row_keys = ()
    layout = None
    takes_dtypes = True  # else there is no --dtype
    flushes = True       # else a call finds what the last one left: --cache is hot

    def add_options(self, table):
        raise NotImplementedError

    def cases(self, table, settings):
        raise NotImplementedError

    def list_text(self):
        raise NotImplementedError

    def default_preset(self, is_cuda):
        return ""

    def before_torch(self, table):
        """What torch reads when it is imported."""


def import_torch():
    """torch, or None. Its warnings on import are nothing that a user could act on."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torch
        except ImportError:
            return None
    return torch


def count_cuda_devices(torch):
    """Their number, and why there are none."""
    if torch is None:
        return 0, "PyTorch is not here"
    if not torch.backends.cuda.is_built():
        return 0, "this PyTorch is built without CUDA"
    return torch.cuda.device_count() if torch.cuda.is_available() else 0, "no GPU or no driver"


def run_tool(tool, argv):
    """A peer's main: the exit status."""
    console = Console(tool.name)
    try:
        return _run(tool, argv, console)
    except UsageError as error:
        console.line(str(error))
        return USAGE
    except Missing as error:
        console.line(str(error))
        return MISSING
    except (Interrupted, KeyboardInterrupt):
        console.line("interrupted before anything was measured")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except Exception as error:  # noqa: BLE001 - one line, as the tools have it
        place = traceback.extract_tb(error.__traceback__)[-1]
        console.line(f"{type(error).__name__}: {error} ({os.path.basename(place.filename)} line {place.lineno})")
        return FAILURE


def _run(tool, argv, console):
    table = OptionTable(tool.name, tool.summary)
    add_shared_options(table)
    if not tool.takes_dtypes:
        del table.options["--dtype"]
    tool.add_options(table)
    table.parse(argv[1:])
    if table.flag("--help") or table.flag("--version") or table.flag("--list"):
        table.default_preset = tool.default_preset(False)
        sys.stdout.write(_information(tool, table))
        sys.stdout.flush()
        return 0
    if table.flag("--print-config"):
        device = table.text("--device")
        on_gpu = device.startswith("cuda") or (device == "auto" and count_cuda_devices(import_torch())[0] > 0)
        table.default_preset = tool.default_preset(on_gpu)
        table.parse(argv[1:])
        sys.stdout.write(table.config_text())
        sys.stdout.flush()
        return 0
    kind, _ = parse_device_name(table.text("--device"))
    table.default_preset = tool.default_preset(kind == "cuda")
    table.parse(argv[1:])
    settings = _settings_of(tool, table)
    tool.cases(table, settings)  # mistakes in the options are told before torch is waited for
    tool.before_torch(table)
    torch = None if settings.dry_run and kind == "cpu" else import_torch()
    if torch is None and not settings.dry_run:
        raise Missing(INSTALL)
    devices, why_none = (0, "") if kind == "cpu" else count_cuda_devices(torch)
    # Parsed once more: the preset in force when none is named depends on the device.
    table.default_preset = tool.default_preset(kind == "cuda" or (kind == "auto" and devices > 0))
    table.parse(argv[1:])
    settings = _settings_of(tool, table)
    resolve_device(settings, table.text("--device"), devices, why_none)
    cases = tool.cases(table, settings)
    _require_something_supported(cases, settings)
    _check_columns(settings, tool)
    interrupt = Interrupt()
    interrupt.install()
    session = Session(torch, settings, console, interrupt)
    document = results.Document(tool.name, machine.version_object(), [str(word) for word in argv], machine.utc_now(),
                                session.machine.device_object(), machine.libraries_object(torch),
                                settings.describe(), list(tool.row_keys))
    if settings.dry_run:
        return _dry_run(tool, session, table, cases, document)
    reference = _read_against(settings, document)
    return Sweep(tool, session, table, document, reference, interrupt).run(cases)


def _settings_of(tool, table):
    settings = read_settings(table)
    if not tool.flushes:
        if settings.cache == "cold":
            raise table.error("--cache", "ranks do not flush, a call finds what the last one left", accepted="hot")
        settings.cache = "hot"
    return settings


def _information(tool, table):
    if table.flag("--help"):
        return table.help_text()
    if table.flag("--list"):
        return tool.list_text()
    version = machine.version_object()
    lines = [f"{tool.name} (warpmeter {version['project']})"]
    lines.append(f"git: {version['git_sha'] or 'not in a git checkout'}{', with changes' if version['dirty'] else ''}")
    lines += [f"{name}: {text}" for name, text in machine.libraries_object(import_torch()).items()]
    return "\n".join(lines) + "\n"


def _require_something_supported(cases, settings):
    reasons = [case.unsupported(settings) for case in cases]
    if all(reasons):
        raise UsageError(f"nothing to measure: {reasons[0]}" if len(reasons) == 1 else
                         f"nothing to measure: none of {len(reasons)} configurations can run; the first: {reasons[0]}")


def _check_columns(settings, tool):
    accepted = tool.layout.names(tool.row_keys)
    if settings.dry_run:
        accepted = accepted + ["predicted_peak_mem_mib"]
    for column in settings.columns:
        if column not in accepted:
            raise UsageError("--columns", column, "no such column", ", ".join(accepted))


def _read_against(settings, document):
    """The document of --against. Ratios of figures from two devices would mean nothing, nor those of figures of which
    one has the flush's own lines to write back."""
    if not settings.against:
        return None
    try:
        reference = results.read_document(settings.against)
    except results.ReadError as error:
        raise UsageError("--against", settings.against, str(error), "a .json or .jsonl file of a Warpmeter tool"
                         ) from None
    difference = against.device_difference(reference["device"], document.envelope["device"])
    if difference:
        raise UsageError("--against", settings.against, f"it was measured on another device ({difference})",
                         "a file measured on this one")
    difference = against.flush_difference(reference, document.envelope)
    if difference:
        raise UsageError("--against", settings.against, f"the flush before its samples left the L2 {difference}",
                         "a file of a tool of this version")
    return reference


def planned_row(case, table, program):
    return results.Row(case.configuration(), shell_line([program] + table.rerun_arguments(case.option_values())))


def _dry_run(tool, session, table, cases, document):
    settings = session.settings
    for case in cases:
        row = planned_row(case, table, tool.name)
        reason = case.unsupported(settings)
        if reason:
            row.end("unsupported", reason)
        else:
            predicted = case.predict()
            row.figures = {**predicted.details, "predicted_peak_mem_mib": predicted.peak_bytes / machine.MIB}
            oom = session.predicted_oom(predicted)
            row.end("oom" if oom else "skipped", oom or "dry run")
        document.rows.append(row)
    columns = list(settings.columns)
    if not columns:
        figures = [name for row in document.rows for name in row.figures]
        settings.columns = list(dict.fromkeys([*tool.row_keys, *figures, "status", "reason"]))
    sys.stdout.write(write_text(document, settings.format, tool.layout, settings))
    sys.stdout.flush()
    return 0


class Sweep:
    def __init__(self, tool, session, table, document, reference, interrupt):
        self._tool, self._session, self._table = tool, session, table
        self._document, self._reference, self._interrupt = document, reference, interrupt
        self._console, self._settings = session.console, session.settings
        self._stopped = ""
        self._begin = time.monotonic()

    def run(self, cases):
        rows = [planned_row(case, self._table, self._tool.name) for case in cases]
        for row, case in zip(rows, cases):
            reason = case.unsupported(self._settings)
            if reason:
                row.end("unsupported", one_line(reason))
        earlier = self._read_resume()  # before the outputs are opened: both may be the same file
        layout = self._tool.layout.telling_apart(self._tool.row_keys, [row.configuration for row in rows])
        outputs = Outputs(self._settings, layout, self._document, self._console)
        if self._settings.device_was_auto:
            self._console.line(f"device {self._session.machine.describe()}")
        if earlier is not None:
            self._take_over(rows, earlier)
        if not self._settings.isolate:
            self._session.prepare()
        outputs.begin()
        self._session.checkpoint = outputs.partial
        for index, (row, case) in enumerate(zip(rows, cases)):
            if row.status == "not_run":
                if not self._stopped and self._interrupt():
                    self._stopped = f"{self._interrupt.cause} came before it"
                if self._stopped:
                    row.reason = self._stopped
                else:
                    self._console.status(f"[{index + 1}/{len(rows)}] {row.rerun}")
                    self._measure(case, row)
            self._document.rows.append(row)
            self._update()
            outputs.row(row)
        self._update()
        outputs.end()
        self._report_failures(rows)
        if self._reference is not None:
            self._print_ratios(outputs)
        if self._interrupt():
            return INTERRUPTED
        return FAILURE if outputs.failed() or any(row.status in results.FAILURES for row in rows) else 0

    def _update(self):
        self._document.extra_summary = {"seconds": time.monotonic() - self._begin,
                                        "warnings": self._console.warnings}
        if self._session.ceilings:
            self._document.envelope["device"]["ceilings"] = self._session.ceilings.measured

    def _measure_isolated(self, case, row):
        own = ("--isolate", "--row-timeout")
        command = [sys.executable, os.path.realpath(sys.argv[0])]
        command += self._table.rerun_arguments(case.option_values(), without=own) + ["--format", "json", "--samples"]
        if "--device" not in command:
            command += ["--device", self._settings.device]  # auto must not be decided again, perhaps otherwise
        document, status, reason = run_isolated(command, self._settings.row_timeout_s, self._interrupt)
        found = document["rows"] if document else []
        keys = list(row.configuration)
        if len(found) == 1 and [found[0].get(key) for key in keys] == list(row.configuration.values()):
            row.figures = {name: value for name, value in found[0].items()
                           if name not in keys and name not in ("status", "reason", "rerun")}
            row.end(found[0]["status"], found[0]["reason"])
            known = self._document.envelope["device"].setdefault("ceilings", {})
            known.update(document["device"].get("ceilings", {}))
        elif found:
            row.end("error", "its rerun line gave another configuration in the isolated process")
        else:
            row.end(status, reason)
        if row.status == "interrupted":
            self._stopped = f"{self._interrupt.cause or row.reason} came before it"

    def _measure(self, case, row):
        torch, session = self._session.torch, self._session
        row.end("ok")
        try:
            reason = session.predicted_oom(case.predict())
            if reason:
                row.end("oom", reason)
                return
            if session.settings.isolate:
                self._measure_isolated(case, row)
                return
            case.run(session, row)
        except Interrupted:
            row.end("interrupted", self._interrupt.cause)
            self._stopped = f"{self._interrupt.cause} came before it"
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs this row and no other
            self._fail(row, error)
        gc.collect()  # what a failed row left in cycles still holds memory
        try:
            if session.settings.is_cuda:
                torch.cuda.synchronize()  # an asynchronous error belongs to this row
                torch.cuda.empty_cache()
        except Exception as error:  # noqa: BLE001
            self._fail(row, error)
        if row.status == "mismatch":
            row.remove_speeds()

    def _fail(self, row, error):
        torch = self._session.torch
        lines = [line for line in str(error).splitlines() if line.strip()]
        text = one_line(lines[0] if lines else type(error).__name__)
        if is_out_of_memory(torch, error):
            row.end("oom", text[:400])
        elif type(error).__name__ == "Unsupported":
            row.end("unsupported", text)
        else:
            row.end("error", f"{type(error).__name__}: {text}"[:400])
        if is_lost(error):
            self._stopped = (f"the device was lost in row {len(self._document.rows) + 1} ({row.reason}); --isolate "
                             "keeps that to one row")

    def _read_resume(self):
        if not self._settings.resume:
            return None
        try:
            return results.read_document(self._settings.resume)
        except results.ReadError as error:
            raise UsageError("--resume", self._settings.resume, str(error), "a JSON or JSON-lines result of this tool"
                             ) from None

    def _take_over(self, rows, earlier):
        envelope = self._document.envelope
        refusal = ""
        if earlier["tool"] != envelope["tool"]:
            refusal = f"it is a result of {earlier['tool']}, not of {envelope['tool']}"
        refusal = refusal or against.device_difference(earlier["device"], envelope["device"])
        for name, now in envelope["settings"].items():
            then = earlier["settings"].get(name)
            if name not in ("device", "dtype", "preset", "isolate", "row_timeout_s") and then != now:
                refusal = refusal or f"it was measured with {name} {then}, now {now}"
        for name in ("torch", "cudnn"):
            then, now = (earlier.get("libraries") or {}).get(name), envelope["libraries"].get(name)
            if then != now:
                refusal = refusal or f"it was measured with {name} {then}, now {now}"
        keys = self._tool.row_keys
        known = {}
        if not refusal:
            for row in earlier["rows"]:
                if row.get("status") not in results.FAILURES:
                    known[tuple(row.get(key) for key in keys)] = row
        taken = waiting = 0
        for row in rows:
            if row.status != "not_run":
                continue
            found = known.get(tuple(row.configuration[key] for key in keys))
            if found is None or found.get("status") not in results.STATUSES:
                waiting += 1
                continue
            row.figures = {name: value for name, value in found.items()
                           if name not in keys and name not in ("status", "reason", "rerun")}
            row.end(found["status"], found.get("reason"))
            taken += 1
        why = f", all run: {refusal}" if refusal else f", {waiting} run" if waiting else ""
        self._console.line(f"--resume {self._settings.resume}: {taken} of {len(rows)} rows taken over{why}")

    def _report_failures(self, rows):
        failed = [(index, row) for index, row in enumerate(rows, 1) if row.status in results.FAILURES]
        if failed:
            counts = ", ".join(f"{sum(row.status == status for _, row in failed)} {status}"
                               for status in results.FAILURES if any(row.status == status for _, row in failed))
            index, row = failed[0]
            self._console.line(f"{len(failed)} of {len(rows)} rows without a result: {counts}; row {index}: "
                               f"{row.reason}")

    def _print_ratios(self, outputs):
        text = against.ratio_text([(self._reference["rows"], [row.flat() for row in self._document.rows])],
                                  self._tool.row_keys)
        if self._settings.format == "md":
            outputs.print("\n" + text)
        else:
            self._console.block(text)
