"""Samples of a phase by the suite's rules: warm-up, cold cache, launch latency kept out, adaptive stop.

As tools/harness/sampler.cpp and detail/event_timer.cpp, but for two things that PyTorch does not offer: the stream is
held by a kernel that spins for a while instead of one that the host releases, and there is no clock probe, so that the
throttle rule is left out.
"""

import math
import time

from .samples import Samples, StoppingRule

SHORTEST_SAMPLE_NS, TICKS_IN_SAMPLE, MOST_CALLS = 10_000, 100, 1_000_000
EVENT_RESOLUTION_MS = 0.0005


class Interrupted(Exception):
    """Ctrl-C came; unwinds to the sweep."""


class Phase:
    """`enqueue` does the work; `prepare` runs before every call, outside the timed window."""

    def __init__(self, enqueue, prepare=None):
        self.enqueue, self.prepare = enqueue, prepare


class SteadyClock:
    now_ns = staticmethod(time.perf_counter_ns)

    @staticmethod
    def sleep_ns(duration_ns):
        time.sleep(duration_ns * 1e-9)


def measure_tick(clock):
    """The smallest step that the clock shows, of a few."""
    least = math.inf
    for _ in range(16):
        start = now = clock.now_ns()
        for _ in range(100_000):  # a clock that stands still is given up on
            now = clock.now_ns()
            if now != start:
                break
        if now == start:
            break
        least = min(least, now - start)
    return 1 if least is math.inf else max(least, 1)


class SteadyTimer:
    """The host's clock around calls that `synchronize` completes."""

    least_warm_up = 0

    def __init__(self, clock=SteadyClock, synchronize=None, flush=None):
        self._clock, self._flush = clock, flush
        self._synchronize = synchronize or (lambda: None)
        self._tick_ns = measure_tick(clock)
        # On a GPU a repeated call would overlap its launches with the last one's work: another quantity.
        self.shortest_sample_ns = 0 if synchronize else max(SHORTEST_SAMPLE_NS, TICKS_IN_SAMPLE * self._tick_ns)

    def begin(self):
        pass

    def run(self, phase):
        phase.enqueue()
        self._synchronize()

    def sample(self, phase, calls):
        if self._flush:
            self._flush()
        self._synchronize()
        begin = self._clock.now_ns()
        for _ in range(calls):
            phase.enqueue()
        self._synchronize()
        return max(self._clock.now_ns() - begin, self._tick_ns) * 1e-6


class CudaEventTimer:
    """Events on the device's timeline. A spinning kernel goes ahead of the first event and holds the stream while the
    work is enqueued; whether it held long enough is seen from the first event, and a sample that began too early is
    taken again behind a longer one."""

    least_warm_up = 1  # lazy loading
    shortest_sample_ns = 0
    FIRST_HOLD_NS, LONGEST_HOLD_NS = 50_000, 200_000_000

    def __init__(self, torch, flush=None, warn=None, clock=SteadyClock):
        self._cuda, self._flush, self._clock = torch.cuda, flush, clock
        self._warn = warn or (lambda text: None)
        self._first, self._last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._cycles_per_ns = self._calibrate()
        self.begin()

    def begin(self):
        self._may_hold, self._hold_ns = True, self.FIRST_HOLD_NS

    def _calibrate(self):
        cycles = 4_000_000  # about two milliseconds
        for _ in range(2):  # the first loads the kernel
            self._first.record()
            self._cuda._sleep(cycles)
            self._last.record()
            self._cuda.synchronize()
        return cycles / max(self._first.elapsed_time(self._last) * 1e6, 1.0)

    def run(self, phase):
        begin = self._clock.now_ns()
        phase.enqueue()
        enqueue_ns = self._clock.now_ns() - begin
        self._cuda.synchronize()
        # The last warm-up call counts: the first ones load kernels, or compile them.
        self._hold_ns = min(max(2 * enqueue_ns, self.FIRST_HOLD_NS), self.LONGEST_HOLD_NS)

    def sample(self, phase, calls):
        while True:
            if self._flush:
                self._flush()
            self._cuda.synchronize()
            if self._may_hold:
                self._cuda._sleep(int(self._hold_ns * self._cycles_per_ns))
            self._first.record()
            for _ in range(calls):
                phase.enqueue()
            self._last.record()
            began_early = self._may_hold and self._first.query()
            self._cuda.synchronize()
            if not began_early:
                # 0 would be below what an event tells: an upper bound instead.
                return max(self._first.elapsed_time(self._last), EVENT_RESOLUTION_MS)
            if self._hold_ns >= self.LONGEST_HOLD_NS:
                self._may_hold = False
                self._warn("the stream could not be held while a phase was enqueued (it waits for the device in "
                           "between), so launch overhead is in its device time")
            self._hold_ns = min(2 * self._hold_ns, self.LONGEST_HOLD_NS)
            if phase.prepare:
                phase.prepare()


class Sampler:
    def __init__(self, timer, settings, interrupted=None, clock=SteadyClock):
        self._timer, self._settings, self._clock = timer, settings, clock
        self._interrupted = interrupted or (lambda: False)

    def _seconds_since(self, start_ns):
        return (self._clock.now_ns() - start_ns) * 1e-9

    def _ready(self, phase):
        if self._interrupted():
            raise Interrupted
        if phase.prepare:
            phase.prepare()

    def _warm_up(self, phase, count):
        """The shortest call's time in ns, as far as warm-up can tell."""
        least, start, shortest = self._timer.least_warm_up, self._clock.now_ns(), math.inf
        for call in range(max(count, least)):
            self._ready(phase)
            begin = self._clock.now_ns()
            self._timer.run(phase)
            shortest = min(shortest, self._clock.now_ns() - begin)
            if call + 1 >= least and self._seconds_since(start) >= self._settings.max_time_s:
                break
        return shortest

    def _choose_calls(self, phase, warm_call_ns):
        """Calls that make a sample long enough for the clock, and a first sample where one call was."""
        shortest = self._timer.shortest_sample_ns
        if shortest <= 0 or phase.prepare or self._settings.cache == "cold":
            return 1, None
        calls, start = 1, self._clock.now_ns()
        while True:
            self._ready(phase)
            reading = self._timer.sample(phase, calls)
            sample_ns = reading * 1e6
            long_enough = sample_ns >= shortest and (calls > 1 or warm_call_ns >= shortest)
            if long_enough or calls >= MOST_CALLS or self._seconds_since(start) >= self._settings.max_time_s:
                return calls, reading if long_enough and calls == 1 else None
            wanted = 1.2 * shortest / max(min(sample_ns / calls, warm_call_ns), 1.0)
            calls = min(MOST_CALLS, math.ceil(min(max(wanted, 2 * calls), 10 * calls)))

    def measure(self, phase):
        self._timer.begin()
        settings = self._settings
        calls, first = self._choose_calls(phase, self._warm_up(phase, settings.warmup))
        samples = Samples()
        samples.calls_per_sample = calls
        rule = StoppingRule(settings.steps, settings.max_noise, settings.max_time_s)
        start = self._clock.now_ns()
        while True:
            if first is None:
                self._ready(phase)
                first = self._timer.sample(phase, calls)
            samples.milliseconds.append(first / calls)
            first = None
            reason = rule.after(samples.milliseconds, self._seconds_since(start))
            if reason:
                samples.stop = reason
                return samples
            if settings.duty_cycle < 1:
                self._clock.sleep_ns(samples.milliseconds[-1] * calls * 1e6 * (1 / settings.duty_cycle - 1))


class CudaFlush:
    """Fills a buffer as large as the L2, then reads three times as much that nobody writes, so that a sample does not
    begin with a cache full of lines to write back. As tools/harness/cuda/cuda_timers.hpp."""

    CLEAN_CACHES = 3

    def __init__(self, torch, device):
        size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or 64 << 20
        self._torch = torch
        self._buffer = torch.empty(size, dtype=torch.uint8, device=device)
        self._clean = torch.zeros(self.CLEAN_CACHES * size // 4, dtype=torch.float32, device=device)
        self._largest = torch.empty((), dtype=torch.float32, device=device)
        self()  # loads the kernels

    def __call__(self):
        self._buffer.zero_()
        self._torch.amax(self._clean, dim=0, out=self._largest)


class CpuFlush:
    """Reads a buffer twice as large as the last-level cache, on every thread."""

    def __init__(self, torch, cache_bytes, available_bytes):
        size = max(1 << 20, min(2 * (cache_bytes or 32 << 20), available_bytes // 8))
        # Pages never written all map to one page of zeros, which fits in any cache.
        self._buffer = torch.full((size // 8,), 1, dtype=torch.int64)

    def __call__(self):
        self._buffer.sum()


def make_timer(torch, settings, machine, warn):
    cold = settings.cache == "cold"
    if not settings.is_cuda:
        flush = CpuFlush(torch, machine.cache_bytes, machine.available_bytes()) if cold else None
        return SteadyTimer(flush=flush)
    flush = CudaFlush(torch, settings.device) if cold else None
    if settings.timer == "wall":
        return SteadyTimer(synchronize=torch.cuda.synchronize, flush=flush)
    return CudaEventTimer(torch, flush, warn)
