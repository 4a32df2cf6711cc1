#include "server/update/option_spec.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace optshard::options {
namespace {

OptionSpec Make(absl::string_view name, HyperValue default_value, absl::string_view range,
                std::function<bool(const HyperValue&)> valid, absl::string_view doc) {
  OptionSpec option;
  option.name = std::string(name);
  option.default_value = std::move(default_value);
  option.range = std::string(range);
  option.valid = std::move(valid);
  option.doc = std::string(doc);
  return option;
}

OptionSpec Number(absl::string_view name, double default_value, absl::string_view range,
                  std::function<bool(double)> valid, absl::string_view doc) {
  return Make(
      name, default_value, range,
      [valid = std::move(valid)](const HyperValue& value) {
        return valid(absl::get<double>(value));
      },
      doc);
}

}  // namespace

OptionSpec Flag(absl::string_view name, bool default_value, absl::string_view doc) {
  return Make(
      name, default_value, "true or false", [](const HyperValue&) { return true; }, doc);
}

OptionSpec Finite(absl::string_view name, double default_value, absl::string_view doc) {
  return Number(
      name, default_value, "a finite number", [](double number) { return std::isfinite(number); },
      doc);
}

OptionSpec NonNegative(absl::string_view name, double default_value, absl::string_view doc) {
  return Number(
      name, default_value, "a finite number, >= 0",
      [](double number) { return std::isfinite(number) && number >= 0; }, doc);
}

OptionSpec NonPositive(absl::string_view name, double default_value, absl::string_view doc) {
  return Number(
      name, default_value, "a finite number, <= 0",
      [](double number) { return std::isfinite(number) && number <= 0; }, doc);
}

OptionSpec AtLeast1(absl::string_view name, double default_value, absl::string_view doc) {
  return Number(
      name, default_value, "a finite number, >= 1",
      [](double number) { return std::isfinite(number) && number >= 1; }, doc);
}

OptionSpec Fraction(absl::string_view name, double default_value, absl::string_view doc) {
  return Number(
      name, default_value, "a number in [0, 1]",
      [](double number) { return number >= 0 && number <= 1; }, doc);
}

OptionSpec Positive(absl::string_view name, double default_value, absl::string_view doc) {
  return Number(
      name, default_value, "a finite number, > 0",
      [](double number) { return std::isfinite(number) && number > 0; }, doc);
}

OptionSpec Whole(absl::string_view name, int default_value, int least, int most,
                 absl::string_view doc) {
  return Number(
      name, default_value, absl::StrCat("a whole number from ", least, " to ", most),
      [least, most](double number) {
        return number >= least && number <= most && number == std::floor(number);
      },
      doc);
}

OptionSpec FiniteNumbers(absl::string_view name, Numbers default_value, absl::string_view doc) {
  return Make(
      name, default_value, absl::StrCat(default_value.size(), " finite numbers"),
      [](const HyperValue& value) {
        const Numbers& numbers = absl::get<Numbers>(value);
        return std::all_of(numbers.begin(), numbers.end(),
                           [](double number) { return std::isfinite(number); });
      },
      doc);
}

OptionSpec Choice(absl::string_view name, std::vector<std::string> choices, absl::string_view doc) {
  const std::string range = absl::StrJoin(choices, " or ", [](std::string* out, const auto& one) {
    absl::StrAppend(out, "\"", one, "\"");
  });
  OptionSpec option = Make(
      name, choices.front(), range,
      [choices](const HyperValue& value) {
        return absl::c_linear_search(choices, absl::get<std::string>(value));
      },
      doc);
  option.choices = std::move(choices);
  return option;
}

OptionSpec DecayRates(absl::string_view name, Numbers default_value, absl::string_view doc) {
  return Make(
      name, default_value, "two numbers in [0, 1)",
      [](const HyperValue& value) {
        for (double rate : absl::get<Numbers>(value)) {
          if (!(rate >= 0 && rate < 1)) return false;
        }
        return true;
      },
      doc);
}

OptionSpec NonNegativePair(absl::string_view name, Numbers default_value, absl::string_view doc) {
  return Make(
      name, default_value, "two finite numbers, >= 0",
      [](const HyperValue& value) {
        for (const double number : absl::get<Numbers>(value)) {
          if (!std::isfinite(number) || number < 0) return false;
        }
        return true;
      },
      doc);
}

OptionSpec Around1(absl::string_view name, Numbers default_value, absl::string_view doc) {
  return Make(
      name, default_value, "a number in (0, 1) and a finite one above 1",
      [](const HyperValue& value) {
        const Numbers& pair = absl::get<Numbers>(value);
        return pair[0] > 0 && pair[0] < 1 && pair[1] > 1 && std::isfinite(pair[1]);
      },
      doc);
}

OptionSpec Ascending(absl::string_view name, Numbers default_value, absl::string_view doc) {
  return Make(
      name, default_value, "two finite numbers, >= 0, the smaller one first",
      [](const HyperValue& value) {
        const Numbers& pair = absl::get<Numbers>(value);
        return pair[0] >= 0 && pair[0] <= pair[1] && std::isfinite(pair[1]);
      },
      doc);
}

}  // namespace optshard::options
