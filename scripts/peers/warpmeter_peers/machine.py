"""What a result file says of program, device and libraries. As tools/harness/provenance.cpp."""

import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
MIB = 1024.0 * 1024.0


def _output_of(*command):
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False,
                                stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def project_version():
    """As CMakeLists.txt has it."""
    try:
        match = re.search(r"project\([^)]*?VERSION\s+([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))
    except OSError:
        match = None
    return match.group(1) if match else "0.0.0"


def version_object():
    sha = _output_of("git", "-C", str(ROOT), "rev-parse", "HEAD")
    known = bool(re.fullmatch(r"[0-9a-f]{7,64}", sha))
    dirty = bool(_output_of("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")) if known else None
    return {"project": project_version(), "git_sha": sha if known else None, "dirty": dirty, "build_type": None}


def utc_now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def libraries_object(torch):
    libraries = {"python": platform.python_version()}
    if torch is None:
        return libraries
    libraries["torch"] = torch.__version__
    libraries["torch_cuda"] = torch.version.cuda
    libraries["torch_git"] = getattr(torch.version, "git_version", None)
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    libraries["cudnn"] = f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}" if cudnn else None
    try:
        libraries["triton"] = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        libraries["triton"] = None
    return libraries


class CpuMachine:
    def __init__(self, torch=None):
        self._torch = torch
        self.cache_bytes = self._last_level_cache()

    @staticmethod
    def _cpu_name():
        try:
            for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip() or "unknown"
        except OSError:
            pass
        return platform.processor() or platform.machine() or "unknown"

    @staticmethod
    def _last_level_cache():
        best = (0, 0)
        for index in pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
            try:
                level = int((index / "level").read_text())
                size = re.fullmatch(r"(\d+)K", (index / "size").read_text().strip())
            except (OSError, ValueError):
                continue
            if size:
                best = max(best, (level, int(size.group(1)) * 1024))
        return best[1]

    @staticmethod
    def _meminfo(name):
        try:
            text = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8")
        except OSError:
            return 0
        match = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
        return int(match.group(1)) * 1024 if match else 0

    def available_bytes(self):
        return self._meminfo("MemAvailable") or 2**62

    def device_object(self):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        device = {"cpu": self._cpu_name(), "cores": cores}
        if self._torch:
            device["threads"] = self._torch.get_num_threads()
            device["isa"] = self._torch.backends.cpu.get_cpu_capability().lower()
        device["memory_mib"] = self._meminfo("MemTotal") / MIB or None
        device["last_level_cache_mib"] = self.cache_bytes / MIB or None
        return device

    def describe(self):
        device = self.device_object()
        return f"cpu ({device['cpu']}, {device['cores']} cores, {device.get('threads', '?')} threads)"


class CudaMachine:
    def __init__(self, torch, device):
        self._torch, self._name = torch, device
        self._index = torch.device(device).index
        self._properties = torch.cuda.get_device_properties(device)
        self.cache_bytes = getattr(self._properties, "L2_cache_size", 0)

    def available_bytes(self):
        return self._torch.cuda.mem_get_info(self._name)[0]

    def _smi(self, uuid):
        """Driver and clocks, which PyTorch does not tell."""
        fields = "driver_version,clocks.sm,clocks.max.sm,clocks.mem"
        text = _output_of("nvidia-smi", *(["-i", uuid] if uuid else []), f"--query-gpu={fields}",
                          "--format=csv,noheader,nounits")
        parts = [part.strip() for part in text.splitlines()[0].split(",")] if text else []
        if len(parts) != 4:
            return None, {"sm_mhz": None, "max_sm_mhz": None, "memory_mhz": None}
        numbers = [float(part) if re.fullmatch(r"[0-9.]+", part) else None for part in parts[1:]]
        return parts[0], dict(zip(("sm_mhz", "max_sm_mhz", "memory_mhz"), numbers))

    def device_object(self):
        properties = self._properties
        uuid = str(getattr(properties, "uuid", "") or "")
        if uuid and not uuid.startswith(("GPU-", "MIG-")):
            uuid = "GPU-" + uuid
        driver, clocks = self._smi(uuid)
        return {"name": properties.name, "uuid": uuid or None, "index": self._index,
                "sm": properties.major * 10 + properties.minor, "multiprocessors": properties.multi_processor_count,
                "memory_mib": properties.total_memory / MIB, "l2_mib": self.cache_bytes / MIB or None, "driver": driver,
                "cuda": self._torch.version.cuda, "clocks": clocks}

    def describe(self):
        return f"{self._name} ({self._properties.name})"
