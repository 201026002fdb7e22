#!/usr/bin/env python3
"""--doctor as a process: text, JSON by its schema, exit statuses, a management library that says what a test wants."""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import unittest

TOOL = os.environ["FAKE_TOOL"]
FAKE_NVML = os.environ["FAKE_NVML_LIBRARY"]
SCHEMA_PYTHON = os.environ.get("WARPMETER_SCHEMA_PYTHON", "")
SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])
VALIDATE = """
import json, sys, jsonschema
schema = json.load(open(sys.argv[1]))
jsonschema.Draft202012Validator.check_schema(schema)
for path in sys.argv[2:]:
    jsonschema.Draft202012Validator(schema).validate(json.load(open(path)))
"""


# What --doctor reports and goes by: each test says what of it is set, whatever is set where it runs.
LOOKED_AT = ("CUDA_", "NVIDIA_", "OMP_", "OPENBLAS_", "WARPMETER_CPU_ISA", "FAKE_")


def run(*arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(LOOKED_AT)}
    return subprocess.run(
        [TOOL, "--doctor", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**environment, **variables},
    )


def ids(result):
    return {finding["id"]: finding for finding in json.loads(result.stdout)["findings"]}


class WithSchema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        shutil.copy(FAKE_NVML, pathlib.Path(cls.folder.name) / "libnvidia-ml.so.1")

    def validate(self, *texts):
        if not SCHEMA_PYTHON:
            self.skipTest("no Python with jsonschema")
        paths = []
        for number, text in enumerate(texts):
            paths.append(str(pathlib.Path(self.folder.name) / f"{number}.json"))
            pathlib.Path(paths[-1]).write_text(text)
        schema = str(SOURCE / "reports/schema/warpmeter-doctor-1.schema.json")
        result = subprocess.run(
            [*shlex.split(SCHEMA_PYTHON), "-c", VALIDATE, schema, *paths], capture_output=True, text=True, check=False
        )
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])


class Doctor(WithSchema):
    def test_text(self):
        result = run("--device", "cpu")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertRegex(result.stdout, r"\A# fake_tool --doctor: 0 broken, ")
        for heading in ("## What cpu reaches", "## CUDA", "## Host", "## Build"):
            self.assertIn(heading, result.stdout)
        self.assertRegex(result.stdout, r"\| read_gbps +\| [0-9.]+ ")
        self.assertIn("OpenBLAS", result.stdout)

    def test_json_of_a_machine_with_odd_settings(self):
        variables = {
            "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)) + 1),
            "WARPMETER_CPU_ISA": "generic",
            "CUDA_VISIBLE_DEVICES": "a\nb",
        }
        gpus = {"FAKE_NVML": "0.throttle=0x40;1.pids=2;peers=none", "LD_LIBRARY_PATH": self.folder.name}
        result = run("--device", "cpu", "--format", "json", **variables, **gpus)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        found = json.loads(result.stdout)
        self.assertEqual((found["schema"], found["tool"], found["device"]), ("warpmeter-doctor/1", "fake_tool", "cpu"))
        rates = {ceiling["name"]: ceiling["measured"] for ceiling in found["ceilings"]}
        for name in ("matmul_fp32_tflops", "copy_gbps", "read_gbps"):
            self.assertGreater(rates[name], 0)
        self.assertEqual([gpu["name"] for gpu in found["gpus"]], ["NVIDIA H200"] * 2)
        self.assertEqual(found["cuda"]["driver"], "580.159.04")
        self.assertEqual(found["environment"], variables)
        self.assertIn("threads_many", ids(result))
        if found["host"]["machine_isa"] != "generic":
            self.assertIn("isa_narrowed", ids(result))
        self.assertEqual(ids(result)["gpu_throttled"]["subject"], "GPU 0")
        self.assertEqual(ids(result)["gpu_shared"]["subject"], "GPU 1")
        self.assertIn("no_peer_access", ids(result))
        self.validate(result.stdout)

    def test_a_device_that_is_not_there_is_what_the_doctor_is_for(self):
        result = run("--device", "cuda:99", "--format", "json")
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        first = json.loads(result.stdout)["findings"][0]
        self.assertEqual((first["severity"], first["id"]), ("broken", "device_refused"))
        self.assertIn("cuda:99", first["seen"])
        self.validate(result.stdout)

    def test_bad_usage(self):
        for arguments, word in (
            (["--format", "csv"], "csv"),
            (["-o", "x.json"], "--output"),
            (["--device", "toaster"], "toaster"),
            (["--nonsense"], "--nonsense"),
        ):
            result = run(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""), arguments)
            self.assertRegex(result.stderr, r"\Afake_tool: [^\n]+\n\Z")
            self.assertIn(word, result.stderr)

    def test_golden_files_follow_the_schema(self):
        golden = SOURCE / "tests/tools/harness/doctor/golden"
        texts = [path.read_text() for path in sorted(golden.glob("*.json"))]
        self.assertEqual(len(texts), 4)
        self.validate(*texts)


class Gpu(WithSchema):
    """On a machine with a GPU: what the real library and the real device say."""

    def setUp(self):
        probe = subprocess.run([TOOL, "--device", "cuda", "--dry-run"], capture_output=True, text=True, check=False)
        if probe.returncode == 2:
            self.skipTest("no GPU: " + probe.stderr.strip())

    def test_what_it_says(self):
        result = run("--device", "cuda", "--format", "json")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result)
        found = json.loads(result.stdout)
        self.validate(result.stdout)
        self.assertEqual(found["device"], "cuda:0")
        self.assertGreaterEqual(found["cuda"]["devices"], 1)
        self.assertEqual(len([gpu for gpu in found["gpus"] if gpu["cuda_index"] == 0]), 1)
        gpu = next(gpu for gpu in found["gpus"] if gpu["cuda_index"] == 0)
        for field in ("name", "uuid", "sm", "memory_mib"):
            self.assertTrue(gpu[field], field)
        rates = {ceiling["name"]: ceiling for ceiling in found["ceilings"]}
        for name in ("matmul_fp32_tflops", "matmul_tf32_tflops", "matmul_16bit_tflops", "copy_gbps", "read_gbps"):
            self.assertGreater(rates[name]["measured"], 0, name)
            if rates[name]["datasheet"]:
                self.assertLess(rates[name]["share"], 1.1, name)
        if found["cuda"]["nvml"]:
            self.assertTrue(found["cuda"]["driver"])
            self.assertTrue(gpu["max_clock_mhz"])
            # It was busy while its ceilings were measured.
            self.assertTrue(gpu["load_clock_mhz"])
            self.assertGreater(gpu["load_clock_mhz"], 0.4 * gpu["max_clock_mhz"])
            self.assertEqual(len(found["peer_access"]), len(found["gpus"]))
        text = run("--device", "cuda").stdout
        self.assertIn("## What cuda:0 reaches", text)
        print(text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
