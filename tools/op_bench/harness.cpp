// The timing of op_bench: a CUDA graph launches the op many times between two readings of the device's clock, and the
// median of several replays counts. "memory" rotates through sets of tensors that are together larger than twice the L2
// cache, so that no launch reads data that the previous one left there; "L2" always launches on one set.
#include "op_bench/harness.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <utility>

#include "blipft/error.h"

namespace blipft::bench {

namespace {
constexpr int64_t kPoolBytes = int64_t{12} << 30;
constexpr int64_t kRotateBytes = 150 << 20;  // more than twice an H200's L2 cache of 60 MB
constexpr int64_t kMaxSets = 256;
constexpr int64_t kCachedTensor = 30'000'000;
constexpr size_t kLaunches = 32;             // the smallest number of launches in a graph
constexpr int kReplays = 9, kWarmUps = 2;

const char* name_of(Source source) { return source == Source::memory ? "memory" : "L2"; }
}  // namespace

double Ceilings::seconds(const Cost& cost) const {
  return std::max(copy > 0 ? cost.bytes / copy : 0, product > 0 ? cost.flops / product : 0);
}

std::string dims(std::initializer_list<int64_t> sizes) {
  std::string text;
  for (int64_t size : sizes) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

Harness::Harness(int device_index, const std::string& gemm_cache, bool tf32)
    : device_(make_cuda_device(device_index)), ops_(make_cuda_ops(*device_, gemm_cache, {.tf32 = tf32})) {
  device_->bind_thread();
  pool_ = static_cast<char*>(device_->allocate(kPoolBytes));
  workspace_ = device_->allocate(kWorkspaceBytes);
  ops_->set_workspace({workspace_, DType::u8, {kWorkspaceBytes}});
  slots_ = static_cast<int64_t*>(device_->allocate(2 * sizeof(int64_t)));
}

Harness::~Harness() {
  try {
    for (void* memory : {static_cast<void*>(pool_), workspace_, static_cast<void*>(slots_)}) device_->free(memory);
  } catch (const std::exception&) {
    // The GPU has failed, and run() has thrown the error.
  }
}

char* Harness::take(int64_t bytes) {
  char* memory = pool_ + used_;
  used_ += (bytes + 255) / 256 * 256;
  largest_ = std::max(largest_, bytes);
  BLIPFT_CHECK(used_ <= kPoolBytes, "op_bench's pool of ", kPoolBytes, " bytes is too small");
  return memory;
}

Tensor Harness::raw(const Shape& shape, DType dtype) { return {take(shape.numel() * dtype_size(dtype)), dtype, shape}; }

Tensor Harness::tensor(const Shape& shape, DType dtype, float mean, float std) {
  const Tensor t = raw(shape, dtype);
  ops_->fill_normal(t, 7, next_stream_++, 0, mean, std, stream());
  return t;
}

Tensor Harness::integers(const Shape& shape, const std::function<int32_t(int64_t)>& number) {
  const Tensor t = raw(shape, DType::i32);
  std::vector<int32_t> host(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < host.size(); ++i) host[i] = number(static_cast<int64_t>(i));
  device_->copy(t.data, host.data(), t.bytes(), stream());
  device_->synchronize(stream());
  return t;
}

Tensor Harness::ids(const Shape& shape, int32_t below) {
  return integers(shape, [=](int64_t i) {
    return static_cast<int32_t>((static_cast<uint64_t>(i) * 2654435761u) % static_cast<uint64_t>(below));
  });
}

Dropout Harness::dropout(float p, int64_t samples, int64_t rows_per_sample) {
  Dropout d;
  d.p = p, d.site = next_stream_++, d.seed = 5, d.rows_per_sample = rows_per_sample;
  d.sample_keys = raw({samples}, DType::i64);
  std::vector<int64_t> keys(static_cast<size_t>(samples));
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i) * 31;
  device_->copy(d.sample_keys.data, keys.data(), d.sample_keys.bytes(), stream());
  device_->synchronize(stream());
  return d;
}

/// Returns the microseconds of one launch.
double Harness::measure(const std::vector<Work>& sets) {
  const size_t launches = sets.size() * std::max<size_t>(1, kLaunches / sets.size());
  const auto graph = device_->capture(stream(), [&] {
    device_->timestamp(slots_, stream());
    for (size_t i = 0; i < launches; ++i) sets[i % sets.size()]();
    device_->timestamp(slots_ + 1, stream());
  });
  std::vector<double> times;
  for (int replay = -kWarmUps; replay < kReplays; ++replay) {
    graph->launch(stream());
    int64_t clock[2];
    device_->copy(clock, slots_, sizeof clock, stream());
    device_->synchronize(stream());
    if (replay >= 0) times.push_back(static_cast<double>(clock[1] - clock[0]) / 1e3 / static_cast<double>(launches));
  }
  std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
  return times[kReplays / 2];
}

void Harness::run(const std::string& op, const std::string& shape, const Cost& cost, const std::function<Work()>& make,
                  Sources sources, const std::string& fields) {
  if ((op + " " + shape).find(filter_) == std::string::npos) return;
  used_ = largest_ = 0;
  std::vector<Work> sets{make()};
  sets[0]();  // matrix product algorithms are chosen now
  device_->synchronize(stream());
  const auto record = [&](Source source, const std::vector<Work>& with) {
    results_.push_back({op, shape, source, measure(with), cost, fields});
    report(results_.back());
  };
  // Bytes that a launch touches: only some rows of an embedding's table.
  const int64_t one = used_, touched = std::clamp<int64_t>(static_cast<int64_t>(cost.bytes), 1, one);
  const bool cached_too = sources == Sources::both && std::min(largest_, touched) <= kCachedTensor;
  if (cached_too) record(Source::cache, sets);
  const int64_t wanted = std::max<int64_t>(kRotateBytes / touched + 1, 2);
  if (wanted > kMaxSets) {  // so small that it always stays in the cache
    if (!cached_too) record(Source::cache, sets);
    return;
  }
  while (static_cast<int64_t>(sets.size()) < wanted && used_ + one <= kPoolBytes) {
    sets.push_back(make());
    sets.back()();
  }
  device_->synchronize(stream());
  record(Source::memory, sets);
}

void Harness::measure_ceilings() {
  const std::string filter = std::exchange(filter_, "");
  const auto seconds = [this] { return results_.back().microseconds * 1e-6; };
  const int64_t bytes = int64_t{1} << 30, n = 8192;
  const Cost copy{2.0 * static_cast<double>(bytes), 0}, product{6.0 * n * n, 2.0 * n * n * n};
  run("copy", "1 GiB to 1 GiB", copy, [&]() -> Work {
    const Tensor from = tensor({bytes / 2}), to = tensor({bytes / 2});
    // A cast to the same type, because copies inside a graph do not reach the rate of a kernel.
    return [this, from, to] { ops_->cast(from, to, stream()); };
  }, Sources::memory_alone);
  ceilings_.copy = copy.bytes / seconds();
  run("product", dims({n, n, n}), product, [&]() -> Work {
    LinearForward args;
    args.x = tensor({n, n}), args.w = tensor({n, n}, DType::bf16, 0, 0.02f), args.y = tensor({n, n});
    return [this, args] { ops_->linear_forward(args, stream()); };
  }, Sources::memory_alone);
  ceilings_.product = product.flops / seconds();
  filter_ = filter;
}

bool Harness::bound_by_copy(const Result& r) const {
  if (r.cost.flops == 0 || ceilings_.product == 0) return r.cost.flops == 0;
  return r.cost.bytes / ceilings_.copy > r.cost.flops / ceilings_.product;
}

/// The share of the rate that the nearer ceiling allows.
double Harness::share(const Result& r) const {
  if (ceilings_.copy == 0 || (r.cost.flops > 0 && ceilings_.product == 0)) return 1;  // this result is a ceiling
  const double minimum = ceilings_.seconds(r.cost);
  return minimum > 0 ? minimum / (r.microseconds * 1e-6) : 1;
}

void Harness::print_header() const {
  std::printf("%s\n", device_->name().c_str());
  std::printf("%-24s %-36s %-7s %10s %8s %8s  %s\n", "op", "shape", "from", "us", "TB/s", "TFLOP/s", "of the ceiling");
}

void Harness::report(const Result& r) const {
  char flops[32] = "-";
  if (r.cost.flops > 0) std::snprintf(flops, sizeof flops, "%.1f", r.cost.flops / r.microseconds / 1e6);
  std::printf("%-24s %-36s %-7s %10.2f %8.2f %8s  %5.1f %% of %s\n", r.op.c_str(), r.shape.c_str(), name_of(r.source),
              r.microseconds, r.cost.bytes / r.microseconds / 1e6, flops, 100 * share(r),
              bound_by_copy(r) ? "copy" : "product");
  std::fflush(stdout);
}

void Harness::write_json(const std::string& path) const {
  std::ofstream out(path);
  out.precision(10);
  out << "{\"device\": \"" << device_->name() << "\", \"copy_tb_s\": " << ceilings_.copy / 1e12
      << ", \"gemm_tflop_s\": " << ceilings_.product / 1e12 << ", \"ops\": [";
  for (size_t i = 0; i < results_.size(); ++i) {
    const Result& r = results_[i];
    out << (i ? ",\n" : "\n") << "  {\"op\": \"" << r.op << "\", \"shape\": \"" << r.shape << "\", \"from\": \""
        << name_of(r.source) << "\", \"us\": " << r.microseconds << ", \"bytes\": " << r.cost.bytes
        << ", \"flops\": " << r.cost.flops << ", \"tb_s\": " << r.cost.bytes / r.microseconds / 1e6
        << ", \"tflop_s\": " << r.cost.flops / r.microseconds / 1e6 << ", \"share\": " << share(r)
        << ", \"ceiling\": \""
        << (bound_by_copy(r) ? "copy" : "product") << "\"" << (r.fields.empty() ? "" : ", ") << r.fields << "}";
  }
  out << "\n]}\n";
  out.close();
  BLIPFT_USER_CHECK(out, path, ": cannot be written");
}

}  // namespace blipft::bench
