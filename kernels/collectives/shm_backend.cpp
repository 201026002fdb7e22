#include <algorithm>
#include <cstring>
#include <optional>

#include <sched.h>

#include "kernels/collectives/control.hpp"
#include "kernels/collectives/detail/shm_segment.hpp"
#include "kernels/collectives/shm.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/device.hpp"

namespace warpmeter::collectives {
namespace detail {

int cores_of_all(Communicator& control) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  const bool known = sched_getaffinity(0, sizeof(mine), &mine) == 0;
  std::string bytes(sizeof(mine), '\0');
  std::memcpy(bytes.data(), &mine, sizeof(mine));
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const std::string& theirs : all_gather_bytes(control, bytes)) {
    cpu_set_t set;
    std::memcpy(&set, theirs.data(), sizeof(set));
    CPU_OR(&all, &all, &set);
  }
  const int usable = properties(Device::cpu()).cores;
  if (!known || CPU_COUNT(&all) == 0) return usable;
  // Fewer than the process may be on: a quota, which holds for all of them.
  return usable < CPU_COUNT(&mine) ? std::min(usable, CPU_COUNT(&all)) : CPU_COUNT(&all);
}

}  // namespace detail
namespace {

class ShmBackend final : public Backend {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "shm"; }
  [[nodiscard]] DeviceKind device_kind() const noexcept override { return DeviceKind::cpu; }
  [[nodiscard]] std::string_view description() const noexcept override {
    return "shared memory between processes of one host";
  }
  [[nodiscard]] std::optional<std::string> unavailable(const GroupShape& shape) const override {
    if (shape.hosts > 1) {
      return "shm: the ranks are on " + std::to_string(shape.hosts) + " hosts and share no memory; use gloo or mpi";
    }
    if (shape.world_size > detail::kMaxRanks) {
      return "shm: " + std::to_string(shape.world_size) + " ranks; at most " + std::to_string(detail::kMaxRanks);
    }
    return std::nullopt;
  }
  [[nodiscard]] bool prefers_own_memory() const noexcept override { return true; }

  [[nodiscard]] std::unique_ptr<Communicator> create(const RankContext& context) const override {
    WM_CHECK(context.control != nullptr, "no way to tell the other ranks of the segment");
    const int cores = detail::cores_of_all(*context.control);
    std::optional<ShmWorld> world;
    if (context.rank == 0) {
      ShmOptions options;
      options.world_size = context.world_size;
      options.threads = context.options.threads;
      options.cores = cores;
      options.timeout_s = context.options.timeout_s;
      options.heap_bytes = kHeapBytes;
      world.emplace(options);
    }
    const std::string path = broadcast_bytes(*context.control, 0, world ? world->path() : "");
    if (!world) world.emplace(ShmWorld::open(path));
    return world->join(context.rank);
  }

 private:
  static constexpr std::size_t kHeapBytes = std::size_t{64} << 30;  // address space: pages are taken when allocated
};

}  // namespace

const Backend& shm_backend() {
  static const ShmBackend backend;
  return backend;
}

}  // namespace warpmeter::collectives
