// Sizes in bytes as people read them.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_SIZE_TEXT_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_SIZE_TEXT_H_

#include <cstdint>
#include <string>

namespace optshard {

// "640 B", "5.0 KiB", "152.6 MiB", "1.2 GiB".
std::string SizeText(int64_t bytes);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_SIZE_TEXT_H_
