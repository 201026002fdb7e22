#pragma once

#include <cstdint>

#include <cuda_runtime.h>

/// The plain formulas in fp64, one thread block a row: slow, for checking variants on the device that runs them.
namespace warpmeter::attention::flash_bench {

template <class T>
struct ReferenceProblem {
  int heads, kv_heads, seq_len, kv_len, head_dim;  // heads: batch x heads; dense (heads, rows, head_dim)
  bool causal;
  const T *q, *k, *v, *d_o;
  double *o, *lse, *d, *dq, *dk, *dv;
};

template <class T>
__device__ inline double dot(const T* a, const T* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(static_cast<float>(a[i])) * static_cast<float>(b[i]);
  return sum;
}

template <class T>
__device__ inline bool visible(const ReferenceProblem<T>& p, int query, int key) {
  return !p.causal || key <= query + p.kv_len - p.seq_len;
}

/// Grid (seq_len, heads), 128 threads. O, LSE, D and dQ of one query.
template <class T>
__global__ void reference_query_kernel(ReferenceProblem<T> p) {
  extern __shared__ double s[];
  __shared__ double max_s, sum_s, d_s;
  const int query = blockIdx.x, head = blockIdx.y, kv_head = head / (p.heads / p.kv_heads), n = p.head_dim;
  const std::int64_t row = static_cast<std::int64_t>(head) * p.seq_len + query;
  const T* k = p.k + static_cast<std::int64_t>(kv_head) * p.kv_len * n;
  const T* v = p.v + static_cast<std::int64_t>(kv_head) * p.kv_len * n;
  const double scale = 1.0 / sqrt(static_cast<double>(n));
  for (int j = threadIdx.x; j < p.kv_len; j += blockDim.x) {
    s[j] = visible(p, query, j) ? scale * dot(p.q + row * n, k + static_cast<std::int64_t>(j) * n, n) : -INFINITY;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double largest = -INFINITY, sum = 0;
    for (int j = 0; j < p.kv_len; ++j) largest = fmax(largest, s[j]);
    for (int j = 0; j < p.kv_len; ++j) sum += largest == -INFINITY ? 0 : exp(s[j] - largest);
    max_s = largest;
    sum_s = sum;
    p.lse[row] = sum > 0 ? largest + log(sum) : -INFINITY;
  }
  __syncthreads();
  for (int j = threadIdx.x; j < p.kv_len; j += blockDim.x) s[j] = sum_s > 0 ? exp(s[j] - max_s) / sum_s : 0;
  __syncthreads();
  for (int c = threadIdx.x; c < n; c += blockDim.x) {
    double sum = 0;
    for (int j = 0; j < p.kv_len; ++j) sum += s[j] * static_cast<float>(v[static_cast<std::int64_t>(j) * n + c]);
    p.o[row * n + c] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double sum = 0;
    for (int c = 0; c < n; ++c) sum += p.o[row * n + c] * static_cast<float>(p.d_o[row * n + c]);
    d_s = p.d[row] = sum;
  }
  __syncthreads();
  for (int j = threadIdx.x; j < p.kv_len; j += blockDim.x) {
    if (s[j] > 0) s[j] *= dot(p.d_o + row * n, v + static_cast<std::int64_t>(j) * n, n) - d_s;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < n; c += blockDim.x) {
    double sum = 0;
    for (int j = 0; j < p.kv_len; ++j) sum += s[j] * static_cast<float>(k[static_cast<std::int64_t>(j) * n + c]);
    p.dq[row * n + c] = scale * sum;
  }
}

/// Grid (kv_len, kv heads), 128 threads, after reference_query_kernel. dK and dV of one key.
template <class T>
__global__ void reference_key_kernel(ReferenceProblem<T> p) {
  extern __shared__ double s[];
  double* const ds = s + p.seq_len;
  const int key = blockIdx.x, kv_head = blockIdx.y, group = p.heads / p.kv_heads, n = p.head_dim;
  const std::int64_t row = static_cast<std::int64_t>(kv_head) * p.kv_len + key;
  const double scale = 1.0 / sqrt(static_cast<double>(n));
  for (int c = threadIdx.x; c < n; c += blockDim.x) p.dk[row * n + c] = p.dv[row * n + c] = 0;
  for (int g = 0; g < group; ++g) {
    const std::int64_t first = static_cast<std::int64_t>(kv_head * group + g) * p.seq_len;
    __syncthreads();
    for (int i = threadIdx.x; i < p.seq_len; i += blockDim.x) {
      const T* q = p.q + (first + i) * n;
      const T* d_o = p.d_o + (first + i) * n;
      s[i] = ds[i] = 0;
      if (visible(p, i, key)) {
        s[i] = exp(scale * dot(q, p.k + row * n, n) - p.lse[first + i]);
        ds[i] = s[i] * (dot(d_o, p.v + row * n, n) - p.d[first + i]);
      }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < n; c += blockDim.x) {
      double dk = 0, dv = 0;
      for (int i = 0; i < p.seq_len; ++i) {
        dv += s[i] * static_cast<float>(p.d_o[(first + i) * n + c]);
        dk += ds[i] * static_cast<float>(p.q[(first + i) * n + c]);
      }
      p.dk[row * n + c] += scale * dk;
      p.dv[row * n + c] += dv;
    }
  }
}

}  // namespace warpmeter::attention::flash_bench
