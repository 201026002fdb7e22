"""What rows of attention in PyTorch share, of training and of serving."""

from .attention_torch import implementations

CHECK_WORK = {True: 1e12, False: 1e10}  # multiply-adds of the reference on a GPU and on the CPU
STATISTICS = ("_mean_ms", "_min_ms", "_p95_ms", "_p99_ms", "_stdev_ms", "_noise", "_n", "_stop")  # beside a phase's _ms


class AttentionRow:
    """A configuration and the implementation that it names."""

    def __init__(self, configuration):
        self._configuration = configuration
        self._implementation = implementations()[configuration.impl]

    def configuration(self):
        return self._configuration.fields()

    def option_values(self):
        return self._configuration.option_values()

    def unsupported(self, settings):
        return self._implementation.unsupported(self._configuration.problem, settings.is_cuda)
