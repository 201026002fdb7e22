#include "kernels/transformer/weights.hpp"

#include <cmath>
#include <utility>

#include "kernels/layers/adamw.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/random.hpp"
#include "kernels/transformer/detail/host_copies.hpp"

namespace warpmeter::transformer {

namespace {

using layers::MasterKind;

}  // namespace

Weights::Weights(Memory& memory, const ParameterLayout& layout, const PrecisionPolicy& precision, bool resident)
    : memory_(memory), layout_(layout), precision_(precision), resident_(resident), master_places_(layout) {
  if (!resident) weights_ = Array(memory, "weights", layout.elements(), precision.activation, MemoryKind::parameters);
  if (precision.master != MasterKind::none) {
    masters_ = Array(memory, "masters", layout.elements(),
                     precision.master == MasterKind::copy ? DType::fp32 : DType::bf16, MemoryKind::parameters);
  }
  weights_.fill_zero();
  masters_.fill_zero();
}

void Weights::reside(void* base) {
  WM_CHECK(resident_ && !weights_.defined(), "weights have a place already");
  weights_ = Array(memory_, base, layout_.elements(), precision_.activation);
  weights_.fill_zero();
}

void Weights::initialize(std::uint64_t seed, bool tied_head) {
  WM_CHECK(weights_.defined(), "reside() comes first");
  if (memory_.planning()) return;
  const Context& context = memory_.context();
  const FrameScope frame("initial values");
  const CategoryScope category(name(MemoryKind::workspace));
  std::uint64_t stream_id = 0;
  for (const Parameter& p : layout_.parameters()) {
    const Tensor values(context, {p.count()}, DType::fp32);
    if (p.norm) {
      const std::vector<float> ones(static_cast<std::size_t>(p.count()), 1.0f);
      detail::to_device(context, values.data(), ones.data(), ones.size() * sizeof(float));
    } else {
      const bool embedding = p.offset == layout_.embedding();
      const double deviation = embedding && !tied_head ? 1.0 : std::sqrt(2.0 / static_cast<double>(p.rows + p.columns));
      fill_normal(values, seed, stream_id, context.stream, static_cast<float>(deviation));
    }
    set_on_device(p, values.data_as<float>());
    ++stream_id;
  }
}

void Weights::set(std::size_t index, std::span<const float> values) {
  const Parameter& p = parameter(index);
  WM_CHECK(values.size() == static_cast<std::size_t>(p.count()), "as many values as the parameter has");
  const Tensor on_device(memory_.context(), {p.count()}, DType::fp32);
  detail::to_device(memory_.context(), on_device.data(), values.data(), values.size_bytes());
  set_on_device(p, on_device.data_as<float>());
}

void Weights::set_on_device(const Parameter& p, const float* values) {
  layers::set_weights(memory_.context(), {.count = p.count(),
                                          .values = values,
                                          .weight_dtype = precision_.activation,
                                          .master_kind = precision_.master,
                                          .weight = weights_.at(p.offset),
                                          .master = masters_.defined() ? masters_.at(p.offset) : nullptr});
}

std::vector<float> Weights::value(std::size_t index) const {
  const Context& context = memory_.context();
  const Parameter& p = parameter(index);
  const std::int64_t place = master_places_.at(index);
  const MasterKind kind = place < 0 ? MasterKind::none : precision_.master;
  if (kind == MasterKind::copy) {
    return detail::floats_on_host(context, masters_.at(place), masters_.dtype(), p.count());
  }
  std::vector<float> values = detail::floats_on_host(context, weights_.at(p.offset), weights_.dtype(), p.count());
  if (kind == MasterKind::correction) {
    std::vector<std::int16_t> rest(values.size());
    detail::to_host(context, rest.data(), masters_.at(place), rest.size() * sizeof(std::int16_t));
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint32_t bits;
      __builtin_memcpy(&bits, &values[i], sizeof(bits));
      bits = layers::join_master(static_cast<std::uint16_t>(bits >> 16), rest[i]);
      __builtin_memcpy(&values[i], &bits, sizeof(bits));
    }
  }
  return values;
}

void Weights::keep_masters(const StatePlaces& places) {
  const StatePlaces before = std::exchange(master_places_, places);
  if (!masters_.defined()) return;
  Array fewer(memory_, "masters", places.elements(), masters_.dtype(), MemoryKind::parameters);
  if (!memory_.planning()) {
    const Context& context = memory_.context();
    fewer.fill_zero();
    for (std::size_t i = 0; i < layout_.parameters().size(); ++i) {
      if (places.at(i) < 0) continue;
      copy_bytes(fewer.at(places.at(i)), context.device(), masters_.at(before.at(i)), context.device(),
                 static_cast<std::size_t>(parameter(i).count()) * size_of(masters_.dtype()), context.stream);
    }
    synchronize(context.stream);
  }
  masters_ = std::move(fewer);
}

void* Weights::master(std::size_t index) const {
  if (!masters_.defined()) return nullptr;
  const std::int64_t place = master_places_.at(index);
  WM_CHECK(place >= 0, "the parameter's master is kept here");
  return masters_.at(place);
}

std::vector<WeightArray> Weights::arrays() const {
  std::vector<WeightArray> arrays{{weights_.data(), weights_.count(), weights_.dtype()}};
  if (masters_.defined()) arrays.push_back({masters_.data(), masters_.count(), masters_.dtype()});
  return arrays;
}

WeightArray Weights::range(std::size_t first, std::size_t last) const {
  const Parameter &a = parameter(first), &b = parameter(last);
  return {weights_.at(a.offset), b.offset + b.count() - a.offset, weights_.dtype()};
}

}  // namespace warpmeter::transformer
