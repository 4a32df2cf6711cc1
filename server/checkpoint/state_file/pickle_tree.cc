#include "server/checkpoint/state_file/pickle_tree.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/checkpoint/state_file/pickle_reader.h"

namespace optshard {
namespace {

constexpr size_t kMostShown = 80;

static_assert(static_cast<int>(PickleNode::Kind::kTensor) == static_cast<int>(FileKind::kTensor),
              "values have the same kinds as their nodes");

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("it ends: ", parts...));
}

// Python's last value of a key wins; here there is only one.
absl::Status CheckKeys(const FileValue& dict) {
  absl::flat_hash_set<std::string> seen;
  for (size_t i = 0; i < dict.elements.size(); i += 2) {
    const FileValue& key = dict.elements[i];
    const bool is_text = key.kind == FileKind::kText;
    if (!is_text && key.kind != FileKind::kInt && key.kind != FileKind::kFlag) {
      return Wrong("a key of a dict is ", NameOf(key.kind), ", expected a text or an int");
    }
    if (seen.insert(is_text ? absl::StrCat("t", key.text) : absl::StrCat("i", key.whole)).second) {
      continue;
    }
    return Wrong("a dict has the key ",
                 is_text
                     ? absl::StrCat("\"", absl::CHexEscape(key.text.substr(0, kMostShown)), "\"")
                     : absl::StrCat(key.whole),
                 " twice");
  }
  return absl::OkStatus();
}

class Expansion {
 public:
  explicit Expansion(absl::Span<const PickleNode> nodes) : nodes_(nodes) {}

  // A value that contains itself has no end: the depth has.
  absl::Status Expand(uint32_t index, int depth, FileValue& to) {
    const PickleNode& node = nodes_[index];
    if (node.kind > PickleNode::Kind::kTensor) {
      return Wrong(NameOf(node.kind), " is among its values");
    }
    if (depth > kMaxPickleDepth) {
      return Wrong("its values are nested more than ", kMaxPickleDepth,
                   " deep, or contain themselves");
    }
    ++values_;
    text_bytes_ += static_cast<int64_t>(node.text.size());
    if (values_ > kMaxPickleValues || text_bytes_ > kMaxPickleBytes) {
      return Wrong("it stands for more than ", kMaxPickleValues,
                   " values or for texts of more than ", kMaxPickleBytes, " bytes");
    }
    to.kind = static_cast<FileKind>(node.kind);
    to.whole = node.whole;
    to.number = node.number;
    to.text = std::string(node.text);
    to.elements.reserve(std::min<size_t>(node.elements.size(),
                                         static_cast<size_t>(kMaxPickleValues - values_ + 1)));
    for (const uint32_t element : node.elements) {
      to.elements.emplace_back();
      absl::Status expanded = Expand(element, depth + 1, to.elements.back());
      if (!expanded.ok()) return expanded;
    }
    return to.kind == FileKind::kDict ? CheckKeys(to) : absl::OkStatus();
  }

 private:
  const absl::Span<const PickleNode> nodes_;
  int64_t values_ = 0;
  int64_t text_bytes_ = 0;
};

}  // namespace

absl::string_view NameOf(PickleNode::Kind kind) {
  switch (kind) {
    case PickleNode::Kind::kCallable:
      return "a function";
    case PickleNode::Kind::kStorageType:
      return "a class of storages";
    case PickleNode::Kind::kStorage:
      return "a storage";
    default:
      return NameOf(static_cast<FileKind>(kind));
  }
}

absl::StatusOr<FileValue> PickleTree(absl::Span<const PickleNode> nodes, uint32_t root) {
  FileValue value;
  absl::Status expanded = Expansion(nodes).Expand(root, 0, value);
  if (!expanded.ok()) return expanded;
  return value;
}

}  // namespace optshard
