// Notices that parameters were frozen or unfrozen between two steps, for the log.
#ifndef OPTSHARD_CLIENT_REPLICA_TRAINABLE_WATCH_H_
#define OPTSHARD_CLIENT_REPLICA_TRAINABLE_WATCH_H_

#include <string>
#include <vector>

#include "client/replica/parameter_list.h"

namespace optshard {

// Bound to the trainer's thread.
class TrainableWatch {
 public:
  // Remembers the parameters' requires_grad().
  explicit TrainableWatch(const ParameterList& list);

  // Which parameters' requires_grad() is another one than that remembered, for people; empty where
  // none is. Names the first few of them and counts the rest. Remembers the present values.
  std::string TakeChanges();

 private:
  const ParameterList list_;
  std::vector<bool> trainable_;  // by parameter
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_REPLICA_TRAINABLE_WATCH_H_
