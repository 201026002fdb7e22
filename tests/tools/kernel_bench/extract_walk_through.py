#!/usr/bin/env python3
"""extract_walk_through.py SOURCE FOLDER: the kernel that the README's walk-through adds, as FOLDER/scale.cuh, and
FOLDER/registry.def, the registry with the walk-through's line behind the others. Files that would not change stay."""
import pathlib
import re
import sys

source, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
section = (source / "README.md").read_text().partition("## Adding a kernel")[2].partition("\n## ")[0]
blocks = re.findall(r"```cpp\n(.*?)```", section, re.DOTALL)
kernel = [block for block in blocks if "namespace warpmeter::primer::scale::" in block]
line = [block for block in blocks if block.strip() == "WM_PRIMER_KERNEL(scale)"]
if len(kernel) != 1 or len(line) != 1:
    sys.exit("there is no single ```cpp block with the kernel `scale`, and no single one with its line of the registry")
folder.mkdir(parents=True, exist_ok=True)
for path, text in ((folder / "scale.cuh", kernel[0]),
                   (folder / "registry.def", (source / "kernels/primer/registry.def").read_text() + line[0])):
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
