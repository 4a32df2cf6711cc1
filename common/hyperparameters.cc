#include "common/hyperparameters.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/fatal.h"

namespace optshard {
namespace {

// The shortest decimal that reads back as the same double: 0.001, not 0.001000000000000000021.
std::string Shortest(double number) {
  for (int digits : {6, 15, 16}) {
    std::string text = absl::StrFormat("%.*g", digits, number);
    if (std::strtod(text.c_str(), nullptr) == number) return text;
  }
  return absl::StrFormat("%.17g", number);  // also nan
}

void Append(std::string& bytes, double number) {
  char raw[sizeof(number)];
  std::memcpy(raw, &number, sizeof(number));
  bytes.append(raw, sizeof(raw));
}

template <typename T>
const T& Get(const Hyperparameters& group, absl::string_view name, const char* type) {
  const HyperValue* value = group.Find(name);
  const T* typed = value != nullptr ? absl::get_if<T>(value) : nullptr;
  if (typed == nullptr) {
    // The caller skipped UpdateRule::Validate: a bug, not a user's mistake.
    Fatal("Hyperparameters: no %s \"%s\" in {%s}", type, name, group.ToString());
  }
  return *typed;
}

}  // namespace

Numbers::Numbers(absl::Span<const double> values) : size_(values.size()) {
  if (size_ > kMaxNumbers) {
    Fatal("Numbers: %d were given for one hyperparameter, expected at most %d", size_, kMaxNumbers);
  }
  std::copy(values.begin(), values.end(), values_.begin());
}

std::string ToString(const HyperValue& value) {
  if (const bool* flag = absl::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const double* number = absl::get_if<double>(&value)) return Shortest(*number);
  if (const std::string* choice = absl::get_if<std::string>(&value)) {
    return absl::StrCat("\"", *choice, "\"");
  }
  const auto append = [](std::string* out, double number) { out->append(Shortest(number)); };
  return absl::StrCat("[", absl::StrJoin(absl::get<Numbers>(value), ", ", append), "]");
}

void Hyperparameters::Set(absl::string_view name, HyperValue value) {
  values_[std::string(name)] = std::move(value);
}

const HyperValue* Hyperparameters::Find(absl::string_view name) const {
  const auto found = values_.find(std::string(name));
  return found == values_.end() ? nullptr : &found->second;
}

double Hyperparameters::Number(absl::string_view name) const {
  return Get<double>(*this, name, "number");
}

bool Hyperparameters::Flag(absl::string_view name) const { return Get<bool>(*this, name, "flag"); }

Numbers Hyperparameters::List(absl::string_view name) const {
  return Get<Numbers>(*this, name, "numbers");
}

const std::string& Hyperparameters::Choice(absl::string_view name) const {
  return Get<std::string>(*this, name, "choice");
}

uint64_t Hyperparameters::Digest() const {
  // Texts end with a zero byte, types have tags and numbers are counted, so that no two sets give
  // the same bytes.
  std::string bytes;
  for (const auto& [name, value] : values_) {
    bytes.append(name.c_str(), name.size() + 1);
    bytes.push_back(static_cast<char>(value.index()));
    if (const bool* flag = absl::get_if<bool>(&value)) {
      bytes.push_back(*flag ? 1 : 0);
    } else if (const double* number = absl::get_if<double>(&value)) {
      Append(bytes, *number);
    } else if (const std::string* choice = absl::get_if<std::string>(&value)) {
      bytes.append(choice->c_str(), choice->size() + 1);
    } else {
      const Numbers& numbers = absl::get<Numbers>(value);
      bytes.push_back(static_cast<char>(numbers.size()));
      for (double number : numbers) Append(bytes, number);
    }
  }
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string Hyperparameters::ToString() const {
  return absl::StrJoin(values_, " ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.first, "=", optshard::ToString(entry.second));
  });
}

}  // namespace optshard
