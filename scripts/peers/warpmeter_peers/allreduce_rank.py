"""One rank of pytorch_allreduce. Started by allreduce_case.py."""

import time

from . import timing
from .rank_row import RankRow, main
from .samples import summarize
from .torch_row import element_type

PERIOD = 65_521  # prime: no part of a collective falls in step with the inputs


class Row(RankRow):
    """One configuration on one rank. As tools/allreduce_bench/measurement.cpp."""

    def __init__(self, torch, rank, ranks, meeting, order):
        super().__init__(torch, rank, ranks, meeting, order)
        self.dist = torch.distributed
        kind = element_type(torch, order["dtype"])
        self.tensor = torch.empty(order["bytes"] // kind.itemsize, dtype=kind, device=self.device)
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

    def measure(self):
        wrong = self.check() if self.order["check"] else None
        if wrong:
            return {"wrong": wrong}
        samples = self.together(self.call)
        again = self.check() if self.order["check"] else None
        if self.rank != 0:
            return {"wrong": again}
        found = summarize(samples.milliseconds)
        figures = {"median_ms": found.pop("ms"), **found, "stop": samples.stop,
                   "call_samples_ms": samples.milliseconds, "skew_mean_ms": summarize(self.skews)["mean_ms"],
                   "wrong": again}
        return figures


if __name__ == "__main__":
    main(Row)
