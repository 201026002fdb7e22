#pragma once

#include <string>

#include "kernels/collectives/backend.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::collectives::detail {

/// Stands in the table for a backend that this build has not.
class AbsentBackend final : public Backend {
 public:
  AbsentBackend(std::string_view name, DeviceKind kind, std::string_view description, std::string_view reason)
      : name_(name), kind_(kind), description_(description), reason_(reason) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] DeviceKind device_kind() const noexcept override { return kind_; }
  [[nodiscard]] std::string_view description() const noexcept override { return description_; }
  [[nodiscard]] std::optional<std::string> unavailable(const GroupShape& /*shape*/) const override {
    return std::string(name_) + ": " + std::string(reason_);
  }
  [[nodiscard]] std::unique_ptr<Communicator> create(const RankContext& /*context*/) const override {
    WM_CHECK(false, std::string(name_) + " is not in this build");
    return nullptr;
  }

 private:
  std::string_view name_;
  DeviceKind kind_;
  std::string_view description_, reason_;
};

}  // namespace warpmeter::collectives::detail
