#include "client/replica/memory_choice.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/replica/flat_memory.h"

namespace optshard {
namespace {

// The option that cannot do without flat memory, for people; null where there is none.
const char* WhatNeedsFlatMemory(const ShardedOptimizerOptions& options) {
  if (options.attach != "embedded") return "attaching to a shard server";
  if (options.share_parameters) return "share_parameters";
  return nullptr;
}

}  // namespace

absl::StatusOr<MemoryChoice> ChooseMemory(const ShardedOptimizerOptions& options,
                                          const ParameterList& list) {
  const BucketView wish = options.parameters_as_bucket_view;
  const char* const need = WhatNeedsFlatMemory(options);
  MemoryChoice choice;
  if (wish == BucketView::kOff) {
    if (need != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          need,
          " needs the parameters in shared memory, but parameters_as_bucket_view is off; leave "
          "it at its default"));
    }
    choice.flat = false;
    return choice;
  }
  const std::string broken = WhatFlatMemoryBreaks(list);
  choice.may_stay = wish == BucketView::kAutomatic && need == nullptr;
  if (broken.empty()) return choice;
  if (choice.may_stay) {
    choice.flat = false;
    choice.warning = absl::StrCat(
        broken,
        ": all tensors stay where they are, and steps are slower than they could be. Set "
        "parameters_as_bucket_view to true to move the values all the same, or to false to hide "
        "this warning");
  } else {
    choice.warning =
        absl::StrCat(broken,
                     ": its values have been moved to contiguous memory, and nothing else "
                     "that refers to the old memory sees later steps");
  }
  return choice;
}

}  // namespace optshard
