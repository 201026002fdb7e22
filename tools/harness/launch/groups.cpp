#include "tools/harness/launch/groups.hpp"

#include <algorithm>

#include "kernels/runtime/check.hpp"

namespace warpmeter::harness::launch {

collectives::GroupShape Groups::shape(int world_size) const {
  collectives::GroupShape shape;
  shape.world_size = world_size;
  shape.most_on_a_host = world_size;
  if (joined_ == nullptr) return shape;
  shape.launched = true;
  shape.hosts = joined_->hosts();
  shape.most_on_a_host = 0;
  for (const Ranks::Member& member : joined_->members()) {
    shape.most_on_a_host = std::max(shape.most_on_a_host, joined_->local_size(member));
  }
  return shape;
}

Group& Groups::get(const collectives::Backend& backend, int world_size, const Group::Warn& warn) {
  if (group_ != nullptr && backend_ == &backend && world_size_ == world_size) return *group_;
  group_.reset();
  const auto known = failed_.find({&backend, world_size});
  if (known != failed_.end()) throw DeviceError(known->second, false);
  try {
    std::shared_ptr<Ranks> ranks = joined_;
    if (ranks == nullptr) ranks = start_ranks(world_size, backend.name() == "mpi", argv_, timeout_s_);
    group_ = std::make_unique<Group>(std::move(ranks), backend, timeout_s_, warn);
  } catch (const RunLost& e) {
    // Nothing was measured on it yet, and the next group is another one; what a launcher has started is lost, though.
    if (joined_ != nullptr) throw;
    failed_[{&backend, world_size}] = e.what();
    throw DeviceError(e.what(), false);
  }
  backend_ = &backend;
  world_size_ = world_size;
  return *group_;
}

}  // namespace warpmeter::harness::launch
