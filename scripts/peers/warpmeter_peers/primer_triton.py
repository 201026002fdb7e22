"""The primer's kernels in Triton, as its tutorials teach to write them."""

import torch
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.44269504)


def _empty(shape, like, dtype=None):
    return torch.empty(shape, device=like.device, dtype=dtype or like.dtype)


@triton.jit
def _add_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n).to(tl.float32) + 10.0, mask=i < n)


def add(p):
    def call(x):
        y = _empty(x.shape, x)
        block = 4096
        _add_kernel[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), BLOCK=block, num_warps=8)
        return y
    return call


@triton.jit
def _outer_kernel(x, y, z, rows, cols, RELU: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    i = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(0) * COLS + tl.arange(0, COLS)
    of_x = tl.load(x + j, mask=j < cols).to(tl.float32)[None, :]
    of_y = tl.load(y + i, mask=i < rows).to(tl.float32)[:, None]
    values = tl.maximum(of_x * of_y, 0.0) if RELU else of_x + of_y
    tl.store(z + i[:, None] * cols + j[None, :], values, mask=(i < rows)[:, None] & (j < cols)[None, :])


def outer(p, relu):
    def call(x, y):
        z = _empty((p.rows, p.cols), x)
        grid = (triton.cdiv(p.cols, 1024), triton.cdiv(p.rows, 8))
        _outer_kernel[grid](x, y, z, p.rows, p.cols, RELU=relu, ROWS=8, COLS=1024, num_warps=8)
        return z
    return call


@triton.jit
def _relu_backward_kernel(x, y, dz, dx, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    i = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(0) * COLS + tl.arange(0, COLS)
    at = i[:, None] * cols + j[None, :]
    there = (i < rows)[:, None] & (j < cols)[None, :]
    of_y = tl.load(y + i, mask=i < rows).to(tl.float32)[:, None]
    positive = tl.load(x + at, mask=there).to(tl.float32) * of_y > 0
    tl.store(dx + at, tl.where(positive, tl.load(dz + at, mask=there).to(tl.float32) * of_y, 0.0), mask=there)


def outer_mul_relu_backward(p):
    def call(x, y, dz):
        dx = _empty(x.shape, x)
        grid = (triton.cdiv(p.cols, 1024), triton.cdiv(p.rows, 4))
        _relu_backward_kernel[grid](x, y, dz, dx, p.rows, p.cols, ROWS=4, COLS=1024, num_warps=8)
        return dx
    return call


@triton.jit
def _row_sum_kernel(x, w, y, cols, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, cols, BLOCK):
        j = first + tl.arange(0, BLOCK)
        values = tl.load(x + row * cols + j, mask=j < cols, other=0.0).to(tl.float32)
        if WEIGHTED:
            values *= tl.load(w + j, mask=j < cols, other=0.0).to(tl.float32)
        sums += values
    tl.store(y + row, tl.sum(sums))


def row_sum(p, weighted):
    def call(x, w=None):
        y = _empty((p.rows,), x)
        block = min(4096, triton.next_power_of_2(p.cols))
        _row_sum_kernel[(p.rows,)](x, w if weighted else x, y, p.cols, WEIGHTED=weighted, BLOCK=block,
                                   num_warps=4 if block <= 2048 else 8)
        return y
    return call


@triton.jit
def _weighted_sum_backward_kernel(x, w, g, dx, partial, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    j = tl.program_id(0) * COLS + tl.arange(0, COLS)
    of_w = tl.load(w + j, mask=j < cols, other=0.0).to(tl.float32)
    first = tl.program_id(1).to(tl.int64) * ROWS
    sums = tl.zeros((COLS,), tl.float32)
    for i in range(0, ROWS):
        row = first + i
        there = (j < cols) & (row < rows)
        of_g = tl.load(g + row, mask=row < rows, other=0.0).to(tl.float32)
        sums += of_g * tl.load(x + row * cols + j, mask=there, other=0.0).to(tl.float32)
        tl.store(dx + row * cols + j, of_w * of_g, mask=there)
    tl.store(partial + tl.program_id(1) * cols + j, sums, mask=j < cols)


def weighted_sum_backward(p):
    tile = 32

    def call(x, w, g):
        dx, partial = _empty(x.shape, x), _empty((triton.cdiv(p.rows, tile), p.cols), x, torch.float32)
        grid = (triton.cdiv(p.cols, 1024), partial.shape[0])
        _weighted_sum_backward_kernel[grid](x, w, g, dx, partial, p.rows, p.cols, ROWS=tile, COLS=1024, num_warps=8)
        return dx, partial.sum(dim=0).to(x.dtype)
    return call


@triton.jit
def _softmax_three_pass_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * cols
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    for first in range(0, cols, BLOCK):
        j = first + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.load(x + row + j, mask=j < cols, other=float("-inf")).to(tl.float32))
    m = tl.max(most)
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, cols, BLOCK):
        j = first + tl.arange(0, BLOCK)
        values = tl.load(x + row + j, mask=j < cols, other=float("-inf")).to(tl.float32)
        sums += tl.exp2((values - m) * LOG2E)
    s = tl.sum(sums)
    for first in range(0, cols, BLOCK):
        j = first + tl.arange(0, BLOCK)
        values = tl.load(x + row + j, mask=j < cols, other=float("-inf")).to(tl.float32)
        tl.store(y + row + j, tl.exp2((values - m) * LOG2E) / s, mask=j < cols)


@triton.jit
def _softmax_online_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * cols
    m = float("-inf")
    s = 0.0
    for first in range(0, cols, BLOCK):
        j = first + tl.arange(0, BLOCK)
        values = tl.load(x + row + j, mask=j < cols, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(m, tl.max(values))
        s = s * tl.exp2((m - larger) * LOG2E) + tl.sum(tl.exp2((values - larger) * LOG2E))
        m = larger
    for first in range(0, cols, BLOCK):
        j = first + tl.arange(0, BLOCK)
        values = tl.load(x + row + j, mask=j < cols, other=float("-inf")).to(tl.float32)
        tl.store(y + row + j, tl.exp2((values - m) * LOG2E) / s, mask=j < cols)


@triton.jit
def _softmax_one_read_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * cols
    j = tl.arange(0, BLOCK)
    values = tl.load(x + row + j, mask=j < cols, other=float("-inf")).to(tl.float32)
    terms = tl.exp2((values - tl.max(values)) * LOG2E)
    tl.store(y + row + j, terms / tl.sum(terms), mask=j < cols)


def softmax(p, kernel, most_block):
    def call(x):
        y = _empty(x.shape, x)
        block = min(most_block, triton.next_power_of_2(p.cols))
        warps = 4 if block <= 2048 else 8 if block <= 8192 else 16 if block <= 32768 else 32
        kernel[(p.rows,)](x, y, p.cols, BLOCK=block, num_warps=warps)
        return y
    return call


@triton.jit
def _scalar_attention_kernel(q, k, v, y, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    of_q = tl.load(q + i, mask=i < rows, other=0.0).to(tl.float32) * LOG2E
    m = tl.full((ROWS,), float("-inf"), tl.float32)
    s = tl.zeros((ROWS,), tl.float32)
    o = tl.zeros((ROWS,), tl.float32)
    for first in range(0, cols, COLS):
        j = first + tl.arange(0, COLS)
        of_k = tl.load(k + j, mask=j < cols, other=0.0).to(tl.float32)
        of_v = tl.load(v + j, mask=j < cols, other=0.0).to(tl.float32)
        scores = tl.where((j < cols)[None, :], of_q[:, None] * of_k[None, :], float("-inf"))
        larger = tl.maximum(m, tl.max(scores, 1))
        terms = tl.exp2(scores - larger[:, None])
        shrunk = tl.exp2(m - larger)
        s = s * shrunk + tl.sum(terms, 1)
        o = o * shrunk + tl.sum(terms * of_v[None, :], 1)
        m = larger
    tl.store(y + i, o / s, mask=i < rows)


def scalar_attention(p):
    def call(q, k, v):
        y = _empty((p.rows,), q)
        grid = (triton.cdiv(p.rows, 16),)
        _scalar_attention_kernel[grid](q, k, v, y, p.rows, p.cols, ROWS=16, COLS=256, num_warps=4)
        return y
    return call


@triton.jit
def _conv2d_kernel(x, w, z, rows, cols, SIZE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(0) * COLS + tl.arange(0, COLS)
    picture = tl.program_id(2).to(tl.int64) * rows * cols
    sums = tl.zeros((ROWS, COLS), tl.float32)
    for di in range(0, SIZE):
        for dj in range(0, SIZE):
            there = (i + di < rows)[:, None] & (j + dj < cols)[None, :]
            at = picture + (i + di)[:, None] * cols + (j + dj)[None, :]
            sums += tl.load(w + di * SIZE + dj).to(tl.float32) * tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    there = (i < rows)[:, None] & (j < cols)[None, :]
    tl.store(z + picture + i[:, None] * cols + j[None, :], sums, mask=there)


def conv2d(p):
    def call(x, w):
        z = _empty(x.shape, x)
        grid = (triton.cdiv(p.cols, 128), triton.cdiv(p.rows, 16), p.batch)
        _conv2d_kernel[grid](x, w, z, p.rows, p.cols, SIZE=p.kernel_size, ROWS=16, COLS=128, num_warps=4)
        return z
    return call


@triton.jit
def _place(rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr, TOGETHER: tl.constexpr):
    """This program's tile, some rows of tiles together, so that they share what L2 holds."""
    program = tl.program_id(0)
    down, across = tl.cdiv(rows, ROWS), tl.cdiv(cols, COLS)
    first = program // (TOGETHER * across) * TOGETHER
    height = min(down - first, TOGETHER)
    within = program % (TOGETHER * across)
    return first + within % height, within // height


@triton.jit
def _matmul_kernel(x, y, z, rows, cols, inner, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
                   INNER: tl.constexpr, TOGETHER: tl.constexpr):
    batch = tl.program_id(1).to(tl.int64)
    tile_i, tile_j = _place(rows, cols, ROWS, COLS, TOGETHER)
    i = tile_i * ROWS + tl.arange(0, ROWS)
    j = tile_j * COLS + tl.arange(0, COLS)
    k = tl.arange(0, INNER)
    of_x = x + batch * rows * inner + (i % rows)[:, None] * inner + k[None, :]
    of_y = y + batch * inner * cols + k[:, None] * cols + (j % cols)[None, :]
    sums = tl.zeros((ROWS, COLS), tl.float32)
    for first in range(0, inner, INNER):
        left = inner - first
        sums = tl.dot(tl.load(of_x, mask=k[None, :] < left, other=0.0),
                      tl.load(of_y, mask=k[:, None] < left, other=0.0), sums, input_precision=PRECISION)
        of_x += INNER
        of_y += INNER * cols
    there = (i < rows)[:, None] & (j < cols)[None, :]
    tl.store(z + batch * rows * cols + i[:, None] * cols + j[None, :], sums, mask=there)


def _tiles(p):
    """ROWS, COLS, INNER, warps and stages: the tutorial's largest for 16 bits on Hopper, small ones for small
    problems."""
    if p.rows <= 64 or p.cols <= 64:
        return 32, 32, 32, 4, 2
    return (128, 256, 64, 8, 3) if p.dtype != "fp32" else (64, 64, 32, 4, 3)


def batched_matmul(p):
    rows, cols, inner, warps, stages = _tiles(p)

    def call(x, y):
        z = _empty((p.batch, p.rows, p.cols), x)
        grid = (triton.cdiv(p.rows, rows) * triton.cdiv(p.cols, cols), p.batch)
        _matmul_kernel[grid](x, y, z, p.rows, p.cols, p.inner, PRECISION="ieee", ROWS=rows, COLS=cols, INNER=inner,
                             TOGETHER=8, num_warps=warps, num_stages=stages)
        return z
    return call


@triton.jit
def _int4_kernel(w, s, o, y, z, rows, cols, inner, groups, GROUP: tl.constexpr, PRECISION: tl.constexpr,
                 ROWS: tl.constexpr, COLS: tl.constexpr, INNER: tl.constexpr, TOGETHER: tl.constexpr):
    tile_i, tile_j = _place(rows, cols, ROWS, COLS, TOGETHER)
    i = tile_i * ROWS + tl.arange(0, ROWS)
    j = tile_j * COLS + tl.arange(0, COLS)
    words, offset_words = (inner + 7) // 8, (groups + 7) // 8
    of_row = (i % rows)[:, None]
    sums = tl.zeros((ROWS, COLS), tl.float32)
    for first in range(0, inner, INNER):
        k = first + tl.arange(0, INNER)
        there = k < inner
        group = (k // GROUP)[None, :]
        word = tl.load(w + of_row * words + (k // 8)[None, :], mask=there[None, :], other=0)
        offset = tl.load(o + of_row * offset_words + group // 8, mask=there[None, :], other=0)
        weight = ((word >> (4 * (k % 8))[None, :]) & 0xF) - ((offset >> (4 * (group % 8))) & 0xF)
        scale = tl.load(s + of_row * groups + group, mask=there[None, :], other=0.0)
        of_y = tl.load(y + k[:, None] * cols + (j % cols)[None, :], mask=there[:, None], other=0.0)
        sums = tl.dot((weight.to(tl.float32) * scale.to(tl.float32)).to(of_y.dtype), of_y, sums,
                      input_precision=PRECISION)
    tl.store(z + i[:, None] * cols + j[None, :], sums, mask=(i < rows)[:, None] & (j < cols)[None, :])


@triton.jit
def _int4_column_kernel(w, s, o, y, z, rows, inner, groups, GROUP: tl.constexpr, ROWS: tl.constexpr,
                        WORDS: tl.constexpr):
    """One column: a word's eight weights at a time, multiplied and added up."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    words, offset_words = (inner + 7) // 8, (groups + 7) // 8
    of_row = (i % rows)[:, None]
    sums = tl.zeros((ROWS, WORDS), tl.float32)
    for first in range(0, words, WORDS):
        at = first + tl.arange(0, WORDS)
        word = tl.load(w + of_row * words + at[None, :], mask=(at < words)[None, :], other=0)
        products = tl.zeros((ROWS, WORDS), tl.float32)
        for n in tl.static_range(8):
            k = at * 8 + n
            group = tl.minimum(k // GROUP, groups - 1)[None, :]
            offset = tl.load(o + of_row * offset_words + group // 8) >> (4 * (group % 8)) & 0xF
            of_y = tl.load(y + k, mask=k < inner, other=0.0).to(tl.float32)[None, :]
            scale = tl.load(s + of_row * groups + group).to(tl.float32)
            products += (((word >> (4 * n)) & 0xF) - offset).to(tl.float32) * scale * of_y
        sums += products
    tl.store(z + i, tl.sum(sums, 1), mask=i < rows)


def int4_matmul(p):
    rows, cols, inner, warps, stages = _tiles(p)
    if p.dtype != "fp32" and (rows, cols) == (128, 256):
        rows, cols = 128, 128  # weights take registers of their own

    def call(w, s, o, y):
        z = _empty((p.rows, p.cols), y)
        if p.cols == 1:
            _int4_column_kernel[(triton.cdiv(p.rows, 8),)](w, s, o, y, z, p.rows, p.inner, p.groups,
                                                           GROUP=p.group_size, ROWS=8, WORDS=128, num_warps=4)
            return z
        grid = (triton.cdiv(p.rows, rows) * triton.cdiv(p.cols, cols),)
        _int4_kernel[grid](w, s, o, y, z, p.rows, p.cols, p.inner, p.groups, GROUP=p.group_size, PRECISION="ieee",
                           ROWS=rows, COLS=cols, INNER=inner, TOGETHER=8, num_warps=warps, num_stages=stages)
        return z
    return call


def functions(p):
    """{kernel: function of its operands}."""
    made = {
        "add": add, "outer_mul_relu_backward": outer_mul_relu_backward, "weighted_sum_backward": weighted_sum_backward,
        "scalar_attention": scalar_attention, "conv2d": conv2d, "batched_matmul": batched_matmul,
        "int4_matmul": int4_matmul,
        "outer_add": lambda problem: outer(problem, False), "outer_mul_relu": lambda problem: outer(problem, True),
        "row_sum": lambda problem: row_sum(problem, False), "weighted_sum": lambda problem: row_sum(problem, True),
        "softmax_three_pass": lambda problem: softmax(problem, _softmax_three_pass_kernel, 4096),
        "softmax_online": lambda problem: softmax(problem, _softmax_online_kernel, 4096),
        "softmax_one_read": lambda problem: softmax(problem, _softmax_one_read_kernel, 1 << 20),
    }
    return {p.kernel: made[p.kernel](p)}
