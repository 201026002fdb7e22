#pragma once

#include <utility>

#include "tools/harness/doctor/findings.hpp"

namespace warpmeter::harness::doctor {

// What judge() is made of.

struct Findings {
  std::vector<Finding> list;
  void add(Severity severity, std::string id, std::string subject, std::string seen, std::string remedy) {
    list.push_back({severity, std::move(id), std::move(subject), std::move(seen), std::move(remedy)});
  }
};

void judge_gpus(const Facts& facts, Findings& found);
void judge_host(const Facts& facts, Findings& found);

[[nodiscard]] std::string throttle_remedy(std::uint64_t reasons);

}  // namespace warpmeter::harness::doctor
