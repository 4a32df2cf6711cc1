// The training loop of the digits example: the same for every optimizer.
#ifndef OPTSHARD_EXAMPLES_DIGITS_TRAINING_H_
#define OPTSHARD_EXAMPLES_DIGITS_TRAINING_H_

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>

#include "examples/digits_data.h"
#include "examples/digits_model.h"

namespace optshard {

struct DigitsTraining {
  int epochs = 12;
  int batch_size = 64;  // of all ranks together; each takes an equal share
  uint64_t seed = 0;    // of the order of the digits
  int rank = 0;
  int world_size = 1;
  int64_t finished_steps = 0;  // of an earlier process, which this one goes on from
};

struct DigitsProgress {
  int epoch = 0;    // the first is 1
  double loss = 0;  // mean over this process's batches of the epoch, of this rank's share
};

// What is called while it trains.
struct DigitsCallbacks {
  std::function<void(const DigitsProgress&)> epoch_ended;
  std::function<void(int64_t finished_steps)> step_ended;  // may be none
};

// An epoch's last digits that make no whole batch are left out.
void TrainDigits(const DigitsTraining& training, const Digits& digits, DigitsModel& model,
                 torch::optim::Optimizer& optimizer, const DigitsCallbacks& callbacks);

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_DIGITS_TRAINING_H_
