#pragma once

#include <memory>
#include <string>

#include "kernels/runtime/context.hpp"
#include "tools/harness/ceilings.hpp"
#include "tools/harness/sampler.hpp"
#include "tools/harness/settings.hpp"

namespace warpmeter::harness {

/// What a row's code may use: device, stream, allocator, settings, sampler, ceilings. One for a run of a tool.
class Session {
 public:
  explicit Session(const Settings& settings);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] const Settings& settings() const;
  [[nodiscard]] Context context() const;
  [[nodiscard]] CachingAllocator& allocator() const;
  [[nodiscard]] Sampler& sampler();
  [[nodiscard]] Ceilings& ceilings();
  [[nodiscard]] const DeviceProperties& device_properties() const;
  /// A warning on stderr, once for each text; counted in the summary.
  void warn(const std::string& text);
  [[nodiscard]] std::int64_t warnings() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace warpmeter::harness
