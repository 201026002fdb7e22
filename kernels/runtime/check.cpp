#include "kernels/runtime/check.hpp"

namespace warpmeter::detail {

void check_failed(const char* expression, const char* file, int line, const std::string& message) {
  throw CheckError("check failed: " + std::string(expression) + " (" + file + ":" + std::to_string(line) +
                   "): " + message);
}

}  // namespace warpmeter::detail
