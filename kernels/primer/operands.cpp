#include "kernels/primer/operands.hpp"

#include "kernels/runtime/random.hpp"

namespace warpmeter::primer {
namespace {

/// Random bits come as 63-bit integers: every position of a packed number takes every value.
Tensor tensor_for(const Context& context, const TensorSpec& spec) {
  if (spec.fill == Fill::bits) return Tensor(context, {(spec.elements() + 1) / 2}, DType::int64);
  return Tensor(context, spec.shape, spec.dtype);
}

std::size_t workspace_of(const Kernel& kernel, const Problem& problem, Device device) {
  return kernel.workspace_bytes == nullptr ? 0 : kernel.workspace_bytes(problem, device);
}

std::size_t as_allocated(std::size_t bytes) {
  constexpr std::size_t kRounding = 512;
  return (bytes + kRounding - 1) / kRounding * kRounding;
}

}  // namespace

Arguments Operands::arguments() const {
  Arguments arguments;
  for (std::size_t i = 0; i < in.size(); ++i) arguments.in[i] = in[i].data();
  for (std::size_t i = 0; i < out.size(); ++i) arguments.out[i] = out[i].data();
  arguments.workspace = workspace.data();
  return arguments;
}

void Operands::poison(StreamView stream) const {
  for (const Tensor& tensor : out) tensor.fill_bytes(0xFF, stream);
}

Operands make_operands(const Context& context, const Kernel& kernel, const Problem& problem, std::uint64_t seed) {
  Operands operands;
  std::uint64_t stream_id = 0;
  for (const TensorSpec& spec : kernel.inputs(problem)) {
    const Tensor tensor = tensor_for(context, spec);
    switch (spec.fill) {
      case Fill::normal:
        fill_normal(tensor, seed, stream_id, context.stream);
        break;
      case Fill::positive:
        fill_uniform(tensor, seed, stream_id, context.stream, 1.0f / 16, 1.0f / 8);
        break;
      case Fill::bits:
        fill_integers(tensor, seed, stream_id, context.stream, INT64_MAX);
        break;
    }
    ++stream_id;
    operands.in.push_back(tensor);
  }
  for (const TensorSpec& spec : kernel.outputs(problem)) operands.out.push_back(tensor_for(context, spec));
  // A thread's first touch of results decides where they lie on machines with several memories.
  operands.poison(context.stream);
  if (const std::size_t bytes = workspace_of(kernel, problem, context.device()); bytes > 0) {
    operands.workspace = Buffer(context, bytes);
  }
  return operands;
}

std::size_t operand_bytes(const Kernel& kernel, const Problem& problem, Device device) {
  std::size_t total = as_allocated(workspace_of(kernel, problem, device));
  for (const TensorSpecs& specs : {kernel.inputs(problem), kernel.outputs(problem)}) {
    for (const TensorSpec& spec : specs) total += as_allocated(spec.bytes());
  }
  return total;
}

HostCopies::HostCopies(const std::vector<Tensor>& tensors, const TensorSpecs& specs, StreamView stream) {
  bytes_.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    bytes_.emplace_back(tensors[i].bytes());
    copy_bytes(bytes_.back().data(), Device::cpu(), tensors[i].data(), tensors[i].device(), tensors[i].bytes(), stream);
    tensors_.emplace_back(bytes_.back().data(), specs[i].dtype);
  }
  synchronize(stream);
}

}  // namespace warpmeter::primer
