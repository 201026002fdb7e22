// Where a decoding step's time goes: one kernel's launches under every choice that the plan makes, beside an empty
// kernel and a plain read of as many bytes. Each sample: the L2 filled with other (written) lines, or not; a kernel
// that holds the stream while the work is enqueued; two events. Prints medians in microseconds.
//
//     decode_bench [batch kv_heads group kv_len]...    (default: a list)

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/attention/cuda/decode/params.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace {

using namespace warpmeter::attention;
using namespace warpmeter::attention::cuda_decode;

constexpr int kHeadDim = 128;
constexpr int kSamples = 25;

__global__ void hold(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}
__global__ void nothing() {}
/// The floor of a launch like ours: in clusters, with as much shared memory, and one barrier of the cluster.
__global__ void nothing_in_clusters() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}
void launch_nothing(int blocks, int threads, int cluster, std::size_t shared, cudaStream_t stream) {
  WM_CUDA_CHECK(cudaFuncSetAttribute(nothing_in_clusters, cudaFuncAttributeMaxDynamicSharedMemorySize, 120 << 10));
  WM_CUDA_CHECK(cudaFuncSetAttribute(nothing_in_clusters, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  WM_CUDA_CHECK(cudaLaunchKernelEx(&config, nothing_in_clusters));
}
__global__ void __launch_bounds__(512) read_all(const uint4* data, long long count, uint4* out) {
  uint4 sum = make_uint4(0, 0, 0, 0);
  for (long long i = blockIdx.x * 512ll + threadIdx.x; i < count; i += gridDim.x * 512ll) {
    const uint4 x = __ldcs(data + i);
    sum.x ^= x.x;
    sum.y ^= x.y;
    sum.z ^= x.z;
    sum.w ^= x.w;
  }
  if (sum.x == 0x12345678u) *out = sum;
}
__global__ void fill(__nv_bfloat16* data, long long count) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
    data[i] = __float2bfloat16(static_cast<float>((i * 2654435761ll >> 7) % 255 - 127) / 64.0f);
  }
}

enum class Before { hot, written, read };

struct Bench {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  void *flush = nullptr, *other = nullptr, *sink = nullptr;
  std::size_t flush_bytes = 0;
  cudaDeviceProp device{};

  Bench() {
    WM_CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
    flush_bytes = static_cast<std::size_t>(device.l2CacheSize);
    WM_CUDA_CHECK(cudaStreamCreate(&stream));
    WM_CUDA_CHECK(cudaEventCreate(&begin));
    WM_CUDA_CHECK(cudaEventCreate(&end));
    WM_CUDA_CHECK(cudaMalloc(&flush, flush_bytes));
    WM_CUDA_CHECK(cudaMalloc(&other, 2 * flush_bytes));
    WM_CUDA_CHECK(cudaMalloc(&sink, 64));
    WM_CUDA_CHECK(cudaMemset(other, 0, 2 * flush_bytes));
  }

  template <class Work>
  float median_us(Before before, const Work& work, int samples = kSamples) {
    std::vector<float> times;
    for (int i = -2; i < samples; ++i) {
      if (before != Before::hot) WM_CUDA_CHECK(cudaMemsetAsync(flush, 0, flush_bytes, stream));
      if (before == Before::read) {
        read_all<<<1024, 512, 0, stream>>>(static_cast<const uint4*>(other), static_cast<long long>(flush_bytes / 8),
                                           static_cast<uint4*>(sink));
      }
      WM_CUDA_CHECK(cudaStreamSynchronize(stream));
      hold<<<1, 1, 0, stream>>>(150'000);
      WM_CUDA_CHECK(cudaEventRecord(begin, stream));
      work();
      WM_CUDA_CHECK(cudaEventRecord(end, stream));
      WM_CUDA_CHECK(cudaStreamSynchronize(stream));
      float ms = 0;
      WM_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
      if (i >= 0) times.push_back(ms * 1e3f);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
};

struct Shape {
  int batch, kv_heads, group, kv_len;
};

void measure(Bench& bench, const Shape& s) {
  const long long elements = 1ll * s.batch * s.kv_heads * s.kv_len * kHeadDim;
  __nv_bfloat16 *k = nullptr, *v = nullptr, *q = nullptr, *o = nullptr;
  float *lse = nullptr, *parts = nullptr;
  const long long rows = 1ll * s.batch * s.kv_heads * s.group;
  constexpr int kMostParts = 128;
  WM_CUDA_CHECK(cudaMalloc(&k, elements * 2));
  WM_CUDA_CHECK(cudaMalloc(&v, elements * 2));
  WM_CUDA_CHECK(cudaMalloc(&q, rows * kHeadDim * 2));
  WM_CUDA_CHECK(cudaMalloc(&o, rows * kHeadDim * 2));
  WM_CUDA_CHECK(cudaMalloc(&lse, rows * 4));
  WM_CUDA_CHECK(cudaMalloc(&parts, rows * kMostParts * (kHeadDim + 2) * 4));
  fill<<<2048, 256>>>(k, elements);
  fill<<<2048, 256>>>(v, elements);
  fill<<<256, 256>>>(q, rows * kHeadDim);
  WM_CUDA_CHECK(cudaDeviceSynchronize());

  Params p;
  p.q = q;
  p.k = k;
  p.v = v;
  p.o = o;
  p.lse = lse;
  p.head_stride = 1ll * s.kv_len * kHeadDim;
  p.page_stride = p.head_stride * s.kv_heads;
  p.row_stride = kHeadDim;
  p.q_token_stride = p.q_head_stride = p.o_token_stride = p.o_head_stride = kHeadDim;
  p.q_batch_stride = p.o_batch_stride = 1ll * s.kv_heads * s.group * kHeadDim;
  p.batch = s.batch;
  p.num_heads = s.kv_heads * s.group;
  p.num_kv_heads = s.kv_heads;
  p.tokens = 1;
  p.group = p.rows = s.group;
  p.head_dim = p.part_width = kHeadDim;
  p.block = 64;
  p.uniform_length = s.kv_len;
  p.scale = 0.088388f;
  p.query_element = p.cache_element = Element::bf16;

  const double bytes = 4.0 * static_cast<double>(elements);
  std::printf("b%d h%d/%d kv %d (%.1f MB)", s.batch, s.kv_heads * s.group, s.kv_heads, s.kv_len, bytes / 1e6);
  for (const Before before : {Before::hot, Before::written, Before::read}) {
    const float read = bench.median_us(before, [&] {
      read_all<<<bench.device.multiProcessorCount * 4, 512, 0, bench.stream>>>(
          reinterpret_cast<const uint4*>(k), elements / 8, static_cast<uint4*>(bench.sink));
      read_all<<<bench.device.multiProcessorCount * 4, 512, 0, bench.stream>>>(
          reinterpret_cast<const uint4*>(v), elements / 8, static_cast<uint4*>(bench.sink));
    });
    std::printf("  read %.1f", static_cast<double>(read));
  }
  std::printf("\n");
  const int slots = bench.device.multiProcessorCount * 2;
  for (const int splits : {1, 2, 4, 8, 16, 32}) {
    if (splits > s.kv_len / 64) continue;
    if (1ll * s.batch * s.kv_heads * splits > 40 * slots) continue;
    if (s.batch * s.kv_heads * splits < 32) continue;
    p.parts = splits;
    p.uniform_blocks = (s.kv_len + p.block - 1) / p.block;
    p.uniform_share = p.uniform_blocks / splits;
    for (const Join join : {Join::none, Join::cluster, Join::last_block, Join::kernel}) {
      if ((join == Join::none) != (splits == 1)) continue;
      if (join == Join::cluster && (splits > 16 || s.batch * s.kv_heads * splits > slots)) continue;
      p.join = join;
      enum class Way { plain, wide, small, short_sequence };
      for (const Way way : {Way::plain, Way::wide, Way::small, Way::short_sequence}) {
        const bool small = way == Way::small;
        const int groups = (s.kv_len / splits + 63) / 64;
        if (small && groups >= 3) continue;
        if (way == Way::wide && (s.group > 16 || s.batch * s.kv_heads * splits > bench.device.multiProcessorCount))
          continue;
        p.shape = way == Way::wide ? DecodeBlock::wide : DecodeBlock::usual;
        p.short_groups = way == Way::short_sequence ? short_groups(p) : 0;
        if (way == Way::short_sequence && p.short_groups == 0) continue;
        p.stages = small ? groups : 8;
        std::printf("  s%-3d %-10s%s", splits,
                    join == Join::none      ? "none"
                    : join == Join::cluster ? "cluster"
                    : join == Join::kernel  ? "kernel"
                                            : "last_block",
                    small                        ? " small"
                    : way == Way::wide           ? " wide"
                    : way == Way::short_sequence ? " short"
                                                 : "");
        for (const bool pass : {false, true}) {
          p.pass_l2 = pass;
          for (const Before before : {Before::hot, Before::written, Before::read}) {
            const float us = bench.median_us(before, [&] {
              p.part_o = parts;
              p.part_m = parts + rows * splits * kHeadDim;
              p.part_l = p.part_m + rows * splits;
              if (join == Join::last_block) p.counters = next_counters(s.batch * s.kv_heads);
              launch_streams(p, bench.stream);
              if (join == Join::kernel) launch_merge(p, bench.stream);
            });
            std::printf("  %.1f", static_cast<double>(us));
          }
          std::printf(pass ? "\n" : "  |");
        }
      }
    }
  }
  std::fflush(stdout);
  for (void* pointer : {static_cast<void*>(k), static_cast<void*>(v), static_cast<void*>(q), static_cast<void*>(o),
                        static_cast<void*>(lse), static_cast<void*>(parts)}) {
    WM_CUDA_CHECK(cudaFree(pointer));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Bench bench;
    std::printf("hot, L2 written, L2 read: us; then the same with keys and values first to leave the L2\n");
    for (const Before before : {Before::hot, Before::written, Before::read}) {
      std::printf("nothing %.1f  ",
                  static_cast<double>(bench.median_us(before, [&] { nothing<<<132, 128, 0, bench.stream>>>(); })));
    }
    std::printf("\n");
    for (const int cluster : {1, 8, 16}) {
      for (const std::size_t shared : {std::size_t{0}, std::size_t{100} << 10}) {
        for (const int threads : {128, 256}) {
          std::printf("nothing, clusters of %d, %zu KiB, %d threads: %.1f\n", cluster, shared >> 10, threads,
                      static_cast<double>(bench.median_us(
                          Before::written, [&] { launch_nothing(64, threads, cluster, shared, bench.stream); })));
        }
      }
    }
    std::vector<Shape> shapes;
    for (int i = 1; i + 3 < argc; i += 4) {
      shapes.push_back({std::atoi(argv[i]), std::atoi(argv[i + 1]), std::atoi(argv[i + 2]), std::atoi(argv[i + 3])});
    }
    if (shapes.empty()) {
      shapes = {{1, 8, 4, 1024},  {1, 8, 4, 4096},  {16, 8, 4, 1024},  {16, 8, 4, 4096}, {16, 8, 4, 16384},
                {64, 8, 4, 1024}, {64, 8, 4, 4096}, {64, 8, 4, 16384}, {1, 8, 4, 32768}};
    }
    for (const Shape& shape : shapes) measure(bench, shape);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decode_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
