// What owners say about slots of some parameters.
#ifndef OPTSHARD_SERVER_COORDINATOR_INSPECTION_SLOT_ANSWERS_RPC_H_
#define OPTSHARD_SERVER_COORDINATOR_INSPECTION_SLOT_ANSWERS_RPC_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/ids.h"
#include "proto/optshard/v1/inspection.pb.h"
#include "server/coordinator/inspection/job_view.h"
#include "server/coordinator/inspection/owner_calls_rpc.h"

namespace optshard {

struct SlotQuestion {
  std::vector<int32_t> parameters;  // sorted
  std::string slot;                 // a pattern
  bool statistics = false;
  bool all_owners = false;  // false: only one owner of each parameter
};

struct SlotAnswers {
  // By parameter, by offset: of those that have answered.
  std::map<int32_t, std::vector<v1::ParameterPart>> parts;
  std::map<int32_t, Rank> first_ranks;          // by parameter: whose the first part is
  std::vector<v1::UnansweredOwner> unanswered;  // the first 64 of them
  int unanswered_count = 0;
};

// The answers are of the view's plan: an owner whose answer does not fit it counts as one that has
// not answered. Where one owner of a parameter is enough and the first has not answered, the next
// one is asked, up to four.
SlotAnswers AskAboutSlots(const JobView& view, const SlotQuestion& question,
                          const CallPatience& patience);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_INSPECTION_SLOT_ANSWERS_RPC_H_
