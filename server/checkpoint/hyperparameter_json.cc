#include "server/checkpoint/hyperparameter_json.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/checkpoint/block_checksums.h"

namespace optshard {
namespace {

using Json = nlohmann::json;

constexpr char kBits[] = "float64_bits";

}  // namespace

Json NumberJson(double value) {
  if (std::isfinite(value)) return value;
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  Json json = Json::object();
  json[kBits] = ChecksumText(bits);
  return json;
}

absl::optional<double> NumberOf(const Json& json) {
  if (json.is_number()) return json.get<double>();
  if (!json.is_object() || json.size() != 1 || !json.contains(kBits)) return absl::nullopt;
  const Json& text = json[kBits];
  const auto bits =
      text.is_string() ? ParseChecksum(text.get_ref<const std::string&>()) : absl::nullopt;
  if (!bits) return absl::nullopt;
  double value;
  std::memcpy(&value, &*bits, sizeof(value));
  return value;
}

Json HyperJson(const HyperValue& value) {
  if (const auto* flag = absl::get_if<bool>(&value)) return *flag;
  if (const auto* number = absl::get_if<double>(&value)) return NumberJson(*number);
  if (const auto* choice = absl::get_if<std::string>(&value)) return *choice;
  Json list = Json::array();
  for (const double number : absl::get<Numbers>(value)) list.push_back(NumberJson(number));
  return list;
}

absl::optional<HyperValue> HyperOf(const Json& json) {
  if (json.is_boolean()) return HyperValue(json.get<bool>());
  if (json.is_string()) return HyperValue(json.get<std::string>());
  if (!json.is_array()) {
    const auto number = NumberOf(json);
    return number ? absl::make_optional(HyperValue(*number)) : absl::nullopt;
  }
  if (json.size() > kMaxNumbers) return absl::nullopt;
  std::vector<double> numbers;
  for (const Json& element : json) {
    const auto number = NumberOf(element);
    if (!number) return absl::nullopt;
    numbers.push_back(*number);
  }
  return HyperValue(Numbers(numbers));
}

}  // namespace optshard
