#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/runtime/compute_path.hpp"
#include "kernels/runtime/context.hpp"
#include "reports/model.hpp"
#include "tools/harness/sampler.hpp"

namespace warpmeter::harness {

/// Where ceilings come from: the device, or a test's fixed figures. A NaN says that it could not be measured now.
class CeilingSource {
 public:
  virtual ~CeilingSource() = default;
  /// Never asked for tf32x3.
  [[nodiscard]] virtual double matmul_tflops(ComputePath path) = 0;
  [[nodiscard]] virtual double copy_gbps() = 0;
  [[nodiscard]] virtual double read_gbps() = 0;
};

/// Rates of this device, each measured once a run when first asked for: TFLOP/s of a matmul on random data for a
/// compute path, GB/s (decimal) of a copy (bytes read plus bytes written) and of a read.
///
/// A ceiling is what the device can do at best: the least time of several samples, of the fastest of several ways
/// (kernels/ceilings). Copy and read: on buffers far larger than the caches. Matmul: a large square one; on the CPU
/// also one whose operands stay in cache, what a kernel that blocks perfectly could reach. tf32x3 counts as tf32 / 3.
/// On the CPU half is the in-cache bf16 matmul where the machine multiplies bf16 natively, and every other path is
/// fp32. A whole set takes about 2 s on a GPU and 3 s on two cores. NaN, and tried again at the next call, when the
/// device has no room for the buffers; NaN on a GPU, too, while a profiler or checker watches the process.
class Ceilings {
 public:
  Ceilings(const Context& context, const Settings& settings);
  /// `hot_cache_bytes`, `unwritten_bytes`: see below.
  explicit Ceilings(std::unique_ptr<CeilingSource> source, std::size_t hot_cache_bytes = 0,
                    std::size_t unwritten_bytes = 0);
  ~Ceilings();
  Ceilings(const Ceilings&) = delete;
  Ceilings& operator=(const Ceilings&) = delete;

  [[nodiscard]] double matmul_tflops(ComputePath path);
  [[nodiscard]] double copy_gbps();
  [[nodiscard]] double read_gbps();
  /// What bounds any mix of reading and writing: the larger of the two.
  [[nodiscard]] double memory_gbps();
  /// Bytes that a call may find in the cache since the one before left them there: the last-level cache's size with
  /// --cache hot, 0 with cold. Work of no more bytes may rightly beat the memory's rate.
  [[nodiscard]] std::size_t hot_cache_bytes() const;
  /// Bytes of its results that a call may leave in the cache, to be written to memory when its time is over: a GPU's L2
  /// with --cache cold, where it finds none of others' to write in their stead; else 0.
  [[nodiscard]] std::size_t unwritten_bytes() const;
  /// Those measured so far: matmul_fp32_tflops, matmul_tf32_tflops, matmul_16bit_tflops, copy_gbps, read_gbps.
  [[nodiscard]] reports::Object measured() const;
  /// Measures those of the memory that were measured once more. A warning's text where one is not within an eighth of
  /// what it was: a virtual machine's memory is shared, and its speed changes with what the neighbours do.
  [[nodiscard]] std::optional<std::string> memory_drift();
  /// Takes over what measured() gave elsewhere on this device (an isolated process: its parent's): not measured again.
  void adopt(const reports::Object& known);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Which measured rate stands for the memory's.
enum class MemoryRate : std::uint8_t {
  best,  ///< the larger of the two: what bounds any mix
  copy,  ///< for work that writes as much as it reads
  read,  ///< for work that reads
};

/// What a phase did in its median time.
struct Work {
  double flops = 0;
  double bytes = 0;  ///< least bytes: inputs once, outputs once
  ComputePath path = ComputePath::fp32;
  MemoryRate memory = MemoryRate::best;
};

/// Whether memory bounds work rather than arithmetic. Nothing for no work or where a ceiling could not be measured.
[[nodiscard]] std::optional<bool> bound_by_memory(const Work& work, Ceilings& ceilings);

/// `fwd` gives fwd_flops, fwd_bytes, fwd_tflops, fwd_gbps, fwd_bound ("compute" or "memory": the larger of the two
/// least times) and fwd_bound_share (least time / measured time). Returns a warning's text for a share above 1 (of the
/// best memory rate, whichever work.memory names): always where compute bounds, where memory does only if work.bytes
/// exceed ceilings.hot_cache_bytes(), that is with a cold cache or for more bytes than the last-level cache holds; of
/// work that writes as much as it reads all but ceilings.unwritten_bytes() count.
/// Without a positive finite time all but fwd_flops and fwd_bytes are null, and no ceiling is measured; without a
/// ceiling, or for no work, fwd_bound and fwd_bound_share are.
[[nodiscard]] std::optional<std::string> add_rates(reports::Object& figures, std::string_view phase, double median_ms,
                                                   const Work& work, Ceilings& ceilings);

}  // namespace warpmeter::harness
