"""What the scripts around the tools share: reading result files, choosing plots, writing pages. Standard library only.

results    load(path) -> ResultFile: every version of our JSON and JSON lines, whole or broken off
fields     what a field's name says: its unit, phase and statistic
"""
