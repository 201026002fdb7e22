#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/ceilings/detail/backends.hpp"
#include "kernels/ceilings/detail/harness_buffer.hpp"
#include "kernels/ceilings/detail/random_value.hpp"
#include "kernels/ceilings/detail/stream_isa.hpp"
#include "kernels/runtime/cpu_isa.hpp"
#include "kernels/runtime/parallel.hpp"

namespace warpmeter::ceilings::detail {
namespace {

constexpr std::size_t kMib = std::size_t{1} << 20;

/// Far more than the caches hold: four times the last level, and 32 MiB a thread, since `last_level_cache_bytes` is one
/// core complex's and a machine has many.
std::size_t default_bytes(int threads) {
  const std::size_t cache = properties(Device::cpu()).last_level_cache_bytes;
  const std::size_t wanted = std::max({256 * kMib, 4 * cache, static_cast<std::size_t>(threads) * 32 * kMib});
  const std::size_t bounded = std::min(wanted, free_memory_bytes(Device::cpu()) / 8);
  return std::max(kMib, bounded / 4096 * 4096);
}

struct Part {
  std::size_t begin, bytes;
};

/// A worker's part of the buffer: always the same, so that who reads it is who touched it first.
Part part_of(std::size_t bytes, int worker, int workers) {
  const std::size_t grains = bytes / kStreamGrain;
  const auto bound = [&](int index) {
    return grains * static_cast<std::size_t>(index) / static_cast<std::size_t>(workers) * kStreamGrain;
  };
  return {bound(worker), bound(worker + 1) - bound(worker)};
}

void fill_parts(void* data, std::size_t bytes, std::uint64_t seed) {
  parallel_workers([&](int worker, int workers) {
    const Part part = part_of(bytes, worker, workers);
    auto* const words = static_cast<std::uint64_t*>(data) + part.begin / sizeof(std::uint64_t);
    for (std::size_t i = 0; i < part.bytes / sizeof(std::uint64_t); ++i) words[i] = random_bits(seed + part.begin + i);
  });
}

using CopyStream = void (*)(char*, const char*, std::size_t, bool, std::size_t);
using ReadStream = std::uint32_t (*)(const char*, std::size_t, std::size_t);
using TrafficStream = std::uint32_t (*)(const TrafficPart&, bool, std::size_t);

CopyStream pick_copy() {
#if defined(__x86_64__)
  if (cpu_isa() == CpuIsa::avx512) return avx512::copy_stream;
  if (cpu_isa() == CpuIsa::avx2) return avx2::copy_stream;
#endif
  return generic::copy_stream;
}

ReadStream pick_read() {
#if defined(__x86_64__)
  if (cpu_isa() == CpuIsa::avx512) return avx512::read_stream;
  if (cpu_isa() == CpuIsa::avx2) return avx2::read_stream;
#endif
  return generic::read_stream;
}

std::size_t streams_of(int variant) {
  return variant % 2 == 0 ? 1 : kMostStreams;
}

TrafficStream pick_traffic() {
#if defined(__x86_64__)
  if (cpu_isa() == CpuIsa::avx512) return avx512::traffic_stream;
  if (cpu_isa() == CpuIsa::avx2) return avx2::traffic_stream;
#endif
  return generic::traffic_stream;
}

/// A thread's; a line each: no two threads write the same one.
struct alignas(64) Sum {
  std::uint32_t value = 0;
};

std::uint32_t total_of(const std::vector<Sum>& sums) {
  return std::accumulate(sums.begin(), sums.end(), std::uint32_t{0},
                         [](std::uint32_t sum, const Sum& part) { return sum + part.value; });
}

class CpuCopy final : public CopyWorkload {
 public:
  CpuCopy(const Context& context, std::size_t bytes)
      : source_(*context.allocator, bytes), destination_(*context.allocator, bytes), copy_(pick_copy()) {
    fill_parts(source_.data(), bytes, 0);
    fill_parts(destination_.data(), bytes, bytes);
  }
  [[nodiscard]] double amount() const override { return 2 * static_cast<double>(bytes()); }
  [[nodiscard]] std::size_t bytes() const override { return source_.bytes(); }
  [[nodiscard]] const void* source() const override { return source_.data(); }
  [[nodiscard]] void* destination() const override { return destination_.data(); }
  [[nodiscard]] int variants() const override { return 4; }
  [[nodiscard]] std::string variant_name(int variant) const override {
    return std::string(is_non_temporal(variant) ? "non-temporal stores, " : "ordinary stores, ") +
           std::to_string(streams_of(variant)) + " stream(s) a thread";
  }
  void enqueue(int variant) override {
    parallel_workers([&](int worker, int workers) {
      const Part part = part_of(bytes(), worker, workers);
      copy_(static_cast<char*>(destination_.data()) + part.begin, static_cast<const char*>(source_.data()) + part.begin,
            part.bytes, is_non_temporal(variant), streams_of(variant));
    });
  }

 private:
  static bool is_non_temporal(int variant) { return variant >= 2; }

  HarnessBuffer source_, destination_;
  CopyStream copy_;
};

class CpuRead final : public ReadWorkload {
 public:
  CpuRead(const Context& context, std::size_t bytes)
      : source_(*context.allocator, bytes), read_(pick_read()), sums_(static_cast<std::size_t>(num_threads())) {
    fill_parts(source_.data(), bytes, 0);
  }
  [[nodiscard]] double amount() const override { return static_cast<double>(bytes()); }
  [[nodiscard]] std::size_t bytes() const override { return source_.bytes(); }
  [[nodiscard]] const void* source() const override { return source_.data(); }
  [[nodiscard]] std::uint32_t checksum() const override { return total_of(sums_); }
  [[nodiscard]] int variants() const override { return 2; }
  [[nodiscard]] std::string variant_name(int variant) const override {
    return std::to_string(streams_of(variant)) + " stream(s) a thread";
  }
  void enqueue(int variant) override {
    sums_.assign(static_cast<std::size_t>(num_threads()), {});
    parallel_workers([&](int worker, int workers) {
      const Part part = part_of(bytes(), worker, workers);
      sums_[static_cast<std::size_t>(worker)].value =
          read_(static_cast<const char*>(source_.data()) + part.begin, part.bytes, streams_of(variant));
    });
  }

 private:
  HarnessBuffer source_;
  ReadStream read_;
  std::vector<Sum> sums_;
};

class CpuTraffic final : public TrafficWorkload {
 public:
  CpuTraffic(const Context& context, std::size_t read_bytes, std::size_t written_bytes)
      : writes_more_(written_bytes >= read_bytes),
        mix_(std::max(read_bytes, written_bytes) / kLineBytes, std::min(read_bytes, written_bytes) / kLineBytes,
             kTileLines, 1),
        source_(*context.allocator, read_bytes),
        destination_(*context.allocator, written_bytes),
        traffic_(pick_traffic()),
        sums_(static_cast<std::size_t>(num_threads())) {
    for_parts([&](int, const TrafficPart& part) {
      const std::size_t bytes = source_.bytes();
      const auto bound = [&](std::size_t tile) {
        return writes_more_ ? mix_.first(tile) * kLineBytes : std::min(tile * kTileLines * kLineBytes, bytes);
      };
      auto* const words = static_cast<std::uint64_t*>(source_.data());
      for (std::size_t i = bound(part.begin) / sizeof(std::uint64_t); i < bound(part.end) / sizeof(std::uint64_t);
           ++i) {
        words[i] = random_bits(i);
      }
    });
    enqueue(0);  // touches the destination
  }
  [[nodiscard]] double amount() const override {
    return static_cast<double>(read_bytes()) + static_cast<double>(written_bytes());
  }
  [[nodiscard]] std::size_t read_bytes() const override { return source_.bytes(); }
  [[nodiscard]] std::size_t written_bytes() const override { return destination_.bytes(); }
  [[nodiscard]] const void* source() const override { return source_.data(); }
  [[nodiscard]] void* destination() const override { return destination_.data(); }
  [[nodiscard]] std::uint32_t checksum() const override { return total_of(sums_); }
  [[nodiscard]] int variants() const override { return store_variants() * (read_bytes() == written_bytes() ? 1 : 2); }
  [[nodiscard]] std::string variant_name(int variant) const override {
    return std::string(is_non_temporal(variant) ? "non-temporal stores, " : "ordinary stores, ") +
           std::to_string(streams_of(variant / store_variants())) + " stream(s) a thread";
  }
  void enqueue(int variant) override {
    sums_.assign(static_cast<std::size_t>(num_threads()), {});
    for_parts([&](int worker, const TrafficPart& part) {
      sums_[static_cast<std::size_t>(worker)].value =
          traffic_(part, is_non_temporal(variant), streams_of(variant / store_variants()));
    });
  }

 private:
  static constexpr std::size_t kLineBytes = 64;
  static constexpr std::size_t kTileLines = 1024;  // four streams of it are 16 KiB each: shorter ones are slower

  [[nodiscard]] int store_variants() const { return destination_.bytes() > 0 ? 2 : 1; }
  [[nodiscard]] bool is_non_temporal(int variant) const { return variant % store_variants() == 1; }

  /// body(worker, part) on every thread that gets tiles.
  template <class Body>
  void for_parts(Body&& body) {
    const std::size_t tiles = mix_.tiles();
    const auto part_of_tiles = [&](std::size_t begin, std::size_t end) {
      return TrafficPart{static_cast<char*>(destination_.data()),
                         static_cast<const char*>(source_.data()),
                         &mix_,
                         writes_more_,
                         begin,
                         end};
    };
    if (tiles == 1) return body(0, part_of_tiles(0, 1));
    parallel_workers([&](int worker, int workers) {
      const auto bound = [&](int index) {
        return tiles * static_cast<std::size_t>(index) / static_cast<std::size_t>(workers);
      };
      body(worker, part_of_tiles(bound(worker), bound(worker + 1)));
    });
  }

  bool writes_more_;
  TrafficMix mix_;
  HarnessBuffer source_, destination_;
  TrafficStream traffic_;
  std::vector<Sum> sums_;
};

}  // namespace

std::unique_ptr<CopyWorkload> make_copy_cpu(const Context& context, std::size_t bytes) {
  return std::make_unique<CpuCopy>(context, bytes > 0 ? bytes : default_bytes(num_threads()));
}

std::unique_ptr<ReadWorkload> make_read_cpu(const Context& context, std::size_t bytes) {
  return std::make_unique<CpuRead>(context, bytes > 0 ? bytes : default_bytes(num_threads()));
}

std::unique_ptr<TrafficWorkload> make_traffic_cpu(const Context& context, std::size_t read_bytes,
                                                  std::size_t written_bytes) {
  return std::make_unique<CpuTraffic>(context, read_bytes, written_bytes);
}

}  // namespace warpmeter::ceilings::detail
