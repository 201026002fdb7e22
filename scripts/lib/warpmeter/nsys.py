"""scripts/nsys_profile: a tool under Nsight Systems, then its tables.

What nsys is asked for, and why:
    --trace=cuda,nvtx,osrt        kernels, the suite's ranges, and what the host waits for
    --sample=none                 no CPU sampling: its interrupts stand in the times, and it needs rights
    --cpuctxsw=none               nor context switches, for the same reasons
    --cuda-memory-usage=true      only with --memory: it costs time at each allocation
    --capture-range=nvtx          only with --range: nothing is recorded before the first range of that name opens, nor
                                  after it closes, so that start-up and warm-up stay out
    NSYS_NVTX_PROFILER_REGISTER_ONLY=0
                                  because the suite's range names are plain strings, not registered ones
    --output=..._rankR            several ranks started by mpirun, srun or torchrun write a file each
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys

#: The tables, and what nsys called them before 2023.
REPORTS = {"nvtx_sum": "nvtxsum", "nvtx_kern_sum": "nvtxkernsum", "cuda_gpu_kern_sum": "gpukernsum"}
#: Where launchers say which rank a process is.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK", "WARPMETER_RANK")
#: Where nsys is found when it is not on PATH.
USUAL_PLACES = ("/usr/local/cuda/bin/nsys", "/opt/nvidia/nsight-systems/bin/nsys", "/usr/lib/nsight-systems/bin/nsys")
BUILD_FOLDERS = ("build/bin", "build-dev/bin")

_EPILOG = """examples:
  scripts/nsys_profile attn_bench --impl flash --seq-len 4096 --steps 10 --no-check
  scripts/nsys_profile --range ATTN_FLASH_BWD -o bwd.nsys-rep attn_bench --impl flash --seq-len 4096 --steps 1
  mpirun -n 4 scripts/nsys_profile allreduce_bench --backend mpi

The report stays beside the tables, for nsys-ui. TOOL is a program of the suite, which build/bin has, or any program.
Few --steps keep the report small; the tools see the profiler and do without the kernel that holds launches back.

Exit status: the tool's own; 2 for bad usage; 3 where nsys is not installed; 1 when nsys itself fails.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(f"{message}; scripts/nsys_profile --help lists the options")


def fail(message, status=2):
    print(f"scripts/nsys_profile: {message}", file=sys.stderr)
    raise SystemExit(status)


def say(message):
    print(f"scripts/nsys_profile: {message}", file=sys.stderr)


def parse_arguments(arguments):
    parser = _Parser(
        prog="scripts/nsys_profile",
        usage="scripts/nsys_profile [options] TOOL [ARGS...]",
        description="Runs a tool under Nsight Systems and prints the tables of NVTX ranges, of the kernels in each "
        "range, and of all kernels.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the report (default: TOOL.nsys-rep, TOOL_rankR.nsys-rep under a launcher); replaced when it is there",
    )
    parser.add_argument("--range", metavar="NAME", help="record only inside the first NVTX range of this name")
    parser.add_argument("--memory", action="store_true", help="also record device memory in use")
    parser.add_argument("--nsys", metavar="PROGRAM", default="nsys", help="which nsys (default: the one on PATH)")
    parser.add_argument("--dry-run", action="store_true", help="print the nsys commands instead of running them")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="TOOL", help="the program and its arguments")
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        options.command = options.command[1:]
    if not options.command:
        parser.error("which TOOL to profile is missing")
    if options.range is not None and not re.fullmatch(r"[^@|]+", options.range):
        parser.error(f"--range '{options.range}': accepted are range names without '@' and '|'")
    return options


def find_nsys(name):
    """Its path; exits with 3 where it is not there."""
    found = shutil.which(name)
    if not found and name == "nsys":
        found = next((place for place in USUAL_PLACES if os.access(place, os.X_OK)), None)
    if not found:
        fail(
            f"{name} was not found: install Nsight Systems (package nsight-systems-cli, or developer.nvidia.com), or "
            "name it with --nsys",
            3,
        )
    return found


def find_tool(name):
    """A program of the suite by name, from its build folder; else whatever the shell would run."""
    if os.sep not in name:
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
        for folder in BUILD_FOLDERS:
            path = os.path.join(root, folder, name)
            if os.access(path, os.X_OK):
                return path
    found = shutil.which(name)
    if not found:
        fail(f"'{name}' is no program: build it (scripts/run {name} --version), or give its path")
    return found


def rank_variable(environment):
    """The variable by which this process knows its rank, or None."""
    return next((name for name in RANK_VARIABLES if environment.get(name, "").isdigit()), None)


def output_of(options, variable, environment):
    """(what nsys is told, the file that it writes). The rank goes in before the ending."""
    name = options.output or os.path.basename(options.command[0])
    stem = name[: -len(".nsys-rep")] if name.endswith(".nsys-rep") else name
    if variable and "%q{" not in stem:
        stem += f"_rank%q{{{variable}}}"
    written = re.sub(r"%q\{(\w+)\}", lambda match: environment.get(match.group(1), ""), stem)
    written = written.replace("%h", os.uname().nodename).replace("%p", "")
    return stem, written + ".nsys-rep"


def profile_command(nsys, options, stem, tool):
    command = [nsys, "profile", "--trace=cuda,nvtx,osrt", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true"]
    command += ["--stats=false", "--show-output=true", f"--output={stem}"]
    if options.memory:
        command.append("--cuda-memory-usage=true")
    if options.range is not None:
        command += ["--capture-range=nvtx", f"--nvtx-capture={options.range}", "--capture-range-end=stop"]
        command.append("--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0")
    return [*command, tool, *options.command[1:]]


def stats_command(nsys, report, file):
    return [nsys, "stats", "--report", report, "--format", "table", "--force-export=true", file]


def shell(command):
    return " ".join(shlex.quote(word) for word in command)


def run(command, **keywords):
    """(exit status, stdout, stderr). Ctrl-C is the child's, which ends by itself and still writes its report."""
    try:
        with subprocess.Popen(command, **keywords) as process:
            while True:
                try:
                    out, err = process.communicate()
                    return process.returncode, out, err
                except KeyboardInterrupt:
                    continue
    except OSError as error:
        fail(f"{command[0]} cannot be started: {error.strerror}", 1)


def print_tables(nsys, file):
    """Returns whether every table came."""
    good = True
    for report, old_name in REPORTS.items():
        for name in (report, old_name):
            command = stats_command(nsys, name, file)
            status, out, err = run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
            if "could not be found" not in out + err:
                break
        if status != 0 or "could not be found" in out + err:
            why = next((line.strip() for line in (err + out).splitlines() if line.strip()), "no reason given")
            say(f"no table {report}: {why}")
            good = False
            continue
        lines = [line.rstrip() for line in out.splitlines() if not line.startswith(("Processing ", "Generating "))]
        body = "\n".join(lines).strip("\n")
        print(f"{report}:\n{body or 'nothing was recorded'}\n", flush=True)
    return good


def main(arguments=None):
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    nsys = find_nsys(options.nsys)
    tool = find_tool(options.command[0])
    stem, file = output_of(options, rank_variable(os.environ), os.environ)
    command = profile_command(nsys, options, stem, tool)
    if options.dry_run:
        for each in (command, *(stats_command(nsys, report, file) for report in REPORTS)):
            print(shell(each))
        return 0
    folder = os.path.dirname(file) or "."
    if not os.path.isdir(folder):
        fail(f"--output '{options.output}': there is no folder '{folder}'")
    if os.path.exists(file):
        os.unlink(file)  # an older run's report must not be taken for this one's
    status = run(command)[0]
    if status < 0:
        status = 128 - status
    if not os.path.exists(file):
        fail(
            f"nsys wrote no report (its status was {status})"
            + (f"; was there a range '{options.range}'?" if options.range is not None else ""),
            status or 1,
        )
    if status:
        say(f"the tool ended with status {status}; the tables are of what it did until then")
    tables = print_tables(nsys, file)
    say(f"report: {file}")
    return status or (0 if tables else 1)
