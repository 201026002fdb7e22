#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/transformer/config.hpp"

namespace warpmeter::transformer {

/// One parameter and where it lies in the model's flat arrays (weights, masters, gradients, moments alike).
struct Parameter {
  std::string name;                    ///< "layers.3.attn.q_proj.weight"
  std::int64_t rows = 1, columns = 1;  ///< (out, in) of a linear layer; a norm's weight is 1 x d_model
  bool norm = false;                   ///< a norm's weight
  bool joined = false;                 ///< lies right behind the one before it: part of the same larger matrix
  std::int64_t offset = 0;             ///< elements from the arrays' begin
  [[nodiscard]] std::int64_t count() const { return rows * columns; }
};

/// Places of a layer's parameters, elements. wq, wk, wv follow one another without gaps, and so do w1 and w3: each
/// group is one larger matrix to whoever wants one product.
struct LayerPlaces {
  std::int64_t norm1, wq, wk, wv, wo, norm2, w1, w3, w2;
};

/// All parameters in the order of the forward, every group beginning on a multiple of kAlignment elements.
class ParameterLayout {
 public:
  static constexpr std::int64_t kAlignment = 256;  // elements: 512 bytes of the smallest type

  explicit ParameterLayout(const ModelConfig& config);

  [[nodiscard]] const std::vector<Parameter>& parameters() const { return parameters_; }
  [[nodiscard]] const LayerPlaces& layer(std::int64_t index) const { return layers_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] std::int64_t layers() const { return static_cast<std::int64_t>(layers_.size()); }
  [[nodiscard]] std::int64_t embedding() const { return embedding_; }
  [[nodiscard]] std::int64_t final_norm() const { return final_norm_; }
  /// The embedding's place, where the head is tied to it.
  [[nodiscard]] std::int64_t head() const { return head_; }
  /// Of the parameter that begins at `offset`.
  [[nodiscard]] std::size_t index_of(std::int64_t offset) const;
  /// Elements of each flat array, gaps included.
  [[nodiscard]] std::int64_t elements() const { return elements_; }

 private:
  std::int64_t add(std::string name, std::int64_t rows, std::int64_t columns, bool aligned = true);
  std::int64_t add_norm(std::string name, std::int64_t width);

  std::vector<Parameter> parameters_;
  std::vector<LayerPlaces> layers_;
  std::int64_t embedding_ = 0, final_norm_ = 0, head_ = 0, elements_ = 0;
};

}  // namespace warpmeter::transformer
