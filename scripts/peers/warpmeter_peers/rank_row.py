"""One rank of a measurement of several: a process that measures what its standard input says and answers on its
standard output, a JSON object a line. Started by rank_group.py."""

import datetime
import json
import os
import sys

from . import timing
from .meeting import Meeting

END, WARM, SAMPLE = 0, 1, 2


class RankRow:
    """One configuration on one rank. Rank 0 samples; the others do what it tells. A subclass times a call: timed()."""

    least_warm_up = 1
    shortest_sample_ns = 0

    def __init__(self, torch, rank, ranks, meeting, order):
        self.torch, self.rank, self.ranks, self.meeting, self.order = torch, rank, ranks, meeting, order
        self.cuda = order["device"] == "cuda"
        self.device = f"cuda:{rank}" if self.cuda else "cpu"

    def tell(self, command):
        self.meeting.leave_numbers(float(command))
        self.meeting.come()
        self.meeting.come()

    def told(self):
        self.meeting.come()
        command = int(self.meeting.numbers(0, 1)[0])
        self.meeting.come()
        return command

    def synchronize(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    # What the sampler of rank 0 asks for.

    def run(self, _phase):
        self.tell(WARM)
        self._once()

    def sample(self, _phase, _calls):
        self.tell(SAMPLE)
        return self.timed()

    def _once(self):
        self._work()
        self.synchronize()

    def together(self, work):
        """Samples on rank 0, None on the others."""
        self._work = work
        if self.rank == 0:
            samples = timing.Sampler(_Timer(self), _Settings(self.order)).measure(timing.Phase(lambda: None))
            self.tell(END)
            return samples
        while (command := self.told()) != END:
            self._once() if command == WARM else self.timed()
        return None


class _Timer:
    def __init__(self, row):
        self._row, self.least_warm_up, self.shortest_sample_ns = row, row.least_warm_up, row.shortest_sample_ns

    def begin(self):
        pass

    def run(self, phase):
        self._row.run(phase)

    def sample(self, phase, calls):
        return self._row.sample(phase, calls)


class _Settings:
    def __init__(self, order):
        self.warmup, self.steps, self.max_noise = order["warmup"], order["steps"], order["max_noise"]
        self.max_time_s, self.cache = order["max_time_s"], "hot"
        self.duty_cycle = order["duty_cycle"]


def main(row):
    """`row(torch, rank, ranks, meeting, order).measure()` gives the figures."""
    setup = json.loads(sys.stdin.readline())
    rank, ranks = setup["rank"], setup["world_size"]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print
    import torch
    if setup["threads"]:
        torch.set_num_threads(setup["threads"])
    if setup["backend"] == "nccl":
        torch.cuda.set_device(rank)
    elif setup["interface"]:
        os.environ["GLOO_SOCKET_IFNAME"] = setup["interface"]
    torch.distributed.init_process_group(
        setup["backend"], init_method="file://" + setup["store"], rank=rank, world_size=ranks,
        timeout=datetime.timedelta(seconds=setup["timeout_s"]))
    meeting = Meeting(setup["meeting"], rank, ranks, setup["timeout_s"], ranks > len(os.sched_getaffinity(0)))
    meeting.come()
    print(json.dumps({"ready": rank}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if order.get("quit"):
            break
        try:
            figures = row(torch, rank, ranks, meeting, order).measure()
        except Exception as error:  # noqa: BLE001 - told to the one who asked
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
            os._exit(1)  # the other ranks hang in the collective, or will
        print(json.dumps(figures), file=answers, flush=True)
        if setup["backend"] == "nccl":
            torch.cuda.empty_cache()
    torch.distributed.destroy_process_group()
