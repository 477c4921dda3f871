// The trace's tables: fields, units and descriptions, and how they become HDF5 compound datasets.
#include "trace/trace_tables.h"

#include <cstddef>

#include "blipft/error.h"

namespace blipft::io {

// A row is written exactly as it is in memory; padding would be written to the file.
static_assert(sizeof(StepRecord) == 11 * 8 && sizeof(SpanRecord) == 7 * 8 && sizeof(DeviceRecord) == 10 * 8);
static_assert(sizeof(MemoryRow) == 88 && sizeof(PlanRow) == 168 && sizeof(DroppedRow) == 24);
static_assert(sizeof(DriverMemoryRecord) == 8 * 8 && sizeof(ValidationRecord) == 5 * 8 && sizeof(KernelRow) == 56);
static_assert(sizeof(Fp8Record) == 6 * 8 && sizeof(StepSampleRecord) == 3 * 8);
static_assert(sizeof(KernelNameRow) == kernel_name && sizeof(EvaluationRow) == 72);
static_assert(sizeof(EvaluationSampleRow) == 8 + 3 * whole_text && sizeof(EvaluationTextRow) == 24 + whole_text);

// offsetof is well defined here: every row is a standard-layout type.
#define BLIPFT_FIELD(row, member, type, unit, description) \
  Field { #member, FieldType::type, offsetof(row, member), unit, description }

const TableSchema& step_schema() {
  static const TableSchema schema{"steps", "one row per optimizer step", sizeof(StepRecord), 1024, {
    BLIPFT_FIELD(StepRecord, step, i64, "1", "optimizer step, from 0 at the run's start"),
    BLIPFT_FIELD(StepRecord, epoch, i64, "1", "epoch, from 0"),
    BLIPFT_FIELD(StepRecord, loss, f64, "nat", "mean cross-entropy of the step's micro-batches"),
    BLIPFT_FIELD(StepRecord, lr, f64, "1", "learning rate of this step"),
    BLIPFT_FIELD(StepRecord, grad_norm, f64, "1", "2-norm of all gradients before clipping"),
    BLIPFT_FIELD(StepRecord, samples_per_second, f64, "1/s",
                 "samples of this rank per second, since the end of the step before"),
    BLIPFT_FIELD(StepRecord, tflops, f64, "TFLOP/s",
                 "model floating-point operations of this rank per second, over the same time"),
    BLIPFT_FIELD(StepRecord, begin_ns, i64, "ns", "begin of the step, since the run's start"),
    BLIPFT_FIELD(StepRecord, end_ns, i64, "ns", "end of the step, since the run's start"),
    BLIPFT_FIELD(StepRecord, data_wait_ns, i64, "ns", "time that the step waited for its batch"),
    BLIPFT_FIELD(StepRecord, text_tokens, i64, "1",
                 "text rows of a sample, padding included; of packed samples their mean, rounded")}};
  return schema;
}

const TableSchema& span_schema() {
  static const TableSchema schema{"spans", "one row per piece of work on a stream", sizeof(SpanRecord), 4096, {
    BLIPFT_FIELD(SpanRecord, step, i64, "1", "optimizer step, from 0"),
    BLIPFT_FIELD(SpanRecord, micro_batch, i32, "1", "micro-batch within the step, from 0"),
    BLIPFT_FIELD(SpanRecord, unit, i32, "1", "index into /units, -1: the work belongs to no unit"),
    BLIPFT_FIELD(SpanRecord, phase, phase, "1", "index into /phases"),
    BLIPFT_FIELD(SpanRecord, stream, stream, "1", "0 compute, 1 communication, 2 copy, 3 host"),
    BLIPFT_FIELD(SpanRecord, begin_ns, i64, "ns", "begin of the work, since the run's start"),
    BLIPFT_FIELD(SpanRecord, end_ns, i64, "ns", "end of the work, since the run's start"),
    BLIPFT_FIELD(SpanRecord, bytes, i64, "B", "bytes moved by a collective or a copy, else 0"),
    BLIPFT_FIELD(SpanRecord, flops, f64, "FLOP", "floating-point operations of compute, else 0")}};
  return schema;
}

const TableSchema& memory_schema() {
  static const TableSchema schema{"memory", "memory in use by owner, at named moments of a step", sizeof(MemoryRow),
                                  1024, {
    BLIPFT_FIELD(MemoryRow, step, i64, "1", "optimizer step, from 0"),
    BLIPFT_FIELD(MemoryRow, phase, short_string, "",
                 "moment: before_forward, after_forward, after_backward, after_optimizer, peak"),
    BLIPFT_FIELD(MemoryRow, owner, short_string, "", "what holds the memory: parameters, gradients, ..."),
    BLIPFT_FIELD(MemoryRow, time_ns, i64, "ns", "time of the measurement, since the run's start"),
    BLIPFT_FIELD(MemoryRow, bytes, i64, "B", "memory in use")}};
  return schema;
}

namespace {
TableSchema plan_rows(const char* name, const char* description) {
  return {name, description, sizeof(PlanRow), 256,
          {BLIPFT_FIELD(PlanRow, name, long_string, "", "buffer"),
           BLIPFT_FIELD(PlanRow, owner, short_string, "", "what holds the memory, as in /memory"),
           BLIPFT_FIELD(PlanRow, bytes, i64, "B", "size at the predicted peak")}};
}
}  // namespace

const TableSchema& plan_schema() {
  static const TableSchema schema = plan_rows("plan", "memory as planned before the run, one row per buffer");
  return schema;
}

const TableSchema& host_plan_schema() {
  static const TableSchema schema =
      plan_rows("host_plan", "page-locked host memory as planned before the run, one row per buffer");
  return schema;
}

const TableSchema& device_schema() {
  static const TableSchema schema{"device", "samples of the device's state; NaN and 0 B: unknown", sizeof(DeviceRecord),
                                  1024, {
    BLIPFT_FIELD(DeviceRecord, time_ns, i64, "ns", "time of the sample, since the run's start"),
    BLIPFT_FIELD(DeviceRecord, utilization, f64, "%", "share of time with a kernel running"),
    BLIPFT_FIELD(DeviceRecord, power_watts, f64, "W", "power draw"),
    BLIPFT_FIELD(DeviceRecord, sm_mhz, f64, "MHz", "clock of the multiprocessors"),
    BLIPFT_FIELD(DeviceRecord, memory_mhz, f64, "MHz", "clock of the memory"),
    BLIPFT_FIELD(DeviceRecord, temperature_c, f64, "degC", "temperature of the chip"),
    BLIPFT_FIELD(DeviceRecord, memory_bytes, i64, "B", "memory used on the device, by everybody"),
    BLIPFT_FIELD(DeviceRecord, host_rss_bytes, i64, "B", "resident memory of this process on the host"),
    BLIPFT_FIELD(DeviceRecord, gpu_joules, f64, "J", "energy of this rank's GPU since the first sample"),
    BLIPFT_FIELD(DeviceRecord, cpu_joules, f64, "J",
                 "energy of the machine's CPU packages since the first sample; on the machine's first rank alone")}};
  return schema;
}

const TableSchema& driver_memory_schema() {
  static const TableSchema schema{"driver_memory",
                                  "memory of this process on its device as the driver reports it, and its parts",
                                  sizeof(DriverMemoryRecord), 64, {
    BLIPFT_FIELD(DriverMemoryRecord, step, i64, "1", "step that has finished, -1: the end of the set-up"),
    BLIPFT_FIELD(DriverMemoryRecord, time_ns, i64, "ns", "time of the measurement, since the run's start"),
    BLIPFT_FIELD(DriverMemoryRecord, total_bytes, i64, "B", "all memory of this process, as the driver reports"),
    BLIPFT_FIELD(DriverMemoryRecord, context_bytes, i64, "B", "CUDA context and libraries, before NCCL and the arena"),
    BLIPFT_FIELD(DriverMemoryRecord, nccl_bytes, i64, "B", "taken by NCCL when it started"),
    BLIPFT_FIELD(DriverMemoryRecord, allocated_bytes, i64, "B", "the arena, and what else the program has allocated"),
    BLIPFT_FIELD(DriverMemoryRecord, unplanned_bytes, i64, "B", "total_bytes minus the parts above"),
    BLIPFT_FIELD(DriverMemoryRecord, planned_bytes, i64, "B", "prediction of total_bytes, made before the run")}};
  return schema;
}

const TableSchema& validation_schema() {
  static const TableSchema schema{"validation", "one row per validation, the same on every rank",
                                  sizeof(ValidationRecord), 64, {
    BLIPFT_FIELD(ValidationRecord, step, i64, "1", "the last optimizer step before it"),
    BLIPFT_FIELD(ValidationRecord, time_ns, i64, "ns", "its end, since the run's start"),
    BLIPFT_FIELD(ValidationRecord, loss, f64, "nat",
                 "mean cross-entropy of the validation samples' labels, without dropout; with "
                 "train.loss_normalization micro_batch the mean of the micro-batches' means"),
    BLIPFT_FIELD(ValidationRecord, tokens, i64, "1", "number of labels on all ranks"),
    BLIPFT_FIELD(ValidationRecord, seconds, f64, "s", "time that the run spent on it")}};
  return schema;
}

const TableSchema& evaluation_schema() {
  static const TableSchema schema{"evaluation", "one row per score of texts generated at a validation, the same on every rank",
                                  sizeof(EvaluationRow), 64, {
    BLIPFT_FIELD(EvaluationRow, step, i64, "1", "the last optimizer step before it"),
    BLIPFT_FIELD(EvaluationRow, time_ns, i64, "ns", "its end, since the run's start"),
    BLIPFT_FIELD(EvaluationRow, metric, short_string, "", "cider, bleu4, exact_match, ..."),
    BLIPFT_FIELD(EvaluationRow, value, f64, "1", "the score of all samples; not percent"),
    BLIPFT_FIELD(EvaluationRow, samples, i64, "1", "samples that were scored"),
    BLIPFT_FIELD(EvaluationRow, seconds, f64, "s", "time that the run spent on generation and all scores")}};
  return schema;
}

const TableSchema& evaluation_sample_schema() {
  static const TableSchema schema{"evaluation_samples", "the samples that are answered at validations; on rank 0",
                                  sizeof(EvaluationSampleRow), 16, {
    BLIPFT_FIELD(EvaluationSampleRow, sample, i64, "1", "its number, as in /evaluation_texts"),
    BLIPFT_FIELD(EvaluationSampleRow, picture, text, "", "file of its picture, or its name in an archive; empty: none"),
    BLIPFT_FIELD(EvaluationSampleRow, prompt, text, "", "what was asked; longer ones are cut"),
    BLIPFT_FIELD(EvaluationSampleRow, references, text, "", "what would be right, a line each; longer ones are cut")}};
  return schema;
}

const TableSchema& evaluation_text_schema() {
  static const TableSchema schema{"evaluation_texts", "what was generated at validations, one row per sample; on rank 0",
                                  sizeof(EvaluationTextRow), 16, {
    BLIPFT_FIELD(EvaluationTextRow, step, i64, "1", "the last optimizer step before it"),
    BLIPFT_FIELD(EvaluationTextRow, sample, i64, "1", "number of the sample, as in /evaluation_samples"),
    BLIPFT_FIELD(EvaluationTextRow, tokens, i64, "1", "tokens that were generated"),
    BLIPFT_FIELD(EvaluationTextRow, text, text, "", "the answer; longer ones are cut")}};
  return schema;
}

const TableSchema& kernel_schema() {
  static const TableSchema schema{"kernels", "kernels, copies and fills on the device, of the steps in trace.kernels",
                                  sizeof(KernelRow), 4096, {
    BLIPFT_FIELD(KernelRow, step, i64, "1", "optimizer step, from 0"),
    BLIPFT_FIELD(KernelRow, begin_ns, i64, "ns", "begin, since the run's start"),
    BLIPFT_FIELD(KernelRow, end_ns, i64, "ns", "end, since the run's start"),
    BLIPFT_FIELD(KernelRow, bytes, i64, "B", "bytes of a copy or a fill, else 0"),
    BLIPFT_FIELD(KernelRow, graph_node, i64, "1", "number of the CUDA graph's node, 0: launched outside of a graph"),
    BLIPFT_FIELD(KernelRow, name, i32, "1", "row of /kernel_names"),
    BLIPFT_FIELD(KernelRow, kind, kernel_kind, "1", "0 kernel, 1 copy, 2 fill"),
    BLIPFT_FIELD(KernelRow, stream, i32, "1", "the driver's number of the CUDA stream"),
    BLIPFT_FIELD(KernelRow, device, i32, "1", "number of the device among those of the process")}};
  return schema;
}

const TableSchema& kernel_name_schema() {
  static const TableSchema schema{"kernel_names", "names of kernels and copies, as /kernels.name counts them",
                                  sizeof(KernelNameRow), 64, {
    BLIPFT_FIELD(KernelNameRow, name, kernel_string, "", "demangled; longer ones are cut")}};
  return schema;
}

const TableSchema& fp8_schema() {
  static const TableSchema schema{"fp8", "factors of products in fp8, of this rank, in steps of trace.fp8_every", sizeof(Fp8Record),
                                  1024, {
    BLIPFT_FIELD(Fp8Record, step, i64, "1", "optimizer step, from 0"),
    BLIPFT_FIELD(Fp8Record, matrix, i32, "1", "index into /fp8_matrices"),
    BLIPFT_FIELD(Fp8Record, factor, fp8_factor, "1", "of y = x w^T: 0 x, 1 w, 2 dy, the gradient of y"),
    BLIPFT_FIELD(Fp8Record, amax, f64, "1",
                 "the largest magnitude over micro-batches; infinite or NaN: an element is not finite"),
    BLIPFT_FIELD(Fp8Record, elements, i64, "1", "elements over micro-batches; 0: they were not counted"),
    BLIPFT_FIELD(Fp8Record, underflows, i64, "1", "of these, not zero, but zero as a code"),
    BLIPFT_FIELD(Fp8Record, not_finite, i64, "1", "of these, infinite or NaN; all others are within the range of codes")}};
  return schema;
}

const TableSchema& step_sample_schema() {
  static const TableSchema schema{"step_samples", "samples that each step trained on, of this rank, if trace.samples is true",
                                  sizeof(StepSampleRecord), 4096, {
    BLIPFT_FIELD(StepSampleRecord, step, i64, "1", "optimizer step, from 0"),
    BLIPFT_FIELD(StepSampleRecord, micro_batch, i32, "1", "micro-batch of the step, from 0"),
    BLIPFT_FIELD(StepSampleRecord, place, i32, "1", "place in the micro-batch, from 0"),
    BLIPFT_FIELD(StepSampleRecord, sample, i64, "1", "number of the sample in the data set, from 0 in the order of the files")}};
  return schema;
}

const TableSchema& dropped_schema() {
  static const TableSchema schema{"dropped", "spans that were not recorded because the disk was too slow; no row: none",
                                  sizeof(DroppedRow), 64, {
    BLIPFT_FIELD(DroppedRow, first_step, i64, "1", "first step of the lost spans"),
    BLIPFT_FIELD(DroppedRow, last_step, i64, "1", "last step of the lost spans"),
    BLIPFT_FIELD(DroppedRow, spans, i64, "1", "number of lost spans")}};
  return schema;
}

#undef BLIPFT_FIELD

namespace {

Hdf5Handle string_type(size_t bytes, const std::string& path) {
  Hdf5Handle type = own(H5Tcopy(H5T_C_S1), H5Tclose, path, "making a string type");
  check(H5Tset_size(type.get(), bytes), path, "sizing a string type");
  check(H5Tset_cset(type.get(), H5T_CSET_UTF8), path, "choosing UTF-8");
  check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), path, "choosing the padding");
  return type;
}

/// Returns an int32 type whose values have names: readers see numbers; h5dump and h5py also show the names.
Hdf5Handle enum_type(const std::vector<std::string>& names, const std::string& path) {
  Hdf5Handle type = own(H5Tenum_create(H5T_NATIVE_INT32), H5Tclose, path, "making an enum type");
  for (size_t i = 0; i < names.size(); ++i) {
    const auto value = static_cast<int32_t>(i);
    check(H5Tenum_insert(type.get(), names[i].c_str(), &value), path, "adding a name to an enum type");
  }
  return type;
}

Hdf5Handle field_type(FieldType type, const std::vector<std::string>& phases, const std::string& path) {
  const auto copy = [&](hid_t native) { return own(H5Tcopy(native), H5Tclose, path, "copying a type"); };
  switch (type) {
    case FieldType::i32: return copy(H5T_NATIVE_INT32);
    case FieldType::i64: return copy(H5T_NATIVE_INT64);
    case FieldType::f64: return copy(H5T_NATIVE_DOUBLE);
    case FieldType::short_string: return string_type(short_name, path);
    case FieldType::long_string: return string_type(long_name, path);
    case FieldType::kernel_string: return string_type(kernel_name, path);
    case FieldType::text: return string_type(whole_text, path);
    case FieldType::fp8_factor: return enum_type({"x", "w", "dy"}, path);
    case FieldType::kernel_kind: return enum_type({"kernel", "copy", "fill"}, path);
    case FieldType::phase: return phases.empty() ? copy(H5T_NATIVE_INT32) : enum_type(phases, path);
    case FieldType::stream: return enum_type({"compute", "communication", "copy", "host"}, path);
  }
  throw Error("unknown field type");
}

}  // namespace

Table::Table(hid_t file, const std::string& path, const TableSchema& schema, const std::vector<std::string>& phases)
    : path_(path), schema_(&schema) {
  type_ = own(H5Tcreate(H5T_COMPOUND, schema.row_bytes), H5Tclose, path, "making a compound type");
  for (const Field& field : schema.fields) {
    const Hdf5Handle type = field_type(field.type, phases, path);
    check(H5Tinsert(type_.get(), field.name, field.offset, type.get()), path, "adding a field");
  }
  const hsize_t none = 0, unlimited = H5S_UNLIMITED, chunk = schema.chunk_rows;
  const Hdf5Handle space = own(H5Screate_simple(1, &none, &unlimited), H5Sclose, path, "making a data space");
  const Hdf5Handle properties = own(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, path, "making a property list");
  check(H5Pset_chunk(properties.get(), 1, &chunk), path, "choosing chunks");
  dataset_ = own(H5Dcreate2(file, schema.name, type_.get(), space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT),
                 H5Dclose, path, "creating a dataset");
  write_attribute(dataset_.get(), path, "description", schema.description);
  for (const Field& field : schema.fields) {
    write_attribute(dataset_.get(), path, std::string(field.name) + ".unit", field.unit);
    write_attribute(dataset_.get(), path, std::string(field.name) + ".description", field.description);
  }
}

void Table::append(const void* rows, size_t count) {
  if (count == 0) return;
  const hsize_t add = count, total = rows_ + add;
  check(H5Dset_extent(dataset_.get(), &total), path_, "extending a dataset");
  const Hdf5Handle in_file = own(H5Dget_space(dataset_.get()), H5Sclose, path_, "asking for a data space");
  check(H5Sselect_hyperslab(in_file.get(), H5S_SELECT_SET, &rows_, nullptr, &add, nullptr), path_, "selecting rows");
  const Hdf5Handle in_memory = own(H5Screate_simple(1, &add, nullptr), H5Sclose, path_, "making a data space");
  check(H5Dwrite(dataset_.get(), type_.get(), in_memory.get(), in_file.get(), H5P_DEFAULT, rows), path_,
        "writing rows");
  check(H5Dflush(dataset_.get()), path_, "flushing a dataset");
  rows_ = total;
}

void Table::abandon() {
  type_.abandon();
  dataset_.abandon();
}

void write_attribute(hid_t object, const std::string& path, const std::string& name, const std::string& value) {
  const Hdf5Handle type = string_type(H5T_VARIABLE, path);
  const Hdf5Handle space = own(H5Screate(H5S_SCALAR), H5Sclose, path, "making a data space");
  const Hdf5Handle attribute = own(H5Acreate2(object, name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT),
                                   H5Aclose, path, "creating an attribute");
  const char* text = value.c_str();
  check(H5Awrite(attribute.get(), type.get(), &text), path, "writing an attribute");
}

void write_attribute(hid_t object, const std::string& path, const std::string& name, double value) {
  const Hdf5Handle space = own(H5Screate(H5S_SCALAR), H5Sclose, path, "making a data space");
  const Hdf5Handle attribute =
      own(H5Acreate2(object, name.c_str(), H5T_NATIVE_DOUBLE, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose, path,
          "creating an attribute");
  check(H5Awrite(attribute.get(), H5T_NATIVE_DOUBLE, &value), path, "writing an attribute");
}

void write_strings(hid_t file, const std::string& path, const std::string& name, const std::string& description,
                   const std::vector<std::string>& values) {
  const Hdf5Handle type = string_type(H5T_VARIABLE, path);
  const hsize_t count = values.size();
  const Hdf5Handle space = own(H5Screate_simple(1, &count, nullptr), H5Sclose, path, "making a data space");
  const Hdf5Handle dataset =
      own(H5Dcreate2(file, name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
          H5Dclose, path, "creating a dataset");
  std::vector<const char*> texts;
  for (const std::string& value : values) texts.push_back(value.c_str());
  if (!texts.empty())
    check(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, texts.data()), path, "writing names");
  write_attribute(dataset.get(), path, "description", description);
  write_attribute(dataset.get(), path, "unit", "");
}

}  // namespace blipft::io
