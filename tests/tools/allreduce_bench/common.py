"""What the tests of tools that start ranks share: running it, reading its rows, finding its ranks."""
import json
import os
import pathlib
import random
import socket
import subprocess
import time

# A test says itself which launcher its ranks have, also where one has started the test.
LAUNCHERS = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID",
             "SLURM_STEP_NUM_TASKS", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMIX_RANK")
for name in LAUNCHERS:
    os.environ.pop(name, None)

TOOL = os.environ.get("RANK_TOOL") or os.environ["ALLREDUCE_BENCH"]
SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])

#: Seconds after which something is taken to hang. No test depends on its length: a busy machine may take its time.
HANG = 300

# Small and quick: what is looked at is behaviour, not speed.
QUICK = ["--device", "cpu", "--steps", "3", "--warmup", "1"]


def run(*arguments, **keywords):
    keywords.setdefault("timeout", HANG)
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, check=False, **keywords)


def no_constants(name):
    raise ValueError(f"{name} is no JSON")


def document(*arguments, **keywords):
    result = run(*arguments, "--format", "json", **keywords)
    return json.loads(result.stdout, parse_constant=no_constants) if result.stdout else None, result


def children(pid):
    """Processes whose parent is `pid`, and theirs."""
    found = []
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        parents.setdefault(int(fields[1]), []).append((int(entry.name), fields[0]))
    todo = [pid]
    while todo:
        for child, state in parents.get(todo.pop(), []):
            if state not in "ZX":
                found.append(child)
            todo.append(child)
    return found


def ranks_of(pid):
    """{rank: process} of the tool with process number `pid`, by their environment."""
    ranks = {}
    for child in children(pid):
        try:
            environment = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            program = os.path.basename(os.readlink(f"/proc/{child}/exe"))
        except OSError:
            continue
        if program != os.path.basename(TOOL):
            continue
        for name in (b"WARPMETER_RANK=", b"OMPI_COMM_WORLD_RANK="):
            for entry in environment:
                if entry.startswith(name):
                    ranks[int(entry[len(name):])] = child
    return ranks


def wait_until(condition, seconds=HANG):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.002)
    raise AssertionError(f"waited {seconds} s in vain")


def free_port():
    """Under those that the kernel gives to connections: nobody gets it by chance before the test does."""
    generator = random.Random(os.getpid())
    while True:
        port = generator.randrange(10000, 30000)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def shared_segments():
    return {entry.name for entry in pathlib.Path("/dev/shm").iterdir()}
