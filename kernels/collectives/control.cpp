#include "kernels/collectives/control.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace warpmeter::collectives {
namespace {

using Words = std::vector<std::int32_t>;

CollectiveBuffer view(Words& words) {
  return {words.data(), static_cast<std::int64_t>(words.size()), DType::int32};
}
std::size_t words_for(std::size_t bytes) {
  return (bytes + sizeof(std::int32_t) - 1) / sizeof(std::int32_t);
}

}  // namespace

std::vector<std::string> all_gather_bytes(Communicator& control, const std::string& mine) {
  const auto ranks = static_cast<std::size_t>(control.world_size());
  Words length{static_cast<std::int32_t>(mine.size())};
  Words lengths(ranks);
  control.all_gather(view(length), view(lengths));
  const std::size_t stride = words_for(static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end())));
  Words own(stride);
  Words all(stride * ranks);
  if (!mine.empty()) std::memcpy(own.data(), mine.data(), mine.size());
  control.all_gather(view(own), view(all));
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < ranks; ++r) {
    texts.emplace_back(reinterpret_cast<const char*>(all.data() + r * stride), static_cast<std::size_t>(lengths[r]));
  }
  return texts;
}

std::string broadcast_bytes(Communicator& control, int root, const std::string& bytes) {
  Words length{static_cast<std::int32_t>(bytes.size())};
  control.broadcast(view(length), view(length), root);
  const auto count = static_cast<std::size_t>(length.front());
  Words words(words_for(count));
  if (control.rank() == root && count > 0) std::memcpy(words.data(), bytes.data(), count);
  control.broadcast(view(words), view(words), root);
  return {reinterpret_cast<const char*>(words.data()), count};
}

}  // namespace warpmeter::collectives
