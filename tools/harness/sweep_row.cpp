#include "tools/harness/sweep_row.hpp"

#include <array>
#include <new>

#include <fmt/core.h>

#include "kernels/runtime/check.hpp"
#include "tools/harness/grammar.hpp"
#include "tools/harness/memory_guard.hpp"
#include "tools/harness/oom_dump.hpp"
#include "tools/harness/sweep.hpp"
#include "tools/harness/usage_error.hpp"

namespace warpmeter::harness {
namespace {

void fail(reports::Row& row, reports::Status status, std::string_view reason) {
  row.status = status;
  row.reason = one_line(reason);
}

std::string describe(const OutOfMemory& e) {
  return fmt::format("requested {}, free {}, limit {}", format_size(e.requested()), format_size(e.free()),
                     format_size(e.limit()));
}

/// What `action` throws becomes the row's status.
template <class Action>
Aftermath guarded(reports::Row& row, Action&& action) {
  try {
    action();
  } catch (const OutOfMemory& e) {
    fail(row, reports::Status::oom, describe(e));
  } catch (const DeviceError& e) {
    fail(row, reports::Status::error, e.what());
    if (e.sticky()) return Aftermath::device_lost;
  } catch (const RunLost& e) {
    fail(row, e.status(), e.what());
    return Aftermath::run_lost;
  } catch (const Interrupted&) {
    fail(row, reports::Status::interrupted, interrupt_text());
    return Aftermath::interrupted;
  } catch (const std::bad_alloc&) {
    fail(row, reports::Status::oom, "the host's memory ran out (std::bad_alloc)");
  } catch (const std::exception& e) {
    fail(row, reports::Status::error, e.what());
  } catch (...) {
    fail(row, reports::Status::error, "an exception of an unknown type");
  }
  return Aftermath::usable;
}

void check_given_back(std::size_t before, std::size_t after, reports::Row& row) {
  if (before == after) return;
  std::string leak =
      fmt::format("allocated memory was {} before the row and is {} after it", format_size(before), format_size(after));
  if (!row.reason.empty()) leak = row.reason + "; " + leak;
  fail(row, reports::Status::error, leak);
}

}  // namespace

Aftermath run_in_process(Session& session, Case& a_case, reports::Row& row) {
  CachingAllocator& allocator = session.allocator();
  row.status = reports::Status::ok;
  row.reason.clear();

  std::size_t before = 0;
  Aftermath aftermath = guarded(row, [&] {
    if (auto reason = predicted_oom(a_case.predict(), session)) return fail(row, reports::Status::oom, *reason);
    before = allocator.stats().current.allocated;
    allocator.reset_peak();
    if (OomDump* const dump = session.oom_dump()) dump->begin_row();
    a_case.run(session, row);
    synchronize(session.context().stream);  // an asynchronous error belongs to this row, not to the next
  });

  if (aftermath != Aftermath::device_lost) {
    reports::Row cleanup;
    cleanup.status = reports::Status::ok;
    const Aftermath cleaned = guarded(cleanup, [&] {
      synchronize(session.context().stream);  // after an exception work may still be in flight
      allocator.empty_cache();
    });
    if (cleanup.status != reports::Status::ok) {
      fail(row, reports::Status::error, row.reason.empty() ? cleanup.reason : row.reason + "; " + cleanup.reason);
    }
    if (cleaned == Aftermath::device_lost) {
      aftermath = cleaned;
    } else {
      check_given_back(before, allocator.stats().current.allocated, row);
    }
  }
  if (OomDump* const dump = session.oom_dump()) {
    if (const std::string said = dump->end_row(row.status == reports::Status::oom); !said.empty()) session.warn(said);
  }
  if (row.status == reports::Status::mismatch) remove_speeds(row.figures);
  return aftermath;
}

bool is_speed(std::string_view figure) {
  static constexpr std::array<std::string_view, 14> kEndings = {"_ms",     "_us",      "_ns",    "_s",     "_tflops",
                                                                "_gflops", "_gbps",    "_gibps", "_GiBps", "_share",
                                                                "_mfu",    "_speedup", "_bound", "_per_s"};
  for (const std::string_view ending : kEndings) {
    if (figure.size() > ending.size() && figure.ends_with(ending)) return true;
  }
  return figure == "speedup" || figure == "mfu";
}

void remove_speeds(reports::Object& figures) {
  const auto fields = figures.fields();  // a copy: set() may move the fields
  for (const auto& [name, value] : fields) {
    if (is_speed(name)) figures.set(name, nullptr);
  }
}

}  // namespace warpmeter::harness
