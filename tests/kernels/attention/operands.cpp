#include "tests/kernels/attention/operands.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/runtime/random.hpp"

namespace warpmeter::attention::conformance {

namespace {

constexpr unsigned char kPoison = 0xFF;  // NaN in every type

/// Host memory for tests that outlive the call: never destroyed before a tensor that uses it.
Context host() {
  static CachingAllocator allocator(Device::cpu());
  return {{Device::cpu(), nullptr}, &allocator};
}

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

/// An integer in [low, high] from (stream id, index).
float integer(std::uint64_t stream_id, std::int64_t index, int low, int high) {
  std::uint64_t z = (stream_id << 40) + static_cast<std::uint64_t>(index) + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<float>(low + static_cast<int>(z % static_cast<std::uint64_t>(high - low + 1)));
}

/// Values of q or k that make the scores what `values` says: integers, so that every product is exact.
void special_scores(Values values, bool is_query, std::uint64_t stream_id, std::int64_t columns, Tensor& tensor) {
  float* x = tensor.data_as<float>();
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    switch (values) {
      case Values::normal:
        return;
      case Values::large_scores: {
        // Rows along one direction, between -50 and 50 of it: scores of a product of two such numbers.
        const float direction = i % columns % 2 == 0 ? 1.0f : -1.0f;
        const float noise = is_query ? 0.0f : integer(stream_id, i, -1, 1);
        x[i] = integer(stream_id + 8, i / columns, -50, 50) * direction + noise;
        break;
      }
      case Values::negative_lse:
        x[i] = integer(stream_id, i, 4, 6) * (is_query ? -1.0f : 1.0f);
        break;
      case Values::infinite_key:
      case Values::nan_query:
        return;  // special_rows
      case Values::inexact_scores:
        x[i] *= 45.0f;
        break;
      case Values::very_negative:
        x[i] = integer(stream_id, i, 49, 51) * (is_query ? -1.0f : 1.0f);
        break;
    }
  }
}

/// What the last row of every head is made of, if anything; 0 when not.
float special_row(Values values, std::uint64_t stream_id) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (values == Values::nan_query && stream_id == 0) return std::nanf("");
  if (values == Values::infinite_key && stream_id == 1) return -kInfinity;
  if (values == Values::infinite_key && stream_id == 2) return kInfinity;
  return 0;
}

}  // namespace

Placement::Placement(Layout layout, std::int64_t batch_, std::int64_t heads_, std::int64_t rows_, std::int64_t columns_)
    : batch(batch_), heads(heads_), rows(rows_), columns(columns_) {
  switch (layout) {
    case Layout::bhsd:
      row_stride = columns;
      head_stride = rows * row_stride;
      batch_stride = heads * head_stride;
      break;
    case Layout::bshd:
      head_stride = columns;
      row_stride = heads * head_stride;
      batch_stride = rows * row_stride;
      break;
    case Layout::padded:
      row_stride = columns + 8;
      head_stride = (rows + 3) * row_stride;
      batch_stride = heads * head_stride + 64;
      break;
  }
  elements = 2 * kGuard + batch * batch_stride;
}

Operand Placement::operand(void* block, std::size_t element_bytes) const {
  return {static_cast<char*>(block) + at(kGuard) * element_bytes, batch_stride, head_stride, row_stride};
}

Tensor normal_values(std::int64_t count, std::uint64_t stream_id) {
  Tensor values(host(), {count}, DType::fp32);
  fill_normal(values, 20260, stream_id, host().stream);
  return values;
}

HostOutputs HostCopies::outputs() const {
  const auto operand = [&](int index) {
    const Output& output = outputs_[at(index)];
    return as_const(output.placement.operand(output.block.data(), size_of(output.block.dtype())));
  };
  return {operand(0), static_cast<const float*>(operand(1).data), operand(2), operand(3), operand(4)};
}

std::vector<float> HostCopies::query_row(int output, std::int64_t batch, std::int64_t head, std::int64_t row) const {
  const Output& from = outputs_[at(output)];
  const Placement& placement = from.placement;
  std::vector<float> values(at(placement.columns));
  const std::int64_t offset =
      Placement::kGuard + batch * placement.batch_stride + head * placement.head_stride + row * placement.row_stride;
  const DType dtype = from.block.dtype();
  detail::row_ops(dtype).to_float(static_cast<const char*>(from.block.data()) + at(offset) * size_of(dtype),
                                  values.data(), placement.columns);
  return values;
}

std::string HostCopies::overwritten() const {
  for (const Output& output : outputs_) {
    std::vector<char> valid(at(output.placement.elements), 0);
    output.placement.for_rows(
        [&](std::int64_t offset) { std::fill_n(valid.begin() + offset, output.placement.columns, 1); });
    const auto* bytes = static_cast<const unsigned char*>(output.block.data());
    const std::size_t element = size_of(output.block.dtype());
    for (std::size_t i = 0; i < valid.size(); ++i) {
      if (valid[i] != 0) continue;
      for (std::size_t b = 0; b < element; ++b) {
        if (bytes[i * element + b] != kPoison) return output.name + ", element " + std::to_string(i) + " of its block";
      }
    }
  }
  return "";
}

std::string HostCopies::difference(const HostCopies& other, bool forward_only) const {
  for (std::size_t i = 0; i < (forward_only ? 2 : outputs_.size()); ++i) {
    const Output &mine = outputs_[i], &theirs = other.outputs_[i];
    if (std::memcmp(mine.block.data(), theirs.block.data(), mine.block.bytes()) != 0) return mine.name;
  }
  return "";
}

Operands::Operands(const Subject& subject, const Case& c)
    : subject_(subject),
      case_(c),
      q_(input("q", c.problem.num_heads, c.problem.seq_len, 0)),
      k_(input("k", c.problem.num_kv_heads, c.problem.kv_len, 1)),
      v_(input("v", c.problem.num_kv_heads, c.problem.kv_len, 2)),
      d_o_(input("d_o", c.problem.num_heads, c.problem.seq_len, 3)),
      o_(output("o", c.problem.num_heads, c.problem.seq_len)),
      lse_{"lse", Placement(Layout::bhsd, c.problem.batch, c.problem.num_heads, c.problem.seq_len, 1), {}, {}},
      dq_(output("dq", c.problem.num_heads, c.problem.seq_len)),
      dk_(output("dk", c.problem.num_kv_heads, c.problem.kv_len)),
      dv_(output("dv", c.problem.num_kv_heads, c.problem.kv_len)) {
  lse_.device = Tensor(subject.context(), {lse_.placement.elements}, DType::fp32);
  poison_outputs();
}

Operands::Block Operands::output(const std::string& name, std::int64_t heads, std::int64_t rows) {
  const Placement placement(case_.layout, case_.problem.batch, heads, rows, case_.problem.head_dim);
  return {name, placement, {}, Tensor(subject_.context(), {placement.elements}, case_.problem.dtype)};
}

Operands::Block Operands::input(const std::string& name, std::int64_t heads, std::int64_t rows,
                                std::uint64_t stream_id) {
  const Placement placement(case_.layout, case_.problem.batch, heads, rows, case_.problem.head_dim);
  Tensor values = normal_values(placement.batch * heads * rows * placement.columns, stream_id);
  if (stream_id < 2) special_scores(case_.values, stream_id == 0, stream_id, placement.columns, values);
  if (const float special = special_row(case_.values, stream_id); special != 0) {
    const std::int64_t head = rows * placement.columns;
    for (std::int64_t end = head; end <= values.elements(); end += head) {
      std::fill_n(values.data_as<float>() + end - placement.columns, placement.columns, special);
    }
  }
  Tensor block(host(), {placement.elements}, case_.problem.dtype);
  block.fill_bytes(kPoison, host().stream);
  const float* next = values.data_as<float>();
  const std::size_t element = size_of(case_.problem.dtype);
  placement.for_rows([&](std::int64_t offset) {
    detail::row_ops(case_.problem.dtype)
        .from_float(next, static_cast<char*>(block.data()) + at(offset) * element, placement.columns);
    next += placement.columns;
  });
  return {name, placement, block, block.to(subject_.context())};
}

float* Operands::lse() const {
  return lse_.device.data_as<float>() + Placement::kGuard;
}

void Operands::poison_outputs() {
  for (const Block* block : {&o_, &lse_, &dq_, &dk_, &dv_}) {
    block->device.fill_bytes(kPoison, subject_.context().stream);
  }
}

std::unique_ptr<Saved> Operands::forward(bool for_backward) {
  const ForwardArguments arguments{as_const(q_.operand()), as_const(k_.operand()), as_const(v_.operand()), o_.operand(),
                                   lse()};
  return subject_.implementation().forward(subject_.context(), case_.problem, arguments, for_backward);
}

void Operands::backward(const Saved* saved) {
  const BackwardArguments arguments{as_const(q_.operand()),
                                    as_const(k_.operand()),
                                    as_const(v_.operand()),
                                    as_const(o_.operand()),
                                    as_const(d_o_.operand()),
                                    lse(),
                                    dq_.operand(),
                                    dk_.operand(),
                                    dv_.operand()};
  subject_.implementation().backward(subject_.context(), case_.problem, arguments, saved);
}

void Operands::execute() {
  poison_outputs();
  const std::unique_ptr<Saved> saved = forward(true);
  backward(saved.get());
  synchronize(subject_.context().stream);
}

HostCopies Operands::outputs() const {
  synchronize(subject_.context().stream);
  HostCopies copies;
  for (const Block* block : {&o_, &lse_, &dq_, &dk_, &dv_}) {
    copies.outputs_.push_back({block->name, block->placement, block->device.to(host())});
  }
  return copies;
}

Verifier Operands::verifier(double work_budget) const {
  const auto operand = [](const Block& block) {
    return as_const(block.placement.operand(block.host.data(), size_of(block.host.dtype())));
  };
  return Verifier(case_.problem, subject_.implementation().score_precision(), operand(q_), operand(k_), operand(v_),
                  operand(d_o_), 7, work_budget);
}

}  // namespace warpmeter::attention::conformance
