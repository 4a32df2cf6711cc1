#include "tests/testing/table_trainer.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <cstring>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "client/status_error.h"
#include "common/bucket.h"
#include "common/partition.h"
#include "common/rpc/status_rpc.h"
#include "common/state_options.h"
#include "proto/optshard/v1/shard_owner.grpc.pb.h"
#include "server/update/update_rule.h"
#include "tests/testing/rule_table.h"
#include "tests/testing/trained_tensors.h"

namespace optshard::testing {
namespace {

// Small, so that parameters are cut into several.
constexpr BucketOptions kBuckets = {8192, 1024};

void Append(const v1::SlotChunk& chunk, TrainedTensor& slot) {
  const bool is_double = chunk.dtype() == v1::DTYPE_FLOAT64;
  slot.dtype = is_double ? DType::kFloat64 : DType::kFloat32;
  const auto append = [&slot](const auto& values) {
    slot.bytes.append(reinterpret_cast<const char*>(values.data()),
                      values.size() * sizeof(values[0]));
  };
  if (is_double) append(chunk.float64_values());
  if (!is_double) append(chunk.values());
}

// The slots of this rank at a shard server.
class ServersSlots {
 public:
  explicit ServersSlots(const ShardedOptimizer& optimizer)
      : optimizer_(optimizer),
        stub_(v1::ShardOwner::NewStub(
            grpc::CreateChannel(optimizer.owner_address(), grpc::InsecureChannelCredentials()))) {
    v1::ListParametersRequest request;
    Name(request);
    request.set_page_size(1000);
    grpc::ClientContext context;
    ThrowIfError(FromGrpc(stub_->ListParameters(&context, request, &owned_)));
  }

  std::vector<TrainedTensor> Of(int parameter) {
    std::vector<TrainedTensor> slots;
    for (const v1::OwnedParameter& owned : owned_.parameters()) {
      if (owned.parameter() != parameter) continue;
      for (const std::string& name : owned.slots()) {
        if (name != kStepSlot) slots.push_back(Read(owned, name));
      }
      // Not every rule lists it.
      const auto step = static_cast<float>(owned.step());
      slots.push_back({kStepSlot, 0, DType::kFloat32, std::string(sizeof step, '\0')});
      std::memcpy(slots.back().bytes.data(), &step, sizeof step);
    }
    return slots;
  }

 private:
  template <typename Request>
  void Name(Request& request) const {
    request.set_optimizer(optimizer_.options().optimizer);
    request.set_rank(optimizer_.options().rank);
  }

  // One number for the whole parameter.
  bool IsScalar(const v1::OwnedParameter& owned, const std::string& name) const {
    const auto& options =
        static_cast<const RuleOptions&>(optimizer_.param_groups()[owned.group()].options());
    const UpdateRule* const rule = ValueOrThrow(RuleRegistry::Find(options.rule()));
    return absl::c_any_of(rule->spec().scalar_slots,
                          [&name](const ScalarSlotSpec& slot) { return slot.name == name; });
  }

  TrainedTensor Read(const v1::OwnedParameter& owned, const std::string& name) {
    v1::ReadSlotRequest request;
    Name(request);
    request.set_parameter(owned.parameter());
    request.set_slot(name);
    const int64_t first = IsScalar(owned, name) ? 0 : owned.offset_elements();
    request.set_offset_elements(first);
    grpc::ClientContext context;
    const auto stream = stub_->ReadSlot(&context, request);
    TrainedTensor slot;
    slot.name = name;
    slot.first = first;
    for (v1::SlotChunk chunk; stream->Read(&chunk);) Append(chunk, slot);
    ThrowIfError(FromGrpc(stream->Finish()));
    return slot;
  }

  const ShardedOptimizer& optimizer_;
  std::unique_ptr<v1::ShardOwner::Stub> stub_;
  v1::ListParametersResponse owned_;
};

}  // namespace

void TrainTable(const ShardedOptimizerOptions& options, const std::vector<std::string>& policies,
                int states, const std::string& directory) {
  for (const NamedState& state : absl::MakeConstSpan(TableStates()).subspan(0, states)) {
    for (const RuleKind kind : {RuleKind::kElementWise, RuleKind::kWholeParameters}) {
      const RecordedJob job = TableJob(kind, state);
      for (const std::string& policy : policies) {
        ShardedOptimizerOptions of_job = options;
        of_job.policy = ValueOrThrow(ParsePartitionPolicy(policy));
        of_job.buckets = kBuckets;
        const bool is_cut = of_job.policy == PartitionPolicy::kBalanced;
        if (job.groups.empty() || (is_cut && kind == RuleKind::kWholeParameters)) continue;
        of_job.optimizer =
            absl::StrCat(state.name, ".",
                         kind == RuleKind::kElementWise ? "elements" : "parameters", ".", policy);
        std::unique_ptr<ServersSlots> slots;
        const std::vector<TrainedTensor> trained = Train(
            job, of_job,
            [&slots](const ShardedOptimizer& optimizer, const at::Tensor& parameter, int index) {
              if (optimizer.options().attach == "embedded") {
                return SlotsOfEmbeddedOwner(optimizer, parameter, index);
              }
              if (slots == nullptr) slots = std::make_unique<ServersSlots>(optimizer);
              return slots->Of(index);
            });
        WriteTensors(absl::StrCat(directory, "/", of_job.optimizer, ".", options.rank), trained);
      }
    }
  }
}

}  // namespace optshard::testing
