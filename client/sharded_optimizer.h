// The optimizer that a trainer uses in place of torch::optim's: each rank keeps the state of its
// share of the parameters only, in a shard owner in this process or in a shard server beside it.
#ifndef OPTSHARD_CLIENT_SHARDED_OPTIMIZER_H_
#define OPTSHARD_CLIENT_SHARDED_OPTIMIZER_H_

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/loaded_checkpoint.h"
#include "client/owned_range.h"
#include "client/rule_options.h"
#include "client/sharded_optimizer_options.h"
#include "client/status_error.h"
#include "common/step_info.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace optshard {

// client/state_dict.h
template <typename Key>
struct KeyedStateDict;
using StateDict = KeyedStateDict<int64_t>;
using NamedStateDict = KeyedStateDict<std::string>;

// What the last step did, on this rank.
struct ClientStepInfo : StepInfo {
  // Gradients that did not lie where the step reads them, so that it copied them first.
  int64_t gradients_copied = 0;
};

// All ranks of the optimizer construct it, step it and close it together. Errors are thrown as
// StatusError. A step that this rank or all ranks refuse for what they were given changes nothing:
// correct it and call again. After any other error the optimizer is broken: each later step() and
// Close() throws the first one.
//
// param_groups()[i].options() are RuleOptions; what is set there between steps reaches the owners,
// so torch::optim's LR schedulers drive it. All ranks set the same.
//
// Bound to the thread of the trainer, except where noted.
class ShardedOptimizer : public torch::optim::Optimizer {
 public:
  // A group without options of its own has `defaults`. One with options of another rule is stepped
  // by that rule, with its defaults for what is not set.
  //
  // Checks the parameters, joins the job, waits for all ranks, and gives all of them rank 0's
  // values of the parameters. A tensor that a group has twice, as tied weights are, is counted
  // once; that is logged as a warning, and so is a group without parameters. Errors before all
  // ranks have joined leave the tensors as they were; after a later one (a rank is lost) their
  // values may be rank 0's, and their memory has moved. Errors:
  //   INVALID_ARGUMENT    a parameter that cannot be optimized, an unknown rule or option, a value
  //                       out of its range, a rule that needs whole parameters with a policy that
  //                       cuts them, an optimizer class with a shard server, masters, another
  //                       state_dtype or publish_dtype than "float32", or main_gradients of 16-bit
  //                       parameters, a factory that fails, ranks that do not
  //                       agree with each other, a rank or world size that is not set or out of
  //                       range
  //   ALREADY_EXISTS      the rank is taken by a living process
  //   UNAVAILABLE         no coordinator or shard server there, or a rank was lost meanwhile
  //   DEADLINE_EXCEEDED   ranks that never came, by number
  //   RESOURCE_EXHAUSTED  no memory for parameters, gradients or state: need and limit
  // Where attached to a shard server also those of docs/errors.md, "Attaching".
  ShardedOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups,
                   const RuleOptions& defaults, ShardedOptimizerOptions options);
  ShardedOptimizer(std::vector<at::Tensor> parameters, const RuleOptions& defaults,
                   ShardedOptimizerOptions options);
  // The module's parameters, by their names.
  ShardedOptimizer(const torch::nn::Module& module, const RuleOptions& defaults,
                   ShardedOptimizerOptions options);

  ShardedOptimizer(ShardedOptimizer&&) = delete;
  ShardedOptimizer& operator=(ShardedOptimizer&&) = delete;

  // Closes the optimizer as Close does, but reports no error. A broken optimizer is not closed, and
  // neither is one that is destroyed because of an exception: the other ranks then lose this one.
  ~ShardedOptimizer() override;

  // One step by all ranks together (docs/life_of_a_step.md). Returns the closure's loss, or an
  // undefined tensor. The closure computes with autograd enabled, whatever the caller has set; the
  // step itself records nothing. Errors:
  //   INVALID_ARGUMENT   a gradient, parameter or hyperparameter of this rank that cannot be used:
  //                      nothing is sent, and the others wait until this rank calls again
  //   INVALID_ARGUMENT   on all ranks: hyperparameters that differ; kAveraged, and a gradient is
  //                      missing on some ranks; some ranks call refresh_parameters or
  //                      verify_replicas. Nothing
  //                      changes, and all may call again, with one exception: where gradients
  //                      travel by messages (kReduce), the last one breaks the optimizer
  //   UNIMPLEMENTED      param_groups() has other groups or parameters than those that were given
  //                      (nothing is sent; undo that and call again), but groups at the end, and
  //                      parameters at the end of groups, which are added
  //   UNAVAILABLE, DEADLINE_EXCEEDED  a rank was lost or did not come: nobody has applied the step
  //                      or the trainer of another rank is gone and its successor has not come
  //                      in step_timeout: nothing changed, call again (errors::IsTrainerGone;
  //                      wait_for_trainers)
  //                      or a shard server is gone, and is started again over the state it had:
  //                      call again with the same gradients (errors::IsOwnerAway;
  //                      wait_for_trainers)
  //   DATA_LOSS          a rank was lost while the step was applied: the parameters here and the
  //                      state at the owners may be half of the old and half of the new
  //                      (errors::IsTornStep); or ranks voted for the step and one did not come to
  //                      it in step_timeout, so that only others may have applied it
  //                      (errors::IsStepInDoubt; in one pass over shared memory the vote is the
  //                      first thing that a rank waits for); or step() of an optimizer class threw
  //                      on some rank: errors::IsTornStep with those ranks, on all; the parameters
  //                      are those of the step before
  at::Tensor step(LossClosure closure = nullptr) override;

  const ClientStepInfo& last_step() const;

  // The last step that is in the parameters: 0 before the first. More right after construction
  // where this trainer is attached to a shard server and the successor of another one: then the
  // parameters have been given that step's values, and training goes on after it. After
  // load_checkpoint(), that of the checkpoint.
  StepNumber finished_step() const;

  // As torch::optim::Optimizer's. With set_to_none it touches no memory, and the next backward
  // writes each gradient once instead of adding it to zeros.
  void zero_grad(bool set_to_none = true);

  // The float32 gradient of a bfloat16 or float16 parameter, where the option main_gradients is
  // set: what step() reads instead of parameter.grad(), and zero_grad() zeroes. It has the
  // parameter's shape, and may be kept as long as the optimizer lives. The trainer may clip it,
  // scale it, average it over ranks (kAveraged), or add to it itself, from code that writes weight
  // gradients in float32. After the first call, a parameter with requires_grad has a gradient in
  // every step, be it zeros; before that, only if a backward has come since zero_grad(). Errors:
  //   INVALID_ARGUMENT  main_gradients is not set; the tensor is no parameter of this optimizer, or
  //                     is float32 or float64, whose gradient is parameter.grad()
  at::Tensor main_grad(const at::Tensor& parameter);

  // Keeps a few bytes with the state, such as random state or the position in the data: for
  // checkpoints, and, at a shard server, for the trainer that succeeds this one. They are sent with
  // the next step, and kept once it is finished. INVALID_ARGUMENT beyond 64 KiB.
  void set_blob(const std::string& blob);
  // The last blob of the trainer that this one succeeds, or, after load_checkpoint(), the one that
  // this rank had in the checkpoint, where as many ranks saved it; empty if there is none.
  const std::string& blob() const;

  // Gives rank 0's values of the parameters to all ranks. All ranks call it, for example after a
  // checkpoint was loaded into them. With master_weights, masters of which the parameter is no
  // longer the rounded value become that value; without this call, the next step would go on from
  // the masters, and what was edited would be lost. Errors as step.
  void refresh_parameters();

  // Compares the values of all parameters on all ranks, bit by bit. All ranks call it, between
  // steps; it reads each rank's parameters once and sends some 500 bytes. After a step they are
  // equal, until somebody writes to a parameter on one rank, or its memory fails. Nothing changes,
  // also where they differ: training can go on. Errors:
  //   INVALID_ARGUMENT   on all ranks: errors::IsRanksDisagree, naming the first parameter that
  //                      differs; errors::RanksOf are the ranks that do not have what most have, or
  //                      one of several values that equally many have. Or some ranks call step() or
  //                      refresh_parameters() meanwhile, and which (over Gloo and with kReduce, a
  //                      call of step() at the same time breaks the job)
  //   else as step; nothing is ever torn or in doubt because of it
  void verify_replicas();

  // Copies of the optimizer state that this rank keeps of a parameter, by PyTorch's slot names:
  // "exp_avg", "momentum_buffer", ...; "master" where there is one, or "master_correction" (int8)
  // with master_weight_bits 24, which belongs to the parameter's present value; and always "step",
  // how often the parameter was updated. A slot has the parameter's shape where this rank owns the
  // whole parameter, else the shape [elements] of its range (owner_of), and the type in which it is
  // kept, float32 where a slot is 8 bits; "step" and what else is one number for the parameter have
  // the shape [], and Adafactor's averages over rows and columns torch's shapes. Empty where this
  // rank owns nothing of the parameter. Asks no other rank: also while others' trainers are away,
  // and of a predecessor of this trainer. Errors:
  //   INVALID_ARGUMENT     it is no parameter of this optimizer
  //   UNIMPLEMENTED        an optimizer class steps the parameter (local_optimizer)
  //   FAILED_PRECONDITION  the optimizer is closed; or the error that broke it
  // and where the shard owner is in a shard server:
  //   UNAVAILABLE          a shard server is gone, and is started again over the state it had: call
  //                        again (errors::IsOwnerAway). Or it is gone for good
  //   DEADLINE_EXCEEDED    the server does not answer within step_timeout and half a minute
  //   DATA_LOSS            a step has torn the state (errors::IsTornStep)
  // Where step() has said errors::IsOwnerAway and was not called again yet, that step may be in the
  // state already.
  std::map<std::string, at::Tensor> state(const at::Tensor& parameter) const;

  // The optimizer that steps a param group on this rank, where the group was given an optimizer
  // class (RuleOptions::OfClass). It holds copies of those parameters of the group that this rank
  // owns, in the group's order; where the rank owns none, it is not stepped. Its options may be
  // changed between steps, on all ranks alike: the learning rate of its first param group is
  // compared in each step, and what else differs is not noticed. Valid as long as this optimizer.
  // INVALID_ARGUMENT where a rule steps the group, or there is no such group.
  torch::optim::Optimizer& local_optimizer(int group = 0) const;

  // Replaces all slots that state() gives by copies of these, from the next step on. Each rank sets
  // what it owns. Where several ranks own a parameter (kBalanced), "step" and what else is one
  // number must be the same on all of them, and under kReplicated everything. The parameter itself
  // stays; with a "master" the next step goes on from that. Slots that are kept in 8 bits are coded
  // again, so that they stand for what state() has given. Errors as state(), and with nothing
  // changed:
  //   INVALID_ARGUMENT     a slot that is missing or unknown, of another shape or type, or a "step"
  //                        that counts nothing; slots on a rank that owns nothing of the parameter
  // After an error of a shard server's (UNAVAILABLE, DEADLINE_EXCEEDED) some of the slots may be
  // replaced and others not. The same call made again completes it; a step that comes first goes on
  // from what is there.
  void set_state(const at::Tensor& parameter, const std::map<std::string, at::Tensor>& slots);

  // Gives rank `to` the whole optimizer state, or all ranks, with -1: that of the last step, for
  // state_dict(). All ranks call it, between the same steps, with the same `to`. That rank needs
  // memory for the whole state. It pulls from all owners over gRPC or, where it cannot reach one,
  // in windows of 128 KiB over the data plane. What was consolidated before is dropped. Where a
  // shard server or a trainer is lost meanwhile it begins again once all are back. Errors:
  //   INVALID_ARGUMENT   on all ranks: they give different ranks, or one that is none; or some
  //                      step or make another call meanwhile
  //   UNIMPLEMENTED      an optimizer class steps a group (local_optimizer)
  //   else as verify_replicas and state; nothing is ever torn or in doubt because of it
  void consolidate_state_dict(int to = 0);

  // What was last consolidated on this rank, with the options that param_groups() had then, in the
  // layout of PyTorch's: it can be given to load_state_dict, also of an unsharded optimizer and at
  // another number of ranks. "step" is there with every rule. Copies share their tensors with what
  // is kept here. FAILED_PRECONDITION, in PyTorch's words, where nothing was consolidated.
  const StateDict& state_dict() const;
  // With `all_ranks`, as OSS has it: consolidates to all ranks first. All of them call it then,
  // with the same value. Without: as state_dict(). Errors as those two.
  const StateDict& state_dict(bool all_ranks);
  // The same by the parameters' names. INVALID_ARGUMENT never.
  NamedStateDict named_state_dict() const;

  // A copy of this rank's share, as a state dict of an optimizer over what partition_parameters()
  // gives for it. Asks no other rank. Errors as state, and UNIMPLEMENTED as consolidate_state_dict.
  StateDict local_state_dict() const;

  // The same share, but of a whole state dict and of any rank. What is not cut shares its tensors.
  // INVALID_ARGUMENT: no such rank, or a dict of other groups, parameters or shapes.
  StateDict rank_local_state_dict(int rank, const StateDict& whole) const;

  // Replaces the whole optimizer state, and the options in param_groups(), by those of `dict`, from
  // the next step on, wherever it comes from: any number of ranks, any policy, an unsharded
  // optimizer of PyTorch. All ranks call it, between the same steps: with equal dicts, or, with
  // `from`, that rank with a dict that counts for all, of which each owner is sent its share. The
  // parameters stay, so they are loaded before; with master_weights, of a dict without "master"
  // they become the masters. A parameter without state in the dict begins anew. What is given is
  // neither changed nor kept. Slots of other floating-point types are converted. Errors, and on all
  // ranks nothing has changed:
  //   INVALID_ARGUMENT   "loaded state dict has a different number of parameter groups", "...
  //                      contains a parameter group that doesn't match the size of optimizer's
  //                      group"; slots or options that are missing or unknown, of another shape or
  //                      type; options that need other slots. Or dicts that differ between the
  //                      ranks, naming the first value that does (errors::IsRanksDisagree)
  //   RESOURCE_EXHAUSTED a rank has no memory for a share beside the one that it has: need and
  //                      limit
  //   else as consolidate_state_dict
  // Where a shard server or a trainer is lost in the middle, the call begins again on all ranks, as
  // consolidate_state_dict does. Only the loss of a rank's owner in the last moment, in which all
  // take what they have, leaves state that is replaced in part: each step is DATA_LOSS on all ranks
  // then, and changes nothing, until the same call is made again on all ranks. Embedded, after the
  // loss of a rank, only load_checkpoint goes on.
  void load_state_dict(const StateDict& dict, int from = -1);
  // Parameters are found by their names, in any order within their group.
  void load_state_dict(const NamedStateDict& dict, int from = -1);

  // Goes on from a checkpoint in `directory`: the optimizer state, the parameters, the options in
  // param_groups(), the blob, and finished_step() are those of its step. All ranks call it, between
  // the same steps, at any number of ranks and any policy, embedded or at a shard server, whatever
  // saved it. `name` is that of one of the checkpoints; empty: the newest committed one of this job
  // and optimizer, as rank 0 sees it; where that turns out to be damaged, the newest one that is
  // not (LoadedCheckpoint::passed_over, and a warning). All ranks see the same files. Each reads
  // only its share, once; its owner has that beside what it has until the call ends. Parameters are
  // found by their names (ShardedOptimizerOptions::parameter_names, or those of a module).
  // Everything is read and checked before anything is replaced. Errors, and on all ranks nothing
  // has changed:
  //   NOT_FOUND            no such directory, no committed checkpoint (of this job and optimizer)
  //   DATA_LOSS            it is damaged: file, tensor and bytes; a file of it is missing; without
  //                        a name, so are all of them
  //   INVALID_ARGUMENT     it is of another model, rule or type, with the first difference, how
  //                        many parameters fit, and the names of the first; what is there is no
  //                        checkpoint; ranks give different names, or see different files
  //                        (errors::IsRanksDisagree); or some step or make another call meanwhile
  //   FAILED_PRECONDITION  it is of a newer format, or a link is in place of a file
  //   RESOURCE_EXHAUSTED   a rank has no memory for a second share: need and limit
  //   UNIMPLEMENTED        an optimizer class steps a group (local_optimizer)
  //   else those of files, and as consolidate_state_dict
  // Only the loss of a rank in the last moment, in which all take what they have, leaves the state
  // of no step (errors::IsTornStep): each step is DATA_LOSS on all ranks, and changes nothing,
  // until the call is made again on all ranks. So it is after a torn step at shard servers with a
  // keeper. With wait_for_trainers it begins again, on all ranks, after trainers or servers were
  // away, for which it waits for step_timeout; without, all are told (UNAVAILABLE; ABORTED where
  // others have begun again).
  // Where the shard owners are embedded, this optimizer is broken, and no optimizer class steps a
  // group: once this rank sees such a checkpoint, it joins the job anew first, as construction
  // does, for join_timeout at most and with its errors. All ranks come, those that are left with
  // this call, and a process that was started again with its constructor, the same calls of
  // add_param_group and add_parameters, and this one. Until a load has succeeded no rank steps,
  // what needs state has the error that broke the optimizer, and the parameters are rank 0's. What
  // blob(), last_step() and state_dict() have returned before is no longer valid.
  LoadedCheckpoint load_checkpoint(const std::string& directory, const std::string& name = "");

  // Notes which parameters have requires_grad now. step() needs no such call, which OSS does: a
  // parameter may be frozen and unfrozen at any time. While it is frozen it keeps its value, its
  // owner, its state and its count of steps. The next step() logs a switch once, as a warning;
  // after this call it does not. Sends nothing, and each rank may call it by itself.
  void refresh_trainable();

  // The param groups of every rank, by rank: in each group those parameters of which the rank owns
  // some elements. Groups without any are there, too. Under kBalanced a parameter that is cut
  // stands with each rank that has a part of it, and owner_of() says which part; under kReplicated
  // all stand with every rank. The groups' options are copies of those in param_groups(). Asks
  // nobody, and costs time in proportion to ranks times groups.
  std::vector<std::vector<torch::optim::OptimizerParamGroup>> partition_parameters() const;

  // Which rank keeps the optimizer state of which elements of a parameter: under kGreedy and
  // kGreedyInOrder one range, the whole parameter; under kBalanced one range for each rank that has
  // some; under kReplicated the whole parameter for every rank. The parameter is one of
  // param_groups(), or its index over the groups in order. Asks nobody. INVALID_ARGUMENT where it
  // is no parameter of this optimizer.
  std::vector<OwnedRange> owner_of(const at::Tensor& parameter) const;
  std::vector<OwnedRange> owner_of(int parameter) const;

  // Adds a param group, which the next step() updates. All ranks call it, between the same steps,
  // with the same group; its values become rank 0's. The group's options are as at construction.
  // What was there keeps its owners, state and memory. Called through a reference to
  // torch::optim::Optimizer, where it is not virtual, the next step() does this first, on all
  // ranks, and has these errors too. What is added waits for other ranks up to join_timeout, and as
  // long again for them to make the memory. Errors that leave everything as it was:
  //   INVALID_ARGUMENT    as at construction, for the group: nothing is sent, and the others wait
  //                       until this rank calls again. A group without parameters. A tensor that
  //                       would have to move to the memory that ranks share, and is tied to others.
  //                       Or, on all ranks: errors::IsRanksDisagree, with the first difference; or
  //                       that a rank is in step(), whose step() has this error then, too, within
  //                       two heartbeats (some seconds)
  //   DEADLINE_EXCEEDED   errors::IsPeersTimedOut: these ranks did not call it
  //   RESOURCE_EXHAUSTED  a rank, which is named, has no memory for it; on all ranks
  //   UNAVAILABLE         the coordinator does not answer; or errors::IsPeerLost, of a rank that
  //                       has left the job in good order. At shard servers: a rank's trainer or
  //                       server is away and has not come back in join_timeout, or was not waited
  //                       for (errors::IsTrainerGone, errors::IsOwnerAway). The same call, with the
  //                       same group, completes what was begun
  //   UNIMPLEMENTED       an optimizer class is to step the group
  // Those of a rank or coordinator that is lost meanwhile are as step's, and break the optimizer.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  // Adds parameters at the end of a param group, whose options they have from then on. Else as
  // add_param_group, also through a reference to torch::optim::Optimizer, which has no number of a
  // group: it is the first one. Errors as add_param_group, and INVALID_ARGUMENT where there is no
  // such group, or it has one of the parameters already. What state dicts, owner_of(int) and
  // param_groups() count over the groups in order moves up behind it. UNIMPLEMENTED where an
  // optimizer class steps the group.
  void add_parameters(const std::vector<at::Tensor>& parameters, int group = 0);

  // For torch::save and torch::load, in the format of torch::optim's own optimizers, which can load
  // it where the rule is one of theirs. Saves what state_dict() gives, with its error. Loads as
  // load_state_dict does, on all ranks from equal archives; torch's own error where an archive is
  // damaged.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // Saves a checkpoint of the last finished step, in `directory` (docs/checkpoints.md): state,
  // parameters, options and each rank's blob. One rank's call is enough, and all ranks' calls
  // between the same steps are one checkpoint, whose labels are the first caller's. Returns once
  // this rank's owner has opened the snapshot: the trainer may change what it likes from then on.
  // The owners write in the background while training goes on, and the checkpoint is there once the
  // coordinator has committed it. `directory` is absolute, and all ranks and the coordinator see
  // the same files there; its last component is created where it is missing. Empty: the
  // coordinator's --checkpoint-dir. One with a label is never pruned. Waits for the checkpoint that
  // was asked for before. Errors, of which one may be that one's; training can go on, and earlier
  // checkpoints are as they were:
  //   INVALID_ARGUMENT     the directory or a label cannot be used
  //   FAILED_PRECONDITION  another save of the optimizer is under way, by another rank or by the
  //                        coordinator; owners and coordinator do not see the same files; the
  //                        optimizer is closed
  //   ABORTED              the owners could not open a snapshot together: save again
  //   RESOURCE_EXHAUSTED   memory for the snapshot, or space on the disk: need and limit
  //   UNIMPLEMENTED        an optimizer class steps a group
  //   UNAVAILABLE          a rank was lost, or the coordinator
  //   DEADLINE_EXCEEDED    errors::IsPeersTimedOut: these ranks did not come, or wrote nothing for
  //                        two minutes; or checkpoint_timeout is over
  //   NOT_FOUND, PERMISSION_DENIED, DATA_LOSS and others: of the files
  void save_checkpoint(const std::string& directory, const std::vector<std::string>& labels = {});

  // Exports the parameters of the last finished step as Hugging Face lays out a model: files
  // .safetensors of at most `shard_bytes` of tensors (0: 5 GB), and an index. The shard owners
  // write them together, in the background; returns as save_checkpoint does, which it is like but
  // for this: `directory` is the model, new or empty, in a directory that is there; it has its name
  // once it is whole. Exports and saves come one at a time. Errors as save_checkpoint, but not
  // UNIMPLEMENTED, and
  //   ALREADY_EXISTS       the directory is not empty
  //   INVALID_ARGUMENT     shard_bytes is negative
  void export_model(const std::string& directory, int64_t shard_bytes = 0);

  // Waits until the checkpoint or the model that this rank has asked for last is committed, and
  // returns its path; "" where it has asked for none. Errors as save_checkpoint, once.
  std::string wait_checkpoint();

  // Leaves the job cleanly: waits until all ranks have called it, for close_timeout at most, before
  // that for the checkpoint that this rank has asked for, and after it for the coordinator's
  // answer, for close_timeout at most. At a shard server it waits for no rank, but until what
  // others save of the parameters is copied, for five seconds at most. Idempotent. Afterwards only
  // the parameters can be used. Errors as step, and as wait_checkpoint.
  void Close();

  // Bytes of the optimizer state that this rank keeps, from its live slots. Any thread.
  int64_t state_bytes() const;

  // HOST:PORT of this rank's shard owner service, which grpc_cli can inspect. Any thread.
  std::string owner_address() const;
  // Those of all ranks, by rank, as the coordinator knows them. Throws StatusError where it does
  // not answer within 10 s (UNAVAILABLE), or while ranks join again (FAILED_PRECONDITION). Any
  // thread.
  std::vector<std::string> owner_addresses() const;

  const ShardedOptimizerOptions& options() const;

 private:
  class Impl;
  struct Prepared;

  explicit ShardedOptimizer(const Prepared& prepared);

  const ShardedOptimizerOptions options_;
  std::shared_ptr<Impl> impl_;  // load_checkpoint() may replace it
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_SHARDED_OPTIMIZER_H_
