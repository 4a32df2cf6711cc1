#include "client/replica/replica_list.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/parameter_space.h"

namespace optshard {

ParameterList ListOfAdmission(const ParameterList& all, int admission) {
  ParameterList list;
  list.device = all.device;
  std::vector<GroupSpec> groups(all.space.groups().size());
  for (int p = 0; p < all.space.parameter_count(); ++p) {
    if (all.space.admission_of(p) != admission) continue;
    list.tensors.push_back(all.tensors[p]);
    groups[all.space.group_of(p)].parameters.push_back(all.space.parameter(p));
  }
  list.space = ParameterSpace(std::move(groups));
  return list;
}

void ReplicaList::Add(const ParameterList& list, std::unique_ptr<Replica> replica) {
  const absl::Span<const ReplicaRegion> more = replica->regions();
  const bool all_flat = !more.empty() && (parts_.empty() || !regions_.empty());
  if (!all_flat) regions_.clear();
  if (all_flat) regions_.insert(regions_.end(), more.begin(), more.end());
  for (const at::Tensor& parameter : list.tensors) versions_->Add(parameter);
  parts_.push_back({list.space.parameter_count(), std::move(replica)});
}

void ReplicaList::UseMapping(absl::Span<const ReplicaRegion> regions,
                             const std::shared_ptr<const void>& owner) {
  regions_.assign(regions.begin(), regions.begin() + static_cast<std::ptrdiff_t>(regions_.size()));
  for (const Part& part : parts_) {
    const size_t count = part.replica->regions().size();
    part.replica->UseMapping(regions.subspan(0, count), owner);
    regions.remove_prefix(count);
  }
}

bool ReplicaList::MovesValues() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.replica->MovesValues(); });
}

absl::Status ReplicaList::Gather(const std::vector<bool>& all_rows) {
  if (MovesValues()) versions_->CountMove();
  for (const Part& part : parts_) {
    absl::Status status = part.replica->Gather(all_rows);
    if (!status.ok()) return status;
  }
  CollectTensors();
  return absl::OkStatus();
}

absl::Status ReplicaList::GatherValues() {
  if (MovesValues()) versions_->CountMove();
  for (const Part& part : parts_) {
    absl::Status status = part.replica->GatherValues();
    if (!status.ok()) return status;
  }
  CollectTensors();
  return absl::OkStatus();
}

const std::shared_ptr<const ParameterMemory>& ReplicaList::parameter_memory() {
  const auto stays = [](const ConstBuffer& known, const ReplicaTensor& tensor) {
    return known == ConstBuffer(tensor.parameter);
  };
  if (parameter_memory_ == nullptr ||
      !std::equal(parameter_memory_->values.begin(), parameter_memory_->values.end(),
                  tensors_.begin(), tensors_.end(), stays)) {
    auto memory = std::make_shared<ParameterMemory>();
    for (const Part& part : parts_) part.replica->AddTo(memory.get());
    // Copies of tensors are written by each Gather.
    if (versions_->are_known() && !MovesValues()) memory->writes = versions_;
    parameter_memory_ = std::move(memory);
  }
  return parameter_memory_;
}

void ReplicaList::CollectTensors() {
  tensors_.clear();
  for (const Part& part : parts_) {
    const absl::Span<const ReplicaTensor> own = part.replica->tensors();
    tensors_.insert(tensors_.end(), own.begin(), own.end());
  }
}

int64_t ReplicaList::gradients_copied() const {
  int64_t copied = 0;
  for (const Part& part : parts_) copied += part.replica->gradients_copied();
  return copied;
}

void ReplicaList::Scatter() {
  const ParameterVersions::Own own(versions_.get());
  for (const Part& part : parts_) part.replica->Scatter();
}

void ReplicaList::ZeroGradients(bool set_to_none) {
  for (const Part& part : parts_) part.replica->ZeroGradients(set_to_none);
}

void ReplicaList::TakeHandedOut(ReplicaList& other) {
  for (int index = 0; index < static_cast<int>(tensors_.size()); ++index) {
    MainGradient* const own = main_gradient(index);
    if (own != nullptr) own->TakeHandedOut(*other.main_gradient(index));
  }
}

MainGradient* ReplicaList::main_gradient(int index) {
  for (const Part& part : parts_) {
    if (index < part.parameters) return part.replica->main_gradient(index);
    index -= part.parameters;
  }
  return nullptr;
}

}  // namespace optshard
