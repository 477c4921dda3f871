// Information about processes of this machine, from /proc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace blipft {

struct ProcessStat {
  std::string name, state, start;          ///< state: "R", "T" (stopped), ...; start: in ticks since the boot
  int64_t parent = 0;                      ///< 0: none that is visible to this process
  /// Returns true if the process has ended, even if its parent has not yet waited for it.
  bool ended() const { return state == "Z" || state == "X"; }
  bool stopped() const { return state == "T" || state == "t"; }
};

/// Returns the state of a process. All members are empty if the process does not exist or is not visible.
ProcessStat process_stat(int64_t pid);
/// Returns a variable of the environment that the process was started with; none if it is not set or not readable.
std::optional<std::string> process_variable(int64_t pid, const std::string& name);
/// Returns the program file of a process, or "" if it is not readable.
std::string process_program(int64_t pid);
/// Returns all processes that are visible to this process.
std::vector<int64_t> all_processes();

/// Returns the target of a symbolic link, or "" if there is none.
std::string link_target(const std::string& path);
/// Returns the first line of a small file, or "" if it cannot be read.
std::string first_line(const std::string& path);
/// Returns the number of CPU cores of this machine that the process may use, at least 1.
int64_t machine_cores();
/// Returns the name of this machine.
std::string host_name();

/// Returns the whole number in `text`; none if `text` contains anything else.
std::optional<int64_t> whole_number(const std::string& text);

}  // namespace blipft
