#include "common/hyperparameter_bytes.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

// A group is the number of its values, then for each: length of the name, name, type, doubles.
enum Type : uint8_t { kFlag = 1, kNumber = 2, kPair = 3 };

template <typename T>
void Append(const T& value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof value);
}

struct AppendValue {
  std::string* bytes;
  void operator()(bool value) const {
    Append(kFlag, bytes);
    Append(value ? 1.0 : 0.0, bytes);
  }
  void operator()(double value) const {
    Append(kNumber, bytes);
    Append(value, bytes);
  }
  void operator()(const Betas& value) const {
    Append(kPair, bytes);
    Append(value[0], bytes);
    Append(value[1], bytes);
  }
};

class Reader {
 public:
  explicit Reader(absl::string_view bytes) : rest_(bytes) {}

  bool done() const { return rest_.empty(); }

  template <typename T>
  bool Read(T* value) {
    if (rest_.size() < sizeof *value) return false;
    std::memcpy(value, rest_.data(), sizeof *value);
    rest_.remove_prefix(sizeof *value);
    return true;
  }

  bool ReadGroup(Hyperparameters* group) {
    uint32_t count = 0;
    if (!Read(&count)) return false;
    for (uint32_t i = 0; i < count; ++i) {
      uint8_t name_bytes = 0;
      if (!Read(&name_bytes) || rest_.size() < name_bytes) return false;
      const absl::string_view name = rest_.substr(0, name_bytes);
      rest_.remove_prefix(name_bytes);
      uint8_t type = 0;
      double first = 0;
      double second = 0;
      if (!Read(&type) || type < kFlag || type > kPair || !Read(&first)) return false;
      if (type == kPair && !Read(&second)) return false;
      if (type == kFlag) group->Set(name, first != 0);
      if (type == kNumber) group->Set(name, first);
      if (type == kPair) group->Set(name, Betas{first, second});
    }
    return true;
  }

 private:
  absl::string_view rest_;
};

}  // namespace

std::string EncodeHyperparameters(absl::Span<const Hyperparameters> groups) {
  std::string bytes;
  for (const Hyperparameters& group : groups) {
    Append(static_cast<uint32_t>(group.values().size()), &bytes);
    for (const auto& [name, value] : group.values()) {
      // No rule has a longer one.
      const absl::string_view kept = absl::string_view(name).substr(0, UINT8_MAX);
      Append(static_cast<uint8_t>(kept.size()), &bytes);
      absl::StrAppend(&bytes, kept);
      absl::visit(AppendValue{&bytes}, value);
    }
  }
  return bytes;
}

absl::StatusOr<std::vector<Hyperparameters>> DecodeHyperparameters(absl::string_view bytes) {
  std::vector<Hyperparameters> groups;
  Reader reader(bytes);
  while (!reader.done()) {
    Hyperparameters group;
    if (!reader.ReadGroup(&group)) {
      return absl::InvalidArgumentError(
          absl::StrCat(bytes.size(), " bytes are no hyperparameters: those of group ",
                       groups.size(), " end early or are of no known type"));
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace optshard
