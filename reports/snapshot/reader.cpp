#include "reports/snapshot/reader.hpp"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include <sys/stat.h>

#include "reports/detail/utf8.hpp"
#include "reports/snapshot/detail/data_tree.hpp"
#include "reports/snapshot/detail/from_tree.hpp"

namespace warpmeter::reports::snapshot {
namespace {

[[noreturn]] void fail(const std::string& origin, std::string_view what) {
  throw ReadError(reports::detail::printable(origin + ": " + std::string(what)));
}

std::string read_file(const std::string& path, std::size_t limit) {
  const auto fail_errno = [&] { fail("cannot read '" + path + "'", std::generic_category().message(errno)); };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) fail_errno();
  struct stat status {};
  std::string text;
  if (fstat(fileno(file.get()), &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    if (static_cast<std::size_t>(status.st_size) > limit) {
      fail("cannot read '" + path + "'", "larger than " + std::to_string(limit >> 20) + " MiB");
    }
    text.reserve(static_cast<std::size_t>(status.st_size) + 1);
  }
  constexpr std::size_t kStep = std::size_t{1} << 22;
  while (true) {
    const std::size_t before = text.size();
    if (before > limit) fail("cannot read '" + path + "'", "larger than " + std::to_string(limit >> 20) + " MiB");
    text.resize(before + (text.capacity() - before > 1 ? std::min(kStep, text.capacity() - before) : kStep));
    const std::size_t n = std::fread(text.data() + before, 1, text.size() - before, file.get());
    text.resize(before + n);
    if (n == 0) break;
  }
  if (std::ferror(file.get()) != 0) fail_errno();
  return text;
}

/// `bytes` is given back as soon as the tree no longer needs it.
template <class Release>
Snapshot parse(std::string_view bytes, const std::string& origin, const ReadLimits& limits, Release&& release) {
  try {
    detail::DataTree tree(limits.memory_bytes);
    const std::size_t first = bytes.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) throw detail::TreeError("is empty");
    if (bytes.starts_with("\x1f\x8b")) throw detail::TreeError("compressed with gzip: gunzip it first");
    if (bytes.starts_with("PK\x03\x04")) {
      throw detail::TreeError("a zip file, as torch.save() writes; snapshots are written by _dump_snapshot()");
    }
    // The model's own levels: the snapshot, a list, a trace, an event, its frames, a frame.
    constexpr std::size_t kModelNesting = 6;
    const detail::Word root = bytes[first] == '{' || bytes[first] == '['
                                  ? detail::read_json(bytes.substr(first), limits.nesting + kModelNesting, tree)
                                  : detail::read_pickle(bytes, tree);
    release();
    return detail::from_tree(tree, root, limits);
  } catch (const detail::TreeError& e) {
    fail(origin, e.what());
  } catch (const std::bad_alloc&) {
    fail(origin, "the host's memory ran out while it was read");
  }
}

}  // namespace

Snapshot read_snapshot(const std::string& path, const ReadLimits& limits) {
  std::string text = read_file(path, limits.file_bytes);
  return parse(text, path, limits, [&] { std::string().swap(text); });
}

Snapshot parse_snapshot(std::string_view bytes, const std::string& origin, const ReadLimits& limits) {
  return parse(bytes, origin, limits, [] {});
}

}  // namespace warpmeter::reports::snapshot
