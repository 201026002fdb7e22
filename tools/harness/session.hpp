#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/runtime/context.hpp"
#include "reports/model.hpp"
#include "tools/harness/ceilings.hpp"
#include "tools/harness/sampler.hpp"
#include "tools/harness/settings.hpp"

namespace warpmeter::harness {

class OomDump;

/// What a row's code may use: device, stream, allocator, settings, sampler, ceilings. One for a run of a tool.
/// Makes its device the calling thread's current one and bounds its allocator by --memory-limit.
class Session {
 public:
  /// Throws DeviceError when the device cannot be set up.
  explicit Session(const Settings& settings);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] const Settings& settings() const;
  [[nodiscard]] Context context() const;
  [[nodiscard]] CachingAllocator& allocator() const;
  [[nodiscard]] Sampler& sampler();    ///< made when first asked for
  [[nodiscard]] Ceilings& ceilings();  ///< made when first asked for
  [[nodiscard]] const DeviceProperties& device_properties() const;
  /// A warning on stderr, once for each text; counted in the summary.
  void warn(const std::string& text);
  [[nodiscard]] std::int64_t warnings() const;

  /// A case calls this when a phase's figures are in `row`. They then survive whatever ends the process later (an
  /// isolated child sends them to its parent at once; without --isolate this does nothing). Throws Interrupted.
  void checkpoint(const reports::Row& row);

  // For the sweep that drives the session.
  /// --dump-on-oom's; null without it.
  [[nodiscard]] OomDump* oom_dump();
  /// Where warnings go instead of stderr ("text", without program name or "warning").
  void on_warning(std::function<void(const std::string&)> sink);
  void on_checkpoint(std::function<void(const reports::Row&)> sink);
  /// Ceilings known so far; measures none.
  [[nodiscard]] reports::Object measured_ceilings() const;
  /// Those that need not be measured again; before the first use of ceilings().
  void adopt_ceilings(const reports::Object& known);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace warpmeter::harness
