#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/runtime/device.hpp"
#include "kernels/runtime/dtype.hpp"
#include "reports/model.hpp"
#include "reports/writer.hpp"
#include "tools/harness/option_table.hpp"

namespace warpmeter::harness {

enum class TimerKind : std::uint8_t { device, wall };
enum class CacheState : std::uint8_t { cold, hot };

/// The options that every tool shares, read and checked.
struct Settings {
  Device device;
  bool device_was_auto = false;
  std::vector<DType> dtypes;
  std::uint64_t seed = 0;
  std::int64_t warmup = 10;
  std::optional<std::int64_t> steps;  ///< none: adaptive
  double max_noise = 0.005;           ///< IQR / median, a fraction
  double max_time_s = 2;              ///< a phase
  double duty_cycle = 1;              ///< the part of sampling that samples take, above 0; the rest is pauses
  TimerKind timer = TimerKind::device;
  CacheState cache = CacheState::hot;  ///< default: cold on GPUs, hot on the CPU
  std::uint64_t memory_limit = 0;      ///< 0: none
  bool isolate = false;
  std::optional<double> row_timeout_s;  ///< ends a row's process; needs isolate
  bool check = true;
  reports::Format format = reports::Format::md;
  std::vector<std::string> outputs;
  std::vector<std::string> columns;
  bool wide = false;
  bool samples = false;
  std::string resume;  ///< a path or empty
  bool dry_run = false;
  std::string dump_on_oom;     ///< a snapshot's path or empty
  int isolated_child_fd = -1;  ///< this process is the child: its row goes there
  std::string preset;          ///< the preset in force, or empty
};

/// What --dtype takes where a tool says nothing else.
inline constexpr std::array<std::string_view, 4> kDTypeWords{"fp32", "tf32", "bf16", "fp16"};

/// Adds the shared options, --help and its like included, to a table that has none of them yet. `dtypes`: what --dtype
/// takes, names of DType.
void add_shared_options(OptionTable& table, std::span<const std::string_view> dtypes = kDTypeWords);

/// Reads them. Throws UsageError: values that do not parse, a device that is not there, contradictions (both flags
/// named), the same output twice, an output's unknown ending, a --resume file that cannot be read. Outputs that cannot
/// be written are found later, by opening them.
[[nodiscard]] Settings read_settings(const OptionTable& table, std::span<const std::string_view> dtypes = kDTypeWords);

/// --device alone. Throws UsageError.
[[nodiscard]] Device read_device(const OptionTable& table);

/// As they stand in the document: what was in force while measuring, null where it was not. "cache_flush" says in what
/// state a flush leaves a GPU's L2: "clean", with nothing to write back; null on the CPU and with a hot cache.
[[nodiscard]] reports::Object describe(const Settings& settings);

}  // namespace warpmeter::harness
