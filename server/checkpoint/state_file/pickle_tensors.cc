#include "server/checkpoint/state_file/pickle_tensors.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "common/checked_math.h"
#include "common/request_limits.h"
#include "server/checkpoint/state_file/pickle_names.h"

namespace optshard {
namespace {

using Kind = PickleNode::Kind;

constexpr size_t kMostKeyBytes = 200;

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::optional<std::vector<int64_t>> Extents(absl::Span<const PickleNode> nodes,
                                             const PickleNode& tuple) {
  if (tuple.kind != Kind::kTuple || tuple.elements.size() > kMaxDimensions) return absl::nullopt;
  std::vector<int64_t> extents;
  for (const uint32_t element : tuple.elements) {
    if (nodes[element].kind != Kind::kInt || nodes[element].whole < 0) return absl::nullopt;
    extents.push_back(nodes[element].whole);
  }
  return extents;
}

bool Fits(const FileTensor& tensor, int64_t storage_elements) {
  if (tensor.offset_elements < 0 || tensor.offset_elements > storage_elements) return false;
  if (std::count(tensor.shape.begin(), tensor.shape.end(), 0) != 0) return true;
  int64_t elements = 1;
  int64_t last = tensor.offset_elements;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    elements = SaturatingMultiply(elements, tensor.shape[d]);
    last = SaturatingAdd(last, SaturatingMultiply(tensor.shape[d] - 1, tensor.strides[d]));
  }
  return elements <= storage_elements && last < storage_elements;
}

}  // namespace

absl::StatusOr<size_t> PickleTensors::AddStorage(absl::Span<const PickleNode> nodes,
                                                 const PickleNode& id) {
  const std::vector<uint32_t>& given = id.elements;
  const bool known =
      id.kind == Kind::kTuple && given.size() == 5 && nodes[given[0]].kind == Kind::kText &&
      nodes[given[0]].text == pickle::kStorage && nodes[given[1]].kind == Kind::kStorageType &&
      nodes[given[2]].kind == Kind::kText && nodes[given[4]].kind == Kind::kInt;
  if (!known) {
    return Wrong("it has a persistent id that is none of a storage of numbers; ", kSavePlainValues);
  }
  TypedStorage storage;
  storage.type = static_cast<TensorType>(nodes[given[1]].whole);
  storage.elements = nodes[given[4]].whole;
  if (storage.elements < 0 || storage.elements > INT64_MAX / SizeOf(storage.type)) {
    return Wrong("it has a storage of ", storage.elements, " elements");
  }
  const absl::string_view key = nodes[given[2]].text;
  if (key.size() > kMostKeyBytes) return Wrong("the key of a storage is too long");
  const auto named = storage_of_.emplace(key, storages_.size());
  if (named.second) storages_.push_back({std::string(key), 0, 0, absl::nullopt});
  storage.storage = named.first->second;
  int64_t& bytes = storages_[storage.storage].bytes;
  bytes = std::max(bytes, storage.elements * SizeOf(storage.type));
  typed_.push_back(storage);
  return typed_.size() - 1;
}

absl::StatusOr<size_t> PickleTensors::AddTensor(absl::Span<const PickleNode> nodes,
                                                absl::Span<const uint32_t> arguments) {
  if (arguments.size() < 4 || arguments.size() > 7 || nodes[arguments[0]].kind != Kind::kStorage ||
      nodes[arguments[1]].kind != Kind::kInt) {
    return Wrong("it makes a tensor of something that is no storage");
  }
  const TypedStorage& storage = typed_[static_cast<size_t>(nodes[arguments[0]].whole)];
  auto shape = Extents(nodes, nodes[arguments[2]]);
  auto strides = Extents(nodes, nodes[arguments[3]]);
  if (!shape || !strides || shape->size() != strides->size()) {
    return Wrong(
        "it has a tensor whose sizes and strides are no whole numbers from 0 on, as many of the "
        "one as of the other");
  }
  FileTensor tensor;
  tensor.type = storage.type;
  tensor.offset_elements = nodes[arguments[1]].whole;
  tensor.storage = storage.storage;
  tensor.shape = *std::move(shape);
  tensor.strides = *std::move(strides);
  if (!Fits(tensor, storage.elements)) {
    return Wrong("a tensor has elements outside its storage \"",
                 absl::CHexEscape(storages_[storage.storage].name), "\" of ", storage.elements,
                 " elements, or more than that: of an expanded one save .clone()");
  }
  tensors_.push_back(std::move(tensor));
  return tensors_.size() - 1;
}

}  // namespace optshard
