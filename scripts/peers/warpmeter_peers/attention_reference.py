"""PyTorch's results against the formula in fp64, within the bounds that hold for the suite's own kernels.

As kernels/attention/verify.hpp, which derives the bounds; here on the device, group by group, and without LSE, which
PyTorch does not hand out. Large problems are compared in some whole (batch, key/value head) groups.
"""

import random

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-8, "fp16": 2.0**-11}
RELATIVE = {"fp32": 1e-5, "tf32": 1e-3}


class _Scale:
    """Largest error, reference and rounded formula's error of one output over the groups looked at."""

    def __init__(self):
        self.error = self.reference = self.yardstick = 0.0
        self.worst = ""

    def add(self, torch, got, exact, rounded, place):
        self.reference = max(self.reference, float(exact.abs().max()))
        if rounded is not None:
            difference = (rounded - exact).abs()
            self.yardstick = max(self.yardstick, float(difference[difference.isfinite()].max()))
        error = (got.to(torch.float64) - exact).abs()
        # NaN never passes: it counts as more than anything.
        flat = torch.where(error.isnan(), torch.full_like(error, float("inf")), error).flatten()
        index = int(flat.argmax())
        if float(flat[index]) > self.error or not self.worst:
            self.error = float(flat[index])
            (head, row), col = divmod(index // got.shape[2], got.shape[1]), index % got.shape[2]
            self.worst = (f"b{place[0]} h{place[1] + head} row {row} col {col}: got {float(got[head, row, col]):.6g}, "
                          f"expected {float(exact[head, row, col]):.6g}")


class Checker:
    def __init__(self, torch, problem, q, k, v, backward, seed, work_budget):
        self._torch, self._problem, self._operands = torch, problem, (q, k, v)
        groups = problem.batch * problem.num_kv_heads
        pairs = problem.group_size * problem.seq_len * problem.kv_len
        work = pairs * (problem.head_dim * (7 if backward else 2) + 32)
        if problem.dtype in ("bf16", "fp16"):
            work *= 2
        wanted = min(groups, max(1, int(work_budget / work)))
        self.sampled = wanted < groups
        self._groups = range(groups)
        if self.sampled:
            others = random.Random(seed).sample(range(1, groups), wanted - 1) if wanted > 1 else []
            self._groups = sorted([0, *others])
        # Rows of a score matrix that fit in some tens of MiB.
        elements = (1 << 24) if q.device.type == "cuda" else (1 << 21)
        self._rows = max(1, min(problem.seq_len, elements // (problem.group_size * problem.kv_len)))

    def check(self, o, d_o=None, gradients=None):
        """(largest relative error, "" or what fails). d_o and gradients (dq, dk, dv): all or none."""
        torch, p = self._torch, self._problem
        names = ["o"] + (["dq", "dk", "dv"] if gradients else [])
        scales = {name: _Scale() for name in names}
        term = max_q = max_k = 0.0
        with torch.no_grad():
            for index in self._groups:
                batch, kv_head = divmod(index, p.num_kv_heads)
                heads = slice(kv_head * p.group_size, (kv_head + 1) * p.group_size)
                exact, group_term = self._evaluate(batch, kv_head, heads, None, d_o)
                rounded = None
                if p.dtype in ("bf16", "fp16"):
                    rounded, _ = self._evaluate(batch, kv_head, heads, self._storage(), d_o)
                term = max(term, group_term)
                max_q = max(max_q, float(self._operands[0][batch, heads].abs().max()))
                max_k = max(max_k, float(self._operands[1][batch, kv_head].abs().max()))
                got = {"o": o[batch, heads]}
                if gradients:
                    dq, dk, dv = gradients
                    got.update(dq=dq[batch, heads], dk=dk[batch, kv_head][None], dv=dv[batch, kv_head][None])
                for name in names:
                    first = heads.start if name in ("o", "dq") else kv_head
                    scales[name].add(torch, got[name], exact[name], rounded[name] if rounded else None, (batch, first))
        cancelling = {"dq": term * p.scale * max_k, "dk": term * p.scale * max_q}
        largest, failure = 0.0, ""
        for name, scale in scales.items():
            if scale.error:
                largest = max(largest, scale.error / scale.reference if scale.reference else float("inf"))
            bound = tolerance(p.dtype, scale.reference, scale.yardstick, cancelling.get(name, 0.0))
            if not scale.error <= bound and not failure:
                failure = (f"{name} is off by {scale.error:.3g}, allowed {bound:.3g} (largest {scale.reference:.3g}); "
                           f"{scale.worst}")
        return largest, failure

    def _storage(self):
        return self._torch.bfloat16 if self._problem.dtype == "bf16" else self._torch.float16

    def _evaluate(self, batch, kv_head, heads, storage, d_o):
        """The formula for one group, each step rounded to `storage` where that is given."""
        torch, p = self._torch, self._problem
        q, k, v, d_o = (None if tensor is None else tensor[batch][where].to(torch.float64) for tensor, where in
                        zip((*self._operands, d_o), (heads, kv_head, kv_head, heads)))
        backward = d_o is not None

        def stored(tensor):
            return tensor if storage is None else tensor.to(storage).to(torch.float64)

        out = {"o": torch.empty_like(q)}
        if backward:
            out.update(dq=torch.empty_like(q), dk=torch.zeros_like(k), dv=torch.zeros_like(v))
        term = 0.0
        keys = torch.arange(p.kv_len, device=q.device)
        for begin in range(0, p.seq_len, self._rows):
            rows = slice(begin, min(begin + self._rows, p.seq_len))
            scores = stored(stored(q[:, rows] @ k.T) * p.scale)
            if not p.sees_everything:
                queries = torch.arange(rows.start, rows.stop, device=q.device)
                scores.masked_fill_(keys[None, :] > queries[:, None] + (p.kv_len - p.seq_len), float("-inf"))
            weights = stored(torch.softmax(scores, dim=-1).nan_to_num_(0.0))
            del scores
            o = stored(weights @ v)
            out["o"][:, rows] = o
            if not backward:
                continue
            d_rows = d_o[:, rows]
            out["dv"] += (weights.transpose(-2, -1) @ d_rows).sum(0)
            d_weights = stored(d_rows @ v.T)
            if storage is None:
                norm = (o * d_rows).pow(2).sum(-1, keepdim=True).sqrt()
                term = max(term, float((weights * (d_weights.abs() + norm)).max()))
            mean = (weights * d_weights).sum(-1, keepdim=True)
            d_scores = stored(stored(weights * (d_weights - mean)) * p.scale)
            del weights, d_weights
            out["dq"][:, rows] = stored(d_scores @ k)
            out["dk"] += (d_scores.transpose(-2, -1) @ q[:, rows]).sum(0)
        if backward:
            out["dk"], out["dv"] = stored(out["dk"])[None], stored(out["dv"])[None]
        return out, term


def tolerance(dtype, reference, yardstick, cancelling):
    """Largest error allowed: see kernels/attention/verify.hpp."""
    unit = UNIT_ROUNDOFF[dtype]
    if dtype in RELATIVE:
        return RELATIVE[dtype] * reference + 4 * unit * cancelling
    return 2 * yardstick + unit * max(reference, cancelling)
