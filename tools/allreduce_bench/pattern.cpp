#include "tools/allreduce_bench/pattern.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "kernels/runtime/check.hpp"

namespace warpmeter::allreduce_bench {
namespace {

using collectives::CollectiveKind;
using collectives::ReduceOp;

/// splitmix64's finalizer.
std::uint64_t hash(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15ULL + index + 1;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// bf16 holds every whole number up to this; the other types hold more.
constexpr std::int64_t kExact = 256;

/// Largest magnitude of an input.
std::int64_t largest(const Configuration& c) {
  const std::int64_t n = c.world_size;
  if (!c.reduces() || c.op == ReduceOp::max || c.op == ReduceOp::min) return kExact / 2;
  if (c.op == ReduceOp::avg) return std::max<std::int64_t>(1, kExact / (n * n));  // of a multiple of n
  return std::max<std::int64_t>(1, kExact / n);
}

/// A small whole number's bits.
void put(DType dtype, std::int64_t value, char* at) {
  if (dtype == DType::int32) {
    const auto v = static_cast<std::int32_t>(value);
    std::memcpy(at, &v, sizeof(v));
    return;
  }
  const auto v = static_cast<float>(value);
  std::uint32_t bits;
  std::memcpy(&bits, &v, sizeof(bits));
  if (dtype == DType::bf16) {
    const auto half = static_cast<std::uint16_t>(bits >> 16);  // exact: 8 bits are enough
    std::memcpy(at, &half, sizeof(half));
  } else if (dtype == DType::fp16) {
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const std::uint32_t half = value == 0 ? 0 : (magnitude - 0x38000000U) >> 13;  // 11 bits are enough
    const auto signed_half = static_cast<std::uint16_t>(half | ((bits >> 16) & 0x8000U));
    std::memcpy(at, &signed_half, sizeof(signed_half));
  } else {
    std::memcpy(at, &bits, sizeof(bits));
  }
}

double get(DType dtype, const char* at) {
  if (dtype == DType::int32) {
    std::int32_t v;
    std::memcpy(&v, at, sizeof(v));
    return v;
  }
  if (dtype == DType::fp16) {
    std::uint16_t bits;
    std::memcpy(&bits, at, sizeof(bits));
    const int exponent = (bits >> 10) & 31;
    const double mantissa = bits & 1023;
    const double magnitude = exponent == 0    ? std::ldexp(mantissa, -24)
                             : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                              : std::ldexp(1024 + mantissa, exponent - 25);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  }
  std::uint32_t bits = 0;
  if (dtype == DType::bf16) {
    std::uint16_t half;
    std::memcpy(&half, at, sizeof(half));
    bits = static_cast<std::uint32_t>(half) << 16;
  } else {
    std::memcpy(&bits, at, sizeof(bits));
  }
  float v;
  std::memcpy(&v, &bits, sizeof(v));
  return v;
}

std::int64_t combined(const Configuration& c, const std::vector<std::int64_t>& values) {
  std::int64_t total = values.front();
  for (std::size_t r = 1; r < values.size(); ++r) {
    switch (c.op) {
      case ReduceOp::sum:
      case ReduceOp::avg:
        total += values[r];
        break;
      case ReduceOp::max:
        total = std::max(total, values[r]);
        break;
      case ReduceOp::min:
        total = std::min(total, values[r]);
        break;
    }
  }
  return c.op == ReduceOp::avg ? total / c.world_size : total;
}

}  // namespace

Pattern::Pattern(const Configuration& configuration, std::uint64_t seed) : configuration_(configuration), seed_(seed) {
  const std::int64_t most = largest(configuration);
  const auto ranks = static_cast<std::size_t>(configuration.world_size);
  // No larger than the array: a few bytes need no table of many.
  const auto period = static_cast<std::size_t>(kPeriod);
  std::vector<std::vector<std::int64_t>> values(ranks, std::vector<std::int64_t>(period));
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t i = 0; i < period; ++i) {
      const std::uint64_t h = hash(seed * 1024 + r, i) >> 16;
      std::int64_t value = static_cast<std::int64_t>(h % static_cast<std::uint64_t>(2 * most + 1)) - most;
      if (configuration.reduces() && configuration.op == ReduceOp::avg) value *= configuration.world_size;
      values[r][i] = value;
    }
    inputs_.push_back(encode(values[r]));
  }
  if (!configuration.reduces()) return;
  std::vector<std::int64_t> result(period);
  std::vector<std::int64_t> column(ranks);
  for (std::size_t i = 0; i < period; ++i) {
    for (std::size_t r = 0; r < ranks; ++r) column[r] = values[r][i];
    result[i] = combined(configuration, column);
  }
  result_ = encode(result);
}

Pattern::Table Pattern::encode(const std::vector<std::int64_t>& values) const {
  const std::size_t element = size_of(configuration_.dtype);
  Table table(values.size() * element);
  for (std::size_t i = 0; i < values.size(); ++i) put(configuration_.dtype, values[i], table.data() + i * element);
  return table;
}

std::int64_t Pattern::place_of(std::int64_t element) const {
  const std::int64_t round = element / kPeriod;
  const auto shift = static_cast<std::int64_t>(hash(~seed_, static_cast<std::uint64_t>(round)) % kPeriod);
  return (element % kPeriod + shift) % kPeriod;
}

template <class Piece>
void Pattern::walk(std::int64_t begin, std::int64_t count, const Piece& piece) const {
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t place = place_of(begin + done);
    const std::int64_t round_end = kPeriod - (begin + done) % kPeriod;
    const std::int64_t elements = std::min({kPeriod - place, round_end, count - done});
    piece(done, place, elements);
    done += elements;
  }
}

void Pattern::write_input(int rank, std::int64_t begin, std::int64_t count, char* data) const {
  const auto element = static_cast<std::int64_t>(size_of(configuration_.dtype));
  const Table& table = inputs_[static_cast<std::size_t>(rank)];
  walk(begin, count, [&](std::int64_t at, std::int64_t place, std::int64_t elements) {
    std::memcpy(data + at * element, table.data() + place * element, static_cast<std::size_t>(elements * element));
  });
}

Pattern::Difference Pattern::compare_output(int rank, std::int64_t begin, std::int64_t count, const char* data) const {
  const auto element = static_cast<std::int64_t>(size_of(configuration_.dtype));
  const bool inexact = configuration_.op == ReduceOp::avg && configuration_.dtype != DType::int32;
  Difference difference;
  // Elements of the output [from, from + n) against those of `table` from `source` on.
  const auto compare = [&](const Table& table, std::int64_t from, std::int64_t n, std::int64_t source) {
    const char* const part = data + (from - begin) * element;
    walk(source, n, [&](std::int64_t at, std::int64_t place, std::int64_t elements) {
      const char* const got = part + at * element;
      const char* const want = table.data() + place * element;
      if (std::memcmp(got, want, static_cast<std::size_t>(elements * element)) == 0) return;
      for (std::int64_t i = 0; i < elements; ++i) {
        const char* const g = got + i * element;
        const char* const w = want + i * element;
        if (std::memcmp(g, w, static_cast<std::size_t>(element)) == 0) continue;
        const double is = get(configuration_.dtype, g);
        const double must = get(configuration_.dtype, w);
        if (is == must) continue;  // a zero of the other sign
        const double slack = inexact ? 4 * unit_roundoff(configuration_.dtype) * std::max(1.0, std::fabs(must)) : 0;
        if (std::fabs(is - must) <= slack) continue;
        if (difference.wrong++ > 0) continue;
        char text[128];
        std::snprintf(text, sizeof(text), "element %lld: got %.9g, expected %.9g",
                      static_cast<long long>(from + at + i), is, must);
        difference.first = text;
      }
    });
  };
  switch (configuration_.kind) {
    case CollectiveKind::all_reduce:
      compare(result_, begin, count, begin);
      break;
    case CollectiveKind::reduce_scatter:
      compare(result_, begin, count, rank * configuration_.output_elements() + begin);
      break;
    case CollectiveKind::broadcast:
      compare(inputs_.front(), begin, count, begin);
      break;
    case CollectiveKind::all_gather: {
      const std::int64_t block = configuration_.input_elements();
      for (std::int64_t from = begin; from < begin + count;) {
        const std::int64_t of = from / block;
        const std::int64_t end = std::min((of + 1) * block, begin + count);
        compare(inputs_[static_cast<std::size_t>(of)], from, end - from, from - of * block);
        from = end;
      }
      break;
    }
    case CollectiveKind::barrier:
      break;
  }
  return difference;
}

}  // namespace warpmeter::allreduce_bench
