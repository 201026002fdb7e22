#include "kernels/transformer/parameter_layout.hpp"

#include <algorithm>

#include "kernels/runtime/check.hpp"

namespace warpmeter::transformer {

std::int64_t ParameterLayout::add(std::string name, std::int64_t rows, std::int64_t columns, bool aligned) {
  if (aligned) elements_ = (elements_ + kAlignment - 1) / kAlignment * kAlignment;
  const std::int64_t offset = elements_;
  parameters_.push_back(
      {.name = std::move(name), .rows = rows, .columns = columns, .joined = !aligned, .offset = offset});
  elements_ += rows * columns;
  return offset;
}

std::int64_t ParameterLayout::add_norm(std::string name, std::int64_t width) {
  const std::int64_t offset = add(std::move(name), 1, width);
  parameters_.back().norm = true;
  return offset;
}

std::size_t ParameterLayout::index_of(std::int64_t offset) const {
  const auto found = std::lower_bound(parameters_.begin(), parameters_.end(), offset,
                                      [](const Parameter& p, std::int64_t at) { return p.offset < at; });
  WM_CHECK(found != parameters_.end() && found->offset == offset, "a parameter begins there");
  return static_cast<std::size_t>(found - parameters_.begin());
}

ParameterLayout::ParameterLayout(const ModelConfig& c) {
  embedding_ = add("token_embeddings.weight", c.vocab, c.d_model);
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    LayerPlaces places{};
    places.norm1 = add_norm(prefix + "ln1.weight", c.d_model);
    places.wq = add(prefix + "attn.q_proj.weight", c.d_model, c.d_model);
    places.wk = add(prefix + "attn.k_proj.weight", c.d_model, c.d_model, false);
    places.wv = add(prefix + "attn.v_proj.weight", c.d_model, c.d_model, false);
    places.wo = add(prefix + "attn.output_proj.weight", c.d_model, c.d_model);
    places.norm2 = add_norm(prefix + "ln2.weight", c.d_model);
    places.w1 = add(prefix + "ffn.w1.weight", c.d_ff, c.d_model);
    places.w3 = add(prefix + "ffn.w3.weight", c.d_ff, c.d_model, false);
    places.w2 = add(prefix + "ffn.w2.weight", c.d_model, c.d_ff);
    layers_.push_back(places);
  }
  final_norm_ = add_norm("ln_final.weight", c.d_model);
  head_ = c.tied_head ? embedding_ : add("lm_head.weight", c.vocab, c.d_model);
  elements_ = (elements_ + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace warpmeter::transformer
