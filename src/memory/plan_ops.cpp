// The plan backend: device memory without storage, and ops that compute nothing. A step that runs on it checks every
// shape and records every allocation, without a GPU and in little time.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "blipft/device.h"
#include "blipft/ops.h"
#include "ops/ops_check.h"

namespace blipft {
namespace {

class PlanGraph final : public Graph {
 public:
  void launch(Stream) override {}
  int64_t nodes() const override { return 0; }
};

class PlanDevice final : public Device {
 public:
  ~PlanDevice() override {
    for (void* memory : host_blocks_) std::free(memory);
  }

  DeviceKind kind() const override { return DeviceKind::plan; }
  std::string name() const override { return "plan"; }

  void* allocate(int64_t bytes) override {
    BLIPFT_CHECK(bytes >= 0, "requested ", bytes, " bytes of memory");
    const std::lock_guard lock(mutex_);
    void* memory = reinterpret_cast<void*>(static_cast<intptr_t>(next_));
    next_ += (std::max<int64_t>(bytes, 1) + 255) / 256 * 256;
    blocks_[memory] = bytes;
    return memory;
  }
  void free(void* memory) override {
    if (memory == nullptr) return;
    const std::lock_guard lock(mutex_);
    BLIPFT_CHECK(blocks_.erase(memory) == 1, "freed memory that this device did not allocate, or freed it twice");
  }
  /// Allocates real memory, because host code fills it on every device (step scalars, batches). Unused pages are free.
  void* allocate_host(int64_t bytes) override {
    BLIPFT_CHECK(bytes >= 0, "requested ", bytes, " bytes of memory");
    void* memory = std::calloc(static_cast<size_t>(std::max<int64_t>(bytes, 1)), 1);
    if (memory == nullptr) throw Error(concat("out of host memory: requested ", bytes, " bytes"));
    const std::lock_guard lock(mutex_);
    host_blocks_.push_back(memory);
    return memory;
  }
  void free_host(void* memory) override {
    if (memory == nullptr) return;
    const std::lock_guard lock(mutex_);
    BLIPFT_CHECK(std::erase(host_blocks_, memory) == 1, "freed host memory that this device did not allocate");
    std::free(memory);
  }
  MemoryInfo memory() const override {
    const std::lock_guard lock(mutex_);
    MemoryInfo info;
    for (const auto& [memory, bytes] : blocks_) info.process += bytes;
    info.total = kLimit;
    info.free = kLimit - info.process;
    return info;
  }

  Stream compute_stream() const override { return {handle(1)}; }
  Stream comm_stream() const override { return {handle(2)}; }
  Stream copy_stream() const override { return {handle(3)}; }

  Event create_event() override {
    const std::lock_guard lock(mutex_);
    return {handle(++events_)};
  }
  void record(Event, Stream) override {}
  void wait(Stream, Event) override {}
  bool reached(Event) override { return true; }
  void synchronize(Event) override {}
  void synchronize(Stream) override {}
  void synchronize() override {}
  void copy(void*, const void*, int64_t, Stream) override {}
  void zero(void*, int64_t, Stream) override {}
  void timestamp(int64_t*, Stream) override {}

  std::unique_ptr<Graph> capture(Stream, const std::function<void()>& body) override {
    body();
    return std::make_unique<PlanGraph>();
  }
  void bind_thread() const override {}

 private:
  static constexpr int64_t kLimit = int64_t{1} << 60;  // effectively unlimited, because nothing is allocated

  static void* handle(int64_t number) { return reinterpret_cast<void*>(static_cast<intptr_t>(number)); }

  mutable std::mutex mutex_;
  int64_t next_ = int64_t{1} << 40;  // far from null, 256-byte aligned
  std::map<void*, int64_t> blocks_;
  std::vector<void*> host_blocks_;
  int64_t events_ = 0;
};

class PlanOps final : public Ops {
 public:
  void set_workspace(Tensor workspace) override { check_workspace(workspace); }

  void linear_forward(const LinearForward& args, Stream) override { check_args(args); }
  void linear_backward_input(const LinearBackwardInput& args, Stream) override { check_args(args); }
  void linear_backward_weight(const LinearBackwardWeight& args, Stream) override { check_args(args); }
  bool has_fp8() const override { return true; }
  void cast_fp8(const Fp8Cast& args, Stream) override { check_args(args); }
  void raise_amax(const MatrixView& x, const Tensor& amax, Stream) override { check_raise_amax(x, amax); }
  void activate(const Tensor& x, const Tensor& y, Activation activation, Stream) override {
    check_activate(x, y, activation);
  }
  void pack_signs(const Tensor& x, const Tensor& signs, Stream) override { check_pack_signs(x, signs); }
  void norm_forward(const NormForward& args, Stream) override { check_args(args); }
  void norm_backward(const NormBackward& args, Stream) override { check_args(args); }
  void dropout_add(const DropoutAdd& args, Stream) override { check_args(args); }
  void rotary(const Rotary& args, Stream) override { check_args(args); }
  void swiglu_forward(const Swiglu& args, Stream) override { check_args(args); }
  void swiglu_backward(const Swiglu& args, Stream) override { check_backward_args(args); }
  void attention_forward(const AttentionForward& args, Stream) override { check_args(args); }
  void attention_backward(const AttentionBackward& args, Stream) override { check_args(args); }
  void head_norm_forward(const HeadNormForward& args, Stream) override { check_args(args); }
  void head_norm_backward(const HeadNormBackward& args, Stream) override { check_args(args); }
  void relative_bias_forward(const RelativeBias& args, Stream) override { check_args(args); }
  void relative_bias_backward(const RelativeBias& args, Stream) override { check_backward_args(args); }
  void begin_texts(const BeginTexts& args, Stream) override { check_args(args); }
  void next_rows(const NextRows& args, Stream) override { check_args(args); }
  int64_t coded_rows(DType) const override { return 0; }  // both kinds of products need the same memory
  void coded_linear(const CodedLinear& args, Stream) override { check_args(args); }
  void cache_write(const CacheWrite& args, Stream) override { check_args(args); }
  void attention_decode(const AttentionDecode& args, Stream) override { check_args(args); }
  void pick_tokens(const PickTokens& args, Stream) override { check_args(args); }
  void beam_step(const BeamStep& args, Stream) override { check_args(args); }

  void patchify(const Patchify& args, Stream) override { check_args(args); }
  void patch_values(const PatchValues& args, Stream) override { check_args(args); }
  void position_table_forward(const PositionTable& args, Stream) override { check_args(args); }
  void position_table_backward(const PositionTable& args, Stream) override { check_backward_args(args); }
  void vision_embed_forward(const VisionEmbed& args, Stream) override { check_args(args); }
  void vision_embed_backward(const VisionEmbed& args, Stream) override { check_backward_args(args); }
  void text_embed_forward(const TextEmbed& args, Stream) override { check_args(args); }
  void text_embed_backward(const TextEmbed& args, Stream) override { check_backward_args(args); }
  void gather_rows(const Tensor& table, const Tensor& numbers, const Tensor& rows, Stream) override {
    check_gather_rows(table, numbers, rows);
  }
  void add_rows(const Tensor& rows, const Tensor& numbers, const Tensor& x, Stream) override { check_add_rows(rows, numbers, x); }
  void tile_rows(const Tensor& rows, const Tensor& tiled, Stream) override { check_tile_rows(rows, tiled); }
  void sum_tiles(const Tensor& tiled, const Tensor& rows, bool, Stream) override { check_sum_tiles(tiled, rows); }
  void mean_rows(const Tensor& x, const Tensor& means, Stream) override { check_mean_rows(x, means); }
  void mean_rows_backward(const Tensor& means, const Tensor& x, Stream) override { check_mean_rows(x, means); }
  void pick_rows(const RowBlocks& args, Stream) override { check_args(args); }
  void spread_rows(const RowBlocks& args, Stream) override { check_args(args); }
  void cross_entropy(const CrossEntropy& args, Stream) override { check_args(args); }

  void sum(const Tensor& x, const Tensor& out, bool, Stream) override { check_sum(x, out); }
  void sum_squares(const Tensor& x, const Tensor& out, bool, Stream) override { check_sum_squares(x, out); }
  void cast(const Tensor& from, const Tensor& to, Stream) override { check_cast(from, to); }
  void cap(const Tensor& x, float cap, Stream) override { check_cap(x, cap); }
  void scale(const Tensor& x, float, Stream) override { check_scale(x); }
  void add(const Tensor& from, const Tensor& to, Stream) override { check_add(from, to); }
  void fill_normal(const Tensor& x, uint64_t, uint32_t, int64_t first, float, float, Stream) override {
    check_fill_normal(x, first);
  }
  void fill_uniform(const Tensor& x, uint64_t, uint32_t, int64_t first, float, Stream) override {
    check_fill_normal(x, first);
  }
  void fill(const Tensor& x, float, Stream) override { check_fill(x); }
  void fill_i32(const Tensor& x, int32_t, Stream) override { check_fill_i32(x); }
  void loss_weights(const Tensor& denominators, const Tensor& weights, float scale, Stream) override {
    check_loss_weights(denominators, weights, scale);
  }
  void clip_coefficient(const Tensor& sum_of_squares, const Tensor& scalars, float, Stream) override {
    check_clip_coefficient(sum_of_squares, scalars);
  }
  void adamw_update(const AdamWUpdate& args, Stream) override { check_args(args); }
  void sgd_update(const SgdUpdate& args, Stream) override { check_args(args); }
  void lion_update(const LionUpdate& args, Stream) override { check_args(args); }
  void adamw8bit_update(const AdamW8bitUpdate& args, Stream) override { check_args(args); }
  void quantize(const Tensor& values, const Quantized& to, Stream) override { check_quantize(values, to); }
  void dequantize(const Quantized& from, const Tensor& values, Stream) override { check_dequantize(from, values); }
  void encode_fp8(const Tensor& values, const Fp8Matrix& to, Stream) override { check_stored_fp8("encode_fp8", values, to); }
  void decode_fp8(const Fp8Matrix& from, const Tensor& values, Stream) override { check_stored_fp8("decode_fp8", values, from); }
  void raise_fp8_scale(const Tensor& x, const Tensor& largest, const Tensor& scale, Stream) override {
    check_raise_fp8_scale(x, largest, scale);
  }
  void transpose_fp8(const Tensor& quantized, const Tensor& transposed, Stream) override { check_transpose_fp8(quantized, transposed); }
};

}  // namespace

std::unique_ptr<Device> make_plan_device() { return std::make_unique<PlanDevice>(); }
std::unique_ptr<Ops> make_plan_ops() { return std::make_unique<PlanOps>(); }

}  // namespace blipft
