// The names of a run's trace files: one a rank, for each part of the run.
//
// A run that goes on from a checkpoint writes another part, beside the files of the parts before it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blipft/trace.h"

namespace blipft {

struct TraceFile {
  std::string path;
  int64_t part = 0, rank = 0;
  int64_t bytes = 0;                       ///< on the disk; of own_trace_files() alone
};

/// "trace.rank0003.h5" for part 0, "trace.part0001.rank0003.h5" for later ones.
std::string trace_file_name(int64_t part, int64_t rank);
/// The trace files of all parts and ranks in a folder, by part and rank; none where the folder does not exist. Throws
/// UserError when it cannot be read.
std::vector<TraceFile> find_trace_files(const std::string& folder);
/// The part that a run which goes on in `folder` writes: one more than the highest there of any rank; 0 where there are
/// none. Throws as find_trace_files() does.
int64_t next_trace_part(const std::string& folder);
/// Of the same folder those that this program has written, as their names (exactly those that trace_file_name() gives) and
/// what is in them say: HDF5 files with blipft as `creator`, also of a run that was killed. Links are none.
std::vector<TraceFile> own_trace_files(const std::string& folder);
/// Removes such files, and nothing that has taken the place of one. Throws UserError.
void remove_trace_files(const std::vector<TraceFile>& files);

/// Attributes `part` and `first_step` of a file; `first_step` is the step that the part begins with.
void note_part(Trace& trace, int64_t part, int64_t first_step);

}  // namespace blipft
