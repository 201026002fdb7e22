"""What the sweep asks of torch, without PyTorch: a CPU, a version, an exception."""

import types

__version__ = "0.0.0+fake"
version = types.SimpleNamespace(cuda=None, git_version=None)
threads = 2


class OutOfMemoryError(RuntimeError):
    pass


def get_num_threads():
    return threads


def set_num_threads(number):
    global threads
    threads = number


backends = types.SimpleNamespace(
    cpu=types.SimpleNamespace(get_cpu_capability=lambda: "AVX2"),
    cuda=types.SimpleNamespace(is_built=lambda: False),
    cudnn=types.SimpleNamespace(is_available=lambda: False, version=lambda: None),
)
