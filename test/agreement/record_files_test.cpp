// The files by which a run folder explains itself: whose they are, what is cut off, and lines that are printed.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "agreement/record_files.h"
#include "io/run_log.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"

using namespace blipft;
using namespace blipft::testing;
namespace fs = std::filesystem;

namespace {

const std::string kRun(32, 'a'), kOther(32, 'b');
const auto kLost = [](int64_t lost) { return std::to_string(lost); };

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string row(const char* event, int step) {
  return concat("{\"event\":\"", event, "\",\"step\":", step, ",\"loss\":1.5}\n");
}

}  // namespace

TEST_CASE("only what names its run in its first line is of this program's making") {
  const TemporaryDirectory folder;
  for (const char* name : {kConfigFile, kLogFile, kMetricsFile}) {
    CAPTURE(name);
    const std::string heading = record_heading(name, kRun);
    CHECK(run_of_record_file(folder.path.string(), name) == "");
    for (const std::string& text :
         {std::string(), std::string("x\n"), " " + heading, heading.substr(0, 30), record_heading(name, "run"),
          record_heading(name, std::string(32, 'A')), heading.substr(0, heading.size() - 5)}) {
      folder.write(name, text);
      CHECK_MESSAGE(run_of_record_file(folder.path.string(), name) == "", text);
    }
    folder.write(name, heading + "\nmore\n");
    CHECK(run_of_record_file(folder.path.string(), name) == kRun);
  }
  CHECK(record_files_in(folder.path.string()) == std::vector<std::string>{kConfigFile, kLogFile, kMetricsFile});
  // A link to one of its files is somebody's own.
  fs::rename(folder / kLogFile, folder / "elsewhere");
  fs::create_symlink(folder / "elsewhere", folder / kLogFile);
  fs::remove(folder / kConfigFile);
  REQUIRE(::mkfifo((folder / kConfigFile).c_str(), 0666) == 0);
  CHECK(record_files_in(folder.path.string()) == std::vector<std::string>{kMetricsFile});
  remove_record_files(folder.path.string());
  CHECK(!fs::exists(folder / kMetricsFile));
  CHECK(fs::is_symlink(folder / kLogFile));
  CHECK(fs::exists(folder / "elsewhere"));
  CHECK(fs::is_fifo(folder / kConfigFile));
}

TEST_CASE("files of another run and of nobody are refused and stay") {
  const TemporaryDirectory folder;
  const RecordFolder record{folder.path.string(), kRun};
  for (const std::string& text : {std::string("mine\n"), record_heading(kLogFile, kOther) + "\n"}) {
    folder.write(kLogFile, text);
    const std::string message = message_of([&] { record.open(kLogFile, "heading", kLost); });
    CHECK_MESSAGE(message.find(concat(folder / kLogFile, ": is ", text == "mine\n" ? "not of blipft's making"
                                                                                   : "of another run (bbbb")) == 0, message);
    CHECK(content(folder / kLogFile) == text);
  }
  folder.write(kConfigFile, "mine");
  CHECK(message_of([&] { record.write_config("x"); }).find("move it away") != std::string::npos);
  CHECK(content(folder / kConfigFile) == "mine");
  fs::remove(folder / kConfigFile);
  const std::string first = record_heading(kConfigFile, kRun) + "\nfirst", second = record_heading(kConfigFile, kRun);
  record.write_config(first);
  record.write_config(second);             // its own may be replaced
  CHECK(content(folder / kConfigFile) == second);
  CHECK(std::distance(fs::directory_iterator(folder.path.string()), {}) == 2);
}

TEST_CASE("metrics are cut at the first row of a step that is taken again, and nowhere else") {
  const TemporaryDirectory folder;
  const RecordFolder record{folder.path.string(), kRun};
  CHECK(record.cut_metrics(0) == 0);       // there is none
  const std::string first = record_heading(kMetricsFile, kRun) + "}\n";
  std::string text = first + row("start", 0);
  for (int step = 0; step < 4; ++step) text += row("step", step);
  text += row("validation", 3);
  const std::string until_4 = text;
  text += row("end", 3) + row("resume", 4) + "mine: \"step\":1\n";
  const std::string until_resume = text;
  text += row("step", 4) + row("step", 5) + row("end", 5) + row("step", 6) + "{\"event\":\"st";
  folder.write(kMetricsFile, text);
  CHECK(record.cut_metrics(7) == 0);
  CHECK(content(folder / kMetricsFile) == text);
  CHECK(record.cut_metrics(4) == 4);       // whole rows; events before stay
  CHECK(content(folder / kMetricsFile) == until_resume);
  CHECK(record.cut_metrics(3) == 5);
  CHECK(content(folder / kMetricsFile) == until_4.substr(0, until_4.size() - row("step", 3).size() - row("validation", 3).size()));
  CHECK(record.cut_metrics(0) == 3);
  CHECK(content(folder / kMetricsFile) == first + row("start", 0));
  // Rows that lie across the pieces in which the file is read.
  std::string many = first;
  for (int step = 0; step < 60'000; ++step) many += row("step", step);
  folder.write(kMetricsFile, many);
  CHECK(record.cut_metrics(59'999) == 1);
  CHECK(content(folder / kMetricsFile) == many.substr(0, many.size() - row("step", 59'999).size()));
  CHECK(RecordFolder{folder.path.string(), kOther}.cut_metrics(0) == 0);  // another run's
}

TEST_CASE("lines for a log: whole ones, and of a line that is printed over itself one now and then and the last") {
  std::vector<std::string> lines;
  PrintedLines printed(20, [&](const std::string& line) { lines.push_back(line); });
  printed.add("one\ntw", 0);
  CHECK(lines == std::vector<std::string>{"one"});
  printed.add("o\n\nthree\n", 0);
  CHECK(lines == std::vector<std::string>{"one", "two", "three"});
  lines.clear();
  for (int i = 0; i <= 100; ++i) printed.add(concat("\r\033[Kstep ", i), i);
  CHECK(lines == std::vector<std::string>{"step 0", "step 20", "step 40", "step 60", "step 80"});
  printed.add("\nwarning\n", 101);
  CHECK(lines.size() == 7);
  CHECK(lines[5] == "step 100");
  CHECK(lines[6] == "warning");
}
