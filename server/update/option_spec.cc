#include "server/update/option_spec.h"

#include <cmath>
#include <utility>

namespace optshard::options {
namespace {

OptionSpec Make(absl::string_view name, HyperValue default_value, absl::string_view range,
                std::function<bool(const HyperValue&)> valid, absl::string_view doc) {
  OptionSpec option;
  option.name = std::string(name);
  option.default_value = default_value;
  option.range = std::string(range);
  option.valid = std::move(valid);
  option.doc = std::string(doc);
  return option;
}

}  // namespace

OptionSpec Flag(absl::string_view name, bool default_value, absl::string_view doc) {
  return Make(
      name, default_value, "true or false", [](const HyperValue&) { return true; }, doc);
}

OptionSpec Finite(absl::string_view name, double default_value, absl::string_view doc) {
  return Make(
      name, default_value, "a finite number",
      [](const HyperValue& value) { return std::isfinite(absl::get<double>(value)); }, doc);
}

OptionSpec NonNegative(absl::string_view name, double default_value, absl::string_view doc) {
  return Make(
      name, default_value, "a finite number, >= 0",
      [](const HyperValue& value) {
        const double number = absl::get<double>(value);
        return std::isfinite(number) && number >= 0;
      },
      doc);
}

OptionSpec Fraction(absl::string_view name, double default_value, absl::string_view doc) {
  return Make(
      name, default_value, "a number in [0, 1]",
      [](const HyperValue& value) {
        const double number = absl::get<double>(value);
        return number >= 0 && number <= 1;
      },
      doc);
}

OptionSpec DecayRates(absl::string_view name, Betas default_value, absl::string_view doc) {
  return Make(
      name, default_value, "two numbers in [0, 1)",
      [](const HyperValue& value) {
        for (double rate : absl::get<Betas>(value)) {
          if (!(rate >= 0 && rate < 1)) return false;
        }
        return true;
      },
      doc);
}

OptionSpec Around1(absl::string_view name, Betas default_value, absl::string_view doc) {
  return Make(
      name, default_value, "a number in (0, 1) and a finite one above 1",
      [](const HyperValue& value) {
        const Betas& pair = absl::get<Betas>(value);
        return pair[0] > 0 && pair[0] < 1 && pair[1] > 1 && std::isfinite(pair[1]);
      },
      doc);
}

OptionSpec Ascending(absl::string_view name, Betas default_value, absl::string_view doc) {
  return Make(
      name, default_value, "two finite numbers, >= 0, the smaller one first",
      [](const HyperValue& value) {
        const Betas& pair = absl::get<Betas>(value);
        return pair[0] >= 0 && pair[0] <= pair[1] && std::isfinite(pair[1]);
      },
      doc);
}

}  // namespace optshard::options
