"""One rank of pytorch_allreduce: a process that measures what its standard input says and answers on its standard
output, a JSON object a line. Started by allreduce_case.py."""

import datetime
import json
import os
import sys
import time

from . import timing
from .meeting import Meeting
from .samples import summarize

PERIOD = 65_521  # prime: no part of a collective falls in step with the inputs
END, WARM, SAMPLE = 0, 1, 2


class Row:
    """One configuration on one rank. As tools/allreduce_bench/measurement.cpp."""

    def __init__(self, torch, rank, ranks, meeting, order):
        self.torch, self.rank, self.ranks, self.meeting, self.order = torch, rank, ranks, meeting, order
        self.dist = torch.distributed
        self.cuda = order["device"] == "cuda"
        self.device = f"cuda:{rank}" if self.cuda else "cpu"
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(order["dtype"], torch.float32)
        self.tensor = torch.empty(order["bytes"] // (2 if order["dtype"] in ("bf16", "fp16") else 4), dtype=kind,
                                  device=self.device)
        self.op = {"sum": self.dist.ReduceOp.SUM, "avg": self.dist.ReduceOp.AVG, "max": self.dist.ReduceOp.MAX,
                   "min": self.dist.ReduceOp.MIN}[order["op"]]
        self.skews = []
        if self.cuda:
            self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.token = torch.zeros(1, device=self.device)

    def inputs(self, rank):
        """Whole numbers whose sums every type holds: rank `rank`'s, repeated over the tensor's length."""
        torch, order = self.torch, self.order
        most = max(1, 256 // self.ranks) if order["op"] == "sum" else 128
        if order["op"] == "avg":
            most = max(1, 256 // self.ranks**2)
        generator = torch.Generator()
        generator.manual_seed(order["seed"] * 1024 + rank)
        values = torch.randint(-most, most + 1, (PERIOD,), generator=generator)
        return values * self.ranks if order["op"] == "avg" else values

    def spread(self, values):
        count = self.tensor.numel()
        values = values.to(self.tensor.dtype).to(self.device)
        return values.repeat(count // PERIOD + 1)[:count]

    def check(self):
        """Elements that are wrong, over all ranks."""
        torch = self.torch
        self.tensor.copy_(self.spread(self.inputs(self.rank)))
        self.call()
        self.synchronize()
        columns = torch.stack([self.inputs(r) for r in range(self.ranks)])
        expected = {"sum": lambda: columns.sum(0), "max": lambda: columns.amax(0), "min": lambda: columns.amin(0),
                    "avg": lambda: columns.sum(0) // self.ranks}[self.order["op"]]()
        wrong = (self.tensor != self.spread(expected)).sum().item()
        self.meeting.leave_numbers(wrong)
        self.meeting.come()
        total = sum(self.meeting.numbers(r, 1)[0] for r in range(self.ranks))
        self.meeting.come()
        return int(total)

    def call(self):
        self.dist.all_reduce(self.tensor, op=self.op)

    def synchronize(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    def timed(self):
        """The slowest rank's time of one call, begun together."""
        if self.cuda and self.order["timer"] == "device":
            # In the stream, behind a small collective that aligns the ranks once all of it is enqueued.
            self.meeting.come()
            arrival = time.perf_counter_ns()
            self.torch.cuda._sleep(400_000)
            self.dist.all_reduce(self.token)
            self.begin.record()
            self.call()
            self.end.record()
            self.synchronize()
            mine = max(self.begin.elapsed_time(self.end), timing.EVENT_RESOLUTION_MS)
        else:
            self.meeting.come()
            arrival = time.perf_counter_ns()
            self.call()
            self.synchronize()
            mine = (time.perf_counter_ns() - arrival) * 1e-6
        self.meeting.leave_numbers(mine, float(arrival))
        self.meeting.come()
        all_ranks = [self.meeting.numbers(r, 2) for r in range(self.ranks)]
        self.meeting.come()
        arrivals = [numbers[1] for numbers in all_ranks]
        self.skews.append((max(arrivals) - min(arrivals)) * 1e-6)
        return max(numbers[0] for numbers in all_ranks)

    def tell(self, command):
        self.meeting.leave_numbers(float(command))
        self.meeting.come()
        self.meeting.come()

    def told(self):
        self.meeting.come()
        command = int(self.meeting.numbers(0, 1)[0])
        self.meeting.come()
        return command

    # The timer that rank 0's sampler asks.
    least_warm_up = 1
    shortest_sample_ns = 0

    def begin_phase(self):
        pass

    def run(self, _phase):
        self.tell(WARM)
        self.call()
        self.synchronize()

    def sample(self, _phase, _calls):
        self.tell(SAMPLE)
        return self.timed()

    def measure(self):
        wrong = self.check() if self.order["check"] else None
        if wrong:
            return {"wrong": wrong}
        if self.rank == 0:
            timer = _Timer(self)
            settings = _Settings(self.order)
            samples = timing.Sampler(timer, settings).measure(timing.Phase(lambda: None))
            self.tell(END)
        else:
            samples = None
            while True:
                command = self.told()
                if command == END:
                    break
                if command == WARM:
                    self.call()
                    self.synchronize()
                else:
                    self.timed()
        again = self.check() if self.order["check"] else None
        if self.rank != 0:
            return {"wrong": again}
        found = summarize(samples.milliseconds)
        figures = {"median_ms": found.pop("ms"), **found, "stop": samples.stop,
                   "call_samples_ms": samples.milliseconds, "skew_mean_ms": summarize(self.skews)["mean_ms"],
                   "wrong": again}
        return figures


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


def main(row=Row):
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


if __name__ == "__main__":
    main()
