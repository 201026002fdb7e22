#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "reports/reader.hpp"
#include "reports/snapshot/reader.hpp"
#include "reports/snapshot/timeline.hpp"
#include "reports/snapshot/writer.hpp"
#include "tests/reports/snapshot/sample.hpp"

namespace warpmeter::reports::snapshot {
namespace {

using test::fixture;
using test::small;

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(TimelinePage, HostileTextsStayTexts) {
  Snapshot snapshot = small();
  snapshot.traces[0][0].stack = 0;
  Frame frame;
  frame.name = snapshot.texts.intern("</script><script>alert(1)</script><!--");
  frame.filename = snapshot.texts.intern("\xff\"'<b>");
  const std::uint32_t index = snapshot.stacks.add_frame(frame);
  snapshot.traces[0][1].stack = snapshot.stacks.add_stack({&index, 1});
  snapshot.annotations[0].name = snapshot.texts.intern("<img src=x onerror=alert(1)>");
  std::ostringstream out;
  write_timeline_page(snapshot, "<i>title</i> & \"more\"", out);
  const std::string page = out.str();
  EXPECT_EQ(count(page, "<script"), 2U) << "the data and the program";
  EXPECT_EQ(count(page, "<img"), 0U);
  EXPECT_EQ(count(page, "<i>"), 0U);
  EXPECT_NE(page.find("&lt;i&gt;title&lt;/i&gt; &amp; &quot;more&quot;"), std::string::npos);
  EXPECT_NE(page.find("\\u003c/script>\\u003cscript>alert(1)"), std::string::npos);
  EXPECT_EQ(page.find("http"), page.find("http-equiv")) << "no address of anything";
  EXPECT_EQ(count(page, "http"), 1U);
}

TEST(TimelineSvg, IsAWholePicture) {
  std::ostringstream out;
  write_timeline_svg(parse_snapshot(fixture("torch_snapshot_mid.pickle"), "mid"), "a < b & c", out);
  const std::string svg = out.str();
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg.substr(0, 40);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  EXPECT_EQ(count(svg, "<polygon"), 4U) << "unknown, gradients, activations, workspace";
  EXPECT_NE(svg.find("peak 145.3 MiB"), std::string::npos);
  EXPECT_EQ(count(svg, "nan"), 0U);
  EXPECT_EQ(count(svg, "inf"), 0U);
}

TEST(TimelineSvg, EmptySnapshotsToo) {
  std::ostringstream out;
  Snapshot snapshot;
  write_timeline_svg(snapshot, "nothing", out);
  write_timeline_page(snapshot, "nothing", out);
  write_trace(snapshot, out);
  EXPECT_EQ(count(out.str(), "nan"), 0U);
}

TEST(TimelineSvg, OneScaleForSeveral) {
  const auto labels = [](std::uint64_t scale_to) {
    std::ostringstream out;
    write_timeline_svg(small(), "one of several", out, scale_to);
    const std::string svg = out.str();
    return std::pair(count(svg, ">4 MiB</text>"), count(svg, ">1 MiB</text>"));
  };
  EXPECT_EQ(labels(0), std::pair(std::size_t{0}, std::size_t{1})) << "the segment of 2 MiB is the highest";
  EXPECT_EQ(labels(std::uint64_t{5} << 20), std::pair(std::size_t{1}, std::size_t{1}));
  EXPECT_EQ(labels(1), labels(0)) << "never less than what there is";
}

TEST(TraceWriter, CountersPhasesAndOutOfMemory) {
  std::ostringstream out;
  write_trace(small(), out);
  const std::string trace = out.str();
  EXPECT_NE(trace.find("{\"ph\": \"C\", \"name\": \"memory\", \"pid\": 0, \"ts\": 5, \"args\": {\"allocated\": 4608}}"),
            std::string::npos)
      << trace;
  EXPECT_NE(trace.find("{\"ph\": \"X\", \"name\": \"FWD_STEP\", \"pid\": 0, \"ts\": 0, \"tid\": 0, \"dur\": 4}"),
            std::string::npos)
      << trace;
  std::ostringstream oom;
  write_trace(parse_snapshot(fixture("torch_snapshot_toy.pickle"), "toy"), oom);
  EXPECT_EQ(count(oom.str(), "out of memory"), 1U);
}

}  // namespace
}  // namespace warpmeter::reports::snapshot
