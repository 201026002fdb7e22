"""Attention problems and the sweep that options stand for. As kernels/attention/problem.cpp and
tools/attn_bench/configuration.cpp."""

from dataclasses import dataclass, replace

from .grammar import UsageError
from .options import Option, Preset

MAX_LENGTH, MAX_COUNT, MAX_HEAD_DIM = 2**31, 2**24, 256
ROW_KEYS = ["impl", "dtype", "pass", "batch", "num_heads", "num_kv_heads", "d_model", "head_dim", "seq_len", "kv_len",
            "causal", "deterministic"]
ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
IMPLEMENTATIONS = ("pytorch_eager", "pytorch_compiled", "pytorch_sdpa_flash", "pytorch_sdpa_cudnn",
                   "pytorch_sdpa_efficient", "pytorch_sdpa_math")


@dataclass(frozen=True)
class Problem:
    """S = scale Q K^T + mask, P = softmax(S), O = P V. Q, O: (batch, num_heads, seq_len, head_dim); K, V: (batch,
    num_kv_heads, kv_len, head_dim). Causal is bottom-right aligned: query i sees keys up to i + kv_len - seq_len."""

    batch: int = 1
    num_heads: int = 1
    num_kv_heads: int = 1
    seq_len: int = 1
    kv_len: int = 1
    head_dim: int = 64
    dtype: str = "fp32"
    causal: bool = True
    deterministic: bool = False

    @property
    def scale(self):
        return self.head_dim ** -0.5

    @property
    def group_size(self):
        return self.num_heads // self.num_kv_heads

    @property
    def sees_everything(self):
        """No key is hidden from any query."""
        return not self.causal or self.seq_len == 1

    @property
    def visible_pairs(self):
        if not self.causal:
            return self.seq_len * self.kv_len
        if self.seq_len <= self.kv_len:
            return self.seq_len * (self.kv_len - self.seq_len) + self.seq_len * (self.seq_len + 1) // 2
        return self.kv_len * (self.kv_len + 1) // 2

    @property
    def forward_flops(self):
        return 4.0 * self.batch * self.num_heads * self.visible_pairs * self.head_dim

    @property
    def backward_flops(self):
        return 2.5 * self.forward_flops

    @property
    def query_elements(self):
        return self.batch * self.num_heads * self.seq_len * self.head_dim

    @property
    def kv_elements(self):
        return self.batch * self.num_kv_heads * self.kv_len * self.head_dim

    @property
    def lse_bytes(self):
        return 4 * self.batch * self.num_heads * self.seq_len

    @property
    def score_elements(self):
        return self.batch * self.num_heads * self.seq_len * self.kv_len

    @property
    def forward_bytes(self):
        return (2 * self.query_elements + 2 * self.kv_elements) * ELEMENT_BYTES[self.dtype] + self.lse_bytes

    @property
    def backward_bytes(self):
        return (4 * self.query_elements + 4 * self.kv_elements) * ELEMENT_BYTES[self.dtype] + self.lse_bytes

    def describe(self):
        return (f"b{self.batch} h{self.num_heads}/{self.num_kv_heads} s{self.seq_len}/{self.kv_len} d{self.head_dim} "
                f"{self.dtype}{' causal' if self.causal else ''}{' deterministic' if self.deterministic else ''}")


@dataclass(frozen=True)
class Configuration:
    """One row to be: which implementation on which problem, and which passes are timed."""

    impl: str
    problem: Problem
    forward: bool = True
    backward: bool = True

    @property
    def passes(self):
        return ",".join(name for name, on in (("fwd", self.forward), ("bwd", self.backward)) if on)

    def fields(self):
        p = self.problem
        return {"impl": self.impl, "dtype": p.dtype, "pass": self.passes, "batch": p.batch, "num_heads": p.num_heads,
                "num_kv_heads": p.num_kv_heads, "d_model": p.num_heads * p.head_dim, "head_dim": p.head_dim,
                "seq_len": p.seq_len, "kv_len": p.kv_len, "causal": p.causal, "deterministic": p.deterministic}

    def option_values(self):
        p = self.problem
        return {"--impl": self.impl, "--dtype": p.dtype, "--pass": self.passes, "--batch": str(p.batch),
                "--heads": str(p.num_heads), "--kv-heads": str(p.num_kv_heads),
                "--d-model": str(p.num_heads * p.head_dim), "--seq-len": str(p.seq_len), "--kv-len": str(p.kv_len),
                "--causal": "true" if p.causal else "false", "--deterministic": "true" if p.deterministic else "false"}


def add_options(table):
    lengths = "whole numbers from 1: a list or range such as 256,1024 or 256:16384:x2"

    def option(name, metavar, default, accepted, text, **more):
        table.add(Option(name, text, metavar, default, accepted, "Configurations", row_option=True, **more))

    option("--impl", "NAMES", "pytorch_eager,pytorch_compiled,pytorch_sdpa_flash",
           ", ".join(IMPLEMENTATIONS) + ", or all", "Implementations to measure; --list says what each is.")
    option("--pass", "NAMES", "fwd,bwd", "fwd, bwd, or fwd,bwd",
           "Passes to time. The backward needs a forward, which then runs untimed.")
    option("--batch", "LIST", "8", lengths, "Batch size.")
    option("--tokens", "LIST", "", lengths, "Tokens in all, instead of --batch: the batch is tokens / seq_len.",
           excludes=("--batch",))
    option("--heads", "LIST", "1", lengths + ", each dividing every --d-model", "Query heads.")
    option("--head-dim", "LIST", "", "whole numbers from 1 to 256, each dividing every --d-model",
           "Width of a head, instead of --heads: the heads are d_model / head_dim.", excludes=("--heads",))
    option("--kv-heads", "LIST", "", lengths + ", each dividing the query heads",
           "Key/value heads (grouped-query attention). As many as query heads when not given.")
    option("--d-model", "LIST", "64", lengths, "Model width: heads x head_dim.")
    option("--seq-len", "LIST", "1024", lengths, "Query length.")
    option("--kv-len", "LIST", "", lengths, "Key/value length. As long as seq_len when not given.")
    option("--causal", "BOOLS", "true", "--causal, --no-causal or --causal=both",
           "Causal mask, aligned bottom-right: query i sees keys up to i + kv_len - seq_len.", negation="--no-causal")
    option("--deterministic", "", "false", "",
           "Only kernels that give the same bits on every run (torch.use_deterministic_algorithms).")
    table.add_presets(*_presets())


def _presets():
    """attn_bench's sweeps, with the implementations that a user would hold against its own."""
    plain = "pytorch_eager,pytorch_compiled"

    def preset(name, description, impl, dtype, **values):
        options = {"--impl": impl, "--dtype": dtype, "--pass": "fwd,bwd"}
        options.update({"--" + key.replace("_", "-"): text for key, text in values.items()})
        return Preset(name, description, options)

    return (
        preset("notes", "the notes' sweep: batch 8, one head, causal, fp32, d_model 16 to 128, seq_len 256 to 16384",
               plain + ",pytorch_sdpa_efficient", "fp32", batch="8", heads="1", d_model="16,32,64,128",
               seq_len="256,1024,4096,8192,16384", causal="true"),
        preset("quick", "the same table in some minutes on two CPU cores", plain + ",pytorch_sdpa_flash", "fp32",
               batch="8", heads="1", d_model="16,32,64,128", seq_len="256,512,1024", causal="true", warmup="3",
               max_time="0.4"),
        preset("fa_grid", "the FlashAttention papers' grid: hidden size 2048, 16k tokens, head dim 64 and 128, bf16, "
               "causal and not", "pytorch_sdpa_flash,pytorch_sdpa_cudnn", "bf16", tokens="16384", d_model="2048",
               head_dim="64,128", seq_len="512:16384:x2", causal="both"),
        preset("course_flash", "the course's flash sweep: batch 1, one head, causal, seq_len 128 to 65536, d_model 16 "
               "to 128, bf16 and fp32", plain + ",pytorch_sdpa_flash,pytorch_sdpa_efficient", "bf16,fp32", batch="1",
               heads="1", d_model="16:128:x2", seq_len="128:65536:x2", causal="true"),
        preset("leaderboard", "the course's leaderboard: batch 3, 16 heads of 64, seq_len 16384, bf16, causal, forward "
               "and backward", "pytorch_sdpa_flash,pytorch_sdpa_cudnn", "bf16", batch="3", heads="16", d_model="1024",
               seq_len="16384", causal="true"),
    )


def expand(table, settings):
    """The cross product of the options' lists, in attn_bench's order. Raises UsageError."""
    impls = table.words("--impl", IMPLEMENTATIONS, allow_all=True)
    passes = table.words("--pass", ("fwd", "bwd"))
    d_models = table.integers("--d-model", 1, MAX_LENGTH)
    seq_lens = table.integers("--seq-len", 1, MAX_LENGTH)
    by_tokens, by_head_dim = bool(table.text("--tokens")), bool(table.text("--head-dim"))
    batches = table.integers("--tokens" if by_tokens else "--batch", 1, MAX_LENGTH)
    heads_or_dims = (table.integers("--head-dim", 1, MAX_HEAD_DIM) if by_head_dim
                     else table.integers("--heads", 1, MAX_COUNT))
    causals = table.flags("--causal")
    kv_heads_list = table.integers("--kv-heads", 1, MAX_COUNT) if table.text("--kv-heads") else [0]
    kv_lens = table.integers("--kv-len", 1, MAX_LENGTH) if table.text("--kv-len") else [0]
    base = Problem(deterministic=table.flag("--deterministic"))

    def problem(dtype, causal, d_model, heads_or_dim, kv_heads, batch, seq_len, kv_len):
        if d_model % heads_or_dim != 0:
            raise table.error("--head-dim" if by_head_dim else "--heads",
                              f"{heads_or_dim} does not divide --d-model {d_model}")
        num_heads = d_model // heads_or_dim if by_head_dim else heads_or_dim
        head_dim = d_model // num_heads
        if head_dim > MAX_HEAD_DIM:
            raise table.error("--d-model", f"{d_model} over {num_heads} heads gives head_dim {head_dim}, and head_dim "
                              f"is at most {MAX_HEAD_DIM}: raise --heads")
        kv_heads = kv_heads or num_heads
        if num_heads % kv_heads != 0:
            raise table.error("--kv-heads", f"{kv_heads} does not divide the {num_heads} query heads")
        if by_tokens and batch % seq_len != 0:
            raise table.error("--tokens", f"{batch} is not a multiple of --seq-len {seq_len}")
        found = replace(base, batch=batch // seq_len if by_tokens else batch, num_heads=num_heads,
                        num_kv_heads=kv_heads, seq_len=seq_len, kv_len=kv_len or seq_len, head_dim=head_dim,
                        dtype=dtype, causal=causal)
        widest = max(found.head_dim, found.kv_len) * max(found.seq_len, found.kv_len)
        if found.batch * found.num_heads * widest > 2**60:
            raise UsageError(f"attention problem {found.describe()}: batch x num_heads x seq_len x kv_len is too large "
                             "to count")
        return found

    return [Configuration(impl, problem(dtype, causal, d_model, heads_or_dim, kv_heads, batch, seq_len, kv_len),
                          "fwd" in passes, "bwd" in passes)
            for impl in impls for dtype in settings.dtypes for causal in causals for d_model in d_models
            for heads_or_dim in heads_or_dims for kv_heads in kv_heads_list for batch in batches
            for seq_len in seq_lens for kv_len in kv_lens]
