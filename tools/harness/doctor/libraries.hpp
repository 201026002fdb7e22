#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/harness/doctor/facts.hpp"

namespace warpmeter::harness::doctor {

/// Where the loader finds the first of these libraries, with its version where it tells one; none: nowhere.
using LibraryFinder = std::function<std::optional<std::string>(const std::vector<std::string>& names)>;

/// Opens the library, asks it for its version where it has a plain function for that, and closes it again.
[[nodiscard]] std::optional<std::string> find_library(const std::vector<std::string>& names);

/// Libraries that this program uses, or would if they had been found when it was built.
[[nodiscard]] std::vector<LibraryFacts> read_libraries(const LibraryFinder& find = find_library);

/// Those variables that change how fast things run; no other is ever read.
[[nodiscard]] std::map<std::string, std::string> read_environment();

}  // namespace warpmeter::harness::doctor
