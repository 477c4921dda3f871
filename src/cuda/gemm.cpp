// Linear layers: every matrix product by cuBLASLt, with bias, ReLU, residuals and bias gradients in its epilogue where
// it can, and our own kernels where it cannot.
//
// Our tensors are row-major, cuBLASLt's matrices column-major: a row-major [r, c] is a column-major [c, r]. So each
// product below computes the transposed result, with its factors swapped:
//   y [M, N] = x w^T     ->  y' [N, M] = w'^T x'      (A = w, transposed; B = x)
//   dx [M, K] = dy w     ->  dx' [K, M] = w' dy'      (A = w; B = dy)
//   dw [N, K] = dy^T x   ->  dw' [K, N] = x' dy'^T    (A = x; B = dy, transposed)
#include "cuda/cuda_ops.h"
#include "ops_check.h"

namespace blipft {
namespace {

cudaStream_t cuda_stream(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace

bool CudaOps::multiply(const GemmProblem& wanted, const GemmBuffers& buffers, Stream stream) {
  BLIPFT_CHECK(workspace_, "set_workspace() comes before the first matrix product");
  GemmProblem problem = wanted;
  set_alignments(problem, buffers);
  GemmPlan& plan = planner_.prepare(problem, buffers, cuda_stream(stream));
  if (!plan.supported) return false;
  planner_.run(plan, problem, buffers, workspace_.data, cuda_stream(stream));
  return true;
}

void CudaOps::linear_forward(const LinearForward& args, Stream stream) {
  check_args(args);
  if (args.y.numel() == 0) return;
  const bool gelu = args.activation == Activation::gelu, relu = args.activation == Activation::relu;
  const Tensor& product = gelu ? args.pre_activation : args.y;
  GemmProblem problem;
  problem.m = args.w.rows(), problem.n = args.x.rows(), problem.k = args.x.cols();
  problem.transpose_a = true;
  problem.input = args.x.dtype, problem.output = args.y.dtype;
  problem.accumulate = static_cast<bool>(args.residual);
  if (args.bias) problem.epilogue = relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  else if (relu) problem.epilogue = CUBLASLT_EPILOGUE_RELU;
  GemmBuffers buffers{args.w.data, args.x.data, args.residual.data, product.data, args.bias.data};

  const bool in_epilogue = multiply(problem, buffers, stream);
  if (!in_epilogue) {
    problem.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    buffers.epilogue_vector = nullptr;
    BLIPFT_CHECK(multiply(problem, buffers, stream), "cuBLASLt has no algorithm for ", problem.key());
  }
  // Ours: what the epilogue could not do, and GELU, whose exact form cuBLASLt does not have.
  if (!in_epilogue && (args.bias || relu))
    launch_bias_activation(product, args.bias, relu ? Activation::relu : Activation::none, context(stream));
  if (gelu) launch_activate(args.pre_activation, args.y, Activation::gelu, context(stream));
}

void CudaOps::linear_backward_input(const LinearBackwardInput& args, Stream stream) {
  check_args(args);
  if (args.dx.numel() == 0) return;
  GemmProblem problem;
  problem.m = args.w.cols(), problem.n = args.dy.rows(), problem.k = args.dy.cols();
  problem.input = args.dy.dtype, problem.output = args.dx.dtype;
  problem.accumulate = static_cast<bool>(args.add);
  const GemmBuffers buffers{args.w.data, args.dy.data, args.add.data, args.dx.data, nullptr};
  BLIPFT_CHECK(multiply(problem, buffers, stream), "cuBLASLt has no algorithm for ", problem.key());
  if (args.activation != Activation::none)
    launch_activation_backward(args.dx, args.saved, args.activated, args.activation, args.dbias, args.accumulate_dbias,
                               context(stream));
  else if (args.dbias)
    launch_column_sums(args.dx, args.dbias, args.accumulate_dbias, context(stream));
}

bool CudaOps::weight_gradient(const LinearBackwardWeight& args, bool with_bias, Stream stream) {
  GemmProblem problem;
  problem.m = args.x.cols(), problem.n = args.dy.cols(), problem.k = args.dy.rows();
  problem.transpose_b = true;
  problem.input = args.dy.dtype, problem.output = args.dw.dtype;
  problem.accumulate = args.accumulate;
  GemmBuffers buffers{args.x.data, args.dy.data, args.dw.data, args.dw.data, nullptr};
  if (!with_bias) return multiply(problem, buffers, stream);

  // The epilogue writes sums of dw's type and cannot add to what is there: it goes through scratch where that matters.
  const LaunchContext launch = context(stream);
  BLIPFT_CHECK(launch.scratch, "set_workspace() comes before the first matrix product");
  const bool direct = !args.accumulate && args.dbias.dtype == args.dw.dtype;
  const Tensor sums{direct ? args.dbias.data : launch.scratch, args.dw.dtype, {args.dbias.numel()}};
  if (sums.bytes() > launch.scratch_bytes && !direct) return false;
  GemmProblem fused = problem;
  fused.epilogue = CUBLASLT_EPILOGUE_BGRADB;
  GemmBuffers fused_buffers = buffers;
  fused_buffers.epilogue_vector = sums.data;
  set_alignments(fused, fused_buffers);
  set_alignments(problem, buffers);
  const GemmPlan& with = planner_.prepare(fused, fused_buffers, launch.stream);
  if (!with.supported) return false;
  const GemmPlan& without = planner_.prepare(problem, buffers, launch.stream);
  // Timed both ways: the epilogue must not cost more than a pass over dy of our own (about 3 TB/s, and
  // two launches).
  const double own_pass = 3.0 + static_cast<double>(args.dy.bytes()) / 3e6;
  if (with.microseconds > 0 && without.microseconds > 0 && with.microseconds > without.microseconds + own_pass)
    return false;
  if (!multiply(fused, fused_buffers, stream)) return false;
  if (!direct && args.accumulate) launch_add(sums, args.dbias, launch);
  else if (!direct) launch_cast(sums, args.dbias, launch);
  return true;
}

void CudaOps::linear_backward_weight(const LinearBackwardWeight& args, Stream stream) {
  check_args(args);
  if (args.dw.numel() == 0) return;
  if (args.dbias && weight_gradient(args, true, stream)) return;
  BLIPFT_CHECK(weight_gradient(args, false, stream), "cuBLASLt has no algorithm for a weight gradient of dy ",
               args.dy.shape.str(), " and x ", args.x.shape.str());
  if (args.dbias) launch_column_sums(args.dy, args.dbias, args.accumulate, context(stream));
}

}  // namespace blipft
