// Options of a ShardedOptimizer, and where the environment gives them.
#ifndef OPTSHARD_CLIENT_SHARDED_OPTIMIZER_OPTIONS_H_
#define OPTSHARD_CLIENT_SHARDED_OPTIMIZER_OPTIONS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/bucket_view.h"
#include "common/bucket.h"
#include "common/gradient_mode.h"
#include "common/ids.h"
#include "common/partition.h"

namespace optshard {

struct ShardedOptimizerOptions {
  // All ranks of a job give the same names; a job with two optimizers gives them two names.
  std::string job = "optshard";
  std::string optimizer = "default";
  // This process's rank, and how many ranks the job has. Neither is guessed: processes that each
  // took themselves for the only rank would train apart without a word. FromEnvironment sets both.
  // One rank alone sets world_size to 1.
  static constexpr int kNotSet = -1;
  Rank rank = kNotSet;
  int world_size = kNotSet;

  // HOST:PORT of the job's coordinator. Empty: rank 0 runs one in its own process.
  std::string coordinator;
  // Where rank 0's own coordinator listens and the other ranks find it. Not used where
  // `coordinator` is given. Needed for more than one rank; one rank alone takes any free port.
  std::string embedded_coordinator;

  // Where the rank's shard owner runs: "embedded" in this process, or in the shard server of this
  // node, "unix:PATH" of its socket. With a server all tensors become views of memory that it
  // shares with the trainer, and the state outlives this process.
  std::string attach = "embedded";
  // How an embedded owner reaches the others': "shm" for shared memory, "gloo", or "auto" for the
  // fastest that all ranks can use: shared memory where they run on one host, else Gloo, beside
  // shared memory within each host where the ranks of a node have some (docs/multi_host.md). The
  // ranks decide together; one that asks for "gloo" decides for all. (A server has its own
  // option.) log_level "info" shows which was chosen, and why.
  std::string plane = "auto";
  // One copy of the parameters for all ranks of a host, which have their own gradients only. Needs
  // shared memory, and moves the parameters there whatever they share their storage with.
  bool share_parameters = false;
  // What step() does while another rank cannot take part, because its trainer is gone and its
  // successor has not yet attached to the shard server, or because its shard server is restarting.
  // True: it waits, for step_timeout and at most a second more. False: it returns an error that
  // names the rank, at once.
  bool wait_for_trainers = true;

  // Whether the owners keep bfloat16 and float16 parameters in float32, too, update that and round
  // it to the parameter: small steps then add up that 16 bits would swallow. 4 bytes for each
  // element of such a parameter, sharded like the rest of the state. Edit a parameter's values only
  // before refresh_parameters(): the next step goes on from the masters. The same on all ranks.
  // INVALID_ARGUMENT where no parameter is bfloat16 or float16.
  bool master_weights = false;
  // How many bits those copies have. 32: float32 beside the parameter. 24: the owner keeps 8 bits
  // more than the parameter has instead, its rounding error in 127ths of half the distance to the
  // next number, as FlashOptim does. That takes 1 byte in place of 4; with "int8_companded" AdamW
  // takes 7 bytes for each element of a bfloat16 parameter (parameter, gradient, two slots, these 8
  // bits; the slots' scales come on top). Edited parameters are then taken as they are also without
  // refresh_parameters(), to within that error. The same on all ranks. INVALID_ARGUMENT for other
  // numbers, and for 24 without master_weights.
  int master_weight_bits = 32;
  // Whether bfloat16 and float16 parameters have float32 gradients, as by Megatron's
  // param.main_grad: what backward computes is added to them in float32 as soon as autograd has it,
  // and param.grad becomes none. So the gradients of many backwards add up without rounding, and
  // are averaged over the ranks in float32; 4 bytes an element in place of 2, here and over
  // messages. The trainer gets them by main_grad(). The same on all ranks. INVALID_ARGUMENT where
  // no parameter is bfloat16 or float16.
  bool main_gradients = false;
  // To what the values of float32 parameters are rounded before the replicas get them: "float32"
  // (they are not), "bfloat16" or "float16" (fairscale's broadcast_fp16; values beyond 65504 become
  // infinite). Over messages only 2 bytes an element are then sent back from the owners. The
  // owner's own replica holds the rounded values, too, so that all replicas have the same bits. The
  // owners keep the values themselves as masters, as master_weights does for 16-bit parameters: 4
  // bytes an element, sharded like the rest of the state. So small steps add up, and what was said
  // of editing a parameter's values holds here. A parameter keeps all of its first value until it
  // is updated, and a row of it, where gradients are sparse, until the row is. Parameters of other
  // types are published as they are. The same on all ranks. INVALID_ARGUMENT for other names, and
  // where no parameter is float32.
  std::string publish_dtype = "float32";
  // How the rule's slots are kept. The same on all ranks. Those of a float64 parameter are float64
  // in any case, and masters stay float32.
  //   "float32"         (default)
  //   "bfloat16"        half the memory
  //   "int8_dynamic"    8 bits and a float32 scale for each 256 elements, as bitsandbytes and
  //                     torchao have it
  //   "int8_companded"  8 bits and a float16 scale for each 32 elements, the format of FlashOptim;
  //                     faster
  // In 8 bits a parameter with fewer than 4,096 elements keeps float32 slots, and the rules are
  // Adam, AdamW, Lion, LAMB, Muon and SGD; docs/numerics.md says what the formats do to values.
  // INVALID_ARGUMENT for other names, for a rule that does not work in 8 bits, and for
  // buckets.max_bytes below 1024 with 8 bits.
  std::string state_dtype = "float32";

  GradientMode gradient_mode = GradientMode::kReduce;
  PartitionPolicy policy = PartitionPolicy::kGreedy;
  // Whether the values of all parameters and of their gradients are moved into one flat memory per
  // group, of which param.data and param.grad become views. Only then can ranks of one host step in
  // one pass over the memory of all of them, which is several times as fast as messages.
  //   automatic (default)  moved, unless that would break something for the trainer: a parameter
  //                        that shares its storage with another tensor, that lies in memory which
  //                        LibTorch did not allocate, or that is not contiguous. Then every tensor
  //                        of this rank stays where it is, and a warning names the parameter.
  //   true                 moved in any case, as by PyTorch's option of this name
  //   false                every tensor stays where it is. PyTorch's default; not the one here,
  //                        because it is the slow way.
  // The ranks need not choose alike: those of one host step in one pass if all of them have moved
  // their values, and by messages otherwise. Choose false where the process forks children that use
  // the parameters: they do not inherit memory that ranks share.
  BucketView parameters_as_bucket_view;
  // How the plane cuts its messages; the same on all ranks.
  BucketOptions buckets;
  // Where the owner keeps the state, and updates.
  //   ""     (default) on the device that the parameters are on
  //   "cpu"  in memory of the host, on its CPUs, also where the parameters are on a GPU: for models
  //          whose state does not fit there. A step is as much slower as the host's memory is, and
  //          returns when it is done. All rules of docs/rules.md.
  // The ranks need not choose alike. INVALID_ARGUMENT for other names.
  std::string state_device;
  // For the update of the owned parameters, the one that steps included. 0: this rank's share of
  // the CPUs, among the ranks of its node.
  int threads = 0;

  // Bytes that snapshots of this rank's owner may have for copies of what steps change meanwhile,
  // taken at the start. 0: as much as one of state and parameters needs, taken when the first one
  // is made. Where the owner is in a shard server, that one's --snapshot-memory counts instead.
  // INVALID_ARGUMENT for less than 0.
  int64_t snapshot_memory = 0;

  // Whether a checkpoint's parameters are copied while save_checkpoint() lasts, not while the
  // trainer goes on. For trainers that write to parameters between save_checkpoint() and step() by
  // ways that the tensors' versions do not tell of: `data()` and pointers. Other writes are seen,
  // and are no reason (docs/snapshots.md).
  bool copy_parameters_at_once = false;

  // By parameter index over the groups in order, for messages and inspection. Empty: the module's
  // names where the optimizer is made from a module, else "parameter_0", "parameter_1", ...
  std::vector<std::string> parameter_names;

  absl::Duration join_timeout = absl::Seconds(60);  // until all ranks are there
  absl::Duration step_timeout = absl::Seconds(60);  // of a whole step, stragglers included
  absl::Duration close_timeout = absl::Seconds(5);  // of leaving the job cleanly
  // How long save_checkpoint, wait_checkpoint and Close wait for a checkpoint.
  absl::Duration checkpoint_timeout = absl::Minutes(10);

  // Network interface ("eth0") or address of this host that the data plane uses. Empty: the
  // loopback where the coordinator is on it, else the address from which the coordinator is
  // reached.
  std::string interface;
  // HOST:PORT at which the shard owner's service listens, for checkpoints, consolidation and
  // inspection; port 0 is any free one. Empty: any port of the loopback where the coordinator is on
  // it, which only processes of this host can reach; else of the address from which the coordinator
  // is reached.
  std::string owner_listen;
  // Ranks of one node are summed with each other first. Empty: the host's name.
  std::string node;
  // "debug", "info", "warning", "error", "off"; empty: as it is.
  std::string log_level;

  // From the variables that torchrun sets, and the project's own:
  //   RANK, WORLD_SIZE             rank, world_size; one rank alone is RANK=0 WORLD_SIZE=1. Where
  //                                neither is set: what srun or mpirun says (common/task_place.h)
  //   GROUP_RANK, LOCAL_RANK, LOCAL_WORLD_SIZE
  //                                where RANK alone is not set, and every node has as many ranks:
  //                                rank = GROUP_RANK * LOCAL_WORLD_SIZE + LOCAL_RANK
  //   OPTSHARD_COORDINATOR         coordinator
  //   OPTSHARD_ATTACH              attach
  //   OPTSHARD_PLANE               plane
  //   MASTER_ADDR, MASTER_PORT     embedded_coordinator = MASTER_ADDR:(MASTER_PORT + 1)
  //   OPTSHARD_JOIN_TIMEOUT        join_timeout, such as 90s or 10m
  //   OPTSHARD_JOB, OPTSHARD_INTERFACE, OPTSHARD_OWNER_LISTEN, OPTSHARD_NODE, OPTSHARD_LOG_LEVEL
  // INVALID_ARGUMENT naming the variable, its value and what was expected; also where nothing
  // says rank and world size.
  static absl::StatusOr<ShardedOptimizerOptions> FromEnvironment();
  // As above from any other source; it returns null for a variable that is not set.
  static absl::StatusOr<ShardedOptimizerOptions> FromVariables(
      const std::function<const char*(const char*)>& variable);
};

// `options` with a rank and a world size that are known and fit each other. INVALID_ARGUMENT where
// they are not set, with what the environment says of them and what to do, or out of range.
absl::StatusOr<ShardedOptimizerOptions> WithKnownRank(ShardedOptimizerOptions options);
// As above with variables from any other source.
absl::StatusOr<ShardedOptimizerOptions> WithKnownRank(
    ShardedOptimizerOptions options, const std::function<const char*(const char*)>& variable);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_SHARDED_OPTIMIZER_OPTIONS_H_
