#!/usr/bin/env python3
"""Statistics, stopping and timing: by hand, and against what attn_bench says of its own samples."""

import math
import types
import unittest

from common import ATTN_BENCH, run, strict
from warpmeter_peers import attention_case, attention_problem, ceilings, samples, sweep, timing, torch_row
from warpmeter_peers.samples import StoppingRule, percentile, summarize
from warpmeter_peers.settings import Settings
from warpmeter_peers.timing import CudaEventTimer, Interrupted, Phase, Sampler, SteadyTimer

STATISTICS = ("ms", "mean_ms", "min_ms", "p95_ms", "p99_ms", "stdev_ms", "noise", "n")


class Statistics(unittest.TestCase):
    def test_nearest_rank(self):
        ordered = [float(i) for i in range(1, 101)]
        for q, value in ((0.07, 7), (0.25, 25), (0.5, 50), (0.95, 95), (0.99, 99), (1.0, 100), (0.001, 1)):
            self.assertEqual(percentile(ordered, q), value)
        self.assertEqual(percentile([1.0, 2.0, 3.0], 0.95), 3.0)

    def test_summary(self):
        self.assertEqual(summarize([4.0, 1.0, 3.0, 2.0]),
                         {"ms": 2.5, "mean_ms": 2.5, "min_ms": 1.0, "p95_ms": 4.0, "p99_ms": 4.0,
                          "stdev_ms": math.sqrt(5 / 3), "noise": (3.0 - 1.0) / 2.5, "n": 4})

    def test_one_sample_has_no_deviation(self):
        self.assertEqual(summarize([0.1])["stdev_ms"], None)
        self.assertEqual(summarize([0.1])["noise"], 0)

    def test_equal_samples_are_exact(self):
        summary = summarize([0.1] * 7)
        self.assertEqual((summary["mean_ms"], summary["stdev_ms"], summary["noise"]), (0.1, 0.0, 0.0))

    @unittest.skipUnless(ATTN_BENCH, "attn_bench is not built")
    def test_as_attn_bench_has_it(self):
        document = strict(run(ATTN_BENCH, "--device", "cpu", "--impl", "flash", "--seq-len", "16,17,40", "--d-model",
                              "16,32", "--max-time", "0.05", "--samples", "--format", "json", "--no-check").stdout)
        self.assertEqual(len(document["rows"]), 6)
        for row in document["rows"]:
            for phase in ("fwd", "bwd"):
                taken = row[f"{phase}_samples_ms"]
                for name, value in summarize(taken).items():
                    self.assertAlmostEqual(row[f"{phase}_{name}"], value, delta=1e-12 * abs(value), msg=name)
                # Where it stopped for quiet, the rule here stops too, given the same samples and enough time.
                if row[f"{phase}_stop"] == "noise":
                    self.assertEqual(StoppingRule(None, 0.005, 0.05).after(taken, 0.049), "noise")


class Stopping(unittest.TestCase):
    def test_steps(self):
        rule = StoppingRule(3, 0.5, 1e-9)
        self.assertEqual([rule.after([1.0] * n, 100.0) for n in (1, 2, 3)], [None, None, "steps"])

    def test_five_samples_need_a_quarter_of_the_time(self):
        self.assertIsNone(StoppingRule(None, 0.005, 2.0).after([1.0] * 5, 0.49))
        self.assertEqual(StoppingRule(None, 0.005, 2.0).after([1.0] * 5, 0.5), "noise")
        self.assertIsNone(StoppingRule(None, 0.005, 2.0).after([1.0] * 4, 0.5))

    def test_thirty_samples_need_a_twentieth(self):
        self.assertIsNone(StoppingRule(None, 0.005, 2.0).after([1.0] * 30, 0.09))
        self.assertEqual(StoppingRule(None, 0.005, 2.0).after([1.0] * 30, 0.1), "noise")
        self.assertIsNone(StoppingRule(None, 0.005, 2.0).after([1.0] * 29, 0.1))

    def test_noisy_samples_end_with_the_time(self):
        noisy = [1.0, 2.0] * 20
        self.assertIsNone(StoppingRule(None, 0.005, 2.0).after(noisy, 1.99))
        self.assertEqual(StoppingRule(None, 0.005, 2.0).after(noisy, 2.0), "max_time")

    def test_looks_less_and_less_often(self):
        rule, noisy = StoppingRule(None, 0.005, 2.0), [1.0, 2.0] * 500
        looks = [0]
        original = samples.noise_of

        def counted(ordered):
            looks[0] += 1
            return original(ordered)

        samples.noise_of = counted
        try:
            for n in range(1, 1001):
                rule.after(noisy[:n], 1.0)
        finally:
            samples.noise_of = original
        self.assertLess(looks[0], 100)
        self.assertGreater(looks[0], 20)


class Clock:
    """A clock that only work moves."""

    def __init__(self):
        self.ns, self.slept_ns = 0, []

    def now_ns(self):
        return self.ns

    def pass_ms(self, milliseconds):
        self.ns += int(milliseconds * 1e6)

    def sleep_ns(self, duration_ns):
        self.slept_ns.append(duration_ns)
        self.ns += int(duration_ns)


class ScriptedTimer:
    least_warm_up, shortest_sample_ns = 0, 0

    def __init__(self, clock, readings, cost_ms=100.0):
        self._clock, self._readings, self._cost_ms = clock, readings, cost_ms
        self.runs = self.taken = 0

    def begin(self):
        pass

    def run(self, phase):
        self.runs += 1
        self._clock.pass_ms(self._cost_ms)

    def sample(self, phase, calls):
        self.taken += 1
        self._clock.pass_ms(self._cost_ms)
        return self._readings[min(self.taken, len(self._readings)) - 1]


def settings(**values):
    defaults = {"steps": None, "max_noise": 0.005, "max_time_s": 2.0, "duty_cycle": 1.0, "warmup": 0, "cache": "hot"}
    return types.SimpleNamespace(**{**defaults, **values})


class Sampling(unittest.TestCase):
    def measure(self, readings, cost_ms=100.0, **values):
        clock = Clock()
        timer = ScriptedTimer(clock, readings, cost_ms)
        taken = Sampler(timer, settings(**values), clock=clock).measure(Phase(lambda: None))
        return taken, timer

    def test_fixed_steps(self):
        taken, timer = self.measure([1.0, 2.0], steps=7, warmup=3)
        self.assertEqual((len(taken.milliseconds), taken.stop, timer.runs), (7, "steps", 3))

    def test_pauses_leave_samples_their_part_of_the_time(self):
        clock = Clock()
        taken = Sampler(ScriptedTimer(clock, [2.0, 3.0, 4.0]), settings(steps=3, duty_cycle=0.25), clock=clock).measure(
            Phase(lambda: None))
        self.assertEqual((taken.milliseconds, clock.slept_ns), ([2.0, 3.0, 4.0], [6e6, 9e6]))

    def test_quiet_samples_stop_after_a_quarter(self):
        taken, _ = self.measure([1.0])
        self.assertEqual((len(taken.milliseconds), taken.stop), (5, "noise"))

    def test_a_lucky_start_does_not_decide(self):
        taken, _ = self.measure([1.0] * 5 + [2.0, 3.0] * 100, cost_ms=10.0)
        self.assertEqual(taken.stop, "max_time")

    def test_one_sample_is_taken_however_long(self):
        taken, _ = self.measure([5000.0], cost_ms=5000.0)
        self.assertEqual((len(taken.milliseconds), taken.stop), (1, "max_time"))

    def test_warm_up_ends_with_max_time(self):
        _, timer = self.measure([1.0], cost_ms=1000.0, warmup=100)
        self.assertEqual(timer.runs, 2)

    def test_prepare_comes_before_every_call(self):
        clock, calls = Clock(), []
        timer = ScriptedTimer(clock, [1.0])
        sampler = Sampler(timer, settings(steps=3, warmup=2), clock=clock)
        sampler.measure(Phase(lambda: None, lambda: calls.append("prepare")))
        self.assertEqual(len(calls), 5)

    def test_interrupted(self):
        clock = Clock()
        sampler = Sampler(ScriptedTimer(clock, [1.0]), settings(steps=3), lambda: True, clock)
        with self.assertRaises(Interrupted):
            sampler.measure(Phase(lambda: None))

    def test_short_calls_are_repeated_within_a_sample(self):
        clock = Clock()
        clock.now_ns = lambda: clock.ns  # ticks of 1 ns come with each call below
        timer = SteadyTimer.__new__(SteadyTimer)
        timer._clock, timer._flush, timer._synchronize, timer._tick_ns = clock, None, lambda: None, 1
        timer.shortest_sample_ns = 10_000

        def work():
            clock.ns += 500

        taken = Sampler(timer, settings(steps=4, warmup=1), clock=clock).measure(Phase(work))
        self.assertGreaterEqual(taken.calls_per_sample, 20)
        self.assertEqual(taken.milliseconds, [0.0005] * 4)

    def test_nothing_is_repeated_where_that_would_change_the_work(self):
        for values, prepare in (({"cache": "cold"}, None), ({}, lambda: None)):
            clock = Clock()
            timer = ScriptedTimer(clock, [1e-6])
            timer.shortest_sample_ns = 10_000
            taken = Sampler(timer, settings(steps=2, **values), clock=clock).measure(Phase(lambda: None, prepare))
            self.assertEqual(taken.calls_per_sample, 1)

    def test_figures(self):
        taken, figures = samples.Samples(), {}
        taken.milliseconds, taken.stop, taken.calls_per_sample = [1.0, 2.0, 3.0], "noise", 4
        taken.add_to(figures, "bwd")
        self.assertEqual(list(figures), [f"bwd_{name}" for name in STATISTICS]
                         + ["bwd_stop", "bwd_samples_ms", "bwd_calls_per_sample"])


class FakeStream:
    """A stream of a device whose kernels run one after another, driven by the host's clock."""

    def __init__(self, clock, launch_ns=10_000):
        self.clock, self.launch_ns, self.busy_until = clock, launch_ns, 0
        self.log, self.cycles_per_ns = [], 2.0
        stream = self

        class Event:
            def __init__(self, enable_timing=False):
                self.at = None

            def record(self):
                self.at = max(stream.busy_until, stream.clock.ns)

            def query(self):
                return self.at <= stream.clock.ns

            def elapsed_time(self, other):
                return (other.at - self.at) * 1e-6

        self.Event = Event

    def launch(self, name, duration_ns):
        self.clock.ns += self.launch_ns
        self.log.append(name)
        self.busy_until = max(self.busy_until, self.clock.ns) + duration_ns

    def _sleep(self, cycles):
        self.launch("hold", cycles / self.cycles_per_ns)

    def synchronize(self):
        self.clock.ns = int(max(self.clock.ns, self.busy_until))


class DeviceTime(unittest.TestCase):
    def timer(self, **values):
        clock = Clock()
        stream = FakeStream(clock, **values)
        warnings = []
        timer = CudaEventTimer(types.SimpleNamespace(cuda=stream), lambda: stream.launch("flush", 30_000),
                               warnings.append, clock)
        stream.log.clear()
        return timer, stream, warnings

    def test_launch_latency_stays_out(self):
        timer, stream, warnings = self.timer(launch_ns=10_000)

        def work():
            for _ in range(8):
                stream.launch("kernel", 2_000)

        timer.run(Phase(work))
        self.assertAlmostEqual(timer.sample(Phase(work), 1), 8 * 0.002, places=6)
        # The flush is before the hold and both are before the work.
        self.assertEqual(stream.log[8:], ["flush", "hold"] + ["kernel"] * 8)
        self.assertEqual(warnings, [])

    def test_a_hold_that_was_too_short_is_seen_and_repeated(self):
        timer, stream, warnings = self.timer(launch_ns=10_000)
        prepared = []
        work = Phase(lambda: [stream.launch("kernel", 2_000) for _ in range(100)], lambda: prepared.append(1))
        # Without warm-up nothing is known of the work: the first hold of 50 us ends before 100 launches of 10 us.
        self.assertAlmostEqual(timer.sample(work, 1), 100 * 0.002, places=6)
        self.assertGreaterEqual(stream.log.count("hold"), 2)
        self.assertEqual(len(prepared), stream.log.count("hold") - 1)
        self.assertEqual(warnings, [])

    def test_work_that_waits_for_the_device_cannot_be_held(self):
        timer, stream, warnings = self.timer(launch_ns=10_000)

        def work():
            stream.launch("kernel", 2_000)
            stream.synchronize()
            stream.launch("kernel", 2_000)

        reading = timer.sample(Phase(work), 1)
        self.assertEqual(len(warnings), 1)
        self.assertIn("could not be held", warnings[0])
        self.assertGreater(reading, 0.004)
        holds = stream.log.count("hold")
        timer.sample(Phase(work), 1)
        self.assertEqual(stream.log.count("hold"), holds)  # no further attempt in this phase
        timer.begin()
        self.assertTrue(timer._may_hold)

    def test_never_zero(self):
        timer, _, _ = self.timer()
        self.assertEqual(timer.sample(Phase(lambda: None), 1), timing.EVENT_RESOLUTION_MS)


class FakeBuffer:
    def __init__(self, log, elements, dtype):
        self._log, self.bytes = log, elements * {"uint8": 1, "float32": 4}[dtype]

    def zero_(self):
        self._log.append(("write", self.bytes))


class ColdCaches(unittest.TestCase):
    """On GPUs, with a torch that notes what is asked of it."""

    L2 = 50 << 20

    def torch(self, log, total=140 << 30):
        reserved = []

        def allocate(shape, dtype, device):
            buffer = FakeBuffer(log, math.prod(shape) if isinstance(shape, tuple) else shape, dtype)
            reserved.append(buffer.bytes)
            return buffer

        stream = FakeStream(Clock())
        stream.set_device = lambda device: None
        stream.get_device_properties = lambda device: types.SimpleNamespace(L2_cache_size=self.L2, total_memory=total)
        stream.memory_reserved = lambda: sum(reserved)
        stream.set_per_process_memory_fraction = lambda share, device: log.append(("limit", share * total))
        return types.SimpleNamespace(
            cuda=stream, uint8="uint8", float32="float32", empty=allocate, zeros=allocate,
            device=lambda name: types.SimpleNamespace(index=0),
            amax=lambda buffer, dim, out: log.append(("read", buffer.bytes)))

    def test_a_flush_reads_what_nobody_writes_last(self):
        log = []
        flush = timing.CudaFlush(self.torch(log), "cuda:0")
        log.clear()
        flush()
        # Were the read first, or of the buffer that was filled, lines of the flush would still be to be written back.
        self.assertEqual(log, [("write", self.L2), ("read", 3 * self.L2)])

    def test_the_memory_limit_is_for_rows(self):
        for cache, buffers in (("cold", 4 * self.L2 + 4), ("hot", 0)):
            log = []
            torch = self.torch(log)
            session = sweep.Session(torch, Settings(device="cuda:0", cache=cache, memory_limit=1 << 30, timer="wall"),
                                    types.SimpleNamespace(warning=lambda text: None), None)
            session.prepare()
            session.limit_memory(False)
            session.limit_memory()
            limits = [int(value + 0.5) for kind, value in log if kind == "limit"]
            self.assertEqual(limits, [(1 << 30) + buffers, 140 << 30, (1 << 30) + buffers], cache)

    def test_the_settings_say_how(self):
        for device, cache, flush in (("cuda:0", "cold", "clean"), ("cuda:0", "hot", None), ("cpu", "cold", None)):
            described = Settings(device=device, cache=cache).describe()
            self.assertEqual((described["cache"], described["cache_flush"]), (cache, flush))


class Figures(unittest.TestCase):
    def test_memory_is_what_the_row_added(self):
        counts = {"now": 100 << 20, "peak": 100 << 20}

        def allocate(size):
            counts["now"] += size
            counts["peak"] = max(counts["peak"], counts["now"])

        cuda = types.SimpleNamespace(memory_allocated=lambda: counts["now"],
                                     max_memory_allocated=lambda: counts["peak"],
                                     reset_peak_memory_stats=lambda: counts.update(peak=counts["now"]))
        memory = torch_row.Memory(types.SimpleNamespace(cuda=cuda), True)
        allocate(30 << 20)
        allocate(-20 << 20)
        self.assertEqual((memory.current(), memory.peak()), (10.0, 30.0))
        memory.reset_peak()
        allocate(5 << 20)
        self.assertEqual(memory.peak(), 15.0)

    def test_the_cpu_has_no_memory_figures(self):
        memory = torch_row.Memory(None, False)
        memory.reset_peak()
        self.assertEqual((memory.current(), memory.peak()), (None, None))
        self.assertEqual([torch_row.larger(*pair) for pair in ((None, 1), (2, None), (1, 2), (None, None))],
                         [1, 2, 2, None])

    def test_rates_and_bounds(self):
        limits = types.SimpleNamespace(matmul_tflops=lambda dtype: 10.0, copy_gbps=lambda: 1000.0)
        figures = {"fwd_ms": 2.0}
        ceilings.add_rates(figures, "fwd", 1e10, 1e9, "fp32", limits)  # 1 ms of products, 1 ms of bytes
        self.assertEqual((figures["fwd_tflops"], figures["fwd_gbps"], figures["fwd_bound_share"]), (5.0, 500.0, 0.5))
        self.assertEqual(figures["fwd_bound"], "memory")
        ceilings.add_rates(figures, "fwd", 1.5e10, 1e9, "fp32", limits)
        self.assertEqual((figures["fwd_bound"], figures["fwd_bound_share"]), ("compute", 0.75))

    def test_without_a_ceiling_there_is_no_bound(self):
        limits = types.SimpleNamespace(matmul_tflops=lambda dtype: None, copy_gbps=lambda: 1000.0)
        figures = {"bwd_ms": 2.0}
        ceilings.add_rates(figures, "bwd", 1e10, 1e9, "fp32", limits)
        self.assertEqual((figures["bwd_tflops"], figures["bwd_bound"], figures["bwd_bound_share"]), (5.0, None, None))

    def test_predicted_bytes(self):
        """What must be there at once, in tensors of 1 KiB and scores of 4 KiB."""
        problem = attention_problem.Problem(1, 1, 1, 32, 32, 8, "fp32")
        tensor, scores, mask, lse = 1024, 4096, 1024, 128

        def predicted(impl, backward=True):
            configuration = attention_problem.Configuration(impl, problem, True, backward)
            found = attention_case.AttentionCase(configuration).predict()
            return found.first_phase_bytes, found.peak_bytes

        forward = 4 * tensor + mask + 2 * scores
        self.assertEqual(predicted("pytorch_eager"), (forward, 8 * tensor + mask + 2 * scores))
        self.assertEqual(predicted("pytorch_eager", False), (forward, forward))
        self.assertEqual(predicted("pytorch_sdpa_flash"), (4 * tensor + lse, 8 * tensor + lse))


if __name__ == "__main__":
    unittest.main(verbosity=2)
