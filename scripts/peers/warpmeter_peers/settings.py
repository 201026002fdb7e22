"""Options that every peer shares, and what they say. As tools/harness/settings.cpp."""

import os
from dataclasses import dataclass, field

from .grammar import UsageError
from .options import Option

DTYPES = ("fp32", "tf32", "bf16", "fp16")
FORMATS = ("md", "json", "jsonl", "csv")
MAX_WARMUP = MAX_STEPS = 1_000_000
MIN_DUTY_CYCLE = 0.01
MIN_TIME_S, MAX_TIME_S = 0.001, 86_400
MIN_ROW_TIMEOUT_S, MAX_ROW_TIMEOUT_S = 0.1, 604_800


@dataclass
class Settings:
    device: str = "cpu"           # "cpu" or "cuda:0"
    device_was_auto: bool = False
    dtypes: list = field(default_factory=list)
    preset: str = ""
    seed: int = 0
    threads: int = 0              # 0: as many as PyTorch takes
    memory_limit: int = 0         # bytes; 0: the device's
    isolate: bool = False
    row_timeout_s: float = None
    warmup: int = 10
    steps: int = None
    max_noise: float = 0.005
    max_time_s: float = 2.0
    duty_cycle: float = 1.0
    timer: str = "device"
    cache: str = "hot"
    check: bool = True
    format: str = "md"
    outputs: list = field(default_factory=list)
    columns: list = field(default_factory=list)
    wide: bool = False
    samples: bool = False
    resume: str = ""
    dry_run: bool = False
    against: str = ""

    @property
    def is_cuda(self):
        return self.device.startswith("cuda")

    def describe(self):
        """The settings as a result file has them."""
        dtypes = {"dtype": list(self.dtypes)} if self.dtypes else {}  # a peer may have no such option
        return {
            "device": self.device, **dtypes, "preset": self.preset or None, "seed": self.seed,
            "warmup": self.warmup, "steps": self.steps,
            # With a fixed number of samples neither bound is in force.
            "max_noise": None if self.steps else self.max_noise,
            "max_time_s": None if self.steps else self.max_time_s,
            "duty_cycle": self.duty_cycle, "timer": self.timer, "cache": self.cache,
            # As timing.CudaFlush leaves it; files that lack it are of when the flush left lines to write back.
            "cache_flush": "clean" if self.is_cuda and self.cache == "cold" else None,
            "memory_limit_bytes": self.memory_limit or None,
            "isolate": self.isolate, "row_timeout_s": self.row_timeout_s, "check": self.check,
        }


def add_shared_options(table):
    rows, device, measuring, output, information = (
        "Configurations", "Device and memory", "Measuring", "Output", "Presets, files and help")
    table.add(
        Option("--dtype", "Element types. tf32 stores fp32 and rounds the operands of matrix products.", "NAMES",
               "fp32", "fp32, tf32, bf16, fp16, one or several with commas between", rows, row_option=True),
        Option("--device", "Where to measure. auto takes the first CUDA device, else the CPU, and says which.",
               "DEVICE", "auto", "auto, cpu, cuda, cuda:N", device),
        Option("--threads", "Threads of the CPU's operations.", "N", accepted="a whole number from 1 to 4096",
               group=device, default_note="as many as PyTorch takes (OMP_NUM_THREADS)"),
        Option("--seed", "Seed of the random inputs.", "N", "0", "a whole number from 0", device),
        Option("--memory-limit", "Behave as on a device with this much memory: what would take more is an oom row.",
               "SIZE", accepted="a size: bytes, or KiB MiB GiB TiB (binary), KB MB GB TB (decimal)", group=device,
               default_note="the device's memory"),
        Option("--isolate", "Run each configuration in a process of its own, so that a crash costs one row.",
               group=device),
        Option("--row-timeout", "End a configuration's process after this long; its row says timeout.", "SECONDS",
               accepted=f"seconds from {MIN_ROW_TIMEOUT_S:g} to {MAX_ROW_TIMEOUT_S:g}; needs --isolate", group=device,
               default_note="none"),
        Option("--warmup", "Untimed runs before the samples of each phase.", "N", "10",
               f"a whole number from 0 to {MAX_WARMUP}", measuring),
        Option("--steps", "Take exactly N samples of each phase.", "N",
               accepted=f"a whole number from 1 to {MAX_STEPS}; not with --max-noise or --max-time", group=measuring,
               excludes=("--max-noise", "--max-time"), default_note="as many as --max-noise and --max-time say"),
        Option("--max-noise", "Sample until the noise (interquartile range / median) of at least 5 samples is this "
               "low.", "FRACTION", "0.5%", "a fraction or percentage from 0 to 100%: 0.5% or 0.005", measuring),
        Option("--max-time", "Stop sampling a phase after this long, noisy or not. One sample is always taken.",
               "SECONDS", "2", f"seconds from {MIN_TIME_S:g} to {MAX_TIME_S:g}", measuring),
        Option("--duty-cycle",
               "The part of the time that samples may take. Below 100% a pause follows each, in which a "
               "device at its power limit recovers; pauses count in --max-time.", "FRACTION", "100%",
               "a fraction or percentage from 1% to 100%: 25% or 0.25", measuring),
        Option("--timer", "device: events on the device's own timeline, without launch overhead. wall: the host's "
               "clock around a synchronized call. On the CPU both are the steady clock.", "NAME", "device",
               "device, wall", measuring),
        Option("--cache", "cold: flush the last-level cache before every sample. hot: leave in it what the last one "
               "left.", "STATE", accepted="cold, hot", group=measuring,
               default_note="cold on GPUs, hot on the CPU"),
        Option("--check", "Compare results with the reference and put the error on the row. A wrong result shows no "
               "speed.", default="true", group=measuring, negation="--no-check"),
        Option("--format", "Format on stdout.", "NAME", "md", "md, json, jsonl, csv", output, output_option=True),
        Option("--output", "Also write to FILE, in the format of its ending, anew after every row. May be repeated.",
               "FILE", accepted="file names that end in .md, .json, .jsonl or .csv", group=output, short_name="-o",
               repeatable=True, output_option=True),
        Option("--columns", "Exactly these columns in Markdown and CSV.", "NAMES",
               accepted="column names with commas between; not with --wide", group=output, output_option=True,
               excludes=("--wide",)),
        Option("--wide", "More columns in Markdown.", group=output, output_option=True),
        Option("--samples", "Keep every sample in JSON and JSON lines.", group=output, output_option=True),
        Option("--resume", "Take over rows of FILE with the same configuration, device and schema instead of running "
               "them.", "FILE", accepted="a .json or .jsonl file that this tool wrote", group=output,
               output_option=True),
        Option("--against", "After the rows print how long each took in relation to the rows of FILE with the same "
               "configuration.", "FILE", accepted="a .json or .jsonl file of a Warpmeter tool", group=output,
               output_option=True),
        Option("--dry-run", "Print the configurations with their predicted bytes and FLOPs; measure nothing.",
               group=output, output_option=True),
        Option("--preset", "Start from a named set of options. Options given beside it win.", "NAME",
               accepted="a preset's name, listed below", group=information),
        Option("--config", "Read options from FILE (key = value, the keys without dashes). Command line > FILE > "
               "preset.", "FILE", accepted="a TOML file", group=information),
        Option("--print-config", "Print the options in force as TOML that --config reads back.", group=information,
               action=True),
        Option("--list", "List what can be measured and what of it PyTorch here supports.", group=information,
               action=True),
        Option("--version", "Print the version.", group=information, action=True),
        Option("--help", "Print this text.", group=information, action=True),
    )


def format_of_path(path):
    """By a file name's ending; None when it is none of ours."""
    name = path.rsplit("/", 1)[-1]
    stem, dot, ending = name.rpartition(".")
    return ending if dot and stem and ending in FORMATS else None


def read_settings(table):
    """All but the device, which takes torch: see resolve_device(). Raises UsageError."""
    settings = Settings(preset=table.preset)
    if "--dtype" in table.options:
        settings.dtypes = table.words("--dtype", DTYPES)
    settings.seed = table.integer("--seed", 0, 2**63 - 1)
    if table.has("--threads"):
        settings.threads = table.integer("--threads", 1, 4096)
    if table.has("--memory-limit"):
        settings.memory_limit = table.size("--memory-limit")
    settings.isolate = table.flag("--isolate")
    if table.has("--row-timeout"):
        settings.row_timeout_s = table.number("--row-timeout", MIN_ROW_TIMEOUT_S, MAX_ROW_TIMEOUT_S)
    settings.warmup = table.integer("--warmup", 0, MAX_WARMUP)
    if table.has("--steps"):
        settings.steps = table.integer("--steps", 1, MAX_STEPS)
    settings.max_noise = table.fraction("--max-noise")
    settings.max_time_s = table.number("--max-time", MIN_TIME_S, MAX_TIME_S)
    settings.duty_cycle = table.fraction("--duty-cycle")
    if settings.duty_cycle < MIN_DUTY_CYCLE:
        raise table.error("--duty-cycle", "below 1%")
    settings.timer = table.word("--timer", ("device", "wall"))
    settings.cache = table.word("--cache", ("cold", "hot")) if table.has("--cache") else ""
    settings.check = table.flag("--check")
    settings.format = table.word("--format", FORMATS)
    settings.outputs = _read_outputs(table)
    settings.columns = _read_columns(table)
    settings.wide = table.flag("--wide")
    settings.samples = table.flag("--samples")
    settings.resume = table.text("--resume")
    settings.against = table.text("--against")
    settings.dry_run = table.flag("--dry-run")
    if settings.row_timeout_s and not settings.isolate:
        raise table.error("--row-timeout", "without --isolate there is no process to end; add --isolate")
    if settings.samples and not any(kind in ("json", "jsonl") for kind in
                                    [settings.format] + [format_of_path(path) for path in settings.outputs]):
        raise UsageError("--samples", "", "only JSON keeps samples",
                         "beside -o FILE.json, -o FILE.jsonl, --format json or --format jsonl")
    return settings


def _read_outputs(table):
    places = set()
    for path in table.texts("--output"):
        if format_of_path(path) is None:
            raise table.error("--output", "unknown ending", path)
        place = os.path.realpath(path)
        if place in places:
            raise table.error("--output", "the same file twice", path)
        places.add(place)
    return table.texts("--output")


def _read_columns(table):
    if not table.has("--columns"):
        return []
    columns = table.text("--columns").split(",")
    for index, column in enumerate(columns):
        if not column:
            raise table.error("--columns", "an item is empty")
        if column in columns[:index]:
            raise table.error("--columns", f"{column} stands twice")
    return columns


def parse_device_name(text):
    """`auto`, `cpu`, `cuda`, `cuda:N` by form alone: the kind and the index. Raises UsageError."""
    if text in ("auto", "cpu", "cuda"):
        return text, 0
    kind, _, index = text.partition(":")
    if kind == "cuda" and index.isascii() and index.isdigit() and len(index) <= 4:
        return "cuda", int(index)
    raise UsageError("--device", text, "is not known", "auto, cpu, cuda, cuda:N")


def resolve_device(settings, text, cuda_devices, why_none):
    """Settles the device and what follows from it. `cuda_devices` is their number, 0 with the reason `why_none`."""
    kind, index = parse_device_name(text)
    settings.device_was_auto = kind == "auto"
    if kind == "auto":
        kind = "cuda" if cuda_devices else "cpu"
    if kind == "cuda" and index >= cuda_devices:
        if not cuda_devices:
            raise UsageError("--device", text, f"is not there ({why_none})", "auto and cpu")
        raise UsageError("--device", text, "is not there",
                         ", ".join(["auto", "cpu"] + [f"cuda:{i}" for i in range(cuda_devices)]))
    settings.device = f"cuda:{index}" if kind == "cuda" else "cpu"
    settings.cache = settings.cache or ("cold" if settings.is_cuda else "hot")
    if settings.threads and settings.is_cuda:
        raise UsageError("--threads", str(settings.threads), "there are no threads to set on a GPU",
                         "beside --device cpu")
