"""What the PyTorch peers share: the suite's option grammar, statistics, timing, sweep and result files, in Python.

The peers measure what a user would run in PyTorch today for the same work, by the same rules as the C++ tools, so that
scripts/report and scripts/compare take their files as they are. Each module names the C++ file whose rule it follows.
torch is imported only where something is measured.
"""
