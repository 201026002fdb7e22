#pragma once

#include <string>
#include <string_view>

namespace warpmeter::harness {

/// stderr as people read it: whole lines that begin with the program's name and, only where stderr is a terminal, a
/// status line below them that is replaced in place and cleared before anything else is written.
class ProgressConsole {
 public:
  explicit ProgressConsole(std::string program, int fd = 2);
  ~ProgressConsole();  ///< clears the status line
  ProgressConsole(const ProgressConsole&) = delete;
  ProgressConsole& operator=(const ProgressConsole&) = delete;

  /// "attn_bench: text". Control characters are escaped: one message is one line.
  void line(std::string_view text);
  /// "attn_bench: warning: text".
  void warning(std::string_view text);
  /// Shows `text`, cut to the terminal's width; nothing where there is no terminal.
  void show_status(std::string_view text);
  /// Before stdout is written: both may be the same terminal.
  void clear_status();
  [[nodiscard]] bool is_terminal() const noexcept { return terminal_; }

 private:
  void write(std::string_view text) const;

  std::string program_;
  int fd_;
  bool terminal_;
  std::string status_;
};

}  // namespace warpmeter::harness
