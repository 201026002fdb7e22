"""The model of e2e_bench in PyTorch: token embedding, pre-norm blocks, final norm, untied head; no biases."""

import math
from dataclasses import dataclass

EPSILON, THETA = 1e-5, 10000.0


@dataclass(frozen=True)
class ModelConfig:
    vocab: int = 10_000
    d_model: int = 64
    d_ff: int = 256
    layers: int = 2
    heads: int = 4

    @property
    def head_dim(self):
        return self.d_model // self.heads

    @property
    def parameters(self):
        a_layer = 4 * self.d_model**2 + 3 * self.d_model * self.d_ff + 2 * self.d_model
        return 2 * self.vocab * self.d_model + self.layers * a_layer + self.d_model

    def forward_flops(self, batch, context):
        """As kernels/transformer/config.cpp: linear layers, head included, and the attention's visible pairs."""
        linear = self.layers * (4 * self.d_model**2 + 3 * self.d_model * self.d_ff) + self.vocab * self.d_model
        return 2.0 * batch * context * linear + 4.0 * self.layers * batch * context * (context + 1) / 2 * self.d_model


SIZES = {
    "tiny": ModelConfig(10_000, 64, 256, 2, 4),
    "small": ModelConfig(10_000, 768, 3072, 12, 12),
    "medium": ModelConfig(10_000, 1024, 4096, 24, 16),
    "large": ModelConfig(10_000, 1280, 5120, 36, 20),
    "xl": ModelConfig(10_000, 1600, 6400, 48, 25),
    "7B": ModelConfig(10_000, 2560, 10_240, 32, 32),
}


def build(torch, config, context, device, attention="naive"):
    """The model with the suite's initial distributions. `attention`: "naive" (the formula) or "sdpa"."""
    nn, functional = torch.nn, torch.nn.functional

    class RmsNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(config.d_model, device=device))

        def forward(self, x):
            kind = x.dtype
            x = x.float()
            return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * self.weight).to(kind)

    def linear(inner, outer):
        layer = nn.Linear(inner, outer, bias=False, device=device)
        nn.init.normal_(layer.weight, std=math.sqrt(2 / (inner + outer)))
        return layer

    frequencies = THETA ** (-torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
    angles = torch.outer(torch.arange(context, dtype=torch.float64), frequencies)
    cosines, sines = angles.cos().float().to(device), angles.sin().float().to(device)
    hidden = torch.ones(context, context, dtype=torch.bool, device=device).triu_(1)

    def rotate(x):
        """Interleaved pairs of (batch, heads, context, head_dim)."""
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack((even * cosines - odd * sines, even * sines + odd * cosines), dim=-1)
        return turned.flatten(-2).to(x.dtype)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            for name in ("q_proj", "k_proj", "v_proj", "output_proj"):
                setattr(self, name, linear(config.d_model, config.d_model))

        def forward(self, x):
            batch = x.shape[0]

            def heads(projection):
                return projection(x).view(batch, context, config.heads, config.head_dim).transpose(1, 2)

            q, k, v = rotate(heads(self.q_proj)), rotate(heads(self.k_proj)), heads(self.v_proj)
            if attention == "sdpa":
                out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(config.head_dim)
                out = torch.matmul(torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1), v)
            return self.output_proj(out.transpose(1, 2).reshape(batch, context, config.d_model))

    class SwiGlu(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1 = linear(config.d_model, config.d_ff)
            self.w3 = linear(config.d_model, config.d_ff)
            self.w2 = linear(config.d_ff, config.d_model)

        def forward(self, x):
            return self.w2(functional.silu(self.w1(x)) * self.w3(x))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.attn, self.ln2, self.ffn = RmsNorm(), Attention(), RmsNorm(), SwiGlu()

        def forward(self, x):
            x = x + self.attn(self.ln1(x))
            return x + self.ffn(self.ln2(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.token_embeddings = nn.Embedding(config.vocab, config.d_model, device=device)
            self.layers = nn.ModuleList(Block() for _ in range(config.layers))
            self.ln_final = RmsNorm()
            self.lm_head = linear(config.d_model, config.vocab)

        def forward(self, tokens):
            x = self.token_embeddings(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.lm_head(self.ln_final(x))

    return Model()


def parameter_order(config):
    """Names in the order of kernels/transformer/parameter_layout.cpp."""
    parts = ("ln1.weight", "attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight", "attn.output_proj.weight",
             "ln2.weight", "ffn.w1.weight", "ffn.w3.weight", "ffn.w2.weight")
    layers = [f"layers.{layer}.{part}" for layer in range(config.layers) for part in parts]
    return ["token_embeddings.weight", *layers, "ln_final.weight", "lm_head.weight"]
