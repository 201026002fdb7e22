#pragma once

#include <string>
#include <string_view>

#include "reports/model.hpp"
#include "tools/harness/session.hpp"
#include "tools/harness/sweep.hpp"

namespace warpmeter::harness {

/// How running a row left this process.
enum class Aftermath : std::uint8_t {
  usable,
  device_lost,  ///< a sticky device error: nothing more may run here
  run_lost,     ///< the same, by RunLost
  interrupted,  ///< Ctrl-C came while the row ran
};

/// Runs one case in this process and turns whatever comes out of it into `row`'s status and reason; never throws.
/// Afterwards the cache is freed and the allocated bytes are compared with those before: a difference makes the row an
/// error that names it.
Aftermath run_in_process(Session& session, Case& a_case, reports::Row& row);

/// Whether a figure is a speed or a time, or derived from one: what a wrong result must not show.
[[nodiscard]] bool is_speed(std::string_view figure);
/// Sets every speed to null.
void remove_speeds(reports::Object& figures);

}  // namespace warpmeter::harness
