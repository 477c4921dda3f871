// The trace's tables. Each record type has a row layout in the file, a list of fields with units and descriptions, and
// an extendable dataset of such rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blipft/trace.h"
#include "io/hdf5_handle.h"

namespace blipft::io {

/// Sizes of the fixed-length strings in bytes; the last byte is always 0.
constexpr size_t short_name = 32, long_name = 128, kernel_name = 512, whole_text = 1024;

// Rows have no padding: members are ordered so that the compiler adds none (checked in trace_tables.cpp). StepRecord,
// SpanRecord, DeviceRecord, DriverMemoryRecord, Fp8Record and StepSampleRecord are written unchanged. The rows below
// replace records that contain std::string.
struct MemoryRow {
  int64_t step = 0;
  char phase[short_name] = {};
  char owner[short_name] = {};
  int64_t time_ns = 0;
  int64_t bytes = 0;
};
struct PlanRow {
  char name[long_name] = {};
  char owner[short_name] = {};
  int64_t bytes = 0;
};
struct EvaluationRow {
  int64_t step = 0, time_ns = 0;
  char metric[short_name] = {};
  double value = 0;
  int64_t samples = 0;
  double seconds = 0;
};
struct EvaluationSampleRow {
  int64_t sample = 0;
  char picture[whole_text] = {}, prompt[whole_text] = {}, references[whole_text] = {};
};
struct EvaluationTextRow {
  int64_t step = 0, sample = 0, tokens = 0;
  char text[whole_text] = {};
};
/// A KernelRecord whose name is replaced by the index of its row in /kernel_names.
struct KernelRow {
  int64_t step = 0, begin_ns = 0, end_ns = 0, bytes = 0, graph_node = 0;
  int32_t name = 0, kind = 0, stream = 0, device = 0;
};
struct KernelNameRow {
  char name[kernel_name] = {};
};
/// Spans that were dropped because the writer thread was too slow.
struct DroppedRow {
  int64_t first_step = 0, last_step = 0, spans = 0;
};

enum class FieldType { i32, i64, f64, short_string, long_string, kernel_string, text, phase, stream, kernel_kind, fp8_factor };

struct Field {
  const char* name;
  FieldType type;
  size_t offset;                 ///< byte offset in the row
  const char* unit;              ///< "1" for plain numbers, "" for names
  const char* description;
};

struct TableSchema {
  const char* name;
  const char* description;
  size_t row_bytes;
  size_t chunk_rows;
  std::vector<Field> fields;
};

const TableSchema& step_schema();
const TableSchema& span_schema();
const TableSchema& memory_schema();
const TableSchema& plan_schema();
const TableSchema& host_plan_schema();
const TableSchema& device_schema();
const TableSchema& driver_memory_schema();
const TableSchema& validation_schema();
const TableSchema& evaluation_schema();
const TableSchema& evaluation_sample_schema();
const TableSchema& evaluation_text_schema();
const TableSchema& kernel_schema();
const TableSchema& kernel_name_schema();
const TableSchema& fp8_schema();
const TableSchema& step_sample_schema();
const TableSchema& dropped_schema();

/// A dataset of rows that grows at its end.
class Table {
 public:
  Table() = default;
  /// Creates /<schema.name> with its attributes. `phases` become the names of the enum type.
  Table(hid_t file, const std::string& path, const TableSchema& schema, const std::vector<std::string>& phases);
  /// Appends `count` rows of schema.row_bytes each and flushes the dataset.
  void append(const void* rows, size_t count);
  /// Drops the HDF5 identifiers without closing them.
  void abandon();

 private:
  std::string path_;
  const TableSchema* schema_ = nullptr;
  Hdf5Handle type_, dataset_;
  hsize_t rows_ = 0;
};

/// Writes an attribute of an object; a string may have any length and is UTF-8.
void write_attribute(hid_t object, const std::string& path, const std::string& name, const std::string& value);
void write_attribute(hid_t object, const std::string& path, const std::string& name, double value);
/// Writes a one-dimensional dataset of UTF-8 strings.
void write_strings(hid_t file, const std::string& path, const std::string& name, const std::string& description,
                   const std::vector<std::string>& values);

}  // namespace blipft::io
