// op_bench: times every op of the CUDA backend at BLIP-2 opt-2.7b's shapes and compares it with what the GPU can do.
//
//   op_bench [--json FILE] [--cache FILE] [--filter TEXT] [--device N]
//
// Each line is the median of several replays of a CUDA graph that runs the op many times over buffers that rotate
// through more than twice the GPU's L2 cache. TB/s counts each input and output once; TFLOP/s counts 2 m n k for each
// product. The ceilings, measured in the same run, are a kernel that copies 1 GiB and an 8192^3 bf16 product.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "blipft/device.h"
#include "blipft/error.h"
#include "blipft/ops.h"

namespace {

using namespace blipft;

constexpr int64_t kPoolBytes = int64_t{12} << 30;
constexpr int64_t kRotateBytes = 150 << 20;  // more than twice an H200's L2 cache of 60 MB
constexpr int kReplays = 9;

struct Result {
  std::string op, shape;
  double microseconds = 0, bytes = 0, flops = 0;
};

/// Device, ops, and one pool of memory that tensors are cut from.
class Bench {
 public:
  Bench(int device_index, const std::string& cache)
      : device(make_cuda_device(device_index)), ops(make_cuda_ops(*device, cache)), stream(device->compute_stream()) {
    pool_ = static_cast<char*>(device->allocate(kPoolBytes));
    ops->set_workspace({device->allocate(kWorkspaceBytes), DType::u8, {kWorkspaceBytes}});
    slots_ = static_cast<int64_t*>(device->allocate(2 * sizeof(int64_t)));
  }

  /// A tensor of random normals (f32, bf16) out of the pool.
  Tensor tensor(const Shape& shape, DType dtype = DType::bf16, float mean = 0, float std = 1) {
    const Tensor t = raw(shape, dtype);
    ops->fill_normal(t, 7, next_stream_++, 0, mean, std, stream);
    return t;
  }
  Tensor raw(const Shape& shape, DType dtype) {
    const Tensor t{pool_ + used_, dtype, shape};
    used_ += (t.bytes() + 255) / 256 * 256;
    BLIPFT_CHECK(used_ <= kPoolBytes, "op_bench's pool of ", kPoolBytes, " bytes is too small");
    return t;
  }
  /// A tensor with the numbers that `number` gives for each place.
  template <class T>
  Tensor numbers(const Shape& shape, DType dtype, const std::function<T(int64_t)>& number) {
    const Tensor t = raw(shape, dtype);
    std::vector<T> host(static_cast<size_t>(shape.numel()));
    for (size_t i = 0; i < host.size(); ++i) host[i] = number(static_cast<int64_t>(i));
    device->copy(t.data, host.data(), t.bytes(), stream);
    device->synchronize(stream);
    return t;
  }
  Tensor ids(const Shape& shape, int32_t below) {
    return numbers<int32_t>(shape, DType::i32, [=](int64_t i) {
      return static_cast<int32_t>((static_cast<uint64_t>(i) * 2654435761u) % static_cast<uint64_t>(below));
    });
  }
  Dropout dropout(float p, int64_t samples, int64_t rows_per_sample) {
    Dropout d;
    d.p = p;
    d.site = next_stream_++;
    d.seed = 5;
    d.rows_per_sample = rows_per_sample;
    d.sample_keys = numbers<int64_t>({samples}, DType::i64, [](int64_t i) { return i * 31; });
    return d;
  }

  using Work = std::function<void()>;
  /// `make` builds the op's tensors and returns what launches it once. `bytes` and `flops` are of one launch.
  void run(const std::string& op, const std::string& shape, double bytes, double flops,
      const std::function<Work()>& make) {
    if ((op + " " + shape).find(filter) == std::string::npos) return;
    used_ = 0;
    std::vector<Work> sets{make()};
    const int64_t one = std::max<int64_t>(used_, 1);
    const int64_t wanted = std::clamp<int64_t>(kRotateBytes / one + 1, 2, 48);
    while (static_cast<int64_t>(sets.size()) < wanted && used_ + one <= kPoolBytes) sets.push_back(make());
    for (const Work& work : sets) work();  // algorithms are chosen now
    device->synchronize(stream);
    const size_t launches = sets.size() * std::max<size_t>(1, 32 / sets.size());
    const auto graph = device->capture(stream, [&] {
      device->timestamp(slots_, stream);
      for (size_t i = 0; i < launches; ++i) sets[i % sets.size()]();
      device->timestamp(slots_ + 1, stream);
    });
    std::vector<double> times;
    for (int replay = -2; replay < kReplays; ++replay) {  // two to warm up
      graph->launch(stream);
      int64_t host[2];
      device->synchronize(stream);
      device->copy(host, slots_, sizeof host, stream);
      device->synchronize(stream);
      if (replay >= 0) times.push_back(static_cast<double>(host[1] - host[0]) / 1e3 / static_cast<double>(launches));
    }
    std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
    results.push_back({op, shape, times[kReplays / 2], bytes, flops});
    report(results.back());
  }

  double copy_rate = 0, gemm_rate = 0;  ///< bytes/s, FLOP/s
  std::string filter;
  std::vector<Result> results;
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  Stream stream;

  static double rate(const Result& r) { return (r.flops > 0 ? r.flops : r.bytes) / (r.microseconds * 1e-6); }
  double percent(const Result& r) const {
    const double ceiling = r.flops > 0 ? gemm_rate : copy_rate;
    return ceiling > 0 ? 100 * rate(r) / ceiling : 100;
  }

 private:
  void report(const Result& r) const {
    std::printf("%-24s %-34s %9.2f us %8.2f %-8s %5.1f %%\n", r.op.c_str(), r.shape.c_str(), r.microseconds,
                rate(r) / 1e12, r.flops > 0 ? "TFLOP/s" : "TB/s", percent(r));
    std::fflush(stdout);
  }

  char* pool_ = nullptr;
  int64_t* slots_ = nullptr;
  int64_t used_ = 0;
  uint32_t next_stream_ = 1;
};

std::string dims(std::initializer_list<int64_t> sizes) {
  std::string text;
  for (int64_t size : sizes) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

void measure_ceilings(Bench& bench) {
  const std::string filter = std::exchange(bench.filter, "");
  const int64_t bytes = int64_t{1} << 30;
  bench.run("copy", "1 GiB to 1 GiB", 2.0 * static_cast<double>(bytes), 0, [&] {
    const Tensor from = bench.tensor({bytes / 2}), to = bench.tensor({bytes / 2});
    // A cast that changes nothing: copies inside a graph do not reach what a kernel does.
    return [&bench, from, to] { bench.ops->cast(from, to, bench.stream); };
  });
  bench.copy_rate = Bench::rate(bench.results.back());
  const int64_t n = 8192;
  bench.run("product", dims({n, n, n}), 0, 2.0 * static_cast<double>(n * n * n), [&] {
    LinearForward args;
    args.x = bench.tensor({n, n}), args.w = bench.tensor({n, n}, DType::bf16, 0, 0.02f), args.y = bench.tensor({n, n});
    return [&bench, args] { bench.ops->linear_forward(args, bench.stream); };
  });
  bench.gemm_rate = Bench::rate(bench.results.back());
  bench.filter = filter;
}

/// One linear layer of the model, forward and backward.
struct Layer {
  const char* name;
  int64_t m, k, n;
  bool bias, residual;
  Activation out;   ///< forward's activation
  Activation in;    ///< activation that produced the input, for backward
};

void linear_cases(Bench& bench, const Layer& layer) {
  const int64_t m = layer.m, k = layer.k, n = layer.n;
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const std::string shape = concat(layer.name, " ", dims({m, k, n}));
  bench.run("linear_forward", shape, 0, flops, [&] {
    LinearForward args;
    args.x = bench.tensor({m, k}), args.w = bench.tensor({n, k}, DType::bf16, 0, 0.02f);
    if (layer.bias) args.bias = bench.tensor({n});
    if (layer.residual) args.residual = bench.tensor({m, n});
    args.activation = layer.out;
    if (layer.out == Activation::gelu) args.pre_activation = bench.tensor({m, n});
    args.y = bench.tensor({m, n});
    return [&bench, args] { bench.ops->linear_forward(args, bench.stream); };
  });
  bench.run("linear_backward_input", shape, 0, flops, [&] {
    LinearBackwardInput args;
    args.dy = bench.tensor({m, n}), args.w = bench.tensor({n, k}, DType::bf16, 0, 0.02f),
    args.dx = bench.tensor({m, k});
    args.activation = layer.in;
    if (layer.in != Activation::none) args.saved = bench.tensor({m, k}), args.dbias = bench.tensor({k});
    if (layer.in == Activation::gelu) args.activated = bench.tensor({m, k});
    return [&bench, args] { bench.ops->linear_backward_input(args, bench.stream); };
  });
  const auto weight_gradient = [&](bool dbias) {
    bench.run("linear_backward_weight", shape + (dbias ? "" : " no dbias"), 0, flops, [&] {
      LinearBackwardWeight args;
      args.dy = bench.tensor({m, n}), args.x = bench.tensor({m, k}), args.dw = bench.tensor({n, k});
      if (dbias) args.dbias = bench.tensor({n});
      args.accumulate = true;
      return [&bench, args] { bench.ops->linear_backward_weight(args, bench.stream); };
    });
  };
  weight_gradient(false);
  // The bias gradient of a layer before an activation comes out of linear_backward_input instead.
  if (layer.bias && layer.out == Activation::none) weight_gradient(true);
}

void all_linear_cases(Bench& bench, int64_t batch) {
  const int64_t vit = batch * 257, opt = batch * 82, query = batch * 32, head = batch * 49;
  constexpr auto none = Activation::none, relu = Activation::relu, gelu = Activation::gelu;
  for (const Layer& layer : std::vector<Layer>{
           {"vit qkv", vit, 1408, 4224, true, false, none, none}, {"vit proj", vit, 1408, 1408, true, true, none, none},
           {"vit fc1", vit, 1408, 6144, true, false, gelu, none}, {"vit fc2", vit, 6144, 1408, true, true, none, gelu},
           {"opt qkv", opt, 2560, 7680, true, false, none, none}, {"opt out", opt, 2560, 2560, true, true, none, none},
           {"opt fc1", opt, 2560, 10240, true, false, relu, none},
           {"opt fc2", opt, 10240, 2560, true, true, none, relu},
           {"head", head, 2560, 50304, false, false, none, none},
           {"qformer self", query, 768, 768, true, false, none, none},
           {"qformer kv", vit, 1408, 1536, true, false, none, none},
           {"qformer fc1", query, 768, 3072, true, false, gelu, none},
           {"qformer fc2", query, 3072, 768, true, false, none, gelu}})
    linear_cases(bench, layer);
}

void norm_cases(Bench& bench, int64_t m, int64_t n, bool residual, float p, int64_t rows_per_sample) {
  const double row_bytes = 2.0 * static_cast<double>(m * n);
  const std::string shape = dims({m, n}) + (p > 0 ? " dropout" : residual ? " residual" : "");
  bench.run("norm_forward", shape, row_bytes * (residual ? 4 : 2), 0, [&] {
    NormForward args;
    args.x = bench.tensor({m, n});
    if (residual) args.residual = bench.tensor({m, n}), args.sum = bench.tensor({m, n});
    if (p > 0) args.dropout = bench.dropout(p, m / rows_per_sample, rows_per_sample);
    args.gamma = bench.tensor({n}), args.beta = bench.tensor({n}), args.y = bench.tensor({m, n});
    args.mean = bench.tensor({m}, DType::f32), args.rstd = bench.tensor({m}, DType::f32);
    return [&bench, args] { bench.ops->norm_forward(args, bench.stream); };
  });
  bench.run("norm_backward", shape, row_bytes * (3 + (residual ? 1 : 0) + (p > 0 ? 1 : 0)), 0, [&] {
    NormBackward args;
    args.dy = bench.tensor({m, n}), args.x = bench.tensor({m, n}), args.gamma = bench.tensor({n});
    args.mean = bench.tensor({m}, DType::f32, 0, 0.01f), args.rstd = bench.tensor({m}, DType::f32, 1, 0.01f);
    if (residual) args.add = bench.tensor({m, n});
    args.dgamma = bench.tensor({n}), args.dbeta = bench.tensor({n});
    args.accumulate = true;
    if (p > 0) args.dropout = bench.dropout(p, m / rows_per_sample, rows_per_sample);
    if (p > 0) args.dropped = bench.tensor({m, n});
    args.dx = bench.tensor({m, n});
    return [&bench, args] { bench.ops->norm_backward(args, bench.stream); };
  });
}

struct AttentionCase {
  const char* name;
  int64_t batch, heads, queries, keys, size;
  bool causal;
  float p;
};

void attention_cases(Bench& bench, const AttentionCase& c) {
  const int64_t width = c.heads * c.size;
  double flops = 4.0 * static_cast<double>(c.batch * c.heads * c.queries * c.keys * c.size);
  if (c.causal) flops *= 0.5 * (1.0 + 1.0 / static_cast<double>(c.queries));
  const std::string shape = concat(c.name, " ", dims({c.batch, c.heads, c.queries, c.keys, c.size}));
  const auto forward = [&, width] {
    AttentionForward args;
    args.dtype = DType::bf16;
    args.batch = c.batch, args.heads = c.heads, args.head_size = c.size, args.query_tokens = c.queries,
        args.kv_tokens = c.keys;
    args.scale = 1.0f / std::sqrt(static_cast<float>(c.size));
    args.causal = c.causal;
    if (c.queries == c.keys) {  // one matrix of queries, keys and values, as the layers make it
      const Tensor qkv = bench.tensor({c.batch * c.queries, 3 * width});
      args.q = Heads::in(qkv, 0, c.queries), args.k = Heads::in(qkv, width, c.queries),
      args.v = Heads::in(qkv, 2 * width, c.queries);
    } else {
      args.q = Heads::in(bench.tensor({c.batch * c.queries, width}), 0, c.queries);
      const Tensor kv = bench.tensor({c.batch * c.keys, 2 * width});
      args.k = Heads::in(kv, 0, c.keys), args.v = Heads::in(kv, width, c.keys);
    }
    if (c.p > 0) args.dropout = bench.dropout(c.p, c.batch, 1);
    args.out = Heads::in(bench.tensor({c.batch * c.queries, width}), 0, c.queries);
    args.lse = bench.tensor({c.batch, c.heads, c.queries}, DType::f32);
    return args;
  };
  bench.run("attention_forward", shape, 0, flops, [&] {
    const AttentionForward args = forward();
    return [&bench, args] { bench.ops->attention_forward(args, bench.stream); };
  });
  bench.run("attention_backward", shape, 0, 2.5 * flops, [&] {
    AttentionBackward args;
    args.forward = forward();
    bench.ops->attention_forward(args.forward, bench.stream);
    args.dout = Heads::in(bench.tensor({c.batch * c.queries, width}), 0, c.queries);
    args.dq = Heads::in(bench.tensor({c.batch * c.queries, width}), 0, c.queries);
    const Tensor dkv = bench.tensor({c.batch * c.keys, 2 * width});
    args.dk = Heads::in(dkv, 0, c.keys), args.dv = Heads::in(dkv, width, c.keys);
    args.delta = bench.tensor({c.batch, c.heads, c.queries}, DType::f32);
    return [&bench, args] { bench.ops->attention_backward(args, bench.stream); };
  });
}

void activation_cases(Bench& bench, int64_t m, int64_t n, Activation activation, const char* name) {
  bench.run("activate", concat(name, " ", dims({m, n})), 4.0 * static_cast<double>(m * n), 0, [&] {
    const Tensor x = bench.tensor({m, n}), y = bench.tensor({m, n});
    return [&bench, x, y, activation] { bench.ops->activate(x, y, activation, bench.stream); };
  });
}

void embedding_cases(Bench& bench, int64_t batch) {
  const int64_t patches = 256, n = 1408, text = 50, queries = 32, width = 2560, vocabulary = 50304;
  const double vision_bytes = 2.0 * static_cast<double>(batch * patches * n);
  bench.run("patchify", concat("b", batch), static_cast<double>(batch * 224 * 224 * 3) * 3, 0, [&] {
    Patchify args;
    args.pixels = bench.numbers<uint8_t>({batch, 224, 224, 3}, DType::u8, [](int64_t i) {
        return static_cast<uint8_t>(i * 37); });
    for (int c = 0; c < 3; ++c) args.mean[c] = 0.45f, args.std[c] = 0.27f;
    args.patches = bench.tensor({batch * patches, 588});
    return [&bench, args] { bench.ops->patchify(args, bench.stream); };
  });
  const auto vision = [&] {
    VisionEmbed args;
    args.patches = bench.tensor({batch * patches, n}), args.class_embedding = bench.tensor({n});
    args.positions = bench.tensor({1 + patches, n}), args.x = bench.tensor({batch * (1 + patches), n});
    args.accumulate = true;
    return args;
  };
  bench.run("vision_embed_forward", concat("b", batch), 2 * vision_bytes, 0, [&] {
    return [&bench, args = vision()] { bench.ops->vision_embed_forward(args, bench.stream); };
  });
  bench.run("vision_embed_backward", concat("b", batch), 2 * vision_bytes, 0, [&] {
    return [&bench, args = vision()] { bench.ops->vision_embed_backward(args, bench.stream); };
  });
  const auto language = [&] {
    TextEmbed args;
    args.ids = bench.ids({batch, text}, 2000);
    args.lengths = bench.numbers<int32_t>({batch}, DType::i32, [](int64_t i) {
        return static_cast<int32_t>(8 + i % 40); });
    args.prefix = bench.tensor({batch * queries, width}), args.prefix_rows = queries;
    args.tokens = bench.tensor({vocabulary, width}), args.positions = bench.tensor({2050, width});
    args.x = bench.tensor({batch * (queries + text), width});
    args.accumulate_tokens = args.accumulate_positions = true;
    return args;
  };
  const double text_bytes = 4.0 * static_cast<double>(batch * (queries + text) * width);
  bench.run("text_embed_forward", concat("b", batch), text_bytes, 0, [&] {
    return [&bench, args = language()] { bench.ops->text_embed_forward(args, bench.stream); };
  });
  bench.run("text_embed_backward", concat("b", batch), text_bytes, 0, [&] {
    return [&bench, args = language()] { bench.ops->text_embed_backward(args, bench.stream); };
  });
  bench.run("tile_rows", concat("32x768 to b", batch), 2.0 * static_cast<double>(batch * queries * 768), 0, [&] {
    const Tensor rows = bench.tensor({queries, 768}), tiled = bench.tensor({batch * queries, 768});
    return [&bench, rows, tiled] { bench.ops->tile_rows(rows, tiled, bench.stream); };
  });
  bench.run("sum_tiles", concat("32x768 of b", batch), 2.0 * static_cast<double>(batch * queries * 768), 0, [&] {
    const Tensor rows = bench.tensor({queries, 768}), tiled = bench.tensor({batch * queries, 768});
    return [&bench, rows, tiled] { bench.ops->sum_tiles(tiled, rows, true, bench.stream); };
  });
  const auto row_blocks = [&] {
    return RowBlocks{bench.tensor({batch * 82, width}), bench.tensor({batch * 49, width}), 82, 32, 49};
  };
  bench.run("pick_rows", concat("49 of 82, b", batch), 4.0 * static_cast<double>(batch * 49 * width), 0, [&] {
    return [&bench, args = row_blocks()] { bench.ops->pick_rows(args, bench.stream); };
  });
  bench.run("spread_rows", concat("49 to 82, b", batch), 2.0 * static_cast<double>(batch * (49 + 82) * width), 0, [&] {
    return [&bench, args = row_blocks()] { bench.ops->spread_rows(args, bench.stream); };
  });
}

void loss_case(Bench& bench, int64_t rows, DType dtype) {
  const int64_t vocabulary = 50304;
  bench.run("cross_entropy", concat(dims({rows, vocabulary}), " ", dtype_name(dtype)),
            2.0 * static_cast<double>(rows * vocabulary * dtype_size(dtype)), 0, [&] {
    CrossEntropy args;
    args.logits = bench.tensor({rows, vocabulary}, dtype), args.labels = bench.ids({rows}, 50265);
    args.weight = bench.tensor({1}, DType::f32, 1, 0), args.row_loss = bench.tensor({rows}, DType::f32);
    return [&bench, args] { bench.ops->cross_entropy(args, bench.stream); };
  });
}

void update_case(Bench& bench, const char* name, DType param, bool master, DType grad, DType state) {
  const int64_t n = int64_t{1} << 26;
  const int64_t per_element = 2 * dtype_size(param) - (master ? dtype_size(param) : 0) + (master ? 8 : 0) +
                              dtype_size(grad) + 4 * dtype_size(state);
  const auto scalars = [&] {
    const Tensor t = bench.tensor({kStepScalars}, DType::f32, 0, 0);
    bench.ops->fill(t, 0.5f, bench.stream);
    return t;
  };
  bench.run("adamw_update", concat(name, " ", n), static_cast<double>(n * per_element), 0, [&] {
    AdamWUpdate args;
    args.param = bench.tensor({n}, param), args.grad = bench.tensor({n}, grad);
    if (master) args.master = bench.tensor({n}, DType::f32);
    args.m = bench.tensor({n}, state), args.v = bench.tensor({n}, state, 8, 1), args.scalars = scalars();
    return [&bench, args] { bench.ops->adamw_update(args, bench.stream); };
  });
  bench.run("sgd_update", concat(name, " ", n), static_cast<double>(n * (per_element - 2 * dtype_size(state))), 0, [&] {
    SgdUpdate args;
    args.param = bench.tensor({n}, param), args.grad = bench.tensor({n}, grad);
    if (master) args.master = bench.tensor({n}, DType::f32);
    args.momentum_buffer = bench.tensor({n}, state), args.scalars = scalars(), args.momentum = 0.9f;
    return [&bench, args] { bench.ops->sgd_update(args, bench.stream); };
  });
}

void flat_cases(Bench& bench) {
  const int64_t n = int64_t{1} << 27;
  const double elements = static_cast<double>(n);
  for (DType dtype : {DType::bf16, DType::f32}) {
    bench.run("sum_squares", concat(n, " ", dtype_name(dtype)), elements * static_cast<double>(dtype_size(dtype)), 0,
        [&] {
      const Tensor x = bench.tensor({n}, dtype), out = bench.tensor({1}, DType::f32);
      return [&bench, x, out] { bench.ops->sum_squares(x, out, false, bench.stream); };
    });
    bench.run("add", concat(n, " ", dtype_name(dtype), " to ", dtype_name(dtype)),
              3 * elements * static_cast<double>(dtype_size(dtype)), 0, [&] {
      const Tensor from = bench.tensor({n}, dtype), to = bench.tensor({n}, dtype);
      return [&bench, from, to] { bench.ops->add(from, to, bench.stream); };
    });
  }
  bench.run("sum", concat(n, " f32"), 4 * elements, 0, [&] {
    const Tensor x = bench.tensor({n}, DType::f32), out = bench.tensor({1}, DType::f32);
    return [&bench, x, out] { bench.ops->sum(x, out, false, bench.stream); };
  });
  bench.run("cast", concat(n, " f32 to bf16"), 6 * elements, 0, [&] {
    const Tensor from = bench.tensor({n}, DType::f32), to = bench.tensor({n});
    return [&bench, from, to] { bench.ops->cast(from, to, bench.stream); };
  });
  bench.run("fill", concat(n, " bf16"), 2 * elements, 0, [&] {
    const Tensor x = bench.tensor({n});
    return [&bench, x] { bench.ops->fill(x, 1.5f, bench.stream); };
  });
  bench.run("fill_normal", concat(n, " bf16"), 2 * elements, 0, [&] {
    const Tensor x = bench.tensor({n});
    return [&bench, x] { bench.ops->fill_normal(x, 1, 2, 0, 0, 1, bench.stream); };
  });
}

void batch_cases(Bench& bench, int64_t batch) {
  all_linear_cases(bench, batch);
  norm_cases(bench, batch * 257, 1408, false, 0, 257);
  norm_cases(bench, batch * 257, 1408, true, 0, 257);
  norm_cases(bench, batch * 82, 2560, true, 0, 82);
  norm_cases(bench, batch * 32, 768, true, 0.1f, 32);
  norm_cases(bench, batch * 128, 4096, false, 0, 128);
  for (const AttentionCase& c : {AttentionCase{"vit", batch, 16, 257, 257, 88, false, 0},
                                 AttentionCase{"opt causal", batch, 32, 82, 82, 80, true, 0},
                                 AttentionCase{"qformer cross", batch, 12, 32, 257, 64, false, 0.1f},
                                 AttentionCase{"qformer self", batch, 12, 32, 32, 64, false, 0.1f}})
    attention_cases(bench, c);
  activation_cases(bench, batch * 257, 6144, Activation::gelu, "gelu");
  activation_cases(bench, batch * 82, 10240, Activation::relu, "relu");
  bench.run("dropout_add", dims({batch * 82, 2560}), 6.0 * static_cast<double>(batch * 82 * 2560), 0, [&] {
    DropoutAdd args;
    args.x = bench.tensor({batch * 82, 2560}), args.residual = bench.tensor({batch * 82, 2560});
    args.dropout = bench.dropout(0.1f, batch, 82), args.y = bench.tensor({batch * 82, 2560});
    return [&bench, args] { bench.ops->dropout_add(args, bench.stream); };
  });
  embedding_cases(bench, batch);
}

void write_json(const Bench& bench, const std::string& path) {
  std::ofstream out(path);
  out << "{\"device\": \"" << bench.device->name() << "\", \"copy_tb_s\": " << bench.copy_rate / 1e12
      << ", \"gemm_tflop_s\": " << bench.gemm_rate / 1e12 << ", \"ops\": [\n";
  for (size_t i = 0; i < bench.results.size(); ++i) {
    const Result& r = bench.results[i];
    out << "  {\"op\": \"" << r.op << "\", \"shape\": \"" << r.shape << "\", \"us\": " << r.microseconds
        << ", \"bytes\": " << r.bytes << ", \"flops\": " << r.flops << ", \"percent\": " << bench.percent(r) << "}"
        << (i + 1 < bench.results.size() ? "," : "") << "\n";
  }
  out << "]}\n";
  out.close();
  BLIPFT_USER_CHECK(out, path, ": cannot be written");
}

int run_all(int argc, char** argv) {
  std::map<std::string, std::string> options{{"--json", ""}, {"--cache", "build/gemm-cache.txt"}, {"--filter", ""},
      {"--device", "0"}};
  for (int i = 1; i < argc; i += 2) {
    BLIPFT_USER_CHECK(options.count(argv[i]) && i + 1 < argc, "op_bench: unknown or incomplete option ", argv[i],
                      "; expected --json FILE, --cache FILE, --filter TEXT or --device N");
    options[argv[i]] = argv[i + 1];
  }
  Bench bench(std::stoi(options["--device"]), options["--cache"]);
  measure_ceilings(bench);
  bench.filter = options["--filter"];
  for (int64_t batch : {16, 64}) batch_cases(bench, batch);
  loss_case(bench, 784, DType::bf16);
  loss_case(bench, 784, DType::f32);
  update_case(bench, "bf16", DType::bf16, false, DType::bf16, DType::bf16);
  update_case(bench, "mixed", DType::bf16, true, DType::f32, DType::f32);
  update_case(bench, "f32", DType::f32, false, DType::f32, DType::f32);
  flat_cases(bench);
  if (!options["--json"].empty()) write_json(bench, options["--json"]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_all(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "op_bench: " << error.what() << "\n";
    return 1;
  }
}
