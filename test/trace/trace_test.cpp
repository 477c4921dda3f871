// Trace files: every field comes back, a killed writer leaves a readable file, a slow disk never stops the step.
#include <doctest/doctest.h>
#include <hdf5.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <thread>

#include "blipft/error.h"
#include "blipft/trace.h"
#include "io/hdf5_handle.h"
#include "support/error_message.h"
#include "support/temporary_directory.h"
#include "trace/trace_tables.h"

using namespace blipft;
using io::Hdf5Handle;
using testing::message_of;
using testing::TemporaryDirectory;
namespace fs = std::filesystem;

namespace {

Hdf5Handle open_to_read(const std::string& path) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
  return Hdf5Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY | H5F_ACC_SWMR_READ, access.get()), H5Fclose);
}

/// All rows of a dataset whose rows look like Row.
template <class Row>
std::vector<Row> read_rows(hid_t file, const char* name) {
  const Hdf5Handle dataset(H5Dopen2(file, name, H5P_DEFAULT), H5Dclose);
  REQUIRE(dataset.get() >= 0);
  const Hdf5Handle space(H5Dget_space(dataset.get()), H5Sclose), type(H5Dget_type(dataset.get()), H5Tclose);
  REQUIRE(H5Tget_size(type.get()) == sizeof(Row));
  std::vector<Row> rows(static_cast<size_t>(H5Sget_simple_extent_npoints(space.get())));
  if (!rows.empty()) REQUIRE(H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, rows.data()) >= 0);
  return rows;
}

constexpr double kInf = std::numeric_limits<double>::infinity();

std::string read_text_attribute(hid_t file, const char* object, const std::string& name) {
  const Hdf5Handle attribute(H5Aopen_by_name(file, object, name.c_str(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (attribute.get() < 0) return "(none)";
  const Hdf5Handle type(H5Aget_type(attribute.get()), H5Tclose);
  char* text = nullptr;
  REQUIRE(H5Aread(attribute.get(), type.get(), &text) >= 0);
  const std::string copy = text ? text : "";
  H5free_memory(text);
  return copy;
}

SpanRecord make_span(int64_t i) {
  SpanRecord span;
  span.step = i / 10;
  span.micro_batch = static_cast<int32_t>(i % 4);
  span.unit = static_cast<int32_t>(i % 3) - 1;
  span.phase = static_cast<int32_t>(i % 2);
  span.stream = static_cast<int32_t>(i % 4);
  span.begin_ns = i * 1000;
  span.end_ns = i * 1000 + 500;
  span.bytes = i << 33;
  span.flops = static_cast<double>(i) * 1e12;
  return span;
}

/// Two kernels of one name, a copy, and a name that is too long for the file.
std::vector<KernelRecord> make_kernels() {
  std::vector<KernelRecord> kernels(4);
  for (size_t i = 0; i < kernels.size(); ++i) {
    kernels[i].step = 7;
    kernels[i].begin_ns = 1000 * static_cast<int64_t>(i);
    kernels[i].end_ns = kernels[i].begin_ns + 10;
    kernels[i].graph_node = static_cast<int64_t>(i) << 40;
    kernels[i].stream = 13;
    kernels[i].name = "gemm<float>(int)";
  }
  kernels[1].kind = KernelRecord::copy;
  kernels[1].bytes = int64_t{3} << 33;
  kernels[1].name = "copy device to device";
  kernels[3].kind = KernelRecord::fill;
  kernels[3].device = 2;
  kernels[3].name = std::string(510, 'k') + "\u2603";   // its last character has 3 bytes, of which 1 would fit
  return kernels;
}

bool same(const SpanRecord& a, const SpanRecord& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

TEST_SUITE("trace") {

TEST_CASE("every field of every record comes back") {
  const TemporaryDirectory folder;
  const char* keep = std::getenv("BLIPFT_TEST_TRACE");             // trace_commands_test.py reads it again in Python
  const std::string path = keep ? keep : folder / "run/trace.rank0000.h5";   // the folder is made
  const std::string config(100'000, 'c');                      // larger than a small HDF5 attribute may be
  std::vector<SpanRecord> spans;
  for (int64_t i = 0; i < 10'000; ++i) spans.push_back(make_span(i));
  {
    const auto trace = open_trace(path);
    trace->set_names({"vit.0", "Qformer \u2603"}, {"forward", "gather"}, {"layers.0.q, k", "layers.0.fc"});
    trace->set_attribute("config", config);
    trace->set_attribute("world_size", 4.0);
    StepRecord step{7, 1, 2.5, 1e-5, 0.75, 100.5, 600.25, 123456789012345, 123456789012999, 42, 50};
    trace->add(step, spans);
    trace->add(std::vector<SpanRecord>{});
    trace->add(std::vector<MemoryRecord>{{7, "before_forward", "parameters", 99, int64_t{80} << 30}});
    trace->add(std::vector<PlanRecord>{{"opt.layer.0.weights", "parameters", 1 << 20}, {"logits", "activations", 5}});
    trace->add(DeviceRecord{5, 99.5, 650.0, 1980.0, 2619.0, 61.0, 123, 456, 7.5, 2.5});
    trace->add(DriverMemoryRecord{-1, 6, 1000, 100, 200, 600, 100, 990});
    trace->add(ValidationRecord{9, 77, 1.25, 4321, 0.5});
    trace->add(std::vector<EvaluationRecord>{{9, 78, "cider", 0.75, 12, 2.5}, {9, 78, "bleu4", 0.25, 12, 2.5}});
    // Cut behind a whole character: 1021 bytes of x, then one of three bytes.
    trace->add(std::vector<EvaluationSampleRecord>{{3, "a.png", "a photo of", "a cat\n" + std::string(2000, 'y')}});
    trace->add(std::vector<EvaluationTextRecord>{{9, 3, 4, std::string(1021, 'x') + "\u20ac\u20ac"}});
    trace->add(make_kernels());
    trace->add(std::vector<KernelRecord>{});
    trace->add(std::vector<Fp8Record>{{7, 1, 2, 0.125, int64_t{5} << 33, 17, 3}, {7, 0, 1, kInf, 64, 0, 1}});
    trace->add(std::vector<StepSampleRecord>{{7, 1, 3, int64_t{1} << 40}, {8, 0, 0, 5}});
    CHECK_THROWS_AS(trace->set_attribute("late", 1.0), Error);
    CHECK_THROWS_AS(trace->set_names({}, {}), Error);
    CHECK_THROWS_AS(trace->add(std::vector<MemoryRecord>{{0, "p", std::string(32, 'x'), 0, 0}}), Error);
    trace->close();
    trace->close();   // does nothing
    CHECK_THROWS_AS(trace->add(step, {}), Error);
  }
  const Hdf5Handle file = open_to_read(path);
  REQUIRE(file.get() >= 0);
  const auto steps = read_rows<StepRecord>(file.get(), "steps");
  REQUIRE(steps.size() == 1);
  const StepRecord& step = steps[0];
  CHECK(step.step == 7);
  CHECK(step.epoch == 1);
  CHECK(step.loss == 2.5);
  CHECK(step.lr == 1e-5);
  CHECK(step.grad_norm == 0.75);
  CHECK(step.samples_per_second == 100.5);
  CHECK(step.tflops == 600.25);
  CHECK(step.begin_ns == 123456789012345);
  CHECK(step.end_ns == 123456789012999);
  CHECK(step.data_wait_ns == 42);
  CHECK(step.text_tokens == 50);
  const auto back = read_rows<SpanRecord>(file.get(), "spans");
  REQUIRE(back.size() == spans.size());
  bool equal = true;
  for (size_t i = 0; i < spans.size(); ++i) equal = equal && same(spans[i], back[i]);
  CHECK(equal);
  const auto memory = read_rows<io::MemoryRow>(file.get(), "memory");
  REQUIRE(memory.size() == 1);
  CHECK(std::string(memory[0].phase) == "before_forward");
  CHECK(std::string(memory[0].owner) == "parameters");
  CHECK(memory[0].step == 7);
  CHECK(memory[0].time_ns == 99);
  CHECK(memory[0].bytes == int64_t{80} << 30);
  const auto plan = read_rows<io::PlanRow>(file.get(), "plan");
  REQUIRE(plan.size() == 2);
  CHECK(std::string(plan[0].name) == "opt.layer.0.weights");
  CHECK(std::string(plan[1].owner) == "activations");
  CHECK(plan[1].bytes == 5);
  const auto device = read_rows<DeviceRecord>(file.get(), "device");
  REQUIRE(device.size() == 1);
  CHECK(device[0].power_watts == 650.0);
  CHECK(device[0].host_rss_bytes == 456);
  const auto driver = read_rows<DriverMemoryRecord>(file.get(), "driver_memory");
  REQUIRE(driver.size() == 1);
  CHECK(driver[0].step == -1);
  CHECK(driver[0].time_ns == 6);
  CHECK(driver[0].total_bytes == 1000);
  CHECK(driver[0].context_bytes == 100);
  CHECK(driver[0].nccl_bytes == 200);
  CHECK(driver[0].allocated_bytes == 600);
  CHECK(driver[0].unplanned_bytes == 100);
  CHECK(driver[0].planned_bytes == 990);
  const auto validations = read_rows<ValidationRecord>(file.get(), "validation");
  REQUIRE(validations.size() == 1);
  CHECK(validations[0].step == 9);
  CHECK(validations[0].time_ns == 77);
  CHECK(validations[0].loss == 1.25);
  CHECK(validations[0].tokens == 4321);
  CHECK(validations[0].seconds == 0.5);
  const auto scores = read_rows<io::EvaluationRow>(file.get(), "evaluation");
  REQUIRE(scores.size() == 2);
  CHECK(std::string(scores[0].metric) == "cider");
  CHECK(std::string(scores[1].metric) == "bleu4");
  CHECK(scores[1].value == 0.25);
  CHECK(scores[1].step == 9);
  CHECK(scores[1].time_ns == 78);
  CHECK(scores[1].samples == 12);
  CHECK(scores[1].seconds == 2.5);
  const auto samples = read_rows<io::EvaluationSampleRow>(file.get(), "evaluation_samples");
  REQUIRE(samples.size() == 1);
  CHECK(samples[0].sample == 3);
  CHECK(std::string(samples[0].picture) == "a.png");
  CHECK(std::string(samples[0].prompt) == "a photo of");
  CHECK(std::string(samples[0].references) == "a cat\n" + std::string(1017, 'y'));
  const auto texts = read_rows<io::EvaluationTextRow>(file.get(), "evaluation_texts");
  REQUIRE(texts.size() == 1);
  CHECK(texts[0].sample == 3);
  CHECK(texts[0].tokens == 4);
  CHECK(std::string(texts[0].text) == std::string(1021, 'x'));
  const auto fp8 = read_rows<Fp8Record>(file.get(), "fp8");
  REQUIRE(fp8.size() == 2);
  CHECK(fp8[0].step == 7);
  CHECK(fp8[0].matrix == 1);
  CHECK(fp8[0].factor == 2);
  CHECK(fp8[0].amax == 0.125);
  CHECK(fp8[0].elements == int64_t{5} << 33);
  CHECK(fp8[0].underflows == 17);
  CHECK(fp8[0].not_finite == 3);
  CHECK(fp8[1].amax == kInf);
  const auto step_samples = read_rows<StepSampleRecord>(file.get(), "step_samples");
  REQUIRE(step_samples.size() == 2);
  CHECK(step_samples[0].step == 7);
  CHECK(step_samples[0].micro_batch == 1);
  CHECK(step_samples[0].place == 3);
  CHECK(step_samples[0].sample == int64_t{1} << 40);
  CHECK(read_rows<io::DroppedRow>(file.get(), "dropped").empty());
  CHECK(read_text_attribute(file.get(), "/", "format_version") == "1.14");
  CHECK(read_text_attribute(file.get(), "/", "hdf5").size() >= 5);
  CHECK(read_text_attribute(file.get(), "/", "config") == config);
}

TEST_CASE("kernels come back with their names, each name once") {
  const TemporaryDirectory folder;
  const std::string path = folder / "t.h5";
  {
    const auto trace = open_trace(path);
    trace->add(make_kernels());
    std::this_thread::sleep_for(std::chrono::milliseconds(600));   // the first ones are written by now
    auto later = make_kernels();
    later[2].name = "new";
    trace->add(later);
    trace->close();
  }
  const Hdf5Handle file = open_to_read(path);
  REQUIRE(file.get() >= 0);
  const auto names = read_rows<io::KernelNameRow>(file.get(), "kernel_names");
  REQUIRE(names.size() == 4);
  CHECK(std::string(names[0].name) == "gemm<float>(int)");
  CHECK(std::string(names[1].name) == "copy device to device");
  CHECK(std::string(names[2].name) == std::string(510, 'k'));
  CHECK(std::string(names[3].name) == "new");
  const auto rows = read_rows<io::KernelRow>(file.get(), "kernels");
  REQUIRE(rows.size() == 8);
  const int32_t expected[8] = {0, 1, 0, 2, 0, 1, 3, 2};
  for (size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(i);
    CHECK(rows[i].name == expected[i]);
    CHECK(rows[i].step == 7);
    CHECK(rows[i].begin_ns == 1000 * static_cast<int64_t>(i % 4));
    CHECK(rows[i].end_ns == rows[i].begin_ns + 10);
    CHECK(rows[i].graph_node == static_cast<int64_t>(i % 4) << 40);
    CHECK(rows[i].stream == 13);
    CHECK(rows[i].device == (i % 4 == 3 ? 2 : 0));
    CHECK(rows[i].kind == (i % 4 == 1 ? KernelRecord::copy : i % 4 == 3 ? KernelRecord::fill : KernelRecord::kernel));
    CHECK(rows[i].bytes == (i % 4 == 1 ? int64_t{3} << 33 : 0));
  }
}

TEST_CASE("every field has a unit and a description") {
  const TemporaryDirectory folder;
  const std::string path = folder / "t.h5";
  open_trace(path)->close();   // a trace without records is a whole file as well
  const Hdf5Handle file = open_to_read(path);
  REQUIRE(file.get() >= 0);
  for (const char* name : {"steps", "spans", "memory", "plan", "device", "driver_memory", "validation", "kernels",
                           "kernel_names", "fp8", "dropped"}) {
    CAPTURE(name);
    const Hdf5Handle dataset(H5Dopen2(file.get(), name, H5P_DEFAULT), H5Dclose);
    const Hdf5Handle type(H5Dget_type(dataset.get()), H5Tclose);
    CHECK(read_text_attribute(file.get(), name, "description").size() > 8);
    REQUIRE(H5Tget_nmembers(type.get()) >= (std::string(name) == "kernel_names" ? 1 : 3));
    size_t end = 0;
    for (unsigned i = 0; i < static_cast<unsigned>(H5Tget_nmembers(type.get())); ++i) {
      char* member = H5Tget_member_name(type.get(), i);
      const std::string field = member;
      H5free_memory(member);
      CAPTURE(field);
      CHECK(read_text_attribute(file.get(), name, field + ".unit") != "(none)");
      CHECK(read_text_attribute(file.get(), name, field + ".description").size() > 4);
      CHECK(H5Tget_member_offset(type.get(), i) == end);   // no field was forgotten in the schema
      const Hdf5Handle member_type(H5Tget_member_type(type.get(), i), H5Tclose);
      end += H5Tget_size(member_type.get());
    }
    CHECK(end == H5Tget_size(type.get()));
  }
}

// A process that writes a trace at `path` until it is killed: `write` gets the trace and the number of the step.
template <class Write>
pid_t start_writer(const std::string& path, const Write& write) {
  std::cout.flush();   // or the child prints it as well
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child != 0) return child;
  try {
    const auto trace = open_trace(path);
    trace->set_names({"u"}, {"forward", "gather"});
    for (int64_t i = 0;; ++i) write(*trace, i);
  } catch (...) {
  }
  ::_exit(1);
}

// Kills it; whether it still ran.
bool killed(pid_t writer) {
  ::kill(writer, SIGKILL);
  int status = 0;
  ::waitpid(writer, &status, 0);
  return WIFSIGNALED(status);
}

TEST_CASE("a writer that is killed leaves a readable file, and a reader can follow one that lives") {
  const TemporaryDirectory folder;
  const std::string path = folder / "t.h5";
  const pid_t child = start_writer(path, [](Trace& trace, int64_t i) {
    StepRecord step;
    step.step = i;
    trace.add(step, {make_span(2 * i), make_span(2 * i + 1)});
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  // The live file must grow under the reader's eyes.
  size_t first = 0, second = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline && second <= first) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const Hdf5Handle file = open_to_read(path);
    if (file.get() < 0) continue;
    const size_t now = read_rows<StepRecord>(file.get(), "steps").size();
    if (first == 0) first = now;
    second = now;
  }
  CHECK(killed(child));
  CHECK(first > 0);
  CHECK(second > first);

  const Hdf5Handle file = open_to_read(path);
  REQUIRE(file.get() >= 0);
  const auto steps = read_rows<StepRecord>(file.get(), "steps");
  const auto spans = read_rows<SpanRecord>(file.get(), "spans");
  CHECK(steps.size() >= second);
  CHECK(spans.size() >= 2 * steps.size());   // spans are written before their step
  bool equal = true;
  for (size_t i = 0; i < spans.size(); ++i) equal = equal && same(spans[i], make_span(static_cast<int64_t>(i)));
  for (size_t i = 0; i < steps.size(); ++i) equal = equal && steps[i].step == static_cast<int64_t>(i);
  CHECK(equal);
}

// The writer takes what is there at any moment, often between two calls: a step's row and its spans must come in one.
TEST_CASE("a reader never sees a step without its spans") {
  const TemporaryDirectory folder;
  const std::string path = folder / "t.h5";
  const pid_t child = start_writer(path, [spans = std::vector<SpanRecord>{make_span(0)}](Trace& trace, int64_t i) {
    StepRecord step;
    step.step = i;
    trace.add(step, spans);
    // Bursts that are longer than what wakes the writing thread (8 MiB): it comes in the middle of one.
    if (i % 75'000 == 74'999) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  const auto rows = [](const Hdf5Handle& dataset) {
    H5Drefresh(dataset.get());
    const Hdf5Handle space(H5Dget_space(dataset.get()), H5Sclose);
    return H5Sget_simple_extent_npoints(space.get());
  };
  int64_t looks = 0, without_spans = 0, last = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto go_on = [&] {                 // longer where the writer is slow: under a sanitizer, on a busy machine
    const auto time = std::chrono::steady_clock::now() - begin;
    return time < std::chrono::milliseconds(2500) || (looks <= 3 && time < std::chrono::seconds(60));
  };
  while (go_on()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const Hdf5Handle file = open_to_read(path);
    if (file.get() < 0) continue;
    const Hdf5Handle steps(H5Dopen2(file.get(), "steps", H5P_DEFAULT), H5Dclose);
    const Hdf5Handle spans(H5Dopen2(file.get(), "spans", H5P_DEFAULT), H5Dclose);
    if (steps.get() < 0 || spans.get() < 0) continue;
    while (go_on()) {
      const int64_t seen = rows(steps);    // first, for spans may grow meanwhile
      if (rows(spans) < seen) ++without_spans;
      looks += seen > last;
      last = seen;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  CHECK(killed(child));
  CHECK(looks > 3);
  CHECK(without_spans == 0);
}

TEST_CASE("spans that do not fit into the queue are dropped and counted, other records are kept") {
  const TemporaryDirectory folder;
  const std::string path = folder / "t.h5";
  const auto trace = open_trace(path, 100 * sizeof(SpanRecord));
  trace->set_names({}, {"forward"});
  std::vector<SpanRecord> too_many(200);
  for (size_t i = 0; i < too_many.size(); ++i) too_many[i].step = 5 + static_cast<int64_t>(i % 3);
  trace->add(too_many);
  trace->add(std::vector<SpanRecord>(10));
  trace->add(StepRecord{}, {});
  trace->close();
  const Hdf5Handle file = open_to_read(path);
  REQUIRE(file.get() >= 0);
  CHECK(read_rows<SpanRecord>(file.get(), "spans").size() == 10);
  CHECK(read_rows<StepRecord>(file.get(), "steps").size() == 1);
  const auto dropped = read_rows<io::DroppedRow>(file.get(), "dropped");
  REQUIRE(dropped.size() == 1);
  CHECK(dropped[0].spans == 200);
  CHECK(dropped[0].first_step == 5);
  CHECK(dropped[0].last_step == 7);
}

TEST_CASE("several traces at once, and the stated size") {
  const TemporaryDirectory folder;
  std::vector<std::unique_ptr<Trace>> traces;
  for (int rank = 0; rank < 4; ++rank) traces.push_back(open_trace(folder / concat("t", rank)));
  std::vector<std::thread> threads;
  for (auto& trace : traces)
    threads.emplace_back([&trace] {
      trace->set_names({}, {"forward", "gather"});
      for (int64_t i = 0; i < 100'000; i += 100) {
        std::vector<SpanRecord> spans;
        for (int64_t j = i; j < i + 100; ++j) spans.push_back(make_span(j));
        trace->add(spans);
      }
      trace->close();
    });
  for (auto& thread : threads) thread.join();
  for (int rank = 0; rank < 4; ++rank) {
    const std::string path = folder / concat("t", rank);
    const Hdf5Handle file = open_to_read(path);
    REQUIRE(file.get() >= 0);
    CHECK(read_rows<SpanRecord>(file.get(), "spans").size() == 100'000);
    // 56 bytes a span; the rest is the header and at most one chunk (4096 spans) that is not full.
    const auto size = static_cast<int64_t>(fs::file_size(path));
    CHECK(size >= 5'600'000);
    CHECK(size <= 5'600'000 + 4096 * 56 + 200'000);
  }
}

TEST_CASE("the null trace takes everything") {
  const auto trace = make_null_trace();
  trace->set_names({"u"}, {"p", "p"});
  trace->add(StepRecord{}, {});
  trace->add(DriverMemoryRecord{});
  trace->add(make_kernels());
  trace->set_attribute("late", 1.0);
  trace->close();
}

}
