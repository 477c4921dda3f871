// The only file that is recompiled at each commit.
#include "blipft/version.h"

namespace blipft {

const char* version_number() { return BLIPFT_VERSION; }

const char* version_commit() { return BLIPFT_COMMIT; }

}  // namespace blipft
