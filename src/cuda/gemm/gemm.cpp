// Linear layers: cuBLASLt computes every matrix product, with bias, ReLU and residual in its epilogue if supported; our
// kernels do the rest, and products of few rows.
//
// Our tensors are row-major, cuBLASLt's matrices column-major: a row-major [r, c] is a column-major [c, r]. Each
// product below therefore computes the transposed result with swapped factors:
//   y [M, N] = x w^T     ->  y' [N, M] = w'^T x'      (A = w, transposed; B = x)
//   dx [M, K] = dy w     ->  dx' [K, M] = w' dy'      (A = w; B = dy)
//   dw [N, K] = dy^T x   ->  dw' [K, N] = x' dy'^T    (A = x; B = dy, transposed)
// fp8 factors are stored such that A is transposed and B is not, the only form that Hopper's tensor cores support.
#include "cuda/cuda_ops.h"
#include "ops/ops_check.h"

namespace blipft {
namespace {

cudaStream_t cuda_stream(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

/// Replaces the factors of `problem` and `buffers` by the fp8 factors `a` and `b`.
void take_fp8(const Fp8Matrix& a, const Fp8Matrix& b, GemmProblem& problem, GemmBuffers& buffers) {
  problem.transpose_a = true, problem.transpose_b = false;
  problem.k = a.quantized.cols();
  problem.input = a.quantized.dtype, problem.input_b = b.quantized.dtype;
  problem.lda = problem.ldb = 0;
  buffers.a = a.quantized.data, buffers.b = b.quantized.data;
  buffers.scale_a = a.scale.data, buffers.scale_b = b.scale.data;
}

/// Returns the leading dimension for GemmProblem: 0 if the rows are contiguous.
int64_t stride_of(const MatrixView& view) { return view.contiguous() ? 0 : view.row_stride; }

}  // namespace

bool CudaOps::multiply(const GemmProblem& wanted, const GemmBuffers& buffers, Stream stream) {
  BLIPFT_CHECK(workspace_, "set_workspace() comes before the first matrix product");
  GemmProblem problem = wanted;
  problem.tf32 = tf32_ && problem.input == DType::f32;
  set_alignments(problem, buffers);
  GemmPlan& plan = planner_.prepare(problem, buffers, cuda_stream(stream));
  if (!plan.supported) return false;
  planner_.run(plan, problem, buffers, workspace_of(stream), cuda_stream(stream));
  return true;
}

void CudaOps::linear_forward(const LinearForward& args, Stream stream) {
  check_args(args);
  if (args.y.numel() == 0 || (!args.x8 && launch_few_rows(args, context(stream)))) return;
  const bool gelu = is_gelu(args.activation), relu = args.activation == Activation::relu;
  const MatrixView product = gelu ? MatrixView(args.pre_activation) : args.y;
  GemmProblem problem;
  problem.m = args.w.rows(), problem.n = args.x.rows(), problem.k = args.x.cols();
  problem.transpose_a = true;
  problem.input = args.x.dtype, problem.output = args.y.dtype;
  problem.accumulate = static_cast<bool>(args.residual);
  problem.ldb = stride_of(args.x), problem.ldd = stride_of(product);
  if (args.residual) problem.ldc = stride_of(args.residual);
  if (args.bias) problem.epilogue = relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  else if (relu) problem.epilogue = CUBLASLT_EPILOGUE_RELU;
  GemmBuffers buffers{.a = args.w.data, .b = args.x.data, .c = args.residual.data, .d = product.data,
                      .epilogue_vector = args.bias.data, .alpha = args.scale};
  if (args.x8) take_fp8(args.w8, args.x8, problem, buffers);

  const bool in_epilogue = multiply(problem, buffers, stream);
  if (!in_epilogue) {
    problem.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    buffers.epilogue_vector = nullptr;
    BLIPFT_CHECK(multiply(problem, buffers, stream), "cuBLASLt has no algorithm for ", problem.key());
  }
  // Our kernels apply what the epilogue does not support, and GELU, whose exact form cuBLASLt does not have.
  if (!in_epilogue && (args.bias || relu))
    launch_bias_activation(product, args.bias, relu ? Activation::relu : Activation::none, context(stream));
  if (gelu) launch_activate(args.pre_activation, args.y.tensor(), args.activation, context(stream));
}

void CudaOps::linear_backward_input(const LinearBackwardInput& args, Stream stream) {
  check_args(args);
  if (args.dx.numel() == 0) return;
  GemmProblem problem;
  problem.m = args.w.cols(), problem.n = args.dy.rows(), problem.k = args.dy.cols();
  problem.input = args.dy.dtype, problem.output = args.dx.dtype;
  problem.accumulate = static_cast<bool>(args.add);
  problem.ldb = stride_of(args.dy), problem.ldd = stride_of(args.dx);
  if (args.add) problem.ldc = stride_of(args.add);
  GemmBuffers buffers{.a = args.w.data, .b = args.dy.data, .c = args.add.data, .d = args.dx.data,
                      .epilogue_vector = nullptr, .alpha = args.scale};
  if (args.dy8) take_fp8(args.wt8, args.dy8, problem, buffers);
  BLIPFT_CHECK(multiply(problem, buffers, stream), "cuBLASLt has no algorithm for ", problem.key());
  if (args.activation != Activation::none)
    launch_activation_backward(args.dx.tensor(), args.saved, args.activated, args.activation, args.dbias,
                               args.accumulate_dbias, args.amax, context(stream));
  else if (args.dbias)
    launch_column_sums(args.dx, args.dbias, args.accumulate_dbias, context(stream));
}

void CudaOps::linear_backward_weight(const LinearBackwardWeight& args, Stream stream) {
  check_args(args);
  if (args.dw.numel() == 0) return;
  GemmProblem problem;
  problem.m = args.inputs(), problem.n = args.dy.cols(), problem.k = args.dy.rows();
  problem.transpose_b = true;
  problem.input = args.dy.dtype, problem.output = args.dw.dtype;
  problem.accumulate = args.accumulate;
  if (args.x) problem.lda = stride_of(args.x);
  problem.ldb = stride_of(args.dy);
  GemmBuffers buffers{args.x.data, args.dy.data, args.dw.data, args.dw.data, nullptr};
  if (args.dyt8) take_fp8(args.xt8, args.dyt8, problem, buffers);
  // A separate pass over dy costs less than cuBLASLt's bias gradient epilogue, for which few algorithms exist. It runs
  // first, so that the product finds dy in the L2 cache.
  if (args.dbias) launch_column_sums(args.dy, args.dbias, args.accumulate, context(stream));
  BLIPFT_CHECK(multiply(problem, buffers, stream), "cuBLASLt has no algorithm for ", problem.key());
}

}  // namespace blipft
