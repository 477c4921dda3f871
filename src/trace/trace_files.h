// The names of a run's trace files: one file per rank, for each part of the run.
//
// A run that resumes from a checkpoint writes another part next to the files of the earlier parts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blipft/trace.h"

namespace blipft {

struct TraceFile {
  std::string path;
  int64_t part = 0, rank = 0;
  int64_t bytes = 0;                       ///< size on the disk; only set by own_trace_files()
};

/// Returns "trace.rank0003.h5" for part 0, "trace.part0001.rank0003.h5" for later parts.
std::string trace_file_name(int64_t part, int64_t rank);
/// Returns the trace files of all parts and ranks in a folder, sorted by part and rank; none if the folder does not
/// exist. Throws UserError if the folder cannot be read.
std::vector<TraceFile> find_trace_files(const std::string& folder);
/// Returns the part number for a run that resumes in `folder`: the highest existing part of any rank plus one, or 0 if
/// there is none. Throws as find_trace_files() does.
int64_t next_trace_part(const std::string& folder);
/// Returns the trace files in `folder` that this program has written: their names are exactly those of
/// trace_file_name(), and they are HDF5 files with blipft as `creator`. Files of a run that was killed are included,
/// links are not.
std::vector<TraceFile> own_trace_files(const std::string& folder);
/// Removes such files. A file that has replaced one of them in the meantime stays. Throws UserError.
void remove_trace_files(const std::vector<TraceFile>& files);

/// Sets the attributes `part` and `first_step` of a trace; `first_step` is the first step of the part.
void note_part(Trace& trace, int64_t part, int64_t first_step);

}  // namespace blipft
