// optshard-server --memory-need: says what a job will take, and takes nothing.
#ifndef OPTSHARD_SERVER_NODE_MEMORY_NEED_COMMAND_H_
#define OPTSHARD_SERVER_NODE_MEMORY_NEED_COMMAND_H_

#include <cstdint>
#include <string>

#include "server/node/job_description.h"

namespace optshard {

// An allowance for what a shard server takes beside the memory of its ranks: threads, connections,
// requests that it answers. One without trainers is charged 4 MiB.
constexpr int64_t kServerProcessBytes = int64_t{128} << 20;

// For people, with one line for programs at the end: a JSON object whose counts are bytes.
//   world_size          ranks of the job
//   ranks               of this node, as --node-ranks has them
//   rank_bytes          of the rank that needs most
//   node_bytes          of all ranks of this node together: the least --memory-limit
//   snapshot_bytes      what one snapshot of all of them may add to it, as a checkpoint makes
//   server_bytes        all of that and the server itself: the least limit of its container
std::string MemoryNeedText(const JobDescription& job, const ParameterSpace& space,
                           const NodeMemoryNeed& need);

// As a main: the exit code.
int RunMemoryNeed(int argc, char** argv);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_MEMORY_NEED_COMMAND_H_
