#include "tools/harness/session.hpp"

#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include "kernels/runtime/check.hpp"
#include "tools/harness/oom_dump.hpp"

namespace warpmeter::harness {

// Members are destroyed from the last to the first: what uses the allocator goes before it.
struct Session::Impl {
  explicit Impl(const Settings& given)
      : settings(given),
        guard(given.device),
        stream(given.device),
        allocator(given.device),
        properties(warpmeter::properties(given.device)) {
    if (settings.memory_limit != 0) allocator.set_memory_limit(settings.memory_limit);
    if (!settings.dump_on_oom.empty()) oom_dump.emplace(allocator, settings.dump_on_oom);
  }

  Settings settings;
  DeviceGuard guard;
  Stream stream;
  CachingAllocator allocator;
  DeviceProperties properties;
  std::optional<OomDump> oom_dump;
  std::optional<Sampler> sampler;
  std::optional<Ceilings> ceilings;
  reports::Object adopted_ceilings;
  std::set<std::string> warned;
  std::function<void(const std::string&)> warning_sink;
  std::function<void(const reports::Row&)> checkpoint_sink;
};

Session::Session(const Settings& settings) : impl_(std::make_unique<Impl>(settings)) {}
Session::~Session() = default;

const Settings& Session::settings() const {
  return impl_->settings;
}
Context Session::context() const {
  return {impl_->stream.view(), &impl_->allocator};
}
CachingAllocator& Session::allocator() const {
  return impl_->allocator;
}
const DeviceProperties& Session::device_properties() const {
  return impl_->properties;
}

Sampler& Session::sampler() {
  if (!impl_->sampler) {
    impl_->sampler.emplace(context(), impl_->settings, [this](const std::string& text) { warn(text); });
  }
  return *impl_->sampler;
}

Ceilings& Session::ceilings() {
  if (!impl_->ceilings) {
    impl_->ceilings.emplace(context(), impl_->settings);
    impl_->ceilings->adopt(impl_->adopted_ceilings);
  }
  return *impl_->ceilings;
}

OomDump* Session::oom_dump() {
  return impl_->oom_dump ? &*impl_->oom_dump : nullptr;
}

reports::Object Session::measured_ceilings() const {
  return impl_->ceilings ? impl_->ceilings->measured() : impl_->adopted_ceilings;
}

void Session::adopt_ceilings(const reports::Object& known) {
  WM_CHECK(!impl_->ceilings, "ceilings are adopted before the first use");
  impl_->adopted_ceilings = known;
}

void Session::warn(const std::string& text) {
  if (!impl_->warned.insert(text).second) return;
  if (impl_->warning_sink) {
    impl_->warning_sink(text);
  } else {
    std::fprintf(stderr, "warning: %s\n", text.c_str());
  }
}

std::int64_t Session::warnings() const {
  return static_cast<std::int64_t>(impl_->warned.size());
}

void Session::checkpoint(const reports::Row& row) {
  if (impl_->checkpoint_sink) impl_->checkpoint_sink(row);
  throw_if_interrupted();
}

void Session::on_warning(std::function<void(const std::string&)> sink) {
  impl_->warning_sink = std::move(sink);
}

void Session::on_checkpoint(std::function<void(const reports::Row&)> sink) {
  impl_->checkpoint_sink = std::move(sink);
}

}  // namespace warpmeter::harness
