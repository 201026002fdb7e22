// Compiled once for each instruction set, into a namespace of its name. All variants give the same bits.

#include <cstring>

#include "kernels/runtime/detail/random_fill.hpp"
#include "kernels/runtime/random_philox.hpp"

namespace warpmeter::detail::WM_ISA {
namespace {

constexpr int kBlocks = 16;  // Philox blocks at once: one vector of words on AVX-512, two on AVX2
constexpr int kElements = 4 * kBlocks;

/// Words of blocks first .. first + kBlocks - 1, word k of all blocks in words[k].
struct alignas(64) WordTile {
  std::uint32_t words[4][kBlocks];
};

void generate(WordTile& tile, const RandomFill& fill, std::uint64_t first_block) {
  for (int b = 0; b < kBlocks; ++b) {
    const philox::Words w = philox::block_words(fill.seed, fill.stream_id, first_block + static_cast<unsigned>(b));
    tile.words[0][b] = w.x0;
    tile.words[1][b] = w.x1;
    tile.words[2][b] = w.x2;
    tile.words[3][b] = w.x3;
  }
}

struct alignas(64) ValueTile {
  float values[kElements];
};

void normal_values(ValueTile& out, const WordTile& tile, const RandomFill& fill) {
  for (int b = 0; b < kBlocks; ++b) {
    const philox::SinCos a = philox::box_muller(tile.words[0][b], tile.words[1][b]);
    const philox::SinCos c = philox::box_muller(tile.words[2][b], tile.words[3][b]);
    out.values[4 * b] = philox::mul(a.cos, fill.scale);
    out.values[4 * b + 1] = philox::mul(a.sin, fill.scale);
    out.values[4 * b + 2] = philox::mul(c.cos, fill.scale);
    out.values[4 * b + 3] = philox::mul(c.sin, fill.scale);
  }
}

float uniform_value(std::uint32_t word, const RandomFill& fill) {
  return philox::uniform_value(word, fill.scale, fill.offset, fill.least, fill.most);
}

void uniform_values(ValueTile& out, const WordTile& tile, const RandomFill& fill) {
  for (int b = 0; b < kBlocks; ++b) {
    out.values[4 * b] = uniform_value(tile.words[0][b], fill);
    out.values[4 * b + 1] = uniform_value(tile.words[1][b], fill);
    out.values[4 * b + 2] = uniform_value(tile.words[2][b], fill);
    out.values[4 * b + 3] = uniform_value(tile.words[3][b], fill);
  }
}

/// Elements `tile * kElements ...` of the stream, as values.
void value_tile(ValueTile& values, std::uint64_t tile, const RandomFill& fill) {
  WordTile words;
  generate(words, fill, tile * kBlocks);
  if (fill.distribution == Distribution::normal) {
    normal_values(values, words, fill);
  } else {
    uniform_values(values, words, fill);
  }
}

void store_bf16(std::uint16_t* out, const ValueTile& values) {
  for (int i = 0; i < kElements; ++i) out[i] = philox::to_bf16(values.values[i]);
}
void store_fp16(std::uint16_t* out, const ValueTile& values) {
  for (int i = 0; i < kElements; ++i) out[i] = philox::to_fp16(values.values[i]);
}

template <class Element>
void fill_values(Element* data, std::uint64_t first, std::int64_t count, const RandomFill& fill) {
  while (count > 0) {
    const std::uint64_t tile = first / kElements;
    const auto skip = static_cast<std::int64_t>(first % kElements);
    const std::int64_t take = kElements - skip < count ? kElements - skip : count;
    ValueTile values;
    value_tile(values, tile, fill);
    if constexpr (sizeof(Element) == 4) {
      std::memcpy(data, values.values + skip, static_cast<std::size_t>(take) * sizeof(float));
    } else {
      alignas(64) std::uint16_t halves[kElements];
      if (fill.dtype == DType::bf16) {
        store_bf16(halves, values);
      } else {
        store_fp16(halves, values);
      }
      std::memcpy(data, halves + skip, static_cast<std::size_t>(take) * sizeof(std::uint16_t));
    }
    data += take;
    first += static_cast<std::uint64_t>(take);
    count -= take;
  }
}

template <class Element>
void fill_integers(Element* data, std::uint64_t first, std::int64_t count, const RandomFill& fill) {
  constexpr int kIntegers = 2 * kBlocks;
  while (count > 0) {
    const std::uint64_t tile = first / kIntegers;
    const auto skip = static_cast<std::int64_t>(first % kIntegers);
    const std::int64_t take = kIntegers - skip < count ? kIntegers - skip : count;
    WordTile words;
    generate(words, fill, tile * kBlocks);
    Element values[kIntegers];
    for (int b = 0; b < kBlocks; ++b) {
      values[2 * b] = static_cast<Element>(philox::integer_value(words.words[0][b], words.words[1][b], fill.bound));
      values[2 * b + 1] = static_cast<Element>(philox::integer_value(words.words[2][b], words.words[3][b], fill.bound));
    }
    std::memcpy(data, values + skip, static_cast<std::size_t>(take) * sizeof(Element));
    data += take;
    first += static_cast<std::uint64_t>(take);
    count -= take;
  }
}

}  // namespace

void random_fill(void* data, std::uint64_t first, std::int64_t count, const RandomFill& fill) {
  switch (fill.dtype) {
    case DType::fp32:
    case DType::tf32:
      return fill_values(static_cast<float*>(data), first, count, fill);
    case DType::bf16:
    case DType::fp16:
      return fill_values(static_cast<std::uint16_t*>(data), first, count, fill);
    case DType::int32:
      return fill_integers(static_cast<std::int32_t*>(data), first, count, fill);
    case DType::int64:
      return fill_integers(static_cast<std::int64_t*>(data), first, count, fill);
    default:
      return;  // refused by the functions that make a RandomFill
  }
}

}  // namespace warpmeter::detail::WM_ISA
