// Tensor maps of the attention kernels: descriptions of an operand for the tensor copy engine (TMA).
#include "cuda/attention/wgmma.cuh"
#include "cuda/device/cuda_check.h"

namespace blipft::attention {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// Returns the driver's function. Linking to the driver would prevent the program from starting without one.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    BLIPFT_CUDA_CHECK(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
#else
    BLIPFT_CUDA_CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result));
#endif
    BLIPFT_CHECK(found && result == cudaDriverEntryPointSuccess, "the CUDA driver has no tensor maps");
    return reinterpret_cast<EncodeTiled>(found);
  }();
  return function;
}

CUtensorMap encode(const View& view, const MapShape& shape, unsigned columns, CUtensorMapSwizzle swizzle) {
  CUtensorMap map{};
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(shape.head_size), static_cast<cuuint64_t>(shape.tokens),
                               static_cast<cuuint64_t>(shape.heads), static_cast<cuuint64_t>(shape.samples)};
  // A single sample has no meaningful stride, but the stride must still be a multiple of 16 bytes.
  const int64_t sample_stride = shape.samples > 1 ? view.batch_stride : view.row_stride;
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(view.row_stride) * 2,
                                 static_cast<cuuint64_t>(shape.head_size) * 2,
                                 static_cast<cuuint64_t>(sample_stride) * 2};
  const cuuint32_t box[4] = {columns, 64, 1, 1}, steps[4] = {1, 1, 1, 1};
  const CUresult result = encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, view.data, sizes, strides, box,
                                         steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  BLIPFT_CHECK(result == CUDA_SUCCESS, "a tensor map of ", shape.samples, " x ", shape.tokens, " tokens and ",
               shape.heads, " heads of ", shape.head_size, ", rows ", view.row_stride, " and samples ",
               view.batch_stride, " elements apart, was refused with CUresult ", static_cast<int>(result));
  return map;
}

}  // namespace

TensorMaps make_tensor_maps(const View& view, const MapShape& shape) {
  return {encode(view, shape, 64, CU_TENSOR_MAP_SWIZZLE_128B), encode(view, shape, 32, CU_TENSOR_MAP_SWIZZLE_64B)};
}

}  // namespace blipft::attention
