"""What the device can do at best, by PyTorch's own operations, and what of it a phase reached.

As tools/harness/ceilings.cpp: a large matmul on random data for the arithmetic in use, and a copy; each once a run,
when first needed; the least time of some samples.
"""

import time

FLOPS_PER_MS, BYTES_PER_MS = 1e9, 1e6  # of 1 TFLOP/s, of 1 GB/s
_PATHS = {"fp32": "fp32", "tf32": "tf32", "bf16": "16bit", "fp16": "16bit"}


class Ceilings:
    def __init__(self, torch, settings, precision):
        self._torch, self._settings, self._precision = torch, settings, precision
        self.measured = {}

    def matmul_tflops(self, dtype):
        path = _PATHS[dtype]
        return self._once(f"matmul_{path}_tflops", lambda: self._matmul(dtype))

    def copy_gbps(self):
        return self._once("copy_gbps", self._copy)

    def _once(self, name, measure):
        if name not in self.measured:
            try:
                self.measured[name] = measure()
            except (RuntimeError, MemoryError):  # no room for the buffers now
                return None
        return self.measured[name]

    def _least_ms(self, work):
        """Calls one after another, so that launches are hidden behind the work; on the CPU the quickest call."""
        torch, cuda = self._torch, self._settings.is_cuda
        work()
        if not cuda:
            least, until = float("inf"), time.perf_counter() + 0.3
            while time.perf_counter() < until or least == float("inf"):
                begin = time.perf_counter()
                work()
                least = min(least, time.perf_counter() - begin)
            return least * 1e3
        least, begin, end = float("inf"), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(10):
            torch.cuda.synchronize()
            begin.record()
            for _ in range(3):
                work()
            end.record()
            torch.cuda.synchronize()
            least = min(least, begin.elapsed_time(end) / 3)
        return least

    def _matmul(self, dtype):
        torch, settings = self._torch, self._settings
        size = 8192 if settings.is_cuda else 1536
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype, torch.float32)
        with torch.no_grad(), self._precision(dtype):
            a, b = (torch.randn(size, size, device=settings.device, dtype=kind) for _ in range(2))
            out = torch.empty(size, size, device=settings.device, dtype=kind)
            return 2.0 * size**3 / self._least_ms(lambda: torch.matmul(a, b, out=out)) / FLOPS_PER_MS

    def _copy(self):
        torch, settings = self._torch, self._settings
        size = 1 << 30 if settings.is_cuda else 1 << 28
        source = torch.ones(size // 8, dtype=torch.int64, device=settings.device)
        target = torch.zeros_like(source)
        return 2.0 * size / self._least_ms(lambda: target.copy_(source)) / BYTES_PER_MS


def add_rates(figures, phase, work_flops, work_bytes, dtype, ceilings):
    """_flops, _bytes, _tflops, _gbps, _bound and _bound_share of a phase whose _ms is there."""
    median_ms = figures[f"{phase}_ms"]
    compute, memory = ceilings.matmul_tflops(dtype), ceilings.copy_gbps()
    figures[f"{phase}_flops"], figures[f"{phase}_bytes"] = work_flops, work_bytes
    figures[f"{phase}_tflops"] = work_flops / (median_ms * FLOPS_PER_MS)
    figures[f"{phase}_gbps"] = work_bytes / (median_ms * BYTES_PER_MS)
    figures[f"{phase}_bound"] = figures[f"{phase}_bound_share"] = None
    if compute and memory:
        compute_ms, memory_ms = work_flops / (compute * FLOPS_PER_MS), work_bytes / (memory * BYTES_PER_MS)
        figures[f"{phase}_bound"] = "compute" if compute_ms > memory_ms else "memory"
        figures[f"{phase}_bound_share"] = max(compute_ms, memory_ms) / median_ms
