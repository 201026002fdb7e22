"""Results as the tools write them, made by rule: what the report's tests read. Times follow simple laws, no machine."""

import json

SHA = "0123456789abcdef0123456789abcdef01234567"


def document(tool, row_keys, rows, **changes):
    counts = {status: sum(row["status"] == status for row in rows) for status in ("ok", "oom", "unsupported", "error")}
    made = {
        "schema": "warpmeter/1",
        "tool": tool,
        "version": {
            "project": "0.1.0",
            "git_sha": SHA,
            "dirty": False,
            "build_type": "Release",
            "compiler": "GNU 12.2",
        },
        "argv": ["build/bin/" + tool, "--format", "json"],
        "started_at": "2026-01-31T12:00:00Z",
        "device": {
            "name": "NVIDIA H200",
            "uuid": "GPU-00000000-1111-2222-3333-444444444444",
            "sm": 90,
            "memory_mib": 143771,
            "driver": "580.65.06",
            "cuda": "13.0",
            "clocks": {"sm_mhz": 1980, "max_sm_mhz": 1980, "memory_mhz": 3201},
            "ceilings": {
                "matmul_fp32_tflops": 52.0,
                "matmul_tf32_tflops": 414.0,
                "matmul_16bit_tflops": 800.0,
                "copy_gbps": 4200.0,
                "read_gbps": 4500.0,
            },
        },
        "libraries": {"cublas": "13.0.2", "nvtx": True},
        "settings": {"timer": "device", "cache": "cold", "warmup": 10, "check": True},
        "row_keys": row_keys,
        "rows": rows,
        "summary": {"rows": len(rows), **counts, "seconds": 12.5, "warnings": 0},
    }
    made.update(changes)
    return made


def _phase(row, phase, flops, moved, ceiling_tflops, share, noise=0.004):
    bounds = {"compute": flops / ceiling_tflops / 1e9, "memory": moved / 4500.0 / 1e6}
    bound = max(bounds, key=bounds.get)
    milliseconds = bounds[bound] / share
    row.update(
        {
            phase + "_ms": milliseconds,
            phase + "_mean_ms": milliseconds * 1.01,
            phase + "_noise": noise,
            phase + "_n": 20,
            phase + "_stop": "noise",
            phase + "_flops": flops,
            phase + "_bytes": moved,
            phase + "_tflops": flops / milliseconds / 1e9,
            phase + "_gbps": moved / milliseconds / 1e6,
            phase + "_bound": bound,
            phase + "_bound_share": share,
        }
    )


def attention(lengths=(256, 1024, 4096, 8192, 16384), widths=(64, 128), dtypes=("fp32", "bf16"), device=None):
    """naive, fused and flash forward and backward; naive and fused out of memory at the longest, one wrong result."""
    shares = {"naive": 0.12, "fused": 0.3, "flash": 0.7}
    rows = []
    for dtype in dtypes:
        for impl, share in shares.items():
            for width in widths:
                for length in lengths:
                    rows.append(_attention_row(impl, share, dtype, width, length, length == lengths[-1]))
    keys = ["impl", "dtype", "pass", "batch", "num_heads", "d_model", "head_dim", "seq_len", "kv_len", "causal"]
    return document("attn_bench", keys, rows, **({"device": device} if device else {}))


def _attention_row(impl, share, dtype, width, length, longest):
    size = 4 if dtype == "fp32" else 2
    row = {
        "impl": impl,
        "dtype": dtype,
        "pass": "fwd,bwd",
        "batch": 8,
        "num_heads": 1,
        "d_model": width,
        "head_dim": width,
        "seq_len": length,
        "kv_len": length,
        "causal": True,
    }
    ending = {"status": "ok", "reason": None, "rerun": f"attn_bench --impl {impl} --dtype {dtype} --seq-len {length}"}
    if impl == "naive" and longest:
        return {**row, **ending, "status": "oom", "reason": "predicted peak 40.1 GiB, free 24.0 GiB"}
    if impl == "fused" and width == 128 and length == 256 and dtype == "bf16":
        return {**row, **ending, "status": "mismatch", "reason": "dq: b0 h0 row 17 col 3: got 0.5, expected 0.4"}
    row["kernel"] = impl + "_cuda"
    share = share * length / (length + 1500)
    ceiling = 800.0 if dtype == "bf16" else 414.0 / 3 if impl == "flash" else 52.0
    flops, moved = 2.0 * 8 * length * length * width, 4.0 * 8 * length * width * size
    _phase(row, "fwd", flops, moved, ceiling, share)
    scores = 8 * length * length * size / 2**20
    base = moved / 2**20
    row["fwd_peak_mem_mib"] = base + (0 if impl == "flash" else scores * (2 if impl == "naive" else 1))
    row["max_rel_error"] = 1.5e-6 if dtype == "fp32" else 3.1e-3
    if impl == "fused" and longest:
        return {**row, **ending, "status": "oom", "reason": "backward: requested 8.0 GiB, free 1.5 GiB"}
    _phase(row, "bwd", 2.5 * flops, 2 * moved, ceiling, share * 0.8)
    row["bwd_mem_before_backward_mib"] = base + (0 if impl == "flash" else scores)
    row["bwd_peak_mem_mib"] = 2 * base + (0 if impl == "flash" else 2 * scores)
    return {**row, **ending}


def collectives():
    """All-reduce over 2 and 4 ranks: latency, then bandwidth."""
    rows = []
    for target, latency_us, gib in (("nccl-cuda", 20.0, 280.0), ("p2p-cuda", 6.0, 290.0)):
        for world in (2, 4):
            for power in range(10, 31, 2):
                size = 2**power
                milliseconds = latency_us * 1e-3 * (1 + 0.2 * (world - 2)) + size / (gib * 2**30) * 1e3
                rows.append(
                    {
                        "target": target,
                        "collective": "all_reduce",
                        "world_size": world,
                        "bytes": size,
                        "tensor_size": f"{size // 1024}KiB",
                        "dtype": "fp32",
                        "median_ms": milliseconds,
                        "mean_ms": milliseconds * 1.01,
                        "noise": 0.02,
                        "n": 50,
                        "algo_GiBps": 2 * (world - 1) / world * size / milliseconds / 2**30 * 1e3,
                        "busbw_gbps": 2 * (world - 1) / world * size / milliseconds / 1e6,
                        "status": "ok",
                        "reason": None,
                        "rerun": f"allreduce_bench --backend {target[:-5]} --world-size {world} --sizes {size}",
                    }
                )
    keys = ["target", "collective", "world_size", "bytes", "tensor_size", "dtype"]
    return document("allreduce_bench", keys, rows)


def model():
    """A model in four sizes, two structures: an axis of names."""
    rows = []
    for structure, factor in (("naive", 1.0), ("fused", 0.4)):
        for index, size in enumerate(("small", "medium", "large", "xl")):
            fits = not (size == "xl" and structure == "naive")
            seconds = factor * 0.02 * 3**index
            rows.append(
                {
                    "size": size,
                    "precision": "bf16",
                    "structure": structure,
                    "context": 256,
                    "fwd_s": seconds,
                    "train_step_s": 4 * seconds if fits else None,
                    "tokens_per_s": 1024 / (4 * seconds) if fits else None,
                    "train_step_peak_mem_mib": 3000.0 * 2**index if fits else None,
                    "status": "ok" if fits else "oom",
                    "reason": None if fits else "training step: requested 1.0 GiB, free 0.2 GiB",
                    "rerun": f"e2e_bench --size {size} --structure {structure}",
                }
            )
    return document("e2e_bench", ["size", "precision", "structure", "context"], rows)


ALL = {"attention": attention, "collectives": collectives, "model": model}


def write(folder):
    """Every sample as a file: {name: path}."""
    paths = {}
    for name, make in ALL.items():
        paths[name] = folder / (name + ".json")
        paths[name].write_text(json.dumps(make()), encoding="utf-8")
    return paths
