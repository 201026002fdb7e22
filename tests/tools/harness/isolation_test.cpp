#include "tools/harness/isolation.hpp"

#include <csignal>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/harness/isolation_channel.hpp"

namespace warpmeter::harness {
namespace {

TEST(MessageReader, PutsPiecesTogether) {
  MessageReader reader;
  reader.feed("W some");
  EXPECT_FALSE(reader.next().has_value());
  reader.feed("thing\nR {}\nP");
  const auto first = reader.next();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->kind, MessageKind::warning);
  EXPECT_EQ(first->text, "something");
  EXPECT_EQ(reader.next()->kind, MessageKind::row);
  EXPECT_FALSE(reader.next().has_value());
}

TEST(MessageReader, DropsWhatIsNoMessage) {
  MessageReader reader;
  reader.feed("\nX y\nR\nRow\nfree(): invalid pointer\nC {}\n");
  EXPECT_EQ(reader.next()->kind, MessageKind::ceilings);
  EXPECT_FALSE(reader.next().has_value());
}

TEST(Message, StaysOneLine) {
  EXPECT_EQ(encode({MessageKind::warning, "a\nR {}"}), "W a\\nR {}\n");
}

TEST(Figures, SurviveTheWay) {
  reports::Object figures;
  figures.set("matmul_fp32_tflops", 1.0 / 3.0);
  figures.set("read_gbps", 4000);
  EXPECT_EQ(figures_from_json(figures_to_json(figures)), figures);
  EXPECT_TRUE(figures_from_json("{").empty());
}

TEST(ChildChannel, SaysWhatTheParentReads) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  reports::Object ceilings;
  ceilings.set("read_gbps", 12.5);
  const std::string start = encode({MessageKind::start, figures_to_json(ceilings)});
  ASSERT_EQ(write(ends[0], start.data(), start.size()), static_cast<ssize_t>(start.size()));
  ChildChannel channel(ends[1]);
  EXPECT_EQ(channel.receive_ceilings(), ceilings);
  channel.send_warning("odd");
  reports::Row row;
  row.status = reports::Status::ok;
  row.figures.set("fwd_ms", 1.5);
  channel.send_row(row, false);
  close(ends[1]);

  std::string bytes(4096, '\0');
  bytes.resize(static_cast<std::size_t>(read(ends[0], bytes.data(), bytes.size())));
  MessageReader reader;
  reader.feed(bytes);
  EXPECT_EQ(reader.next()->text, "odd");
  const auto partial = reader.next();
  ASSERT_TRUE(partial.has_value());
  EXPECT_EQ(partial->kind, MessageKind::partial);
  EXPECT_NE(partial->text.find("\"fwd_ms\": 1.5"), std::string::npos) << partial->text;
  close(ends[0]);
}

TEST(ChildChannel, AParentThatIsGoneIsNoError) {
  std::signal(SIGPIPE, SIG_IGN);  // as run_tool does
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  close(ends[0]);
  ChildChannel channel(ends[1]);
  EXPECT_TRUE(channel.receive_ceilings().empty());
  channel.send_row({}, true);
  close(ends[1]);
}

reports::Row planned() {
  reports::Row row;
  row.configuration.set("impl", "x");
  row.rerun = "tool --impl x";
  return row;
}

IsolatedResult run_shell(const std::string& script, std::optional<double> timeout_s = 120) {
  IsolatedRun run;
  run.command = {"/bin/sh", "-c", script, "sh"};
  run.timeout_s = timeout_s;
  run.row_keys = {"impl"};
  return run_isolated(run, planned());
}

// The child is told its descriptor by "--isolated-child-fd N": $2 of the shell.
TEST(RunIsolated, TakesTheRow) {
  const auto result =
      run_shell(R"(echo 'R {"impl": "x", "fwd_ms": 2.5, "status": "ok", "reason": null, "rerun": "other"}' >&$2)");
  EXPECT_EQ(result.row.status, reports::Status::ok) << result.row.reason;
  EXPECT_EQ(*result.row.figures.find("fwd_ms"), reports::Value(2.5));
  EXPECT_EQ(result.row.configuration, planned().configuration);
  EXPECT_EQ(result.row.rerun, "tool --impl x");
}

TEST(RunIsolated, ARowThatCannotBeReadIsNone) {
  const auto result = run_shell("echo 'R {\"impl\": ' >&$2");
  EXPECT_EQ(result.row.status, reports::Status::crashed);
  EXPECT_EQ(result.row.reason, "its process exited with status 0");
}

TEST(RunIsolated, AProgramThatCannotBeStartedIsACrash) {
  IsolatedRun run;
  run.command = {"/nowhere/tool"};
  const auto result = run_isolated(run, planned());
  EXPECT_EQ(result.row.status, reports::Status::crashed);
  EXPECT_EQ(result.row.reason, "its process exited with status 127");
}

TEST(RunIsolated, ItsStdoutIsNotOurs) {
  testing::internal::CaptureStdout();
  const auto result = run_shell("echo noise; exit 4");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(result.row.reason, "its process exited with status 4");
}

TEST(RunIsolated, ATimeoutKeepsTheFiguresOfFinishedPhases) {
  const auto result = run_shell(
      R"(echo 'P {"impl": "x", "fwd_ms": 1, "status": "ok", "reason": null, "rerun": ""}' >&$2; sleep 600)", 3);
  EXPECT_EQ(result.row.status, reports::Status::timeout);
  EXPECT_EQ(result.row.reason, "not finished after 3 s (--row-timeout)");
  ASSERT_TRUE(result.row.figures.has("fwd_ms"));
}

TEST(RunIsolated, KeepsTheCeilingsThatTheChildMeasured) {
  const auto result = run_shell(R"(echo 'C {"read_gbps": 7, "status": "ok", "reason": null, "rerun": ""}' >&$2)");
  ASSERT_TRUE(result.ceilings.has("read_gbps"));
  EXPECT_EQ(result.ceilings.find("read_gbps")->as_number(), 7);
}

TEST(SignalText, NamesWhatIsCommon) {
  EXPECT_EQ(signal_text(SIGSEGV), "SIGSEGV (segmentation fault)");
  EXPECT_EQ(signal_text(63), "signal 63");
}

}  // namespace
}  // namespace warpmeter::harness
