// Printing; see progress.h.
#include "train/observers/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/memory_text.h"
#include "blipft/version.h"
#include "liveness/launcher.h"

namespace blipft {

namespace {

std::string time_text(double seconds) {
  const int64_t s = static_cast<int64_t>(seconds + 0.5);
  char text[64];
  if (s >= 3600)
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", static_cast<long long>(s / 3600),
                  static_cast<long long>(s / 60 % 60), static_cast<long long>(s % 60));
  else std::snprintf(text, sizeof text, "%lld:%02lld", static_cast<long long>(s / 60), static_cast<long long>(s % 60));
  return text;
}

// Uses GFLOP/s for small rates, because a CPU would have 0.0 TFLOP/s.
std::string flops_text(double flops) {
  char text[64];
  const bool few = flops < 0.1e12;
  std::snprintf(text, sizeof text, "%.1f %s", flops * (few ? 1e-9 : 1e-12), few ? "GFLOP/s" : "TFLOP/s");
  return text;
}

const char* phase_title(const std::string& phase) {
  if (phase == "before_forward") return "before forward";
  if (phase == "after_forward") return "after forward";
  if (phase == "after_backward") return "after backward";
  return "after optimizer";
}

}  // namespace

Progress::Progress(const Config& config, const Run& run, bool silent)
    : config_(config), run_(run), silent_(silent), terminal_(stdout_is_terminal()) {}

void Progress::end_line() {
  if (line_open_) std::printf("\n");
  line_open_ = false;
}

void Progress::count(const StepResult& result, double seconds) {
  if (steps_++ == 0) losses_.first = result.loss;
  if (steps_ == 2) timed_ = {};
  losses_.last = result.loss;
  timed_.seconds += seconds, ++timed_.steps, timed_.tokens += result.text_tokens;
}

// Returns "12.3 samples/s  456 tokens/s". Tokens are only for text models, because with pictures they do not determine
// the time.
std::string Progress::rates(double samples, double tokens, double seconds, const char* between) const {
  char text[96];
  const int size = std::snprintf(text, sizeof text, "%.1f samples/s", samples / seconds);
  if (run_.text_only)
    std::snprintf(text + size, sizeof text - static_cast<size_t>(size), "%s%.*f tokens/s", between, tokens < 10 * seconds ? 1 : 0,
                  tokens / seconds);
  return text;
}

void Progress::step(const StepEvent& event) {
  const auto& [result, epoch, seconds] = event;
  count(result, seconds);
  if (std::isfinite(result.loss)) losses_.of_epoch += result.loss, ++losses_.steps_of_epoch;
  const bool early = smooth_.seconds == 0 || result.step - run_.first_step <= 2;  // the first steps are slow
  const double newest = early ? 1 : 0.2;   // weight of the newest step
  smooth_.seconds += newest * (seconds - smooth_.seconds);
  smooth_.flops += newest * (result.flops - smooth_.flops);
  smooth_.tokens += newest * (result.text_tokens - smooth_.tokens);
  const bool last_of_epoch = (result.step + 1) % run_.steps_per_epoch == 0;
  const bool last = result.step + 1 == run_.total_steps;
  const Clock::time_point now = Clock::now();
  const double since = std::chrono::duration<double>(now - printed_).count();
  if (!silent_) {
    if (since >= (terminal_ ? 0.2 : config_.output.progress_seconds) || last || last_of_epoch ||
        result.step - run_.first_step < 2) {
      printed_ = now;
      const auto samples = static_cast<double>(run_.samples_per_step);
      const MemoryUnit unit(run_.memory_bytes);
      std::printf(
          "%sstep %lld/%lld  epoch %lld  loss %.4f  lr %.3g  grad norm %.4g  %s  %s/rank  "
          "%.2f %s  left %s%s",
          terminal_ ? "\r\033[K" : "", static_cast<long long>(result.step + 1),
          static_cast<long long>(run_.total_steps), static_cast<long long>(epoch), result.loss, result.lr,
          result.grad_norm, rates(samples, smooth_.tokens, smooth_.seconds, "  ").c_str(), flops_text(smooth_.flops / smooth_.seconds).c_str(), unit(run_.memory_bytes), unit.name,
          time_text(smooth_.seconds * static_cast<double>(run_.total_steps - result.step - 1)).c_str(),
          terminal_ ? "" : "\n");
      line_open_ = terminal_;
      std::fflush(stdout);
    }
    if (last_of_epoch || last) {
      end_line();
      std::printf("epoch %lld  average loss %.4f\n", static_cast<long long>(epoch), epoch_loss());
      std::fflush(stdout);
    }
  }
  if (last_of_epoch) losses_.of_epoch = 0, losses_.steps_of_epoch = 0;
}

void Progress::validation(const ValidationEvent& event) {
  if (silent_) return;
  const auto& [step, loss, tokens, seconds] = event;
  end_line();
  std::printf("validation after step %lld/%lld  loss %.4f  %lld tokens  %.2f s\n", static_cast<long long>(step + 1),
              static_cast<long long>(run_.total_steps), loss, static_cast<long long>(tokens), seconds);
  std::fflush(stdout);
}

void Progress::evaluation(const EvaluationEvent& event) {
  if (silent_) return;
  const auto& [step, found, seconds] = event;
  end_line();
  std::printf("evaluation after step %lld/%lld", static_cast<long long>(step + 1), static_cast<long long>(run_.total_steps));
  for (const Score& score : found.scores) std::printf("  %s %.4f", score.metric.c_str(), score.value);
  int64_t tokens = 0;
  for (const int64_t one : found.tokens) tokens += one;
  std::printf("  %lld samples  %lld tokens  %.2f s\n", static_cast<long long>(found.samples), static_cast<long long>(tokens),
              seconds);
  std::fflush(stdout);
}

void Progress::checkpoint(const Checkpoints::Outcome& written) {
  if (silent_) return;
  end_line();
  char waited[80] = "";
  if (written.waited_seconds >= 0.1)
    std::snprintf(waited, sizeof waited, " (%.2f s of it until the one before was on the disk)", written.waited_seconds);
  std::printf("checkpoint after step %lld/%lld  %s  %s  pause %.2f s%s  on the disk after %.2f s\n",
              static_cast<long long>(written.step), static_cast<long long>(run_.total_steps), written.folder.c_str(),
              memory_text(written.bytes).c_str(), written.pause_seconds, waited, written.write_seconds);
  std::fflush(stdout);
}

void Progress::warning(const std::string& message) {
  if (silent_) return;
  end_line();
  std::printf("warning: %s\n", message.c_str());
  std::fflush(stdout);
}

void Progress::memory(const MemoryEvent& event) {
  if (silent_ || config_.output.memory_every == 0) return;
  const int64_t step = event.step, reserved = event.device.memory().process;
  const MemoryUnit unit(reserved);
  std::vector<std::string> shown, lines;
  for (const Arena::PhaseUse& phase : event.arena.phases(event.pass)) {
    if (std::find(shown.begin(), shown.end(), phase.phase) != shown.end()) continue;  // only the first micro-batch is printed
    shown.push_back(phase.phase);
    const MemoryUse& now = phase.now;
    const int64_t params = now.of(Owner::parameters), grads = now.of(Owner::gradients);
    const int64_t optim = now.of(Owner::optimizer);
    char line[256];
    std::snprintf(line, sizeof line,
                  "%-15s Params %.2f  Grads %.2f  Optim %.2f  Other %.2f  Allocated %.2f (peak %.2f)  Reserved %.2f %s",
                  phase_title(phase.phase), unit(params), unit(grads), unit(optim), unit(now.total() - params - grads - optim),
                  unit(now.total()), unit(phase.peak.total()), unit(reserved), unit.name);
    lines.push_back(line);
  }
  const bool news = printed_memory_.insert(lines).second;
  if (!news && step > 1) return;
  end_line();
  for (const std::string& line : lines) std::printf("  memory step %lld %s\n", static_cast<long long>(step), line.c_str());
  std::fflush(stdout);
}

void Progress::print_totals(double train_seconds, int64_t peak_bytes) {
  if (silent_) return;
  end_line();
  const MemoryUnit unit(peak_bytes);
  std::printf("[done] train time %.2f s | peak memory %.2f %s | %s\n", train_seconds, unit(peak_bytes), unit.name,
              mean_rates(" | ").c_str());
  std::fflush(stdout);
}

std::string Progress::mean_rates(const char* between) const {
  const double samples = static_cast<double>(timed_.steps * run_.samples_per_step);
  return rates(samples, timed_.tokens, timed_.seconds > 0 ? timed_.seconds : 1, between);
}

std::string Progress::summary(int64_t bytes) const {
  char text[200];
  const MemoryUnit unit(bytes);
  std::snprintf(text, sizeof text, ", loss %.4f to %.4f, %s, %.2f %s a rank", losses_.first, losses_.last,
                mean_rates(", ").c_str(), unit(bytes), unit.name);
  return counted(steps_, "step") + " on " + counted(run_.ranks, "rank") + text;
}

void print_header(const Config& config, const Model& model, const std::string& world_text, const std::string& device_text,
                  const std::string& start_text, const std::string& batch_text, const std::string& plan_text) {
  std::printf("blipft %s  %s\n", version_commit(), config.file.c_str());
  std::printf("model      %s\n", model.description().c_str());
  std::printf(
      "parameters %.3f million, %.3f million trained, %s\n", static_cast<double>(model.parameter_count()) * 1e-6,
      static_cast<double>(model.trainable_parameter_count()) * 1e-6, choice_word(config.train.precision).data());
  std::printf("world      %s\n", world_text.c_str());
  std::printf("device     %s\n", device_text.c_str());
  std::printf("start      %s\n", start_text.c_str());
  std::printf("%s\n%s", batch_text.c_str(), plan_text.c_str());
  std::fflush(stdout);
}

}  // namespace blipft
