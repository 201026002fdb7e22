"""What the rows of every peer in PyTorch need: the products' precision, memory, seeds, element types."""

import contextlib

from .machine import MIB


@contextlib.contextmanager
def precision(torch, dtype):
    """fp32 products in full, or with operands rounded to tf32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Memory:
    """Peaks of PyTorch's caching allocator in MiB over what was held before the row: the flush buffer and cuBLAS's
    workspaces are in no figure. Nothing on the CPU, where PyTorch does not count."""

    def __init__(self, torch, is_cuda):
        self._cuda = torch.cuda if is_cuda else None
        self._before = self._cuda.memory_allocated() if is_cuda else 0

    def reset_peak(self):
        if self._cuda:
            self._cuda.reset_peak_memory_stats()

    def peak(self):
        return (self._cuda.max_memory_allocated() - self._before) / MIB if self._cuda else None

    def current(self):
        return (self._cuda.memory_allocated() - self._before) / MIB if self._cuda else None


def larger(a, b):
    return b if a is None else a if b is None else max(a, b)


def element_type(torch, dtype):
    """What values of a row's dtype are stored in."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype, torch.float32)


def seeded(torch, settings):
    """A generator of --seed on the row's device."""
    generator = torch.Generator(device=settings.device)
    generator.manual_seed(settings.seed)
    return generator
