// The writer of a rank's trace file. The training thread only fills a queue; a writer thread empties it.
//
// The file is in HDF5's single-writer/multiple-reader (SWMR) mode from the first record on: flushed data stays readable
// if the process is killed, and other processes can read the file while it grows. In this mode only rows can be added.
// Therefore names and attributes are collected first and written together with the first record.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <variant>

#include "blipft/error.h"
#include "blipft/trace.h"
#include "io/hdf5_handle.h"
#include "trace/trace_queue.h"
#include "trace/trace_tables.h"

namespace blipft {

namespace {

constexpr auto write_period = std::chrono::milliseconds(400);   // shorter than the promised half second
constexpr size_t wake_bytes = size_t{8} << 20;                  // a queue of this size wakes the writer thread early

template <size_t n>
void copy_name(char (&to)[n], const std::string& from, const char* what) {
  BLIPFT_CHECK(from.size() < n, what, " '", from, "' has ", from.size(), " bytes, a trace holds at most ", n - 1);
  std::memcpy(to, from.data(), from.size());
}

template <size_t n>
void copy_text(char (&to)[n], const std::string& from) {
  size_t bytes = std::min(from.size(), n - 1);
  // Do not cut a multi-byte UTF-8 character.
  if (bytes < from.size())
    while (bytes > 0 && (static_cast<unsigned char>(from[bytes]) & 0xC0) == 0x80) --bytes;
  std::memcpy(to, from.data(), bytes);
}

class Hdf5Trace final : public Trace {
 public:
  Hdf5Trace(const std::string& path, size_t queue_bytes);
  ~Hdf5Trace() override;
  void set_names(const std::vector<std::string>& units, const std::vector<std::string>& phases,
                 const std::vector<std::string>& fp8_matrices) override;
  void set_attribute(const std::string& name, const std::string& value) override { add_attribute(name, value); }
  void set_attribute(const std::string& name, double value) override { add_attribute(name, value); }
  void add(const StepRecord& record, const std::vector<SpanRecord>& spans) override;
  void add(const std::vector<SpanRecord>& records) override;
  void add(const std::vector<MemoryRecord>& records) override;
  void add(const std::vector<PlanRecord>& records) override;
  void add(const DeviceRecord& record) override;
  void add(const DriverMemoryRecord& record) override;
  void add(const ValidationRecord& record) override;
  void add(const std::vector<EvaluationRecord>& records) override;
  void add(const std::vector<EvaluationSampleRecord>& records) override;
  void add(const std::vector<EvaluationTextRecord>& records) override;
  void add(const std::vector<KernelRecord>& records) override;
  void add(const std::vector<Fp8Record>& records) override;
  void add(const std::vector<StepSampleRecord>& records) override;
  std::string failure() const override;
  void close() override;

 private:
  void add_attribute(const std::string& name, std::variant<std::string, double> value);
  template <class Append>
  void enqueue(const Append& append);
  void queue_spans(const std::vector<SpanRecord>& records);
  void run();
  void start_file();
  void write(const TraceQueue& rows);
  void close_file();
  void abandon();
  void check_there();
  int32_t kernel_number(const std::string& name);
  std::array<io::Table*, 16> tables() {
    return {&steps_, &spans_, &memory_, &plan_, &host_plan_, &device_, &driver_memory_, &validations_,
            &evaluations_, &evaluation_samples_, &evaluation_texts_, &kernels_, &kernel_names_, &fp8_, &step_samples_,
            &dropped_};
  }

  const std::string path_;
  const size_t queue_bytes_;

  mutable std::mutex mutex_;            // guards the members that both threads use, up to failure_
  std::condition_variable wake_;
  TraceQueue waiting_;
  std::map<std::string, std::variant<std::string, double>> attributes_;
  std::vector<std::string> units_, phases_, fp8_matrices_;
  std::map<std::string, int32_t> kernel_numbers_;
  bool started_ = false;                // true after the first record or close()
  bool closing_ = false;
  std::exception_ptr error_;
  std::string failure_;                 // message of error_; kept after close()

  io::Hdf5Handle file_;                 // of the writer thread, under hdf5_mutex()
  io::Table steps_, spans_, memory_, plan_, host_plan_, device_, driver_memory_, validations_, evaluations_,
      evaluation_samples_, evaluation_texts_, kernels_, kernel_names_, fp8_, step_samples_, dropped_;
  std::chrono::steady_clock::time_point looked_;  // of the writer thread: last check that the file exists
  std::thread thread_;
};

// Renames a new file, unless the name `to` exists already.
void name_file(const std::string& from, const std::string& to) {
  bool named = ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0;
  if (!named && errno != EEXIST && ::link(from.c_str(), to.c_str()) == 0) {  // for file systems without renameat2
    ::unlink(from.c_str());
    named = true;
  }
  const int error = errno;
  BLIPFT_USER_CHECK(named, to, ": creating the trace file: ",
                    error == EEXIST ? "something of that name is there already; move it away" : std::strerror(error));
}

Hdf5Trace::Hdf5Trace(const std::string& path, size_t queue_bytes) : path_(path), queue_bytes_(queue_bytes) {
  attributes_["format_version"] = "1.14";
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  {
    const std::lock_guard lock(io::hdf5_mutex());
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);   // errors become exceptions and are not printed to the terminal
    const io::Hdf5Handle access = io::own(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, path, "making a property list");
    io::check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_LATEST, H5F_LIBVER_LATEST), path, "choosing the format");
#if H5_VERSION_GE(1, 10, 7)
    // Some network file systems do not support locks; an unlocked trace is better than none.
    io::check(H5Pset_file_locking(access.get(), true, true), path, "choosing file locks");
#endif
    // The file gets its final name only after the creator attribute is written. It never replaces an existing file or
    // link.
    const std::string begun = concat(path, ".", ::getpid(), ".", std::chrono::steady_clock::now().time_since_epoch().count());
    file_ = io::own(H5Fcreate(begun.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access.get()), H5Fclose, path,
                    "creating the trace file (is the folder there, may you write to it?)");
    try {
      io::write_attribute(file_.get(), path, "creator", std::string("blipft"));
      io::check(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL), path, "writing the trace file");
      name_file(begun, path);
    } catch (...) {
      ::unlink(begun.c_str());
      throw;
    }
    attributes_["hdf5"] = io::hdf5_library().found;
  }
  thread_ = std::thread([this] { run(); });
}

Hdf5Trace::~Hdf5Trace() {
  try {
    close();
  } catch (...) {
    // Callers that need the error call close() themselves.
  }
}

void Hdf5Trace::set_names(const std::vector<std::string>& units, const std::vector<std::string>& phases,
                          const std::vector<std::string>& fp8_matrices) {
  const std::lock_guard lock(mutex_);
  BLIPFT_CHECK(!started_, path_, ": names come before the first record");
  const std::set<std::string> different(phases.begin(), phases.end());
  BLIPFT_CHECK(different.size() == phases.size() && !different.count(""), path_,
               ": phase names must differ and not be empty");
  units_ = units;
  phases_ = phases;
  fp8_matrices_ = fp8_matrices;
}

void Hdf5Trace::add_attribute(const std::string& name, std::variant<std::string, double> value) {
  const std::lock_guard lock(mutex_);
  BLIPFT_CHECK(!started_, path_, ": attribute '", name, "' comes after the first record; the file takes only rows by ",
               "then");
  attributes_[name] = std::move(value);
}

/// Calls `append`, which adds rows to the queue. Wakes the writer thread for the first record and if the queue is long.
template <class Append>
void Hdf5Trace::enqueue(const Append& append) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    BLIPFT_CHECK(!closing_, path_, ": a record comes after close()");
    if (error_) return;   // the writer thread has failed and close() will report it; training continues
    append();
    wake = !started_ || waiting_.bytes() > wake_bytes;
    started_ = true;
  }
  if (wake) wake_.notify_one();
}

/// Adds spans to the queue or counts them as dropped. The caller holds mutex_.
void Hdf5Trace::queue_spans(const std::vector<SpanRecord>& records) {
  if (records.empty()) return;
  if (waiting_.bytes() + records.size() * sizeof(SpanRecord) > queue_bytes_)
    waiting_.drop(records);
  else
    waiting_.spans.insert(waiting_.spans.end(), records.begin(), records.end());
}

void Hdf5Trace::add(const StepRecord& record, const std::vector<SpanRecord>& spans) {
  // Both are added under one lock, so that the writer thread never sees the step without its spans.
  enqueue([&] {
    queue_spans(spans);
    waiting_.steps.push_back(record);
  });
}

void Hdf5Trace::add(const std::vector<SpanRecord>& records) {
  if (records.empty()) return;
  enqueue([&] { queue_spans(records); });
}

void Hdf5Trace::add(const std::vector<MemoryRecord>& records) {
  std::vector<io::MemoryRow> rows(records.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].step = records[i].step;
    copy_name(rows[i].phase, records[i].phase, "memory phase");
    copy_name(rows[i].owner, records[i].owner, "memory owner");
    rows[i].time_ns = records[i].time_ns;
    rows[i].bytes = records[i].bytes;
  }
  enqueue([&] { waiting_.memory.insert(waiting_.memory.end(), rows.begin(), rows.end()); });
}

void Hdf5Trace::add(const std::vector<PlanRecord>& records) {
  std::vector<io::PlanRow> device, host;
  for (const PlanRecord& record : records) {
    io::PlanRow& row = (record.in_host ? host : device).emplace_back();
    copy_name(row.name, record.name, "planned buffer");
    copy_name(row.owner, record.owner, "planned owner");
    row.bytes = record.bytes;
  }
  enqueue([&] {
    waiting_.plan.insert(waiting_.plan.end(), device.begin(), device.end());
    waiting_.host_plan.insert(waiting_.host_plan.end(), host.begin(), host.end());
  });
}

void Hdf5Trace::add(const DeviceRecord& record) {
  enqueue([&] { waiting_.device.push_back(record); });
}

void Hdf5Trace::add(const DriverMemoryRecord& record) {
  enqueue([&] { waiting_.driver_memory.push_back(record); });
}

void Hdf5Trace::add(const ValidationRecord& record) {
  enqueue([&] { waiting_.validations.push_back(record); });
}

void Hdf5Trace::add(const std::vector<EvaluationRecord>& records) {
  std::vector<io::EvaluationRow> rows(records.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const EvaluationRecord& from = records[i];
    rows[i] = {.step = from.step, .time_ns = from.time_ns, .metric = {}, .value = from.value, .samples = from.samples,
               .seconds = from.seconds};
    copy_name(rows[i].metric, from.metric, "metric");
  }
  enqueue([&] { waiting_.evaluations.insert(waiting_.evaluations.end(), rows.begin(), rows.end()); });
}

void Hdf5Trace::add(const std::vector<EvaluationSampleRecord>& records) {
  std::vector<io::EvaluationSampleRow> rows(records.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].sample = records[i].sample;
    copy_text(rows[i].picture, records[i].picture);
    copy_text(rows[i].prompt, records[i].prompt);
    copy_text(rows[i].references, records[i].references);
  }
  enqueue([&] { waiting_.evaluation_samples.insert(waiting_.evaluation_samples.end(), rows.begin(), rows.end()); });
}

void Hdf5Trace::add(const std::vector<EvaluationTextRecord>& records) {
  std::vector<io::EvaluationTextRow> rows(records.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].step = records[i].step, rows[i].sample = records[i].sample, rows[i].tokens = records[i].tokens;
    copy_text(rows[i].text, records[i].text);
  }
  enqueue([&] { waiting_.evaluation_texts.insert(waiting_.evaluation_texts.end(), rows.begin(), rows.end()); });
}

/// Returns the row of `name` in /kernel_names; adds a row to the queue if the name is new. The caller holds mutex_.
int32_t Hdf5Trace::kernel_number(const std::string& name) {
  const auto [entry, is_new] = kernel_numbers_.try_emplace(name, static_cast<int32_t>(kernel_numbers_.size()));
  if (is_new) {
    io::KernelNameRow row;
    copy_text(row.name, name);
    waiting_.kernel_names.push_back(row);
  }
  return entry->second;
}

void Hdf5Trace::add(const std::vector<KernelRecord>& records) {
  if (records.empty()) return;
  enqueue([&] {
    for (const KernelRecord& record : records)
      waiting_.kernels.push_back({.step = record.step, .begin_ns = record.begin_ns, .end_ns = record.end_ns,
                                  .bytes = record.bytes, .graph_node = record.graph_node,
                                  .name = kernel_number(record.name), .kind = record.kind, .stream = record.stream,
                                  .device = record.device});
  });
}

void Hdf5Trace::add(const std::vector<Fp8Record>& records) {
  enqueue([&] { waiting_.fp8.insert(waiting_.fp8.end(), records.begin(), records.end()); });
}

void Hdf5Trace::add(const std::vector<StepSampleRecord>& records) {
  enqueue([&] { waiting_.step_samples.insert(waiting_.step_samples.end(), records.begin(), records.end()); });
}

std::string Hdf5Trace::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Hdf5Trace::close() {
  {
    const std::lock_guard lock(mutex_);
    started_ = closing_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
  if (const std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

void Hdf5Trace::run() {
  TraceQueue rows;
  bool running = true, failed = false, file_started = false;
  while (running) {
    rows.clear();
    {
      std::unique_lock lock(mutex_);
      if (!started_) wake_.wait(lock, [&] { return started_; });
      if (file_started || failed)
        wake_.wait_for(lock, write_period, [&] { return closing_ || waiting_.bytes() > wake_bytes; });
      running = !closing_;
      std::swap(rows, waiting_);
    }
    if (failed) continue;
    try {
      const std::lock_guard lock(io::hdf5_mutex());
      if (!file_started) start_file();
      file_started = true;
      if (!rows.empty()) write(rows);
      check_there();
      if (!running) close_file();
    } catch (const std::exception& error) {
      failed = true;
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      failure_ = error.what();
    }
  }
  // Closing would retry the failed writes, and HDF5 may crash after such failures. Data that was flushed earlier is
  // readable even if the file is not closed.
  if (failed) abandon();
}

/// Writes the parts of the file that cannot change later, then enters SWMR mode. The training thread cannot change
/// names any more because `started_` is set.
void Hdf5Trace::start_file() {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);   // a thread-safe HDF5 has this setting per thread
  const hid_t file = file_.get();
  for (const auto& [name, value] : attributes_)
    std::visit([&, &key = name](const auto& held) { io::write_attribute(file, path_, key, held); }, value);
  io::write_strings(file, path_, "units", "names of the model's units, as /spans.unit counts them", units_);
  io::write_strings(file, path_, "phases", "names of the phases, as /spans.phase counts them", phases_);
  io::write_strings(file, path_, "fp8_matrices", "modules of the matrices in fp8, as /fp8.matrix counts them", fp8_matrices_);
  steps_ = io::Table(file, path_, io::step_schema(), phases_);
  spans_ = io::Table(file, path_, io::span_schema(), phases_);
  memory_ = io::Table(file, path_, io::memory_schema(), phases_);
  plan_ = io::Table(file, path_, io::plan_schema(), phases_);
  host_plan_ = io::Table(file, path_, io::host_plan_schema(), phases_);
  device_ = io::Table(file, path_, io::device_schema(), phases_);
  driver_memory_ = io::Table(file, path_, io::driver_memory_schema(), phases_);
  validations_ = io::Table(file, path_, io::validation_schema(), phases_);
  evaluations_ = io::Table(file, path_, io::evaluation_schema(), phases_);
  evaluation_samples_ = io::Table(file, path_, io::evaluation_sample_schema(), phases_);
  evaluation_texts_ = io::Table(file, path_, io::evaluation_text_schema(), phases_);
  kernels_ = io::Table(file, path_, io::kernel_schema(), phases_);
  kernel_names_ = io::Table(file, path_, io::kernel_name_schema(), phases_);
  fp8_ = io::Table(file, path_, io::fp8_schema(), phases_);
  step_samples_ = io::Table(file, path_, io::step_sample_schema(), phases_);
  dropped_ = io::Table(file, path_, io::dropped_schema(), phases_);
  io::check(H5Fstart_swmr_write(file), path_, "entering SWMR mode");
}

void Hdf5Trace::write(const TraceQueue& rows) {
  // Spans come first: a reader that sees a step's row then also sees its spans.
  spans_.append(rows.spans.data(), rows.spans.size());
  memory_.append(rows.memory.data(), rows.memory.size());
  plan_.append(rows.plan.data(), rows.plan.size());
  host_plan_.append(rows.host_plan.data(), rows.host_plan.size());
  device_.append(rows.device.data(), rows.device.size());
  driver_memory_.append(rows.driver_memory.data(), rows.driver_memory.size());
  validations_.append(rows.validations.data(), rows.validations.size());
  evaluation_samples_.append(rows.evaluation_samples.data(), rows.evaluation_samples.size());  // before the references
  evaluation_texts_.append(rows.evaluation_texts.data(), rows.evaluation_texts.size());
  evaluations_.append(rows.evaluations.data(), rows.evaluations.size());
  kernel_names_.append(rows.kernel_names.data(), rows.kernel_names.size());   // before the rows that refer to them
  kernels_.append(rows.kernels.data(), rows.kernels.size());
  fp8_.append(rows.fp8.data(), rows.fp8.size());
  step_samples_.append(rows.step_samples.data(), rows.step_samples.size());
  if (rows.dropped) dropped_.append(&*rows.dropped, 1);
  steps_.append(rows.steps.data(), rows.steps.size());
}

/// Throws UserError if the file was removed: writes would still succeed, but all rows would be lost. The check runs
/// once a second and at the end; more checks would be a burden for a file server with hundreds of ranks.
void Hdf5Trace::check_there() {
  const auto now = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    if (!closing_ && now - looked_ < std::chrono::seconds(1)) return;
  }
  looked_ = now;
  std::error_code error;
  const bool there = std::filesystem::exists(path_, error);
  BLIPFT_USER_CHECK(there, path_, ": the trace file is gone: ",
                    error ? error.message() : "it, or its folder, was removed");
}

void Hdf5Trace::abandon() {
  for (io::Table* table : tables()) table->abandon();
  file_.abandon();
}

void Hdf5Trace::close_file() {
  for (io::Table* table : tables()) *table = io::Table();
  io::check(file_.reset(), path_, "closing the trace file");
}

}  // namespace

std::unique_ptr<Trace> open_trace(const std::string& path, size_t queue_bytes) {
  return std::make_unique<Hdf5Trace>(path, queue_bytes);
}

}  // namespace blipft
