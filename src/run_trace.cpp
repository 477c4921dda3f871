// Filling the trace; see run_trace.h.
#include "run_trace.h"

#include <chrono>
#include <cstdio>
#include <ctime>

namespace blipft {

namespace {
// All ranks of a machine share this clock; machines are as close as their NTP keeps them.
int64_t host_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}
}  // namespace

std::string RunTrace::path(const Config& config, int64_t rank) {
  char name[32];
  std::snprintf(name, sizeof name, "/trace.rank%04lld.h5", static_cast<long long>(rank));
  return config.output.path + name;
}

RunTrace::RunTrace(const Config& config, const World& world, Device& device, const Comm& comm, const Model& model,
                   const Arena& arena, const SpanRecorder* spans)
    : trace_(config.trace.enabled ? open_trace(path(config, world.rank())) : make_null_trace()), spans_(spans),
      samples_(config.train.batch_size * config.train.accumulate_grad_batches) {
  align_clock(world, device);
  std::vector<std::string> units;
  for (const Unit* unit : model.units()) units.push_back(unit->name());
  trace_->set_names(units, SpanRecorder::phase_names());
  trace_->set_attribute("rank", static_cast<double>(world.rank()));
  trace_->set_attribute("world_size", static_cast<double>(world.size()));
  trace_->set_attribute("host", world.host());
  trace_->set_attribute("device", device.name());
  trace_->set_attribute("communication", comm.name());
  trace_->set_attribute("model", model.description());
  trace_->set_attribute("parameters", static_cast<double>(model.parameter_count()));
  trace_->set_attribute("config", to_yaml(config));
  trace_->set_attribute("commit", BLIPFT_COMMIT);
  trace_->set_attribute("start_unix_ns", static_cast<double>(start_ns_));
  trace_->set_attribute("planned_bytes", static_cast<double>(arena.total_bytes()));
  std::vector<PlanRecord> plan;
  for (const PlanEntry& entry : arena.peak_entries()) plan.push_back({entry.name, owner_name(entry.owner), entry.bytes});
  trace_->add(plan);
}

// The device's clock is read between two readings of the host's; the tightest of several tries tells the offset.
void RunTrace::align_clock(const World& world, Device& device) {
  start_ns_ = host_ns();
  world.broadcast(&start_ns_, sizeof start_ns_, 0);
  int64_t* slot = static_cast<int64_t*>(device.allocate_host(sizeof(int64_t)));
  void* memory = device.allocate(256);
  int64_t best = INT64_MAX;
  for (int i = 0; i < 8; ++i) {
    device.synchronize();
    const int64_t before = host_ns();
    device.timestamp(static_cast<int64_t*>(memory), device.compute_stream());
    device.synchronize();
    const int64_t after = host_ns();
    device.copy(slot, memory, sizeof(int64_t), device.compute_stream());
    device.synchronize();
    if (after - before < best) {
      best = after - before;
      device_offset_ns_ = (before + after) / 2 - *slot - start_ns_;
    }
  }
  device.free(memory);
  device.free_host(slot);
}

int64_t RunTrace::now_ns() const { return host_ns() - start_ns_; }

void RunTrace::step(const StepResult& result, int64_t epoch, double seconds, double flops, double data_wait,
                    const StepProgram&) {
  StepRecord record;
  record.step = result.step;
  record.epoch = epoch;
  record.loss = result.loss;
  record.lr = result.lr;
  record.grad_norm = result.grad_norm;
  record.samples_per_second = static_cast<double>(samples_) / seconds;
  record.tflops = flops / seconds * 1e-12;
  record.end_ns = result.end_ns ? result.end_ns + device_offset_ns_ : now_ns();
  record.begin_ns = result.begin_ns ? result.begin_ns + device_offset_ns_ : record.end_ns - static_cast<int64_t>(seconds * 1e9);
  record.data_wait_ns = static_cast<int64_t>(data_wait * 1e9);
  record.text_tokens = result.text_tokens;
  trace_->add(record);
  if (spans_) trace_->add(spans_->records(StepProgram::pass_name(result.text_tokens), result.step, result.stamps, device_offset_ns_));
}

void RunTrace::memory(int64_t step, const std::vector<Arena::PhaseUse>& phases) {
  std::vector<MemoryRecord> records;
  for (const Arena::PhaseUse& phase : phases)
    for (int i = 0; i < kOwners; ++i)
      records.push_back({step, phase.phase, owner_name(static_cast<Owner>(i)), now_ns(), phase.now.of(static_cast<Owner>(i))});
  trace_->add(records);
}

void RunTrace::close() { trace_->close(); }

}  // namespace blipft
