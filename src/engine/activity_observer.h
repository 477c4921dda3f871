// ActivityObserver: reports the unit and its phase or collective to the activity, and to the trace if there is one.
#pragma once

#include <string>
#include <vector>

#include "blipft/activity.h"
#include "blipft/model.h"
#include "blipft/strategy.h"
#include "trace/span_recorder.h"

namespace blipft {

/// Replayed CUDA graphs do not call the observer: the activity then contains only the step.
class ActivityObserver : public StepObserver, public CommObserver {
 public:
  ActivityObserver(Activity& activity, SpanRecorder* spans, const std::vector<const Unit*>& units)
      : activity_(activity), spans_(spans) {
    std::vector<std::string> names;
    for (const Unit* unit : units) names.push_back(unit->name());
    activity_.name_units(std::move(names));
  }

  void begin(Phase phase, const Unit& unit, Stream stream) override {
    if (spans_) spans_->begin(phase, unit, stream);
    activity_.doing(phase, unit.index);
  }
  void end(Phase phase, const Unit& unit, Stream stream) override {
    if (spans_) spans_->end(phase, unit, stream);
    activity_.doing(RankOperation::host);
  }
  void begin(Kind kind, const Unit& unit, int64_t bytes, Stream stream) override {
    if (spans_) spans_->begin(kind, unit, bytes, stream);
    activity_.doing(kind, unit.index);
  }
  void end(Kind kind, const Unit& unit, int64_t bytes, Stream stream) override {
    if (spans_) spans_->end(kind, unit, bytes, stream);
    activity_.doing(RankOperation::host);
  }

 private:
  Activity& activity_;
  SpanRecorder* const spans_;              // optional
};

}  // namespace blipft
