"""One rank of pytorch_ddp: trains what its standard input says, together with the others. Started by ddp_case.py."""

import contextlib
import hashlib
import time
import warnings

from . import e2e_model, timing
from .machine import MIB
from .rank_row import RankRow, main
from .samples import summarize
from .torch_row import precision

MAX_NORM, LEARNING_RATE = 1.0, 1e-3


class Averager:
    """Gradients averaged by hand: when, and in which pieces."""

    def __init__(self, torch, ranks, model, strategy, bucket_bytes):
        self.torch, self.dist, self.ranks, self.strategy = torch, torch.distributed, ranks, strategy
        self.on = False
        parameters = list(reversed(list(model.parameters())))
        most = {"naive": 0, "overlap": 0, "flat": float("inf")}.get(strategy, bucket_bytes)
        self.buckets, self._of = [], {}
        size = 0
        for parameter in parameters:
            bytes_ = parameter.numel() * parameter.element_size()
            if not self.buckets or size + bytes_ > most:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(parameter)
            self._of[parameter] = len(self.buckets) - 1
            size += bytes_
        self.bytes = sum(p.numel() * p.element_size() for p in parameters)
        self.calls = len(self.buckets)
        # DDP has its own; here are only its buckets, to time what it sends.
        if strategy in ("overlap", "bucketed"):
            for parameter in parameters:
                parameter.register_post_accumulate_grad_hook(self._ready)

    def begin(self):
        self.on = True
        self._missing = [len(bucket) for bucket in self.buckets]
        self._works, self._next = [], 0

    def _ready(self, parameter):
        if not self.on:
            return
        self._missing[self._of[parameter]] -= 1
        while self._next < self.calls and self._missing[self._next] == 0:
            self._works.append(self._send(self.buckets[self._next], True))
            self._next += 1

    def _reduce(self, tensor, later):
        average = tensor.is_cuda
        op = self.dist.ReduceOp.AVG if average else self.dist.ReduceOp.SUM
        return self.dist.all_reduce(tensor, op=op, async_op=later)

    def _send(self, bucket, later):
        gradients = [parameter.grad for parameter in bucket]
        alone = len(gradients) == 1 and self.strategy in ("naive", "overlap")
        flat = gradients[0] if alone else self.torch._utils._flatten_dense_tensors(gradients)
        return self._reduce(flat, later), flat, None if alone else gradients

    def _end(self, sent):
        work, flat, gradients = sent
        if work is not None:
            work.wait()
        if not flat.is_cuda:
            flat.div_(self.ranks)
        if gradients is not None:
            for gradient, averaged in zip(gradients, self.torch._utils._unflatten_dense_tensors(flat, gradients)):
                gradient.copy_(averaged)

    def finish(self):
        if self.strategy in ("overlap", "bucketed"):
            for sent in self._works:
                self._end(sent)
        else:
            for bucket in self.buckets if self.strategy == "flat" else reversed(self.buckets):
                self._end(self._send(bucket, False))
        self.on = False

    def communicate(self, arrays):
        for array in arrays:
            self._reduce(array, False)

    def arrays(self):
        device = next(iter(self._of)).device
        return [self.torch.zeros(sum(p.numel() for p in bucket), device=device) for bucket in self.buckets]


class DdpRow(RankRow):
    """One configuration on one rank."""

    def largest(self, number):
        self.meeting.leave_numbers(float(number))
        self.meeting.come()
        most = max(self.meeting.numbers(r, 1)[0] for r in range(self.ranks))
        self.meeting.come()
        return most

    def timed(self):
        self.meeting.come()
        if self.cuda and self.order["timer"] == "device":
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self._work()
            end.record()
            self.synchronize()
            mine = max(begin.elapsed_time(end), timing.EVENT_RESOLUTION_MS)
        else:
            begin = time.perf_counter_ns()
            self._work()
            self.synchronize()
            mine = (time.perf_counter_ns() - begin) * 1e-6
        self.own_ms.append(mine)
        return self.largest(mine)

    # What is trained.

    def build(self):
        torch, order = self.torch, self.order
        torch.manual_seed(order["seed"] + self.rank)
        config = e2e_model.ModelConfig(**order["model"])
        model = e2e_model.build(torch, config, order["context"], self.device, order["attention"])
        for parameter in model.parameters():
            torch.distributed.broadcast(parameter.data, 0)
        self.model, self.call, self.averager = model, model, None
        by_hand = order["strategy"] != "ddp"
        if order["structure"] == "pytorch_compiled_blocks":
            for part in (*model.layers, model.ln_final):
                part.compile(dynamic=False)
        if not by_hand:
            from torch.nn.parallel import DistributedDataParallel

            cap = order["bucket_bytes"] / MIB
            self.call = DistributedDataParallel(model, device_ids=[self.rank] if self.cuda else None, bucket_cap_mb=cap,
                                                gradient_as_bucket_view=True)
        elif order["structure"] == "pytorch_compiled":
            self.call = torch.compile(model, dynamic=False)
        self.averager = Averager(torch, self.ranks, model, order["strategy"], order["bucket_bytes"])
        fused = {"fused": True} if order["structure"] != "pytorch_eager" else {}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, **fused)
        self.scaler = torch.amp.GradScaler("cuda" if self.cuda else "cpu", enabled=order["precision"] == "fp16")
        shape = (order["batch"], order["context"])
        self.tokens, self.targets = (torch.randint(config.vocab, shape, device=self.device) for _ in range(2))
        self.exposed = []

    def autocast(self):
        kinds = {"bf16": self.torch.bfloat16, "fp16": self.torch.float16}
        if self.order["precision"] not in kinds:
            return contextlib.nullcontext()
        return self.torch.autocast("cuda" if self.cuda else "cpu", dtype=kinds[self.order["precision"]])

    def step(self, communicate=True):
        torch, by_hand = self.torch, self.order["strategy"] != "ddp"
        # Views of DDP's buckets stay; what is added to must be zero.
        self.optimizer.zero_grad(set_to_none=by_hand)
        quiet = contextlib.nullcontext() if by_hand or communicate else self.call.no_sync()
        if by_hand and communicate:
            self.averager.begin()
        with quiet:
            with self.autocast():
                logits = self.call(self.tokens)
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.targets.flatten())
            self.scaler.scale(loss).backward()
        if by_hand and communicate:
            self._finish()
        self.loss = loss.detach()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _finish(self):
        if self.cuda:
            before, after = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            self.averager.finish()
            after.record()
            self.exposed.append((before, after))
        else:
            begin = time.perf_counter_ns()
            self.averager.finish()
            self.exposed.append((time.perf_counter_ns() - begin) * 1e-6)

    def weights(self):
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().flatten()[:65536].cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def measure(self):
        with warnings.catch_warnings(), precision(self.torch, self.order["precision"]):
            warnings.simplefilter("ignore")
            return self._measure()

    def _measure(self):
        torch = self.torch
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        self.build()
        self.own_ms = []
        samples = self.together(self.step)
        weights, loss = self.weights(), self.loss.item()
        peak = torch.cuda.max_memory_allocated() / MIB if self.cuda else None
        exposed = [e if isinstance(e, float) else e[0].elapsed_time(e[1]) for e in self.exposed]
        arrays = self.averager.arrays()
        comm = self.together(lambda: self.averager.communicate(arrays))
        self.own_ms = []
        local = self.together(lambda: self.step(False))
        del self.model, self.call, self.optimizer
        own = {"weights": weights, "peak_mem_mib": peak, "waited_ms": exposed,
               "own_local_step_ms": summarize(self.own_ms)["ms"]}
        if self.rank != 0:
            return own
        figures = {**own, "loss": loss,
                   "parameters": sum(p.numel() for b in self.averager.buckets for p in b)}
        samples.add_to(figures, "step")
        local_ms, comm_ms = (summarize(s.milliseconds)["ms"] for s in (local, comm))
        figures.update(comm_ms=comm_ms, local_step_ms=local_ms, comm_calls=self.averager.calls,
                       comm_bytes=self.averager.bytes)
        return figures


if __name__ == "__main__":
    main(DdpRow)
