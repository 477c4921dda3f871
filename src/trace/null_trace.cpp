// The trace that discards all records, for runs without a trace and for tests.
#include "blipft/trace.h"

namespace blipft {

namespace {

class NullTrace final : public Trace {
 public:
  void set_names(const std::vector<std::string>&, const std::vector<std::string>&, const std::vector<std::string>&) override {}
  void set_attribute(const std::string&, const std::string&) override {}
  void set_attribute(const std::string&, double) override {}
  void add(const StepRecord&, const std::vector<SpanRecord>&) override {}
  void add(const std::vector<SpanRecord>&) override {}
  void add(const std::vector<MemoryRecord>&) override {}
  void add(const std::vector<PlanRecord>&) override {}
  void add(const DeviceRecord&) override {}
  void add(const DriverMemoryRecord&) override {}
  void add(const ValidationRecord&) override {}
  void add(const std::vector<EvaluationRecord>&) override {}
  void add(const std::vector<EvaluationSampleRecord>&) override {}
  void add(const std::vector<EvaluationTextRecord>&) override {}
  void add(const std::vector<KernelRecord>&) override {}
  void add(const std::vector<Fp8Record>&) override {}
  void add(const std::vector<StepSampleRecord>&) override {}
  std::string failure() const override { return {}; }
  void close() override {}
};

}  // namespace

std::unique_ptr<Trace> make_null_trace() { return std::make_unique<NullTrace>(); }

}  // namespace blipft
