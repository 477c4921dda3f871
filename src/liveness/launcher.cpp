// Launchers and the ranks that they start; see launcher.h.
#include "liveness/launcher.h"

#include <unistd.h>

#include <cstdlib>
#include <initializer_list>
#include <map>

#include "base/process_info.h"
#include "blipft/error.h"

namespace blipft {

namespace {

std::string text_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? text : "";
}

/// The number in the first of these variables that is set; 0 if none is.
int64_t count_of(std::initializer_list<const char*> variables) {
  for (const char* variable : variables)
    if (const int64_t count = whole_number(text_of(variable)).value_or(0); count > 0) return count;
  return 0;
}

// Returns the nearest ancestor process that does not have this rank in its environment. Processes in between (a shell,
// numactl or a debugger) have the same rank in their environment as this process.
Launcher find_launcher() {
  const LaunchedRank& own = LaunchedRank::own();
  if (own.rank.empty()) return {};
  const int64_t parent = getppid();
  for (int64_t pid = parent; pid > 1;) {
    const ProcessStat stat = process_stat(pid);
    if (stat.start.empty()) return {};
    if (process_variable(pid, own.variable) != own.rank)
      return {.pid = pid, .parent = parent, .start = stat.start, .name = stat.name};
    pid = stat.parent;
  }
  return {};                               // started from outside the processes that are visible here
}

}  // namespace

const LaunchedRank& LaunchedRank::own() {
  static const LaunchedRank rank = [] {
    for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
      if (const char* text = std::getenv(variable))
        return LaunchedRank{text, variable, text_of("PMIX_NAMESPACE"),
                            count_of({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}),
                            count_of({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"})};
    return LaunchedRank{};
  }();
  return rank;
}

const Launcher& Launcher::own() {
  static const Launcher launcher = find_launcher();
  return launcher;
}

bool Launcher::gone() const {
  if (pid == 0) return false;
  const ProcessStat stat = process_stat(pid);
  return stat.start != start || stat.ended();
}

bool launcher_is_gone() {
  return Launcher::own().pid != 0 && (getppid() != Launcher::own().parent || Launcher::own().gone());
}

bool stdout_is_terminal() {
  if (::isatty(STDOUT_FILENO) != 1) return false;
  const int64_t launcher = Launcher::own().pid;
  const std::string output = launcher == 0 ? "" : link_target(concat("/proc/", launcher, "/fd/1"));
  return output.empty() || output.starts_with("/dev/pts/") || output.starts_with("/dev/tty");
}

OtherRanks OtherRanks::find() {
  const LaunchedRank& own = LaunchedRank::own();
  OtherRanks others;
  if (own.rank.empty() || own.job.empty()) return others;
  const std::string program = process_program(getpid());
  struct Rank {
    int64_t pid = 0;
    bool stopped = false, waits = false;
    std::string name;
  };
  std::map<int64_t, Rank> found;           // a rank may consist of several processes: a shell and its child
  for (const int64_t pid : all_processes()) {
    if (process_variable(pid, "PMIX_NAMESPACE") != own.job) continue;
    const auto number = whole_number(process_variable(pid, own.variable).value_or(""));
    const ProcessStat stat = process_stat(pid);
    if (!number || stat.start.empty() || stat.ended()) continue;
    Rank& rank = found[*number];
    const bool waits = !stat.stopped() && process_program(pid) == program;
    if (rank.pid == 0 || stat.stopped() || (waits && !rank.stopped)) rank.pid = pid, rank.name = stat.name;
    rank.stopped = rank.stopped || stat.stopped();
    rank.waits = rank.waits || waits;
  }
  const int64_t self = whole_number(own.rank).value_or(0);
  const auto add = [&](const std::string& text) { others.missing += concat(others.missing.empty() ? "" : ", ", text); };
  constexpr int kNamed = 8;
  int named = 0;
  for (const auto& [number, rank] : found) {
    if (number == self) continue;
    if (rank.waits && !rank.stopped) {
      if (number < self) others.first_that_waits = false;
      continue;
    }
    if (++named > kNamed) continue;
    add(concat("rank ", number, " on ", host_name(), " (process ", rank.pid,
               rank.stopped ? ") is stopped" : concat(", ", rank.name, ") has not begun blipft")));
  }
  if (named > kNamed) add(concat(named - kNamed, " more"));
  if (const auto here = static_cast<int64_t>(found.size()); own.local_ranks > here)
    add(concat(own.local_ranks - here, " of the ", own.local_ranks, " ranks of ", host_name(), " have no process any more"));
  return others;
}

}  // namespace blipft
