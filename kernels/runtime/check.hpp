#pragma once

#include <stdexcept>
#include <string>

namespace warpmeter {

/// A broken promise inside the program (a programmer's mistake): thrown by WM_CHECK, never by bad user input.
class CheckError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// The environment is broken: a driver call failed, a library would not start. Caught once per row and in main.
/// `sticky` says that the device context is lost and nothing more may be launched in this process.
class DeviceError : public std::runtime_error {
 public:
  DeviceError(const std::string& what, bool sticky) : std::runtime_error(what), sticky_(sticky) {}
  [[nodiscard]] bool sticky() const noexcept { return sticky_; }

 private:
  bool sticky_;
};

namespace detail {
[[noreturn]] void check_failed(const char* expression, const char* file, int line, const std::string& message);
}

}  // namespace warpmeter

/// Always-on check of an internal invariant. `message` is evaluated only on failure.
#define WM_CHECK(condition, message)                                                \
  do {                                                                              \
    if (!(condition)) [[unlikely]] {                                                \
      ::warpmeter::detail::check_failed(#condition, __FILE__, __LINE__, (message)); \
    }                                                                               \
  } while (false)
