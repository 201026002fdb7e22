#include "reports/output_file.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reports/reader.hpp"
#include "tests/reports/sample.hpp"

namespace warpmeter::reports {
namespace {

using testing::sample_document;
using testing::written;

/// A folder of its own for each test, gone afterwards.
class OutputFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "warpmeter-output-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override {
    ::chmod(folder_.c_str(), 0700);
    std::filesystem::remove_all(folder_);
  }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }

  static std::string read(const std::string& name) {
    std::ifstream in(name, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  static void write(const std::string& name, const std::string& text) { std::ofstream(name, std::ios::binary) << text; }
  static mode_t mode(const std::string& name) {
    struct stat info {};
    EXPECT_EQ(::lstat(name.c_str(), &info), 0) << name;
    return info.st_mode & 07777;
  }
  [[nodiscard]] std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  std::string folder_;
};

/// Why the file cannot be opened; "" when it can.
std::string refusal(const std::string& path) {
  try {
    const OutputFile file(path, {});
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "";
}

/// Root may write everywhere; nobody may not. Skips the test where the identity cannot be changed.
class Unprivileged {
 public:
  explicit Unprivileged(const std::string& folder) {
    if (::geteuid() != 0) return;
    was_root_ = ::chown(folder.c_str(), 65534, 65534) == 0 && ::seteuid(65534) == 0;
  }
  ~Unprivileged() {
    if (was_root_) (void)!::seteuid(0);
  }
  [[nodiscard]] static bool works() { return ::geteuid() != 0; }

 private:
  bool was_root_ = false;
};

TEST_F(OutputFileTest, WritesTheWholeDocumentEveryTime) {
  for (const char* name : {"x.md", "x.json", "x.jsonl", "x.csv"}) {
    OutputFile file(path(name), {testing::sample_layout()});
    EXPECT_EQ(file.path(), path(name));
    EXPECT_EQ(file.format(), format_of_path(name));
    EXPECT_FALSE(std::filesystem::exists(path(name))) << "nothing before there is something to write";
    Document document = sample_document();
    const Row last = document.rows.back();
    document.rows.pop_back();
    file.rewrite(document);
    EXPECT_EQ(read(path(name)), written(document, file.format(), {testing::sample_layout()}));
    document.rows.push_back(last);
    file.finish(document);
    EXPECT_EQ(read(path(name)), written(document, file.format(), {testing::sample_layout()}));
  }
  EXPECT_EQ(entries(), 4U) << "nothing is left beside the files";
}

TEST_F(OutputFileTest, LeavesAnExistingFileAloneUntilThereIsSomethingToWrite) {
  write(path("x.json"), "old");
  OutputFile file(path("x.json"), {});
  EXPECT_EQ(read(path("x.json")), "old");
  EXPECT_EQ(entries(), 1U);
  file.rewrite(sample_document());
  EXPECT_EQ(read_document(path("x.json")).rows.size(), sample_document().rows.size());
}

TEST_F(OutputFileTest, SaysBeforehandWhyItCannotBeWritten) {
  EXPECT_EQ(refusal(path("none/x.json")), "cannot write '" + path("none/x.json") + "': No such file or directory");
  EXPECT_EQ(refusal(path("x.txt")),
            "cannot write '" + path("x.txt") + "': the name must end in .md, .json, .jsonl or .csv");
  EXPECT_EQ(refusal(path("x")), "cannot write '" + path("x") + "': the name must end in .md, .json, .jsonl or .csv");
  EXPECT_EQ(refusal(path("")), "cannot write '" + path("") + "': Is a directory");
  EXPECT_NE(refusal(""), "");
  std::filesystem::create_directory(path("folder.json"));
  EXPECT_EQ(refusal(path("folder.json")), "cannot write '" + path("folder.json") + "': Is a directory");
  write(path("file"), "");
  EXPECT_EQ(refusal(path("file/x.json")), "cannot write '" + path("file/x.json") + "': Not a directory");
  const std::string long_name = path(std::string(300, 'x') + ".json");
  EXPECT_EQ(refusal(long_name), "cannot write '" + long_name + "': File name too long");
  std::filesystem::create_symlink("loop.json", path("loop.json"));
  EXPECT_EQ(refusal(path("loop.json")), "cannot write '" + path("loop.json") + "': Too many levels of symbolic links");
}

TEST_F(OutputFileTest, TakesTheLongestNameThatAFolderTakes) {
  const std::string name = path(std::string(250, 'x') + ".json");
  OutputFile file(name, {});
  file.rewrite(sample_document());
  EXPECT_TRUE(std::filesystem::exists(name));
}

TEST_F(OutputFileTest, NeedsTheFolderOrTheFileToBeWritable) {
  write(path("old.json"), "old old old");
  write(path("closed.json"), "closed");
  ::chmod(path("old.json").c_str(), 0666);
  ::chmod(path("closed.json").c_str(), 0444);
  const Unprivileged guard(folder_);
  if (!Unprivileged::works()) GTEST_SKIP() << "runs as root and cannot become anyone else";
  EXPECT_EQ(refusal(path("closed.json")), "cannot write '" + path("closed.json") + "': Permission denied");
  ASSERT_EQ(::chmod(folder_.c_str(), 0555), 0);
  EXPECT_EQ(refusal(path("new.json")), "cannot write '" + path("new.json") + "': Permission denied");
  // No second file beside it, but the file itself may be written.
  OutputFile file(path("old.json"), {});
  EXPECT_EQ(read(path("old.json")), "old old old");
  file.rewrite(sample_document());
  Document shorter = sample_document();
  shorter.rows.resize(1);
  file.rewrite(shorter);
  EXPECT_EQ(read(path("old.json")), written(shorter, Format::json));
}

TEST_F(OutputFileTest, FollowsSymbolicLinksAndKeepsThem) {
  std::filesystem::create_directory(path("data"));
  write(path("data/target.json"), "old");
  std::filesystem::create_symlink("data/target.json", path("link.json"));
  std::filesystem::create_symlink("link.json", path("link2.json"));
  OutputFile(path("link2.json"), {}).rewrite(sample_document());
  EXPECT_TRUE(std::filesystem::is_symlink(path("link2.json")));
  EXPECT_TRUE(std::filesystem::is_symlink(path("link.json")));
  EXPECT_FALSE(std::filesystem::is_symlink(path("data/target.json")));
  EXPECT_EQ(read(path("data/target.json")), written(sample_document(), Format::json));

  std::filesystem::create_symlink("data/new.md", path("dangling.md"));
  OutputFile(path("dangling.md"), {}).rewrite(sample_document());
  EXPECT_TRUE(std::filesystem::is_symlink(path("dangling.md")));
  EXPECT_EQ(read(path("data/new.md")), written(sample_document(), Format::md));
}

TEST_F(OutputFileTest, StaysWhereItWasWhenTheWorkingFolderChanges) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  OutputFile file("x.json", {});
  std::filesystem::current_path(before);
  file.rewrite(sample_document());
  EXPECT_TRUE(std::filesystem::exists(path("x.json")));
}

TEST_F(OutputFileTest, KeepsPermissionsAndGivesNewFilesTheUsersOwn) {
  write(path("x.json"), "old");
  ::chmod(path("x.json").c_str(), 0640);
  OutputFile(path("x.json"), {}).rewrite(sample_document());
  EXPECT_EQ(mode(path("x.json")), 0640U);
  const mode_t before = ::umask(027);
  OutputFile(path("new.json"), {}).rewrite(sample_document());
  ::umask(before);
  EXPECT_EQ(mode(path("new.json")), 0640U);
}

TEST_F(OutputFileTest, KeepsThePreviousContentsWhenTheDiskIsFull) {
  OutputFile file(path("x.json"), {});
  Document document = sample_document();
  file.rewrite(document);
  const std::string before = read(path("x.json"));
  for (int i = 0; i < 200; ++i) document.rows.push_back(document.rows[0]);
  // A limit on this process's files stands for a full disk: the same failing write().
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  ::getrlimit(RLIMIT_FSIZE, &old_limit);
  const rlimit limit = {before.size() + 1000, old_limit.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::string why;
  try {
    file.rewrite(document);
  } catch (const std::runtime_error& e) {
    why = e.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(why, "cannot write '" + path("x.json") + "': File too large");
  EXPECT_EQ(read(path("x.json")), before);
  EXPECT_EQ(entries(), 1U) << "no half-written file is left";
  file.finish(document);
  EXPECT_EQ(read(path("x.json")), written(document, Format::json)) << "space was made";
}

TEST_F(OutputFileTest, ReportsAFullDevice) {
  const auto failure = [](OutputFile& file, bool last) -> std::string {
    try {
      last ? file.finish(sample_document()) : file.rewrite(sample_document());
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "";
  };
  OutputFile full("/dev/full", {});
  EXPECT_EQ(full.format(), Format::jsonl);
  EXPECT_EQ(failure(full, false), "cannot write '/dev/full': No space left on device");
  EXPECT_EQ(failure(full, true), "cannot write '/dev/full': No space left on device");
  std::filesystem::create_symlink("/dev/full", path("full.json"));
  OutputFile link(path("full.json"), {});
  EXPECT_EQ(failure(link, true), "cannot write '" + path("full.json") + "': No space left on device");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  OutputFile null("/dev/null", {});
  EXPECT_EQ(failure(null, true), "");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(OutputFileTest, RefusesAPipeThatNobodyReads) {
  ASSERT_EQ(::mkfifo(path("pipe.jsonl").c_str(), 0600), 0);
  EXPECT_EQ(refusal(path("pipe.jsonl")), "cannot write '" + path("pipe.jsonl") + "': nobody reads this pipe");
}

/// What a reader gets from a pipe while rows are added one by one.
std::string through_pipe(const std::string& pipe, const Document& whole) {
  EXPECT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reading = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ::fcntl(reading, F_SETFL, 0);
  std::string text;
  std::thread reader;
  {
    OutputFile file(pipe, {testing::sample_layout()});
    reader = std::thread([&] {
      char buffer[4096];
      for (ssize_t n = 0; (n = ::read(reading, buffer, sizeof buffer)) > 0;) {
        text.append(buffer, static_cast<std::size_t>(n));
      }
    });
    Document growing = whole;
    growing.rows.clear();
    for (const Row& row : whole.rows) {
      growing.rows.push_back(row);
      file.rewrite(growing);
    }
    file.finish(whole);
    file.finish(whole);  // once is enough
  }
  reader.join();
  ::close(reading);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  return text;
}

TEST_F(OutputFileTest, StreamsIntoAPipe) {
  for (const char* name : {"pipe.md", "pipe.json", "pipe.jsonl", "pipe.csv"}) {
    EXPECT_EQ(through_pipe(path(name), sample_document()),
              written(sample_document(), *format_of_path(name), {testing::sample_layout()}))
        << name;
  }
  EXPECT_EQ(through_pipe(path("pipe"), sample_document()), written(sample_document(), Format::jsonl));
}

TEST_F(OutputFileTest, SurvivesAReaderThatLeavesAndLosesNothingWhenAnotherComes) {
  const std::string pipe = path("pipe.jsonl");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  int reading = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  OutputFile file(pipe, {});
  ::close(reading);
  Document document = sample_document();
  document.rows.resize(1);
  try {
    file.rewrite(document);
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_EQ(e.what(), "cannot write '" + pipe + "': Broken pipe");
  }
  reading = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  file.finish(document);
  std::string text(1 << 16, ' ');
  const ssize_t n = ::read(reading, text.data(), text.size());
  ASSERT_GT(n, 0);
  text.resize(static_cast<std::size_t>(n));
  EXPECT_EQ(text, written(document, Format::jsonl));
  ::close(reading);
}

TEST_F(OutputFileTest, AppendsToStdoutAndDoesNotReplaceIt) {
  std::fflush(stdout);
  const int saved = ::dup(STDOUT_FILENO);
  const int target = ::open(path("stdout.txt").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ASSERT_EQ(::dup2(target, STDOUT_FILENO), STDOUT_FILENO);
  ::close(target);
  (void)!::write(STDOUT_FILENO, "before\n", 7);
  struct stat before {};
  ::stat(path("stdout.txt").c_str(), &before);
  {
    OutputFile file("/dev/stdout", {});
    file.finish(sample_document());
  }
  (void)!::write(STDOUT_FILENO, "after\n", 6);
  ASSERT_EQ(::dup2(saved, STDOUT_FILENO), STDOUT_FILENO);
  ::close(saved);
  struct stat after {};
  ::stat(path("stdout.txt").c_str(), &after);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(read(path("stdout.txt")), "before\n" + written(sample_document(), Format::jsonl) + "after\n");
}

}  // namespace
}  // namespace warpmeter::reports
