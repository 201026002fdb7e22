"""What rows measured by several ranks share: options, the ranks' orders, and what their ends mean."""

from . import grammar
from .grammar import GrammarError
from .options import Option
from .rank_group import GroupLost, Groups

BACKENDS = {"gloo": "cpu", "nccl": "cuda"}


def parse_sizes(text):
    """`1MiB,10MiB`, `8:1GiB:x4`, as allreduce_bench reads them."""
    values = []
    for item in text.split(","):
        parts = item.split(":")
        if len(parts) == 1:
            values.append(grammar.parse_size(item))
            continue
        if len(parts) != 3 or parts[2][:1] not in ("x", "+"):
            raise GrammarError("a range is first:last:xN or first:last:+N")
        first, last = grammar.parse_size(parts[0]), grammar.parse_size(parts[1])
        if parts[2][0] == "x":
            step = grammar.parse_integer(parts[2][1:], 2, 2**31)
        else:
            step = grammar.parse_size(parts[2][1:])
        while first <= last:
            values.append(first)
            first = first * step if parts[2][0] == "x" else first + step
    return list(dict.fromkeys(values))


def exact_size(size):
    """The shortest text that reads back to the same bytes."""
    if size % 1024:
        return f"{size}B"
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size % scale == 0:
            return f"{size // scale}{unit}"
    return f"{size}B"


class RankCase:
    """A row of one backend and number of ranks."""

    def __init__(self, backend, world_size, groups):
        self.backend, self.world_size, self._groups = backend, world_size, groups

    def unsupported(self, settings):
        if BACKENDS[self.backend] == "cuda" and not settings.is_cuda:
            return "nccl works on GPUs, and --device is cpu"
        return None

    def answers(self, session, row, what, order):
        """Every rank's answer to the order, to which the sweep's settings are added; None where that ended the row."""
        settings = session.settings
        try:
            group = self._groups.get(self.backend, self.world_size)
            answers = group.measure({
                "what": what, "device": BACKENDS[self.backend], **order,
                "seed": settings.seed, "check": settings.check, "timer": settings.timer, "warmup": settings.warmup,
                "steps": settings.steps, "max_noise": settings.max_noise, "max_time_s": settings.max_time_s,
                "duty_cycle": settings.duty_cycle}, session.interrupted)
        except GroupLost as error:
            self._groups.close()
            row.end("crashed" if "killed" in str(error) else "error", str(error))
            return None
        if answers is None:
            self._groups.close()
            row.end("interrupted", session.interrupted.cause)
        return answers


def backend_option(group):
    return Option("--backend", "PyTorch's backends.", "NAMES", "", ", ".join(BACKENDS) + ", or all", group,
                  row_option=True, default_note="gloo on the CPU, nccl on GPUs")


def world_size_option(group, more=""):
    return Option("--world-size", "Ranks, started on this host." + more, "LIST", "2",
                  "whole numbers from 1 to 64, lists and ranges", group, row_option=True)


def rank_options():
    return (Option("--timeout", "Longest that the ranks wait for each other.", "SECONDS", "60",
                   "seconds from 1 to 86400", "Ranks"),
            Option("--interface", "gloo: a network interface.", "NAME", "", "the name of an interface", "Ranks",
                   default_note="PyTorch's choice"))


def backends_of(table, settings):
    if table.text("--backend"):
        return table.words("--backend", list(BACKENDS), True)
    return ["nccl" if settings.is_cuda else "gloo"]


def sizes_of(table, option):
    try:
        return parse_sizes(table.text(option))
    except GrammarError as problem:
        raise table.error(option, str(problem)) from None


def groups_of(table, settings, module):
    return Groups({"threads": settings.threads, "timeout_s": table.number("--timeout", 1, 86_400),
                   "interface": table.text("--interface")}, module)
