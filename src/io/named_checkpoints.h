// What has the name of a checkpoint in a folder, and which of it this program has made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blipft::io {

/// Something with the name of a checkpoint: step-NNNNNNNN, also with .partial or .aside behind it.
struct NamedCheckpoint {
  enum class End { none, partial, aside } end = End::none;
  std::string name;
  int64_t step = 0;
  bool own = false;                        ///< this program has made it, and it is as whole as its name says
  bool claims = false;                     ///< not own, but may be one of this program's that was damaged
  std::string why;                         ///< not own: what it is
  std::string run_id;                      ///< own: of the run that made it; "": an earlier version did not say
  std::string foreign;                     ///< own: what else lies in it, the first name; "": nothing
  int64_t bytes = 0;                       ///< own: what its removal frees
  bool is_whole() const { return own && end == End::none; }
};

/// All of `folder`, which may be a link, by step and name; none where it cannot be looked at.
std::vector<NamedCheckpoint> named_checkpoints(const std::string& folder);
/// The same of one name.
NamedCheckpoint named_checkpoint(const std::string& folder, const std::string& name);

/// Removes an own one: a whole one gets another name first, so that it is never seen half removed. Returns what had to
/// stay, a path; "": nothing. Throws UserError.
std::string remove_checkpoint(const std::string& folder, const NamedCheckpoint& checkpoint);

/// Gives the own `step`.partial in `folder` the name without an end; an own one of that name goes. Throws UserError.
void publish_checkpoint(const std::string& folder, int64_t step);

std::string partial_name(int64_t step);

}  // namespace blipft::io
