#include "kernels/attention/streaming_attention.hpp"

#include <algorithm>
#include <utility>

#include "kernels/attention/gemm.hpp"
#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/check.hpp"
#if WARPMETER_CUDA
#include "kernels/attention/gemm_cuda.hpp"
#endif

namespace warpmeter::attention {

namespace {

KvCacheConfig cache_config(const StreamingConfig& config) {
  if (config.num_heads < 1 || config.d_model < 1 || config.d_model % config.num_heads != 0) {
    throw KvCacheError("streaming attention: d_model " + std::to_string(config.d_model) + " is not a multiple of " +
                       std::to_string(config.num_heads) + " heads");
  }
  if (config.num_kv_heads < 1 || config.num_heads % config.num_kv_heads != 0) {
    throw KvCacheError("streaming attention: " + std::to_string(config.num_heads) + " query heads cannot share " +
                       std::to_string(config.num_kv_heads) + " key/value heads evenly");
  }
  if (config.chunk < 0) throw KvCacheError("streaming attention: a chunk of " + std::to_string(config.chunk));
  KvCacheConfig cache;
  cache.sequences = config.sequences;
  cache.num_kv_heads = config.num_kv_heads;
  cache.head_dim = config.d_model / config.num_heads;
  cache.capacity = config.max_tokens;
  cache.dtype = config.cache_dtype;
  cache.page_size = config.page_size;
  return cache;
}

/// Rows of a projection: (sequences, tokens, width) with any stride between sequences.
struct Matrix {
  void* data;
  std::int64_t batch_stride;
  std::int64_t width;
};

/// y = x W^T for tokens of every sequence.
void project(const Context& context, DType dtype, std::int64_t sequences, std::int64_t tokens, const Matrix& x,
             const Tensor& w, const Matrix& y) {
  GemmProblem gemm;
  gemm.dtype = dtype;
  gemm.batch = sequences;
  gemm.m = tokens;
  gemm.n = y.width;
  gemm.k = x.width;
  gemm.transpose_b = true;
  if (x.batch_stride == tokens * x.width && y.batch_stride == tokens * y.width) {  // one matrix, in truth
    gemm.batch = 1;
    gemm.m = sequences * tokens;
  }
  const ConstOperand a{x.data, x.batch_stride, 0, x.width};
  const ConstOperand b{w.data(), 0, 0, x.width};
  const Operand c{y.data, y.batch_stride, 0, y.width};
  if (context.device().is_cpu()) {
    gemm_cpu(gemm, a, b, c);
    return;
  }
#if WARPMETER_CUDA
  const CudaGemm cublas(context, CudaGemm::workspace_bytes(w.bytes()));
  cublas.multiply(gemm, a, b, c);
#endif
}

void* at(const Tensor& tensor, std::int64_t element) {
  return static_cast<char*>(tensor.data()) + element * static_cast<std::int64_t>(size_of(tensor.dtype()));
}

void check_weight(const char* name_of, const Tensor& weight, std::int64_t rows, std::int64_t columns, DType dtype) {
  WM_CHECK(weight.defined() && weight.shape().size() == 2 && weight.size(0) == rows && weight.size(1) == columns &&
               weight.dtype() == dtype,
           std::string("weight ") + name_of + " must be " + std::to_string(rows) + " x " + std::to_string(columns) +
               " in " + std::string(name(dtype)));
}

}  // namespace

StreamingAttention::StreamingAttention(const Context& context, const StreamingConfig& config, StreamingWeights weights)
    : config_(config), weights_(std::move(weights)), cache_(context, cache_config(config)) {
  const std::int64_t kv_width = config.num_kv_heads * head_dim();
  check_weight("q", weights_.q, config.d_model, config.d_model, config.dtype);
  check_weight("k", weights_.k, kv_width, config.d_model, config.dtype);
  check_weight("v", weights_.v, kv_width, config.d_model, config.dtype);
  check_weight("out", weights_.out, config.d_model, config.d_model, config.dtype);
}

/// Tokens of an input that is as it should be and fits.
std::int64_t StreamingAttention::check_input(const Tensor& x, const char* what) const {
  WM_CHECK(x.shape().size() == 3 && x.size(0) == config_.sequences && x.size(2) == config_.d_model &&
               x.dtype() == config_.dtype,
           "inputs are (sequences, tokens, d_model) in the layer's type");
  const std::int64_t tokens = x.size(1);
  WM_CHECK(tokens >= 1, "an input has at least one token");
  if (tokens > config_.max_tokens - length()) {
    throw KvCacheError(std::string(what) + ": the layer holds " + std::to_string(length()) + " of at most " +
                       std::to_string(config_.max_tokens) + " tokens; " + std::to_string(tokens) + " more do not fit");
  }
  return tokens;
}

Tensor StreamingAttention::prefill(const Context& context, const Tensor& x) {
  const Range range("STREAMING_PREFILL");
  const std::int64_t tokens = check_input(x, "prefill");
  const Tensor y(context, {config_.sequences, tokens, config_.d_model}, config_.dtype);
  const std::int64_t chunk = config_.chunk == 0 ? tokens : config_.chunk;
  for (std::int64_t first = 0; first < tokens; first += chunk) {
    step(context, x, y, first, std::min(chunk, tokens - first), false);
  }
  return y;
}

Tensor StreamingAttention::decode(const Context& context, const Tensor& x) {
  const Range range("STREAMING_DECODE");
  if (length() == 0) throw KvCacheError("decode: nothing to go on from: prefill a prompt first");
  const std::int64_t tokens = check_input(x, "decode");
  const Tensor y(context, {config_.sequences, tokens, config_.d_model}, config_.dtype);
  step(context, x, y, 0, tokens, true);
  return y;
}

void StreamingAttention::step(const Context& context, const Tensor& x, const Tensor& y, std::int64_t first,
                              std::int64_t tokens, bool decoding) {
  const std::int64_t d = head_dim();
  const std::int64_t width = config_.d_model;
  const std::int64_t kv_width = config_.num_kv_heads * d;
  const std::int64_t all = x.size(1);
  const Matrix in{at(x, first * width), all * width, width};
  const Matrix out{at(y, first * width), all * width, width};
  const auto projected = [&](const Tensor& weight, std::int64_t columns) {
    const Tensor result(context, {config_.sequences, tokens, columns / d, d}, config_.dtype);
    project(context, config_.dtype, config_.sequences, tokens, in, weight, {result.data(), tokens * columns, columns});
    return result;
  };
  const Tensor q = projected(weights_.q, width);
  {
    const Tensor k = projected(weights_.k, kv_width);
    const Tensor v = projected(weights_.v, kv_width);
    cache_.append(context, config_.dtype, as_const(operand_bshd(k)), as_const(operand_bshd(v)), tokens);
  }
  const Tensor o(context, {config_.sequences, tokens, config_.num_heads, d}, config_.dtype);
  const Tensor lse(context, {config_.sequences, config_.num_heads, tokens}, DType::fp32);
  const DecodeProblem problem{config_.num_heads, tokens, config_.dtype};
  const KvView view = cache_.view();
  if (decoding) {
    const DecodePlan plan = plan_decode(context.device(), problem, view, config_.decode);
    flash_decode(context, problem, view, plan, as_const(operand_bshd(q)), operand_bshd(o), lse.data_as<float>());
  } else {
    const PrefillPlan plan = plan_prefill(context.device(), problem, view, config_.prefill);
    prefill_attention(context, problem, view, plan, as_const(operand_bshd(q)), operand_bshd(o), lse.data_as<float>());
  }
  project(context, config_.dtype, config_.sequences, tokens, {o.data(), tokens * width, width}, weights_.out, out);
}

}  // namespace warpmeter::attention
