// What the system tells of processes of this machine (/proc).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace blipft {

struct ProcessStat {
  std::string name, state, start;          ///< state: "R", "T" (stopped), ...; start: in ticks since the boot
  int64_t parent = 0;                      ///< 0: none that this process sees
  /// Whether it has ended, though its parent has not yet asked how.
  bool ended() const { return state == "Z" || state == "X"; }
  bool stopped() const { return state == "T" || state == "t"; }
};

/// All empty where there is no such process, or it does not show itself.
ProcessStat process_stat(int64_t pid);
/// A variable of the environment that the process was started with; nothing where it has none, or does not show it.
std::optional<std::string> process_variable(int64_t pid, const std::string& name);
/// The file that it runs; "" where it does not show it.
std::string process_program(int64_t pid);
/// All that this process sees.
std::vector<int64_t> all_processes();

/// The target of a link; "" where there is none.
std::string link_target(const std::string& path);
/// The first line of a small file; "" where there is none.
std::string first_line(const std::string& path);
/// This machine's name.
std::string host_name();

/// The whole number that all of `text` is; nothing where it is none.
std::optional<int64_t> whole_number(const std::string& text);

}  // namespace blipft
