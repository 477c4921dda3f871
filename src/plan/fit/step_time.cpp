// The estimate; see step_time.h.
#include "plan/fit/step_time.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/settings.h"

namespace blipft {

namespace {

// Collectives slow down compute that runs at the same time: on four H200, a step of BLIP-2 under FSDP (reshard always,
// 16 x 4) takes 0.053 s longer than on one H200, with 0.19 s of gathers and reductions.
constexpr double kSlowedByCollectives = 0.27;
// The share of the link's time by which transfers slow down a step. This was not measured (in the measured steps the
// link took ten times as long as compute); the value is chosen so that offloading never looks free.
constexpr double kSlowedByLink = 0.1;
// A transient tensor is written once and read at least once.
constexpr double kAccesses = 2;
// The share of a backward's operations that compute weight gradients; these products write gradients while they
// compute.
constexpr double kWeightGradients = 0.5;
// Maximum number of recorded micro-batches: the first, one for all middle ones, which are equal, and the last.
constexpr int64_t kRecorded = 3;

double product_rate(const Config& config, const MachineRates& rates) {
  if (precision_types(config).compute == DType::bf16) return rates.bf16;
  return config.train.matmul_precision == MatmulPrecision::high ? rates.tf32 : rates.f32;
}

// Speed of matrix products with fp8 factors, relative to bf16.
constexpr double kFp8Speed = 1.8;

// Returns the share of a unit's matrix product operations whose factors are in fp8.
double fp8_share(const Unit& unit, const Fp8Products* fp8) {
  if (!fp8) return 0;
  double all = 0, in_fp8 = 0;
  for (const WeightMatrix& matrix : unit.matrices()) {
    const double size = static_cast<double>(matrix.in * matrix.out);
    all += size;
    if (fp8->takes(unit, matrix.offset)) in_fp8 += size;
  }
  return all > 0 ? in_fp8 / all : 0;
}

// Dry-runs a few micro-batches and estimates the step time from their spans.
class Estimate {
 public:
  Estimate(const Config& config, Model& model, const GroupSizes& ranks, bool hold, const TextShape& text,
           const MachineRates& rates)
      : config_(short_step(config)), model_(model), ranks_(ranks), rates_(rates),
        pass_(StepProgram::pass_name(text)), micro_batches_(config.steps.accumulate_grad_batches),
        plan_(record_plan(config_, model, ranks, hold, {text})) {}

  StepTime time() {
    for (const SpanRecord& span : plan_.spans->records(pass_, 0, {}, {}))
      if (span.unit >= 0) add(span, *model_.units()[static_cast<size_t>(span.unit)]);
    end_sweep();
    double transient = 0;
    for (const Owner owner : {Owner::activations, Owner::workspace})
      transient += static_cast<double>(plan_.arena->bytes_of_takes(pass_, owner));
    const double recorded = static_cast<double>(config_.steps.accumulate_grad_batches);
    time_.memory += kAccesses * transient * static_cast<double>(micro_batches_) / recorded / rates_.memory;
    // The recorded pass has about one kernel for each tensor that it reserves. std::hypot lets the minimum time of a
    // kernel count for short kernels only.
    const auto takes = static_cast<double>(plan_.arena->planned_takes());
    const double work = time_.products + time_.memory;
    time_.kernels = std::hypot(work, takes * static_cast<double>(micro_batches_) / recorded * rates_.kernel) - work;
    add_update();
    expose();
    return time_;
  }

 private:
  static Config short_step(const Config& config) {
    Config other = config;
    other.steps.accumulate_grad_batches = std::min(config.steps.accumulate_grad_batches, kRecorded);
    other.data.val_path.clear();           // no evaluation
    other.data.val_split_fraction = 0;
    other.trace.enabled = true;
    other.trace.spans = SpanTracing::units;
    return other;
  }

  // Returns how many micro-batches the recorded one of `span` represents.
  double share(const SpanRecord& span) const {
    const bool middle = span.micro_batch == 1 && config_.steps.accumulate_grad_batches == kRecorded;
    return middle ? static_cast<double>(micro_batches_ - kRecorded + 1) : 1;
  }

  double bytes_of(const Unit& unit, DType dtype) const {
    return static_cast<double>(unit.numel() * dtype_size(dtype));
  }

  void add(const SpanRecord& span, const Unit& unit) {
    switch (static_cast<RankOperation>(span.phase)) {
      case RankOperation::gather:
        add_streamed(span, unit);
        return add_collective(span, ranks_.shard, 1, rates_.gathers);
      case RankOperation::reduce_scatter: return add_collective(span, ranks_.shard, 1, rates_.collectives);
      case RankOperation::all_reduce:
        return add_collective(span, ranks_.hybrid() ? ranks_.replicate : ranks_.all(), 2, rates_.collectives);
      case RankOperation::forward:
      case RankOperation::recompute:
      case RankOperation::backward:
      case RankOperation::loss: return add_compute(span, unit);
      default: return;
    }
  }

  void add_streamed(const SpanRecord& span, const Unit& unit) {
    if (plan_.engine->store.weights_space() != MemorySpace::host) return;
    const auto bytes = static_cast<double>(plan_.engine->store.stored_bytes(unit));
    streamed_ += share(span) * bytes;
    const bool last = span.micro_batch + 1 == config_.steps.accumulate_grad_batches;
    if (last && !clips()) streamed_during_updates_ += bytes / 2;  // half: the gathers of the backward
  }

  // The forward or the backward of a micro-batch. Its collectives can hide only behind its own compute.
  struct Sweep {
    bool backward = false;
    double share = 1, compute = 0, collectives = 0;
  };
  void end_sweep() {
    // Collectives slow down compute while both run; after compute has ended, the step waits for the remaining
    // collectives.
    const double beside = std::min(sweep_.collectives, sweep_.compute);
    time_.collectives_exposed +=
        sweep_.share * (kSlowedByCollectives * beside + std::max(0.0, sweep_.collectives - sweep_.compute));
    sweep_ = {};
  }

  // Returns the seconds in which the link moves `in` and `out` bytes at the same time.
  double both_ways(double in, double out) const {
    return std::max(std::max(in, out) / rates_.link, (in + out) / rates_.link_both);
  }

  void add_collective(const SpanRecord& span, int64_t ranks, double ways, double rate) {
    const double n = static_cast<double>(ranks);
    const double seconds = ways * static_cast<double>(span.bytes) * (n - 1) / n / rate;
    time_.collectives += share(span) * seconds;
    sweep_.share = share(span);
    sweep_.collectives += seconds;
  }

  void add_compute(const SpanRecord& span, const Unit& unit) {
    const auto doing = static_cast<RankOperation>(span.phase);
    if (doing == RankOperation::forward && sweep_.backward) end_sweep();
    if (doing == RankOperation::loss) end_sweep();   // the loss ends the forward and is mostly backward
    sweep_.backward = doing != RankOperation::forward;
    const bool both = doing == RankOperation::loss, backward = doing == RankOperation::backward || both;
    const ParameterStore& store = plan_.engine->store;
    const PrecisionTypes& types = store.types();
    double bytes = 0, gradients = 0;
    if (span.flops > 0) bytes += (both ? 2 : 1) * bytes_of(unit, types.compute);
    const Fp8Products* const in_fp8 = plan_.engine->fp8.get();
    if (store.decodes(unit, in_fp8 ? AcceptedEncodings::fp8 : AcceptedEncodings::none)) bytes += static_cast<double>(store.gathered_bytes(unit)) + bytes_of(unit, types.compute);
    if (backward && unit.trainable) {
      const bool adds = span.micro_batch > 0 && (store.shards() == 1 || plan_.sharded.hold);
      gradients = (adds ? 2 : 1) * bytes_of(unit, types.gradient);
    }
    const double fp8 = rates_.fp8 > 0 ? fp8_share(unit, in_fp8) : 0;
    const double products = span.flops * ((1 - fp8) / product_rate(config_, rates_) + (fp8 > 0 ? fp8 / rates_.fp8 : 0));
    const double beside = kWeightGradients * products * (both ? 2.0 / 3 : 1);
    const double memory = bytes / rates_.memory + std::max(0.0, gradients / rates_.memory - beside);
    sweep_.share = share(span);
    sweep_.compute += products + memory;
    time_.products += share(span) * products;
    time_.memory += share(span) * memory;
    if (backward && span.micro_batch + 1 == config_.steps.accumulate_grad_batches) last_backward_ += products + memory;
  }

  void add_update() {
    double device = 0, read = 0, written = 0;
    const ParameterStore& store = plan_.engine->store;
    for (const Unit* unit : model_.units()) {
      const ParameterStore::UpdateTraffic traffic = store.update_traffic(*unit);
      device += static_cast<double>(traffic.device);
      read += static_cast<double>(traffic.host_read);
      written += static_cast<double>(traffic.host_written);
    }
    if (clips()) device += static_cast<double>(store.held_gradients().bytes());  // the norm reads all gradients
    time_.update = device / rates_.memory;
    updates_ = both_ways(read, written);
    // Activations go out in the forward and in again in the backward: never in both directions at once.
    const double activations = 2 * static_cast<double>(plan_.arena->bytes_of_host_takes(pass_) * micro_batches_) /
                               static_cast<double>(config_.steps.accumulate_grad_batches);
    time_.link = both_ways(read + streamed_during_updates_, written) +
                 (streamed_ - streamed_during_updates_ + activations) / rates_.link;
  }

  bool clips() const { return largest_norm(config_.train) > 0; }  // or the update waits for the norm for another reason

  void expose() {
    const double computed = time_.products + time_.memory + time_.update + time_.kernels;
    // Updates hide behind the last backward, or behind nothing if gradients are clipped. The link's total hides behind
    // the step.
    time_.link_exposed = std::max({kSlowedByLink * time_.link, updates_ - (clips() ? 0 : last_backward_),
                                   time_.link - computed});
  }

  Config config_;
  Model& model_;
  GroupSizes ranks_;
  const MachineRates& rates_;
  std::string pass_;
  int64_t micro_batches_;
  MemoryPlan plan_;
  StepTime time_;
  Sweep sweep_;
  double last_backward_ = 0;
  double streamed_ = 0, streamed_during_updates_ = 0;  // bytes of units that the host sends
  double updates_ = 0;                     // seconds of updates on the link
};

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", seconds < 1 ? 3 : 2, seconds);
  return text;
}

}  // namespace

namespace {

// Returns the rates of a GPU without measurements: an H200's measured rates, scaled by the ratio of the two data sheets
// for dense bf16 and TF32 products, f32, memory, NVLink and PCIe.
MachineRates from_data_sheet(const char* name, double bf16, double tf32, double f32, double memory, double nvlink,
                             double pcie, bool has_fp8 = true) {
  const double fp8 = has_fp8 ? bf16 * kFp8Speed : 0;
  const MachineRates& h200 = h200_rates();
  return {.name = name, .bf16 = h200.bf16 * bf16 / 989, .tf32 = h200.tf32 * tf32 / 494, .f32 = h200.f32 * f32 / 67,
          .fp8 = h200.bf16 * fp8 / 989, .memory = h200.memory * memory / 4.8,
          .collectives = h200.collectives * nvlink / 900, .gathers = h200.gathers * nvlink / 900,
          .link = h200.link * pcie / 5, .link_both = h200.link_both * pcie / 5, .kernel = h200.kernel,
          .measured = false};
}

}  // namespace

const MachineRates& h200_rates() {
  static const MachineRates rates{.name = "H200", .bf16 = 695e12, .tf32 = 280e12, .f32 = 695e12 * 67 / 989,
                                  .fp8 = 695e12 * kFp8Speed, .memory = 4.1e12, .collectives = 355e9, .gathers = 190e9,
                                  .link = 55e9, .link_both = 79e9, .kernel = 9e-6, .measured = true};
  return rates;
}

// Columns: TFLOP/s (bf16, TF32, f32), memory in TB/s, NVLink in GB/s of both directions, PCIe: 5 for generation 5, or
// 2.5 for generation 4.
const MachineRates& rates_of(const std::string& name) {
  static const std::vector<MachineRates> sheets = {
      from_data_sheet("H100 NVL", 835, 417, 60, 3.9, 600, 5), from_data_sheet("H100 PCIe", 756, 378, 51, 2.0, 600, 5),
      from_data_sheet("H100", 989, 494, 67, 3.35, 900, 5), from_data_sheet("H800", 989, 494, 67, 3.35, 400, 5),
      from_data_sheet("A100-PCIE-40GB", 312, 156, 19.5, 1.555, 600, 2.5, false),
      from_data_sheet("A100-SXM4-40GB", 312, 156, 19.5, 1.555, 600, 2.5, false),
      from_data_sheet("A100", 312, 156, 19.5, 2.039, 600, 2.5, false), from_data_sheet("B200", 2250, 1125, 80, 8, 1800, 5),
      from_data_sheet("L40S", 362, 183, 91.6, 0.864, 64, 2.5), from_data_sheet("A6000", 155, 77, 38.7, 0.768, 112, 2.5, false),
      from_data_sheet("RTX 4090", 165, 82.6, 82.6, 1.008, 64, 2.5)};
  for (const MachineRates& rates : sheets)
    if (name.find(rates.name) != std::string::npos) return rates;
  return h200_rates();
}

StepTime estimate_step_time(const Config& config, Model& model, const GroupSizes& ranks, bool hold,
                            const TextShape& text, const MachineRates& rates) {
  return Estimate(config, model, ranks, hold, text, rates).time();
}

std::string step_time_text(const StepTime& time) {
  std::string text = concat(seconds_text(time.total()), " s (products ", seconds_text(time.products), ", memory ",
                            seconds_text(time.memory), ", update ", seconds_text(time.update), ", kernels ",
                            seconds_text(time.kernels));
  if (time.collectives > 0)
    text += concat(", collectives ", seconds_text(time.collectives), " of which ",
                   seconds_text(time.collectives_exposed), " show");
  if (time.link > 0)
    text += concat(", link ", seconds_text(time.link), " of which ", seconds_text(time.link_exposed), " show");
  return text + ")";
}

std::string rates_text(const Config& config, const MachineRates& rates) {
  const bool bf16 = precision_types(config).compute == DType::bf16;
  char text[256];
  std::snprintf(text, sizeof text,
                "estimated by an %s's %s: %s products %.0f TFLOP/s, memory %.1f TB/s, collectives %.0f GB/s, link "
                "%.0f GB/s one way, %.0f both",
                rates.name, rates.measured ? "measured rates" : "data sheet", bf16 ? "bf16" : config.train.matmul_precision == MatmulPrecision::high ? "TF32" : "f32",
                product_rate(config, rates) / 1e12, rates.memory / 1e12, rates.collectives / 1e9, rates.link / 1e9,
                rates.link_both / 1e9);
  return text;
}

}  // namespace blipft
