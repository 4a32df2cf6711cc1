#include "common/cli/option.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace optshard {
namespace {

constexpr size_t kLine = 80;
constexpr int kHelpIndent = 6;

absl::Status Expected(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what));
}

template <typename Number>
absl::Status ParseInteger(const std::string& text, int64_t least, Number* target) {
  Number number = 0;
  if (absl::SimpleAtoi(text, &number) &&
      (least <= 0 ? static_cast<int64_t>(number) >= least || number > 0
                  : number >= static_cast<Number>(least))) {
    *target = number;
    return absl::OkStatus();
  }
  return Expected(least == INT64_MIN ? "a whole number"
                                     : absl::StrCat("a whole number of at least ", least));
}

}  // namespace

CommandOption::CommandOption(std::string name, std::string help, std::string value_name,
                             std::string default_text)
    : name_(std::move(name)),
      help_(std::move(help)),
      value_name_(std::move(value_name)),
      default_text_(std::move(default_text)) {}

CommandOption::CommandOption(std::string name, bool* target, std::string help)
    : CommandOption(std::move(name), std::move(help), "", *target ? "on" : "off") {
  is_flag_ = true;
  parser_ = [target](const std::string& text) {
    return absl::SimpleAtob(text, target) ? absl::OkStatus() : Expected("true or false");
  };
}

CommandOption::CommandOption(std::string name, int* target, std::string help)
    : CommandOption(std::move(name), std::move(help), "N", absl::StrCat(*target)) {
  parser_ = [this, target](const std::string& text) { return ParseInteger(text, least_, target); };
}

CommandOption::CommandOption(std::string name, int64_t* target, std::string help)
    : CommandOption(std::move(name), std::move(help), "N", absl::StrCat(*target)) {
  parser_ = [this, target](const std::string& text) { return ParseInteger(text, least_, target); };
}

CommandOption::CommandOption(std::string name, uint64_t* target, std::string help)
    : CommandOption(std::move(name), std::move(help), "N", absl::StrCat(*target)) {
  least_ = 0;
  parser_ = [this, target](const std::string& text) { return ParseInteger(text, least_, target); };
}

CommandOption::CommandOption(std::string name, double* target, std::string help)
    : CommandOption(std::move(name), std::move(help), "X", absl::StrCat(*target)) {
  parser_ = [target](const std::string& text) {
    return absl::SimpleAtod(text, target) ? absl::OkStatus() : Expected("a number");
  };
}

CommandOption::CommandOption(std::string name, absl::Duration* target, std::string help)
    : CommandOption(std::move(name), std::move(help), "DURATION", absl::FormatDuration(*target)) {
  parser_ = [target](const std::string& text) {
    absl::Duration duration;
    // "inf" is a duration, too: nothing is waited for without end.
    if (!absl::ParseDuration(text, &duration) || duration < absl::ZeroDuration() ||
        duration == absl::InfiniteDuration()) {
      return Expected("a duration such as 500ms, 5s or 1m30s");
    }
    *target = duration;
    return absl::OkStatus();
  };
}

CommandOption::CommandOption(std::string name, std::string* target, std::string help)
    : CommandOption(std::move(name), std::move(help), "TEXT", *target) {
  parser_ = [target](const std::string& text) {
    *target = text;
    return absl::OkStatus();
  };
}

CommandOption::CommandOption(std::string name, Parser parser, std::string help)
    : CommandOption(std::move(name), std::move(help), "TEXT", "") {
  parser_ = std::move(parser);
}

CommandOption& CommandOption::Value(std::string name) {
  value_name_ = std::move(name);
  return *this;
}

CommandOption& CommandOption::Default(std::string text) {
  default_text_ = std::move(text);
  return *this;
}

CommandOption& CommandOption::OneOf(std::vector<std::string> values) {
  values_ = std::move(values);
  value_name_ = absl::StrJoin(values_, "|");
  return *this;
}

CommandOption& CommandOption::AtLeast(int64_t least) {
  least_ = least;
  return *this;
}

CommandOption& CommandOption::Required() {
  is_required_ = true;
  return *this;
}

CommandOption& CommandOption::Short(char letter) {
  letter_ = letter;
  return *this;
}

CommandOption& CommandOption::Hidden() {
  is_hidden_ = true;
  return *this;
}

absl::Status CommandOption::Set(const std::string& text) const {
  const bool unknown =
      !values_.empty() && std::find(values_.begin(), values_.end(), text) == values_.end();
  absl::Status parsed =
      unknown ? Expected(absl::StrCat("one of ", absl::StrJoin(values_, ", "))) : parser_(text);
  if (parsed.ok()) return parsed;
  return absl::InvalidArgumentError(absl::StrCat("--", name_, "=", text, ": ", parsed.message()));
}

std::string CommandOption::Help() const {
  const std::string note = is_required_            ? "required"
                           : default_text_.empty() ? ""
                                                   : absl::StrCat("default: ", default_text_);
  return absl::StrCat(
      "  ", letter_ != 0 ? absl::StrCat("-", std::string(1, letter_), ", ") : "", "--",
      is_flag_ ? "[no-]" : "", name_, is_flag_ ? "" : absl::StrCat("=", value_name_),
      note.empty() ? "" : absl::StrCat("  (", note, ")"), "\n", Wrapped(help_, kHelpIndent));
}

std::string Wrapped(const std::string& text, int indent) {
  const std::string margin(indent, ' ');
  std::string wrapped;
  std::string line;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!line.empty() && margin.size() + line.size() + 1 + word.size() > kLine) {
      absl::StrAppend(&wrapped, margin, line, "\n");
      line.clear();
    }
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  absl::StrAppend(&wrapped, margin, line, "\n");
  return wrapped;
}

}  // namespace optshard
