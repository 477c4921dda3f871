// OpContext of the op tests, which gives an op its tensors on any backend and fetches its results.
#pragma once

#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "blipft/ops.h"
#include "ops/bf16.h"
#include "ops/fp8.h"

namespace blipft::test {

inline constexpr DType kF32 = DType::f32, kBf16 = DType::bf16;

/// Memory and ops of one backend.
class Backend {
 public:
  Backend(Device& device, Ops& ops) : device_(device), ops_(ops) {
    memory_ = static_cast<char*>(device.allocate(kBytes));
    workspace_ = device.allocate(kWorkspaceBytes);
    ops.set_workspace({workspace_, DType::u8, {kWorkspaceBytes}});
  }
  ~Backend() {
    device_.free(memory_);
    device_.free(workspace_);
  }
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  static constexpr int64_t kBytes = int64_t{512} << 20;
  Device& device() const { return device_; }
  Ops& ops() const { return ops_; }
  char* memory() const { return memory_; }

 private:
  Device& device_;
  Ops& ops_;
  char* memory_ = nullptr;
  void* workspace_ = nullptr;
};

/// One named tensor as it came back.
struct Result {
  std::string name;
  DType dtype;
  std::vector<char> bytes;
};

/// The tensors of one case. Inputs are random numbers that depend on the tensor's name only; outputs are poisoned with
/// NaN; a guard lies behind every tensor. run() checks guards and inputs afterwards.
class OpContext {
 public:
  explicit OpContext(Backend& backend) : backend_(backend) {}

  /// Uniform in [low, high).
  Tensor input(const std::string& name, DType dtype, Shape shape, double low = -1, double high = 1) {
    return random(name, dtype, shape, low, high, Role::input);
  }
  /// Random before, compared after.
  Tensor inout(const std::string& name, DType dtype, Shape shape, double low = -1, double high = 1) {
    return random(name, dtype, shape, low, high, Role::output);
  }
  /// Given numbers, any dtype.
  Tensor values(const std::string& name, DType dtype, const std::vector<double>& numbers) {
    return given(name, dtype, numbers, Role::input);
  }
  /// Given numbers before, compared after.
  Tensor changing_values(const std::string& name, DType dtype, const std::vector<double>& numbers) {
    return given(name, dtype, numbers, Role::output);
  }
  Tensor output(const std::string& name, DType dtype, Shape shape) { return place(name, dtype, shape, Role::output); }
  /// Poisoned, not compared.
  Tensor scratch(const std::string& name, DType dtype, Shape shape) { return place(name, dtype, shape, Role::scratch); }

  /// Uploads, calls `f(ops, stream)`, downloads, checks. On the plan backend: calls `f` only.
  template <class F>
  void run(F f) {
    Device& device = backend_.device();
    const Stream stream = device.compute_stream();
    if (planning()) return f(backend_.ops(), stream);
    const std::vector<char> before = image_;
    device.copy(backend_.memory(), image_.data(), size(), stream);
    f(backend_.ops(), stream);
    device.copy(image_.data(), backend_.memory(), size(), stream);
    device.synchronize(stream);
    for (const Entry& e : entries_) {
      const int64_t end = e.offset + e.tensor.bytes();
      if (e.role == Role::input) same(before, e.offset, end, concat("the op changed its input ", e.name));
      same(before, end, e.offset + stride(e.tensor.bytes()), concat("the op wrote behind ", e.name));
    }
  }

  /// After run(): the elements of `t` as numbers.
  std::vector<double> read(const Tensor& t) const {
    std::vector<double> numbers(static_cast<size_t>(t.numel()));
    const char* at = image_.data() + (t.as<char>() - backend_.memory());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = get(at, t.dtype, i);
    return numbers;
  }
  std::vector<double> read(const MatrixView& view) const {
    std::vector<double> numbers;
    for (int64_t r = 0; r < view.rows(); ++r) {
      const std::vector<double> row = read(view.row_range(r, 1).tensor());
      numbers.insert(numbers.end(), row.begin(), row.end());
    }
    return numbers;
  }
  /// After run(), of tensors of one dtype and size.
  void require_same_bits(const Tensor& a, const Tensor& b, const std::string& otherwise) const {
    if (planning()) return;
    const auto at = [&](const Tensor& t) { return image_.data() + (t.as<char>() - backend_.memory()); };
    BLIPFT_CHECK(a.bytes() == b.bytes() && std::memcmp(at(a), at(b), static_cast<size_t>(a.bytes())) == 0, otherwise);
  }
  /// After run(): the compared tensors.
  std::vector<Result> results() const {
    std::vector<Result> all;
    for (const Entry& e : entries_)
      if (e.role == Role::output && !planning()) {
        const char* begin = image_.data() + e.offset;
        all.push_back({e.name, e.tensor.dtype, {begin, begin + e.tensor.bytes()}});
      }
    return all;
  }
  int64_t size() const { return size_; }

  static double get(const char* at, DType dtype, size_t i) {
    const auto element = [&](auto value) {
      std::memcpy(&value, at + i * sizeof value, sizeof value);
      return value;
    };
    switch (dtype) {
      case DType::f32: return static_cast<double>(element(float{}));
      case DType::bf16: return static_cast<double>(bf16_to_float(element(uint16_t{})));
      case DType::f16: return static_cast<double>(f16_to_float(element(uint16_t{})));
      case DType::i32: return element(int32_t{});
      case DType::i64: return static_cast<double>(element(int64_t{}));
      case DType::u8: return element(uint8_t{});
      case DType::f8e4m3: case DType::f8e5m2: return static_cast<double>(fp8_to_float(element(uint8_t{}), dtype));
    }
    return 0;
  }

 private:
  enum class Role { input, output, scratch };
  struct Entry {
    std::string name;
    Tensor tensor;
    int64_t offset;
    Role role;
  };

  bool planning() const { return backend_.device().kind() == DeviceKind::plan; }

  /// Bytes from a tensor's start to the next one's: 256-byte aligned, and a guard of at least 256 bytes.
  static int64_t stride(int64_t bytes) { return (bytes + 255) / 256 * 256 + 256; }

  Tensor place(const std::string& name, DType dtype, Shape shape, Role role) {
    Tensor t{backend_.memory() + size(), dtype, shape};
    entries_.push_back({name, t, size(), role});
    size_ += stride(t.bytes());
    if (!planning()) image_.resize(static_cast<size_t>(size_), '\xff');  // all ones is a NaN in each format
    BLIPFT_CHECK(size() <= Backend::kBytes, "the case needs ", size(), " bytes");
    return t;
  }
  Tensor given(const std::string& name, DType dtype, const std::vector<double>& numbers, Role role) {
    const Tensor t = place(name, dtype, {static_cast<int64_t>(numbers.size())}, role);
    for (size_t i = 0; i < numbers.size() && !planning(); ++i) set(t, static_cast<int64_t>(i), numbers[i]);
    return t;
  }
  Tensor random(const std::string& name, DType dtype, Shape shape, double low, double high, Role role) {
    const Tensor t = place(name, dtype, shape, role);
    const uint64_t seed = std::hash<std::string>{}(name);
    const int64_t n = planning() ? 0 : t.numel();
#pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) {
      uint64_t z = seed + static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15u;  // splitmix64
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      set(t, i, low + (high - low) * (static_cast<double>((z ^ (z >> 31)) >> 11) / 9007199254740992.0));
    }
    return t;
  }
  void set(const Tensor& t, int64_t i, double number) {
    char* at = image_.data() + (t.as<char>() - backend_.memory()) + i * dtype_size(t.dtype);
    const auto write = [&](auto value) { std::memcpy(at, &value, sizeof value); };
    switch (t.dtype) {
      case DType::f32: return write(static_cast<float>(number));
      case DType::bf16: return write(float_to_bf16(static_cast<float>(number)));
      case DType::f16: return write(float_to_f16(static_cast<float>(number)));
      case DType::i32: return write(static_cast<int32_t>(std::floor(number)));
      case DType::i64: return write(static_cast<int64_t>(std::floor(number)));
      case DType::u8: return write(static_cast<uint8_t>(number));
      case DType::f8e4m3: case DType::f8e5m2: return write(float_to_fp8(static_cast<float>(number), t.dtype));
    }
  }
  void same(const std::vector<char>& before, int64_t begin, int64_t end, const std::string& otherwise) const {
    BLIPFT_CHECK(std::memcmp(before.data() + begin, image_.data() + begin, static_cast<size_t>(end - begin)) == 0,
                 otherwise);
  }

  Backend& backend_;
  int64_t size_ = 0;
  std::vector<char> image_;  ///< what the backend's memory holds
  std::vector<Entry> entries_;
};

/// ||a - b|| / ||b||, or ||a|| where b is 0; a(i) and b(i) give the n elements. Places where both hold the same
/// infinity count as equal. Any NaN on either side makes the result NaN, which passes no comparison.
template <class A, class B>
double normalised_error(int64_t n, A a, B b) {
  double difference = 0, norm = 0;
#pragma omp parallel for reduction(+ : difference, norm)
  for (int64_t i = 0; i < n; ++i) {
    const double x = a(i), y = b(i);
    if (std::isinf(x) && x == y) continue;
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference + norm);
}
inline double normalised_error(const std::vector<double>& a, const std::vector<double>& b) {
  BLIPFT_CHECK(a.size() == b.size(), "compared ", a.size(), " numbers with ", b.size());
  return normalised_error(static_cast<int64_t>(a.size()), [&](int64_t i) { return a[static_cast<size_t>(i)]; },
                          [&](int64_t i) { return b[static_cast<size_t>(i)]; });
}
inline double normalised_error(const Result& a, const Result& b) {
  const auto element = [](const Result& r) {
    return [&r](int64_t i) { return OpContext::get(r.bytes.data(), r.dtype, static_cast<size_t>(i)); };
  };
  return normalised_error(static_cast<int64_t>(a.bytes.size()) / dtype_size(a.dtype), element(a), element(b));
}

inline std::vector<double> numbers_of(const Result& result) {
  std::vector<double> numbers(result.bytes.size() / static_cast<size_t>(dtype_size(result.dtype)));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = OpContext::get(result.bytes.data(), result.dtype, i);
  return numbers;
}

/// Keys beyond 32 bits too: samples are counted over the whole run.
inline Dropout make_dropout(OpContext& c, float p, int64_t samples, int64_t rows_per_sample, uint32_t site = 7) {
  std::vector<double> keys;
  for (int64_t i = 0; i < samples; ++i) keys.push_back(static_cast<double>(i * 3 + (i % 2 ? 5000000000 : 11)));
  return {p, site, 0x123456789abcdefu, c.values("sample_keys", DType::i64, keys), rows_per_sample};
}

/// How many rows packed samples have: the second has the most, the third the fewest, the others lie between.
inline std::vector<int64_t> uneven_rows(int64_t samples, int64_t minimum, int64_t maximum) {
  std::vector<int64_t> rows;
  for (int64_t b = 0; b < samples; ++b)
    rows.push_back(b == 1 ? maximum : b == 2 ? minimum : minimum + (maximum - minimum) * (b * 5 + 3) % (maximum - minimum + 1));
  return rows;
}

inline int64_t total_rows(const std::vector<int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

/// Samples of these numbers of rows, one after the other.
inline Packing make_packing(OpContext& c, const std::vector<int64_t>& rows, int64_t maximum) {
  std::vector<double> starts{0}, padded_rows;
  for (size_t b = 0; b < rows.size(); ++b) {
    starts.push_back(starts.back() + static_cast<double>(rows[b]));
    for (int64_t t = 0; t < rows[b]; ++t)
      padded_rows.push_back(static_cast<double>(static_cast<int64_t>(b) * maximum + t));
  }
  return {c.values("starts", DType::i32, starts), c.values("padded_rows", DType::i32, padded_rows)};
}

}  // namespace blipft::test
