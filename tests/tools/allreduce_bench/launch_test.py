#!/usr/bin/env python3
"""Ranks that a launcher starts: torchrun-like variables, mpirun, two hosts made of network namespaces; refusals."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from common import HANG, QUICK, TOOL, free_port, run, wait_until

AVAILABLE = run("--list").stdout
#: What Open MPI's launcher wants in a container. Its components leave memory behind when they are unloaded, and take
#: their own locks in two orders, which sanitizers would report.
MPIRUN = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "ASAN_OPTIONS": "detect_leaks=0",
          "TSAN_OPTIONS": "detect_deadlocks=0"}


def has(backend):
    return f"not here for two ranks: {backend}" not in AVAILABLE


def environment(**variables):
    return {**os.environ, **{name: str(text) for name, text in variables.items()}}


def start(rank, ranks, port, *arguments, prefix=(), host="127.0.0.1"):
    return subprocess.Popen([*prefix, TOOL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment(RANK=rank, WORLD_SIZE=ranks, MASTER_ADDR=host, MASTER_PORT=port))


class TorchrunLike(unittest.TestCase):
    def test_rank_0_leads_and_the_others_are_silent(self):
        port = free_port()
        backends = "shm,gloo" if has("gloo") else "shm"
        arguments = [*QUICK, "--backend", backends, "--sizes", "8,64KiB", "--format", "json"]
        # Rank 0 comes last: the others wait for it.
        processes = {rank: start(rank, 3, port, *arguments) for rank in (2, 1, 0)}
        texts = {rank: process.communicate(timeout=HANG) for rank, process in processes.items()}
        self.assertEqual([processes[rank].returncode for rank in range(3)], [0, 0, 0], texts)
        self.assertEqual([texts[1][0], texts[2][0], texts[1][1], texts[2][1]], [""] * 4)
        rows = json.loads(texts[0][0])["rows"]
        self.assertEqual([(row["world_size"], row["status"]) for row in rows],
                         [(3, "ok")] * (2 * len(backends.split(","))))

    def test_a_rank_that_dies_is_named_and_ends_the_others(self):
        port = free_port()
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "rows.jsonl")
            arguments = ["--device", "cpu", "--sizes", "8:4MiB:x2", "--max-noise", "0%", "--max-time", "0.2",
                         "--timeout", str(2 * HANG), "-o", str(file)]
            processes = {rank: start(rank, 2, port, *arguments) for rank in (0, 1)}
            wait_until(lambda: file.exists() and file.read_text().count('"status": "ok"') >= 2
                       or file.exists() and file.read_text().count('"status":"ok"') >= 2)
            processes[1].kill()
            _, stderr = processes[0].communicate(timeout=HANG)  # it does not wait for the timeout, which is longer
            processes[1].communicate(timeout=HANG)
            self.assertEqual(processes[0].returncode, 1, stderr)
            self.assertRegex(stderr, r"1 crashed.*rank 1")

    def test_refusals_are_one_line(self):
        port = free_port()
        for variables, arguments, status, words in (
                ({"RANK": 1}, [], 2, ["RANK is set and WORLD_SIZE is not"]),
                ({"WORLD_SIZE": 2}, [], 2, ["WORLD_SIZE is set and RANK is not"]),
                ({"RANK": 2, "WORLD_SIZE": 2}, [], 2, ["RANK=2 is no rank of WORLD_SIZE=2"]),
                ({"RANK": "a", "WORLD_SIZE": 2}, [], 2, ["RANK='a'"]),
                ({"RANK": 0, "WORLD_SIZE": 2}, [], 2, ["MASTER_ADDR", "--rendezvous"]),
                ({"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}, [], 2,
                 ["MASTER_PORT='x'"]),
                ({"RANK": 0, "WORLD_SIZE": 2}, ["--rendezvous", "nowhere"], 2, ["HOST:PORT"]),
                # No partner comes.
                ({"RANK": 0, "WORLD_SIZE": 3, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}, ["--timeout", "0.5"], 1,
                 ["ranks 1 and 2 of 3 have not come", str(port), "0.5 s"]),
                ({"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}, ["--timeout", "0.5"], 1,
                 ["rank 1 has not found rank 0", str(port)]),
                ({"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}, ["--world-size", "4"], 2,
                 ["--world-size '4'", "2 ranks"]),
                ({"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}, ["--isolate"], 2,
                 ["--isolate"]),
                ({"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}, ["--demo"], 2,
                 ["--demo"])):
            with self.subTest(variables=variables, arguments=arguments):
                result = run("--device", "cpu", *arguments, env=environment(**variables))
                self.assertEqual((result.returncode, result.stdout), (status, ""), result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)

    def test_a_launcher_that_tells_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            launcher = pathlib.Path(folder, "mpirun")
            launcher.symlink_to(shutil.which("python3"))
            code = ("import subprocess, sys; r = subprocess.run(sys.argv[1:], capture_output=True, text=True); "
                    "sys.stderr.write(r.stderr); sys.exit(r.returncode)")
            result = subprocess.run([str(launcher), "-c", code, TOOL, "--sizes", "8"], capture_output=True, text=True,
                                    env=environment(), timeout=HANG, check=False)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertIn("started by mpirun, which has told no rank", result.stderr)


@unittest.skipUnless(has("mpi") and shutil.which("mpirun"), "no MPI library or no mpirun")
class Mpirun(unittest.TestCase):
    FLAGS = {**MPIRUN, "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl": "self,vader"}

    def test_ranks_meet_through_the_library(self):
        result = subprocess.run(["mpirun", "-np", "3", TOOL, *QUICK, "--backend", "mpi,shm", "--sizes", "8,64KiB",
                                 "--format", "json"], capture_output=True, text=True, timeout=HANG, check=False,
                                env=environment(**self.FLAGS))
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = json.loads(result.stdout)["rows"]
        self.assertEqual([(row["target"], row["world_size"], row["status"]) for row in rows],
                         [(target, 3, "ok") for target in ("mpi-cpu", "shm-cpu") for _ in range(2)])


def namespaces_work():
    return (shutil.which("ip") and shutil.which("unshare") and os.geteuid() == 0 and
            subprocess.run(["unshare", "-n", "-u", "true"], capture_output=True, check=False).returncode == 0)


@unittest.skipUnless(namespaces_work(), "no network namespaces here (root and iproute2)")
class TwoHosts(unittest.TestCase):
    """Two network namespaces with a cable between: no loopback in common, no shared memory."""

    def setUp(self):
        tag = f"wm{os.getpid()}"
        self.spaces = [tag + "a", tag + "b"]
        self.addCleanup(self.remove)
        for space in self.spaces:
            self.ip("netns", "add", space)
        ends = [f"wm{os.getpid() % 100000}x", f"wm{os.getpid() % 100000}y"]
        self.ip("link", "add", ends[0], "netns", self.spaces[0], "type", "veth", "peer", "name", ends[1], "netns",
                self.spaces[1])
        for number, (space, end) in enumerate(zip(self.spaces, ends), 1):
            self.ip("-n", space, "addr", "add", f"10.77.0.{number}/24", "dev", end)
            for device in (end, "lo"):
                self.ip("-n", space, "link", "set", device, "up")

    def ip(self, *words):
        result = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            self.skipTest("ip " + " ".join(words) + ": " + result.stderr.strip())

    def remove(self):
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    @unittest.skipUnless(has("gloo"), "no Gloo library")
    def test_gloo_between_them(self):
        arguments = [*QUICK, "--backend", "shm,gloo,mpi", "--sizes", "8,1MiB", "--format", "json"]
        processes = [start(rank, 2, 29611, *arguments, prefix=["ip", "netns", "exec", self.spaces[rank]],
                           host="10.77.0.1") for rank in range(2)]
        texts = [process.communicate(timeout=HANG) for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0], texts)
        rows = json.loads(texts[0][0])["rows"]
        self.assertEqual([row["status"] for row in rows], ["unsupported"] * 2 + ["ok"] * 2 + ["unsupported"] * 2)
        self.assertIn("2 hosts", rows[0]["reason"])
        for row in rows[2:4]:
            self.assertEqual((row["wrong"], row["skew_mean_ms"], row["bound"]), (0, None, None))

    @unittest.skipUnless(has("mpi") and has("gloo") and shutil.which("mpirun"), "no MPI library, no mpirun or no Gloo")
    def test_mpirun_over_both(self):
        with tempfile.TemporaryDirectory() as folder:
            agent = pathlib.Path(folder, "agent")
            agent.write_text(f"""#!/bin/sh
case $1 in 10.77.0.2) space={self.spaces[1]} ;; *) space={self.spaces[0]} ;; esac
shift
exec ip netns exec $space unshare -u /bin/sh -c "hostname $space; $*"
""")
            agent.chmod(0o755)
            command = ["ip", "netns", "exec", self.spaces[0], "unshare", "-u", "/bin/sh", "-c",
                       f'hostname {self.spaces[0]}; exec "$@"', "sh", "mpirun", "-np", "2", "--host",
                       "10.77.0.1:1,10.77.0.2:1", "--mca", "plm_rsh_agent", str(agent), "--mca", "btl", "self,tcp",
                       "--mca", "btl_tcp_if_include", "10.77.0.0/24", "--mca", "oob_tcp_if_include", "10.77.0.0/24",
                       TOOL, *QUICK, "--backend", "gloo,mpi", "--sizes", "8,1MiB", "--format", "json"]
            result = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False,
                                    env=environment(**MPIRUN))
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = json.loads(result.stdout)["rows"]
        self.assertEqual([(row["target"], row["status"]) for row in rows],
                         [(target, "ok") for target in ("gloo-cpu", "mpi-cpu") for _ in range(2)])


if __name__ == "__main__":
    unittest.main()
