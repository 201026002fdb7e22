#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace warpmeter::collectives::detail {

/// Who a rank is to the others: "host/process namespace", process id.
struct Identity {
  std::string host;
  int pid = 0;
};
[[nodiscard]] Identity own_identity();

/// Sees other processes of this host end, whatever ends them, in a thread of its own. Those of other hosts are not
/// watched: time tells.
class PeerWatch {
 public:
  /// `on_end` is called in the watching thread, after ended() tells.
  PeerWatch(const std::vector<Identity>& ranks, int own_rank, std::function<void(int rank)> on_end);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  [[nodiscard]] std::vector<int> ended() const;  ///< ranks, ascending

 private:
  struct Watched {
    int rank, fd;
  };
  void watch();

  std::function<void(int)> on_end_;
  std::vector<Watched> watched_;
  int stop_ = -1;  ///< an eventfd
  mutable std::mutex mutex_;
  std::vector<int> ended_;
  std::thread thread_;
};

}  // namespace warpmeter::collectives::detail
