// The table of strategies.
#include "strategies/replicated.h"
#include "strategies/sharded.h"

namespace blipft {

bool cuts_parameters(const std::string& name) { return name == "fsdp"; }

int64_t shard_count(const std::string& name, int64_t ranks) { return cuts_parameters(name) ? ranks : 1; }

std::unique_ptr<Strategy> make_strategy(const std::string& name, const StrategyContext& context,
                                        const ShardedSettings& sharded) {
  BLIPFT_USER_CHECK(name == "single" || name == "ddp" || name == "fsdp", "parallel.strategy: found ", name,
                    ", known are single, ddp, fsdp");
  BLIPFT_USER_CHECK(name != "single" || context.groups.all->size() == 1, "parallel.strategy: single runs on one rank, "
                    "but there are ", context.groups.all->size(), "; use ddp or fsdp");
  if (cuts_parameters(name) || context.store->weights_place() == Place::host)
    return std::make_unique<Sharded>(context, sharded);
  return std::make_unique<Replicated>(context);
}

}  // namespace blipft
