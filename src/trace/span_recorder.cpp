// Recording of spans; see span_recorder.h.
#include "trace/span_recorder.h"

#include <algorithm>
#include <iterator>

namespace blipft {

const std::vector<std::string>& SpanRecorder::phase_names() {
  static constexpr const char* kNames[] = {"forward", "recompute", "backward", "loss", "gather", "reduce_scatter",
                                           "all_reduce", "optimizer", "step", "data_wait"};
  static_assert(std::size(kNames) == kTracedOperations);
  static const std::vector<std::string> names(std::begin(kNames), std::end(kNames));
  return names;
}

void SpanRecorder::bind(Device* device, const Tensor& stamps) {
  device_ = device;
  stamps_ = stamps;
}

void SpanRecorder::begin_pass(const std::string& pass, Flops flops) {
  BLIPFT_CHECK(open_.empty(), "a span is still open");
  pass_ = pass;
  flops_ = std::move(flops);
  passes_[pass_].clear();
  micro_batch_ = 0;
}

const std::vector<SpanRecord>& SpanRecorder::current() const { return passes_.at(pass_); }

int64_t SpanRecorder::max_spans() const {
  size_t maximum = 0;
  for (const auto& [pass, spans] : passes_) maximum = std::max(maximum, spans.size());
  return static_cast<int64_t>(maximum);
}

void SpanRecorder::open(RankOperation doing, int32_t unit, int32_t stream_number, int64_t bytes, double flops, Stream stream) {
  std::vector<SpanRecord>& spans = passes_.at(pass_);
  SpanRecord span;
  span.micro_batch = micro_batch_;
  span.unit = unit;
  span.phase = static_cast<int32_t>(doing);
  span.stream = stream_number;
  span.bytes = bytes;
  span.flops = flops;
  open_.push_back({{doing, unit}, spans.size()});
  if (device_) device_->timestamp(stamps_.as<int64_t>() + 2 * spans.size(), stream);
  spans.push_back(span);
}

void SpanRecorder::close(RankOperation doing, int32_t unit, Stream stream) {
  const auto found = std::find_if(open_.rbegin(), open_.rend(),
                                  [&](const auto& entry) { return entry.first == std::pair{doing, unit}; });
  BLIPFT_CHECK(found != open_.rend(), "a span ends that was not begun");
  if (device_) device_->timestamp(stamps_.as<int64_t>() + 2 * found->second + 1, stream);
  open_.erase(std::next(found).base());
}

void SpanRecorder::begin(Phase phase, const Unit& unit, Stream stream) {
  open(phase, static_cast<int32_t>(unit.index), 0, 0, flops_(unit, phase), stream);
}
void SpanRecorder::end(Phase phase, const Unit& unit, Stream stream) {
  close(phase, static_cast<int32_t>(unit.index), stream);
}
void SpanRecorder::begin(Kind kind, const Unit& unit, int64_t bytes, Stream stream) {
  open(kind, static_cast<int32_t>(unit.index), kind == Kind::update ? 0 : 1, bytes, 0, stream);
}
void SpanRecorder::end(Kind kind, const Unit& unit, int64_t, Stream stream) {
  close(kind, static_cast<int32_t>(unit.index), stream);
}
void SpanRecorder::begin(RankOperation doing, Stream stream) { open(doing, -1, 0, 0, 0, stream); }
void SpanRecorder::end(RankOperation doing, Stream stream) { close(doing, -1, stream); }

std::vector<SpanRecord> SpanRecorder::records(const std::string& pass, int64_t step, const std::vector<int64_t>& stamps,
                                              const std::function<int64_t(int64_t)>& time_of) const {
  std::vector<SpanRecord> spans = passes_.at(pass);
  for (size_t i = 0; i < spans.size() && 2 * i + 1 < stamps.size(); ++i) {
    spans[i].step = step;
    spans[i].begin_ns = time_of(stamps[2 * i]);
    spans[i].end_ns = time_of(stamps[2 * i + 1]);
  }
  return spans;
}

}  // namespace blipft
