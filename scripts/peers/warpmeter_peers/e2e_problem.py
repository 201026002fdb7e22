"""The models and the sweep that options stand for. As tools/e2e_bench/configuration.cpp."""

from dataclasses import dataclass, replace

from .e2e_model import SIZES, ModelConfig
from .grammar import UsageError
from .options import Option, Preset

MAX_COUNT = 2**24
ROW_KEYS = ["size", "precision", "structure", "attention", "mode", "batch", "context", "d_model", "d_ff", "num_layers",
            "num_heads", "vocab"]
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
STRUCTURES = ("pytorch_eager", "pytorch_compiled", "pytorch_compiled_blocks", "pytorch_compiled_graph")
ATTENTIONS = ("naive", "sdpa")
MODES = ("forward", "forward_backward", "train_step")
DIMENSIONS = (("--vocab", "vocab", "Tokens of the vocabulary"), ("--d-model", "d_model", "Width of the model"),
              ("--d-ff", "d_ff", "Inner width of the feed-forward part"), ("--layers", "layers", "Blocks"),
              ("--heads", "heads", "Attention heads"))


@dataclass(frozen=True)
class Configuration:
    size: str
    model: ModelConfig
    precision: str
    structure: str
    attention: str
    batch: int
    context: int
    modes: tuple

    @property
    def training(self):
        return "forward_backward" in self.modes or "train_step" in self.modes

    @property
    def tokens(self):
        return self.batch * self.context

    def fields(self):
        m = self.model
        return {"size": self.size, "precision": self.precision, "structure": self.structure,
                "attention": self.attention, "mode": ",".join(self.modes), "batch": self.batch,
                "context": self.context, "d_model": m.d_model, "d_ff": m.d_ff, "num_layers": m.layers,
                "num_heads": m.heads, "vocab": m.vocab}

    def option_values(self):
        custom = self.size == "custom"
        values = {"--size": "tiny" if custom else self.size, "--precision": self.precision,
                  "--structure": self.structure, "--attention": self.attention, "--mode": ",".join(self.modes),
                  "--batch": str(self.batch), "--context": str(self.context)}
        for option, field, _ in DIMENSIONS:
            values[option] = str(getattr(self.model, field)) if custom else ""
        return values


def add_options(table):
    counts = "whole numbers from 1: a list or range such as 128,256 or 128:1024:x2"

    def option(name, metavar, default, accepted, text, **more):
        table.add(Option(name, text, metavar, default, accepted, "Configurations", row_option=True, **more))

    option("--size", "NAMES", "small", ", ".join(SIZES) + ", or all",
           "Models by name; the options below change single dimensions.")
    option("--mode", "NAMES", ",".join(MODES), ", ".join(MODES) + ", with commas between",
           "Phases to time. The optimizer's state is resident in the last two; train_step adds clipping and AdamW.")
    option("--precision", "NAMES", "fp32", ", ".join(PRECISIONS) + ", or all",
           "bf16 and fp16 are torch.autocast, fp16 with GradScaler.")
    option("--structure", "NAMES", "pytorch_eager", ", ".join(STRUCTURES) + ", or all",
           "Eager, or torch.compile with the fused AdamW: of the whole model, minutes for a large one, or of its "
           "blocks, which are compiled once for all of them; as one CUDA graph a phase these cost no launches.")
    option("--attention", "NAMES", "naive", ", ".join(ATTENTIONS) + ", or all",
           "The formula, or scaled_dot_product_attention.")
    option("--batch", "LIST", "4", counts, "Sequences of a step.")
    option("--context", "LIST", "256", counts, "Tokens of a sequence.")
    for name, _, text in DIMENSIONS:
        option(name, "N", "", "a whole number from 1", text + ", instead of the size's.", default_note="the size's")
    five = "small,medium,large,xl,7B"
    table.add_presets(
        Preset("notes", "the notes' table: small to 7B, eager, fp32, batch 4, context 256",
               {"--size": five, "--mode": "forward,forward_backward", "--precision": "fp32", "--batch": "4",
                "--context": "256"}),
        Preset("quick", "tiny, eager, in half a minute on two CPU cores",
               {"--size": "tiny", "--precision": "fp32", "--batch": "4", "--context": "256", "--warmup": "2",
                "--max-time": "1"}),
        Preset("compiled", "compiled with SDPA beside eager, every size, bf16",
               {"--size": five, "--precision": "bf16", "--structure": "pytorch_eager,pytorch_compiled",
                "--attention": "sdpa", "--batch": "4", "--context": "256"}))


def expand(table, _settings):
    """The cross product of the options' lists, sizes innermost. Raises UsageError."""
    modes = tuple(mode for mode in MODES if mode in table.words("--mode", MODES))
    models = []
    for name in table.words("--size", tuple(SIZES), allow_all=True):
        model = SIZES[name]
        for option, field, _ in DIMENSIONS:
            if table.has(option):
                model = replace(model, **{field: table.integer(option, 1, MAX_COUNT)})
        reason = _invalid_reason(model)
        if reason:
            for option in ("--heads", "--d-model"):
                if table.has(option):
                    raise table.error(option, reason)
            raise UsageError(f"--size {name}: {reason}")
        found = (name if model == SIZES[name] else "custom", model)
        if found not in models:
            models.append(found)
    return [Configuration(size, model, precision, structure, attention, batch, context, modes)
            for precision in table.words("--precision", PRECISIONS, allow_all=True)
            for structure in table.words("--structure", STRUCTURES, allow_all=True)
            for attention in table.words("--attention", ATTENTIONS, allow_all=True)
            for batch in table.integers("--batch", 1, MAX_COUNT)
            for context in table.integers("--context", 1, MAX_COUNT)
            for size, model in models]


def _invalid_reason(model):
    if model.d_model % model.heads:
        return f"{model.heads} heads do not divide d_model {model.d_model}"
    if model.head_dim % 2:
        return (f"d_model {model.d_model} over {model.heads} heads gives head_dim {model.head_dim}, and RoPE turns "
                "pairs: it must be even")
    return None
