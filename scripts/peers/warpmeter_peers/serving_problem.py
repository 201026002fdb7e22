"""The serving modes' sweeps. As tools/attn_bench/decode_configuration.cpp and prefill_configuration.cpp."""

from dataclasses import dataclass, replace

from .attention_problem import MAX_COUNT, MAX_HEAD_DIM, MAX_LENGTH, Problem
from .grammar import UsageError
from .options import Option, Preset

MODES = ("decode", "prefill")
IMPLEMENTATIONS = ("pytorch_eager", "pytorch_sdpa_flash", "pytorch_sdpa_cudnn", "pytorch_sdpa_efficient",
                   "pytorch_sdpa_math")
ROW_KEYS = {
    "decode": ["mode", "impl", "dtype", "batch", "num_heads", "num_kv_heads", "d_model", "head_dim", "kv_len",
               "tokens", "merge", "deal", "splits", "block", "page_size", "value_range"],
    "prefill": ["mode", "impl", "dtype", "batch", "num_heads", "num_kv_heads", "d_model", "head_dim", "seq_len",
                "chunk", "projections", "page_size"],
}
NONE = "-"  # PyTorch has no streams to deal out


@dataclass(frozen=True)
class Decoding:
    """The newest `problem.seq_len` tokens of every sequence over its keys."""

    impl: str
    problem: Problem
    value_range: int = 0  # 0: normal values, else uniform in +- this

    def fields(self):
        p = self.problem
        return {"mode": "decode", "impl": self.impl, "dtype": p.dtype, "batch": p.batch, "num_heads": p.num_heads,
                "num_kv_heads": p.num_kv_heads, "d_model": p.num_heads * p.head_dim, "head_dim": p.head_dim,
                "kv_len": p.kv_len, "tokens": p.seq_len, "merge": NONE, "deal": NONE, "splits": NONE, "block": NONE,
                "page_size": 0, "value_range": self.value_range}

    def option_values(self):
        p = self.problem
        return {"--mode": "decode", **_shape_options(self.impl, p), "--kv-len": str(p.kv_len),
                "--tokens": str(p.seq_len), "--value-range": str(self.value_range)}


@dataclass(frozen=True)
class Prefill:
    """A whole prompt's attention, `problem`, at once and in chunks."""

    impl: str
    problem: Problem
    chunk: int = 1
    projections: bool = True

    def fields(self):
        p = self.problem
        return {"mode": "prefill", "impl": self.impl, "dtype": p.dtype, "batch": p.batch, "num_heads": p.num_heads,
                "num_kv_heads": p.num_kv_heads, "d_model": p.num_heads * p.head_dim, "head_dim": p.head_dim,
                "seq_len": p.seq_len, "chunk": self.chunk, "projections": self.projections, "page_size": 0}

    def option_values(self):
        p = self.problem
        return {"--mode": "prefill", **_shape_options(self.impl, p), "--seq-len": str(p.seq_len),
                "--chunk": str(self.chunk), "--projections": "true" if self.projections else "false"}

    @property
    def chunks(self):
        """[(first token, tokens)]."""
        length = self.problem.seq_len
        return [(first, min(self.chunk, length - first)) for first in range(0, length, self.chunk)]

    def problem_of(self, first, tokens):
        return replace(self.problem, seq_len=tokens, kv_len=first + tokens)

    @property
    def flops(self):
        p = self.problem
        rows, width, kv_width = p.batch * p.seq_len, p.num_heads * p.head_dim, p.num_kv_heads * p.head_dim
        return p.forward_flops + (2.0 * rows * width * (2 * width + 2 * kv_width) if self.projections else 0.0)


def _shape_options(impl, p):
    return {"--impl": impl, "--dtype": p.dtype, "--batch": str(p.batch), "--heads": str(p.num_heads),
            "--kv-heads": str(p.num_kv_heads), "--d-model": str(p.num_heads * p.head_dim)}


def add_options(table):
    lengths = "whole numbers from 1: a list or range such as 256,1024 or 256:16384:x2"

    def option(name, metavar, default, accepted, text, **more):
        table.add(Option(name, text, metavar, default, accepted, more.pop("group", "Configurations"), row_option=True,
                         **more))

    option("--mode", "NAME", "decode", ", ".join(MODES), "decode: the newest tokens of every sequence over its keys. "
           "prefill: a prompt at once, and in chunks beside it.")
    option("--impl", "NAMES", "pytorch_eager,pytorch_sdpa_flash", ", ".join(IMPLEMENTATIONS) + ", or all",
           "Implementations to measure; --list says what each is.")
    option("--batch", "LIST", "1", lengths, "Sequences.")
    option("--heads", "LIST", "8", lengths + ", each dividing every --d-model", "Query heads.")
    option("--head-dim", "LIST", "", "whole numbers from 1 to 256, each dividing every --d-model",
           "Width of a head, instead of --heads: the heads are d_model / head_dim.", excludes=("--heads",))
    option("--kv-heads", "LIST", "", lengths + ", each dividing the query heads",
           "Key/value heads (grouped-query attention). As many as query heads when not given.")
    option("--d-model", "LIST", "512", lengths, "Model width: heads x head_dim.")
    option("--kv-len", "LIST", "1024,4096,16384,32768", lengths, "Decode: tokens that each sequence has.")
    option("--tokens", "LIST", "1", lengths, "Decode: query tokens of a sequence.")
    option("--value-range", "LIST", "0", "0, or whole numbers from 1", "Decode: queries, keys and values uniform in "
           "+-R instead of normal (0).")
    option("--seq-len", "LIST", "512,2048,8192", lengths, "Prefill: tokens of the prompt.")
    option("--chunk", "LIST", "512", lengths, "Prefill: tokens of the prompt that are worked on at once.")
    option("--projections", "", "true", "", "Prefill: with the q, k, v and out projections, or attention alone.",
           negation="--no-projections")
    # So that one command line goes to both sides of a comparison.
    for name, default in (("--splits", "auto"), ("--merge", "tree"), ("--deal", "contiguous"), ("--block", "auto"),
                          ("--page-size", "0")):
        option(name, "LIST", default, "what attn_bench takes", "attn_bench's own; changes nothing here.",
               group="Taken and left alone")
    table.add_presets(
        Preset("decode", "decoding a token, 8 heads of 64, 1024 to 32768 tokens",
               {"--mode": "decode", "--impl": "pytorch_eager,pytorch_sdpa_flash", "--dtype": "fp32", "--batch": "1",
                "--tokens": "1", "--heads": "8", "--d-model": "512", "--kv-len": "1024,4096,16384,32768"}),
        Preset("decode_grid", "what servers decode: bf16, 32 heads of 128 and 8 key/value heads, batch 1, 16 and 64, "
               "1k to 32k tokens", {"--mode": "decode", "--impl": "pytorch_sdpa_cudnn,pytorch_sdpa_flash",
                                    "--dtype": "bf16", "--batch": "1,16,64", "--tokens": "1", "--heads": "32",
                                    "--kv-heads": "8", "--d-model": "4096", "--kv-len": "1024,4096,16384,32768"}),
        Preset("prefill", "a prompt of 512 to 8192 tokens at once and in chunks, d_model 1024, 16 heads",
               {"--mode": "prefill", "--impl": "pytorch_sdpa_flash", "--dtype": "fp32", "--batch": "1", "--heads": "16",
                "--d-model": "1024", "--seq-len": "512,2048,8192", "--chunk": "128,512,2048"}))


_OF_ONE_MODE = {"decode": ("--kv-len", "--tokens", "--value-range"),
                "prefill": ("--seq-len", "--chunk", "--projections")}


def mode_of(table):
    return table.word("--mode", MODES)


def expand(table, settings):
    """The cross product of the options' lists, in attn_bench's order. Raises UsageError."""
    mode = mode_of(table)
    for other, names in _OF_ONE_MODE.items():
        for name in names:
            if other != mode and table.given(name):
                raise UsageError(name, table.text(name), f"not an option of --mode {mode}", f"--mode {other}")
    impls = table.words("--impl", IMPLEMENTATIONS, allow_all=True)
    by_head_dim = bool(table.text("--head-dim"))
    d_models = table.integers("--d-model", 1, MAX_LENGTH)
    heads_or_dims = (table.integers("--head-dim", 1, MAX_HEAD_DIM) if by_head_dim
                     else table.integers("--heads", 1, MAX_COUNT))
    kv_heads_list = table.integers("--kv-heads", 1, MAX_COUNT) if table.text("--kv-heads") else [0]
    batches = table.integers("--batch", 1, MAX_COUNT)
    for dtype in settings.dtypes:
        if dtype == "tf32":
            raise UsageError("--dtype", dtype, "a KV cache holds fp32, bf16 or fp16", "fp32, bf16, fp16")

    def shape(dtype, d_model, heads_or_dim, kv_heads, batch):
        if d_model % heads_or_dim != 0:
            raise table.error("--head-dim" if by_head_dim else "--heads",
                              f"{heads_or_dim} does not divide --d-model {d_model}")
        num_heads = d_model // heads_or_dim if by_head_dim else heads_or_dim
        kv_heads = kv_heads or num_heads
        if num_heads % kv_heads != 0:
            raise table.error("--kv-heads", f"{kv_heads} does not divide the {num_heads} query heads")
        return Problem(batch=batch, num_heads=num_heads, num_kv_heads=kv_heads, head_dim=d_model // num_heads,
                       dtype=dtype)

    shapes = [(impl, shape(dtype, d_model, heads_or_dim, kv_heads, batch)) for impl in impls
              for dtype in settings.dtypes for d_model in d_models for heads_or_dim in heads_or_dims
              for kv_heads in kv_heads_list for batch in batches]
    if mode == "decode":
        ranges = table.integers("--value-range", 0, 1_000_000)
        tokens_list, kv_lens = table.integers("--tokens", 1, 4096), table.integers("--kv-len", 1, MAX_LENGTH)
        if max(tokens_list) > min(kv_lens):
            raise table.error("--tokens",
                              f"{max(tokens_list)} query tokens are more than --kv-len {min(kv_lens)} holds")
        return [Decoding(impl, replace(p, seq_len=tokens, kv_len=kv_len), value_range)
                for value_range in ranges for impl, p in shapes for tokens in tokens_list for kv_len in kv_lens]
    projections = table.flag("--projections")
    seq_lens, chunks = table.integers("--seq-len", 1, MAX_LENGTH), table.integers("--chunk", 1, MAX_LENGTH)
    return [Prefill(impl, replace(p, seq_len=seq_len, kv_len=seq_len), chunk, projections)
            for impl, p in shapes for seq_len in seq_lens for chunk in chunks]
