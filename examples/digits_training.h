// The training loop of the digits example. It works with any optimizer.
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
  int batch_size = 64;  // of all ranks together; a multiple of world_size
  uint64_t seed = 0;    // for the order of the digits
  int rank = 0;
  int world_size = 1;
  int64_t finished_steps = 0;  // how many an earlier process has done; training goes on after them
};

struct DigitsProgress {
  int epoch = 0;    // the first is 1
  double loss = 0;  // of this rank's share, the mean over the epoch's steps in this process
};

// Called during training, on the thread that trains.
struct DigitsCallbacks {
  std::function<void(const DigitsProgress&)> epoch_ended;
  std::function<void(int64_t finished_steps)> step_ended;  // may be null
};

// How many steps the whole training has.
int64_t StepsOf(const DigitsTraining& training, const Digits& digits);

// Trains from `finished_steps` to the end of the last epoch. Digits at the end of an epoch that do
// not fill a batch are left out.
void TrainDigits(const DigitsTraining& training, const Digits& digits, DigitsModel& model,
                 torch::optim::Optimizer& optimizer, const DigitsCallbacks& callbacks);

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_DIGITS_TRAINING_H_
