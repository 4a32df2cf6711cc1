#include "common/hyperparameter_bytes.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

// A group is the number of its values, then for each: length of the name, name, type, and what the
// type asks for: a byte; a double; a count and so many doubles; a length and the text.
enum Type : uint8_t { kFlag = 1, kNumber = 2, kNumbers = 3, kChoice = 4 };

template <typename T>
void Append(const T& value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// No rule has a longer name or choice than a byte can say.
void AppendText(absl::string_view text, std::string* bytes) {
  const absl::string_view kept = text.substr(0, UINT8_MAX);
  Append(static_cast<uint8_t>(kept.size()), bytes);
  absl::StrAppend(bytes, kept);
}

struct AppendValue {
  std::string* bytes;
  void operator()(bool value) const {
    Append(kFlag, bytes);
    Append(static_cast<uint8_t>(value), bytes);
  }
  void operator()(double value) const {
    Append(kNumber, bytes);
    Append(value, bytes);
  }
  void operator()(const Numbers& value) const {
    Append(kNumbers, bytes);
    Append(static_cast<uint8_t>(value.size()), bytes);
    for (double number : value) Append(number, bytes);
  }
  void operator()(const std::string& value) const {
    Append(kChoice, bytes);
    AppendText(value, bytes);
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
      std::string name;
      HyperValue value;
      if (!ReadText(&name) || !ReadValue(&value)) return false;
      group->Set(name, std::move(value));
    }
    return true;
  }

 private:
  bool ReadText(std::string* text) {
    uint8_t size = 0;
    if (!Read(&size) || rest_.size() < size) return false;
    text->assign(rest_.data(), size);
    rest_.remove_prefix(size);
    return true;
  }

  bool ReadValue(HyperValue* value) {
    uint8_t type = 0;
    if (!Read(&type)) return false;
    switch (type) {
      case kFlag: {
        uint8_t flag = 0;
        if (!Read(&flag)) return false;
        *value = flag != 0;
        return true;
      }
      case kNumber:
        return Read(&value->emplace<double>());
      case kNumbers:
        return ReadNumbers(&value->emplace<Numbers>());
      case kChoice:
        return ReadText(&value->emplace<std::string>());
      default:
        return false;
    }
  }

  bool ReadNumbers(Numbers* numbers) {
    uint8_t count = 0;
    if (!Read(&count) || count > kMaxNumbers) return false;
    double values[kMaxNumbers];
    for (uint8_t k = 0; k < count; ++k) {
      if (!Read(&values[k])) return false;
    }
    *numbers = Numbers(absl::MakeConstSpan(values, count));
    return true;
  }

  absl::string_view rest_;
};

}  // namespace

std::string EncodeHyperparameters(absl::Span<const Hyperparameters> groups) {
  std::string bytes;
  for (const Hyperparameters& group : groups) {
    Append(static_cast<uint32_t>(group.values().size()), &bytes);
    for (const auto& [name, value] : group.values()) {
      AppendText(name, &bytes);
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
