// One option of a program's command line.
#ifndef OPTSHARD_COMMON_CLI_OPTION_H_
#define OPTSHARD_COMMON_CLI_OPTION_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace optshard {

// Thread-compatible. The name has dashes and no leading ones: "world-size".
class CommandOption {
 public:
  // Stores a value; INVALID_ARGUMENT saying what was expected.
  using Parser = std::function<absl::Status(const std::string& text)>;

  // The target's value at this moment is the default. The target must outlive the command line.
  CommandOption(std::string name, bool* target, std::string help);
  CommandOption(std::string name, int* target, std::string help);
  CommandOption(std::string name, int64_t* target, std::string help);
  CommandOption(std::string name, uint64_t* target, std::string help);
  CommandOption(std::string name, double* target, std::string help);
  CommandOption(std::string name, absl::Duration* target, std::string help);
  CommandOption(std::string name, std::string* target, std::string help);
  // For any other type.
  CommandOption(std::string name, Parser parser, std::string help);

  CommandOption(const CommandOption&) = delete;
  CommandOption& operator=(const CommandOption&) = delete;

  // What stands for the value on the help page: "HOST:PORT".
  CommandOption& Value(std::string name);
  // What the help page says of a default that is computed later: "any free port".
  CommandOption& Default(std::string text);
  // The only values; the help page shows them instead of a value's name.
  CommandOption& OneOf(std::vector<std::string> values);
  // The least of whole numbers; options of other types take none.
  CommandOption& AtLeast(int64_t least);
  // Its absence is an error.
  CommandOption& Required();
  // A letter that stands for the name: -n. A value follows after a space, or at once: -n4.
  CommandOption& Short(char letter);
  // Not on the help page: for a program that starts itself.
  CommandOption& Hidden();

  const std::string& name() const { return name_; }
  // A flag takes no value: --name, --no-name or --noname. --name=false works too.
  bool is_flag() const { return is_flag_; }
  bool is_required() const { return is_required_; }
  bool is_hidden() const { return is_hidden_; }
  char letter() const { return letter_; }  // 0: none
  const std::string& value_name() const { return value_name_; }

  // INVALID_ARGUMENT naming the option, the value and what was expected.
  absl::Status Set(const std::string& text) const;

  // Its part of the help page, with lines of at most 80 characters.
  std::string Help() const;

 private:
  CommandOption(std::string name, std::string help, std::string value_name,
                std::string default_text);

  std::string name_;
  std::string help_;
  std::string value_name_;
  std::string default_text_;
  Parser parser_;
  std::vector<std::string> values_;
  int64_t least_ = INT64_MIN;
  bool is_flag_ = false;
  bool is_required_ = false;
  bool is_hidden_ = false;
  char letter_ = 0;
};

// `text` in lines of at most 80 characters, each after `indent` spaces.
std::string Wrapped(const std::string& text, int indent);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CLI_OPTION_H_
