#include "tools/harness/launch/ranks.hpp"

#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

#include <unistd.h>

namespace warpmeter::harness::launch {

int Ranks::hosts() const {
  std::set<std::string> boots;
  for (const Member& member : members_) boots.insert(member.host + " " + member.boot);
  return static_cast<int>(boots.size());
}

int Ranks::local_size(const Member& member) const {
  int count = 0;
  for (const Member& other : members_) {
    if (other.host == member.host && other.boot == member.boot) ++count;
  }
  return count;
}

void Ranks::count_locals() {
  for (std::size_t r = 0; r < members_.size(); ++r) {
    members_[r].local_rank = 0;
    for (std::size_t before = 0; before < r; ++before) {
      if (members_[before].host == members_[r].host && members_[before].boot == members_[r].boot) {
        ++members_[r].local_rank;
      }
    }
  }
}

void Ranks::tell_to_quit() {
  for (Member& member : members_) member.link.send(Say::quit);
}

std::string hello_text(int rank) {
  char host[256] = {};
  (void)gethostname(host, sizeof(host) - 1);
  std::string boot = "-";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  // Containers of one host are hosts of their own: they reach neither each other's processes nor their loopback.
  for (const char* space : {"/proc/self/ns/net", "/proc/self/ns/pid"}) {
    char name[64] = {};
    if (readlink(space, name, sizeof(name) - 1) > 0) boot.append("/").append(name);
  }
  return std::to_string(rank) + " " + std::to_string(getpid()) + " " + (host[0] == '\0' ? "localhost" : host) + " " +
         boot;
}

Hello parse_hello(const std::string& text) {
  Hello hello;
  std::istringstream words(text);
  if (!(words >> hello.rank >> hello.pid >> hello.host >> hello.boot)) {
    throw std::runtime_error("not a rank's first words: " + text);
  }
  return hello;
}

}  // namespace warpmeter::harness::launch
