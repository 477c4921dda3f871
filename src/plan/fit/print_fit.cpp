// --plan --fit: settings under which a run fits a GPU of a given size, and larger changes if none fit.
#include "plan/print_plan.h"

#include <algorithm>
#include <cstdio>

#include "base/memory_text.h"
#include "checkpoint/resume.h"
#include "engine/placement.h"
#include "engine/settings.h"
#include "plan/batch_choice.h"
#include "plan/fit/fit_search.h"
#include "weights/adapter_files.h"

namespace blipft {

namespace {

constexpr size_t kMaxRows = 6;
constexpr int64_t kMaxRanks = 64;

void print_header_of_rows() { std::printf("  %9s  %11s  %11s  %s\n", "step, s", "GPU", "host, rank", "settings"); }

void print_row(const FitRow& row) {
  std::printf("  %9.3f  %11s  %11s  %s\n", row.time.total(), memory_text(row.device_bytes).c_str(),
              row.host_bytes > 0 ? memory_text(row.host_bytes).c_str() : "-",
              row.overrides.empty() ? "as the run file says" : row.overrides.c_str());
}

// Prints other kinds of runs that fit, one row each, after a heading before the first row.
class Others {
 public:
  explicit Others(const char* heading) : heading_(heading) {}
  void add(const FitResult& result) {
    if (result.rows.empty()) return;
    if (!begun_) {
      std::printf("%s\n", heading_);
      print_header_of_rows();
    }
    begun_ = true;
    print_row(result.rows.front());
  }
  bool any() const { return begun_; }

 private:
  const char* heading_;
  bool begun_ = false;
};

// Returns the config for `ranks` ranks with the same samples per step, or one sample per rank if these do not divide.
Config on_ranks(const Config& resolved, int64_t world, int64_t ranks) {
  Config other = resolved;
  const int64_t samples = samples_of_a_step(resolved, world);
  if (chooses_batch_size(resolved) && samples >= ranks) return other;
  const bool divides = samples % ranks == 0 && samples / ranks <= kMaxSamplesAtOnce;
  other.steps.batch_size = divides ? samples / ranks : 1;
  other.steps.accumulate_grad_batches = 1;
  if (!divides) other.steps.total_batch_size = 0;
  return other;
}

// Prints the run with frozen layers in 4 bits. This row is separate because quantization changes results.
void print_quantised(const FitSearch& search, const Config& requested, int64_t world) {
  if (requested.model.quantize != WeightQuantization::none) return;
  Others quantised("with frozen layers in 4 bits, which changes the numerics:");
  Config other = requested;
  other.model.quantize = WeightQuantization::nf4;
  quantised.add(search.search(other, world, 1));
}

// Prints the runs that train adapters rather than all parameters, and the smallest number of ranks that fits.
void print_what_would(const FitSearch& search, const Config& requested, int64_t world) {
  if (requested.adapter.kind == AdapterKind::none) {
    Others adapters("with adapters trained in place of the model:");
    for (const WeightQuantization quantize : {WeightQuantization::none, WeightQuantization::nf4}) {
      Config other = requested;
      other.adapter.kind = AdapterKind::lora;
      other.model.quantize = quantize;
      if (other.output.save != SavedTensors::all) continue;  // output.save: trained does not apply to adapters
      adapters.add(search.search(other, world, 1));
    }
  }
  const Config resolved = resolve_for_ranks(requested, world);
  for (int64_t ranks = 2 * world; ranks <= kMaxRanks; ranks *= 2) {
    const std::string heading = concat("on ", ranks, " GPUs of one machine or alike (--ranks ", ranks, "):");
    Others more(heading.c_str());
    more.add(search.search(on_ranks(resolved, world, ranks), ranks, 1));
    if (more.any()) break;
  }
}

// Prints the settings that a run of this file would choose: it keeps parallel.strategy and avoids host memory.
void print_choice(const FitSearch& search, const Config& requested, int64_t world, int64_t gpu_bytes) {
  const FitResult found = search.choose(world, 2);
  if (found.rows.empty()) return void(std::printf("train.batch_size: auto chooses none: nothing that the run file leaves open fits\n"));
  std::printf("train.batch_size: auto chooses %s%s\n", choice_text(found.rows, gpu_bytes).c_str(),
              faster_text(search, requested, found.rows.front(), world, 0).c_str());
}

}  // namespace

bool print_fit(const Config& requested, int64_t ranks, int64_t node_ranks, double gpu_gib) {
  const int64_t world = planned_groups(requested, ranks, node_ranks).all();
  Config config = resolve_for_ranks(requested, world);
  const bool chooses = chooses_batch_size(config);
  if (chooses) config = before_choice(config, world);
  check_resume_folder(config);
  const int64_t gpu = static_cast<int64_t>(gpu_gib * (int64_t{1} << 30));
  const RunModel models(config);
  const std::unique_ptr<Model> model = models.make(config);
  check_adapters({config.model, config.adapter, config}, model->units());
  const PlannedTexts texts(config, model->inputs(), world);
  const FitSearch search(requested, node_ranks, gpu, texts, models);
  const std::string cut = chooses ? concat("train.batch_size auto") :
      concat(config.steps.batch_size, " x ", config.steps.accumulate_grad_batches);
  std::printf("%s\n%ssamples a step: %lld (%s on each of %lld rank(s))\n%s\n", model->description().c_str(),
              texts.text().c_str(), static_cast<long long>(samples_of_a_step(config, world)), cut.c_str(),
              static_cast<long long>(world), rates_text(config).c_str());
  if (chooses) print_choice(search, requested, world, gpu);
  const FitResult found = search.search(requested, world, kMaxRows);
  const bool fits = !found.rows.empty();
  std::printf("of %lld settings %s a GPU of %s%s\n", static_cast<long long>(found.candidates),
              fits ? "these fit" : "none fits", memory_text(gpu).c_str(),
              fits ? ", the fastest first, each further one takes less:" : "; this comes nearest:");
  print_header_of_rows();
  for (const FitRow& row : found.rows) print_row(row);
  if (found.nearest) print_row(*found.nearest);
  print_quantised(search, requested, world);
  if (!fits) print_what_would(search, requested, world);
  return fits;
}

}  // namespace blipft
