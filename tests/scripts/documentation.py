"""What the documentation says, for the tests that hold the programs to it: README.md and the pages in docs/."""
import os
import pathlib
import re

SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])


def pages():
    return [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md"))]


def blocks(language):
    """The code blocks of a language, in the order of the pages."""
    return [block for page in pages()
            for block in re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)]


def commands(program):
    """The command lines that call a program ("scripts/run attn_bench"), from the program on, continued lines joined."""
    lines = [line for block in blocks("bash") for line in block.replace("\\\n", " ").splitlines()]
    return [found[1] for line in lines if (found := re.search(rf"(?:^|[|;&] *)({re.escape(program)}(?: .*)?)$", line))]


def is_accepted(command, result):
    """Whether a command that was tried with --dry-run has words that a program takes. One of GPU backends alone can say
    no more where there are not GPUs enough than that none of its configurations can run."""
    if result.returncode == 0:
        return result.stdout != ""
    backends = re.search(r"--backend (\S+)", command)
    return (backends is not None and set(backends[1].split(",")) <= {"nccl", "p2p", "auto"}
            and result.returncode == 2 and "nothing to measure: none of " in result.stderr)


def sections(page):
    """The names by which links find a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
