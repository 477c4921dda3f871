// Patches of images, embeddings of image and text, and ops that copy whole rows.
#include <cstring>
#include <vector>

#include "blipft/patch_ops.h"
#include "cpu/cpu_ops.h"
#include "ops/ops_check.h"

namespace blipft::cpu {
namespace {

/// Copies to[to_row] = from[from_row]; both have the same dtype and row size.
void copy_row(const Tensor& from, int64_t from_row, const Tensor& to, int64_t to_row) {
  const int64_t bytes = from.cols() * dtype_size(from.dtype);
  std::memcpy(to.as<char>() + to_row * bytes, from.as<const char>() + from_row * bytes, static_cast<size_t>(bytes));
}

/// Returns the row of the position table for row t of sample b of a TextEmbed.
int64_t position_row(const TextEmbed& args, int64_t b, int64_t t) {
  if (args.row_positions) {
    const int64_t position = args.row_positions.as<const int32_t>()[b];
    return position >= 0 ? position + 2 : 1;
  }
  return t < args.prefix_rows + args.lengths.as<const int32_t>()[b] ? t + 2 : 1;
}

/// Returns the maximum number of rows of a sample.
int64_t max_rows(const TextEmbed& args) { return args.prefix_rows + args.ids.cols(); }

/// Returns the row of args.prefix for row r of x, which is row t of sample b; -1 if a token stands there.
int64_t prefix_row(const TextEmbed& args, int64_t r, int64_t b, int64_t t) {
  if (args.prefix_of_row) return args.prefix_of_row.as<const int32_t>()[r];
  return t < args.prefix_rows ? b * args.prefix_rows + t : -1;
}

/// Calls f(i, r) in order for every id index i of a token that has a row r.
template <class F>
void for_ids(const TextEmbed& args, F f) {
  const int64_t samples = args.ids.rows(), tokens = args.ids.cols(), maximum = max_rows(args);
  for (int64_t b = 0; b < samples; ++b) {
    const int64_t first = first_row(args.packing, b, maximum) + args.prefix_rows;
    const int64_t count = std::min(tokens, first_row(args.packing, b + 1, maximum) - first);
    for (int64_t t = 0; t < count; ++t)
      if (prefix_row(args, first + t, b, args.prefix_rows + t) < 0) f(b * tokens + t, first + t);
  }
}

/// Returns the factor of token rows, rounded to the compute dtype.
float token_scale(const TextEmbed& args) {
  float scale = args.token_scale;
  round_to(args.x.dtype, &scale, 1);
  return scale;
}

/// Throws if a sample lacks image or text rows or if an id with a row, or a position, is outside of its table.
void check_numbers(const TextEmbed& args) {
  const int32_t* lengths = args.lengths.as<const int32_t>();
  check_packing(args.packing, max_rows(args));
  for (int64_t b = 0; args.packing && b < args.lengths.numel(); ++b)
    BLIPFT_CHECK(rows_of(args.packing, b, 0) >= args.prefix_rows + lengths[b], "packed sample ", b, " has ",
                 rows_of(args.packing, b, 0), " rows, expected at least ", args.prefix_rows, " + ", lengths[b]);
  const int32_t *picture = args.prefix_of_row.as<const int32_t>(), *row = args.row_of_prefix.as<const int32_t>();
  for (int64_t r = 0; picture && r < args.x.rows(); ++r)
    BLIPFT_CHECK(picture[r] < args.row_of_prefix.numel() && (picture[r] < 0 || row[picture[r]] == r), "prefix_of_row[", r,
                 "] is ", picture[r], ", which stands elsewhere");
  const int32_t* ids = args.ids.as<const int32_t>();
  if (args.tokens) for_ids(args, [&](int64_t i, int64_t) {
    BLIPFT_CHECK(ids[i] >= 0 && ids[i] < args.tokens.rows(), "token id ", ids[i], " is outside of the table of ",
                 args.tokens.rows(), " rows");
  });
  for (int64_t b = 0; args.row_positions && args.positions && b < args.ids.rows(); ++b)
    BLIPFT_CHECK(position_row(args, b, 0) < args.positions.rows(), "row_positions[", b, "] is ",
                 args.row_positions.as<const int32_t>()[b], ", but positions has ", args.positions.rows(), " rows");
}

/// Returns the row of args.rows for row r of args.blocks, or -1 if r is not copied.
int64_t picked_row(const RowBlocks& args, int64_t r) {
  const int64_t left_out = args.block_rows - args.offset - args.count;
  const auto [b, t] = sample_row(args.packing, r, args.block_rows);
  if (args.fixed) return t < args.offset || t >= args.offset + args.count ? -1 : b * args.count + t - args.offset;
  if (t < args.offset || r >= first_row(args.packing, b + 1, args.block_rows) - left_out) return -1;
  return r - args.offset - b * (args.offset + left_out);
}

/// Throws if a packed block has too few rows.
void check_numbers(const RowBlocks& args) {
  check_packing(args.packing, args.block_rows);
  const int64_t minimum = args.fixed ? args.offset + args.count : args.block_rows - args.count;
  for (int64_t b = 0; args.packing && b + 1 < args.packing.starts.numel(); ++b)
    BLIPFT_CHECK(rows_of(args.packing, b, 0) >= minimum, "packed block ", b, " has ", rows_of(args.packing, b, 0),
                 " rows, but ", minimum, args.fixed ? " are asked of it" : " are left out of it");
}

/// An addend: row `source_row` of the incoming gradient is added to row `table_row` of a table.
struct Occurrence {
  int64_t table_row, source_row;
};

/// Computes table[use.table_row] (+)= scale * source[use.source_row] for all uses; unless `accumulate`, other rows of
/// the table become 0. Each table row is summed by one thread, in the order of the uses.
void scatter_rows(const Tensor& source, std::vector<Occurrence> uses, const Tensor& table, bool accumulate,
                  float scale = 1) {
  const int64_t n = source.cols();
  std::stable_sort(uses.begin(), uses.end(),
                   [](const Occurrence& a, const Occurrence& b) { return a.table_row < b.table_row; });
  std::vector<size_t> starts;  // index of each table row's first entry in `uses`
  for (size_t i = 0; i < uses.size(); ++i)
    if (i == 0 || uses[i].table_row != uses[i - 1].table_row) starts.push_back(i);
  starts.push_back(uses.size());
  const int64_t row_bytes = n * dtype_size(table.dtype);
  if (!accumulate) for_each(table.rows(), [&](int64_t r) {
    std::memset(table.as<char>() + r * row_bytes, 0, static_cast<size_t>(row_bytes));
  });
  for_each(static_cast<int64_t>(starts.size()) - 1, [&](int64_t s) {
    float* total = thread_buffer(0, n);
    float* row = thread_buffer(1, n);
    std::fill_n(total, n, 0.0f);
    const size_t begin = starts[static_cast<size_t>(s)], end = starts[static_cast<size_t>(s) + 1];
    for (size_t i = begin; i < end; ++i) {
      load(source, uses[i].source_row * n, n, row);
      add_scaled(total, 1, row, n);
    }
    for (int64_t c = 0; scale != 1 && c < n; ++c) total[c] *= scale;
    store_gradient(total, table, uses[begin].table_row * n, n, accumulate);
  });
}

/// Computes row `out_row` of out (+)= sum over b of row first_row + b * stride of source.
void sum_strided_rows(const Tensor& source, int64_t first_row, int64_t stride, int64_t count, const Tensor& out,
                      int64_t out_row, bool accumulate) {
  const int64_t n = source.cols();
  float* total = thread_buffer(0, n);
  float* row = thread_buffer(1, n);
  std::fill_n(total, n, 0.0f);
  for (int64_t b = 0; b < count; ++b) {
    load(source, (first_row + b * stride) * n, n, row);
    add_scaled(total, 1, row, n);
  }
  store_gradient(total, out, out_row * n, n, accumulate);
}

}  // namespace

void CpuOps::patchify(const Patchify& args, Stream) {
  check_args(args);
  const int64_t size = args.pixels.shape[1], patch = args.patch, side = size / patch, n = 3 * patch * patch;
  const uint8_t* pixels = args.pixels.as<const uint8_t>();
  for_each(args.patches.rows(), [&](int64_t r) {
    const int64_t b = r / (side * side), top = r % (side * side) / side * patch, left = r % side * patch;
    float* out = thread_buffer(0, n);
    for (int64_t c = 0; c < 3; ++c)
      for (int64_t y = 0; y < patch; ++y)
        for (int64_t x = 0; x < patch; ++x) {
          const uint8_t pixel = pixels[((b * size + top + y) * size + left + x) * 3 + c];
          out[(c * patch + y) * patch + x] = (static_cast<float>(pixel) / 255.0f - args.mean[c]) / args.std[c];
        }
    store(out, args.patches, r * n, n);
  });
}

void CpuOps::vision_embed_forward(const VisionEmbed& args, Stream) {
  check_args(args);
  const int64_t n = args.x.cols(), rows = args.positions.rows();  // 1 + P
  for_each(args.x.rows(), [&](int64_t r) {
    const int64_t b = r / rows, t = r % rows;
    float* x = thread_buffer(0, n);
    float* position = thread_buffer(1, n);
    if (t == 0) load(args.class_embedding, 0, n, x);
    else load(args.patches, (b * (rows - 1) + t - 1) * n, n, x);
    load(args.positions, t * n, n, position);
    add_scaled(x, 1, position, n);
    store(x, args.x, r * n, n);
  });
}

void CpuOps::vision_embed_backward(const VisionEmbed& args, Stream) {
  check_backward_args(args);
  const int64_t samples = args.x.rows() - args.patches.rows(), patches = args.patches.rows() / samples;
  for_each(args.patches.rows(), [&](int64_t r) {
    copy_row(args.x, r / patches * (1 + patches) + 1 + r % patches, args.patches, r);
  });
  if (!args.parameters) return;
  sum_strided_rows(args.x, 0, 1 + patches, samples, args.class_embedding, 0, args.accumulate);
  for_each(1 + patches, [&](int64_t t) {
    sum_strided_rows(args.x, t, 1 + patches, samples, args.positions, t, args.accumulate);
  });
}

void CpuOps::text_embed_forward(const TextEmbed& args, Stream) {
  check_args(args);
  check_numbers(args);
  const int64_t n = args.x.cols(), tokens = args.ids.cols(), maximum = max_rows(args);
  const float scale = token_scale(args);
  const int32_t* ids = args.ids.as<const int32_t>();
  for_each(args.x.rows(), [&](int64_t r) {
    const auto [b, t] = sample_row(args.packing, r, maximum);
    float* x = thread_buffer(0, n);
    const int64_t picture = prefix_row(args, r, b, t);
    if (picture >= 0) load(args.prefix, picture * n, n, x);
    else load(args.tokens, ids[b * tokens + t - args.prefix_rows] * n, n, x);
    if (picture < 0 && scale != 1) {
      for (int64_t c = 0; c < n; ++c) x[c] *= scale;
      round_to(args.x.dtype, x, n);
    }
    if (args.positions) {
      float* position = thread_buffer(1, n);
      load(args.positions, position_row(args, b, t) * n, n, position);
      add_scaled(x, 1, position, n);
    }
    store(x, args.x, r * n, n);
  });
}

void CpuOps::text_embed_backward(const TextEmbed& args, Stream) {
  check_backward_args(args);
  check_numbers(args);
  const int64_t maximum = max_rows(args);
  const int32_t* ids = args.ids.as<const int32_t>();
  if (args.prefix) for_each(args.prefix.rows(), [&](int64_t r) {
    const auto first = [&](int64_t b) { return first_row(args.packing, b, maximum); };
    const int64_t q = args.prefix_rows, row = q > 0 ? first(r / q) + r % q : args.row_of_prefix.as<const int32_t>()[r];
    if (row >= 0) return copy_row(args.x, row, args.prefix, r);
    const int64_t bytes = args.prefix.cols() * dtype_size(args.prefix.dtype);
    std::memset(args.prefix.as<char>() + r * bytes, 0, static_cast<size_t>(bytes));
  });
  if (args.tokens) {
    std::vector<Occurrence> uses;
    for_ids(args, [&](int64_t i, int64_t r) {
      if (ids[i] != args.padding_id) uses.push_back({ids[i], r});
    });
    scatter_rows(args.x, std::move(uses), args.tokens, args.accumulate_tokens, token_scale(args));
  }
  if (args.positions) {
    std::vector<Occurrence> uses;
    for (int64_t r = 0; r < args.x.rows(); ++r) {
      const auto [b, t] = sample_row(args.packing, r, maximum);
      uses.push_back({position_row(args, b, t), r});
    }
    scatter_rows(args.x, std::move(uses), args.positions, args.accumulate_positions);
  }
}

void CpuOps::gather_rows(const Tensor& table, const Tensor& numbers, const Tensor& rows, Stream) {
  check_gather_rows(table, numbers, rows);
  const int32_t* from = numbers.as<const int32_t>();
  for (int64_t r = 0; r < rows.rows(); ++r)
    BLIPFT_CHECK(from[r] < table.rows(), "gather_rows: numbers[", r, "] is ", from[r],
                 ", but the table has ", table.rows(), " rows");
  const int64_t bytes = rows.cols() * dtype_size(rows.dtype);
  for_each(rows.rows(), [&](int64_t r) {
    if (from[r] >= 0) copy_row(table, from[r], rows, r);
    else std::memset(rows.as<char>() + r * bytes, 0, static_cast<size_t>(bytes));
  });
}

void CpuOps::add_rows(const Tensor& rows, const Tensor& numbers, const Tensor& x, Stream) {
  check_add_rows(rows, numbers, x);
  const int64_t n = x.cols();
  const int32_t* to = numbers.as<const int32_t>();
  std::vector<uint8_t> used(static_cast<size_t>(x.rows()));
  for (int64_t r = 0; r < rows.rows(); ++r)
    BLIPFT_CHECK(to[r] < 0 || (to[r] < x.rows() && !used[static_cast<size_t>(to[r])]++), "add_rows: numbers[", r, "] is ", to[r],
                 ", which x lacks or another row is added to");
  for_each(rows.rows(), [&](int64_t r) {
    if (to[r] < 0) return;
    float *sum = thread_buffer(0, n), *row = thread_buffer(1, n);
    load(x, to[r] * n, n, sum);
    load(rows, r * n, n, row);
    add_scaled(sum, 1, row, n);
    store(sum, x, to[r] * n, n);
  });
}

void CpuOps::tile_rows(const Tensor& rows, const Tensor& tiled, Stream) {
  check_tile_rows(rows, tiled);
  for_each(tiled.rows(), [&](int64_t r) { copy_row(rows, r % rows.rows(), tiled, r); });
}

void CpuOps::sum_tiles(const Tensor& tiled, const Tensor& rows, bool accumulate, Stream) {
  check_sum_tiles(tiled, rows);
  const int64_t count = rows.rows();
  for_each(count, [&](int64_t r) {
    sum_strided_rows(tiled, r, count, tiled.rows() / count, rows, r, accumulate);
  });
}

void CpuOps::mean_rows(const Tensor& x, const Tensor& means, Stream) {
  check_mean_rows(x, means);
  const int64_t cols = x.cols(), count = x.rows() / means.rows();
  for_each(means.rows(), [&](int64_t r) {
    float *sum = thread_buffer(0, cols), *row = thread_buffer(1, cols);
    std::fill_n(sum, cols, 0.0f);
    for (int64_t k = 0; k < count; ++k) {
      load_row(x, r * count + k, row);
      for (int64_t c = 0; c < cols; ++c) sum[c] += row[c];
    }
    for (int64_t c = 0; c < cols; ++c) sum[c] /= static_cast<float>(count);
    store_row(sum, means, r);
  });
}

void CpuOps::mean_rows_backward(const Tensor& means, const Tensor& x, Stream) {
  check_mean_rows(x, means);
  const int64_t cols = x.cols(), count = x.rows() / means.rows();
  for_each(x.rows(), [&](int64_t r) {
    float* row = thread_buffer(0, cols);
    load_row(means, r / count, row);
    for (int64_t c = 0; c < cols; ++c) row[c] /= static_cast<float>(count);
    store_row(row, x, r);
  });
}

void CpuOps::pick_rows(const RowBlocks& args, Stream) {
  check_args(args);
  check_numbers(args);
  for_each(args.blocks.rows(), [&](int64_t r) {
    if (const int64_t row = picked_row(args, r); row >= 0) copy_row(args.blocks, r, args.rows, row);
  });
}

void CpuOps::spread_rows(const RowBlocks& args, Stream) {
  check_args(args);
  check_numbers(args);
  const int64_t bytes = args.blocks.cols() * dtype_size(args.blocks.dtype);
  for_each(args.blocks.rows(), [&](int64_t r) {
    if (const int64_t row = picked_row(args, r); row >= 0) copy_row(args.rows, row, args.blocks, r);
    else if (!args.keep) std::memset(args.blocks.as<char>() + r * bytes, 0, static_cast<size_t>(bytes));
  });
}

}  // namespace blipft::cpu
