#pragma once

#include <string_view>

namespace warpmeter::reports {

/// Writes `rest` to a file descriptor and takes off what was written; waits for room in a pipe or terminal that another
/// program made non-blocking. Returns 0 or the errno (EPIPE needs SIGPIPE ignored or held back).
[[nodiscard]] int write_all(int fd, std::string_view& rest) noexcept;

}  // namespace warpmeter::reports
