// --plan with --generate or --evaluate: what generation would take, and what fits.
#pragma once

#include "blipft/config.h"

namespace blipft {

struct GenerationPlanRequest {
  int64_t ranks = 0;                       ///< 0: as the config says
  double gpu_gib = 0;                      ///< of a GPU; 0: the GPU of this machine, else an H200's
  bool fit = false;                        ///< the largest numbers of texts for several lengths alone
  bool scored = false;                     ///< of --evaluate
};
/// Prints the memory plan of a generation and how many texts of which length fit. Returns true if the generation fits.
/// Needs no GPU and no weights.
bool print_generation_plan(const Config& config, const GenerationPlanRequest& request);

}  // namespace blipft
