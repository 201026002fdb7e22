#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reports/snapshot/replay.hpp"
#include "reports/snapshot/snapshot.hpp"

namespace warpmeter::reports::snapshot {

/// What a stack says about the memory that it allocated.
struct StackLabels {
  TextId operation = 0;  ///< "QKV_MATMUL", "aten::addmm", "linear.py:134 forward", or "(no frames)"
  TextId layer = 0;      ///< "layer 3"; in PyTorch's own files the call site outside of PyTorch; "" where there is none
  TextId source = 0;     ///< "model.cpp:120"
  TextId category = 0;   ///< by the rules below
};

/// Names for people: categories, operations, layers, places in the source.
///
/// A category is the event's own ("category", which this suite's recorder writes: parameters, inputs, optimizer state,
/// gradients, activations, logits, workspace). Where a file has none it is guessed from the stack, in this order:
/// torch/optim's _init_group is optimizer state and the rest of torch/optim workspace; a backward node is gradients;
/// cuBLAS's and cuDNN's handles are workspace; a module's forward is activations; module construction and
/// conversion is parameters; everything else is unknown.
class Labels {
 public:
  explicit Labels(const Snapshot& snapshot);

  [[nodiscard]] const StackLabels& of(StackId stack) const { return labels_[stack]; }
  [[nodiscard]] TextId category(const Allocation& allocation) const {
    const TextId own = own_category_[allocation.more];
    return own != 0 ? own : labels_[allocation.stack].category;
  }
  [[nodiscard]] std::string_view text(TextId id) const { return texts_[id]; }
  /// Every category that occurs is one of these, from the bottom of a picture to its top: "unknown", those of this
  /// suite, the file's others.
  [[nodiscard]] const std::vector<TextId>& categories() const { return categories_; }
  /// The frames worth reading, innermost first: "name (file:line)", without the interpreter's and the unwinder's own.
  [[nodiscard]] std::vector<std::string> frames(StackId stack) const;

 private:
  [[nodiscard]] StackLabels label(StackId stack);

  const Snapshot& snapshot_;
  Texts texts_;
  std::vector<StackLabels> labels_;
  std::vector<TextId> own_category_;  ///< by further fields; 0: none
  std::vector<TextId> categories_;
  std::vector<signed char> noise_;  ///< by frame
};

}  // namespace warpmeter::reports::snapshot
