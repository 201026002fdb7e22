// layers_bench: time and bandwidth of every operation on the first CUDA device, at a model's sizes and at large ones.
//
//     layers_bench [SUBSTRING]     only operations whose name has it; "matmul" is the products
//
// One JSON line an operation on stdout. gbps is the operation's least bytes (its bytes()) over its time.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <limits>

#include <cuda_runtime_api.h>

#include "kernels/layers/adamw.hpp"
#include "kernels/layers/cross_entropy.hpp"
#include "kernels/layers/dev/layers_bench/bench.hpp"
#include "kernels/layers/elementwise.hpp"
#include "kernels/layers/embedding.hpp"
#include "kernels/layers/gradient_norm.hpp"
#include "kernels/layers/rmsnorm.hpp"
#include "kernels/layers/rope.hpp"
#include "kernels/layers/swiglu.hpp"
#include "kernels/runtime/cuda_check.hpp"
#include "kernels/runtime/random.hpp"

namespace warpmeter::layers::bench {

double time_us(const Context& context, int calls, const std::function<void()>& work) {
  auto* stream = static_cast<cudaStream_t>(context.stream.handle);
  work();  // loads kernels
  WM_CUDA_CHECK(cudaStreamSynchronize(stream));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  WM_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) work();
  WM_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  WM_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin = nullptr, end = nullptr;
  WM_CUDA_CHECK(cudaEventCreate(&begin));
  WM_CUDA_CHECK(cudaEventCreate(&end));
  float best = std::numeric_limits<float>::infinity();
  for (int round = 0; round < 6; ++round) {
    WM_CUDA_CHECK(cudaEventRecord(begin, stream));
    WM_CUDA_CHECK(cudaGraphLaunch(exec, stream));
    WM_CUDA_CHECK(cudaEventRecord(end, stream));
    WM_CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    WM_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (round > 0) best = std::min(best, ms);
  }
  WM_CUDA_CHECK(cudaEventDestroy(begin));
  WM_CUDA_CHECK(cudaEventDestroy(end));
  WM_CUDA_CHECK(cudaGraphExecDestroy(exec));
  WM_CUDA_CHECK(cudaGraphDestroy(graph));
  return 1e3 * static_cast<double>(best) / calls;
}

Tensor random(const Context& context, std::int64_t count, DType dtype, float deviation) {
  Tensor tensor(context, {count}, dtype);
  fill_normal(tensor, 1, static_cast<std::uint64_t>(count), context.stream, deviation);
  return tensor;
}

namespace {

class Bench {
 public:
  Bench(const Context& context, std::string only) : context_(context), only_(std::move(only)) {}

  void run() const {
    if (wanted("copy")) copy();
    struct Size {
      std::int64_t rows, width, inner, heads;
    };
    for (const DType dtype : {DType::bf16, DType::fp32}) {
      for (const Size& s : {Size{1024, 768, 3072, 12}, Size{1024, 2560, 10240, 32}, Size{65536, 1600, 6400, 25}}) {
        rows(dtype, s.rows, s.width, s.inner, s.heads);
      }
      for (const std::int64_t count : {1024, 16384}) loss(dtype, count, 10000);
      loss(dtype, 4096, 50257);
    }
    optimizer(128'625'408);
    optimizer(1'000'000'000);
    if (wanted("matmul")) time_products(context_, only_ == "matmul" ? "" : only_);
  }

 private:
  Context context_;
  std::string only_;

  [[nodiscard]] bool wanted(const std::string& name) const {
    return name.find(only_) != std::string::npos || (!only_.empty() && only_.find(name) != std::string::npos);
  }
  [[nodiscard]] Tensor empty(std::int64_t count, DType dtype) const { return {context_, {count}, dtype}; }

  void print(const std::string& name, DType dtype, std::int64_t rows, std::int64_t width, double us,
             double bytes) const {
    std::printf("{\"op\": \"%s\", \"dtype\": \"%s\", \"rows\": %lld, \"width\": %lld, \"us\": %.2f, \"gbps\": %.0f}\n",
                name.c_str(), std::string(warpmeter::name(dtype)).c_str(), static_cast<long long>(rows),
                static_cast<long long>(width), us, bytes / us * 1e-3);
    std::fflush(stdout);
  }
  template <class Arguments>
  void time(const std::string& name, DType dtype, std::int64_t rows, std::int64_t width, const Arguments& arguments,
            void (*function)(const Context&, const Arguments&)) const {
    if (!wanted(name)) return;
    const int calls = arguments.bytes() < 1e8 ? 20 : 4;
    print(name, dtype, rows, width, time_us(context_, calls, [&] { function(context_, arguments); }),
          arguments.bytes());
  }

  void copy() const {
    const std::int64_t bytes = std::int64_t{1} << 30;
    const Tensor a = empty(bytes, DType::uint8), b = empty(bytes, DType::uint8);
    const double us = time_us(context_, 4, [&] {
      copy_bytes(a.data(), context_.device(), b.data(), context_.device(), static_cast<std::size_t>(bytes),
                 context_.stream);
    });
    print("copy", DType::uint8, 1, bytes, us, 2.0 * static_cast<double>(bytes));
  }

  void rows(DType t, std::int64_t rows, std::int64_t width, std::int64_t inner, std::int64_t heads) const {
    const Tensor x = random(context_, rows * width, t), y = random(context_, rows * width, t);
    const Tensor z = random(context_, rows * width, t), out = empty(rows * width, t),
                 weight = random(context_, width, t);
    const Tensor inv_rms = random(context_, rows, DType::fp32), d_weight = empty(width, DType::fp32);
    RmsNormForward forward{.rows = rows,
                           .width = width,
                           .dtype = t,
                           .x = x.data(),
                           .weight = weight.data(),
                           .out = out.data(),
                           .inv_rms = inv_rms.data_as<float>()};
    time("rmsnorm_forward", t, rows, width, forward, rmsnorm_forward);
    forward.addend = y.data();
    forward.sum = z.data();
    time("rmsnorm_forward residual", t, rows, width, forward, rmsnorm_forward);
    RmsNormBackward backward{.rows = rows,
                             .width = width,
                             .dtype = t,
                             .s = x.data(),
                             .weight = weight.data(),
                             .inv_rms = inv_rms.data_as<float>(),
                             .d_out = y.data(),
                             .d_residual = z.data(),
                             .d_x = out.data(),
                             .d_weight = d_weight.data()};
    const Buffer scratch(context_, workspace_bytes(context_.device(), backward));
    backward.workspace = scratch.data();
    time("rmsnorm_backward residual", t, rows, width, backward, rmsnorm_backward);
    time("elementwise add", t, rows, width,
         Elementwise{.count = rows * width, .dtype = t, .a = x.data(), .b = y.data(), .out = out.data()}, elementwise);

    const std::int64_t seq_len = std::min<std::int64_t>(rows, 1024);
    const Tensor table = random(context_, seq_len * width / heads, DType::fp32),
                 qkv = random(context_, rows * 3 * width, t);
    char* k = static_cast<char*>(qkv.data()) + static_cast<std::size_t>(width) * size_of(t);
    time("rope", t, rows, width,
         RopeArguments{.rows = rows,
                       .seq_len = seq_len,
                       .heads = heads,
                       .head_dim = width / heads,
                       .dtype = t,
                       .table = table.data_as<float>(),
                       .q_in = qkv.data(),
                       .k_in = k,
                       .in_stride = 3 * width,
                       .q_out = qkv.data(),
                       .k_out = k,
                       .out_stride = 3 * width},
         rope);

    const Tensor both = random(context_, rows * 2 * inner, t), hidden = random(context_, rows * inner, t);
    void* up = static_cast<char*>(both.data()) + static_cast<std::size_t>(inner) * size_of(t);
    time("swiglu_forward", t, rows, inner,
         SwigluForward{.rows = rows,
                       .width = inner,
                       .dtype = t,
                       .gate = both.data(),
                       .up = up,
                       .in_stride = 2 * inner,
                       .out = hidden.data()},
         swiglu_forward);
    const Tensor d_both = empty(rows * 2 * inner, t);
    time("swiglu_backward", t, rows, inner,
         SwigluBackward{.rows = rows,
                        .width = inner,
                        .dtype = t,
                        .gate = both.data(),
                        .up = up,
                        .in_stride = 2 * inner,
                        .d_out = hidden.data(),
                        .d_gate = d_both.data(),
                        .d_up = static_cast<char*>(d_both.data()) + static_cast<std::size_t>(inner) * size_of(t),
                        .d_stride = 2 * inner,
                        .out = hidden.data()},
         swiglu_backward);

    const std::int64_t vocab = 10000;
    const Tensor tokens = empty(rows, DType::int32), embedding = random(context_, vocab * width, t);
    const Tensor d_table = empty(vocab * width, DType::fp32);
    fill_integers(tokens, 3, 4, context_.stream, vocab);
    time("embedding_forward", t, rows, width,
         EmbeddingForward{.rows = rows,
                          .width = width,
                          .vocab = vocab,
                          .dtype = t,
                          .tokens = tokens.data_as<std::int32_t>(),
                          .table = embedding.data(),
                          .out = out.data()},
         embedding_forward);
    EmbeddingBackward gather{.rows = rows,
                             .width = width,
                             .vocab = vocab,
                             .dtype = t,
                             .tokens = tokens.data_as<std::int32_t>(),
                             .d_out = x.data(),
                             .d_table = d_table.data()};
    const Buffer order(context_, workspace_bytes(context_.device(), gather));
    gather.workspace = order.data();
    time("embedding_backward", t, rows, width, gather, embedding_backward);
  }

  void loss(DType t, std::int64_t rows, std::int64_t vocab) const {
    const Tensor logits = random(context_, rows * vocab, t), losses = empty(rows, DType::fp32);
    const Tensor lse = empty(rows, DType::fp32), targets = empty(rows, DType::int32);
    fill_integers(targets, 5, 6, context_.stream, vocab);
    time("cross_entropy_forward", t, rows, vocab,
         CrossEntropyForward{.rows = rows,
                             .vocab = vocab,
                             .dtype = t,
                             .logits = logits.data(),
                             .stride = vocab,
                             .targets = targets.data_as<std::int32_t>(),
                             .lse = lse.data_as<float>(),
                             .losses = losses.data_as<float>()},
         cross_entropy_forward);
    time("cross_entropy_backward", t, rows, vocab,
         CrossEntropyBackward{.rows = rows,
                              .vocab = vocab,
                              .dtype = t,
                              .logits = logits.data(),
                              .stride = vocab,
                              .targets = targets.data_as<std::int32_t>(),
                              .lse = lse.data_as<float>(),
                              .d_logits = logits.data()},
         cross_entropy_backward);
    time("cross_entropy", t, rows, vocab,
         CrossEntropy{.rows = rows,
                      .vocab = vocab,
                      .dtype = t,
                      .logits = logits.data(),
                      .stride = vocab,
                      .targets = targets.data_as<std::int32_t>(),
                      .losses = losses.data_as<float>()},
         cross_entropy);
    time("mean", DType::fp32, 1, rows,
         Mean{.count = rows, .values = losses.data_as<float>(), .out = lse.data_as<float>()}, mean);
    const Tensor log_probabilities = empty(rows * vocab, DType::fp32);
    time("log_softmax_forward", t, rows, vocab,
         LogSoftmaxForward{.rows = rows,
                           .vocab = vocab,
                           .dtype = t,
                           .logits = logits.data(),
                           .out = log_probabilities.data_as<float>()},
         log_softmax_forward);
    time("log_softmax_backward", t, rows, vocab,
         LogSoftmaxBackward{.rows = rows,
                            .vocab = vocab,
                            .dtype = t,
                            .log_probabilities = log_probabilities.data_as<float>(),
                            .targets = targets.data_as<std::int32_t>(),
                            .d_logits = logits.data()},
         log_softmax_backward);
  }

  void optimizer(std::int64_t count) const {
    if (!wanted("adamw") && !wanted("gradient_norm") && !wanted("convert")) return;
    const Tensor weight = random(context_, count, DType::fp32, 0.02f),
                 gradient = random(context_, count, DType::fp32, 0.02f);
    const Tensor m = random(context_, count, DType::fp32, 0.01f), v = empty(count, DType::fp32);
    const Tensor master = empty(count, DType::bf16), state = empty(sizeof(StepState), DType::uint8);
    const StepState scalars;
    v.fill_bytes(0, context_.stream);
    master.fill_bytes(0, context_.stream);
    copy_bytes(state.data(), context_.device(), &scalars, Device::cpu(), sizeof(scalars), context_.stream);
    auto* step = static_cast<StepState*>(state.data());
    const AdamwTensor tensors[] = {{weight.data(), master.data(), gradient.data(), m.data(), v.data(), count}};
    AdamwArguments arguments{.tensors = tensors, .state = step};
    time("adamw fp32", DType::fp32, 1, count, arguments, adamw);
    arguments.weight_dtype = DType::bf16;
    arguments.master = MasterKind::correction;
    time("adamw bf16 correction", DType::bf16, 1, count, arguments, adamw);
    arguments.gradient_dtype = arguments.moment_dtype = DType::bf16;
    arguments.master = MasterKind::none;
    time("adamw bf16_pure", DType::bf16, 1, count, arguments, adamw);
    const GradientTensor gradients[] = {{gradient.data(), count}};
    GradientNorm norm{.gradients = gradients, .max_norm = 1, .state = step};
    const Buffer scratch(context_, workspace_bytes(context_.device(), norm));
    norm.workspace = scratch.data();
    time("gradient_norm", DType::fp32, 1, count, norm, gradient_norm);
    time("scale_gradients", DType::fp32, 1, count, ScaleGradients{.gradients = gradients, .state = step},
         scale_gradients);
    time("convert to bf16", DType::fp32, 1, count,
         Convert{.count = count, .out_dtype = DType::bf16, .in = weight.data(), .out = master.data()}, convert);
  }
};

}  // namespace
}  // namespace warpmeter::layers::bench

int main(int argc, char** argv) {
  using namespace warpmeter;
  if (cuda_device_count() == 0) {
    std::fprintf(stderr, "layers_bench: no CUDA device: %s\n", cuda_unavailable_reason().c_str());
    return 2;
  }
  try {
    CachingAllocator allocator(Device::cuda());
    const Stream stream(Device::cuda());
    const Context context{stream.view(), &allocator};
    layers::bench::Bench(context, argc > 1 ? argv[1] : "").run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "layers_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
