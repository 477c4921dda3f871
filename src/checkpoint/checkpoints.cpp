// Scheduling and completing checkpoints; see checkpoints.h.
#include "checkpoint/checkpoints.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iomanip>
#include <sstream>
#include <vector>

#include "agreement/run_id.h"
#include "base/memory_text.h"
#include "checkpoint/training_state.h"
#include "io/file.h"
#include "io/marker.h"
#include "io/named_checkpoints.h"

namespace blipft {

namespace fs = std::filesystem;

namespace {

// Flags that the ranks combine by bitwise or after every step.
enum Bits : uint64_t { kBusy = 1, kMinutesOver = 2, kTimeOver = 4, kTerminated = 8, kSignalled = 16, kInterrupted = 32 };

// Bytes/s that one rank writes, assumed until a checkpoint was timed.
constexpr double kAssumedBandwidth = 0.5e9;
constexpr double kLinkBandwidth = 50e9;    // bytes/s from a GPU to page-locked memory

int64_t host_memory() { return sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE); }

// Writes the marker with the run id into the folder of checkpoints. The marker is optional.
void mark(const std::string& folder, const std::string& run_id) {
  try {
    const std::optional<io::Marker> marker = io::read_marker(io::open_folder(folder, true));
    if (!marker || marker->run_id != run_id) io::write_marker(folder, {io::Marker::kCheckpoints, run_id, -1, {}});
  } catch (const UserError&) {
    // A file or folder that is not a marker has the marker's name.
  }
}

// Removes a checkpoint. If that fails, only prints a warning: it uses disk space, but the run can continue.
void quietly_remove(const std::string& folder, const io::NamedCheckpoint& checkpoint) {
  try {
    io::remove_checkpoint(folder, checkpoint);
  } catch (const UserError& error) {
    std::fprintf(stderr, "warning: %s\n", error.what());
  }
}

// Makes the folder of a new checkpoint. Replaces a folder of that name if blipft wrote it.
void make_partial(const std::string& folder, int64_t step) {
  const std::string name = io::partial_name(step), path = folder + "/" + name;
  if (const io::NamedCheckpoint left = io::named_checkpoint(folder, name); left.own) io::remove_checkpoint(folder, left);
  std::error_code error;
  fs::create_directories(folder, error);
  BLIPFT_USER_CHECK(!error && ::mkdir(path.c_str(), 0777) == 0, path, ": the folder cannot be created: ",
                    error ? error.message() : errno == EEXIST ? "something of that name is there, which blipft did not write"
                                                              : io::errno_text());
}

void check_room(const std::string& folder, int64_t needed) {
  const int64_t free = io::free_bytes(folder);
  BLIPFT_USER_CHECK(needed <= free, folder, ": a checkpoint takes ", memory_text(needed), ", but the disk has only ",
                    memory_text(free), " free; free some, lower checkpoint.keep, or give another checkpoint.path");
}

}  // namespace

int64_t checkpoint_bytes(const Units& units, const ParameterStore& store) {
  return held_state_bytes(units, store) * store.shards();
}

int64_t checkpoint_staging_bytes(const RunSettings& config, int64_t state_bytes, int64_t machine_ranks) {
  if (!writes_checkpoints(config)) return 0;
  const double requested = config.checkpoint.host_gib * 1024 * 1024 * 1024;
  const int64_t share = host_memory() / (4 * std::max<int64_t>(machine_ranks, 1));
  return std::min(state_bytes, requested > 0 ? static_cast<int64_t>(requested) : share);
}

std::string checkpoints_text(const RunSettings& config, const Units& units, const ParameterStore& store, int64_t ranks,
                             int64_t machine_ranks) {
  if (!writes_checkpoints(config)) return "";
  const int64_t all = checkpoint_bytes(units, store), mine = all / ranks;
  const int64_t staging = checkpoint_staging_bytes(config, mine, machine_ranks);
  const double pause =
      static_cast<double>(mine) / kLinkBandwidth + static_cast<double>(mine - staging) / kAssumedBandwidth;
  const CheckpointSection& requested = config.checkpoint;
  std::ostringstream text;
  text << "checkpoints of " << memory_text(all);
  if (requested.every_steps > 0) text << ", every " << requested.every_steps << " steps";
  if (requested.every_minutes > 0) text << ", every " << requested.every_minutes << " minutes";
  text << ", the last " << requested.keep << " kept; a rank writes " << memory_text(mine) << " through " << memory_text(staging)
       << " of page-locked host memory; a step waits about " << std::fixed << std::setprecision(2) << pause
       << " s for one";
  if (staging < mine)
    text << " (of which most for the file system, at an assumed " << std::setprecision(1)
         << kAssumedBandwidth * 1e-9 << " GB/s: raise checkpoint.host_gib)";
  return text.str();
}

FileToWrite checkpoints_to_write(const RunSettings& config, int64_t bytes, const std::string& run_id) {
  const std::string folder = checkpoints_folder(config);
  if (!writes_checkpoints(config)) return {"a checkpoint when it is stopped", bytes, folder, false};
  int64_t held = 0;
  for (const io::NamedCheckpoint& earlier : io::named_checkpoints(folder))
    if (earlier.is_whole() && (earlier.run_id.empty() || earlier.run_id == run_id)) held += earlier.bytes;
  // The next checkpoint is written before an old one is removed.
  const int64_t maximum = config.checkpoint.keep + 1 + (config.checkpoint.keep_best != BestCriterion::none ? 1 : 0);
  return {"checkpoints", std::max(bytes, maximum * bytes - held), folder};
}

Checkpoints::Checkpoints(CheckpointParts parts)
    : parts_(std::move(parts)), folder_(checkpoints_folder(*parts_.config)),
      total_bytes_(checkpoint_bytes(parts_.weights.units, *parts_.weights.store)),
      piece_bytes_(std::llround(parts_.world->sum(static_cast<double>(
                       held_state_bytes(parts_.weights.units, *parts_.weights.store)))) *
                   parts_.weights.store->shards() / parts_.world->size()),
      limit_seconds_(time_limit_seconds(*parts_.config)),
      last_minutes_(parts_.times->seconds() / 60),
      writer_(*parts_.weights.device,
              checkpoint_staging_bytes(*parts_.config, total_bytes_ / parts_.world->size(),
                                       parts_.world->local_size())),
      whole_(parts_.resumed) {
  if (parts_.world->rank() == 0)           // incomplete checkpoints of killed runs
    for (const io::NamedCheckpoint& one : io::named_checkpoints(folder_))
      if (one.own && !one.is_whole()) quietly_remove(folder_, one);
}

// Only rank 0 reads the clock, so that all ranks decide alike.
bool Checkpoints::due(int64_t done, double step_seconds) {
  const CheckpointSection& requested = parts_.config->checkpoint;
  const double now = parts_.times->seconds();
  uint64_t mine = writing_step_ >= 0 && failure_.empty() && writer_.busy() ? uint64_t{kBusy} : 0;
  if (parts_.world->rank() == 0) {
    if (requested.every_minutes > 0 && now / 60 - last_minutes_ >= requested.every_minutes) mine |= kMinutesOver;
    const double mine_bytes = static_cast<double>(total_bytes_ / parts_.world->size());
    const double write = last_write_seconds_ > 0 ? last_write_seconds_ : mine_bytes / kAssumedBandwidth;
    if (limit_seconds_ > 0 && now + 1.5 * write + 2 * step_seconds + 1 >= limit_seconds_) mine |= kTimeOver;
  }
  if (const int signal = parts_.stop->signal())
    mine |= signal == SIGTERM ? kTerminated : signal == SIGINT ? kInterrupted : kSignalled;
  const uint64_t all = parts_.world->size() > 1 ? parts_.world->any(mine) : mine;
  if (writing_step_ >= 0 && !(all & kBusy)) complete();
  if (all & kTerminated) stop_reason_ = "SIGTERM";
  else if (all & kSignalled) stop_reason_ = "SIGUSR1";
  else if (all & kInterrupted) stop_reason_ = "SIGINT";
  else if (all & kTimeOver) stop_reason_ = "checkpoint.time_limit";
  const bool by_steps = requested.every_steps > 0 && done % requested.every_steps == 0;
  return by_steps || (all & kMinutesOver) || !stop_reason_.empty();
}

void Checkpoints::write(int64_t done) {
  const double begin = parts_.times->seconds();
  if (writing_step_ >= 0) complete();      // the previous one
  waited_seconds_ = parts_.times->seconds() - begin;
  const World& world = *parts_.world;
  const std::string partial = folder_ + "/" + io::partial_name(done);
  last_minutes_ = parts_.times->seconds() / 60;
  writing_step_ = done;
  written_run_ = parts_.run;               // later facts belong to the next checkpoint
  failure_.clear();
  try {
    world.run_agreeing_on_errors([&] {
      if (world.rank() != 0) return;
      make_partial(folder_, done);
      check_room(partial, total_bytes_);
      mark(folder_, run_id_of(parts_.run));
      io::write_marker(partial, {io::Marker::kCheckpoint, run_id_of(parts_.run), done, {}});
    });
    const int64_t shards = parts_.weights.store->shards();
    writer_.begin(partial + "/" + io::state_file_name(world.rank(), world.size()),
                  parts_to_write(parts_.weights.units, *parts_.weights.store, parts_.replica, world.size() / shards));
  } catch (const std::exception& error) {  // complete() reports it, on all ranks
    failure_ = error.what();
  }
}

void Checkpoints::add_to_run(const std::map<std::string, std::string>& facts) {
  for (const auto& [name, value] : facts) parts_.run[name] = value;
}

void Checkpoints::finish() {
  if (writing_step_ < 0) return;
  complete();
  if (const std::string failure = outcomes_.back().failure; !failure.empty()) {
    outcomes_.pop_back();
    throw AgreedError(failure);
  }
}

// Collective. Afterwards the checkpoint is either complete for all ranks or failed for all ranks.
void Checkpoints::complete() {
  const World& world = *parts_.world;
  const int64_t step = std::exchange(writing_step_, -1);
  std::string file, failure = std::exchange(failure_, "");
  if (failure.empty()) {
    try {
      file = io::file_text(writer_.finish());
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }
  last_write_seconds_ = world.max(writer_.write_seconds());
  const double waited = waited_seconds_;
  Outcome outcome{.step = step, .bytes = total_bytes_, .pause_seconds = world.max(writer_.pause_seconds() + waited),
                  .write_seconds = last_write_seconds_, .waited_seconds = world.max(waited),
                  .folder = folder_ + "/" + io::checkpoint_name(step), .failure = ""};
  try {
    world.agree(failure);
    const std::vector<std::string> files = world.gather_texts(file);
    world.run_agreeing_on_errors([&] {
      if (world.rank() == 0) publish(outcome, files);
    });
    newest_ = whole_ = outcome.folder;
  } catch (const AgreedError& error) {     // any rank's file may have failed
    outcome.failure = concat("the checkpoint after ", step, " steps was not written: ", error.what(), "; ",
                             whole_.empty() ? "this run has none that is whole" : "the newest that is whole is " + whole_);
    const io::NamedCheckpoint left = io::named_checkpoint(folder_, io::partial_name(step));
    if (world.rank() == 0 && left.own) quietly_remove(folder_, left);
  }
  outcomes_.push_back(std::move(outcome));
}

// Completes the checkpoint, on rank 0: the index is the last file, then the folder is renamed.
void Checkpoints::publish(const Outcome& outcome, const std::vector<std::string>& files) {
  io::StateIndex index{outcome.step, parts_.keys, written_run_, {}};
  for (const std::string& text : files) {
    io::StateFile file = io::parse_file(text);
    if (!file.pieces.empty()) index.files.push_back(std::move(file));
  }
  io::check_whole(index, piece_bytes_);
  const std::string partial = folder_ + "/" + io::partial_name(outcome.step);
  std::error_code error;
  if (!parts_.gemm_table.empty()) fs::copy_file(parts_.gemm_table, partial + "/gemm_algorithms.txt", error);
  io::write_whole_file(partial + "/checkpoint.json", io::index_text(index));
  io::sync_directory(partial);
  io::publish_checkpoint(folder_, outcome.step);
  io::sync_directory(folder_);
  keep_newest(io::checkpoint_name(outcome.step));
}

std::string Checkpoints::folder_of(int64_t step) const { return folder_ + "/" + io::checkpoint_name(step); }

// Removes old checkpoints of this run, ordered by step. File times are not used because clocks may be set back.
void Checkpoints::keep_newest(const std::string& newest) {
  std::vector<io::NamedCheckpoint> found = io::named_checkpoints(folder_);
  const bool keeps_best = parts_.config->checkpoint.keep_best != BestCriterion::none;
  const std::string best = keeps_best ? written_run_[kBestStep] : "";
  std::erase_if(found, [&](const io::NamedCheckpoint& one) {
    return !one.is_whole() || one.name == newest || std::to_string(one.step) == best ||
           !(one.run_id.empty() || one.run_id == run_id_of(parts_.run));
  });
  const auto others = static_cast<size_t>(parts_.config->checkpoint.keep) - 1;
  for (size_t i = 0; i + others < found.size(); ++i) quietly_remove(folder_, found[i]);
}

bool Checkpoints::outcome(Outcome& outcome) {
  if (outcomes_.empty()) return false;
  outcome = std::move(outcomes_.front());
  outcomes_.pop_front();
  return true;
}

}  // namespace blipft
