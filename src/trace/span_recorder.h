// SpanRecorder: records a device clock reading before and after every unit's phases and every collective.
//
// The device itself stores the readings, so that they work inside a captured graph: the k-th span enqueued in a step
// writes its begin into slot 2k and its end into slot 2k + 1. The recorder remembers for each pass which span has which
// number.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "blipft/model.h"
#include "blipft/rank_operation.h"
#include "blipft/strategy.h"
#include "blipft/trace.h"

namespace blipft {

class SpanRecorder : public StepObserver, public CommObserver {
 public:
  /// Names of the phases, in the order of their numbers in the trace.
  static const std::vector<std::string>& phase_names();

  /// Sets the buffer for the readings. Before this call (dry run), spans are only counted.
  void bind(Device* device, const Tensor& stamps);
  /// Returns the operations of a unit's phase in one micro-batch of this pass.
  using Flops = std::function<double(const Unit& unit, Phase phase)>;
  void begin_pass(const std::string& pass, Flops flops);
  void set_micro_batch(int64_t index) { micro_batch_ = static_cast<int32_t>(index); }
  int64_t spans() const { return static_cast<int64_t>(current().size()); }
  int64_t max_spans() const;

  void begin(Phase phase, const Unit& unit, Stream stream) override;
  void end(Phase phase, const Unit& unit, Stream stream) override;
  void begin(Kind kind, const Unit& unit, int64_t bytes, Stream stream) override;
  void end(Kind kind, const Unit& unit, int64_t bytes, Stream stream) override;
  void begin(RankOperation doing, Stream stream);
  void end(RankOperation doing, Stream stream);

  /// Returns the spans of one execution of `pass`. `time_of` converts clock readings to times of the trace.
  std::vector<SpanRecord> records(const std::string& pass, int64_t step, const std::vector<int64_t>& stamps,
                                  const std::function<int64_t(int64_t)>& time_of) const;

 private:
  void open(RankOperation doing, int32_t unit, int32_t stream_number, int64_t bytes, double flops, Stream stream);
  void close(RankOperation doing, int32_t unit, Stream stream);
  const std::vector<SpanRecord>& current() const;

  Device* device_ = nullptr;
  Tensor stamps_;
  std::map<std::string, std::vector<SpanRecord>> passes_;
  std::string pass_;
  Flops flops_;
  int32_t micro_batch_ = 0;
  std::vector<std::pair<std::pair<RankOperation, int32_t>, size_t>> open_;  // (doing, unit) -> index of the span
};

}  // namespace blipft
