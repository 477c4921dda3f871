// Relative position bias: conversion of the bucket table to attention bias, and the gradient of the table.
#include "blipft/relative_bias.h"

#include "cpu/cpu_ops.h"
#include "ops/ops_check.h"

namespace blipft::cpu {

namespace {

int64_t bucket_of_column(const RelativeBias& args, int64_t c) {
  return relative_bucket(args.first, args.distances, args.directed, c - args.scores.behind);
}

}  // namespace

void CpuOps::relative_bias_forward(const RelativeBias& args, Stream) {
  check_args(args);
  const int64_t heads = args.table.cols(), columns = args.scores.columns();
  float* table = left_.floats(args.table.numel());
  load(args.table, 0, args.table.numel(), table);
  float* scores = args.scores.values.as<float>();
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t h = 0; h < heads; ++h) scores[h * columns + c] = table[bucket_of_column(args, c) * heads + h];
}

void CpuOps::relative_bias_backward(const RelativeBias& args, Stream) {
  check_backward_args(args);
  const int64_t heads = args.table.cols(), columns = args.scores.columns(), n = args.table.numel();
  const float* scores = args.scores.values.as<const float>();
  float* sums = left_.floats(n);
  std::fill_n(sums, n, 0.0f);
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t h = 0; h < heads; ++h) sums[bucket_of_column(args, c) * heads + h] += scores[h * columns + c];
  column_sums(sums, 1, args.table, args.accumulate);
}

}  // namespace blipft::cpu
