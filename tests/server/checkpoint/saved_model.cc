#include "tests/server/checkpoint/saved_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/checkpoint/commit.h"

namespace optshard::testing {
namespace {

using Arrays = std::vector<CheckpointArray>;

CheckpointParameter Parameter(std::string name, std::vector<int64_t> shape, DType dtype,
                              Arrays slots) {
  CheckpointParameter parameter;
  parameter.name = std::move(name);
  parameter.shape = std::move(shape);
  parameter.dtype = dtype;
  parameter.arrays = {{kParameterArray, ArrayFormatOf(dtype), absl::nullopt}};
  for (CheckpointArray& slot : slots) parameter.arrays.push_back(std::move(slot));
  return parameter;
}

CheckpointArray Slot(std::string name, ArrayFormat format,
                     absl::optional<std::vector<int64_t>> shape = absl::nullopt) {
  return {std::move(name), format, std::move(shape)};
}

std::vector<CheckpointParameter> Parameters(int64_t big_elements) {
  using F = ArrayFormat;
  return {
      Parameter("fc.weight", {3, 700}, DType::kFloat32,
                {Slot("exp_avg", F::kFloat32), Slot("exp_avg_sq", F::kBFloat16)}),
      Parameter("dynamic", {5000}, DType::kBFloat16,
                {Slot("exp_avg", F::kDynamicSigned), Slot("exp_avg_sq", F::kDynamicUnsigned),
                 Slot("master", F::kFloat32)}),
      Parameter("companded", {2, 2100}, DType::kFloat16,
                {Slot("exp_avg", F::kCompandedAverage), Slot("exp_avg_sq", F::kCompandedSquare),
                 Slot("master_correction", F::kInt8)}),
      Parameter("scalar", {}, DType::kFloat64, {Slot("momentum_buffer", F::kFloat64)}),
      Parameter("none", {0, 5}, DType::kFloat32, {Slot("exp_avg", F::kFloat32)}),
      Parameter("100% odd\n\xff[0:3]/\"name", {7, 11}, DType::kFloat32,
                {Slot("exp_avg_sq_row", F::kFloat32, std::vector<int64_t>{7})}),
      Parameter("big", {big_elements}, DType::kFloat32, {Slot("exp_avg", F::kFloat32)}),
  };
}

}  // namespace

SavedModel::SavedModel(StepNumber step, int64_t big_elements)
    : step_(step), parameters_(Parameters(big_elements)) {
  std::vector<GroupSpec> groups(2);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    CheckpointParameter& parameter = parameters_[p];
    parameter.group = p < 4 ? 0 : 1;
    parameter.steps = step + p;
    if (p % 2 == 0) parameter.scalars = {{"mu_product", 0.1 / (step + 1)}, {"inf", INFINITY}};
    ParameterSpec spec;
    spec.name = parameter.name;
    spec.shape = parameter.shape;
    spec.dtype = parameter.dtype;
    groups[static_cast<size_t>(parameter.group)].parameters.push_back(spec);
    for (int a = 0; a < static_cast<int>(parameter.arrays.size()); ++a) {
      const ArrayFormat format = parameter.arrays[static_cast<size_t>(a)].format;
      for (const ArrayPart part : {ArrayPart::kValues, ArrayPart::kScales}) {
        if (part == ArrayPart::kScales && !IsCoded(format)) continue;
        std::string& bytes = bytes_[{static_cast<int>(p), a, part}];
        bytes.resize(static_cast<size_t>(PartBytes(format, part, parameter.ElementsOf(a))));
        std::mt19937_64 random(step * 1000 + p * 10 + static_cast<uint64_t>(a));
        for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
          const uint64_t word = random();
          std::memcpy(&bytes[at], &word, std::min(sizeof(word), bytes.size() - at));
        }
      }
    }
  }
  space_ = ParameterSpace(std::move(groups));
}

const std::string& SavedModel::BytesOf(int parameter, int array, ArrayPart part) const {
  return bytes_.at({parameter, array, part});
}

std::vector<OwnerSlice> SavedModel::SlicesOf(Rank rank, int world_size,
                                             PartitionPolicy policy) const {
  std::vector<OwnerSlice> slices;
  const Partition partition = MakePartition(space_, world_size, policy).value();
  for (const Slice& owned : partition.slices[static_cast<size_t>(rank)]) {
    const CheckpointParameter& parameter = parameters_[static_cast<size_t>(owned.parameter)];
    for (int a = 0; a < static_cast<int>(parameter.arrays.size()); ++a) {
      const CheckpointArray& array = parameter.arrays[static_cast<size_t>(a)];
      // A slot with a shape of its own is where the parameter begins.
      if (array.shape && owned.offset_elements > 0) continue;
      OwnerSlice slice;
      slice.parameter = owned.parameter;
      slice.array = a;
      slice.offset_elements = array.shape ? 0 : owned.offset_elements;
      slice.elements = array.shape ? parameter.ElementsOf(a) : owned.elements;
      const auto source = [&](ArrayPart part) {
        return InMemory(BytesOf(owned.parameter, a, part).data() +
                        PartBytes(array.format, part, slice.offset_elements));
      };
      slice.values = source(ArrayPart::kValues);
      if (IsCoded(array.format)) slice.scales = source(ArrayPart::kScales);
      slices.push_back(std::move(slice));
    }
  }
  return slices;
}

std::string SavedModel::BlobOf(Rank rank, StepNumber step) {
  return rank == 1 ? "" : absl::StrCat("blob of rank ", rank, " at step ", step);
}

OwnerState SavedModel::StateOf(Rank rank, int world_size, PartitionPolicy policy) const {
  OwnerState state;
  state.rank = rank;
  state.slices = SlicesOf(rank, world_size, policy);
  int last = -1;
  for (const OwnerSlice& slice : state.slices) {
    if (slice.parameter == last) continue;
    last = slice.parameter;
    const CheckpointParameter& parameter = parameters_[static_cast<size_t>(last)];
    state.counts.push_back({last, parameter.steps, parameter.scalars});
  }
  return state;
}

CheckpointManifest SavedModel::Description(int world_size, PartitionPolicy policy) const {
  CheckpointManifest manifest;
  manifest.job = "digits";
  manifest.optimizer = "default";
  manifest.step = step_;
  manifest.generation = 3;
  manifest.world_size = world_size;
  manifest.policy = policy;
  manifest.saved_at = absl::FromUnixMillis(1'700'000'000'123 + static_cast<int64_t>(step_));
  GroupRule adam{"adam", {}};
  adam.hyperparameters.Set("lr", 1e-3);
  adam.hyperparameters.Set("betas", Numbers{0.9, 0.999});
  adam.hyperparameters.Set("amsgrad", false);
  GroupRule muon{"muon", {}};
  muon.hyperparameters.Set("adjust_lr_fn", std::string("original"));
  muon.hyperparameters.Set("eps", -0.0);
  manifest.groups = {adam, muon};
  manifest.parameters = parameters_;
  for (CheckpointParameter& parameter : manifest.parameters) {
    parameter.steps = 0;  // the owners say it
    parameter.scalars.clear();
  }
  return manifest;
}

absl::StatusOr<SavedModel::Saved> SavedModel::Save(Directory& root, int world_size,
                                                   PartitionPolicy policy,
                                                   const OwnerWriteOptions& options) const {
  auto made = CreateCheckpoint(root, step_);
  if (!made.ok()) return made.status();
  std::vector<OwnerPart> parts;
  for (Rank rank = world_size - 1; rank >= 0; --rank) {
    OwnerState state = StateOf(rank, world_size, policy);
    const std::string blob = BlobOf(rank, step_);
    if (rank != 2) state.blob = blob;
    auto part = WriteOwnerFile(*made->directory, parameters_, state, options);
    if (!part.ok()) return part.status();
    parts.push_back(*ParseOwnerPart(ToText(*part)));  // as it travels
  }
  auto manifest = MakeManifest(Description(world_size, policy), std::move(parts));
  if (!manifest.ok()) return manifest.status();
  absl::Status committed = CommitCheckpoint(*made->directory, *manifest);
  if (!committed.ok()) return committed;
  return Saved{made->name, *std::move(manifest)};
}

std::string SavedModel::Difference(const CheckpointReader& reader, int world_size,
                                   PartitionPolicy policy) const {
  const CheckpointManifest& manifest = reader.manifest();
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const CheckpointParameter& parameter = manifest.parameters[p];
    if (parameter.name != parameters_[p].name || parameter.steps != parameters_[p].steps ||
        parameter.scalars != parameters_[p].scalars) {
      return absl::StrCat("parameter ", p, ": its name, steps or scalars");
    }
  }
  for (Rank rank = 0; rank < world_size; ++rank) {
    for (const OwnerSlice& slice : SlicesOf(rank, world_size, policy)) {
      const ArrayFormat format = parameters_[static_cast<size_t>(slice.parameter)]
                                     .arrays[static_cast<size_t>(slice.array)]
                                     .format;
      for (const ArrayPart part : {ArrayPart::kValues, ArrayPart::kScales}) {
        if (part == ArrayPart::kScales && !IsCoded(format)) continue;
        std::string bytes(static_cast<size_t>(PartBytes(format, part, slice.elements)), '?');
        const absl::Status read =
            reader.Read(slice.parameter, slice.array, part, slice.offset_elements, slice.elements,
                        absl::MakeSpan(bytes));
        if (!read.ok()) return read.ToString();
        const auto begin = static_cast<size_t>(PartBytes(format, part, slice.offset_elements));
        if (bytes != BytesOf(slice.parameter, slice.array, part).substr(begin, bytes.size())) {
          return absl::StrCat("parameter ", slice.parameter, ", array ", slice.array, ", rank ",
                              rank, ": its values");
        }
      }
    }
  }
  for (Rank rank = 0; rank < manifest.world_size; ++rank) {
    const auto blob = reader.ReadBlob(rank);
    if (!blob.ok()) return blob.status().ToString();
    if (blob->has_value() != (rank != 2) ||
        blob->value_or("") != (rank == 2 ? "" : BlobOf(rank, step_))) {
      return absl::StrCat("the blob of rank ", rank);
    }
  }
  return "";
}

}  // namespace optshard::testing
