// Creates strategies by kind.
#include "strategies/replicated.h"
#include "strategies/sharded.h"

namespace blipft {

bool cuts_parameters(StrategyKind kind) { return kind == StrategyKind::fsdp; }

int64_t shard_count(StrategyKind kind, int64_t ranks) { return cuts_parameters(kind) ? ranks : 1; }

std::unique_ptr<Strategy> make_strategy(StrategyKind kind, const StrategyContext& context,
                                        const ShardedSettings& sharded) {
  BLIPFT_CHECK(kind != StrategyKind::automatic, "the strategy has not been chosen");
  BLIPFT_USER_CHECK(kind != StrategyKind::single || context.groups.all->size() == 1, "parallel.strategy: single runs on one rank, "
                    "but there are ", context.groups.all->size(), "; use ddp or fsdp");
  if (cuts_parameters(kind) || context.store->weights_space() == MemorySpace::host)
    return std::make_unique<Sharded>(context, sharded);
  return std::make_unique<Replicated>(context);
}

}  // namespace blipft
